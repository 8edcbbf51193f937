"""The JVM under the router: how it starts with its configuration, and how it ends.

Everybody on a machine may read the arguments of a process, so no value of the configuration stands there. It is handed
over in files of mode 0600, which are gone once the JVM runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from bindings.private import private_file, private_folder
from router.errors import ConfigError
from router.spark.jvm_lines import relay

FOLDER: Final = "launch"
_DEFAULT_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_SAFE_PATH: Final = "PYTHONSAFEPATH"
_LAUNCHER: Final = "SPARK_LAUNCHER_OPTS"
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
    private_folder(folder)
    try:
        properties = _write_properties(conf, folder)
        given = os.environ.get(_SUBMIT, "pyspark-shell")
        arguments = f"--properties-file {shlex.quote(str(properties))} --load-spark-defaults {given}"
        started = {_LAUNCHER: os.environ.get(_LAUNCHER, _BRIEF), "SPARK_HOME": _find_spark_home()}
        with _environment({_SUBMIT: arguments, _SAFE_PATH: "1", "PYTHONPATH": _python_path(), **started}):
            # A process group of its own: a terminal that hangs up tells ours, and the JVM must outlive the drain.
            process: dict[str, Any] = {"umask": _UMASK, "process_group": 0}
            with _relayed(whole=whole) if relayed else nullcontext() as printed, _ended_unless_launched():
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
def _relayed(*, whole: bool) -> Iterator[int]:
    """Yield the descriptor that a process started in the block prints to; all its lines are passed on.

    The lines are read at once: the block may wait for the process, and that waits as long as nobody reads its output.
    """
    reading, writing = os.pipe()
    lines = relay(os.fdopen(reading, "rb"), whole=whole)
    started = False
    try:
        yield writing
        started = True
    finally:
        os.close(writing)
        if not started:
            lines.join(_LAST_LINES_SECONDS)  # These lines say why it did not start.


@contextmanager
def _ended_unless_launched() -> Iterator[None]:
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
    with private_file(java, "w") as file:
        file.writelines(f"{_quoted(option)}\n" for option in each)
    entries = {name: value for name, value in conf.items() if name != _DEFAULT_OPTIONS}
    entries[_OPTIONS] = _quoted(f"@{java}")
    with private_file(properties, "w") as file:
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in entries.items())
    return properties


def _quoted(text: str) -> str:
    """Quote one option, for a file of Java options and for the launcher of Spark alike."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    """Write text as Java's properties do; whatever is not plain is a code unit of UTF-16."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2))
    return "".join(chr(code) if chr(code).isalnum() and code < 128 else f"\\u{code:04x}" for code in codes)


def _python_path() -> str | None:
    """Return ``PYTHONPATH`` without empty entries, as of a colon too many: they stand for the working directory."""
    given = os.environ.get("PYTHONPATH")
    return given and os.pathsep.join(entry for entry in given.split(os.pathsep) if entry)


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
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
