"""The inbox on disk: frames of rows, segments of frames, the published durable end, and offsets."""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.inbox.space import InboxDamaged, InboxFormatError, InboxRowError
from bindings.parts import InboxRow
from bindings.private_files import FILE_MODE, create_private_folder, replace_file, sync_path
from catalog.parsing.regular import read_regular
from catalog.values import parse_whole_number

# Frames: how rows are stored. One frame is one group commit, or many joined after their segment closed.
#
# A frame is a 32-byte header and the Arrow IPC message of one record batch (the schema is fixed by the inbox's format
# version and not repeated). The checksum covers header and payload and starts from a *seed* that names inbox, partition
# and segment, so that a frame in the wrong file, or one that a sender hid in a body, never counts as intact.

MAX_PAYLOAD: Final = 2**30
"""Largest payload in bytes; keeps every 32-bit Arrow offset and the header's length field valid."""

PROPERTY_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary()), ("type", pa.string())])
# Names and nullability are the ones Spark derives for the same schema, so that batches reach it uncopied.
SCHEMA: Final = pa.schema(
    [
        pa.field("endpoint", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("received", pa.timestamp("us", tz="UTC")),
        pa.field("properties", pa.list_(pa.field("element", PROPERTY_TYPE))),
        pa.field("body", pa.binary()),
    ]
)

_ROW: Final = pa.struct(list(SCHEMA))
_MAGIC: Final = b"XRF1"
_HEADER: Final = struct.Struct("<4sIIIQ8x")
_CHECKSUM_FIELDS: Final = struct.Struct("<IIQ")


@dataclass(frozen=True, slots=True)
class LogFrame:
    """The location of a frame with a valid header: bytes ``start`` to ``end``, rows ``first`` to ``last``."""

    start: int
    end: int
    first: int
    rows: int
    checksum: int

    @property
    def last(self) -> int:
        """The row after the frame's last one."""
        return self.first + self.rows


def checksum_seed(inbox: str, partition: int, segment: int) -> int:
    """Return the checksum seed of one segment."""
    return zlib.crc32(f"{inbox}/{partition}/{segment}".encode())


def rows_to_batch(rows: Sequence[InboxRow]) -> pa.RecordBatch:
    """Convert rows to one record batch of :data:`SCHEMA`.

    Raises:
        InboxRowError: a row has text that is not UTF-8, a time outside 64 bits, or is too large.
    """
    try:
        # One call for all members: groups are small, and what a call costs by itself is most of it.
        return pa.RecordBatch.from_struct_array(pa.array(rows, _ROW))
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InboxRowError(f"the inbox cannot store this row: {error}") from error


def row_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of each row's body and properties."""
    sizes = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_numpy().astype(np.int64)
    properties = batch.column("properties")
    entries = properties.flatten()
    parts = [pc.fill_null(pc.binary_length(entries.field(name)), 0) for name in ("key", "value", "type")]
    ends = np.concatenate(([0], np.cumsum(sum(part.to_numpy().astype(np.int64) for part in parts))))
    counts = pc.fill_null(pc.list_value_length(properties), 0).to_numpy()
    bounds = np.concatenate(([0], np.cumsum(counts)))
    total: npt.NDArray[np.int64] = sizes + ends[bounds[1:]] - ends[bounds[:-1]]
    return total


def encode_frame(batch: pa.RecordBatch, first: int, seed: int) -> bytes:
    """Encode *batch* as a frame, with rows numbered from *first*.

    Raises:
        InboxRowError: the batch is larger than a frame may be.
    """
    payload = batch.serialize()
    if payload.size > MAX_PAYLOAD:
        raise InboxRowError(f"a frame of {payload.size} bytes is too large; the maximum is {MAX_PAYLOAD}")
    checksum = _compute_checksum(payload.size, batch.num_rows, first, payload, seed)
    header = _HEADER.pack(_MAGIC, checksum, payload.size, batch.num_rows, first)
    return b"".join((header, payload))


def read_frame(data: pa.Buffer, start: int, end: int) -> LogFrame | None:
    """Read the frame that starts at byte *start* and ends before *end*; None if there is none.

    Only the header is checked; :func:`is_intact` checks the payload.
    """
    if start + _HEADER.size > end:
        return None
    magic, checksum, length, rows, first = _HEADER.unpack_from(data, start)
    stop = start + _HEADER.size + length
    if magic != _MAGIC or stop > end:
        return None
    return LogFrame(start=start, end=stop, first=first, rows=rows, checksum=checksum)


def _iter_frames_from(data: pa.Buffer, row: int, hint: int) -> Iterator[LogFrame]:
    """Yield the frames from that of *row* on. *hint* is the byte where that frame was seen to start.

    It is only a short cut: compaction may have moved the frame, then the search starts at the beginning of the segment.
    """
    hinted = read_frame(data, hint, data.size)
    start = hint if hinted is not None and hinted.first == row else 0
    return (frame for frame in iter_frames(data, start, data.size) if frame.last > row)


def iter_frames(data: pa.Buffer, start: int, end: int) -> Iterator[LogFrame]:
    """Yield the frames from byte *start* on, up to the first invalid header."""
    frame = read_frame(data, start, end)
    while frame is not None:
        yield frame
        frame = read_frame(data, frame.end, end)


def is_intact(data: pa.Buffer, frame: LogFrame, seed: int) -> bool:
    """Whether the checksum of the frame is correct for this segment."""
    with memoryview(data) as view, view[frame.start + _HEADER.size : frame.end] as payload:
        length = len(payload)
        return _compute_checksum(length, frame.rows, frame.first, payload, seed) == frame.checksum


def decode_frame(data: pa.Buffer, frame: LogFrame) -> pa.RecordBatch:
    """Decode the rows of an intact frame, without copying them."""
    start = frame.start + _HEADER.size
    return pa.ipc.read_record_batch(data.slice(start, frame.end - start), SCHEMA)


def find_intact_frame(data: pa.Buffer, start: int, end: int, seed: int) -> LogFrame | None:
    """Return the first intact frame after byte *start*: then the bytes before it are damaged."""
    with memoryview(data) as view:
        tail = bytes(view[start:end])
    at = tail.find(_MAGIC)
    while at >= 0:
        frame = read_frame(data, start + at, end)
        if frame is not None and is_intact(data, frame, seed):
            return frame
        at = tail.find(_MAGIC, at + 1)
    return None


def _compute_checksum(length: int, rows: int, first: int, payload: memoryview | pa.Buffer, seed: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKSUM_FIELDS.pack(length, rows, first), seed))


# Segment files: names, listing, and reading.
#
# ``<inbox>/<partition>/<segment>.log`` holds frames, numbered without a gap from row 0 of the segment. The segment with
# the highest number is *open*: rows count only up to the published durable end (:mod:`bindings.inbox.format`). All
# others are *sealed*: every byte is durable, and only compaction (same rows, same numbers, one atomic rename) and
# trimming touch them. Segment numbers are never used twice.

SEGMENT_SUFFIX: Final = ".log"
_DIGITS: Final = 12


def partition_directory(inbox: Path, partition: int) -> Path:
    """Return the directory of one partition log."""
    return inbox / str(partition)


def segment_path(directory: Path, segment: int) -> Path:
    """Return the file of one segment."""
    return directory / f"{segment:0{_DIGITS}d}{SEGMENT_SUFFIX}"


def list_segments(directory: Path) -> list[int]:
    """Return the numbers of the segments that exist, ascending."""
    numbers = (parse_whole_number(path.stem) for path in directory.glob(f"*{SEGMENT_SUFFIX}"))
    return sorted(number for number in numbers if number is not None)


def map_segment(path: Path) -> pa.Buffer:
    """Memory-map a segment.

    The mapping outlives compaction and trimming. The writer cuts a file only behind its durable end, so no reader
    that stays before that end ever touches a truncated page.

    Raises:
        FileNotFoundError: the segment was trimmed, or never existed.
    """
    if path.stat().st_size == 0:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def count_rows(path: Path) -> int:
    """Return the number of rows of a sealed segment, from its frames' headers.

    Raises:
        FileNotFoundError: the segment was trimmed, or never existed.
        InboxDamaged: bytes remain behind the last readable frame.
    """
    data = map_segment(path)
    end = last = 0
    for frame in iter_frames(data, 0, data.size):
        end, last = frame.end, frame.last
    if end != data.size:
        raise damage_error(path, last)
    return last


def read_rows(path: Path, first: int, last: int, seed: int, hint: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield rows *first* to *last* (exclusive) of a segment, each frame checked, cut to the range.

    *hint* is where the frame of row *first* was seen to start, 0 if unknown.

    Raises:
        FileNotFoundError: the segment was trimmed, or never existed.
        InboxDamaged: a row of the range is missing, or its frame fails the checksum.
    """
    data = map_segment(path)
    row = first
    for frame in _iter_frames_from(data, first, hint):
        if frame.first > row or not is_intact(data, frame, seed):
            raise damage_error(path, row)
        stop = min(last, frame.last)
        yield _slice_frame(data, frame, row, stop)
        row = stop
        if row >= last:
            return
    if row < last:
        raise damage_error(path, row)


def count_rows_within(path: Path, first: int, last: int, size: int, seed: int, hint: int = 0) -> tuple[int, int]:
    """Return how many rows from *first* to *last* fit in *size* bytes, and the bytes left.

    Only the frame in which they end is read. *hint* is as for :func:`read_rows`.

    Raises:
        FileNotFoundError: the segment was trimmed, or never existed.
        InboxDamaged: that frame is broken.
    """
    data = map_segment(path)
    row = first
    for frame in _iter_frames_from(data, first, hint):
        stop = min(last, frame.last)
        whole = frame.first == row and stop == frame.last
        if whole and frame.end - frame.start <= size:
            size -= frame.end - frame.start
            row = stop
        else:
            if not is_intact(data, frame, seed):
                raise damage_error(path, row)
            sizes = np.cumsum(row_sizes(_slice_frame(data, frame, row, stop)))
            taken = int(np.searchsorted(sizes, size, "right"))
            size -= int(sizes[taken - 1]) if taken else 0
            if row + taken < stop:
                return row + taken - first, size
            row = stop
        if row >= last:
            break
    return row - first, size


def _slice_frame(data: pa.Buffer, frame: LogFrame, first: int, last: int) -> pa.RecordBatch:
    return decode_frame(data, frame).slice(first - frame.first, last - first)


def damage_error(path: Path, row: int) -> InboxDamaged:
    """Return the error for acknowledged rows that cannot be read."""
    return InboxDamaged(
        f"{path}: row {row} and later rows were acknowledged but cannot be read; check the disk, restore the file, or "
        f"move it out of the inbox to continue without its rows",
        file=str(path),
        row=row,
    )


# ``format.json`` of an inbox: format version, identity and number of partitions.

FORMAT: Final = 1
NAME: Final = "format.json"


@dataclass(frozen=True, slots=True)
class InboxLayout:
    """Identity, format and number of partitions of an inbox; they never change."""

    format: int
    inbox: str
    partitions: int


def read_layout(path: Path) -> InboxLayout:
    """Read ``format.json`` of the inbox at *path*.

    Raises:
        InboxFormatError: there is no inbox, or it is of an unknown version.
    """
    file = path / NAME
    try:
        form = json.loads(read_regular(file))
        layout = InboxLayout(format=int(form["format"]), inbox=str(form["inbox"]), partitions=int(form["partitions"]))
    except FileNotFoundError:
        raise InboxFormatError(f"{path} is not an inbox: {NAME} is missing; start the gateways first") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InboxFormatError(f"{file} cannot be read ({error!r}); restore it from a backup") from error
    if layout.format != FORMAT:
        raise InboxFormatError(
            f"{file} has format {layout.format}, but this version reads format {FORMAT}; use the version that wrote it"
        )
    return layout


def open_layout(path: Path, partitions: int) -> InboxLayout:
    """Return the layout of the inbox at *path*; create it durably if there is none.

    Raises:
        InboxFormatError: the inbox is of an unknown version, or has another number of partitions. That number is
            fixed: order holds per partition, and a row's partition depends on it.
    """
    create_private_folder(path)
    if not (path / NAME).exists():
        if any(path.glob("*/*.log")):
            raise InboxFormatError(f"{path} has segments but no {NAME}; restore it from a backup")
        _create_layout(path, InboxLayout(format=FORMAT, inbox=uuid.uuid4().hex, partitions=partitions))
    layout = read_layout(path)
    if layout.partitions != partitions:
        raise InboxFormatError(
            f"{path} has {layout.partitions} partitions, but {partitions} are configured; keep {layout.partitions},  "
            f"or let the router drain the inbox and remove it"
        )
    return layout


def _create_layout(path: Path, layout: InboxLayout) -> None:
    for partition in range(layout.partitions):
        create_private_folder(partition_directory(path, partition))
    with replace_file(path / NAME, path / f"{NAME}.tmp") as file:
        file.write(json.dumps(asdict(layout)).encode())
    sync_path(path.parent)


# The published durable end of a partition log: how far readers may read.
#
# Why readers do not use every frame with a good checksum: a frame is complete in the page cache before it is durable.
# Rows read from there could be lost in a power cut and their numbers assigned to other rows, which a checkpoint that
# already counts those numbers would then skip; and a frame whose fsync failed is cut off again. So the writer publishes
# its end after each fsync, and readers stop there.
#
# The file itself is never fsynced. After a power cut it may be old or unreadable, which only hides rows until the
# writer opens the log, scans it and publishes again; it can never be ahead of what is durable. It is written in place
# by one small write, which works on a full disk, and a checksum tells a reader that it caught a write in between.

_END_FILE_NAME: Final = "durable"
_END_RECORD: Final = struct.Struct("<4sQQQI")
_END_MAGIC: Final = b"XRE1"
_ATTEMPTS: Final = 100


class DurableEnd(NamedTuple):
    """A durable end: ``rows`` rows in ``size`` bytes of the open segment; all before that segment is durable."""

    segment: int
    rows: int
    size: int


class EndFile:
    """The writer's handle on the published end of one partition log."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / _END_FILE_NAME, os.O_RDWR | os.O_CREAT, FILE_MODE)

    def publish(self, end: DurableEnd) -> None:
        """Publish *end*, which must be durable, to readers.

        Raises:
            OSError: the file could not be written; the previously published end stays.
        """
        body = _END_RECORD.pack(_END_MAGIC, *end, 0)[:-4]
        os.pwrite(self._descriptor, body + zlib.crc32(body).to_bytes(4, "little"), 0)

    def close(self) -> None:
        """Release the handle."""
        os.close(self._descriptor)


def read_published_end(directory: Path) -> DurableEnd | None:
    """Return the last published end; None if none can be read."""
    try:
        descriptor = os.open(directory / _END_FILE_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        for _ in range(_ATTEMPTS):
            record = os.pread(descriptor, _END_RECORD.size, 0)
            if len(record) == _END_RECORD.size and zlib.crc32(record[:-4]) == int.from_bytes(record[-4:], "little"):
                _, segment, rows, size, _ = _END_RECORD.unpack(record)
                return DurableEnd(segment, rows, size)
    finally:
        os.close(descriptor)
    return None


# Offsets of the inbox source: small JSON, one position (segment and row) for each partition.
#
# ``{"version": 1, "inbox": UUID, "partitions": {"0": {"segment": 3, "row": 120}, ...}}``

VERSION: Final = 1


class InboxPosition(NamedTuple):
    """A position between two rows: before row ``row`` of ``segment``. Ordered as the rows are read."""

    segment: int
    row: int


InboxPositions = Mapping[int, InboxPosition]


def to_offset(inbox: str, positions: InboxPositions) -> dict[str, Any]:
    """Return the offset in the form that a checkpoint stores."""
    partitions = {str(partition): position._asdict() for partition, position in sorted(positions.items())}
    return {"version": VERSION, "inbox": inbox, "partitions": partitions}


def is_inbox_offset(offset: Mapping[str, Any]) -> bool:
    """Whether an offset is one of an inbox, and not of topics, whose names are arbitrary."""
    return isinstance(offset.get("inbox"), str)


def parse_offset(offset: Mapping[str, Any], inbox: str) -> dict[int, InboxPosition]:
    """Parse an offset, which must be of this inbox.

    Raises:
        InboxFormatError: the offset is of another version or inbox, or not an offset.
    """
    if offset.get("version") != VERSION:
        raise InboxFormatError(
            f"the checkpoint has an inbox offset of version {offset.get('version')}, but this version reads {VERSION}; "
            f"use the version that wrote it"
        )
    if offset.get("inbox") != inbox:
        raise InboxFormatError(
            f"the checkpoint belongs to inbox {offset.get('inbox')}, but this one is {inbox}; restore the inbox that "
            f"belongs to the state directory, or start a new checkpoint generation"
        )
    try:
        return {
            int(partition): InboxPosition(int(position["segment"]), int(position["row"]))
            for partition, position in offset["partitions"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InboxFormatError(f"the checkpoint's inbox offset cannot be read: {error!r}") from error


def divide_rows(available: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide *limit* rows equally among partitions; unused shares go to the others."""
    taken: dict[int, int] = {}
    left = limit
    for index, partition in enumerate(sorted(available, key=lambda each: (available[each], each))):
        taken[partition] = min(available[partition], left // (len(available) - index))
        left -= taken[partition]
    return taken
