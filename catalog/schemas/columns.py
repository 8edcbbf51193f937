"""Payloads as columns: shapes of schemas, their Arrow types, and arrays made of decoded values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.parsing.pointers import as_pointer
from catalog.schemas.contract import MAX_BODY_BYTES, UnfitValue, fault, short

# What a payload looks like as columns: the shape of one schema, whatever its format, and the Arrow type of a shape.

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
"""Digits of the largest decimal that Delta, Spark and Parquet's readers share."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value without parts.

    ``json`` is the JSON text of a value that has no type of its own, ``numeral`` a number kept as text because no type
    holds it, ``written integer`` one that JSON writes as text. ``low`` and ``high`` are the bounds of integers and of
    numerals that are integers, both included.
    """

    kind: Kind
    type: pa.DataType
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a struct: ``name`` as the payload writes it, ``column`` as the table has it."""

    name: str
    column: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Struct:
    """Named values; at least one. ``positional`` ones are written as a JSON array in the order of the members."""

    members: tuple[Member, ...]
    positional: bool = False


@dataclass(frozen=True, slots=True)
class ListShape:
    """Any number of values of one shape."""

    item: Shape


@dataclass(frozen=True, slots=True)
class MapShape:
    """Values of one shape by key."""

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


def integer(bits: int, *, signed: bool = True, written: bool = False) -> Leaf:
    """Return the leaf of an integer type; ``written`` when JSON writes it as text.

    Tables know signed integers only: an unsigned type takes the next larger one, 64 bits ``decimal(20, 0)``, and what
    may have more than :data:`MAX_PRECISION` digits stays text.
    """
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if len(str(high)) > MAX_PRECISION:
        return Leaf("numeral", pa.string(), low, high)
    needed = bits - 1 if signed else bits
    kind = next((kind for room, kind in _SIGNED if needed <= room), pa.decimal128(len(str(high)), 0))
    return Leaf("written integer" if written else "integer", kind, low, high)


def decimal(precision: Any, scale: Any) -> Leaf:
    """Return the leaf of a decimal: exact, or text when precision and scale are unknown or too large."""
    usable = (
        type(precision) is int and type(scale) is int and 0 < precision <= MAX_PRECISION and 0 <= scale <= precision
    )
    return Leaf("decimal", pa.decimal128(precision, scale)) if usable else Leaf("numeral", pa.string())


def arrow_type(shape: Shape) -> pa.DataType:
    """Return the type of the column that values of a shape make; every field in it may be null."""
    if isinstance(shape, Struct):
        return pa.struct([pa.field(member.column, arrow_type(member.shape)) for member in shape.members])
    if isinstance(shape, ListShape):
        return pa.list_(pa.field("element", arrow_type(shape.item)))
    if isinstance(shape, MapShape):
        return pa.map_(arrow_type(shape.key), arrow_type(shape.value))
    return shape.type


# From decoded values, row by row, to one Arrow array of a shape.
#
# The array is built at once, and again value by value only where that fails. Then the smallest thing around a value
# that does not fit, and that may be null, is null: a member of a struct, an item of a list, a value of a map, or a map
# with such a key.

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


class ColumnBuilder:
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
        if isinstance(shape, ListShape):
            return _sequence(arrow_type(shape), self._compiled(shape.item, take, text))
        if isinstance(shape, MapShape):
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


# What every format's reader of bodies keeps to.

TOO_LARGE: Final = f"bodies of more than {MAX_BODY_BYTES} bytes are not looked into"


class UnreadableBody(Exception):
    """A body that does not parse; ``place`` is a JSON pointer or a dotted field path."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place

    @property
    def why(self) -> str:
        """Place and message, safe to hand on whatever the body put into them."""
        return str(fault(str(self), self.place))


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A body that does not parse, with its row in the batch and why, or what does not fit a column.

    ``column`` is that column's path below the payload, empty for the payload itself, None for a body; ``values`` are
    how many do not fit it, of which ``row`` is that of the first.
    """

    row: int
    why: str
    column: str | None = None
    values: int = 1


class BodyReader(Protocol):
    """Reads bodies by one schema, and takes their values apart for :class:`catalog.schemas.columns.ColumnBuilder`."""

    def read(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None]
    ) -> tuple[list[Any], list[Undecoded]]:
        """Return a value per row, None where the body is absent or reported in the second list.

        A part of a value that is not of its type is an :class:`~catalog.schemas.contract.UnfitValue`.
        """
        ...

    def take(self, struct: Struct) -> Take:
        """Return what takes the value of that struct apart."""
        ...

    def text(self, value: Any) -> str | None:
        """Return the JSON text of a value at a ``json`` leaf; None for null."""
        ...


def present(
    bodies: Sequence[bytes | None], content_types: Sequence[str | None], undecoded: list[Undecoded]
) -> Iterator[tuple[int, bytes | None, str | None]]:
    """Give row, body and content type of each row; one that is too large is reported, and given as absent."""
    for row, (body, content_type) in enumerate(zip(bodies, content_types, strict=True)):
        if body is not None and len(body) > MAX_BODY_BYTES:
            undecoded.append(Undecoded(row, TOO_LARGE))
            yield row, None, content_type
        else:
            yield row, body, content_type


# Names of columns: what Parquet and Delta forbid is escaped, and names that readers would take for one are kept apart.
#
# ``{"unit price": …}`` becomes the column ``unit_20price``; beside ``Id`` a member ``id`` becomes ``id_2``.

_FORBIDDEN: Final = re.compile(r"[ ,;{}()=\x00-\x1f\x7f]")


def column_names(names: Sequence[str]) -> list[str]:
    """Return one column name for each of *names*, all different without regard to letter case.

    Names that need no change keep it whatever stands before them; of those that collide the first is kept.
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
        chosen[at] = _free(escaped[at], taken)
        taken.add(chosen[at].casefold())
    return [chosen[at] for at in range(len(names))]


def _free(column: str, taken: set[str]) -> str:
    number, free = 1, column
    while free.casefold() in taken:
        number += 1
        free = f"{column}_{number}"
    return free


# One walk over one schema: what could not be typed and where, and the bounds that no schema may pass.

MAX_FIELDS: Final = 2_000
"""Fields of structs, at all levels together: more no reader opens in good time, and no one reads."""
MAX_LEVELS: Final = 32
"""Structs, lists and maps within each other."""
MAX_STEPS: Final = 50_000
"""Subschemas that are looked into; references and alternatives may multiply them."""
MAX_FINDINGS: Final = 50
Path = tuple[str, ...]
"""Where in the payload: names of members, ``*`` for all items of a list or all values of a map."""


class Survey:
    """Collects findings, and counts. One object serves one schema."""

    def __init__(self) -> None:
        self._findings: dict[str, None] = {}
        self.fields = 0
        """Fields of structs so far; who takes back a part of the shape takes back its fields."""
        self._steps = 0

    @property
    def findings(self) -> tuple[str, ...]:
        """What was noted, each once, at most :data:`MAX_FINDINGS`, and whether there are more."""
        more = ["and more places, which are not listed"] if len(self._findings) > MAX_FINDINGS else []
        return (*list(self._findings)[:MAX_FINDINGS], *more)

    def note(self, path: Path, what: str) -> None:
        """Note a finding: *what* is the end of a sentence whose subject is the place."""
        if len(self._findings) > 2 * MAX_FINDINGS:
            return  # some may yet be taken back, so there are more than are reported
        self._findings[short(f"{as_pointer(list(path)) or 'the payload'} {what}")] = None

    def text(self, path: Path, why: str) -> Leaf:
        """Note that a place stays JSON text, instead of what was noted there and below; return the leaf of it."""
        place = as_pointer(list(path))
        self._findings = {
            finding: None for finding in self._findings if not finding.startswith((f"{place}/", f"{place} "))
        }
        self.note(path, f"stays JSON text: {why}")
        return JSON

    def limit(self, path: Path) -> str:
        """Count one step at that place; return which bound it passes, nothing when it is within all."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            return "the schema has too many parts to look into"
        return f"it lies more than {MAX_LEVELS} levels deep" if len(path) > MAX_LEVELS else ""

    def columns(self, path: Path, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return name and column of each member of a struct that there is room for.

        Of the payload itself those that are too many are left out; a struct within it goes in whole or not at all.
        """
        room = MAX_FIELDS - self.fields
        if len(names) > room and path:
            return []
        if len(names) > room:
            self.note(path, f"has {len(names)} members; those after the first {room} are no columns")
            names = names[:room]
        self.fields += len(names)
        columns = column_names(names)
        for name, column in zip(names, columns, strict=True):
            if name != column:
                self.note((*path, name), f"is the column {column}")
        return list(zip(names, columns, strict=True))
