"""The published durable end of a partition log: how far readers may look.

Why readers do not simply take every frame with a good checksum: a frame is complete in the page cache before it is
durable. Rows read from there could vanish with the power and their numbers be given to other rows, which a
checkpoint that already counts those numbers would then skip; and a frame whose fsync failed is cut off again.
So the writer publishes its end after each fsync, and readers stop there.

The file itself is never fsynced. After a power cut it may be old or unreadable, which only hides rows until the
writer opens the log, scans it and publishes again; it can never be ahead of what is durable. It is written in place
by one small write, which works on a full disk, and a checksum tells a reader that it caught a write in between.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from bindings.private import FILE_MODE

_FILE: Final = "durable"
_RECORD: Final = struct.Struct("<4sQQQI")
_MAGIC: Final = b"XRE1"
_ATTEMPTS: Final = 100


class End(NamedTuple):
    """A durable end: ``rows`` rows in ``size`` bytes of the open segment; all before that segment is durable."""

    segment: int
    rows: int
    size: int


class EndFile:
    """The writer's handle on the published end of one partition log."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)

    def publish(self, end: End) -> None:
        """Show readers everything up to *end*, which must be durable.

        Raises:
            OSError: the file could not be written; the end published before stays.
        """
        body = _RECORD.pack(_MAGIC, *end, 0)[:-4]
        os.pwrite(self._descriptor, body + zlib.crc32(body).to_bytes(4, "little"), 0)

    def close(self) -> None:
        """Release the handle."""
        os.close(self._descriptor)


def published_end(directory: Path) -> End | None:
    """Return the end published last; None when there is none that can be read."""
    try:
        descriptor = os.open(directory / _FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        for _ in range(_ATTEMPTS):
            record = os.pread(descriptor, _RECORD.size, 0)
            if len(record) == _RECORD.size and zlib.crc32(record[:-4]) == int.from_bytes(record[-4:], "little"):
                _, segment, rows, size, _ = _RECORD.unpack(record)
                return End(segment, rows, size)
    finally:
        os.close(descriptor)
    return None
