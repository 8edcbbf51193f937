"""How much the inbox may hold, and whether that much is left."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from bindings.inbox.errors import InboxFull


@dataclass(frozen=True, slots=True)
class InboxLimits:
    """Limits in bytes.

    ``segment_bytes``: a segment is closed once it is this large. ``max_bytes``: all segments together.
    ``min_free_bytes``: what must stay free on the disk, for checkpoints and tables that share it; 0 writes until the
    disk itself refuses, in the middle of a frame if need be.
    """

    segment_bytes: int = 64 * 2**20
    max_bytes: int = 4 * 2**30
    min_free_bytes: int = 128 * 2**20


class Space:
    """The room left, shared by the partition logs of one inbox.

    Trimming happens in another process, so what was counted can only be too high; the directory is measured again
    before anything is refused.
    """

    def __init__(self, path: Path, limits: InboxLimits) -> None:
        self._path = path
        self._limits = limits
        self._lock = threading.Lock()
        self._used = self.measure()

    def require(self, size: int) -> None:
        """Make sure that *size* more bytes may be written.

        Raises:
            InboxFull: a limit would be passed.
            OSError: the disk cannot be asked.
        """
        if self._limits.min_free_bytes > 0:
            self._require_free(size)
        with self._lock:
            if self._used + size > self._limits.max_bytes:
                self._used = self.measure()
            if self._used + size > self._limits.max_bytes:
                raise InboxFull(
                    f"{self._path}: {self._used} of {self._limits.max_bytes} bytes are in use; the router must catch "
                    f"up, or raise max_bytes"
                )
            self._used += size

    def _require_free(self, size: int) -> None:
        disk = os.statvfs(self._path)
        free = disk.f_bavail * disk.f_frsize
        if free - size < self._limits.min_free_bytes:
            raise InboxFull(
                f"{self._path}: {free} bytes free on the disk, {self._limits.min_free_bytes} must stay free; "
                f"free some space or lower min_free_bytes"
            )

    def measure(self) -> int:
        """Return the bytes that the segments take now."""
        total = 0
        for file in self._path.glob("*/*.log"):
            try:
                total += file.stat().st_size
            except FileNotFoundError:
                # Trimmed by the reader since it was listed.
                continue
        return total
