"""A registry in a process of its own, which tests can kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.support.ports import free_ports
from tests.support.waiting import wait_until

LIMIT_SECONDS = 180.0
"""A machine that does much beside this gives a new process some seconds of its processors in a minute."""


class Served:
    """A registry in a process of its own, which can be killed and begun again."""

    def __init__(
        self, folder: Path, store: str, more: str = "", port: int = 0, name: str = "registry", http: str = ""
    ) -> None:
        """Serve what *store* says, with *more* settings, and those of *http* beside the port."""
        self.port = port or free_ports(1)[0]
        self.config = folder / f"{name}.yaml"
        pace = "writes_per_second: 100000\nwrite_burst: 100000"
        self.config.write_text(
            f"open: true\nstore: {{{store}}}\nhttp: {{port: {self.port}{http and f', {http}'}}}\n{pace}\n{more}\n"
        )
        self._log = folder / f"{name}.log"
        self.process = self._start()

    def kill(self) -> None:
        """End it at once, and begin it again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_SECONDS)
        self.process = self._start()

    def start(self) -> None:
        """Begin it again after its end."""
        self.process = self._start()

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)

    def stop(self) -> int:
        """End it as an operator does; return its exit code."""
        self.process.terminate()
        return self.process.wait(LIMIT_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "router", "registry", "serve", str(self.config)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            until(lambda: process.poll() is not None or _answers(self.port), self._log.read_text)
            assert process.poll() is None, self._log.read_text()
        except BaseException:
            process.kill()
            process.wait(LIMIT_SECONDS)
            raise
        return process


def until(holds: Callable[[], bool], told: str | Callable[[], str], seconds: float = LIMIT_SECONDS) -> None:
    """Wait for a condition."""
    wait_until(lambda: holds() or None, seconds, told)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/capabilities", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
