"""How a table of typed payloads grows with its schema: columns come, none goes, and none changes its type.

A definition's schema changes while its table lives on. What both know stays one column; a new member becomes a new
column, null in older rows; one that is gone is null in newer rows. A member whose type changed keeps its column when
each of its values fits there (``int32`` into ``int64``), else it gets a column beside it, named for the type
(``level`` and ``level_string``): old rows keep their meaning, and no value is bent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int64(): (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
    pa.int32(): (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()),
    pa.int16(): (pa.int8(), pa.uint8()),
    pa.float64(): (pa.float32(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
}
"""Per type the ones whose every value it holds exactly."""


def evolved(known: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema of a table that has the columns *known* and is to take rows of *new*.

    The columns of *known* come first and unchanged but for members added inside of them; then those that are new.
    Both are to have nullable fields only.
    """
    return pa.schema(_fields(known, new))


def conformed(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Return the rows with the columns of *target*, which :func:`evolved` made for them; nothing is lost."""
    rows = rows.combine_chunks()
    columns: dict[str, pa.Array] = {name: _whole(rows.column(name)) for name in rows.column_names}
    placed = _placed(columns, target)
    return pa.table([_or_nulls(placed, field, rows.num_rows) for field in target], schema=target)


def contains(known: pa.Schema, given: pa.Schema) -> bool:
    """Return whether rows of *given* fit *known* unchanged, with nulls for missing columns: no type differs."""
    return _has_members(list(known), list(given))


def _has_members(known: Iterable[pa.Field], given: Iterable[pa.Field]) -> bool:
    types = {field.name: field.type for field in known}
    return all(field.name in types and _has(types[field.name], field.type) for field in given)


def _has(known: pa.DataType, given: pa.DataType) -> bool:
    if pa.types.is_struct(known) and pa.types.is_struct(given):
        return _has_members(list(known), list(given))
    if pa.types.is_list(known) and pa.types.is_list(given):
        return _has(known.value_type, given.value_type)
    if pa.types.is_map(known) and pa.types.is_map(given):
        return known.key_type.equals(given.key_type) and _has(known.item_type, given.item_type)
    return bool(known.equals(given))


def _fields(known: Iterable[pa.Field], new: Iterable[pa.Field]) -> list[pa.Field]:
    fields = {field.name: field.type for field in known}
    new = list(new)
    for field, home in zip(new, _homes(fields, new), strict=True):
        joined = _joined(fields[home], field.type) if home in fields else field.type
        fields[home] = field.type if joined is None else joined
    return [pa.field(name, kind) for name, kind in fields.items()]


def _homes(known: Mapping[str, pa.DataType], new: Sequence[pa.Field]) -> list[str]:
    """Return for each new member the column that its values go to, which may be there already or not.

    Names that differ in case alone are one column: many readers of tables tell them apart no more than that.
    """
    spelt = {name.lower(): name for name in known}
    homes: dict[int, str] = {}
    for place, field in enumerate(new):
        name = spelt.get(field.name.lower(), field.name)
        if name not in known or _joined(known[name], field.type) is not None:
            homes[place] = name
    taken = set(homes.values())
    for place, field in enumerate(new):
        if place not in homes:
            beside = next(
                name
                for name in _beside(f"{spelt[field.name.lower()]}_{_label(field.type)}")
                if name not in taken and (name not in known or _joined(known[name], field.type) is not None)
            )
            homes[place] = beside
            taken.add(beside)
    return [homes[place] for place in range(len(new))]


def _beside(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}_{number}"


def _joined(known: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type that holds both, equal to *known* but for added members; None when there is none."""
    if known.equals(new) or new in _WIDER.get(known, ()):
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return pa.struct(_fields(list(known), list(new)))
    if pa.types.is_list(known) and pa.types.is_list(new):
        inner = _joined(known.value_type, new.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(known) and pa.types.is_map(new) and known.key_type.equals(new.key_type):
        inner = _joined(known.item_type, new.item_type)
        return None if inner is None else pa.map_(known.key_type, inner)
    return None


def _label(kind: pa.DataType) -> str:
    for label in ("struct", "list", "map", "decimal", "timestamp"):
        if str(kind).startswith(label):
            return label
    return str(kind).replace("date32[day]", "date")


def _placed(columns: Mapping[str, pa.Array], target: Iterable[pa.Field]) -> dict[str, pa.Array]:
    """Return the columns by the names of their homes in *target*, in its types."""
    fields = {field.name: field.type for field in target}
    homes = _homes(fields, [pa.field(name, column.type) for name, column in columns.items()])
    return {home: _as_type(column, fields[home]) for home, column in zip(homes, columns.values(), strict=True)}


def _as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        members = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        placed = _placed(members, kind)
        columns = [_or_nulls(placed, field, len(column)) for field in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        offsets = _offsets(column)
        return pa.ListArray.from_arrays(offsets, _as_type(column.flatten(), kind.value_type), type=kind, mask=mask)
    if pa.types.is_map(kind):
        pairs = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", column.type.item_type)])))
        keys, items = pairs.flatten().flatten()
        return pa.MapArray.from_arrays(_offsets(pairs), keys, _as_type(items, kind.item_type), type=kind, mask=mask)
    return column.cast(kind)


def _offsets(column: pa.Array) -> pa.Array:
    """Return offsets into the array's flattened values, whatever slice the array is; nulls are empty."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])


def _or_nulls(placed: Mapping[str, pa.Array], field: pa.Field, rows: int) -> pa.Array:
    member = placed.get(field.name)
    return pa.nulls(rows, field.type) if member is None else member


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
