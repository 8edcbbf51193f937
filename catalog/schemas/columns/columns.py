"""From decoded values, row by row, to one Arrow array of a shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.schemas.columns.shapes import Leaf, Shape, Struct, Table, arrow_type
from catalog.schemas.columns.shapes import Sequence as List

Take = Sequence[Callable[[Any], Any]]
"""For each member of a struct, in their order, what gets its value from the struct's own, which is not None."""
Build = Callable[[list[Any]], pa.Array]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # no zone, as the values have none
_MICROSECONDS: Final = pa.duration("us")
_FIRST: Final = -62_135_596_800_000_000
_LAST: Final = 253_402_300_799_999_999
"""Microseconds since 1970 at the ends of the years 1 and 9999: no reader's calendar goes further."""


class MisfitError(ValueError):
    """Values that are not of their shape; the message says of which column."""


class Columns:
    """Builds arrays of one shape.

    *take* makes, for each struct in the shape, what takes its value apart; *text* gives the JSON text of a value at a
    ``json`` leaf. Lists are lists, maps dicts.
    """

    def __init__(self, shape: Shape, take: Callable[[Struct], Take], text: Callable[[Any], str | None]) -> None:
        self.type = arrow_type(shape)
        self._build = self._compiled(shape, take, text)

    def array(self, values: list[Any]) -> pa.Array:
        """Return the array of *values*; None is null.

        Raises:
            MisfitError: a value does not fit. Readers see to it that this is rare: it ends the whole array.
        """
        try:
            return self._build(values)
        except (pa.ArrowException, ValueError, OverflowError, TypeError, AttributeError) as error:
            raise MisfitError(str(error)) from error

    def _compiled(self, shape: Shape, take: Callable[[Struct], Take], text: Callable[[Any], str | None]) -> Build:
        if isinstance(shape, Struct):
            inner = [self._compiled(member.shape, take, text) for member in shape.members]
            return _struct(arrow_type(shape), inner, take(shape))
        if isinstance(shape, List):
            return _sequence(arrow_type(shape), self._compiled(shape.item, take, text))
        if isinstance(shape, Table):
            key = self._compiled(shape.key, take, text)
            return _table(arrow_type(shape), key, self._compiled(shape.value, take, text))
        return _leaf(shape, text)


def _leaf(leaf: Leaf, text: Callable[[Any], str | None]) -> Build:
    def build(values: list[Any]) -> pa.Array:
        return pa.array(values, leaf.type)

    def texts(values: list[Any]) -> pa.Array:
        return pa.array([None if value is None else text(value) for value in values], leaf.type)

    def numerals(values: list[Any]) -> pa.Array:
        return pa.array([f"{value:f}" if isinstance(value, Decimal) else value for value in values], leaf.type)

    if leaf.kind in ("timestamp", "local timestamp"):
        return _instants(leaf.type, _EPOCH if leaf.kind == "timestamp" else _LOCAL_EPOCH)
    return {"json": texts, "numeral": numerals}.get(leaf.kind, build)


def _instants(kind: pa.TimestampType, epoch: datetime) -> Build:
    def build(values: list[Any]) -> pa.Array:
        # Arrow takes a duration in a tenth of the time of an instant with a zone.
        passed = pa.array([None if value is None else value - epoch for value in values], _MICROSECONDS)
        numbers = passed.view(pa.int64())
        ends = pc.min_max(numbers).as_py()
        if ends["min"] is not None and not _FIRST <= ends["min"] <= ends["max"] <= _LAST:
            raise MisfitError("an instant lies outside of the years 1 to 9999")
        return numbers.view(kind)

    return build


def _struct(kind: pa.StructType, inner: list[Build], getters: Take) -> Build:
    fields = list(kind)

    def build(values: list[Any]) -> pa.Array:
        missing = [value is None for value in values]
        is_whole = not any(missing)
        arrays = []
        for each, get in zip(inner, getters, strict=True):
            parts = map(get, values) if is_whole else (None if value is None else get(value) for value in values)
            arrays.append(each(list(parts)))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=None if is_whole else pa.array(missing))

    return build


def _sequence(kind: pa.ListType, item: Build) -> Build:
    def build(values: list[Any]) -> pa.Array:
        offsets, there = _offsets(values)
        return pa.ListArray.from_arrays(offsets, item(list(chain.from_iterable(there))), type=kind)

    return build


def _table(kind: pa.MapType, key: Build, inner: Build) -> Build:
    def build(values: list[Any]) -> pa.Array:
        offsets, there = _offsets(values)
        keys = key(list(chain.from_iterable(there)))
        items = inner([item for value in there for item in value.values()])
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)

    return build


def _offsets(values: list[Any]) -> tuple[pa.Array, list[Any]]:
    """Return where each value begins and the last ends, null for a null value, and the values that are there."""
    missing = [value is None for value in values]
    there = [value for value in values if value is not None] if any(missing) else values
    lengths = np.zeros(len(values) + 1, np.int64)
    lengths[1:][~np.asarray(missing, bool)] = list(map(len, there))
    offsets = np.cumsum(lengths)
    mask = np.asarray([*missing, False]) if any(missing) else None
    return pa.array(offsets, pa.int32(), mask=mask), there
