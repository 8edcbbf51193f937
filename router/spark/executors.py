"""Whether the executors of a cluster are there, and have what the router's code needs."""

from __future__ import annotations

import platform
import re
import shutil
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

import bindings
import catalog
import router
from bindings.private_files import create_private_folder
from router.errors import BrokerUnreachable, ConfigError, JvmError, RouterError, extract_cause
from router.logs import get_logger
from router.settings import SparkSettings
from router.settings.spark import is_local

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Which packages a Python has: asked in this process, and in a worker of each executor.
#
# Nothing but the standard library is imported here, so that a worker without all the rest can say so.

ROUTER: Final = "xregistry-router"
_PYTHON: Final = "Python"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA: Final = re.compile("extra == (?!.(spark|brokers|protobuf).)")
"""In the requirement of an extra that no executor needs."""


def list_needed_packages() -> tuple[str, ...]:
    """Return the packages that the router needs at run time, by name."""
    wanted = (each for each in requires(ROUTER) or () if _EXTRA.search(each) is None)
    return tuple(sorted({match[0] for each in wanted if (match := _NAME.match(each)) is not None} - {ROUTER}))


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package, empty for one that is missing, and that of Python with its machine."""
    return {_PYTHON: f"{platform.python_version()} {platform.machine()}"} | {name: _version(name) for name in packages}


def iter_local_versions(packages: Sequence[str], _: Iterable[int] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield this machine's name and its :func:`find_versions`; what a task of Spark runs."""
    yield socket.gethostname(), find_versions(packages)


def find_differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return what is missing there or is of another version than here, each by name and in words."""
    return [
        f"{name} {there[name]} (here {wanted})" if there.get(name) else f"no {name} (here {wanted})"
        for name, wanted in here.items()
        if there.get(name) != wanted
    ]


def _version(package: str) -> str:
    if package == "pyspark":
        # Spark brings its own to its executors, as a mere folder of modules.
        import pyspark

        return pyspark.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


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


def require_executors(spark: SparkSession, settings: SparkSettings) -> None:
    """Make sure that an executor takes tasks, and that those there are have the packages that this process has.

    Raises:
        BrokerUnreachable: the master is gone, or gives no executor within ``executor_wait``.
        ConfigError: an executor has no such Python, lacks packages or has others; names the machine and these.
    """
    packages = list_needed_packages()
    here = find_versions(packages)
    for machine, there in sorted(_ask_executors(spark, packages, settings).items()):
        if differing := find_differences(here, there):
            said = f"executors on {machine} have other packages: {', '.join(differing)}"
            raise ConfigError(said, key="spark.python", hint=_PACKED)
    _log.info("executors are ready", master=settings.master, executors=count_executors(spark.sparkContext))


@contextmanager
def naming_master_errors(settings: SparkSettings) -> Iterator[None]:
    """Turn the errors of a master that takes no application into :class:`BrokerUnreachable`."""
    try:
        yield
    except Exception as error:
        if settings.is_local or isinstance(error, RouterError):
            raise
        raise _master_unreachable(settings) from error


def count_executors(context: SparkContext) -> int:
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


def _ask_executors(spark: SparkSession, packages: Sequence[str], settings: SparkSettings) -> Answers:
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
        asked = context.parallelize(range(tasks), tasks).mapPartitions(partial(iter_local_versions, packages))
        return dict(asked.collect())
    except Exception as error:
        raise _make_failure(settings, str(error), late=late.is_set()) from error
    finally:
        timer.cancel()
        context.removeJobTag(_TAG)


def _make_failure(settings: SparkSettings, text: str, *, late: bool) -> RouterError:
    if late:
        return BrokerUnreachable(
            f"no executor of {settings.master} ran a task within {settings.executor_wait.total_seconds():g} s",
            hint="check that the cluster has free cores and memory, and that executors reach "
            f"{settings.host} (spark.driver_host) and its ports",
        )
    if any(sign in text for sign in _STOPPED):
        return _master_unreachable(settings)
    return ConfigError(f"executors cannot run Python: {extract_cause(text)}", key="spark.python", hint=_PACKED)


def _master_unreachable(settings: SparkSettings) -> BrokerUnreachable:
    hint = "start the master, or correct spark.master; the master's log says why it ended an application"
    return BrokerUnreachable(f"Spark master {settings.master} is unreachable or accepts no applications", hint=hint)


# The router's own code on its way to executors: an archive of the installed packages, unpacked there by Spark.
#
# Spark unpacks it, since some modules read files that lie beside them and cannot do so from a zip. The packages that
# ours need contain native code, so executors must have them already (:mod:`router.spark.executors`).

FOLDER: Final = "code"
"""In the state folder; executors fetch the archive from there for as long as the session lives."""
_UNPACKED: Final = "xrouter-code"
_PACKAGES: Final = (catalog, bindings, router)


def ship_code(spark: SparkSession, state: Path) -> None:
    """Have every executor, also one that comes later, import the router's packages as they are here.

    Raises:
        OSError: the archive cannot be written into the state folder.
    """
    folder = state / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    create_private_folder(folder)
    archive = folder / f"{_UNPACKED}.zip"
    write_archive(archive)
    context = spark.sparkContext
    context.addArchive(f"{archive}#{_UNPACKED}")
    # Workers put what is named here in front of their path, below the folder that archives are unpacked in.
    context._python_includes = [*(context._python_includes or ()), _UNPACKED]


def write_archive(archive: Path) -> None:
    """Write the packages, and what says their version, into a zip."""
    installed = distribution(ROUTER)
    with ZipFile(archive, "x", ZIP_DEFLATED) as target:
        for name, file in _iter_package_files():
            target.write(file, name)
        about = f"{ROUTER.replace('-', '_')}-{installed.version}.dist-info"
        target.writestr(
            f"{about}/METADATA", installed.read_text("METADATA") or f"Name: {ROUTER}\nVersion: {installed.version}\n"
        )


def _iter_package_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of all packages, with their names below the folder that the packages are in."""
    for package in _PACKAGES:
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root.parent).as_posix(), file
