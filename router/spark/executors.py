"""Whether the executors of a cluster are there, and have what the router's code needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from router.errors import BrokerUnreachable, ConfigError, JvmError, RouterError
from router.faults import cause_of
from router.logs import get_logger
from router.settings import SparkSettings
from router.settings.spark import is_local
from router.spark.installed import differences, needed, versions, versions_here

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = get_logger()
_TAG: Final = "xrouter-executors"
_TASKS_EACH: Final = 2
"""Tasks for each core that is known: not every executor takes its share of so few."""
_STOPPED: Final = ("SparkContext was shut down", "stopped SparkContext")
_PACKED: Final = (
    "install the locked packages for that Python on every machine, or ship a packed environment: name it in "
    "spark.conf under spark.archives, and its Python in spark.python"
)
Answers = dict[str, dict[str, str]]


def examine_executors(spark: SparkSession, settings: SparkSettings) -> None:
    """Make sure that an executor takes tasks, and that those there are have the packages that this process has.

    Raises:
        BrokerUnreachable: the master is gone, or gives no executor within ``executor_wait``.
        ConfigError: an executor has no such Python, lacks packages or has others; names the machine and these.
    """
    packages = needed()
    here = versions(packages)
    for machine, there in sorted(_answers(spark, packages, settings).items()):
        if differing := differences(here, there):
            said = f"executors on {machine} have other packages: {', '.join(differing)}"
            raise ConfigError(said, key="spark.python", hint=_PACKED)
    _log.info("executors answer", master=settings.master, executors=executor_count(spark.sparkContext))


@contextmanager
def master_named(settings: SparkSettings) -> Iterator[None]:
    """Turn the errors of a master that takes no application into :class:`BrokerUnreachable`."""
    try:
        yield
    except Exception as error:
        if settings.is_local or isinstance(error, RouterError):
            raise
        raise _no_master(settings) from error


def executor_count(context: SparkContext) -> int:
    """Return how many executors there are now; 0 for a local master."""
    # Spark counts the driver's own block manager as one.
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def require_context(spark: SparkSession) -> None:
    """Make sure that the cluster has not given the router up; there is none behind a local master.

    Raises:
        JvmError: the cluster ended the application, so nothing is judged any more.
    """
    context = spark.sparkContext
    if not is_local(context.master or "") and context._jsc.sc().isStopped():
        hint = "see what its master says of the application; nothing is lost, the next start repeats the batch"
        raise JvmError("the cluster ended the router's Spark application", hint=hint)


def _answers(spark: SparkSession, packages: Sequence[str], settings: SparkSettings) -> Answers:
    """Return what workers say of their packages, by machine."""
    context = spark.sparkContext
    late = threading.Event()

    def cancel() -> None:
        late.set()
        context.cancelJobsWithTag(_TAG)

    timer = threading.Timer(settings.executor_wait.total_seconds(), cancel)
    timer.daemon = True
    context.addJobTag(_TAG)
    timer.start()
    try:
        tasks = context.defaultParallelism * _TASKS_EACH
        asked = context.parallelize(range(tasks), tasks).mapPartitions(partial(versions_here, packages))
        return dict(asked.collect())
    except Exception as error:
        raise _failure(settings, str(error), late=late.is_set()) from error
    finally:
        timer.cancel()
        context.removeJobTag(_TAG)


def _failure(settings: SparkSettings, text: str, *, late: bool) -> RouterError:
    if late:
        return BrokerUnreachable(
            f"no executor of {settings.master} took a task within {settings.executor_wait.total_seconds():g} s",
            hint="see whether the cluster has cores and memory left, and whether executors reach "
            f"{settings.host} (spark.driver_host) and its ports",
        )
    if any(sign in text for sign in _STOPPED):
        return _no_master(settings)
    return ConfigError(f"executors cannot run Python: {cause_of(text)}", key="spark.python", hint=_PACKED)


def _no_master(settings: SparkSettings) -> BrokerUnreachable:
    hint = "start the master, or correct spark.master; the master's log says why it ended an application"
    return BrokerUnreachable(f"Spark master {settings.master} does not answer, or takes no application", hint=hint)
