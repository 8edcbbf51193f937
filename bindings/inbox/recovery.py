"""What happens to a partition log when it is opened: the torn tail is cut, an intact frame never is."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from bindings.inbox.ends import published_end
from bindings.inbox.frames import frames, is_intact, search_intact, seed_of
from bindings.inbox.segments import damaged, map_segment, segment_path, segments_in
from bindings.private import private_folder, sync_path

_logger = logging.getLogger(__name__)


def recover(directory: Path, inbox: str, partition: int) -> int:
    """Make the last segments whole and durable, and return the number of the segment to write next.

    A segment with rows is never appended to again: should the disk have lied about what it keeps, the numbers of
    rows that were read already are still not given to others.

    Raises:
        InboxDamaged: acknowledged rows are missing: the published end is ahead of the file, or an intact frame
            lies behind a broken one. Nothing is changed then.
        OSError: the files cannot be read or written.
    """
    private_folder(directory)
    for leftover in directory.glob("*.tmp"):
        leftover.unlink()
    segments = segments_in(directory)
    published = published_end(directory)
    last = segments[-1] if segments else -1
    if published is not None and published.segment > last and published.rows > 0:
        raise damaged(segment_path(directory, published.segment), 0)
    floor = published.segment if published is not None else last - 1
    rows = 0
    for segment in (number for number in segments if number >= floor):
        durable = published.rows if published is not None and published.segment == segment else 0
        rows = _cut_tail(segment_path(directory, segment), seed_of(inbox, partition, segment), durable)
    sync_path(directory)
    # An empty last segment is taken again, unless a higher number has been shown to readers.
    return max(last + 1 if rows else last, floor, 0)


def _cut_tail(path: Path, seed: int, durable: int) -> int:
    """Cut what follows the last intact frame, make the rest durable, and return its number of rows."""
    data = map_segment(path)
    end = rows = 0
    for frame in frames(data, 0, data.size):
        if frame.first != rows or not is_intact(data, frame, seed):
            break
        end, rows = frame.end, frame.last
    if rows < durable or search_intact(data, end, data.size, seed) is not None:
        raise damaged(path, rows)
    if end < data.size:
        _logger.warning("%s: cut %s bytes of an unfinished write behind row %s", path, data.size - end, rows)
    del data
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return rows
