"""``xrouter run`` in a process of its own, as a user would start it; its addresses are read from its log."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from router.errors import RouterError

START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 60.0
HTTP_SECONDS: Final = 5.0
LOG_NAME: Final = "router.log"
_POLL_SECONDS: Final = 0.2
_KEPT: Final = frozenset({"XROUTER_CACHE", "XROUTER_MAVEN_REPOSITORY", "XROUTER_DEBUG"})
"""Variables that are no settings; all other ``XROUTER_...`` would change what the demo shows."""


class RouterProcess:
    """A running router. ``http`` and ``metrics`` are the addresses of its gateway and its ``/metrics``."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="demo-log", daemon=True)
        self._reader.start()
        self.http = ""
        self.metrics = ""

    def wait_ready(self) -> None:
        """Wait until it listens and its queries run.

        Raises:
            RouterError: it ended, or takes longer than a start should.
        """
        deadline = time.monotonic() + START_SECONDS
        while not (self.http and self.metrics and self._ready()):
            self.check()
            if time.monotonic() > deadline:
                raise self._failed(f"the router was not ready after {START_SECONDS:g} s")
            try:
                self._take(self._lines.get(timeout=_POLL_SECONDS))
            except queue.Empty:
                continue

    def check(self) -> None:
        """Raise a RouterError with the end of its log when it has ended."""
        if self._process.poll() is not None:
            raise self._failed(f"the router ended with exit code {self._process.returncode}")

    def samples(self) -> list[tuple[str, Mapping[str, str], float]]:
        """Return all samples of its metrics: name, labels, value."""
        with urlopen(self.metrics, timeout=HTTP_SECONDS) as answer:
            text = answer.read().decode("utf-8")
        families = text_string_to_metric_families(text)
        return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

    def wait_for(self, condition: Callable[[], bool], limit: float) -> bool:
        """Ask until the condition holds or *limit* seconds have passed; return if it holds. The router must run."""
        deadline = time.monotonic() + limit
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def last_error(self) -> str:
        """Return the last error of its log, a line of JSON; empty when there is none."""
        lines = self._log_lines()
        return next((line for line in reversed(lines) if '"level": "error"' in line), "")

    def stop(self) -> int:
        """Send SIGTERM, wait for the drain, and return the exit code; a router that hangs is killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join(HTTP_SECONDS)
        return status

    def _ready(self) -> bool:
        try:
            with urlopen(self.metrics.removesuffix("/metrics") + "/readyz", timeout=HTTP_SECONDS) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _take(self, line: str) -> None:
        """Note the addresses that the router logs; lines that are no JSON are the JVM's."""
        try:
            entry: Any = json.loads(line)
        except ValueError:
            return
        if not isinstance(entry, dict):
            return
        if entry.get("event") == "http gateway listening":
            self.http = str(entry.get("address", ""))
        elif entry.get("event") == "running":
            self.metrics = str(entry.get("metrics", ""))

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._log.open("a", encoding="utf-8") as log, self._process.stderr as lines:
            for line in lines:
                log.write(line)
                log.flush()
                self._lines.put(line)

    def _log_lines(self) -> list[str]:
        text = self._log.read_text(encoding="utf-8") if self._log.exists() else ""
        return [line for line in text.split("\n") if line]

    def _failed(self, what: str) -> RouterError:
        self._reader.join(_POLL_SECONDS)
        lines = self._log_lines()
        cause = next(
            (line for line in reversed(lines) if line.startswith("xrouter: error:")), lines[-1] if lines else ""
        )
        hint = "`xrouter doctor` looks for what a start needs; `xrouter demo --keep FOLDER` keeps the log"
        return RouterError(f"{what}: {cause.removeprefix('xrouter: error: ') or 'it said nothing'}", hint=hint)


@contextmanager
def running(config: Path) -> Iterator[RouterProcess]:
    """Run the router on *config* for the time of the block; its log goes beside the file."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("XROUTER_") or name in _KEPT}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "router", "run", config.name],
        cwd=config.parent,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        # Ctrl-C is for us: we stop the router in order.
        start_new_session=True,
    )
    router = RouterProcess(process, config.parent / LOG_NAME)
    try:
        yield router
    finally:
        router.stop()
