"""JSON as columns: schemas of both JSON families as shapes, and bodies as their values."""

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

from catalog.parsing.pointers import as_pointer
from catalog.schemas.columns import (
    DOUBLE,
    Leaf,
    MapShape,
    Member,
    Path,
    Shape,
    Struct,
    Survey,
    Take,
    Undecoded,
    UnreadableBody,
    present,
)
from catalog.schemas.columns import ListShape as List
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaFault, UnfitValue, fault
from catalog.schemas.filling import Unfillable
from catalog.schemas.json.references import SchemaDocuments, merged
from catalog.schemas.jsonschema.validating import parse_body

# JSON values of leaves: one decoder for each, native where msgspec has the type, else with a check of our own.

_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)
_DIGITS: Final = re.compile(r"[-+]?0*\d{1,40}", re.ASCII)
_FLOAT_DIGITS: Final = 15
"""Digits that a double keeps of any decimal number."""
_EXACT: Final = 2**53
"""Up to here every whole double is one integer."""
Convert = Callable[[Any], Any]


class _AnyInstance(type):
    """Makes msgspec take what the hook returns: values of a checked type are plain integers, decimals and texts."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class LeafTypes:
    """The msgspec types of leaves, and the hook that those need which msgspec does not know."""

    def __init__(self) -> None:
        self._types: dict[Leaf, Any] = {}
        self._converts: dict[type, Convert] = {}

    def type_of(self, leaf: Leaf) -> Any:
        """Return the type that decodes values of a leaf; null is none of it, but for :class:`msgspec.Raw`."""
        if leaf not in self._types:
            self._types[leaf] = self._build(leaf)
        return self._types[leaf]

    def hook(self, kind: type, value: Any) -> Any:
        """Convert a value of a type that :meth:`type_of` made up; raises ValueError for what is none."""
        return self._converts[kind](value)

    def decoder(self, leaf: Leaf) -> msgspec.json.Decoder[Any]:
        """Return a decoder of JSON texts that are one value of a leaf."""
        return msgspec.json.Decoder(self.type_of(leaf), dec_hook=self.hook)

    def _build(self, leaf: Leaf) -> Any:
        if leaf.kind == "integer":
            return Annotated[int, Meta(ge=leaf.low, le=leaf.high)]
        if leaf.kind in _NATIVE:
            return _NATIVE[leaf.kind]
        marker = _AnyInstance(leaf.kind, (), {})
        self._converts[marker] = _converter(leaf)
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


def whole(value: Any, leaf: Leaf) -> int:
    """Return the integer that a float of JSON (``1.0``, ``2e3``) is; raises ValueError when it is none of the leaf."""
    if type(value) is not float or not value.is_integer() or abs(value) > _EXACT:
        raise ValueError("it is not an integer")
    return _within(int(value), leaf)


def _converter(leaf: Leaf) -> Convert:
    if leaf.kind == "written integer":
        return lambda value: _integer(value, leaf)
    if leaf.kind == "decimal":
        unit = Decimal((0, (1,), -leaf.type.scale))
        context = Context(prec=leaf.type.precision, traps=[Inexact, InvalidOperation])
        return lambda value: _fitted(_decimal(value), unit, context)
    if leaf.low is not None:
        return lambda value: str(_integer(value, leaf))
    return lambda value: value if isinstance(value, str) and _NUMBER.fullmatch(value) else str(_decimal(value))


def _integer(value: Any, leaf: Leaf) -> int:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return _within(int(value), leaf)
    if type(value) is int:
        return _within(value, leaf)
    raise ValueError("it is not an integer written as text")


def _within(value: int, leaf: Leaf) -> int:
    low, high = leaf.low, leaf.high
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"it is out of the range from {low} to {high}")
    return value


def _decimal(value: Any) -> Decimal:
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


def _fitted(value: Decimal, unit: Decimal, context: Context) -> Decimal:
    try:
        return value.quantize(unit, context=context)
    except DecimalException:
        places = -int(unit.as_tuple().exponent)
        raise ValueError(f"it has more than {context.prec} digits, or more than {places} after the point") from None


# JSON bodies as the values of a shape: read by msgspec's typed decoder, and looked into again when that refuses one.
#
# The typed decoder builds only what has a column, and leaves the text of ``json`` leaves as it is. The exact reader
# goes member by member with the same decoders of leaves: it finds the values that do not fit, takes integers that are
# written ``1.0``, and serves schemas with names that msgspec does not take.

_AT_ONCE: Final = 256
"""Bodies that are decoded together, and one by one if the typed decoder refuses one of them."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_ANY: Final = msgspec.json.Decoder()
_REFUSALS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
Place = tuple[str | int, ...]
Exact = Callable[[Any, Place], Any]
"""JSON text, which is bytes or Raw, and its place -> value, or an UnfitValue for what is not of its type."""


class JsonReader:
    """Reads bodies of one shape, whatever their content type says: what is such JSON is taken."""

    def __init__(self, shape: Shape) -> None:
        self._leaves = LeafTypes()
        self._classes: dict[Struct, type] = {}
        self._speaks_names = True
        typed = self._typed(shape)
        self._exact = self._compiled(shape)
        decoder = msgspec.json.Decoder(typed, dec_hook=self._leaves.hook)
        self._fast: Callable[[bytes], Any] | None = decoder.decode if self._speaks_names else None
        self._keeps_text = _keeps_text(shape)

    def read(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None]
    ) -> tuple[list[Any], list[Undecoded]]:
        values: list[Any] = []
        undecoded: list[Undecoded] = []
        for begin in range(0, len(bodies), _AT_ONCE):
            rows = slice(begin, begin + _AT_ONCE)
            ordinary = self._ordinary(bodies[rows])
            if ordinary is not None:
                values += ordinary
                continue
            refused: list[Undecoded] = []
            values += self._each(bodies[rows], content_types[rows], refused)
            undecoded += (Undecoded(begin + one.row, one.why) for one in refused)
        return values, undecoded

    def take(self, struct: Struct) -> Take:
        return [attrgetter(f"f{at}") for at in range(len(struct.members))]

    def text(self, value: Any) -> str | None:
        text = bytes(value).decode("utf-8")
        return None if text == "null" else text

    def _ordinary(self, bodies: Sequence[bytes | None]) -> list[Any] | None:
        """Return the values of bodies that the typed decoder takes, without a step of Python for each; else None."""
        if self._fast is None or None in bodies:
            return None
        there = cast("Sequence[bytes]", bodies)
        if max(map(len, there)) > MAX_BODY_BYTES or (self._keeps_text and not all(map(bytes.isascii, there))):
            return None
        try:
            return list(map(self._fast, there))
        except _REFUSALS:
            return None

    def _each(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None], undecoded: list[Undecoded]
    ) -> Iterator[Any]:
        for row, body, _ in present(bodies, content_types, undecoded):
            value = None
            if body is not None:
                try:
                    value = self._value(body)
                except UnreadableBody as unfit:
                    undecoded.append(Undecoded(row, unfit.why))
            yield value

    def _value(self, body: bytes) -> Any:
        if self._fast is not None and (not self._keeps_text or body.isascii() or _is_text(body)):
            try:
                return self._fast(body)
            except _REFUSALS:
                pass  # looked into again, member by member
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            raise UnreadableBody(value.message, value.path)
        return self._exact(body.removeprefix(_BYTE_ORDER_MARK), ())

    def _typed(self, shape: Shape) -> Any:
        """Return the msgspec type of a shape that may be null; it has a class for every struct."""
        if isinstance(shape, Struct):
            return self._class(shape) | None
        if isinstance(shape, List):
            return list[self._typed(shape.item)] | None  # type: ignore[misc]  # a type that is made at run time
        if isinstance(shape, MapShape):
            return dict[str, self._typed(shape.value)] | None  # type: ignore[misc]
        kind = self._leaves.type_of(shape)
        return kind if shape.kind == "json" else kind | None

    def _class(self, struct: Struct) -> Any:
        if struct not in self._classes:
            fields = [(f"f{at}", self._typed(member.shape), None) for at, member in enumerate(struct.members)]
            names = {f"f{at}": member.name for at, member in enumerate(struct.members)}
            try:
                self._classes[struct] = _defined(fields, names, positional=struct.positional)
            except ValueError:  # a quote, a backslash or a control character in a name
                self._speaks_names = False
                self._classes[struct] = _defined(fields, None, positional=struct.positional)
        return self._classes[struct]

    def _compiled(self, shape: Shape) -> Exact:
        if isinstance(shape, Struct):
            parts = [(member.name, self._compiled(member.shape)) for member in shape.members]
            return _row(self._classes[shape], parts) if shape.positional else _object(self._classes[shape], parts)
        if isinstance(shape, List):
            return _list(self._compiled(shape.item))
        if isinstance(shape, MapShape):
            return _map(self._compiled(shape.value))
        return _leaf(shape, self._leaves)


def _defined(fields: list[Any], names: dict[str, str] | None, *, positional: bool) -> type:
    if positional:
        fields = [field[:2] for field in fields]
    # Values live for one batch and hold no cycles: the collector need not look at them.
    return msgspec.defstruct(
        "Row", fields, rename=names, array_like=positional, forbid_unknown_fields=positional, gc=False
    )


def _decoded(decoder: msgspec.json.Decoder[Any], text: Any, place: Place) -> Any:
    try:
        return decoder.decode(text)
    except _REFUSALS as error:
        return _unfit(str(error).partition(" - at `")[0], place)


def _unfit(why: str, place: Place) -> UnfitValue:
    return UnfitValue(str(fault(why, as_pointer(list(place)))))


def _is_null(text: Any) -> bool:
    return bytes(text).strip(b" \t\r\n") == b"null"


def _object(kind: type, parts: Sequence[tuple[str, Exact]]) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        members = _decoded(_MEMBERS, text, place)
        if isinstance(members, UnfitValue):
            return members
        return kind(*(exact(members[name], (*place, name)) if name in members else None for name, exact in parts))

    return read


def _row(kind: type, parts: Sequence[tuple[str, Exact]]) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        items = _decoded(_ITEMS, text, place)
        if isinstance(items, UnfitValue):
            return items
        if len(items) != len(parts):
            return _unfit(f"it has {len(items)} items and not {len(parts)}", place)
        return kind(
            *(exact(each, (*place, at)) for at, (each, (_, exact)) in enumerate(zip(items, parts, strict=True)))
        )

    return read


def _list(item: Exact) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        items = _decoded(_ITEMS, text, place)
        if isinstance(items, UnfitValue):
            return items
        return [item(each, (*place, at)) for at, each in enumerate(items)]

    return read


def _map(inner: Exact) -> Exact:
    def read(text: Any, place: Place) -> Any:
        if _is_null(text):
            return None
        members = _decoded(_MEMBERS, text, place)
        if isinstance(members, UnfitValue):
            return members
        return {name: inner(each, (*place, name)) for name, each in members.items()}

    return read


def _leaf(leaf: Leaf, leaves: LeafTypes) -> Exact:
    decoder = leaves.decoder(leaf)

    def read(text: Any, place: Place) -> Any:
        if leaf.kind == "json":
            return text
        if _is_null(text):
            return None
        if leaf.kind == "integer":
            try:
                return whole(_decoded(_ANY, text, place), leaf)
            except ValueError:
                pass  # the decoder says what is wrong, or takes it
        return _decoded(decoder, text, place)

    return read


def _is_text(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _keeps_text(shape: Shape) -> bool:
    if isinstance(shape, Struct):
        return any(_keeps_text(member.shape) for member in shape.members)
    if isinstance(shape, List):
        return _keeps_text(shape.item)
    return _keeps_text(shape.value) if isinstance(shape, MapShape) else shape.kind == "json"


# From a JSON schema of either family to a shape: references followed, what holds together merged, unions settled.
#
# A union is typed when all its branches have one shape, null aside; integers and other numbers are numbers. Any other
# stays JSON text, and so does a type within itself: tables have no columns without end.

Schema = Mapping[str, Any]
Within = tuple[int, ...]
"""Schemas that are being looked into, by identity; those that are only merged into another, by the negative of it."""
MAX_HOPS: Final = 64
_BRANCHES: Final = ("oneOf", "anyOf")


class Untypable(Exception):
    """A place that has no type; the message says why."""


class Never(Exception):
    """A place that no value but null can be at."""


@dataclass(slots=True)
class _Flat:
    """What one schema asks, without references: parts that hold together, and groups of which one branch holds."""

    parts: list[Schema] = field(default_factory=list)
    groups: list[Sequence[Any]] = field(default_factory=list)
    within: Within = ()


class Composition(ABC):
    """Finds the shapes of one document and all that it refers to; each family says what is special to it."""

    keywords: frozenset[str] = frozenset()
    """Keywords that decide upon columns, without those of composition."""

    def __init__(self, documents: SchemaDocuments, survey: Survey) -> None:
        self.documents = documents
        self.survey = survey

    def root(self, schema: Any) -> Shape | None:
        """Return the shape of payloads; None when nothing of them can be typed."""
        try:
            return self._composed(schema, (), (id(schema),))
        except (Untypable, Unfillable) as error:
            self.survey.note((), f"has no columns: {error}")
        except Never:
            self.survey.note((), "has no columns: no value but null is allowed")
        return None

    def shape(self, schema: Any, path: Path, within: Within) -> Shape:
        """Return the shape at a place in payloads, JSON text where there is no other."""
        fields = self.survey.fields
        try:
            return self._composed(schema, path, within)
        except (Untypable, Unfillable) as error:
            why = str(error)
        except Never:
            why = "no value but null is allowed"
        self.survey.fields = fields
        return self.survey.text(path, why)

    def struct(self, asked: Mapping[str, Any], path: Path, within: Within, *, positional: bool = False) -> Struct:
        """Return the shape of an object with those members.

        Raises:
            Untypable: there is no room for them.
        """
        if not asked:
            raise Untypable("it has no members")
        columns = self.survey.columns(path, list(asked))
        if not columns:
            raise Untypable("the payload has too many fields")
        members = (Member(name, column, self.shape(asked[name], (*path, name), within)) for name, column in columns)
        return Struct(tuple(members), positional)

    @abstractmethod
    def plain(self, schema: Schema, path: Path, within: Within) -> Shape:
        """Return the shape of a schema without references and composition.

        Raises:
            Untypable: there is none.
            Never: it allows nothing but null.
        """

    @abstractmethod
    def bases(self, schema: Schema) -> Iterable[tuple[Any, bool]]:
        """Yield what *schema* refers to, each with whether it is the very type meant, and not one that it builds upon.

        Raises:
            Unfillable: a reference leads nowhere.
        """

    def rest(self, schema: Schema) -> Schema:
        """Return what of a schema counts beside what it refers to."""
        return schema

    def groups(self, schema: Schema) -> Iterable[Sequence[Any]]:
        """Yield the unions of a schema, each as its branches."""
        rest = self.rest(schema)
        return (rest[each] for each in _BRANCHES if isinstance(rest.get(each), list) and rest[each])

    def _composed(self, schema: Any, path: Path, within: Within) -> Shape:
        passed = self.survey.limit(path)
        if passed:
            raise Untypable(passed)
        flat = _Flat(within=within)
        self._flatten(schema, flat, 0, is_type=True)
        whole = merged(flat.parts)
        if not flat.groups:
            return self.plain(whole, path, flat.within)
        others = [{"anyOf": list(group)} for group in flat.groups[1:]]
        base = [whole, *others] if whole or others else []
        return self._union(base, flat.groups[0], path, flat.within)

    def _union(self, base: Sequence[Schema], branches: Sequence[Any], path: Path, within: Within) -> Shape:
        shapes: list[Shape] = []
        fields = most = self.survey.fields
        for branch in branches:
            self.survey.fields = fields
            try:
                shape = self._composed({"allOf": [*base, branch]} if base else branch, path, within)
            except Never:
                continue
            most = max(most, self.survey.fields)
            if shape not in shapes:
                shapes.append(shape)
        self.survey.fields = most
        if not shapes:
            raise Never
        if len(shapes) == 1:
            return shapes[0]
        if all(isinstance(each, Leaf) and each.kind in ("integer", "number") for each in shapes):
            return DOUBLE
        raise Untypable("it may be of several types")

    def _flatten(self, schema: Any, flat: _Flat, hops: int, *, is_type: bool) -> None:
        if schema is False:
            raise Never
        if schema is True:
            return
        passed = "a reference leads to itself" if hops > MAX_HOPS else self.survey.limit(())
        if passed or not isinstance(schema, Mapping):
            raise Untypable(passed or "the schema is not an object there")
        for target, is_same in self.bases(schema):
            if isinstance(target, Mapping):
                self._enter(target, flat, is_type=is_type and is_same)
            self._flatten(target, flat, hops + 1, is_type=is_type and is_same)
        rest = self.rest(schema)
        own = {keyword: value for keyword, value in rest.items() if keyword in self.keywords}
        if own:
            flat.parts.append(own)
        together = rest.get("allOf")
        for each in together if isinstance(together, list) else ():
            self._flatten(each, flat, hops + 1, is_type=False)
        flat.groups.extend(self.groups(schema))

    def _enter(self, target: Any, flat: _Flat, *, is_type: bool) -> None:
        """Note that *target* is looked into. A type is looked into once as itself, and once as a part of others."""
        key = id(target)
        if key in flat.within or (not is_type and -key in flat.within):
            raise Untypable("the type contains itself")
        flat.within = (*flat.within, key if is_type else -key)
