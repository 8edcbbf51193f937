"""Payload columns: shapes of schemas, their Arrow types, and arrays of decoded values; and sample payloads."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from xml.sax.saxutils import quoteattr

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.model import Catalog, Definition
from catalog.parsing.pointers import to_pointer
from catalog.schemas.contract import (
    MAX_BODY_BYTES,
    MAX_FAULTS,
    Library,
    MessagePlace,
    SchemaError,
    SchemaSource,
    UnfitValue,
    WriterSchema,
    clip,
    is_json_data,
    make_fault,
    unusable_schema_message,
)
from catalog.schemas.families import family_of
from catalog.schemas.filling import Chooser, PayloadSampler, UnsupportedSchema
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import SchemaIdRule, strip_frame
from catalog.schemas.library import CatalogLibrary, schema_source
from catalog.schemas.validation import MAX_RESOLVED, BoundedValidation
from catalog.values import media_type_of

# The shape of payloads, independent of the schema's family, and its Arrow type.

Kind = Literal[
    "text",
    "json",
    "numeral",
    "boolean",
    "integer",
    "written integer",
    "number",
    "decimal",
    "binary",
    "timestamp",
    "local timestamp",
    "date",
]
MAX_PRECISION: Final = 38
"""The maximum precision of decimals in Delta, Spark and Parquet."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without members or items.

    ``json`` is JSON text for a value without a column type, ``numeral`` a number stored as text because no type is
    large enough, ``written integer`` an integer that JSON writes as text. ``low`` and ``high`` are the inclusive bounds
    of integers.
    """

    kind: Kind
    type: pa.DataType
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a struct: ``name`` in the payload, ``column`` in the table."""

    name: str
    column: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Struct:
    """At least one named value. *positional* structs are JSON arrays in the order of the members."""

    members: tuple[Member, ...]
    positional: bool = False


@dataclass(frozen=True, slots=True)
class ListShape:
    """A list of values of one shape."""

    item: Shape


@dataclass(frozen=True, slots=True)
class MapShape:
    """A map of keys to values of one shape."""

    value: Shape
    key: Leaf


Shape: TypeAlias = Leaf | Struct | ListShape | MapShape

TEXT: Final = Leaf("text", pa.string())
JSON: Final = Leaf("json", pa.string())
BOOLEAN: Final = Leaf("boolean", pa.bool_())
BINARY: Final = Leaf("binary", pa.binary())
DATE: Final = Leaf("date", pa.date32())
TIMESTAMP: Final = Leaf("timestamp", pa.timestamp("us", "UTC"))
LOCAL_TIMESTAMP: Final = Leaf("local timestamp", pa.timestamp("us"))
DOUBLE: Final = Leaf("number", pa.float64())
FLOAT: Final = Leaf("number", pa.float32())
_SIGNED: Final = ((7, pa.int8()), (15, pa.int16()), (31, pa.int32()), (63, pa.int64()))


def integer_leaf(bits: int, *, signed: bool = True, written: bool = False) -> Leaf:
    """Return the leaf of an integer type; *written* if JSON writes it as text.

    Tables have only signed integers: an unsigned type becomes the next larger one, 64 bits ``decimal(20, 0)``. Types
    with more than :data:`MAX_PRECISION` digits become text.
    """
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if len(str(high)) > MAX_PRECISION:
        return Leaf("numeral", pa.string(), low, high)
    needed = bits - 1 if signed else bits
    kind = next((kind for room, kind in _SIGNED if needed <= room), pa.decimal128(len(str(high)), 0))
    return Leaf("written integer" if written else "integer", kind, low, high)


def decimal_leaf(precision: Any, scale: Any) -> Leaf:
    """Return the leaf of a decimal; text if precision and scale are unknown or too large."""
    usable = (
        type(precision) is int and type(scale) is int and 0 < precision <= MAX_PRECISION and 0 <= scale <= precision
    )
    return Leaf("decimal", pa.decimal128(precision, scale)) if usable else Leaf("numeral", pa.string())


def arrow_type(shape: Shape) -> pa.DataType:
    """Return the Arrow type of a shape; all fields are nullable."""
    if isinstance(shape, Struct):
        return pa.struct([pa.field(member.column, arrow_type(member.shape)) for member in shape.members])
    if isinstance(shape, ListShape):
        return pa.list_(pa.field("element", arrow_type(shape.item)))
    if isinstance(shape, MapShape):
        return pa.map_(arrow_type(shape.key), arrow_type(shape.value))
    return shape.type


# Building an Arrow array of a shape from decoded values.
#
# The array is built at once, and value by value only where that fails. Then the smallest nullable value around a value
# that does not fit is null: a member of a struct, an item of a list, a value of a map, or a map with such a key.

Getters = Sequence[Callable[[Any], Any]]
"""The getters of a struct's members, in order; each gets the member's value from a struct value that is not None."""
ToJson = Callable[[Any], str | None]
"""Returns the JSON text of a value at a ``json`` leaf; None for null."""
Report = Callable[[int, str, str], None]
"""Called for each value that is null because it does not fit: its index, its column path, and the reason."""
Build = Callable[[list[Any], Report | None], pa.Array]
"""Builds an array; without a report, raises one of _REFUSALS for a value that does not fit."""
_REFUSALS: Final = (pa.ArrowException, ValueError, OverflowError, TypeError, AttributeError)
_AT_ONCE: Final = 256
"""If building all values fails, they are built in groups of this size, and groups that fail one by one."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # without zone, like the values
_MICROSECONDS: Final = pa.duration("us")
_FIRST: Final = -62_135_596_800_000_000
_LAST: Final = 253_402_300_799_999_999
"""Microseconds since 1970 of the first and last moment of the years 1 to 9999, which all readers support."""


Misfits = dict[str, tuple[str, list[int]]]
"""The values that do not fit, by column path (``readings.element.at``): the reason of the first, and their indexes."""


class ColumnBuilder:
    """Builds arrays of one shape.

    *getters* returns the getters of a struct's members, *to_json* the JSON text of a value at a ``json`` leaf. List
    values are lists, map values dicts.
    """

    def __init__(self, shape: Shape, getters: Callable[[Struct], Getters], to_json: ToJson) -> None:
        self.type = arrow_type(shape)
        self._build = self._compile(shape, getters, to_json)

    def build_array(self, values: list[Any]) -> tuple[pa.Array, Misfits]:
        """Return the array of *values* (None is null), and the values that do not fit."""
        misfits: Misfits = {}
        try:
            return self._build(values, None), misfits
        except _REFUSALS:
            array = self._build(values, lambda row, column, why: misfits.setdefault(column, (why, []))[1].append(row))
            return array, misfits

    def _compile(self, shape: Shape, getters: Callable[[Struct], Getters], to_json: ToJson) -> Build:
        if isinstance(shape, Struct):
            inner = [self._compile(member.shape, getters, to_json) for member in shape.members]
            return _struct_builder(arrow_type(shape), inner, getters(shape))
        if isinstance(shape, ListShape):
            return _list_builder(arrow_type(shape), self._compile(shape.item, getters, to_json))
        if isinstance(shape, MapShape):
            key = self._compile(shape.key, getters, to_json)
            return _map_builder(arrow_type(shape), key, self._compile(shape.value, getters, to_json))
        return _leaf_builder(shape, to_json)


def _leaf_builder(leaf: Leaf, to_json: ToJson) -> Build:
    def build_plain(values: list[Any]) -> pa.Array:
        return pa.array(values, leaf.type)

    def build_json(values: list[Any]) -> pa.Array:
        return pa.array([None if value is None else to_json(value) for value in values], leaf.type)

    def build_numerals(values: list[Any]) -> pa.Array:
        return pa.array([f"{value:f}" if isinstance(value, Decimal) else value for value in values], leaf.type)

    build: Callable[[list[Any]], pa.Array] = {"json": build_json, "numeral": build_numerals}.get(leaf.kind, build_plain)
    if leaf.kind in ("timestamp", "local timestamp"):
        build = _instant_builder(leaf.type, _EPOCH if leaf.kind == "timestamp" else _LOCAL_EPOCH)
    return lambda values, report: build(values if report is None else _null_unfit_values(build, values, report))


def _null_unfit_values(build: Callable[[list[Any]], pa.Array], values: list[Any], report: Report) -> list[Any]:
    """Return the values with None for those that do not fit the leaf, and report them."""
    values = _null_marked_values(values, report)
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


def _null_marked_values(values: list[Any], report: Report) -> list[Any]:
    """Return the values with None for those that the reader marked as unfit, and report them."""
    checked = list(values)
    for at, value in enumerate(values):
        if type(value) is UnfitValue:
            report(at, "", value.why)
            checked[at] = None
    return checked


def _instant_builder(kind: pa.TimestampType, epoch: datetime) -> Callable[[list[Any]], pa.Array]:
    def build(values: list[Any]) -> pa.Array:
        # Arrow reads durations ten times faster than instants with a zone.
        passed = pa.array([None if value is None else value - epoch for value in values], _MICROSECONDS)
        numbers = passed.view(pa.int64())
        ends = pc.min_max(numbers).as_py()
        if ends["min"] is not None and not _FIRST <= ends["min"] <= ends["max"] <= _LAST:
            raise ValueError("an instant lies outside of the years 1 to 9999")
        return numbers.view(kind)

    return build


def _struct_builder(kind: pa.StructType, inner: list[Build], getters: Getters) -> Build:
    fields = list(kind)

    def build(values: list[Any], report: Report | None) -> pa.Array:
        if report is not None:
            values = _null_marked_values(values, report)
        missing = [value is None for value in values]
        is_whole = not any(missing)
        arrays = []
        for each, get, member in zip(inner, getters, fields, strict=True):
            parts = map(get, values) if is_whole else (None if value is None else get(value) for value in values)
            arrays.append(each(list(parts), report and _nested_report(report, member.name)))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=None if is_whole else pa.array(missing))

    return build


def _list_builder(kind: pa.ListType, item: Build) -> Build:
    def build(values: list[Any], report: Report | None) -> pa.Array:
        if report is not None:
            values = _null_marked_values(values, report)
        offsets, present = _list_offsets(values)
        below = report and _nested_report(report, kind.value_field.name, _owner_positions(values))
        return pa.ListArray.from_arrays(offsets, item(list(chain.from_iterable(present)), below), type=kind)

    return build


def _map_builder(kind: pa.MapType, key: Build, inner: Build) -> Build:
    def build(values: list[Any], report: Report | None) -> pa.Array:
        owners: list[int] = []
        if report is not None:
            values = _null_marked_values(values, report)
            _null_unfit_maps(key, values, report)
            owners = _owner_positions(values)
        offsets, present = _list_offsets(values)
        keys = key(list(chain.from_iterable(present)), None)
        items = inner(
            [item for value in present for item in value.values()],
            report and _nested_report(report, kind.item_field.name, owners),
        )
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)

    return build


def _null_unfit_maps(key: Build, values: list[Any], report: Report) -> None:
    """Set maps with a key that does not fit to None, because keys cannot be null."""
    owners, unfit = _owner_positions(values), dict[int, str]()
    key([each for value in values if value is not None for each in value], lambda at, _, why: unfit.update({at: why}))
    for owner, why in {owners[at]: why for at, why in unfit.items()}.items():
        report(owner, "", why)
        values[owner] = None


def _owner_positions(values: list[Any]) -> list[int]:
    """Return, for each part of the values that are not None, the index of the value that it is in."""
    return [at for at, value in enumerate(values) if value is not None for _ in value]


def _nested_report(report: Report, name: str, owners: list[int] | None = None) -> Report:
    """Return the report of a nested column; *owners* are the outer indexes of its values, None if they are equal."""

    def report_nested(at: int, column: str, why: str) -> None:
        report(at if owners is None else owners[at], f"{name}.{column}" if column else name, why)

    return report_nested


def _list_offsets(values: list[Any]) -> tuple[pa.Array, list[Any]]:
    """Return the offsets of the values, null for a null value, and the values that are not None."""
    missing = [value is None for value in values]
    present = [value for value in values if value is not None] if any(missing) else values
    lengths = np.zeros(len(values) + 1, np.int64)
    lengths[1:][~np.asarray(missing, bool)] = list(map(len, present))
    offsets = np.cumsum(lengths)
    mask = np.asarray([*missing, False]) if any(missing) else None
    return pa.array(offsets, pa.int32(), mask=mask), present


# The interface of the families' body readers.

TOO_LARGE: Final = f"bodies of more than {MAX_BODY_BYTES} bytes are not looked into"


class UnreadableBody(Exception):
    """A body cannot be parsed; ``place`` is a JSON pointer or a dotted field path."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place

    @property
    def why(self) -> str:
        """Place and message, sanitized."""
        return str(make_fault(str(self), self.place))


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A body that cannot be parsed, with its row and the reason, or the values that do not fit a column.

    ``column`` is the column's path in the payload, empty for the payload itself, None for a body. ``values`` is the
    number of values that do not fit, in ``rows``, of which ``row`` is the first.
    """

    row: int
    why: str
    column: str | None = None
    values: int = 1
    rows: tuple[int, ...] = field(default=(), compare=False, repr=False)


class BodyReader(ABC):
    """Reads bodies of one schema, and gives :class:`ColumnBuilder` access to the parts of their values."""

    def read(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None]
    ) -> tuple[list[Any], list[Undecoded]]:
        """Return a value per row, None if the body is absent or reported in the second list."""
        values: list[Any] = []
        undecoded: list[Undecoded] = []
        for row, (body, content_type) in enumerate(zip(bodies, content_types, strict=True)):
            value = None
            if body is not None:
                try:
                    if len(body) > MAX_BODY_BYTES:
                        raise UnreadableBody(TOO_LARGE)
                    value = self.read_value(body, content_type)
                except UnreadableBody as error:
                    undecoded.append(Undecoded(row, error.why))
            values.append(value)
        return values, undecoded

    @abstractmethod
    def read_value(self, body: bytes, content_type: str | None) -> Any:
        """Return the value of a body; a part with a wrong type is an :class:`~catalog.schemas.contract.UnfitValue`.

        Raises:
            UnreadableBody: it cannot be parsed.
        """

    @abstractmethod
    def getters_of(self, struct: Struct) -> Getters:
        """Return the getters of the struct's members."""

    @abstractmethod
    def to_json(self, value: Any) -> str | None:
        """Return the JSON text of a value at a ``json`` leaf; None for null."""


# Column names: characters that Parquet and Delta forbid are escaped, and names that differ only by case are numbered.
#
# ``{"unit price": …}`` becomes the column ``unit_20price``; beside ``Id`` a member ``id`` becomes ``id_2``.

_FORBIDDEN: Final = re.compile(r"[ ,;{}()=\x00-\x1f\x7f]")


def column_names(names: Sequence[str]) -> list[str]:
    """Return one column name for each of *names*, unique without regard to letter case.

    A name that needs no change takes precedence over escaped ones; of names that collide, the first is unchanged.
    """
    escaped = [_FORBIDDEN.sub(lambda match: f"_{ord(match[0]):02X}", name) or "_" for name in names]
    chosen: dict[int, str] = {}
    taken: set[str] = set()
    waiting = []
    for at, (name, column) in enumerate(zip(names, escaped, strict=True)):
        if name == column and column.casefold() not in taken:
            chosen[at] = column
            taken.add(column.casefold())
        else:
            waiting.append(at)
    for at in waiting:
        chosen[at] = _find_free_name(escaped[at], taken)
        taken.add(chosen[at].casefold())
    return [chosen[at] for at in range(len(names))]


def _find_free_name(column: str, taken: set[str]) -> str:
    number, free = 1, column
    while free.casefold() in taken:
        number += 1
        free = f"{column}_{number}"
    return free


# Findings and limits while the columns of one schema are determined.

MAX_FIELDS: Final = 2_000
"""Maximum number of struct fields at all levels; with more, readers open the table slowly."""
MAX_LEVELS: Final = 32
"""Maximum nesting of structs, lists and maps."""
MAX_STEPS: Final = 50_000
"""Maximum number of subschemas visited; references and alternatives may multiply them."""
Path = tuple[str, ...]
"""A path in the payload: names of members, ``*`` for the items of a list or the values of a map."""


class Survey:
    """Collects findings about the columns of one schema, and enforces the limits."""

    def __init__(self) -> None:
        self._findings: dict[str, None] = {}
        self.fields = 0
        """Struct fields so far; a caller that discards a part of the shape must subtract its fields."""
        self._steps = 0

    @property
    def findings(self) -> tuple[str, ...]:
        """The distinct findings, at most :data:`~catalog.schemas.contract.MAX_FAULTS`, and a note if there are more."""
        more = ["and more places, which are not listed"] if len(self._findings) > MAX_FAULTS else []
        return (*list(self._findings)[:MAX_FAULTS], *more)

    def add_finding(self, path: Path, what: str) -> None:
        """Add a finding: *what* is the rest of a sentence whose subject is the path."""
        if len(self._findings) > 2 * MAX_FAULTS:
            return  # more than are reported, since some may still be replaced
        self._findings[clip(f"{to_pointer(list(path)) or 'the payload'} {what}")] = None

    def add_json_text(self, path: Path, why: str) -> Leaf:
        """Add the finding that a path stays JSON text, replacing all findings at and below it; return the leaf."""
        place = to_pointer(list(path))
        self._findings = {
            finding: None for finding in self._findings if not finding.startswith((f"{place}/", f"{place} "))
        }
        self.add_finding(path, f"stays JSON text: {why}")
        return JSON

    def check_limits(self, path: Path) -> str:
        """Count one visited subschema; return which limit is exceeded, empty if none."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            return "the schema has too many parts to look into"
        return f"it lies more than {MAX_LEVELS} levels deep" if len(path) > MAX_LEVELS else ""

    def build_struct(self, path: Path, names: Sequence[str], make: Callable[[int, str, str], Member]) -> Struct | Leaf:
        """Return the struct of members with these names; JSON text if it has none, or too many.

        *make* returns a member by its index, name and column.
        """
        if not names:
            return self.add_json_text(path, "it has no fields")
        columns = self.assign_columns(path, names)
        if not columns:
            return self.add_json_text(path, "the payload has too many fields")
        return Struct(tuple(make(at, name, column) for at, (name, column) in enumerate(columns)))

    def assign_columns(self, path: Path, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return name and column of each member of a struct within the limit of fields.

        Excess members of the payload itself are omitted; a nested struct that exceeds the limit gets no columns.
        """
        room = MAX_FIELDS - self.fields
        if len(names) > room and path:
            return []
        if len(names) > room:
            self.add_finding(path, f"has {len(names)} members; those after the first {room} are no columns")
            names = names[:room]
        self.fields += len(names)
        columns = column_names(names)
        for name, column in zip(names, columns, strict=True):
            if name != column:
                self.add_finding((*path, name), f"is the column {column}")
        return list(zip(names, columns, strict=True))


# The column ``payload`` of a definition's table: its type from the data schema, and its values from bodies.
#
# A value that does not fit its column is null, and is reported, so that it can be distinguished from an absent value.
# A payload is null if its body cannot be parsed. The column ``data`` always has the bytes.

NOT_LOADED: Final = "the payload has no columns: its schema was not loaded, or is of an unknown format"
WHOLE: Final = "value"
"""The only field of payloads that are not objects."""


class PayloadColumn:
    """The payload column of one definition: its type, and decoding of bodies to values.

    ``type`` is the struct of the column; ``findings`` list the parts without a type, with JSON pointers (``*`` for all
    items of a list or values of a map), at most fifty. The same catalog gives the same type. ``declared`` are the
    schema ids that the definition declares, ``framed`` says whether its bodies may have frames. Not thread-safe, and
    not picklable: create it where it is used.
    """

    def __init__(
        self,
        source: SchemaSource,
        library: Library,
        shape: Shape,
        reader: BodyReader,
        findings: tuple[str, ...] = (),
        declared: frozenset[str] = frozenset(),
    ) -> None:
        self._source = source
        self._library = library
        self._family = family_of(source.family)
        self._reader = reader
        self._written: dict[tuple[str, str, MessagePlace], BodyReader] = {}
        self._columns = ColumnBuilder(shape, reader.getters_of, reader.to_json)
        self.declared = declared
        self.framed = self._family.frames != "never"
        self._is_whole = not isinstance(shape, Struct)
        kind = self._columns.type
        self.type: pa.StructType = pa.struct([pa.field(WHOLE, kind)]) if self._is_whole else kind
        self.findings = findings

    def decode(
        self,
        bodies: pa.BinaryArray,
        content_types: pa.StringArray | Sequence[str | None],
        written: WriterSchema | None = None,
    ) -> tuple[pa.StructArray, tuple[Undecoded, ...]]:
        """Return the payloads of *bodies*, one per row, and what is null because it cannot be parsed or does not fit.

        Bodies that cannot be parsed are reported one by one, values that do not fit by column. An absent body has a
        null payload and is not reported. Content types choose the encoding for Avro and Protobuf. Bodies *written*
        with another schema are resolved to the definition's. Never raises because of a body.
        """
        types = content_types.to_pylist() if isinstance(content_types, pa.Array | pa.ChunkedArray) else content_types
        if written is not None and written.schema.fault:
            why = unusable_schema_message(written.schema)
            return pa.nulls(len(bodies), self.type), tuple(Undecoded(row, why) for row in range(len(bodies)))
        reader = self._reader if written is None else self._reader_for(written)
        values, undecoded = reader.read(bodies.to_pylist(), types)
        array, misfits = self._columns.build_array(values)
        for path, (why, rows) in misfits.items():
            column = ".".join(filter(None, (WHOLE if self._is_whole else "", path)))
            undecoded.append(Undecoded(rows[0], clip(why), column, len(rows), tuple(rows)))
        undecoded.sort(key=lambda each: (each.row, each.column or ""))
        if self._is_whole:
            present = np.array(array.is_valid())
            present[[row for _, rows in misfits.values() for row in rows]] = True
            array = pa.StructArray.from_arrays([array], fields=list(self.type), mask=pa.array(~present))
        return array, tuple(undecoded)

    def strip_frame(self, body: bytes, framing: Framing) -> tuple[bytes, MessagePlace] | None:
        """Return the bytes after the frame of a body, and the message in the schema's file; None without a frame."""
        found = strip_frame(body, framing, names_message=self._family.frames == "message")
        return found if isinstance(found, tuple) else None

    def _reader_for(self, written: WriterSchema) -> BodyReader:
        """Return the cached reader for bodies of a writer's schema."""
        if written.schema.family != self._source.family or not self._family.resolves:
            return self._reader
        key = (written.schema.id, written.schema.document, written.message)
        if key not in self._written:
            if len(self._written) >= MAX_RESOLVED:
                self._written.clear()
            source = replace(self._source, written=written)
            columns = self._family.open_columns(source, self._library, Survey())
            self._written[key] = columns[1] if columns is not None else self._reader
        return self._written[key]


def payload_column(catalog: Catalog, xid: str) -> PayloadColumn | None:
    """Return the payload column of a definition; None without a schema, or for a family without columns (XSD).

    Raises:
        KeyError: the catalog has no such definition.
    """
    return _open_payload_column(catalog, xid)[0]


def payload_findings(catalog: Catalog, xid: str) -> tuple[str, ...]:
    """Return the findings of a definition's payload column, or why there is none; empty if it names no schema."""
    return _open_payload_column(catalog, xid)[1]


def _open_payload_column(catalog: Catalog, xid: str) -> tuple[PayloadColumn | None, tuple[str, ...]]:
    definition = catalog.definitions[xid]
    source = schema_source(definition, catalog.schemas)
    if source is None:
        named = definition.dataschemauri or definition.dataschemaxid or definition.dataschema is not None
        return None, (NOT_LOADED,) if named else ()
    survey, library = Survey(), CatalogLibrary(catalog.schemas)
    try:
        columns = family_of(source.family).open_columns(source, library, survey)
    except SchemaError as error:
        survey.add_finding((), f"has no columns: {error}")
        columns = None
    except RecursionError:
        survey.add_finding((), "has no columns: the schema refers on and on")
        columns = None
    if columns is None:
        return None, survey.findings
    shape, reader = columns
    declared = SchemaIdRule(catalog.schemas).declared_ids(definition, None)
    ids = declared.ids if declared is not None else frozenset[str]()
    return PayloadColumn(source, library, shape, reader, survey.findings, ids), survey.findings


# Sample payloads of a definition, checked by its schema's validator.

_FULLNESS: Final = (1.0, 1.0, 0.8, 0.8, 0.5, 0.5, 0.3, 0.3, 0.0, 0.0)
"""The share of optional parts included in each attempt; parts that cannot be made are often optional."""


class GeneratedPayload(NamedTuple):
    """Data for one message; ``doubt`` says why the data may be invalid, and is empty if they are valid."""

    data: bytes | None
    doubt: str = ""


class PayloadMaker:
    """Makes sample data for the messages of one definition.

    Without a schema, data are a small JSON object, XML element or line of text, and None for other content types.
    """

    def __init__(self, definition: Definition, catalog: Catalog) -> None:
        self._definition = definition
        self._library = CatalogLibrary(catalog.schemas)
        self._source = schema_source(definition, catalog.schemas)

    @property
    def family(self) -> str | None:
        """The family of the schema; None if the definition has no loaded schema."""
        return self._source.family if self._source else None

    def make(self, content_type: str, number: int, rng: random.Random, now: str) -> GeneratedPayload:
        """Make data in the encoding of *content_type*; *number* counts messages, *now* is RFC 3339 text.

        Several attempts are made until the schema's validator accepts one. If none is valid, or the schema cannot be
        compiled, the result is the last attempt (or else data as without a schema), with a doubt.
        """
        if self._source is None:
            return GeneratedPayload(self._make_without_schema(content_type, number), self._missing_schema_reason)
        try:
            payload = self._make_valid(content_type, rng, now)
        except (UnsupportedSchema, SchemaError) as error:
            payload = GeneratedPayload(None, str(error))
        if not payload.doubt:
            return payload
        data = self._make_without_schema(content_type, number) if payload.data is None else payload.data
        return GeneratedPayload(data, f"{self.schema}: {payload.doubt}")

    def _make_valid(self, content_type: str, rng: random.Random, now: str) -> GeneratedPayload:
        """Return the first attempt that is valid, else the last attempt and what is wrong with it."""
        validator, sampler = self._tools
        last = GeneratedPayload(None)
        for fullness in _FULLNESS:
            try:
                data = sampler.payload(Chooser(rng, now, fullness), content_type)
            except UnsupportedSchema as error:
                last = GeneratedPayload(last.data, str(error))
                continue
            fault = validator.fault(data, content_type)
            if fault is None:
                return GeneratedPayload(data)
            last = GeneratedPayload(data, str(fault))
        return last

    @property
    def schema(self) -> str:
        """The name of the schema in reports: its key and type name."""
        name = self._definition.schemaname
        return f"{self._definition.schemakey or self._definition.dataschemauri}{f':{name}' if name else ''}"

    @property
    def _missing_schema_reason(self) -> str:
        """Why the schema that the definition names is missing; empty if it names none."""
        definition = self._definition
        named = (
            definition.dataschemauri or definition.dataschemaxid or ("" if definition.dataschema is None else "inline")
        )
        return (
            f"its schema ({named}) was not loaded, or is of an unknown format; `xrouter check` says why"
            if named
            else ""
        )

    @cached_property
    def _tools(self) -> tuple[BoundedValidation, PayloadSampler]:
        """Validator and sampler; the schema must compile first, since samplers expect a valid one."""
        assert self._source is not None  # make() returns before if there is no schema
        validator = BoundedValidation(self._source, self._library)
        return validator, family_of(self._source.family).open_sampler(self._source, self._library)

    def _make_without_schema(self, content_type: str, number: int) -> bytes | None:
        media = media_type_of(content_type)
        if is_json_data(content_type):
            return msgspec.json.encode({"message": self._definition.messageid, "number": number})
        if media.endswith(("/xml", "+xml")):
            return f"<message name={quoteattr(self._definition.messageid)} number='{number}'/>".encode()
        if media.startswith("text/"):
            return f"{self._definition.messageid} {number}".encode()
        return None
