"""Frames: how rows lie on disk. One frame is one group commit, or many of them joined after their segment closed.

A frame is a 32-byte header and the Arrow IPC message of one record batch (the schema is fixed by the inbox's
format version and not repeated). The checksum covers header and payload and starts from a *seed* that names inbox,
partition and segment, so that a frame in the wrong file, or one that a sender hid in a body, never counts as intact.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.inbox.errors import InboxRowError
from bindings.parts import InboxRow

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
_CHECKED: Final = struct.Struct("<IIQ")


@dataclass(frozen=True, slots=True)
class Frame:
    """Where one intact or at least well-formed frame lies: bytes ``start`` to ``end``, rows ``first`` to ``last``."""

    start: int
    end: int
    first: int
    rows: int
    checksum: int

    @property
    def last(self) -> int:
        """The row after the frame's last one."""
        return self.first + self.rows


def seed_of(inbox: str, partition: int, segment: int) -> int:
    """Return the checksum seed of one segment."""
    return zlib.crc32(f"{inbox}/{partition}/{segment}".encode())


def batch_of(rows: Sequence[InboxRow]) -> pa.RecordBatch:
    """Return rows as one record batch of :data:`SCHEMA`.

    Raises:
        InboxRowError: a row has a member of the wrong type, or text that is no UTF-8.
    """
    try:
        # One call for all members: groups are small, and what a call costs by itself is most of it.
        whole = pa.array(rows, _ROW)
        batch = pa.RecordBatch.from_arrays(whole.flatten(), schema=SCHEMA)
    except (pa.ArrowException, TypeError, ValueError, LookupError, OverflowError, AttributeError) as error:
        raise InboxRowError(f"not a row that the inbox can store: {error}") from error
    if batch.column("properties").null_count:
        raise InboxRowError("not a row that the inbox can store: it has no list of properties")
    return batch


def row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes that each row of a batch has in its body and its properties."""
    sizes = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_numpy().astype(np.int64)
    properties = batch.column("properties")
    entries = properties.flatten()
    parts = [pc.fill_null(pc.binary_length(entries.field(name)), 0) for name in ("key", "value", "type")]
    ends = np.concatenate(([0], np.cumsum(sum(part.to_numpy().astype(np.int64) for part in parts))))
    counts = pc.fill_null(pc.list_value_length(properties), 0).to_numpy()
    bounds = np.concatenate(([0], np.cumsum(counts)))
    total: npt.NDArray[np.int64] = sizes + ends[bounds[1:]] - ends[bounds[:-1]]
    return total


def encode(batch: pa.RecordBatch, first: int, seed: int) -> bytes:
    """Return the frame of *batch*, whose rows are numbered from *first*.

    Raises:
        InboxRowError: the batch is larger than a frame may be.
    """
    payload = batch.serialize()
    if payload.size > MAX_PAYLOAD:
        raise InboxRowError(f"{payload.size} bytes are more than a frame takes ({MAX_PAYLOAD})")
    checksum = _checksum(payload.size, batch.num_rows, first, payload, seed)
    header = _HEADER.pack(_MAGIC, checksum, payload.size, batch.num_rows, first)
    return b"".join((header, payload))


def frame_at(data: pa.Buffer, start: int, end: int) -> Frame | None:
    """Return the frame that starts at byte *start* and fits before *end*; None when there is none.

    Only the header is looked at; :func:`is_intact` decides about the payload.
    """
    if start + _HEADER.size > end:
        return None
    magic, checksum, length, rows, first = _HEADER.unpack_from(data, start)
    stop = start + _HEADER.size + length
    if magic != _MAGIC or stop > end:
        return None
    return Frame(start=start, end=stop, first=first, rows=rows, checksum=checksum)


def frames(data: pa.Buffer, start: int, end: int) -> Iterator[Frame]:
    """Yield the frames from byte *start* on, by their headers alone, until one is not well formed."""
    frame = frame_at(data, start, end)
    while frame is not None:
        yield frame
        frame = frame_at(data, frame.end, end)


def is_intact(data: pa.Buffer, frame: Frame, seed: int) -> bool:
    """Tell whether header and payload of the frame are what was written for this segment."""
    with memoryview(data) as view, view[frame.start + _HEADER.size : frame.end] as payload:
        length = len(payload)
        return _checksum(length, frame.rows, frame.first, payload, seed) == frame.checksum


def decode(data: pa.Buffer, frame: Frame) -> pa.RecordBatch:
    """Return the rows of an intact frame, without copying them."""
    start = frame.start + _HEADER.size
    return pa.ipc.read_record_batch(data.slice(start, frame.end - start), SCHEMA)


def search_intact(data: pa.Buffer, start: int, end: int, seed: int) -> Frame | None:
    """Return the first intact frame anywhere from byte *start* on: proof that what lies before it is damage."""
    with memoryview(data) as view:
        tail = bytes(view[start:end])
    at = tail.find(_MAGIC)
    while at >= 0:
        frame = frame_at(data, start + at, end)
        if frame is not None and is_intact(data, frame, seed):
            return frame
        at = tail.find(_MAGIC, at + 1)
    return None


def _checksum(length: int, rows: int, first: int, payload: memoryview | pa.Buffer, seed: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(length, rows, first), seed))
