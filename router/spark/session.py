"""The Spark session of a running router, and its JVM's hold on the state folder."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bindings.inbox.source import InboxDataSource
from router.errors import ConfigError, StateError
from router.judging.judging import ENVIRONMENT as WORKER_ENVIRONMENT
from router.logs import jvm_log_conf
from router.machine import HEAP_OPTION, MIB, divided
from router.settings import Settings, SparkSettings, revealed
from router.settings.checks import inbox_faults
from router.settings.spark import LOOPBACK, is_local
from router.sources import Source
from router.spark.connectors import kafka_jars
from router.spark.executors import examine_executors, master_named, ship_code
from router.spark.jvm import OPTIONS, end_jvm, jvm_alive, jvm_death_named, launch_jvm, part_quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where Python workers of the router's own JVM come from, and find pyspark: where the driver has it, compiled. And what
# Spark need not start Python for.
#
# Spark puts its archive ``pyspark.zip`` first on their path. Python keeps no compiled code of an archive, so each
# process would compile anew what it needs of it: nearly a second of CPU for each of five processes before the first
# batch.

DAEMON_CONF: Final = {"spark.python.daemon.module": "router.spark.worker_daemon"}
"""Has workers forked from :mod:`router.spark.worker_daemon`; for machines that have the driver's installation."""
_HOME: Final = "SPARK_HOME"


def import_as_driver(spark: SparkSession) -> None:
    """Have the workers that start from here on import pyspark as the driver does, where both are of this machine.

    It comes before the first worker. A Spark that ``SPARK_HOME`` names is left as it is: its archive may be another
    pyspark than the driver's.
    """
    if _HOME in os.environ or not is_local(spark.sparkContext.master or ""):
        return
    from py4j.protocol import Py4JError

    # Spark asks the JVM's environment for this variable, which the scripts that start the JVM have set, and looks for
    # the archive below it. Java shows the environment as an unmodifiable view of the map that is asked. Where Java does
    # not let us change that map, workers merely start slower.
    with suppress(Py4JError):
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        shown = jvm.java.lang.System.getenv()
        inner = shown.getClass().getDeclaredField("m")
        inner.setAccessible(True)
        inner.get(shown).remove(_HOME)


def seek_no_data_sources(spark: SparkSession) -> None:
    """Have Spark look for no data sources in installed packages: the router registers its own.

    Before it opens any source or sink it would else start Python, and import each package there is whose name begins
    with ``pyspark_``: half a second of each start, and code that nobody asked for.
    """
    from py4j.protocol import Py4JError

    # Spark keeps the result for its whole JVM. A test fails if another version of Spark keeps it elsewhere.
    with suppress(Py4JError):
        jvm: Any = spark.sparkContext._jvm
        manager = getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$")
        none = jvm.scala.Option.apply(jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))
        getattr(getattr(manager, "MODULE$"), "dataSourceBuilders_$eq")(none)


LOCK_SECONDS: Final = 60.0
ARROW_ROWS: Final = 20_000
ARROW_BYTES: Final = 16 * MIB
"""An Arrow batch on its way to a Python worker ends at whichever comes first."""
_FIXED: Final = {
    "spark.app.name": "xregistry-router",
    # For executors on other machines; local workers have it from the JVM (:mod:`router.spark.jvm`).
    "spark.executorEnv.PYTHONSAFEPATH": "1",
    # Hadoop sets modes itself, past the umask of the process.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.ui.enabled": "false",
    # The progress of a write is known at these intervals (:mod:`router.watching.batches`).
    "spark.executor.heartbeatInterval": "3s",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise each expression asks the JVM five times for the line of code that made it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # The state is on a local disk. There Spark's other way starts ten processes for each file of a checkpoint, to ask
    # for modes and links; this one starts two. Both rename, and keep a checksum beside the file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.metricsEnabled": "false",
    # Ours counts queries and drains them; Spark's own hook would cut batches short.
    "spark.sql.streaming.stopTimeout": "30s",
}
# Columns are named by properties, and two headers may differ in letter case alone.
_ENFORCED: Final = {"spark.sql.caseSensitive": "true"}
_JIT: Final = "-XX:-DontCompileHugeMethods"
"""The selectors of a plan become one method. By default HotSpot would interpret it because of its size."""


@contextmanager
def spark_session(settings: Settings, state: Path, sources: Sequence[Source]) -> Iterator[SparkSession]:
    """Yield the session, stopped at the end. Kafka's jars are only fetched when a source or sink needs them.

    The JVM locks ``state/lock.jvm`` for as long as it lives: a killed router's JVM outlives it by moments, and must
    not write beside the next one.

    With a master that is not local, executors get the router's code, and are there and have what it needs when the
    session is yielded.

    Raises:
        BrokerUnreachable: there is no executor.
        ConfigError: executors lack something, or cannot reach something.
        ConnectorError: the Kafka connector is not there and cannot be fetched.
        JvmError: the JVM does not start; also in place of whatever its death brings about within the block.
        StateError: the JVM of a router that ended still holds the state folder.
    """
    needs_kafka = (
        settings.inbox.kafka is not None
        or not all(source.pushed for source in sources)
        or any(sink.needs_connector for sink in settings.sinks.values())
    )
    jars = kafka_jars() if needs_kafka else []
    cluster = not settings.spark.is_local
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = (cluster and settings.spark.python) or sys.executable
    from pyspark.sql import SparkSession

    if cluster and any(source.pushed for source in sources):
        _require(inbox_faults(settings))
    shares = {"spark.sql.warehouse.dir": str(state / "warehouse"), **memory_conf(settings), **_patience(settings)}
    workers = {} if cluster else DAEMON_CONF
    master = _master(settings)
    chosen = {**_FIXED, **workers, **shares, **master, **_addresses(settings.spark), **revealed(settings.spark.conf)}
    for place, options in (("driver", f"{_JIT} {OPTIONS}"), ("executor", _JIT)):
        name = f"spark.{place}.extraJavaOptions"
        chosen[name] = f"{options} {chosen.get(name, '')}".strip()
    json = settings.log.format == "json"
    own = "log4j2.configurationFile" in chosen["spark.driver.extraJavaOptions"]  # to see all
    chosen |= jvm_log_conf(chosen, json=json) | _ENFORCED | {"spark.master": master["spark.master"]}
    if jars:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark: SparkSession | None = None
    try:
        with jvm_death_named(divided(settings).heap_remedy):
            with _own_interrupt(), master_named(settings.spark):
                launch_jvm(chosen, state, relayed=json or not own, whole=own)
                spark = builder.getOrCreate()
            part_quietly(spark.sparkContext)
            import_as_driver(spark)
            seek_no_data_sources(spark)
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(InboxDataSource)
            _lock(spark, state / "lock.jvm")
            if cluster:
                ship_code(spark, state)
                examine_executors(spark, settings.spark)
            yield spark
    finally:
        if spark is not None and jvm_alive():
            spark.stop()
        end_jvm()


def memory_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration that keeps Spark within its share of the machine's memory.

    Raises:
        ConfigError: as :func:`router.machine.divided`.
    """
    division = divided(settings)
    return {
        HEAP_OPTION: f"{division.heap // MIB}m",
        # The most that comes to the driver at once. Beyond it a batch fails; otherwise the JVM would run out of memory.
        "spark.driver.maxResultSize": str(division.heap // 4),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(min(ARROW_BYTES, division.batch)),
        **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
    }


def _master(settings: Settings) -> dict[str, str]:
    """Return the configuration of how many tasks run at a time, and where."""
    if settings.spark.master is not None:
        return {"spark.master": settings.spark.master}
    division = divided(settings)
    # A task that stages has a file of its own for each table: these are as many as there are cores.
    return {"spark.master": division.master, "spark.default.parallelism": str(division.cores)}


def _addresses(spark: SparkSettings) -> dict[str, str]:
    """Return the configuration of how executors reach the router."""
    host = spark.host or LOOPBACK
    addresses = {"spark.driver.host": host, "spark.driver.bindAddress": spark.driver_bind or host}
    if spark.is_local:
        return {name: LOOPBACK for name in addresses}
    ports = {"spark.driver.port": spark.driver_port, "spark.driver.blockManager.port": spark.block_port}
    return addresses | {name: str(port) for name, port in ports.items() if port}


def _require(faults: Iterable[tuple[str, str]]) -> None:
    problems = [f"{key}: {fault}" for key, fault in faults]
    if problems:
        raise ConfigError(problems[0], key=problems[0].partition(":")[0], problems=tuple(problems))


def _patience(settings: Settings) -> dict[str, str]:
    """Return the configuration that ends Python workers which hang; the task then fails, and says so."""
    return {
        "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": str(math.ceil(settings.worker_timeout.total_seconds())),
        "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true",
    }


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep our handler of SIGINT: a new Spark context puts its own there, which would end us instead of draining."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _lock(spark: SparkSession, path: Path) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    deadline = time.monotonic() + LOCK_SECONDS
    # The file object is kept by the JVM's gateway until the process ends, and the lock with it.
    while file.getChannel().tryLock() is None:
        if time.monotonic() > deadline:
            raise StateError(
                f"the Spark of an earlier router still holds {path.parent}",
                hint="end the java process that the earlier router started, then start again",
            )
        time.sleep(0.5)
    spark._xrouter_lock = file  # type: ignore[attr-defined]
