"""Messages for Protobuf: each field set, in the binary encoding, or in the JSON mapping for JSON content types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError, Message

from catalog.schemas.contract import Library, SchemaSource, is_json_data
from catalog.schemas.filling import Filler, Filling, Unfillable
from catalog.schemas.protobuf.validating import open_message

_Field = Any
"""A descriptor of a field; its class depends on how protobuf was built."""
_SCALARS: Final[Mapping[int, Callable[[Filling], Any]]] = {
    FieldDescriptor.CPPTYPE_INT32: lambda filling: filling.random.randrange(1000),
    FieldDescriptor.CPPTYPE_INT64: lambda filling: filling.random.randrange(100_000),
    FieldDescriptor.CPPTYPE_UINT32: lambda filling: filling.random.randrange(1000),
    FieldDescriptor.CPPTYPE_UINT64: lambda filling: filling.random.randrange(100_000),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda filling: filling.random.randrange(100_000) / 64,
    FieldDescriptor.CPPTYPE_FLOAT: lambda filling: filling.random.randrange(100_000) / 64,
    FieldDescriptor.CPPTYPE_BOOL: lambda filling: filling.chance(0.5),
}
_WELL_KNOWN: Final = "google.protobuf."
_TEXT_FORMS: Final[Mapping[str, Callable[[Filling], Any]]] = {
    "Any": lambda filling: {},  # what it holds would have to be known to whoever reads it
    "Duration": lambda filling: f"{filling.random.randrange(1, 600)}s",
    "FieldMask": lambda filling: filling.pick(("name", "place", "name,place")),
    "ListValue": lambda filling: [filling.word()],
    "Struct": lambda filling: {filling.word(): filling.random.randrange(100)},
    "Timestamp": lambda filling: filling.now,
    "Value": lambda filling: filling.word(),
}
"""Well-known types whose values are bound to a form, made through their JSON mapping."""


def open_filler(source: SchemaSource, library: Library) -> Filler:
    """Return what makes payloads for a schema."""
    return ProtobufFiller(open_message(source, library).message)


class ProtobufFiller:
    """Makes messages of one class that was built from a compiled schema."""

    def __init__(self, message: type[Message]) -> None:
        self._message = message

    def payload(self, filling: Filling, content_type: str) -> bytes:
        message = self._message()
        _fill(message, filling, 0)
        try:
            if is_json_data(content_type):
                return json_format.MessageToJson(message, indent=None).encode("utf-8")
            return message.SerializeToString(deterministic=True)
        except (EncodeError, json_format.Error) as error:
            raise Unfillable(f"the message cannot be written: {str(error)[:120]}") from error


def _fill(message: Message, filling: Filling, level: int) -> None:
    """Set the fields of *message*; one of each ``oneof``, optional ones as *filling* wants."""
    filling.spend(level)
    descriptor = message.DESCRIPTOR
    if descriptor.full_name.startswith(_WELL_KNOWN) and descriptor.name in _TEXT_FORMS:
        json_format.Parse(json.dumps(_TEXT_FORMS[descriptor.name](filling)), message)
        return
    # An optional field of proto3 is a oneof of its own.
    several: list[_Field] = [group for group in descriptor.oneofs if len(group.fields) > 1]
    choices = {group.name: filling.pick(group.fields).name for group in several}
    fields: list[_Field] = list(descriptor.fields)
    for field in fields:
        group = field.containing_oneof
        if group is not None and choices.get(group.name, field.name) != field.name:
            continue
        if field.is_required or _is_wanted(field, filling, level):
            _set(message, field, filling, level)


def _is_wanted(field: _Field, filling: Filling, level: int) -> bool:
    """Whether a field that may be absent is set. One without presence is always there, if only as its default."""
    return filling.wants(level) or (field.message_type is None and not field.has_presence and not field.is_repeated)


def _set(message: Message, field: _Field, filling: Filling, level: int) -> None:
    if not field.is_repeated:
        if field.message_type is None:
            setattr(message, field.name, _scalar(field, filling))
        else:
            part = getattr(message, field.name)
            part.SetInParent()
            _fill(part, filling, level + 1)
        return
    entries = getattr(message, field.name)
    for _ in range(filling.count(0, None, level)):
        if field.message_type is None:
            entries.append(_scalar(field, filling))
        elif field.message_type.GetOptions().map_entry:
            _put(entries, field.message_type.fields_by_name, filling, level)
        else:
            _fill(entries.add(), filling, level + 1)


def _put(entries: Any, entry: Mapping[str, Any], filling: Filling, level: int) -> None:
    """Put one entry into a map field."""
    name = _scalar(entry["key"], filling)
    if entry["value"].message_type is None:
        entries[name] = _scalar(entry["value"], filling)
    else:
        _fill(entries[name], filling, level + 1)


def _scalar(field: _Field, filling: Filling) -> Any:
    if field.enum_type is not None:
        return filling.pick(field.enum_type.values).number
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return filling.bytes() if field.type == FieldDescriptor.TYPE_BYTES else filling.word()
    return _SCALARS[field.cpp_type](filling)
