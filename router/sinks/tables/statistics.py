"""Statistics of a Parquet file as Delta's log has them, so that readers leave out files that hold nothing for them.

They come of the file's own footer. A bound that JSON cannot hold exactly is left out, which every reader allows: what
is too long, decimals, infinite numbers, and instants outside of the years 1 to 9999.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from catalog.values import YEAR_1, YEAR_10000

COLUMNS: Final = 32
"""Leaves of the schema, from its first on, that have statistics: what Delta looks at unless a table says otherwise."""
LONGEST: Final = 64
"""Characters of a text that is a bound."""
_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1)
Place = tuple[str, ...]


def statistics_of(schema: pa.Schema, footer: pq.FileMetaData) -> str:
    """Return the statistics of a file whose columns are those of *schema*, as JSON."""
    statistics: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number, place, kind in _leaves(schema):
        if number >= COLUMNS:
            break
        columns = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in columns):
            continue
        nulls = sum(each.null_count for each in columns)
        _put(statistics["nullCount"], place, nulls)
        filled = [each for each in columns if each.num_values]
        if not filled or not _bounded(kind) or not all(each.has_min_max for each in filled):
            continue
        low, high = _bounds(kind, filled)
        if low is not None and high is not None:
            _put(statistics["minValues"], place, low)
            _put(statistics["maxValues"], place, high)
    return msgspec.json.encode(statistics).decode()


def _leaves(schema: pa.Schema) -> Iterator[tuple[int, Place, pa.DataType]]:
    """Yield number, place and type of each leaf that is one value of a row; those of lists and maps only count."""
    number = 0

    def walk(place: Place, kind: pa.DataType, *, single: bool) -> Iterator[tuple[int, Place, pa.DataType]]:
        nonlocal number
        if pa.types.is_nested(kind):
            inside = single and pa.types.is_struct(kind)
            for at in range(kind.num_fields):
                member = kind.field(at)
                yield from walk((*place, member.name), member.type, single=inside)
            return
        if single:
            yield number, place, kind
        number += 1

    for field in schema:
        yield from walk((field.name,), field.type, single=True)


def _bounded(kind: pa.DataType) -> bool:
    types = pa.types
    asked = (types.is_integer, types.is_floating, types.is_string, types.is_date32, types.is_timestamp)
    return any(each(kind) for each in asked)


def _bounds(kind: pa.DataType, columns: Sequence[pq.Statistics]) -> tuple[Any, Any]:
    """Return the least and the greatest value as JSON has them; None for one that cannot be written."""
    if pa.types.is_temporal(kind):
        # Python has no date or time for each that Arrow has, so the numbers are looked at.
        low, high = min(each.min_raw for each in columns), max(each.max_raw for each in columns)
        return _moment(low, kind), _moment(high, kind)
    return _shown(min(each.min for each in columns)), _shown(max(each.max for each in columns))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _moment(number: int, kind: pa.DataType) -> str | None:
    days = pa.types.is_date32(kind)
    micros = number * _DAY if days else number
    if not (days or kind.unit == "us") or not YEAR_1 * 1000 <= micros < YEAR_10000 * 1000:
        return None
    moment = _EPOCH + timedelta(microseconds=micros)
    if days:
        return moment.date().isoformat()
    return moment.isoformat(timespec="microseconds") + ("Z" if kind.tz else "")


def _put(tree: dict[str, Any], place: Place, value: Any) -> None:
    for name in place[:-1]:
        tree = tree.setdefault(name, {})
    tree[place[-1]] = value
