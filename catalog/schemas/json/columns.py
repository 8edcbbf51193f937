"""Columns of JSON payloads: the shapes of schemas of both JSON families, and the values of bodies."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from operator import attrgetter
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta, Raw

from catalog.parsing.pointers import to_pointer
from catalog.schemas.columns import (
    DOUBLE,
    Getters,
    Leaf,
    MapShape,
    Member,
    Path,
    Shape,
    Struct,
    Survey,
    Undecoded,
    UnreadableBody,
    iter_rows,
)
from catalog.schemas.columns import ListShape as List
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaFault, UnfitValue, is_utf8, make_fault
from catalog.schemas.filling import UnsupportedSchema
from catalog.schemas.json.references import SchemaDocuments, merge_schemas
from catalog.schemas.jsonschema.validating import parse_body

# Decoders of leaves: msgspec's own types where possible, otherwise types with a conversion of ours.

_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)
_DIGITS: Final = re.compile(r"[-+]?0*\d{1,40}", re.ASCII)
_FLOAT_DIGITS: Final = 15
"""The number of decimal digits that any double preserves."""
_EXACT: Final = 2**53
"""Up to this value, doubles represent all integers exactly."""
Convert = Callable[[Any], Any]


class _AnyInstance(type):
    """Metaclass of marker types for which msgspec accepts any value that the hook returns."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class LeafTypes:
    """The msgspec types of leaves, and the hook that converts values of the types that msgspec lacks."""

    def __init__(self) -> None:
        self._types: dict[Leaf, Any] = {}
        self._converts: dict[type, Convert] = {}

    def type_of(self, leaf: Leaf) -> Any:
        """Return the msgspec type of a leaf; it excludes null, except for :class:`msgspec.Raw`."""
        if leaf not in self._types:
            self._types[leaf] = self._build_type(leaf)
        return self._types[leaf]

    def convert_value(self, kind: type, value: Any) -> Any:
        """Convert a value of a marker type of :meth:`type_of`; raises ValueError for an invalid value."""
        return self._converts[kind](value)

    def decoder(self, leaf: Leaf) -> msgspec.json.Decoder[Any]:
        """Return a decoder of JSON texts to values of a leaf."""
        return msgspec.json.Decoder(self.type_of(leaf), dec_hook=self.convert_value)

    def _build_type(self, leaf: Leaf) -> Any:
        if leaf.kind == "integer":
            return Annotated[int, Meta(ge=leaf.low, le=leaf.high)]
        if leaf.kind in _NATIVE:
            return _NATIVE[leaf.kind]
        marker = _AnyInstance(leaf.kind, (), {})
        self._converts[marker] = _converter_for(leaf)
        return marker


_NATIVE: Final[dict[str, Any]] = {
    "text": str,
    "json": Raw,
    "boolean": bool,
    "number": float,
    "binary": bytes,
    "timestamp": Annotated[datetime, Meta(tz=True)],
    "date": date,
}


def integer_from_float(value: Any, leaf: Leaf) -> int:
    """Return a JSON float (``1.0``, ``2e3``) as integer; raises ValueError if it is not a valid one of the leaf."""
    if type(value) is not float or not value.is_integer() or abs(value) > _EXACT:
        raise ValueError("it is not an integer")
    return _check_range(int(value), leaf)


def _converter_for(leaf: Leaf) -> Convert:
    if leaf.kind == "written integer":
        return lambda value: _parse_integer(value, leaf)
    if leaf.kind == "decimal":
        unit = Decimal((0, (1,), -leaf.type.scale))
        context = Context(prec=leaf.type.precision, traps=[Inexact, InvalidOperation])
        return lambda value: _fit_decimal(_parse_decimal(value), unit, context)
    if leaf.low is not None:
        return lambda value: str(_parse_integer(value, leaf))
    return lambda value: value if isinstance(value, str) and _NUMBER.fullmatch(value) else str(_parse_decimal(value))


def _parse_integer(value: Any, leaf: Leaf) -> int:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return _check_range(int(value), leaf)
    if type(value) is int:
        return _check_range(value, leaf)
    raise ValueError("it is not an integer written as text")


def _check_range(value: int, leaf: Leaf) -> int:
    low, high = leaf.low, leaf.high
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"it is out of the range from {low} to {high}")
    return value


def _parse_decimal(value: Any) -> Decimal:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    if type(value) is int:
        return Decimal(value)
    if type(value) is float:
        number = Decimal(repr(value))
        if len(number.as_tuple().digits) <= _FLOAT_DIGITS:
            return number
        raise ValueError("a number of so many digits is exact as text only")
    raise ValueError("it is not a decimal number written as text")


def _fit_decimal(value: Decimal, unit: Decimal, context: Context) -> Decimal:
    try:
        return value.quantize(unit, context=context)
    except DecimalException:
        places = -int(unit.as_tuple().exponent)
        raise ValueError(f"it has more than {context.prec} digits, or more than {places} after the point") from None


# Reading JSON bodies as values of a shape: with msgspec's typed decoder, and member by member where that fails.
#
# The typed decoder decodes only members with columns, and copies the text of ``json`` leaves. The exact reader decodes
# each member separately: it finds values that do not fit, accepts integers written as ``1.0``, and supports names
# that msgspec does not.

_AT_ONCE: Final = 256
"""Number of bodies decoded together; one by one if the typed decoder rejects any of them."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_ANY: Final = msgspec.json.Decoder()
_REFUSALS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
Place = tuple[str | int, ...]
Exact = Callable[[Any, Place], Any]
"""JSON text (bytes or Raw) and its place -> value, or an UnfitValue if it has the wrong type."""


class JsonReader:
    """Reads JSON bodies of one shape, whatever their content type."""

    def __init__(self, shape: Shape) -> None:
        self._leaves = LeafTypes()
        self._classes: dict[Struct, type] = {}
        self._takes_names = True
        typed = self._msgspec_type(shape)
        self._exact = self._compile_exact(shape)
        decoder = msgspec.json.Decoder(typed, dec_hook=self._leaves.convert_value)
        self._fast: Callable[[bytes], Any] | None = decoder.decode if self._takes_names else None
        self._has_json_leaf = _has_json_leaf(shape)

    def read(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None]
    ) -> tuple[list[Any], list[Undecoded]]:
        values: list[Any] = []
        undecoded: list[Undecoded] = []
        for begin in range(0, len(bodies), _AT_ONCE):
            rows = slice(begin, begin + _AT_ONCE)
            decoded = self._read_fast(bodies[rows])
            if decoded is not None:
                values += decoded
                continue
            refused: list[Undecoded] = []
            values += self._iter_values(bodies[rows], content_types[rows], refused)
            undecoded += (Undecoded(begin + one.row, one.why) for one in refused)
        return values, undecoded

    def getters_of(self, struct: Struct) -> Getters:
        return [attrgetter(f"f{at}") for at in range(len(struct.members))]

    def to_json(self, value: Any) -> str | None:
        text = bytes(value).decode("utf-8")
        return None if text == "null" else text

    def _read_fast(self, bodies: Sequence[bytes | None]) -> list[Any] | None:
        """Return the values if the typed decoder accepts all bodies, else None."""
        if self._fast is None or None in bodies:
            return None
        present = cast("Sequence[bytes]", bodies)
        if max(map(len, present)) > MAX_BODY_BYTES or (self._has_json_leaf and not all(map(bytes.isascii, present))):
            return None
        try:
            return list(map(self._fast, present))
        except _REFUSALS:
            return None

    def _iter_values(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None], undecoded: list[Undecoded]
    ) -> Iterator[Any]:
        for row, body, _ in iter_rows(bodies, content_types, undecoded):
            value = None
            if body is not None:
                try:
                    value = self._read_value(body)
                except UnreadableBody as unfit:
                    undecoded.append(Undecoded(row, unfit.why))
            yield value

    def _read_value(self, body: bytes) -> Any:
        if self._fast is not None and (not self._has_json_leaf or body.isascii() or is_utf8(body)):
            try:
                return self._fast(body)
            except _REFUSALS:
                pass  # read again member by member below
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            raise UnreadableBody(value.message, value.path)
        return self._exact(body.removeprefix(_BYTE_ORDER_MARK), ())

    def _msgspec_type(self, shape: Shape) -> Any:
        """Return the nullable msgspec type of a shape, with a class for each struct."""
        if isinstance(shape, Struct):
            return self._struct_class(shape) | None
        if isinstance(shape, List):
            return list[self._msgspec_type(shape.item)] | None  # type: ignore[misc]  # a type that is made at run time
        if isinstance(shape, MapShape):
            return dict[str, self._msgspec_type(shape.value)] | None  # type: ignore[misc]
        kind = self._leaves.type_of(shape)
        return kind if shape.kind == "json" else kind | None

    def _struct_class(self, struct: Struct) -> Any:
        if struct not in self._classes:
            fields = [(f"f{at}", self._msgspec_type(member.shape), None) for at, member in enumerate(struct.members)]
            names = {f"f{at}": member.name for at, member in enumerate(struct.members)}
            try:
                self._classes[struct] = _define_struct(fields, names, positional=struct.positional)
            except ValueError:  # a quote, a backslash or a control character in a name
                self._takes_names = False
                self._classes[struct] = _define_struct(fields, None, positional=struct.positional)
        return self._classes[struct]

    def _compile_exact(self, shape: Shape) -> Exact:
        if isinstance(shape, Struct):
            parts = [(member.name, self._compile_exact(member.shape)) for member in shape.members]
            reader = _tuple_reader if shape.positional else _object_reader
            return reader(self._classes[shape], parts)
        if isinstance(shape, List):
            return _list_reader(self._compile_exact(shape.item))
        if isinstance(shape, MapShape):
            return _map_reader(self._compile_exact(shape.value))
        return _leaf_reader(shape, self._leaves)


def _define_struct(fields: list[Any], names: dict[str, str] | None, *, positional: bool) -> type:
    if positional:
        fields = [field[:2] for field in fields]
    # Values have no reference cycles, so the garbage collector can skip them.
    return msgspec.defstruct(
        "Row", fields, rename=names, array_like=positional, forbid_unknown_fields=positional, gc=False
    )


def _decode(decoder: msgspec.json.Decoder[Any], text: Any, place: Place) -> Any:
    try:
        return decoder.decode(text)
    except _REFUSALS as error:
        return _unfit_value(str(error).partition(" - at `")[0], place)


def _unfit_value(why: str, place: Place) -> UnfitValue:
    return UnfitValue(str(make_fault(why, to_pointer(list(place)))))


def _is_null(text: Any) -> bool:
    return bytes(text).strip(b" \t\r\n") == b"null"


def _object_reader(kind: type, parts: Sequence[tuple[str, Exact]]) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        members = _decode(_MEMBERS, text, place)
        if isinstance(members, UnfitValue):
            return members
        return kind(*(exact(members[name], (*place, name)) if name in members else None for name, exact in parts))

    return read


def _tuple_reader(kind: type, parts: Sequence[tuple[str, Exact]]) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        items = _decode(_ITEMS, text, place)
        if isinstance(items, UnfitValue):
            return items
        if len(items) != len(parts):
            return _unfit_value(f"it has {len(items)} items and not {len(parts)}", place)
        return kind(
            *(exact(each, (*place, at)) for at, (each, (_, exact)) in enumerate(zip(items, parts, strict=True)))
        )

    return read


def _list_reader(item: Exact) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        items = _decode(_ITEMS, text, place)
        if isinstance(items, UnfitValue):
            return items
        return [item(each, (*place, at)) for at, each in enumerate(items)]

    return read


def _map_reader(inner: Exact) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        members = _decode(_MEMBERS, text, place)
        if isinstance(members, UnfitValue):
            return members
        return {name: inner(each, (*place, name)) for name, each in members.items()}

    return read


def _leaf_reader(leaf: Leaf, leaves: LeafTypes) -> Exact:
    decoder = leaves.decoder(leaf)

    def read(text: Any, place: Place) -> Any:
        if leaf.kind == "json":
            return text
        if _is_null(text):
            return None
        if leaf.kind == "integer":
            try:
                return integer_from_float(_decode(_ANY, text, place), leaf)
            except ValueError:
                pass  # decoded below, with the fault if invalid
        return _decode(decoder, text, place)

    return read


def _has_json_leaf(shape: Shape) -> bool:
    if isinstance(shape, Struct):
        return any(_has_json_leaf(member.shape) for member in shape.members)
    if isinstance(shape, List):
        return _has_json_leaf(shape.item)
    return _has_json_leaf(shape.value) if isinstance(shape, MapShape) else shape.kind == "json"


# Converting a JSON schema of either family to a shape: references are followed, and composed schemas merged.
#
# A union has a column type if all its branches have the same shape, apart from null; integers with other numbers
# are numbers. All other unions stay JSON text, and so do recursive types.

Schema = Mapping[str, Any]
Within = tuple[int, ...]
"""The ids of the schemas being visited; negative for those that are only merged into another."""
MAX_HOPS: Final = 64
_BRANCHES: Final = ("oneOf", "anyOf")


class Untypable(Exception):
    """A part of the payload has no column type; the message says why."""


class OnlyNull(Exception):
    """A part of the payload can only be null."""


@dataclass(slots=True)
class _FlatSchema:
    """A schema with references resolved: parts that all apply, and unions of which one branch applies."""

    parts: list[Schema] = field(default_factory=list)
    groups: list[Sequence[Any]] = field(default_factory=list)
    within: Within = ()


class ShapeBuilder(ABC):
    """Converts the schemas of one document to shapes; the families override what differs between them."""

    keywords: frozenset[str] = frozenset()
    """Keywords that affect columns, except those for composition."""

    def __init__(self, documents: SchemaDocuments, survey: Survey) -> None:
        self.documents = documents
        self.survey = survey

    def root_shape(self, schema: Any) -> Shape | None:
        """Return the shape of payloads; None if they have no typed columns."""
        try:
            return self._composed_shape(schema, (), (id(schema),))
        except (Untypable, UnsupportedSchema) as error:
            self.survey.add_finding((), f"has no columns: {error}")
        except OnlyNull:
            self.survey.add_finding((), "has no columns: no value but null is allowed")
        return None

    def shape_at(self, schema: Any, path: Path, within: Within) -> Shape:
        """Return the shape at a path in payloads; JSON text if it has no type."""
        fields = self.survey.fields
        try:
            return self._composed_shape(schema, path, within)
        except (Untypable, UnsupportedSchema) as error:
            why = str(error)
        except OnlyNull:
            why = "no value but null is allowed"
        self.survey.fields = fields
        return self.survey.add_json_text(path, why)

    def struct_shape(self, parts: Mapping[str, Any], path: Path, within: Within, *, positional: bool = False) -> Struct:
        """Return the struct of an object with these members.

        Raises:
            Untypable: there are no members, or too many fields.
        """
        if not parts:
            raise Untypable("it has no members")
        columns = self.survey.assign_columns(path, list(parts))
        if not columns:
            raise Untypable("the payload has too many fields")
        members = (Member(name, column, self.shape_at(parts[name], (*path, name), within)) for name, column in columns)
        return Struct(tuple(members), positional)

    @abstractmethod
    def plain_shape(self, schema: Schema, path: Path, within: Within) -> Shape:
        """Return the shape of a schema that has no references or composition.

        Raises:
            Untypable: it has no column type.
            OnlyNull: it allows only null.
        """

    @abstractmethod
    def iter_bases(self, schema: Schema) -> Iterable[tuple[Any, bool]]:
        """Yield the schemas that *schema* refers to, each with True if it is the type itself, False for a base.

        Raises:
            UnsupportedSchema: a reference cannot be resolved.
        """

    def own_keywords(self, schema: Schema) -> Schema:
        """Return the keywords of a schema that apply in addition to its references."""
        return schema

    def iter_unions(self, schema: Schema) -> Iterable[Sequence[Any]]:
        """Yield the unions of a schema, each as a list of branches."""
        rest = self.own_keywords(schema)
        return (rest[each] for each in _BRANCHES if isinstance(rest.get(each), list) and rest[each])

    def _composed_shape(self, schema: Any, path: Path, within: Within) -> Shape:
        passed = self.survey.check_limits(path)
        if passed:
            raise Untypable(passed)
        flat = _FlatSchema(within=within)
        self._flatten(schema, flat, 0, is_type=True)
        integer_from_float = merge_schemas(flat.parts)
        if not flat.groups:
            return self.plain_shape(integer_from_float, path, flat.within)
        others = [{"anyOf": list(group)} for group in flat.groups[1:]]
        base = [integer_from_float, *others] if integer_from_float or others else []
        return self._union_shape(base, flat.groups[0], path, flat.within)

    def _union_shape(self, base: Sequence[Schema], branches: Sequence[Any], path: Path, within: Within) -> Shape:
        shapes: list[Shape] = []
        fields = max_fields = self.survey.fields
        for branch in branches:
            self.survey.fields = fields
            try:
                shape = self._composed_shape({"allOf": [*base, branch]} if base else branch, path, within)
            except OnlyNull:
                continue
            max_fields = max(max_fields, self.survey.fields)
            if shape not in shapes:
                shapes.append(shape)
        self.survey.fields = max_fields
        if not shapes:
            raise OnlyNull
        if len(shapes) == 1:
            return shapes[0]
        if all(isinstance(each, Leaf) and each.kind in ("integer", "number") for each in shapes):
            return DOUBLE
        raise Untypable("it may be of several types")

    def _flatten(self, schema: Any, flat: _FlatSchema, hops: int, *, is_type: bool) -> None:
        if schema is False:
            raise OnlyNull
        if schema is True:
            return
        passed = "a reference leads to itself" if hops > MAX_HOPS else self.survey.check_limits(())
        if passed or not isinstance(schema, Mapping):
            raise Untypable(passed or "the schema is not an object there")
        for target, is_same in self.iter_bases(schema):
            if isinstance(target, Mapping):
                self._mark_entered(target, flat, is_type=is_type and is_same)
            self._flatten(target, flat, hops + 1, is_type=is_type and is_same)
        rest = self.own_keywords(schema)
        own = {keyword: value for keyword, value in rest.items() if keyword in self.keywords}
        if own:
            flat.parts.append(own)
        together = rest.get("allOf")
        for each in together if isinstance(together, list) else ():
            self._flatten(each, flat, hops + 1, is_type=False)
        flat.groups.extend(self.iter_unions(schema))

    def _mark_entered(self, target: Any, flat: _FlatSchema, *, is_type: bool) -> None:
        """Mark *target* as being visited. A type may be visited once as itself, and once as a part of others."""
        key = id(target)
        if key in flat.within or (not is_type and -key in flat.within):
            raise Untypable("the type contains itself")
        flat.within = (*flat.within, key if is_type else -key)
