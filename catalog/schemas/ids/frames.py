"""Frames: how bodies of Kafka begin that serializers of schema registries wrote (JUDGING.md#schema-ids).

Byte 0 and an id of four bytes (``confluent``) or eight (``apicurio``), both big-endian; or a header of two bytes and a
UUID (``glue``), whose second byte may say that zlib packed what follows. In bodies of Protobuf the message's place in
its file follows. :func:`frame_of` reads one body, :func:`ids_of` whole columns; a test holds both equal.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catalog.schemas.bodies import fault
from catalog.schemas.contract import MAX_BODY_BYTES, MessagePlace, SchemaFault
from catalog.schemas.ids.contract import Framing, SchemaIds, WrittenSchema

HEAD_BYTES: Final = 18
"""Bytes of a body that hold the id of any frame."""
MAX_INDEXES: Final = 64
"""Levels of messages within messages that a frame's indexes may lead down."""
_PLAIN: Final = 0
_PACKED: Final = 5
_GLUE: Final = 3
_SIZES: Final = {"confluent": 4, "apicurio": 8, "glue": 16}
ID_ENDS: Final = {"confluent": 5, "apicurio": 9, "glue": 18}
"""Where ids end."""
Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frame:
    """The schema's id in a frame, as text, where what follows it begins, and whether zlib packed that."""

    id: str
    data: int
    packed: bool = False

    def opened(self, body: bytes) -> bytes | SchemaFault | None:
        """Return what follows the id; None, which is no verdict, for more than MAX_BODY_BYTES.

        No more than that is ever unpacked, whatever a few bytes claim.
        """
        rest = body[self.data :]
        if not self.packed:
            return rest
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(rest, MAX_BODY_BYTES + 1)
        except zlib.error as error:
            return fault(f"the body is not packed by zlib, as its frame says: {error}")
        if len(plain) > MAX_BODY_BYTES:
            return None
        if not unpacker.eof or unpacker.unused_data:
            return fault("the body is not packed by zlib, as its frame says: it ends too early or too late")
        return plain


@dataclass(frozen=True, slots=True)
class Frames:
    """How bodies of a source begin, and the registry that knows their ids, if any.

    ``required`` refuses a frame whose id nothing resolves or declares.
    """

    framing: Framing = "auto"
    registry: SchemaIds | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """How some bodies are to be read: framed or not, and by which schema of a registry, where that is known."""

    framing: Framing = "none"
    written: WrittenSchema | None = None


PLAIN: Final = Begin()
"""The whole body is read."""


class Ids(NamedTuple):
    """The ids of many bodies: ``codes`` number them in ``names``, -1 where a body has no frame."""

    codes: Int
    names: list[str]


def layout(framing: Framing) -> Framing:
    """Return the frame that a framing looks for."""
    return "confluent" if framing == "auto" else framing


def first_byte(framing: Framing) -> bytes:
    """Return what every body with such a frame begins with."""
    return bytes((_GLUE,)) if layout(framing) == "glue" else b"\0"


def frame_of(body: bytes, framing: Framing) -> Frame | None:
    """Return the frame that a body begins with; None for none. A body begins with all of an id, or with no frame."""
    kind = layout(framing)
    if kind == "none":
        return None
    begin = 2 if kind == "glue" else 1
    end = begin + _SIZES[kind]
    if len(body) < end or body[0] != (_GLUE if kind == "glue" else 0):
        return None
    if kind == "glue":
        if body[1] not in (_PLAIN, _PACKED):
            return None
        return Frame(str(UUID(bytes=bytes(body[begin:end]))), end, body[1] == _PACKED)
    return Frame(str(int.from_bytes(body[begin:end], "big")), end)


def ids_of(bodies: pa.BinaryArray, framing: Framing) -> Ids:
    """Return the ids that bodies begin with, all at once; the first HEAD_BYTES of each body are enough."""
    kind, rows = layout(framing), len(bodies)
    codes = np.full(rows, -1, np.int64)
    _, offsets, data = bodies.buffers()
    if kind == "none" or not rows or offsets is None or data is None:
        return Ids(codes, [])
    bytes_ = np.frombuffer(data, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + rows + 1].astype(np.int64)
    begin = 2 if kind == "glue" else 1
    framed = np.diff(bounds) >= begin + _SIZES[kind]
    if bodies.null_count:
        framed &= bodies.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(framed)
    starts = bounds[places]
    here = bytes_[starts] == (_GLUE if kind == "glue" else 0)
    if kind == "glue":
        here &= np.isin(bytes_[np.minimum(starts + 1, len(bytes_) - 1)], (_PLAIN, _PACKED))
    places, starts = places[here], starts[here]
    if not len(places):
        return Ids(codes, [])
    held = bytes_[starts[:, None] + np.arange(begin, begin + _SIZES[kind])]
    if kind == "glue":
        ids, owners = np.unique(np.ascontiguousarray(held).view("V16").reshape(-1), return_inverse=True)
        names = [str(UUID(bytes=each.tobytes())) for each in ids]
    else:
        numbers = np.ascontiguousarray(held).view(">u4" if kind == "confluent" else ">u8").reshape(-1)
        ids, owners = np.unique(numbers.astype(np.uint64), return_inverse=True)
        names = [str(number) for number in ids.tolist()]
    codes[places] = owners.reshape(-1)
    return Ids(codes, names)


def message_place(data: bytes, framing: Framing) -> tuple[MessagePlace, int] | None:
    """Return which message of its file a Protobuf body says it is, and where that message begins; None for no frame.

    By Confluent it is the path of indexes, where a single 0 stands for the first message; by Apicurio a name, which
    may be missing and is then the first one's; by Glue the place among all messages in the order of their names.
    """
    kind = layout(framing)
    number, at = _varint(data, 0)
    if at > len(data):
        return None
    if kind == "glue":
        return number, at
    if kind == "apicurio":
        name = _name(data[at : at + number]) if number <= len(data) - at else None
        return None if name is None else (name or (0,), at + number)
    count = _signed(number)
    if not 0 <= count <= MAX_INDEXES:
        return None
    path: list[int] = []
    for _ in range(count):
        number, at = _varint(data, at)
        path.append(_signed(number))
    return None if at > len(data) or min(path, default=0) < 0 else (tuple(path) or (0,), at)


def _name(ref: bytes) -> str | None:
    """Return the name in Apicurio's message of one text field; empty for none, None where it is another message."""
    if not ref:
        return ""
    size, at = _varint(ref, 1)
    if ref[0] != 0x0A or at + size != len(ref):
        return None
    try:
        return ref[at:].decode("utf-8")
    except UnicodeDecodeError:
        return None


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and the position after it, which is past the end where the data ends within."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return 0, len(data) + 1
