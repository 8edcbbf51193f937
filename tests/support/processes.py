"""Servers of the tests as local processes: started, killed and started again, and surely gone when the tests are."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.support.waiting import wait_until

LOG_TAIL_BYTES: Final = 4000


class BrokerFailed(Exception):
    """A broker that did not start, or stopped by itself; the message ends with the end of its log."""


class BrokerProcess(ABC):
    """A broker on loopback that keeps its ports and its data through :meth:`stop`, :meth:`kill` and :meth:`restart`.

    Should the process of the tests die, even by SIGKILL, a guard kills the broker. Start it from any thread.
    """

    ready_seconds: ClassVar[float] = 120.0
    stop_seconds: ClassVar[float] = 60.0

    def __init__(self, folder: Path) -> None:
        """Prepare a broker whose data, settings and log are in *folder*; nothing runs before its start."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._started_at = 0

    @property
    @abstractmethod
    def title(self) -> str:
        """What messages call it: its kind and where it listens."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Write its settings, and return the command that runs it."""

    def _environment(self) -> Mapping[str, str]:
        """Return variables for the broker, besides those of the tests."""
        return {}

    @abstractmethod
    def _ready(self) -> bool:
        """Tell whether it answers now."""

    @property
    def pid(self) -> int:
        """The id of its process, which runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """The file that everything the broker writes goes to, through all its starts."""
        return self._folder / "broker.log"

    def launch(self) -> None:
        """Start the broker and return when it answers.

        Raises:
            BrokerFailed: it runs already, ended, or does not answer within the limit.
        """
        if self._process is not None:
            raise BrokerFailed(f"{self.title} runs already; stop or kill it first")
        self._folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        with self.log.open("ab") as log:
            self._started_at = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self._environment()},
            )
        self._guard = _guard(self._process.pid)
        try:
            wait_until(self._ready_or_ended, self.ready_seconds, lambda: f"{self.title}\n{self._tail()}")
        except (TimeoutError, BrokerFailed) as error:
            self.kill()
            raise BrokerFailed(str(error)) from error

    def stop(self) -> None:
        """End the broker as an operator would, with SIGTERM; kills it when it takes too long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same ports and data, stopping first what still runs."""
        self.stop()
        self.launch()

    def _ready_or_ended(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise BrokerFailed(f"{self.title} ended with {self._process.returncode}\n{self._tail()}")
        return self._ready()

    def _end(self, by: signal.Signals) -> None:
        process, self._process = self._process, None
        guard, self._guard = self._guard, None
        if guard is not None:
            # The guard goes first: once the broker is reaped, its process id may belong to somebody else.
            guard.kill()
            guard.communicate()
        if process is None:
            return
        process.send_signal(by)
        try:
            process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(self.stop_seconds)

    def _tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace") or "(its log is empty)"


def _guard(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that kills *pid* as soon as ours is gone: it reads a pipe whose other end only we hold.

    Not PR_SET_PDEATHSIG: it fires when the thread that started the child ends, and setting it takes a
    ``preexec_fn``, which may deadlock in a process with threads, such as one with Spark.
    """
    script = f"cat >/dev/null; kill -KILL {shlex.quote(str(pid))} 2>/dev/null"
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
