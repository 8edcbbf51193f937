"""JSON bodies as the values of a shape: read by msgspec's typed decoder, and looked into again when that refuses one.

The typed decoder builds only what has a column, and leaves the text of ``json`` leaves as it is. The exact reader goes
member by member with the same decoders of leaves: it finds the values that do not fit, takes integers that are written
``1.0``, and serves schemas with names that msgspec does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from catalog.parsing.pointers import as_pointer
from catalog.schemas.bodies import UnfitValue, fault
from catalog.schemas.columns.columns import Take
from catalog.schemas.columns.reading import Undecoded, Unfit, present
from catalog.schemas.columns.shapes import Leaf, Shape, Struct, Table
from catalog.schemas.columns.shapes import Sequence as List
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaFault
from catalog.schemas.json.leaves import LeafTypes, whole
from catalog.schemas.jsonschema.validating import parse_body

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
                except Unfit as unfit:
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
            raise Unfit(value.message, value.path)
        return self._exact(body.removeprefix(_BYTE_ORDER_MARK), ())

    def _typed(self, shape: Shape) -> Any:
        """Return the msgspec type of a shape that may be null; it has a class for every struct."""
        if isinstance(shape, Struct):
            return self._class(shape) | None
        if isinstance(shape, List):
            return list[self._typed(shape.item)] | None  # type: ignore[misc]  # a type that is made at run time
        if isinstance(shape, Table):
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
        if isinstance(shape, Table):
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
    return _keeps_text(shape.value) if isinstance(shape, Table) else shape.kind == "json"
