"""Columns of Protobuf payloads: the shapes of messages, and the values of their fields.

An omitted field has its default if it has no presence, and is null otherwise. Enums are the names of their values, or
the number of an unnamed value. ``Timestamp`` is an instant with microseconds, ``Duration`` and ``FieldMask`` text in
the form of the JSON mapping (``1.5s``), wrappers are their value, ``Struct`` and similar types JSON text, and so are
recursive messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from catalog.schemas import columns as shapes
from catalog.schemas.contract import Library, SchemaFault, SchemaSource, UnfitValue
from catalog.schemas.protobuf.json import iter_unfit_paths
from catalog.schemas.protobuf.validating import PartialMessage, ProtobufValidator, ResolvedMessages, open_message

_SCALARS: Final[Mapping[int, shapes.Leaf]] = {
    FieldDescriptor.CPPTYPE_INT32: shapes.integer_leaf(32),
    FieldDescriptor.CPPTYPE_INT64: shapes.integer_leaf(64),
    FieldDescriptor.CPPTYPE_UINT32: shapes.integer_leaf(32, signed=False),
    FieldDescriptor.CPPTYPE_UINT64: shapes.integer_leaf(64, signed=False),
    FieldDescriptor.CPPTYPE_DOUBLE: shapes.DOUBLE,
    FieldDescriptor.CPPTYPE_FLOAT: shapes.FLOAT,
    FieldDescriptor.CPPTYPE_BOOL: shapes.BOOLEAN,
    FieldDescriptor.CPPTYPE_ENUM: shapes.TEXT,
    FieldDescriptor.CPPTYPE_STRING: shapes.TEXT,
}
_PACKAGE: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_PACKAGE}{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_TEXTS: Final = frozenset({f"{_PACKAGE}Duration", f"{_PACKAGE}FieldMask"})
_OPEN: Final = frozenset(f"{_PACKAGE}{kind}" for kind in ("Any", "ListValue", "Struct", "Value"))
_TIMESTAMP: Final = f"{_PACKAGE}Timestamp"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Field = Any
"""A field descriptor, whose class depends on the implementation of protobuf."""
Form = Callable[[Any], Any]


def open_columns(
    source: SchemaSource, library: Library, survey: shapes.Survey
) -> tuple[shapes.Shape, shapes.BodyReader] | None:
    """Return the shape of payloads and their reader; None if they have no typed columns."""
    own = open_message(source, library)
    shape = _ShapeFinder(survey).message_shape(own.message.DESCRIPTOR, (), ())
    reads = own if source.written is None else ResolvedMessages(own, source.written)
    return None if shape == shapes.JSON else (shape, ProtobufReader(own, reads))


class _ShapeFinder:
    def __init__(self, survey: shapes.Survey) -> None:
        self._survey = survey

    def message_shape(self, descriptor: Any, path: shapes.Path, within: tuple[str, ...]) -> shapes.Shape:
        name = descriptor.full_name
        passed = self._survey.check_limits(path)
        if passed or name in within:
            return self._survey.add_json_text(path, passed or "the message contains itself")
        if name == _TIMESTAMP:
            return shapes.TIMESTAMP
        if name in _TEXTS:
            return shapes.TEXT
        if name in _WRAPPERS:
            return _scalar_leaf(descriptor.fields_by_name["value"])
        if name in _OPEN:
            return self._survey.add_json_text(path, f"a {descriptor.name} may contain anything")
        fields = list(descriptor.fields)

        def make_member(at: int, own: str, column: str) -> shapes.Member:
            return shapes.Member(own, column, self._field_shape(fields[at], (*path, own), (*within, name)))

        return self._survey.build_struct(path, [field.name for field in fields], make_member)

    def _field_shape(self, field: Field, path: shapes.Path, within: tuple[str, ...]) -> shapes.Shape:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            inner = self._value_shape(kind.fields_by_name["value"], (*path, "*"), within)
            return shapes.MapShape(inner, _scalar_leaf(kind.fields_by_name["key"]))
        if field.is_repeated:
            return shapes.ListShape(self._value_shape(field, (*path, "*"), within))
        return self._value_shape(field, path, within)

    def _value_shape(self, field: Field, path: shapes.Path, within: tuple[str, ...]) -> shapes.Shape:
        kind = field.message_type
        return _scalar_leaf(field) if kind is None else self.message_shape(kind, path, within)


def _scalar_leaf(field: Field) -> shapes.Leaf:
    return shapes.BINARY if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type]


class ProtobufReader(shapes.BodyReader):
    """Reads bodies as messages, by content type as in validation; unknown fields are dropped."""

    def __init__(self, validator: ProtobufValidator, reads: ProtobufValidator | ResolvedMessages) -> None:
        self._validator = validator
        self._reads = reads

    def read_value(self, body: bytes, content_type: str | None) -> Any:
        message = self._reads.read(body, content_type)
        if isinstance(message, SchemaFault):
            raise shapes.UnreadableBody(message.message, message.path)
        return message

    def getters_of(self, struct: shapes.Struct) -> shapes.Getters:
        return [_make_getter(member) for member in struct.members]

    def to_json(self, value: Any) -> str | None:
        if isinstance(value, PartialMessage):
            raise ValueError(next(why for _, why in iter_unfit_paths(value.unfit)))
        text = self._validator.to_json(value)
        return None if text == "null" else text


def _make_getter(member: shapes.Member) -> Form:
    """Return the getter of a field's value from its message.

    All messages at one path of a payload have the same type, which is taken from the first message.
    """
    getters: list[Form] = []

    def get(message: Any) -> Any:
        unfit = None
        if type(message) is PartialMessage:
            message, unfit = message.message, message.unfit.get(member.name)
        if not getters:
            getters.append(_bind_getter(message.DESCRIPTOR.fields_by_name[member.name], member.shape))
        value = getters[0](message)
        return value if unfit is None else _mark_unfit(value, unfit)

    return get


def _mark_unfit(value: Any, unfit: Any) -> Any:
    """Return a value with its invalid parts marked."""
    if isinstance(unfit, UnfitValue):
        return unfit
    if isinstance(value, list):
        return [_mark_unfit(each, unfit[at,]) if (at,) in unfit else each for at, each in enumerate(value)]
    if isinstance(value, dict):
        return {key: _mark_unfit(each, unfit[key,]) if (key,) in unfit else each for key, each in value.items()}
    return PartialMessage(value, unfit)


def _bind_getter(field: Field, shape: shapes.Shape) -> Form:
    name, kind = field.name, field.message_type
    if isinstance(shape, shapes.MapShape):
        inner = _converter_for(kind.fields_by_name["value"], shape.value)
        return lambda message: {key: inner(value) for key, value in getattr(message, name).items()}
    if isinstance(shape, shapes.ListShape):
        each = _converter_for(field, shape.item)
        return lambda message: [each(value) for value in getattr(message, name)]
    form = _converter_for(field, shape)
    if field.has_presence:
        return lambda message: form(getattr(message, name)) if message.HasField(name) else None
    return attrgetter(name) if form is _identity else lambda message: form(getattr(message, name))


def _converter_for(field: Field, shape: shapes.Shape) -> Form:
    """Return the converter of a field's value to that of its shape."""
    if field.enum_type is not None:
        return _enum_converter(field.enum_type)
    if field.message_type is None or shape == shapes.JSON:
        return _identity
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return _to_instant
    if name in _TEXTS:
        return _to_text
    return attrgetter("value") if name in _WRAPPERS else _identity


def _identity(value: Any) -> Any:
    return value


def _to_instant(value: Any) -> datetime | UnfitValue:
    try:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    except OverflowError:
        return UnfitValue("a timestamp lies outside of the years 1 to 9999")


def _to_text(value: Any) -> str | UnfitValue:
    try:
        return str(value.ToJsonString())
    except ValueError as error:
        return UnfitValue(str(error))


def _enum_converter(enum: EnumDescriptor) -> Form:
    names: dict[int, str] = {}
    for value in enum.values:
        names.setdefault(value.number, value.name)  # the first name, if a number has several
    return lambda number: names.get(number) or str(number)
