"""Avro object container files as bodies: a header with the writer's schema, then blocks of values."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from catalog.schemas.avro.binary import read_long, skip_bytes
from catalog.schemas.avro.types import AvroSchema, parse_alone
from catalog.schemas.avro.values import Misfit
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaError

MAGIC: Final = b"Obj\x01"
MAX_HEADER_BYTES: Final = 1024 * 1024
MAX_UNPACKED_BYTES: Final = 4 * MAX_BODY_BYTES
"""Bytes of all blocks together, unpacked; a few packed bytes may claim any number."""
_SYNC: Final = 16
ReadValue = Callable[[bytes, int], tuple[Any, int]]
"""Bytes, position -> value, which may be None for all, and the position after it; raises :class:`Misfit`."""


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def read_container(body: bytes, schema: AvroSchema, read: ReadValue) -> tuple[Any, int | None]:
    """Read a container file whose values must be of *schema*, which its writer must have had in canonical form.

    Return the first value and how many there are. Blocks packed with snappy or zstandard, which nothing here unpacks,
    are taken at the word of the header; then the number is None.

    Raises:
        Misfit: another schema wrote it, or it is damaged.
    """
    meta, at = _header(body)
    if _canonical(meta.get("avro.schema", b"")) != schema.canonical:
        raise Misfit("the container file was written with another schema")
    codec = meta.get("avro.codec", b"null").decode("ascii", "replace")
    if codec in ("snappy", "zstandard"):
        return None, None
    sync = body[at : at + _SYNC]
    at += _SYNC
    left = MAX_UNPACKED_BYTES
    first: Any = None
    total = 0
    while at < len(body):
        count, at = read_long(body, at)
        begin, at = skip_bytes(body, at)
        block = _unpacked(codec, body[begin:at], left)
        left -= len(block)
        value = _read_block(block, count, read)
        first, total = first if total else value, total + count
        if body[at : at + _SYNC] != sync:
            raise Misfit("a block of the container file does not end with its marker")
        at += _SYNC
    return first, total


def _header(body: bytes) -> tuple[dict[str, bytes], int]:
    head = body[:MAX_HEADER_BYTES]
    meta: dict[str, bytes] = {}
    count, at = read_long(head, len(MAGIC))
    while count:
        if count < 0:
            _, at = read_long(head, at)
        for _ in range(abs(count)):
            begin, at = skip_bytes(head, at)
            key = head[begin:at].decode("utf-8", "replace")
            begin, at = skip_bytes(head, at)
            meta[key] = head[begin:at]
        count, at = read_long(head, at)
    return meta, at


def _canonical(document: bytes) -> str:
    try:
        return parse_alone(msgspec.json.decode(document)).canonical
    except (SchemaError, msgspec.DecodeError, UnicodeError, RecursionError):
        raise Misfit("the container file's header has no valid schema") from None


def _unpacked(codec: str, block: bytes, limit: int) -> bytes:
    unpacker: _Unpacker
    if codec == "null":
        return block
    if codec == "deflate":
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    elif codec == "bzip2":
        unpacker = bz2.BZ2Decompressor()
    elif codec == "xz":
        unpacker = lzma.LZMADecompressor(memlimit=MAX_UNPACKED_BYTES)
    else:
        raise Misfit(f"the container file has the unknown codec {codec[:60]}")
    try:
        unpacked = unpacker.decompress(block, limit + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise Misfit(f"a block of the container file cannot be unpacked: {error}") from None
    if len(unpacked) > limit:
        raise Misfit(f"the container file holds more than {MAX_UNPACKED_BYTES} bytes")
    return unpacked


def _read_block(block: bytes, count: int, read: ReadValue) -> Any:
    """Return the first value of a block; None when it has none."""
    first: Any = None
    at = index = 0
    try:
        for index in range(count):
            begin = at
            value, at = read(block, at)
            first = first if index else value
            if at == begin:
                break  # values without bytes may be as many as are claimed
    except Misfit as misfit:
        misfit.steps.append(f"[{index}]")
        raise
    if at != len(block) or count < 0:
        raise Misfit("a block of the container file has more bytes than its values")
    return first
