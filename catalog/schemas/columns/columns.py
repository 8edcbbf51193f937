"""From decoded values, row by row, to one Arrow array of a shape.

The array is built at once, and again value by value only where that fails. Then the smallest thing around a value that
does not fit, and that may be null, is null: a member of a struct, an item of a list, a value of a map, or a map with
such a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.schemas.bodies import UnfitValue
from catalog.schemas.columns.shapes import Leaf, Shape, Struct, Table, arrow_type
from catalog.schemas.columns.shapes import Sequence as List

Take = Sequence[Callable[[Any], Any]]
"""For each member of a struct, in their order, what gets its value from the struct's own, which is not None."""
Report = Callable[[int, str, str], None]
"""Is told of a value that is null because it does not fit: its place among the values, its column below, and why."""
Build = Callable[[list[Any], Report | None], pa.Array]
"""Builds an array; without a report, a value that does not fit is one of _REFUSALS."""
_REFUSALS: Final = (pa.ArrowException, ValueError, OverflowError, TypeError, AttributeError)
_AT_ONCE: Final = 256
"""Values that are built together where some of all do not fit, and one by one where some of these do not."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # no zone, as the values have none
_MICROSECONDS: Final = pa.duration("us")
_FIRST: Final = -62_135_596_800_000_000
_LAST: Final = 253_402_300_799_999_999
"""Microseconds since 1970 at the ends of the years 1 and 9999: no reader's calendar goes further."""


@dataclass(slots=True)
class Misfits:
    """The values of one column that do not fit it: how many, the place of the first, and why that one does not.

    ``column`` is a path such as ``readings.element.at``, empty for the array itself. ``rows`` are all places, of the
    array itself alone.
    """

    column: str
    first: int
    why: str
    values: int = 0
    rows: list[int] = field(default_factory=list)


class Columns:
    """Builds arrays of one shape.

    *take* makes, for each struct in the shape, what takes its value apart; *text* gives the JSON text of a value at a
    ``json`` leaf. Lists are lists, maps dicts.
    """

    def __init__(self, shape: Shape, take: Callable[[Struct], Take], text: Callable[[Any], str | None]) -> None:
        self.type = arrow_type(shape)
        self._build = self._compiled(shape, take, text)

    def array(self, values: list[Any]) -> tuple[pa.Array, list[Misfits]]:
        """Return the array of *values*, in which None is null, and what does not fit, by column."""
        try:
            return self._build(values, None), []
        except _REFUSALS:
            misfits: dict[str, Misfits] = {}

            def report(row: int, column: str, why: str) -> None:
                known = misfits.setdefault(column, Misfits(column, row, why))
                known.values += 1
                if not column:
                    known.rows.append(row)

            return self._build(values, report), list(misfits.values())

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
    def plain(values: list[Any]) -> pa.Array:
        return pa.array(values, leaf.type)

    def texts(values: list[Any]) -> pa.Array:
        return pa.array([None if value is None else text(value) for value in values], leaf.type)

    def numerals(values: list[Any]) -> pa.Array:
        return pa.array([f"{value:f}" if isinstance(value, Decimal) else value for value in values], leaf.type)

    build: Callable[[list[Any]], pa.Array] = {"json": texts, "numeral": numerals}.get(leaf.kind, plain)
    if leaf.kind in ("timestamp", "local timestamp"):
        build = _instants(leaf.type, _EPOCH if leaf.kind == "timestamp" else _LOCAL_EPOCH)
    return lambda values, report: build(values if report is None else _fitting(build, values, report))


def _fitting(build: Callable[[list[Any]], pa.Array], values: list[Any], report: Report) -> list[Any]:
    """Return values of a leaf with None for those that do not fit it, and report these."""
    values = _swept(values, report)
    for begin in range(0, len(values), _AT_ONCE):
        several = values[begin : begin + _AT_ONCE]
        try:
            build(several)
        except _REFUSALS:
            for at, value in enumerate(several, begin):
                try:
                    build([value])
                except _REFUSALS as error:
                    report(at, "", str(error))
                    values[at] = None
    return values


def _swept(values: list[Any], report: Report) -> list[Any]:
    """Return values with None for those that a reader found unfit, and report these."""
    kept = list(values)
    for at, value in enumerate(values):
        if type(value) is UnfitValue:
            report(at, "", value.why)
            kept[at] = None
    return kept


def _instants(kind: pa.TimestampType, epoch: datetime) -> Callable[[list[Any]], pa.Array]:
    def build(values: list[Any]) -> pa.Array:
        # Arrow takes a duration in a tenth of the time of an instant with a zone.
        passed = pa.array([None if value is None else value - epoch for value in values], _MICROSECONDS)
        numbers = passed.view(pa.int64())
        ends = pc.min_max(numbers).as_py()
        if ends["min"] is not None and not _FIRST <= ends["min"] <= ends["max"] <= _LAST:
            raise ValueError("an instant lies outside of the years 1 to 9999")
        return numbers.view(kind)

    return build


def _struct(kind: pa.StructType, inner: list[Build], getters: Take) -> Build:
    fields = list(kind)

    def build(values: list[Any], report: Report | None) -> pa.Array:
        if report is not None:
            values = _swept(values, report)
        missing = [value is None for value in values]
        is_whole = not any(missing)
        arrays = []
        for each, get, member in zip(inner, getters, fields, strict=True):
            parts = map(get, values) if is_whole else (None if value is None else get(value) for value in values)
            arrays.append(each(list(parts), report and _below(report, member.name)))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=None if is_whole else pa.array(missing))

    return build


def _sequence(kind: pa.ListType, item: Build) -> Build:
    def build(values: list[Any], report: Report | None) -> pa.Array:
        if report is not None:
            values = _swept(values, report)
        offsets, there = _offsets(values)
        below = report and _below(report, kind.value_field.name, _owners(values))
        return pa.ListArray.from_arrays(offsets, item(list(chain.from_iterable(there)), below), type=kind)

    return build


def _table(kind: pa.MapType, key: Build, inner: Build) -> Build:
    def build(values: list[Any], report: Report | None) -> pa.Array:
        owners: list[int] = []
        if report is not None:
            values = _swept(values, report)
            _without_unfit_keys(key, values, report)
            owners = _owners(values)
        offsets, there = _offsets(values)
        keys = key(list(chain.from_iterable(there)), None)
        items = inner(
            [item for value in there for item in value.values()],
            report and _below(report, kind.item_field.name, owners),
        )
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)

    return build


def _without_unfit_keys(key: Build, values: list[Any], report: Report) -> None:
    """Make maps null that have a key which does not fit: no key may be null."""
    owners, unfit = _owners(values), dict[int, str]()
    key([each for value in values if value is not None for each in value], lambda at, _, why: unfit.update({at: why}))
    for owner, why in {owners[at]: why for at, why in unfit.items()}.items():
        report(owner, "", why)
        values[owner] = None


def _owners(values: list[Any]) -> list[int]:
    """Return for each part of the values that are there, in order, the place of the value that it is a part of."""
    return [at for at, value in enumerate(values) if value is not None for _ in value]


def _below(report: Report, name: str, owners: list[int] | None = None) -> Report:
    """Return the report of a column within another; *owners* are the places there of its values, None for the same."""

    def told(at: int, column: str, why: str) -> None:
        report(at if owners is None else owners[at], f"{name}.{column}" if column else name, why)

    return told


def _offsets(values: list[Any]) -> tuple[pa.Array, list[Any]]:
    """Return where each value begins and the last ends, null for a null value, and the values that are there."""
    missing = [value is None for value in values]
    there = [value for value in values if value is not None] if any(missing) else values
    lengths = np.zeros(len(values) + 1, np.int64)
    lengths[1:][~np.asarray(missing, bool)] = list(map(len, there))
    offsets = np.cumsum(lengths)
    mask = np.asarray([*missing, False]) if any(missing) else None
    return pa.array(offsets, pa.int32(), mask=mask), there
