"""Arrays of texts and bytes, worked on through their buffers: joined, and escaped for JSON."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import raw, texts_of
from bindings.entries import Int

Bytes = npt.NDArray[np.uint8]
NONE_OF_THEM: Final = np.zeros(0, np.int64)
_BACKSLASH: Final = 0x5C
_QUOTE: Final = 0x22


def data_of(texts: pa.Array) -> tuple[Bytes, Int]:
    """Return the bytes that an array of texts or bytes shares, and where each begins, then where the last ends.

    The texts lie one behind another; a null has as a rule no bytes, yet may have some.
    """
    data, offsets = raw(texts)
    return data[offsets[0] : offsets[-1]], (offsets - offsets[0]).astype(np.int64)


def owners_of(places: Int, at: Int) -> Int:
    """Return for each place in the shared bytes the text that it lies in; *places* as :func:`data_of` gives them."""
    return np.searchsorted(places, at, "right") - 1


def runs(texts: pa.StringArray, offsets: Int) -> pa.StringArray:
    """Return the texts of runs: each is what stands from one offset to the next, put together. No text may be null."""
    data, places = data_of(texts)
    ends = np.ascontiguousarray(places[offsets], np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data)))


def together(*texts: pa.Array | str) -> pa.StringArray:
    """Return the texts of several arrays side by side; null where one of them is null. A ``str`` stands in each."""
    return pc.binary_join_element_wise(*texts, "")


def or_empty(texts: pa.StringArray) -> pa.StringArray:
    """Return the texts with empty ones for nulls."""
    return pc.fill_null(texts, "") if texts.null_count else texts


def or_null(values: pa.StringArray) -> pa.StringArray:
    """Return JSON values with ``null`` for those that are not there."""
    return pc.fill_null(values, "null") if values.null_count else values


def rows_of(values: pa.Array, rows: Int) -> pa.Array:
    """Return the values of these rows, which are in order and each there once; all of them without a copy."""
    return values if len(rows) == len(values) else values.take(pa.array(rows))


def replaced(texts: pa.Array, rows: Int, some: pa.Array) -> pa.Array:
    """Return the array with *some* in these rows, which are in order."""
    if not len(rows):
        return texts
    indices = np.arange(len(texts))
    indices[rows] = len(texts) + np.arange(len(rows))
    return pa.concat_arrays([texts, some]).take(pa.array(indices))


def placed(rows: int, *parts: tuple[Int, pa.StringArray]) -> pa.StringArray:
    """Return a text for each of so many rows: of each part its texts in its rows, which are in order; empty elsewhere.

    No row is in two parts.
    """
    for places, texts in parts:
        if len(places) == rows:
            return texts
    indices = np.zeros(rows, np.int64)
    begin = 1
    for places, texts in parts:
        indices[places] = begin + np.arange(len(places))
        begin += len(texts)
    return pa.concat_arrays([pa.array([""]), *(texts for _, texts in parts)]).take(pa.array(indices))


def as_text(values: pa.BinaryArray) -> tuple[pa.StringArray, Int]:
    """Return bytes as text, and the places of those that are no UTF-8, which are null."""
    texts = texts_of(values)
    if texts.null_count == values.null_count:
        return texts, NONE_OF_THEM
    return texts, np.flatnonzero(pc.and_(values.is_valid(), texts.is_null()))


def escaped(texts: pa.StringArray) -> pa.StringArray:
    """Return texts as they stand between the quotes of a JSON string, just as ``msgspec.json`` writes them."""
    data, places = data_of(texts)
    marks = (data < 0x20) | (data == _QUOTE) | (data == _BACKSLASH)
    if not marks.any():
        return texts
    at = np.flatnonzero(marks)
    rows = np.unique(owners_of(places, at))
    some = texts.take(pa.array(rows))
    # The backslash first: the escapes of all others begin with one.
    for byte in sorted(np.unique(data[at]).tolist(), key=lambda byte: byte != _BACKSLASH):
        some = pc.replace_substring(some, chr(byte), _escape(byte))
    return replaced(texts, rows, some)


@cache
def _escape(byte: int) -> str:
    return msgspec.json.encode(chr(byte)).decode()[1:-1]
