"""Bytes and texts of whole columns."""

from __future__ import annotations

import binascii
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.entries import Bool, Int

Int32 = npt.NDArray[np.int32]
_ASCII_END: Final = 0x80
_SPACE, _DELETE = 0x20, 0x7F
_FORBIDDEN: Final = (
    r"[\x00-\x1f\x7f-\x{9f}\x{fdd0}-\x{fdef}"
    + "".join(rf"\x{{{plane + 0xFFFE:x}}}-\x{{{plane + 0xFFFF:x}}}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
"""What :data:`bindings.events.FORBIDDEN` says, for RE2."""
_PADDING: Final = pa.array([b"", b"\0", b"\0\0"])


def raw(values: pa.BinaryArray | pa.StringArray) -> tuple[npt.NDArray[np.uint8], Int32]:
    """Return the data of an array and its offsets: value *i* is ``data[offsets[i]:offsets[i + 1]]``.

    Nothing is copied. The bytes of a null mean nothing.
    """
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return np.zeros(0, np.uint8), np.zeros(len(values) + 1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), bounds


def valid(values: pa.Array) -> Bool:
    """Tell which values are not null."""
    return values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else np.ones(len(values), bool)


def holding(values: pa.BinaryArray | pa.StringArray, character: str) -> Int:
    """Return the places of the values, none of them null, that hold an ASCII character."""
    data, offsets = raw(values)
    marks = np.flatnonzero(data[offsets[0] : offsets[-1]] == ord(character)) + offsets[0]
    return np.unique(np.searchsorted(offsets, marks, "right") - 1)


def beginnings(values: pa.BinaryArray | pa.StringArray) -> npt.NDArray[np.uint8]:
    """Return the first byte of every value; 0 for one that is empty or null."""
    data, offsets = raw(values)
    firsts = np.zeros(len(values), np.uint8)
    filled = np.flatnonzero((np.diff(offsets) > 0) & valid(values))
    firsts[filled] = data[offsets[filled]]
    return firsts


def texts_of(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text; null for what is no UTF-8."""
    doubtful = beyond_ascii(values)
    if len(doubtful):
        wrong = doubtful[~_is_text(values.take(pa.array(doubtful)))]
        if len(wrong):
            there = np.ones(len(values), bool)
            there[wrong] = False
            values = pc.if_else(pa.array(there), values, pa.scalar(None, pa.binary()))
    return values.view(pa.string())


def beyond_ascii(values: pa.BinaryArray | pa.StringArray) -> Int:
    """Return the places of values that hold more than ASCII; there may be nulls among them."""
    data, bounds = raw(values)
    held = data[bounds[0] : bounds[-1]]
    if not len(held) or int(held.max()) < _ASCII_END:
        return np.zeros(0, np.int64)
    filled = np.flatnonzero(np.diff(bounds))
    tops = np.maximum.reduceat(held, bounds[filled] - bounds[0])
    return filled[tops >= _ASCII_END]


def unusual(values: pa.BinaryArray | pa.StringArray) -> Int:
    """Return the places of values that hold more than printable ASCII; there may be nulls among them."""
    data, bounds = raw(values)
    held = data[bounds[0] : bounds[-1]]
    if not len(held) or (int(held.min()) >= _SPACE and int(held.max()) < _DELETE):
        return np.zeros(0, np.int64)
    filled = np.flatnonzero(np.diff(bounds))
    # What is below a space comes out above all else.
    tops = np.maximum.reduceat(held - np.uint8(_SPACE), bounds[filled] - bounds[0])
    return filled[tops >= _DELETE - _SPACE]


def printable(values: pa.StringArray) -> pa.BooleanArray:
    """Return which texts a CloudEvents String may hold; null for a null."""
    return pc.invert(pc.match_substring_regex(values, _FORBIDDEN)) if len(unusual(values)) else _true_if_valid(values)


def forbidden(values: pa.BinaryArray | pa.StringArray, at: Int | None = None) -> Int:
    """Return the places of values that no CloudEvents String may be, ascending; a null is none of them.

    They are no UTF-8, or hold control characters or noncharacters. Of all values those *at* some places are asked.
    """
    doubtful = unusual(values)
    if at is not None and len(doubtful):
        doubtful = np.intersect1d(doubtful, at, assume_unique=True)
    if not len(doubtful):
        return doubtful
    texts = texts_of(values.take(pa.array(doubtful)))
    sound = pc.fill_null(printable(texts), False).to_numpy(zero_copy_only=False)
    wrong: Int = doubtful[~sound & valid(values.take(pa.array(doubtful)))]
    return wrong


def _true_if_valid(values: pa.Array) -> pa.BooleanArray:
    return pc.if_else(pc.is_valid(values), True, pa.scalar(None, pa.bool_()))


def _is_text(values: pa.BinaryArray) -> Bool:
    """Tell which values are UTF-8; all of them are looked at together, and one by one only if some are not."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.fromiter((value is None or _decodes(value) for value in values.to_pylist()), bool, len(values))
    return np.ones(len(values), bool)


def _decodes(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def base64_of(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as base64; null stays null."""
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    spare = -sizes % 3
    padded = pc.binary_join_element_wise(values, _PADDING.take(pa.array(spare)), b"")
    data, offsets = raw(padded)
    # Each begins a group of three bytes, so that all of them are written at once.
    shared = data[offsets[0] : offsets[-1]]
    coded = np.frombuffer(bytearray(binascii.b2a_base64(shared.data, newline=False)), np.uint8)
    ends = (offsets - offsets[0]) // 3 * 4
    coded[ends[1:][spare > 0] - 1] = ord("=")
    coded[ends[1:][spare == 2] - 2] = ord("=")
    buffers = (pa.py_buffer(ends), pa.py_buffer(coded))
    return pa.StringArray.from_buffers(len(values), *buffers, padded.buffers()[0], padded.null_count)
