"""Avro schemas: parsing, named types, and valid values of types."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, parse_schema, to_parsing_canonical_form

from catalog.parsing.pointers import resolve_pointer
from catalog.schemas.contract import Library, SchemaError, SchemaFault, SchemaSource, UnfitValue, clip

# Valid values of Avro types in any encoding: ranges and logical types.
#
# Bodies are not read with fastavro's reader: it accepts what the specification forbids (a union branch -1, a boolean 7,
# an int of 48 bits), builds each value in memory, crashes on deep recursion, loops 2^60 times over an array of nulls,
# and does not say where a fault is.

SINGLE_OBJECT: Final = b"\xc3\x01"
"""The first bytes of a single-object message, before the schema's CRC-64-AVRO (little-endian) and the datum."""
MAX_LEVELS: Final = 100
"""Maximum nesting of records in a body; Protobuf has the same limit."""
MAX_PRECISION: Final = 10_000
"""The precision of decimals up to this many digits is enforced."""
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "int": (-(2**31), 2**31),
    "long": (-(2**63), 2**63),
    "int-time-millis": (0, 86_400_000),
    "long-time-micros": (0, 86_400_000_000),
}
_UNDERNEATH: Final[Mapping[str, tuple[str, ...]]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    **{
        f"{kind}-{unit}": ("long",)
        for kind in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    },
    "uuid": ("string", "fixed"),
    "decimal": ("bytes", "fixed"),
    "big-decimal": ("bytes",),
    "duration": ("fixed",),
}
"""The logical types of Avro 1.12, and the types that each may annotate."""
_SIZES: Final[Mapping[str, int]] = {"uuid": 16, "duration": 12}
"""Sizes of the fixed types that may have these logical types."""


class TypeMismatch(Exception):
    """A value does not match its type. ``steps`` are the path to it, innermost first.

    ``others`` are further mismatches of the same body, as far as they were searched for.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.steps: list[str] = []
        self.others: list[TypeMismatch] = []

    def add_step(self, step: str) -> TypeMismatch:
        """Add the next outer step of the path, also to the others, and return this error."""
        for each in (self, *self.others):
            each.steps.append(step)
        return self

    def add_mismatch(self, other: TypeMismatch) -> TypeMismatch:
        """Add another mismatch of the same body, with its others, and return this error."""
        self.others += (other, *other.others)
        other.others = []
        return self

    def field_path(self) -> str:
        """Return the dotted field path: ``readings[3].value``."""
        return "".join(reversed(self.steps)).removeprefix(".")

    def copy(self) -> TypeMismatch:
        """Return an independent copy, without the others."""
        twin = TypeMismatch(self.message)
        twin.steps = list(self.steps)
        return twin


MAX_EMPTY: Final = 100_000
"""Records and items of a body beyond one per byte; values without bytes could otherwise be of any number."""


@dataclass(slots=True)
class Walk:
    """State while one body is read: how many more records and items it may have, and the level of records.

    A *strict* walk validates: it keeps no lists and maps, and holds logical types to their ranges. Another one decodes:
    a value that is out of its range, and in JSON one of a wrong type, is an ``UnfitValue``, and fields may be missing.

    For JSON, ``left`` is the number of mismatches after which the walk stops; within a union branch that is tried, it
    is one. The results of branches are cached in ``tried``, because nested unions would otherwise be tried in every
    combination.
    """

    strict: bool
    values: int = MAX_EMPTY
    left: int = 1
    level: int = 0
    tries: int = 0
    tried: dict[tuple[int, int], tuple[TypeMismatch | None, Any]] = field(default_factory=dict)
    fills: bool = False
    """Whether records have the defaults of absent fields, as in the default of another field."""

    def spend(self, values: int = 1) -> None:
        """Count values; raises TypeMismatch for too many."""
        self.values -= values
        if self.values < 0:
            raise TypeMismatch("more values than bytes")


def logical_type(schema: Any) -> str:
    """Return type and logical type joined, as in ``int-date``; the type alone if it has no logical type."""
    if not isinstance(schema, dict):
        return str(schema)
    logical = schema.get("logicalType")
    return f"{schema['type']}-{logical}" if isinstance(logical, str) else str(schema["type"])


def branch_label(branch: Any) -> str:
    """Return the name of a union branch in the JSON encoding: the full name of its type."""
    return branch if isinstance(branch, str) else str(branch.get("name", branch["type"]))


def branch_labels(branches: Sequence[Any]) -> list[str | None]:
    """Return the label of each union branch in values; None if its values have no label."""
    labels = [branch_label(branch) for branch in branches]
    others = [label for label in labels if label != "null"]
    return [label if len(others) > 1 and label != "null" else None for label in labels]


def logical_type_fault(schema: Mapping[str, Any]) -> str:
    """Return why a logical type is invalid by the specification; empty if it is valid, unknown or absent.

    An invalid logical type is ignored, and the underlying type used.
    """
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical is None or (isinstance(logical, str) and logical not in _UNDERNEATH):
        return ""
    if not isinstance(logical, str):
        return "logicalType is not a string"
    if kind not in _UNDERNEATH[logical]:
        return f"{logical} annotates {' or '.join(_UNDERNEATH[logical])}, and not {kind}"
    size = schema.get("size")
    if logical == "decimal":
        return _decimal_fault(schema.get("precision"), schema.get("scale", 0), size if kind == "fixed" else None)
    if kind == "fixed" and size != _SIZES[logical]:
        return f"{logical} has {_SIZES[logical]} bytes"
    return ""


def _decimal_fault(precision: Any, scale: Any, size: Any) -> str:
    if type(precision) is not int or precision < 1:
        return "the precision of a decimal is a number from 1 on"
    if type(scale) is not int or not 0 <= scale <= precision:
        return "the scale of a decimal is a number from 0 up to its precision"
    if type(size) is int and precision > math.floor(math.log10(2) * max(0, 8 * size - 1)):
        return f"{size} bytes are too few for a decimal of that precision"
    return ""


def number_range(schema: Any, kind: str) -> tuple[int, int]:
    """Return the lowest value of an int or long, and the highest plus one.

    All ints are valid dates and all longs valid timestamps; times of day are limited to one day.
    """
    return _RANGES.get(logical_type(schema), _RANGES[kind])


def decimal_bound(schema: Any) -> int:
    """Return the exclusive bound of a decimal's absolute unscaled value; 0 if not a decimal, or too many digits."""
    is_decimal = logical_type(schema) in ("bytes-decimal", "fixed-decimal")
    return 10 ** schema["precision"] if is_decimal and schema["precision"] <= MAX_PRECISION else 0


def check_decimal(data: bytes, bound: int) -> None:
    """Require that a decimal has at most as many digits as its precision.

    Raises:
        TypeMismatch: it has more.
    """
    if not -bound < int.from_bytes(data, "big", signed=True) < bound:
        raise TypeMismatch(too_many_digits_message(bound))


def too_many_digits_message(bound: int) -> str:
    """Return the message for a decimal beyond *bound*, a power of ten that may be too long to print."""
    return f"the decimal has more than {round((bound.bit_length() - 1) * math.log10(2))} digits"


# Parsing Avro schemas: the document, its named types, the selected type, and its fingerprint.
#
# fastavro validates schemas and writes canonical forms. Documents are simplified first, so that forms found in real
# catalogs (``{"type": {"type": "string"}}``) are accepted, and documents that are not schemas are rejected.

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
MAX_SCHEMA_LEVELS: Final = 150
"""Maximum nesting of types; the parsers are recursive."""
_MEMBERS: Final = dict.fromkeys(("type", "name", "namespace", "logicalType", "precision", "scale"), "") | {
    "items": "array",
    "values": "map",
    "symbols": "enum",
    "size": "fixed",
}
"""Members of a type that affect which bodies are valid, with the kind of type that they belong to."""
_COMPARED: Final = 200
"""Maximum characters of an unknown name, and number of type names, that are compared for a hint."""
_LOGICAL: Final = frozenset({"logicalType", "precision", "scale"})
_HINT: Final = "correct the schema; the Avro specification, 'Schema Declaration', says what each type needs"
# Errors that fastavro raises for invalid schemas; test_avro.py verifies this by fuzzing.
_REFUSALS: Final = (
    SchemaParseException,
    UnknownType,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A valid schema: its type, all named types by full name, and the CRC-64-AVRO of its canonical form.

    All names in it are full names, and invalid logical types are removed. ``fingerprint`` is encoded as in bodies:
    eight bytes, little-endian.
    """

    root: Any
    named: Mapping[str, Any]
    canonical: str
    fingerprint: bytes


def read_schema(source: SchemaSource, library: Library) -> AvroSchema:
    """Parse a schema with everything that it refers to.

    Raises:
        SchemaError: it is not a valid Avro schema, a name in it is unknown, or the selected type is missing.
    """
    document = load_document(source)
    named: dict[str, Any] = {}
    _parse_references(document, source.uri, library, named, {source.uri})
    parsed = _parse_types(document, named)
    root = _select_type(source.name, parsed, named) if source.name else parsed
    return _build_schema(root, named)


def parse_standalone(document: Any) -> AvroSchema:
    """Parse a schema without references to others, such as the one in the header of an object container file.

    Raises:
        SchemaError: it is not a valid Avro schema.
    """
    named: dict[str, Any] = {}
    return _build_schema(_parse_types(_simplify_types(document), named), named)


def load_document(source: SchemaSource, ignored: list[SchemaFault] | None = None) -> Any:
    """Return the types of a document in their simplest form; its invalid logical types are added to *ignored*.

    Raises:
        SchemaError: it is not JSON, or a type is not valid.
    """
    tree = source.document
    if isinstance(tree, str) and tree not in PRIMITIVES:
        try:
            tree = msgspec.json.decode(tree.removeprefix("\ufeff"))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            hint = "Avro schemas are JSON; translate Avro IDL with `avro-tools idl2schemata`"
            raise SchemaError(f"the Avro schema is not JSON: {clip(str(error))}", hint=hint) from error
    if source.pointer:
        try:
            tree = resolve_pointer(tree, source.pointer)
        except KeyError:
            raise SchemaError(f"the document has nothing at {source.pointer}", hint="correct the reference") from None
    if isinstance(tree, dict) and "protocol" in tree and isinstance(tree.get("types"), list):
        return _simplify_types(
            tree["types"] if len(tree["types"]) != 1 else tree["types"][0],
            ignored,
            f"{source.pointer}/types" + ("/0" if len(tree["types"]) == 1 else ""),
        )
    return _simplify_types(tree, ignored, source.pointer)


def _simplify_types(tree: Any, ignored: list[SchemaFault] | None = None, at: str = "", level: int = 0) -> Any:
    """Return the types of a tree in their simplest form, without redundant ``{"type": X}`` around them.

    Invalid logical types are removed, and added to *ignored*; *at* is the JSON pointer to the tree.
    """
    if level > MAX_SCHEMA_LEVELS:
        raise SchemaError(f"the Avro schema nests more than {MAX_SCHEMA_LEVELS} levels", hint="name the inner types")
    if isinstance(tree, list):
        return [_simplify_types(branch, ignored, f"{at}/{index}", level + 1) for index, branch in enumerate(tree)]
    if not isinstance(tree, dict):
        if isinstance(tree, str):
            return tree
        raise SchemaError(f"{clip(repr(tree))} is not an Avro type", hint=_HINT)
    kind = tree.get("type")
    if not isinstance(kind, str) or kind not in PRIMITIVES | NAMED | {"array", "map"}:
        return _simplify_types(kind, ignored, f"{at}/type", level + 1)
    why = logical_type_fault(tree)
    if why and ignored is not None:
        ignored.append(SchemaFault(f"{at}/logicalType", why))
    members = _MEMBERS if not why else _MEMBERS.keys() - _LOGICAL
    tidied = {key: value for key, value in tree.items() if key in members and _MEMBERS[key] in (kind, "")}
    for member in ("items", "values"):
        if member in tidied:
            tidied[member] = _simplify_types(tidied[member], ignored, f"{at}/{member}", level + 1)
    if kind == "enum":
        if not isinstance(tree.get("symbols"), list):
            raise SchemaError(f"the enum {clip(str(tree.get('name')))} has no list of symbols", hint=_HINT)
        if "default" in tree and tree["default"] in tree["symbols"]:
            tidied["default"] = tree["default"]
    if isinstance(tree.get("aliases"), list) and kind in NAMED:
        tidied["aliases"] = [each for each in tree["aliases"] if isinstance(each, str)]
    if kind in ("record", "error"):
        fields = tree.get("fields")
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise SchemaError(f"the record {clip(str(tree.get('name')))} has no list of fields", hint=_HINT)
        tidied["fields"] = [
            {**each, "type": _simplify_types(each.get("type"), ignored, f"{at}/fields/{index}/type", level + 1)}
            for index, each in enumerate(fields)
        ]
    return tidied


def missing_names(document: Any) -> list[str]:
    """Return the full names that a document uses but does not define."""
    used: dict[str, None] = {}
    defined: set[str] = set()
    _collect_names(document, "", used, defined)
    return [name for name in used if name not in defined]


def _collect_names(tree: Any, namespace: str, used: dict[str, None], defined: set[str]) -> None:
    if isinstance(tree, str):
        if tree not in PRIMITIVES:
            used[_full_name(tree, namespace)] = None
    elif isinstance(tree, list):
        for branch in tree:
            _collect_names(branch, namespace, used, defined)
    else:
        if tree["type"] in NAMED and isinstance(tree.get("name"), str):
            given = tree.get("namespace")
            name = _full_name(tree["name"], given if isinstance(given, str) else namespace)
            defined.add(name)
            namespace = name.rpartition(".")[0]
        for inner in _inner_types(tree):
            _collect_names(inner, namespace, used, defined)


def _inner_types(tree: Mapping[str, Any]) -> Iterator[Any]:
    yield from (tree[member] for member in ("items", "values") if member in tree)
    yield from (field["type"] for field in tree.get("fields", ()))


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _parse_references(document: Any, base: str, library: Library, named: dict[str, Any], seen: set[str]) -> None:
    """Parse the documents that define the missing names, each once and after those that it needs itself."""
    for name in missing_names(document):
        loaded = None if name in named else library.document(name, base)
        if loaded is None or loaded[0] in seen:
            continue  # a name that remains unknown is reported where it is used
        uri, other = loaded
        seen.add(uri)
        tree = load_document(SchemaSource("Avro", "", other, uri=uri))
        _parse_references(tree, uri, library, named, seen)
        _parse_types(tree, named)


def _parse_types(tree: Any, named: dict[str, Any]) -> Any:
    try:
        return parse_schema(tree, named, _write_hint=False)
    except UnknownType as error:
        hint = "define the type in the same document, or add the document that does; names of types are case-sensitive"
        name = str(error.name)
        near = get_close_matches(name.rpartition(".")[2][:_COMPARED], sorted(PRIMITIVES), 1) or get_close_matches(
            name[:_COMPARED], [*named][:_COMPARED], 1, 0.8
        )
        hint = f"did you mean {near[0]}? Else {hint}" if near else hint
        raise SchemaError(f"the Avro type {clip(name)} is not known", hint=hint) from error
    except _REFUSALS as error:
        lacks = f"a type lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SchemaError(f"not a valid Avro schema: {clip(lacks)}", hint=_HINT) from error


def _select_type(name: str, root: Any, named: Mapping[str, Any]) -> Any:
    if name in named:
        return named[name]
    same = [full for full in named if full.rpartition(".")[2] == name]
    if len(same) == 1:
        return named[same[0]]
    if same:
        raise SchemaError(f"{name} is the name of {', '.join(sorted(same))}", hint="use the full name")
    known = clip(", ".join(sorted(named)) or repr(root))
    raise SchemaError(f"the Avro schema defines no type {clip(name)}", hint=f"it defines {known}")


def _build_schema(root: Any, named: Mapping[str, Any]) -> AvroSchema:
    try:
        canonical = to_parsing_canonical_form(_inline_types(root, named, set()))
        crc = bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    except (*_REFUSALS, UnicodeError, RecursionError) as error:
        raise SchemaError(f"not a valid Avro schema: {clip(str(error))}", hint=_HINT) from error
    return AvroSchema(root, named, canonical, crc)


def _inline_types(tree: Any, named: Mapping[str, Any], written: set[str]) -> Any:
    """Return a self-contained type: each named type is defined where it is first used."""
    if isinstance(tree, list):
        return [_inline_types(branch, named, written) for branch in tree]
    if isinstance(tree, str):
        return tree if tree in PRIMITIVES or tree in written else _inline_types(named[tree], named, written)
    if tree["type"] in NAMED:
        if tree["name"] in written:
            return tree["name"]
        written.add(tree["name"])
    whole = dict(tree)
    for member in ("items", "values"):
        if member in whole:
            whole[member] = _inline_types(whole[member], named, written)
    if "fields" in whole:
        whole["fields"] = [{**each, "type": _inline_types(each["type"], named, written)} for each in whole["fields"]]
    return whole


# Converting Avro's numbers, bytes and texts of logical types to Python values.
#
# Dates become ``date``, instants ``datetime`` in UTC, local timestamps ``datetime`` without zone, with microseconds;
# times of day ISO 8601 text, decimals ``Decimal``, UUIDs text. Other logical types keep the underlying value. A value
# outside of the calendar, the day or the precision becomes an :class:`~catalog.schemas.contract.UnfitValue`.

_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # local timestamps have no zone
_EXACT: Final = Context(prec=2 * MAX_PRECISION)
_MICROSECONDS: Final[Mapping[str, Callable[[int], int]]] = {
    "millis": lambda number: number * 1000,
    "micros": lambda number: number,
    "nanos": lambda number: number // 1000,
}


def number_converter(schema: Any) -> Callable[[int], Any] | None:
    """Return the converter of an int or long to its logical value; None if it needs none."""
    logical = logical_type(schema)
    if logical == "int-date":
        return _to_date
    if logical in ("int-time-millis", "long-time-micros"):
        return _time_converter(_MICROSECONDS[logical.rpartition("-")[2]])
    base, _, unit = logical.rpartition("-")
    if unit in _MICROSECONDS and base in ("long-timestamp", "long-local-timestamp"):
        return _instant_converter(_EPOCH if base == "long-timestamp" else _LOCAL_EPOCH, _MICROSECONDS[unit])
    return None


def bytes_converter(schema: Any) -> Callable[[bytes], Any] | None:
    """Return the converter of bytes or fixed to their logical value; None if they need none."""
    scale = decimal_scale(schema)
    if scale is not None:
        return _decimal_converter(scale, decimal_bound(schema))
    if is_fixed_uuid(schema):
        return lambda data: str(uuid.UUID(bytes=data))
    return None


def parse_iso_text(logical: str, text: str) -> date | datetime | None:
    """Parse an ISO 8601 date or instant, as in plain JSON; an instant without offset is in UTC, as in Avro.

    Return None if it is neither, or the logical type is neither.
    """
    try:
        if logical == "int-date":
            return date.fromisoformat(text)
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    if "local" in logical:
        instant = instant.replace(tzinfo=None)
    elif instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return instant if "timestamp" in logical else None


def decimal_scale(schema: Any) -> int | None:
    """Return the scale of a decimal; None if the type is not a decimal, or has too many digits."""
    return schema.get("scale", 0) if decimal_bound(schema) else None


def is_fixed_uuid(schema: Any) -> bool:
    """Whether a type is the 16-byte UUID of Avro 1.12."""
    return logical_type(schema) == "fixed-uuid"


def _to_date(number: int) -> date | UnfitValue:
    try:
        return date.fromordinal(number + _DAY)
    except (ValueError, OverflowError):
        return UnfitValue(f"the day {number} lies outside of the years 1 to 9999", number)


def _instant_converter(epoch: datetime, microseconds: Callable[[int], int]) -> Callable[[int], datetime | UnfitValue]:
    def convert(number: int) -> datetime | UnfitValue:
        try:
            return epoch + timedelta(microseconds=microseconds(number))
        except OverflowError:
            return UnfitValue(f"the instant {number} lies outside of the years 1 to 9999", number)

    return convert


def _decimal_converter(scale: int, bound: int) -> Callable[[bytes], Decimal | UnfitValue]:
    def convert(data: bytes) -> Decimal | UnfitValue:
        number = int.from_bytes(data, "big", signed=True)
        if not -bound < number < bound:
            return UnfitValue(too_many_digits_message(bound))
        return Decimal(number).scaleb(-scale, _EXACT)

    return convert


def _time_converter(microseconds: Callable[[int], int]) -> Callable[[int], str | UnfitValue]:
    def convert(number: int) -> str | UnfitValue:
        seconds, rest = divmod(microseconds(number), 1_000_000)
        if not 0 <= seconds < 86_400:
            return UnfitValue(f"{number} is not a time of day", number)
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest).isoformat()

    return convert
