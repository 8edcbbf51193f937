"""Inbox limits, free space, and errors."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bindings.private_files import FILE_MODE

# Errors of the durable inbox.


class InboxError(Exception):
    """The inbox refused something; the message says where and how to fix it."""


class InboxFull(InboxError):
    """The row was not stored: a limit is reached or the disk refused. Appending works again once there is space."""


class InboxClosed(InboxError):
    """The inbox is closing or closed, or its writer stopped; the row was not stored."""


class InboxRowError(InboxError):
    """A row that can never be stored, such as one with a property of the wrong type or too large for a frame."""


class InboxFormatError(InboxError):
    """The inbox on disk is not one that this version reads."""


class InboxDamaged(InboxError):
    """Acknowledged rows cannot be read. ``file`` is the segment, ``row`` the first affected row."""

    def __init__(self, message: str, *, file: str, row: int) -> None:
        super().__init__(message)
        self.file = file
        self.row = row


_PROBE: Final = ".probe"
_PROBE_BYTES: Final = 2**20
"""Free bytes, at least, before the inbox reports that it accepts messages again; written, at most, to test the disk."""


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


class DiskSpace:
    """The space that is left for an inbox, shared by its partition logs.

    The counted use can only be too high, because another process deletes segments; the directory is measured again
    before anything is refused.
    """

    def __init__(self, path: Path, limits: InboxLimits) -> None:
        self._path = path
        self._limits = limits
        self._lock = threading.Lock()
        self._used = self.measure_size()
        self._refused_bytes = 0
        """Bytes of the last refused write, until there is space for them; 0 if nothing is refused."""
        self._refusal = ""
        """The disk's own error for it."""

    def require_space(self, size: int) -> None:
        """Raise unless *size* more bytes may be written.

        Raises:
            InboxFull: a limit would be exceeded.
            OSError: the free space cannot be determined.
        """
        try:
            self._check_space(size, size)
        except InboxFull:
            self._record_refusal(size)
            raise

    def record_disk_refusal(self, size: int, reason: str) -> None:
        """Record that the disk refused *size* bytes although the limits allowed them."""
        self._record_refusal(size)
        self._refusal = f"{self._path}: {reason}; {self._free_bytes()} bytes are free; free space or repair the disk"

    def refusal_reason(self) -> str:
        """Return why nothing is accepted now, with path, free bytes and remedy; empty if rows are accepted.

        A refused size must fit again with some spare space, so that the answer does not change with every message.
        """
        try:
            self._check_space(max(1, self._refused_bytes))
            if self._refusal:
                self._probe_disk()
        except InboxFull as error:
            return str(error)
        except OSError as error:
            return self._refusal or f"{self._path}: {error.strerror or error}; repair the disk"
        self._refused_bytes, self._refusal = 0, ""
        return ""

    def max_size(self) -> int:
        """Return the maximum bytes of all segments: ``max_bytes``, or less on a small disk."""
        left = max(0, self._free_bytes() - self._limits.min_free_bytes)
        return min(self._limits.max_bytes, self.measure_size() + left)

    def _record_refusal(self, size: int) -> None:
        spare = min(_PROBE_BYTES, self._limits.max_bytes // 20)
        self._refused_bytes = min(max(size, spare), self._limits.max_bytes // 8)

    def _check_space(self, size: int, taken: int = 0) -> None:
        """Raise unless there is space for *size* bytes; then count *taken* bytes as used."""
        if self._limits.min_free_bytes > 0 and (free := self._free_bytes()) - size < self._limits.min_free_bytes:
            raise InboxFull(
                f"{self._path}: {free} bytes free on the disk, {self._limits.min_free_bytes} must stay free; "
                f"free some space or lower min_free_bytes"
            )
        with self._lock:
            if self._used + size > self._limits.max_bytes:
                self._used = self.measure_size()
            if self._used + size > self._limits.max_bytes:
                raise InboxFull(
                    f"{self._path}: {self._used} of {self._limits.max_bytes} bytes are in use; the router must catch "
                    f"up, or raise max_bytes"
                )
            self._used += taken

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._path)
        return disk.f_bavail * disk.f_frsize

    def _probe_disk(self) -> None:
        """Write and remove as many bytes as were refused; raise OSError if the disk still refuses."""
        probe = self._path / _PROBE
        try:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            try:
                data = memoryview(bytes(min(self._refused_bytes, _PROBE_BYTES)))
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)

    def measure_size(self) -> int:
        """Return the size of all segments in bytes."""
        total = 0
        for file in self._path.glob("*/*.log"):
            try:
                total += file.stat().st_size
            except FileNotFoundError:
                # Trimmed by the reader since it was listed.
                continue
        return total
