"""The Spark session of a running router, and its JVM's hold on the state folder."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

from bindings.inbox.source import InboxDataSource
from bindings.private_files import create_private_folder, open_private_file
from router.errors import ConfigError, JvmError, StateError
from router.evaluation.evaluator import WORKER_ENVIRONMENT
from router.logs import get_logger, make_jvm_log_conf
from router.machine import HEAP_OPTION, MIB, divide_memory
from router.settings import Settings, SparkSettings, plain_options
from router.settings.checks import iter_inbox_faults
from router.settings.spark import LOOPBACK, is_local
from router.sources import Source
from router.spark.connectors import class_archive, fetch_jars
from router.spark.executors import naming_master_errors, require_executors, ship_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The JVM under the router: how it starts and ends, what it prints, and what signals do to it.

# The JVM under the router: how it starts with its configuration, and how it ends.
#
# Everybody on a machine may read the arguments of a process, so no value of the configuration stands there. It is
# handed over in files of mode 0600, which are gone once the JVM runs.

# Whether the JVM under Spark lives, which error its end becomes, and how it is ended without output.
#
# Nothing here brings Spark along: it is also asked where no session was ever begun.

_log = get_logger()
EXIT_SECONDS: Final = 10.0
"""Longest wait for a JVM that is ending: its connection breaks moments before its process is gone."""
OPTIONS: Final = "-XX:+ExitOnOutOfMemoryError"
"""A JVM that lacks memory ends at once, with an exit code of its own, instead of living on with threads missing."""
_REPEATED: Final = "nothing is lost, the next start repeats the batch"
_KILLED: Final = (
    f"the kernel log shows whether the machine ran out of memory: then lower memory.heap and memory.worker, or give "
    f"it more; {_REPEATED}"
)
_NO_MEMORY: Final = frozenset({3, 52})
"""Exit codes of a JVM that ran out of memory: by :data:`OPTIONS`, and by Spark."""
_KILLED_CODES: Final = frozenset({-9, 137})
"""Exit codes of one that was killed; the second where a shell stands between."""
_NOT_STARTED: Final = (
    "see the lines before this one; `xrouter doctor` looks at Java, and memory.heap may be more than there is"
)
_LOST: Final = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
"""Errors that may come before the process is seen to have ended."""


def jvm_pid() -> int:
    """Return the process of the JVM, which there is."""
    process = _jvm_process()
    assert process is not None
    return int(process.pid)


def is_jvm_alive() -> bool:
    """Whether there is a JVM of ours, and it has not ended."""
    process = _jvm_process()
    return process is not None and process.poll() is None


def require_jvm() -> None:
    """Make sure that the JVM, if one was started, lives.

    Raises:
        JvmError: it has ended; the message says how.
    """
    process = _jvm_process()
    if process is not None and process.poll() is not None:
        raise _death_error(process.returncode, "")


@contextmanager
def naming_jvm_death(memory: str) -> Iterator[None]:
    """Turn what comes of the JVM's death, or of its lack of memory, into :class:`JvmError`; all else goes through.

    *memory* says what to do when it lacks memory.
    """
    try:
        yield
    except Exception as error:
        process = _jvm_process()
        if process is not None and any(kind.__name__ in _LOST for kind in type(error).__mro__):
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_SECONDS)
        if process is not None and process.poll() is not None:
            raise _death_error(process.returncode, memory) from error
        if "java.lang.OutOfMemoryError" in str(error):
            raise _death_error(min(_NO_MEMORY), memory) from error
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise JvmError("Spark's JVM did not start", hint=_NOT_STARTED) from error
        raise


def kill_jvm() -> None:
    """End the JVM and its Python workers at once, without output of theirs; safe in a signal handler."""
    process = _jvm_process()
    if process is not None and process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)


def silence_pyspark(context: Any) -> None:
    """Have pyspark print nothing past the logs when the JVM goes: whoever needs the JVM gets the error anyway.

    The server that takes a Spark context's accumulators would print a traceback for each connection, and so would
    pickling where it asks the JVM for the number of a broadcast.
    """
    import pyspark.util

    def handle_error(request: object, address: object) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, EOFError | ConnectionError):
            _log.error("counts of a batch are not available", error=repr(error))

    context._accumulatorServer.handle_error = handle_error
    # Pickling looks this up at each call, prints by it what it is about to raise, and raises it.
    pyspark.util.print_exec = lambda stream: None


def _death_error(code: int, memory: str) -> JvmError:
    if code in _NO_MEMORY:
        return JvmError("Spark's JVM ran out of memory", hint=f"{memory}; {_REPEATED}")
    if code in _KILLED_CODES:
        return JvmError("Spark's JVM was killed", hint=_KILLED)
    ended = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    return JvmError(f"Spark's JVM {ended}", hint=f"see the lines before this one; {_REPEATED}")


def _jvm_process() -> Any:
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(getattr(context, "_gateway", None), "proc", None)


# What the JVM and its Python workers print, as lines of our own log.
#
# Log4j's lines have its form already (``log4j2.properties``, ``log4j2.json.properties``). What a JVM says before it has
# a logger, and a worker that dies, are wrapped; of a trace the line with the error is passed on, and the rest is for
# debugging.

MAX_LINE: Final = 8192
"""Bytes of one line; what is longer becomes several."""
_OURS: Final = re.compile(rb'\{"event": |\d{4}-\d\d-\d\dT[\d:.]+Z ')
_NOTHING: Final = (b"WARNING: Using incubator modules", b"WARNING: package sun.")
"""Begins what a JVM says of options that Spark gives it, each time it starts."""
_TRACE: Final = (b"Traceback (most recent call last)", b"During handling of", b"The above exception was")


def relay_lines(printed: IO[bytes], *, whole: bool = False) -> threading.Thread:
    """Hand on lines to standard error until there are no more, in a thread that nobody waits for.

    With *whole* traces are handed on, too.
    """

    def run() -> None:
        with printed:
            while line := printed.readline(MAX_LINE):
                if _OURS.match(line) and line.endswith(b"\n"):
                    sys.stderr.write(line.decode("utf-8", "replace"))
                    sys.stderr.flush()
                elif text := line.decode("utf-8", "replace").strip():
                    quiet = line.startswith((*_NOTHING, *_TRACE, b"  ", b"\t"))
                    (_log.debug if quiet and not whole else _log.warning)("printed by the JVM", line=text)

    thread = threading.Thread(target=run, name="jvm-lines", daemon=True)
    thread.start()
    return thread


FOLDER: Final = "launch"
_DEFAULT_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_SAFE_PATH: Final = "PYTHONSAFEPATH"
_LAUNCHER: Final = "SPARK_LAUNCHER_OPTS"
_INSTALLED: Final = Path(__file__).parents[2]
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the short-lived JVM in which Spark builds the command of the other one."""
_LAST_LINES_SECONDS: Final = 5.0
_UMASK: Final = 0o077
"""All that the JVM writes is state: tables and lines are written by the driver."""


def launch_jvm(conf: Mapping[str, str], state: Path, *, relayed: bool = False, whole: bool = False) -> None:
    """Start the JVM for the next Spark session, with *conf* as its defaults.

    Python workers, which are its children, look for no module in the working directory. Files that it makes are
    private. Its output is *relayed*, with traces if *whole*, or goes to standard error unchanged. It reads the files in
    ``state/launch`` once; then they are removed, after a crash by the next start.

    Raises:
        ConfigError: the Java options cannot be parted.
    """
    from pyspark import SparkContext
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    folder = state / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    create_private_folder(folder)
    try:
        properties = _write_properties(conf, folder)
        given = os.environ.get(_SUBMIT, "pyspark-shell")
        arguments = f"--properties-file {shlex.quote(str(properties))} --load-spark-defaults {given}"
        started = {_LAUNCHER: os.environ.get(_LAUNCHER, _BRIEF), "SPARK_HOME": _find_spark_home()}
        with _set_environment({_SUBMIT: arguments, _SAFE_PATH: "1", "PYTHONPATH": _clean_python_path(), **started}):
            # A process group of its own: a terminal that hangs up tells ours, and the JVM must outlive the drain.
            process: dict[str, Any] = {"umask": _UMASK, "process_group": 0}
            with _relay_output(whole=whole) if relayed else nullcontext() as printed, _kill_unless_launched():
                gateway = launch_gateway(popen_kwargs=process | {"stderr": printed})  # type: ignore[no-untyped-call]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    SparkContext._ensure_initialized(gateway=gateway)


def end_jvm() -> None:
    """End the JVM now, so that nothing of it outlives the router, and its lock is free."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    with suppress(Exception):  # The JVM may be gone already; that is what is wanted.
        gateway.shutdown()
    if process is not None:
        with suppress(OSError):
            process.stdin.close()
        with suppress(Exception):  # Waiting is a courtesy; at exit the closed pipe ends it anyway.
            process.wait(10)
    SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _relay_output(*, whole: bool) -> Iterator[int]:
    """Yield the descriptor that a process started in the block prints to; all its lines are passed on.

    The lines are read at once: the block may wait for the process, and that waits as long as nobody reads its output.
    """
    reading, writing = os.pipe()
    lines = relay_lines(os.fdopen(reading, "rb"), whole=whole)
    started = False
    try:
        yield writing
        started = True
    finally:
        os.close(writing)
        if not started:
            lines.join(_LAST_LINES_SECONDS)  # These lines say why it did not start.


@contextmanager
def _kill_unless_launched() -> Iterator[None]:
    """End the JVM that pyspark starts within the block if the block is cut off: nobody else knows that JVM by then.

    Otherwise it would look for the files that are gone, and print long errors.
    """
    from pyspark import java_gateway

    module: Any = java_gateway
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.pid = 0
            try:
                super().__init__(*arguments, **options)
            finally:
                # A signal may come while this waits for the new process, which is there by then.
                if self.pid:
                    begun.append(self)

    before, module.Popen = module.Popen, Noted
    try:
        yield
    except BaseException:
        for process in begun:
            # The whole group ends: a shell starts the JVM, and another JVM before it.
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:  # It has not made its group yet.
                    process.kill()
                process.wait()
        raise
    finally:
        module.Popen = before


def _write_properties(conf: Mapping[str, str], folder: Path) -> Path:
    """Write *conf* as ``spark-submit`` reads it. It puts Java options into the arguments: those get a file as well."""
    options = f"{conf.get(_DEFAULT_OPTIONS, '')} {conf.get(_OPTIONS, '')}"
    java, properties = folder / "java.options", folder / "spark.properties"
    try:
        each = shlex.split(options)
    except ValueError as error:
        hint = f"close every quote in {_DEFAULT_OPTIONS} and {_OPTIONS}"
        raise ConfigError(f"the Java options cannot be read: {error}", key="spark.conf", hint=hint) from error
    with open_private_file(java, "w") as file:
        file.writelines(f"{_quote_option(option)}\n" for option in each)
    entries = {name: value for name, value in conf.items() if name != _DEFAULT_OPTIONS}
    entries[_OPTIONS] = _quote_option(f"@{java}")
    with open_private_file(properties, "w") as file:
        file.writelines(f"{_escape_property(name)}={_escape_property(value)}\n" for name, value in entries.items())
    return properties


def _quote_option(text: str) -> str:
    """Quote one option, for a file of Java options and for the launcher of Spark alike."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape_property(text: str) -> str:
    """Write text as Java's properties do; whatever is not plain is a code unit of UTF-16."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2))
    return "".join(chr(code) if chr(code).isalnum() and code < 128 else f"\\u{code:04x}" for code in codes)


def _clean_python_path() -> str | None:
    """Return ``PYTHONPATH`` with our packages first, for it may have others of their names.

    It has no empty entries, as of a colon too many: they stand for the working directory.
    """
    given = os.environ.get("PYTHONPATH")
    return given and os.pathsep.join((str(_INSTALLED), *filter(None, given.split(os.pathsep))))


@contextmanager
def _set_environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables for processes that start within the block; None leaves one as it is."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# What SIGTERM, SIGINT and SIGHUP do to a process that has a JVM under it: a drain, and at the second one the end.


class Stopped(BaseException):
    """A start that was ended by a signal, wherever it was."""


class Stopping(threading.Event):
    """The order to stop. A start that has nothing to drain yet is ended by it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupts = False
        self.drains = False
        """There is something to drain: queries or gateways run."""

    def begin_work(self) -> None:
        """From here on a signal asks for a drain.

        Raises:
            Stopped: the order had come before, so there is nothing to drain.
        """
        if self.is_set():
            raise Stopped
        self.drains = True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal end the block in the main thread, by :class:`Stopped`. The block must need no clean-up.

        Raises:
            Stopped: the order had come before the block, or came in it.
        """
        self.interrupts = True
        try:
            if self.is_set():
                raise Stopped
            yield
            if self.is_set():
                raise Stopped  # It came where nothing may be raised.
        except KeyboardInterrupt:
            # Spark's own answer to SIGINT, while it makes a context.
            self.set()
            raise Stopped from None
        finally:
            self.interrupts = False


@contextmanager
def handle_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP ask for a drain; a second one ends the process at once, unless it is SIGHUP.

    A process that was started to ignore SIGHUP, as ``nohup`` does, goes on ignoring it.

    Raises:
        Stopped: as :meth:`Stopping.interruptible`.
    """
    own, asked = os.getpid(), count()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            return  # Ctrl-C goes to the child as well that is about to become the JVM; the router ends that itself.
        # It is counted first, since the next signal may come in the middle of this, and is handled there.
        again, name = next(asked) > 0 or stop.is_set(), signal.Signals(number).name
        if again and number == signal.SIGHUP:
            return  # Some supervisors and terminals send it right after another signal, in the middle of the drain.
        if again:
            _log.warning("ended at once by a second signal; the current batch will be repeated", signal=name)
            kill_jvm()
            os._exit(128 + number)
        starting = isinstance(stop, Stopping) and not stop.drains
        stop.set()
        _log.info("stopping before startup has finished" if starting else "draining", signal=name)
        if isinstance(stop, Stopping) and stop.interrupts and not _is_forking(frame):
            raise Stopped

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asking = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asking.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in asking}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_forking(frame: FrameType | None) -> bool:
    """Whether a process is being started: what is raised in functions called around a fork is only printed."""
    while frame is not None:
        if frame.f_code.co_name == "_execute_child" and frame.f_globals.get("__name__") == "subprocess":
            return True
        frame = frame.f_back
    return False


# Where Python workers of the router's own JVM come from, and find pyspark: where the driver has it, compiled. And what
# Spark need not start Python for.
#
# Spark puts its archive ``pyspark.zip`` first on their path. Python keeps no compiled code of an archive, so each
# process would compile anew what it needs of it: nearly a second of CPU for each of five processes before the first
# batch.

DAEMON_CONF: Final = {"spark.python.daemon.module": "router.spark.worker_daemon"}
"""Has workers forked from :mod:`router.spark.worker_daemon`; for machines that have the driver's installation."""
_HOME: Final = "SPARK_HOME"


def use_driver_pyspark(spark: SparkSession) -> None:
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


def skip_data_source_search(spark: SparkSession) -> None:
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
    # For executors on other machines; local workers have it from the JVM (:mod:`router.spark.session`).
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
_JAVA_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS")
_COLLECTOR: Final = re.compile(r"-XX:\+Use[A-Za-z0-9]*GC")
"""Java does not start with two collectors. Ours is the parallel one, which takes 1.0 to 1.6 µs of CPU a record less
than G1 (``python -m tests.benchmarks.kafka_passthrough``). Its pauses are part of the latency in RESULTS.md."""
_JIT: Final = "-XX:-DontCompileHugeMethods"
"""The selectors of a plan become one method. By default HotSpot would interpret it because of its size."""


@contextmanager
def open_spark_session(settings: Settings, state: Path, sources: Sequence[Source]) -> Iterator[SparkSession]:
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
    jars = fetch_jars() if needs_kafka else []
    cluster = not settings.spark.is_local
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = (cluster and settings.spark.python) or sys.executable
    from pyspark.sql import SparkSession

    if cluster and any(source.pushed for source in sources):
        _raise_faults(iter_inbox_faults(settings))
    shares = {"spark.sql.warehouse.dir": str(state / "warehouse"), **memory_conf(settings), **_timeout_conf(settings)}
    workers = {} if cluster else DAEMON_CONF
    master = _master_conf(settings)
    chosen = {
        **_FIXED,
        **workers,
        **shares,
        **master,
        **_address_conf(settings.spark),
        **plain_options(settings.spark.conf),
    }
    for place, options in (("driver", f"{_JIT} {OPTIONS} {_archive_option(chosen)}"), ("executor", _JIT)):
        name = f"spark.{place}.extraJavaOptions"
        own, default = chosen.get(name, ""), chosen.get(f"spark.{place}.defaultJavaOptions", "")
        chosen[name] = f"{options} {_collector_option(f'{default} {own}')} {own}".strip()
    json = settings.log.format == "json"
    whole = "log4j2.configurationFile" in chosen["spark.driver.extraJavaOptions"]  # to see all
    chosen |= make_jvm_log_conf(chosen, json=json) | _ENFORCED | {"spark.master": master["spark.master"]}
    if jars:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark: SparkSession | None = None
    try:
        with naming_jvm_death(divide_memory(settings).heap_remedy):
            with _keep_interrupt_handler(), naming_master_errors(settings.spark):
                launch_jvm(chosen, state, relayed=json or not whole, whole=whole)
                spark = builder.getOrCreate()
            silence_pyspark(spark.sparkContext)
            use_driver_pyspark(spark)
            skip_data_source_search(spark)
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(InboxDataSource)
            _lock_state(spark, state / "lock.jvm")
            if cluster:
                ship_code(spark, state)
                require_executors(spark, settings.spark)
            yield spark
    finally:
        if spark is not None and is_jvm_alive():
            spark.stop()
        end_jvm()


def _collector_option(own: str) -> str:
    """Return the Java option of the garbage collector; '' if our options, or those of the environment, choose one."""
    chosen = " ".join((own, *(os.environ.get(name, "") for name in _JAVA_VARIABLES)))
    return "" if _COLLECTOR.search(chosen) else "-XX:+UseParallelGC"


def _archive_option(conf: Mapping[str, str]) -> str:
    """Return the Java options that use the class archive; '' if there is none, or the settings name one.

    Where it is of another Java or Spark, it is not used, and Java says so only if asked.
    """
    archive = class_archive()
    if not archive.exists() or "Archive" in conf.get(_OPTIONS, ""):
        return ""
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} -Xlog:cds*=off"


def memory_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration that keeps Spark within its share of the machine's memory.

    Raises:
        ConfigError: as :func:`router.machine.divide_memory`.
    """
    division = divide_memory(settings)
    return {
        HEAP_OPTION: f"{division.heap // MIB}m",
        # The most that comes to the driver at once. Beyond it a batch fails; otherwise the JVM would run out of memory.
        "spark.driver.maxResultSize": str(division.heap // 4),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(min(ARROW_BYTES, division.batch)),
        **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
    }


def _master_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration of how many tasks run at a time, and where."""
    if settings.spark.master is not None:
        return {"spark.master": settings.spark.master}
    division = divide_memory(settings)
    # A task that stages has a file of its own for each table: these are as many as there are cores.
    return {"spark.master": division.master, "spark.default.parallelism": str(division.cores)}


def _address_conf(spark: SparkSettings) -> dict[str, str]:
    """Return the configuration of how executors reach the router."""
    host = spark.host or LOOPBACK
    addresses = {"spark.driver.host": host, "spark.driver.bindAddress": spark.driver_bind or host}
    if spark.is_local:
        return {name: LOOPBACK for name in addresses}
    ports = {"spark.driver.port": spark.driver_port, "spark.driver.blockManager.port": spark.block_port}
    return addresses | {name: str(port) for name, port in ports.items() if port}


def _raise_faults(faults: Iterable[tuple[str, str]]) -> None:
    problems = [f"{key}: {fault}" for key, fault in faults]
    if problems:
        raise ConfigError(problems[0], key=problems[0].partition(":")[0], problems=tuple(problems))


def _timeout_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration that ends Python workers which hang; the task then fails, and says so."""
    return {
        "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": str(math.ceil(settings.worker_timeout.total_seconds())),
        "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true",
    }


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Keep our handler of SIGINT: a new Spark context puts its own there, which would end us instead of draining."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _lock_state(spark: SparkSession, path: Path) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    deadline = time.monotonic() + LOCK_SECONDS
    # The file object is kept by the JVM's gateway until the process ends, and the lock with it.
    while file.getChannel().tryLock() is None:
        if time.monotonic() > deadline:
            raise StateError(
                f"Spark of an earlier router still uses {path.parent}",
                hint="end the java process that the earlier router started, then start again",
            )
        time.sleep(0.5)
    spark._xrouter_lock = file  # type: ignore[attr-defined]
