"""Bytes and texts of whole columns."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bindings.entries import Bool, Int

Int32 = npt.NDArray[np.int32]


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


def base64_of(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as base64; null stays null."""
    encoded = (None if value is None else base64.b64encode(value).decode("ascii") for value in values.to_pylist())
    return pa.array(encoded, pa.string(), size=len(values))
