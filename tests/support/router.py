"""A real router process: started as a user starts it, killed as only tests dare."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from router.spark.connectors import cache_root, find_java
from tests.support import plain
from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import below, command_of
from tests.support.waiting import wait_until

# Class archives: what one JVM of the tests has loaded and verified, the next ones map as it is (JEP 350).
#
# Spark and the brokers load ten thousand classes each time they start, which is most of the time that a test of a whole
# router takes. An archive is made once for a class path and a Java, in the cache of jars. A JVM that cannot use it goes
# on without a word, so that nothing depends on it but the time.

SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For JVMs that end before the best code would pay: they compile quickly and only once, and collect in one thread."""
_QUIET: Final = "-Xlog:cds*=off"
_KEPT_SECONDS: Final = 14 * 86400
"""Since its last use; other checkouts of the project have archives of their own."""
# Read at import: the tests' environment is cleaned of our variables before each of them.
_FOLDER: Final = cache_root() / "archives"


def start_options(kind: str, classpath: Sequence[Path], make: Callable[[Sequence[str]], None]) -> list[str]:
    """Return options for a JVM that starts with the archive of that *kind* and *classpath*.

    Where there is none yet, *make* runs such a JVM, with the options it is given, to its end.
    """
    archive = _FOLDER / f"{kind}-{_key(classpath)}.jsa"
    if not archive.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with (_FOLDER / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _fill(kind, archive, make)
    os.utime(archive)
    return [*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", _QUIET]


def _fill(kind: str, archive: Path, make: Callable[[Sequence[str]], None]) -> None:
    for old in _FOLDER.glob(f"{kind}-*.jsa"):
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            old.unlink(missing_ok=True)
    draft = archive.with_name(f".{archive.name}.{os.getpid()}")
    make([*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={draft}", _QUIET])
    if draft.exists():
        draft.chmod(0o644)
        draft.rename(archive)
    else:
        archive.touch()  # this Java makes none; nobody is to try again


def _key(classpath: Sequence[Path]) -> str:
    java = Path(find_java()).resolve()
    # Java compares names and times of the jars itself; the key is for having one archive per state of them.
    parts = [str(java), *SHORT_LIVED, *(f"{path}:{path.stat().st_mtime_ns}" for path in sorted((java, *classpath)))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


# The class archive of routers: made by one that takes a message over HTTP into lines and tables, and ends.

SECONDS: Final = 180.0


@functools.cache
def router_options() -> str:
    """Return options for the JVM of a router, or of another Spark session of the tests."""
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    return " ".join(start_options("spark", jars, _run_one))


def submit_options() -> dict[str, str]:
    """Return the same as a variable that Spark's own scripts read, for a router whose settings are not the test's."""
    return {"SPARK_SUBMIT_OPTS": router_options()}


def _run_one(options: Sequence[str]) -> None:

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (port,) = free_ports(1)
        web = plain.endpoint("HTTP", {}, "g", uri="http://any.example/in")
        catalog = plain.catalog({"web": {**web, "envelope": "CloudEvents/1.0"}}, g=plain.events("a"))
        sinks = plain.lines(root, "lines") | plain.tables(root, "table", "dead")
        spark = {"conf": {"spark.driver.extraJavaOptions": " ".join(options)}}
        more = {"sources": [{"endpoint": "/endpoints/web"}], "http": {"port": port}, "spark": spark}
        router = RouterProcess(root, plain.routed(plain.write(root, catalog), sinks, **more))
        try:
            router.start()
            for body in (b"{}", b"x"):
                headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "a"}
                request = urllib.request.Request(f"http://{LOOPBACK}:{port}/in", body, headers, method="POST")
                urllib.request.urlopen(request, timeout=SECONDS).close()
            wait_until(lambda: router.total("xrouter_records_total") >= 2, SECONDS, lambda: router.log[-2000:])
            below_it = below(router.pid)[1:]
            assert router.stop() == 0, router.log[-2000:]
            # Its JVM writes the archive when the router has ended.
            wait_until(lambda: not any(map(command_of, below_it)), SECONDS, "the end of the JVM")
        finally:
            router.end()


START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 300.0


class RouterProcess:
    """``xrouter run`` (or another service) on a settings file in *folder*; logs go to ``router.log`` there."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, command: str = "run") -> None:
        self.folder = folder
        self.command = command
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_ports(1)[0]
        self.config = folder / "router.yaml"
        self.configure(settings)
        self.module: tuple[str, ...] = ("xrouter",)
        self.script: Path | None = None
        """What to run instead of the module."""
        self.cwd: Path | None = None
        self.umask = -1
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Write the settings; they count at the next start."""
        told = {"metrics": {"port": self.port}, "state": str(self.folder / "state"), **settings}
        spark = dict(told.get("spark", {}))
        conf = dict(spark.get("conf", {}))
        if "spark.driver.extraJavaOptions" not in conf:
            conf["spark.driver.extraJavaOptions"] = router_options()
        spark["conf"] = conf
        self.config.write_text(yaml.safe_dump({**told, "spark": spark}))

    @property
    def ended(self) -> int | None:
        """The exit code of the router that was started last; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def log(self) -> str:
        """What the router has written so far, over all its starts."""
        path = self.folder / "router.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None) -> RouterProcess:
        """Start it and wait until it is ready."""
        self.launch(*arguments, environ=environ)
        wait_until(self._ready_or_dead, START_SECONDS, lambda: f"the router to be ready; log:\n{self.log[-3000:]}")
        return self

    @property
    def pid(self) -> int:
        """The process's id; it has one once it was started."""
        assert self._process is not None
        return self._process.pid

    def launch(self, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        """Start it and do not wait; ``cwd`` and ``umask`` are those of the tests unless they were set."""
        program = [sys.executable, "-m", *self.module] if self.script is None else [str(self.script)]
        with (self.folder / "router.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*program, self.command, str(self.config), *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.cwd,
                umask=self.umask,
                env={**os.environ, **(environ or {})},
            )

    def kill(self) -> None:
        """SIGKILL, as the kernel or a power cut would; the JVM notices by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """SIGTERM, wait for the drain, return the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def interrupt(self) -> int:
        """Ctrl-C: SIGINT to the router and all its children, wait for the drain, return the exit code."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)
        return self.wait()

    def hang_up(self) -> int:
        """SIGHUP to the router and all of its process group, as a terminal that closes; return the exit code."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGHUP)
        return self.wait()

    def wait(self, limit: float = STOP_SECONDS) -> int:
        """Wait for the end by itself, return the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the router did not end; log:\n{self.log[-3000:]}") from error

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)

    def metrics(self) -> dict[str, float]:
        """Return all samples by name with labels as Prometheus writes them; empty while it does not answer."""
        try:
            text = self._get("/metrics")
        except OSError:
            return {}
        lines = (line for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def total(self, metric: str, **labels: str) -> float:
        """Return the sum of a metric over all series that have these labels."""
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        return sum(
            value
            for name, value in self.metrics().items()
            if name.partition("{")[0] == metric and all(label in name for label in wanted)
        )

    def readiness(self) -> dict[str, Any]:
        """Return what /readyz says, ready or not; empty while it does not answer."""
        try:
            told: dict[str, Any] = json.loads(self._get("/readyz"))
        except urllib.error.HTTPError as error:
            told = json.loads(error.read())
        except OSError:
            return {}
        return told

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            content: bytes = answer.read()
            return content.decode()

    def _ready_or_dead(self) -> bool | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the router ended with {self._process.returncode}; log:\n{self.log[-3000:]}")
        try:
            self._get("/readyz")
        except (OSError, urllib.error.HTTPError):
            return None
        return True
