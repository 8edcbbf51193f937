"""Read JSON bodies as values of a shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from catalog.parsing.pointers import to_pointer
from catalog.schemas.columns import BodyReader, Getters, Leaf, MapShape, Shape, Struct, UnreadableBody
from catalog.schemas.columns import ListShape as List
from catalog.schemas.contract import SchemaFault, UnfitValue, is_utf8, make_fault
from catalog.schemas.jsonschema.validating import BYTE_ORDER_MARK, parse_body

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
        self._types: dict[Leaf, type] = {}
        self._converts: dict[type, Convert] = {}

    def type_of(self, leaf: Leaf) -> Any:
        """Return the msgspec type of a leaf; it excludes null, except for :class:`msgspec.Raw`."""
        if leaf.kind == "integer":
            return Annotated[int, Meta(ge=leaf.low, le=leaf.high)]
        if leaf.kind in _NATIVE:
            return _NATIVE[leaf.kind]
        if leaf not in self._types:
            self._types[leaf] = marker = _AnyInstance(leaf.kind, (), {})
            self._converts[marker] = _converter_for(leaf)
        return self._types[leaf]

    def convert_value(self, kind: type, value: Any) -> Any:
        """Convert a value of a marker type of :meth:`type_of`; raises ValueError for an invalid value."""
        return self._converts[kind](value)

    def decoder(self, leaf: Leaf) -> msgspec.json.Decoder[Any]:
        """Return a decoder of JSON texts to values of a leaf."""
        return msgspec.json.Decoder(self.type_of(leaf), dec_hook=self.convert_value)


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

_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_ANY: Final = msgspec.json.Decoder()
_REFUSALS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
Place = tuple[str | int, ...]
Exact = Callable[[Any, Place], Any]
"""JSON text (bytes or Raw) and its place -> value, or an UnfitValue if it has the wrong type."""


class JsonReader(BodyReader):
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

    def getters_of(self, struct: Struct) -> Getters:
        return [attrgetter(f"f{at}") for at in range(len(struct.members))]

    def to_json(self, value: Any) -> str | None:
        text = bytes(value).decode("utf-8")
        return None if text == "null" else text

    def read_value(self, body: bytes, content_type: str | None) -> Any:
        if self._fast is not None and (not self._has_json_leaf or body.isascii() or is_utf8(body)):
            try:
                return self._fast(body)
            except _REFUSALS:
                pass  # read again member by member below
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            raise UnreadableBody(value.message, value.path)
        return self._exact(body.removeprefix(BYTE_ORDER_MARK), ())

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


def _parts_reader(decoder: msgspec.json.Decoder[Any], build: Callable[[Any, Place], Any]) -> Exact:
    """Return the reader of an object or array, which *build* makes a value of its members or items."""

    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        parts = _decode(decoder, text, place)
        return parts if isinstance(parts, UnfitValue) else build(parts, place)

    return read


def _object_reader(kind: type, parts: Sequence[tuple[str, Exact]]) -> Exact:
    def build(members: Any, place: Place) -> Any:
        return kind(*(exact(members[name], (*place, name)) if name in members else None for name, exact in parts))

    return _parts_reader(_MEMBERS, build)


def _tuple_reader(kind: type, parts: Sequence[tuple[str, Exact]]) -> Exact:
    def build(items: Any, place: Place) -> Any:
        if len(items) != len(parts):
            return _unfit_value(f"it has {len(items)} items and not {len(parts)}", place)
        return kind(
            *(exact(each, (*place, at)) for at, (each, (_, exact)) in enumerate(zip(items, parts, strict=True)))
        )

    return _parts_reader(_ITEMS, build)


def _list_reader(item: Exact) -> Exact:
    return _parts_reader(_ITEMS, lambda items, place: [item(each, (*place, at)) for at, each in enumerate(items)])


def _map_reader(inner: Exact) -> Exact:
    return _parts_reader(
        _MEMBERS, lambda members, place: {name: inner(each, (*place, name)) for name, each in members.items()}
    )


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
