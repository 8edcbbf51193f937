"""Typed payload columns of tables: bodies decoded into them, and tables that get more of them.

Decoding removes content coding and frames, and uses the schema that a body was written with (MATCHING.md#schema-ids).
The column ``data`` has the bodies unchanged.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.parts import CODING_HEADER, content_coding_of
from bindings.protocols import binding_of
from catalog.findings import RecordError
from catalog.model import Catalog, Definition
from catalog.schemas.columns import PayloadColumn, Undecoded, payload_column
from catalog.schemas.contract import MessagePlace, WriterSchema, decode_content
from catalog.schemas.ids.client import WrittenSchema
from catalog.schemas.ids.deciding import FrameSettings, SchemaIdRule, find_frame_ids

Framings = Mapping[str, FrameSettings]
"""The framing of Kafka bodies by source endpoint; the default is ``auto``."""
_NATIVE: Final = msgspec.json.Decoder(dict[str, object])
_AUTO: Final = FrameSettings()
DecodedPayloads = tuple[pa.StructArray, tuple[Undecoded, ...]]
"""Payloads, and the values that cannot be decoded."""


class PayloadColumns:
    """The payload columns of a catalog's definitions; definitions with equal schemas share one.

    Bodies of one column are decoded together: with 300 definitions of one schema in a batch, a record takes 1.4 us so,
    and 63 one definition after the other.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._ids = SchemaIdRule(catalog.schemas)
        self._opened: dict[tuple[object, ...], PayloadColumn | None] = {}
        self._columns: dict[str, PayloadColumn | None] = {}

    def get(self, message: str) -> PayloadColumn | None:
        """Return the column of a definition; None if it has no typed columns, or is not in the catalog."""
        if message not in self._columns:
            definition = self.catalog.definitions.get(message)
            self._columns[message] = None if definition is None else self._open(definition)
        return self._columns[message]

    def _open(self, definition: Definition) -> PayloadColumn | None:
        key = self._schema_key(definition)
        if key not in self._opened:
            self._opened[key] = payload_column(self.catalog, definition.xid)
        return self._opened[key]

    def _schema_key(self, definition: Definition) -> tuple[object, ...]:
        text = json.dumps(self.catalog.schemas.get(definition.schemakey or ""), sort_keys=True, default=str)
        refers = any(word in text for word in _REFERRING)
        place = (definition.schemaname, definition.schemapointer, definition.schemakey if refers else "")
        return (definition.dataschemaformat, text, *place, self._ids.declared_ids(definition, None))


_REFERRING: Final = ("ref", "Ref", "import", "include", "extends")
"""In each schema that may need other documents, which its own address finds."""


@dataclass(slots=True)
class _BodyGroup:
    """Bodies by row that are decoded with the same writer schema, if known."""

    written: WriterSchema | None = None
    bodies: dict[int, bytes] = field(default_factory=dict)


def decode_payloads(column: PayloadColumn, rows: pa.Table, framings: Framings) -> DecodedPayloads:
    """Decode the payloads of rows of the wide table; the result is that of :meth:`PayloadColumn.decode`.

    Raises:
        RegistryUnavailableError: a schema registry is not available.
    """
    types, bodies = rows.column("datacontenttype").combine_chunks(), _decode_contents(rows)
    framed = _find_frames(rows, bodies, framings)
    if not framed or not column.framed:
        return column.decode(bodies, types)
    sure, unsure = _group_by_writer(column, bodies, framed)
    inside = {row for part in sure for row in part.bodies}
    whole = [row for row in range(len(bodies)) if row not in inside]
    read = [(whole, column.decode(bodies.take(pa.array(whole, pa.int64())), types.take(pa.array(whole, pa.int64()))))]
    # It is unknown whether these have a frame: it is removed only if the whole body cannot be decoded.
    again = {whole[each.row] for each in read[0][1][1] if each.column is None} & unsure.keys()
    behind = _BodyGroup(None, {row: data for row, data in unsure.items() if row in again})
    for part in (*sure, *([behind] if behind.bodies else ())):
        places = sorted(part.bodies)
        inner = pa.array([part.bodies[row] for row in places], pa.binary())
        read.append((places, column.decode(inner, types.take(pa.array(places, pa.int64())), part.written)))
    return _merge_results(read, len(bodies))


def _merge_results(read: Sequence[tuple[Sequence[int], DecodedPayloads]], rows: int) -> DecodedPayloads:
    """Merge the results of several groups of rows; for a row in two groups, the last one wins."""
    places = np.zeros(rows, np.int64)
    found: dict[int, list[Undecoded]] = {}
    at = 0
    for members, (payload, undecoded) in read:
        places[list(members)] = at + np.arange(len(members))
        at += len(payload)
        for row in members:
            found.pop(row, None)
        for each in undecoded:
            row = members[each.row]
            every = tuple(members[one] for one in each.rows)
            found.setdefault(row, []).append(replace(each, row=row, rows=every))
    joined = pa.concat_arrays([payload for _, (payload, _) in read]).take(pa.array(places))
    return joined, tuple(each for row in sorted(found) for each in found[row])


def _decode_contents(rows: pa.Table) -> pa.BinaryArray:
    """Return the bodies without content coding; a body that is not encoded as declared stays unchanged."""
    bodies, natives = rows.column("data").combine_chunks(), rows.column("native").combine_chunks()
    marked = pc.indices_nonzero(
        pc.fill_null(pc.match_substring(natives, CODING_HEADER, ignore_case=True), False)
    ).to_pylist()
    uncoded = {}
    for row in marked:
        body = bodies[row].as_py()
        coding = _find_coding(rows.column("protocol")[row].as_py(), natives[row].as_py())
        opened = decode_content(body, coding) if coding and body is not None else None
        if isinstance(opened, bytes):
            uncoded[row] = opened
    return _replace_bodies(bodies, uncoded)


def _find_coding(protocol: str | None, native: str) -> str:
    binding = binding_of(protocol or "")
    try:
        return content_coding_of(binding.split(_NATIVE.decode(native))) if binding is not None else ""
    except (msgspec.DecodeError, RecordError):
        return ""  # a native record that cannot be parsed has no coding


def _find_frames(rows: pa.Table, bodies: pa.BinaryArray, framings: Framings) -> dict[int, tuple[FrameSettings, str]]:
    """Return the Kafka rows whose bodies start with a schema id, with frame settings and id."""
    kafka = pc.fill_null(pc.equal(rows.column("protocol"), KAFKA), False).combine_chunks()
    endpoints = pc.dictionary_encode(rows.column("endpoint").combine_chunks(), null_encoding="encode")
    codes = np.where(kafka.to_numpy(zero_copy_only=False), endpoints.indices.to_numpy(zero_copy_only=False), -1)
    found: dict[int, tuple[FrameSettings, str]] = {}
    for code, endpoint in enumerate(endpoints.dictionary.to_pylist()):
        frames = framings.get(endpoint or "", _AUTO)
        mine = np.flatnonzero(codes == code)
        if frames.framing == "none" or not len(mine):
            continue
        ids = find_frame_ids(bodies.take(pa.array(mine)), frames.framing)
        there = np.flatnonzero(ids.codes >= 0)
        found |= {int(mine[at]): (frames, ids.names[int(ids.codes[at])]) for at in there.tolist()}
    return found


def _group_by_writer(
    column: PayloadColumn, bodies: pa.BinaryArray, framed: Mapping[int, tuple[FrameSettings, str]]
) -> tuple[list[_BodyGroup], dict[int, bytes]]:
    """Group framed rows by writer schema; separately return bodies without frame for rows that may have none."""
    parts: dict[tuple[int, str, MessagePlace | None], _BodyGroup] = {}
    unsure: dict[int, bytes] = {}
    known: dict[tuple[int, str], WrittenSchema | None] = {}
    for row, (frames, name) in framed.items():
        registry, key = frames.registry, (id(frames), name)
        if key not in known:
            known[key] = registry.get_schema(name) if registry is not None else None
        written = known[key]
        inside = column.strip_frame(bodies[row].as_py(), frames.framing)
        if inside is None:
            continue
        data, place = inside
        if written is None and frames.framing == "auto" and name not in column.declared:
            if registry is None:
                unsure[row] = data
            continue
        part = parts.get((*key, place))
        if part is None:
            reads = WriterSchema(written, place) if written is not None else None
            part = parts[(*key, place)] = _BodyGroup(reads)
        part.bodies[row] = data
    return list(parts.values()), unsure


def _replace_bodies(bodies: pa.BinaryArray, replacements: Mapping[int, bytes]) -> pa.BinaryArray:
    if not replacements:
        return bodies
    mask = [False] * len(bodies)
    for row in replacements:
        mask[row] = True
    return pc.replace_with_mask(
        bodies, pa.array(mask), pa.array([replacements[row] for row in sorted(replacements)], bodies.type)
    )


# Schema evolution of a table with typed payloads: columns are added, never removed, and their types do not change.
#
# If a definition's schema changes, a new member becomes a new column, null in older rows; a removed member is null in
# newer rows. A member whose type changed uses its old column if all its values fit there (``int32`` into ``int64``),
# else an additional column named for the type (``level`` and ``level_string``).

_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int64(): (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
    pa.int32(): (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()),
    pa.int16(): (pa.int8(), pa.uint8()),
    pa.float64(): (pa.float32(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
}
"""Per type, the types whose values it can represent exactly."""


def evolve_schema(known: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema of a table with the columns *known* after adding what rows of schema *new* need.

    The columns of *known* come first, unchanged except for nested members that are added; new columns follow. Both
    schemas must have only nullable fields.
    """
    return pa.schema(_merge_fields(known, new))


def conform_rows(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Convert rows to the columns of *target*, a result of :func:`evolve_schema` for them; no value is lost."""
    rows = rows.combine_chunks()
    columns: dict[str, pa.Array] = {name: _combine_chunks(rows.column(name)) for name in rows.column_names}
    placed = _assign_arrays(columns, target)
    return pa.table([_get_or_nulls(placed, field, rows.num_rows) for field in target], schema=target)


def can_hold(known: pa.Schema, given: pa.Schema) -> bool:
    """Whether rows of schema *given* fit into *known* without any change of type; missing columns are null."""
    return _can_hold_members(list(known), list(given))


def _can_hold_members(known: Iterable[pa.Field], given: Iterable[pa.Field]) -> bool:
    types = {field.name: field.type for field in known}
    return all(field.name in types and _can_hold_type(types[field.name], field.type) for field in given)


def _can_hold_type(known: pa.DataType, given: pa.DataType) -> bool:
    if pa.types.is_struct(known) and pa.types.is_struct(given):
        return _can_hold_members(list(known), list(given))
    if pa.types.is_list(known) and pa.types.is_list(given):
        return _can_hold_type(known.value_type, given.value_type)
    if pa.types.is_map(known) and pa.types.is_map(given):
        return known.key_type.equals(given.key_type) and _can_hold_type(known.item_type, given.item_type)
    return bool(known.equals(given))


def _merge_fields(known: Iterable[pa.Field], new: Iterable[pa.Field]) -> list[pa.Field]:
    fields = {each.name: each.type for each in known}
    new = list(new)
    for each, home in zip(new, _assign_columns(fields, new), strict=True):
        joined = _merge_types(fields[home], each.type) if home in fields else each.type
        fields[home] = each.type if joined is None else joined
    return [pa.field(name, kind) for name, kind in fields.items()]


def _assign_columns(known: Mapping[str, pa.DataType], new: Sequence[pa.Field]) -> list[str]:
    """Return for each new member the column for its values, an existing or a new one.

    Names that differ only in case share a column, since many table readers ignore case.
    """
    spelt = {name.lower(): name for name in known}
    targets: dict[int, str] = {}
    for place, each in enumerate(new):
        name = spelt.get(each.name.lower(), each.name)
        if name not in known or _merge_types(known[name], each.type) is not None:
            targets[place] = name
    taken = set(targets.values())
    for place, each in enumerate(new):
        if place not in targets:
            beside = next(
                name
                for name in _iter_numbered_names(f"{spelt[each.name.lower()]}_{_get_type_label(each.type)}")
                if name not in taken and (name not in known or _merge_types(known[name], each.type) is not None)
            )
            targets[place] = beside
            taken.add(beside)
    return [targets[place] for place in range(len(new))]


def _iter_numbered_names(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}_{number}"


def _merge_types(known: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type for values of both types, equal to *known* except for added members; None if there is none."""
    if known.equals(new) or new in _WIDER.get(known, ()):
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return pa.struct(_merge_fields(list(known), list(new)))
    if pa.types.is_list(known) and pa.types.is_list(new):
        inner = _merge_types(known.value_type, new.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(known) and pa.types.is_map(new) and known.key_type.equals(new.key_type):
        inner = _merge_types(known.item_type, new.item_type)
        return None if inner is None else pa.map_(known.key_type, inner)
    return None


def _get_type_label(kind: pa.DataType) -> str:
    for label in ("struct", "list", "map", "decimal", "timestamp"):
        if str(kind).startswith(label):
            return label
    return str(kind).replace("date32[day]", "date")


def _assign_arrays(columns: Mapping[str, pa.Array], target: Iterable[pa.Field]) -> dict[str, pa.Array]:
    """Return the columns by their names in *target*, cast to its types."""
    fields = {field.name: field.type for field in target}
    names = _assign_columns(fields, [pa.field(name, column.type) for name, column in columns.items()])
    return {name: _cast(column, fields[name]) for name, column in zip(names, columns.values(), strict=True)}


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        members = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        placed = _assign_arrays(members, kind)
        columns = [_get_or_nulls(placed, field, len(column)) for field in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        offsets = _find_offsets(column)
        return pa.ListArray.from_arrays(offsets, _cast(column.flatten(), kind.value_type), type=kind, mask=mask)
    if pa.types.is_map(kind):
        pairs = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", column.type.item_type)])))
        keys, items = pairs.flatten().flatten()
        return pa.MapArray.from_arrays(_find_offsets(pairs), keys, _cast(items, kind.item_type), type=kind, mask=mask)
    return column.cast(kind)


def _find_offsets(column: pa.Array) -> pa.Array:
    """Return offsets into the array's flattened values, also for a slice; nulls are empty lists."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])


def _get_or_nulls(placed: Mapping[str, pa.Array], field: pa.Field, rows: int) -> pa.Array:
    member = placed.get(field.name)
    return pa.nulls(rows, field.type) if member is None else member


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
