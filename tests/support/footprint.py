"""What the processes of a router take of memory at most: its own, its JVM and its Python workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.process_tree import below

_PROC: Final = Path("/proc")
_LOOK_SECONDS: Final = 0.1
_MIB: Final = 2**20


@dataclass(slots=True)
class Peaks:
    """Most resident memory in bytes; of the workers, that of the largest."""

    driver: int = 0
    jvm: int = 0
    worker: int = 0

    def __str__(self) -> str:
        return f"driver {self.driver // _MIB} MiB, JVM {self.jvm // _MIB} MiB, worker {self.worker // _MIB} MiB"


class Footprint:
    """Watches a process and all below it for the time of a ``with`` block.

    The kernel keeps the peak of each process, so that a look now and then misses only processes that lived for less
    than the time between two looks.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peaks = Peaks()

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self.peaks

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            for pid in below(self._pid):
                self._look(pid)

    def _look(self, pid: int) -> None:
        try:
            command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            peak = _peak(pid)
        except OSError:
            return  # It ended meanwhile.
        if pid == self._pid:
            self.peaks.driver = max(self.peaks.driver, peak)
        elif command[0].endswith(b"java"):
            self.peaks.jvm = max(self.peaks.jvm, peak)
        else:
            self.peaks.worker = max(self.peaks.worker, peak)


def _peak(pid: int) -> int:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
