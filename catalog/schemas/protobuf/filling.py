"""Sample payloads for Protobuf: in the binary encoding, or the JSON mapping for JSON content types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError, Message

from catalog.schemas.contract import Library, SchemaSource, is_json_data
from catalog.schemas.filling import Chooser, PayloadSampler, UnsupportedSchema
from catalog.schemas.protobuf.validating import open_message

_Field = Any
"""A field descriptor, whose class depends on the implementation of protobuf."""
_SCALARS: Final[Mapping[int, Callable[[Chooser], Any]]] = {
    FieldDescriptor.CPPTYPE_INT32: lambda chooser: chooser.random.randrange(1000),
    FieldDescriptor.CPPTYPE_INT64: lambda chooser: chooser.random.randrange(100_000),
    FieldDescriptor.CPPTYPE_UINT32: lambda chooser: chooser.random.randrange(1000),
    FieldDescriptor.CPPTYPE_UINT64: lambda chooser: chooser.random.randrange(100_000),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda chooser: chooser.random.randrange(100_000) / 64,
    FieldDescriptor.CPPTYPE_FLOAT: lambda chooser: chooser.random.randrange(100_000) / 64,
    FieldDescriptor.CPPTYPE_BOOL: lambda chooser: chooser.flip(0.5),
}
_WELL_KNOWN: Final = "google.protobuf."
_TEXT_FORMS: Final[Mapping[str, Callable[[Chooser], Any]]] = {
    "Any": lambda chooser: {},  # consumers would have to know the type in it
    "Duration": lambda chooser: f"{chooser.random.randrange(1, 600)}s",
    "FieldMask": lambda chooser: chooser.pick(("name", "place", "name,place")),
    "ListValue": lambda chooser: [chooser.make_word()],
    "Struct": lambda chooser: {chooser.make_word(): chooser.random.randrange(100)},
    "Timestamp": lambda chooser: chooser.now,
    "Value": lambda chooser: chooser.make_word(),
}
"""Makes the JSON mapping of well-known types with a special form."""


def open_sampler(source: SchemaSource, library: Library) -> PayloadSampler:
    """Return the generator of sample payloads for a schema."""
    return ProtobufSampler(open_message(source, library).message)


class ProtobufSampler:
    """Makes sample messages of one class."""

    def __init__(self, message: type[Message]) -> None:
        self._message = message

    def payload(self, chooser: Chooser, content_type: str) -> bytes:
        message = self._message()
        _fill_message(message, chooser, 0)
        try:
            if is_json_data(content_type):
                return json_format.MessageToJson(message, indent=None).encode("utf-8")
            return message.SerializeToString(deterministic=True)
        except (EncodeError, json_format.Error) as error:
            raise UnsupportedSchema(f"the message cannot be written: {str(error)[:120]}") from error


def _fill_message(message: Message, chooser: Chooser, level: int) -> None:
    """Set the fields of *message*: one field of each ``oneof``, and optional fields at random."""
    chooser.count_value(level)
    descriptor = message.DESCRIPTOR
    if descriptor.full_name.startswith(_WELL_KNOWN) and descriptor.name in _TEXT_FORMS:
        json_format.Parse(json.dumps(_TEXT_FORMS[descriptor.name](chooser)), message)
        return
    # An optional field of proto3 is a oneof with one field.
    several: list[_Field] = [group for group in descriptor.oneofs if len(group.fields) > 1]
    choices = {group.name: chooser.pick(group.fields).name for group in several}
    fields: list[_Field] = list(descriptor.fields)
    for field in fields:
        group = field.containing_oneof
        if group is not None and choices.get(group.name, field.name) != field.name:
            continue
        if field.is_required or _includes_field(field, chooser, level):
            _set_field(message, field, chooser, level)


def _includes_field(field: _Field, chooser: Chooser, level: int) -> bool:
    """Whether to set an optional field. Fields without presence are always set, since they have a default anyway."""
    return chooser.includes(level) or (field.message_type is None and not field.has_presence and not field.is_repeated)


def _set_field(message: Message, field: _Field, chooser: Chooser, level: int) -> None:
    if not field.is_repeated:
        if field.message_type is None:
            setattr(message, field.name, _make_scalar(field, chooser))
        else:
            part = getattr(message, field.name)
            part.SetInParent()
            _fill_message(part, chooser, level + 1)
        return
    entries = getattr(message, field.name)
    for _ in range(chooser.pick_count(0, None, level)):
        if field.message_type is None:
            entries.append(_make_scalar(field, chooser))
        elif field.message_type.GetOptions().map_entry:
            _put_entry(entries, field.message_type.fields_by_name, chooser, level)
        else:
            _fill_message(entries.add(), chooser, level + 1)


def _put_entry(entries: Any, entry: Mapping[str, Any], chooser: Chooser, level: int) -> None:
    """Add one entry to a map field."""
    name = _make_scalar(entry["key"], chooser)
    if entry["value"].message_type is None:
        entries[name] = _make_scalar(entry["value"], chooser)
    else:
        _fill_message(entries[name], chooser, level + 1)


def _make_scalar(field: _Field, chooser: Chooser) -> Any:
    if field.enum_type is not None:
        return chooser.pick(field.enum_type.values).number
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return chooser.make_bytes() if field.type == FieldDescriptor.TYPE_BYTES else chooser.make_word()
    return _SCALARS[field.cpp_type](chooser)
