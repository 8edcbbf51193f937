"""Protobuf's compatibility, as far as descriptors decide it: whether a reader's messages read what a writer's wrote.

What counts is the binary encoding: numbers and types of fields, and not their names. A reader passes over fields that
it does not have. What it reads is to be what was written: a number that can turn into another is a fault, even though
every parser takes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor as Field

from catalog.schemas.contract import SchemaError, SchemaSource
from catalog.schemas.protobuf.validating import open_message
from registry.compatibility.formats import NoLibrary
from registry.compatibility.undecided import Budget, Undecided

_MESSAGE: Final = 10
"""Steps that a pair of messages costs, and each field of either."""
_NAMES: Final = {getattr(Field, name): name.removeprefix("TYPE_").lower() for name in dir(Field) if name[:5] == "TYPE_"}
_WIDER: Final = {
    Field.TYPE_INT32: {Field.TYPE_INT64},
    Field.TYPE_UINT32: {Field.TYPE_UINT64, Field.TYPE_INT64},
    Field.TYPE_SINT32: {Field.TYPE_SINT64},
    Field.TYPE_BOOL: {Field.TYPE_INT32, Field.TYPE_INT64, Field.TYPE_UINT32, Field.TYPE_UINT64},
    Field.TYPE_ENUM: {Field.TYPE_INT32, Field.TYPE_INT64},
    Field.TYPE_STRING: {Field.TYPE_BYTES},
}
"""By what was written: the other types that read all of its values as they were."""
_UNKNOWN: Final = {
    (Field.TYPE_ENUM, Field.TYPE_INT32),
    (Field.TYPE_BYTES, Field.TYPE_MESSAGE),
}
"""Reader and writer of which some values are read, and others may be."""
Messages = Mapping[str, Any]
"""The messages of a file by their names within its package, the first one first."""
Fields = Mapping[int, Any]


def unreadable(reader: Messages, writer: Messages, budget: Budget) -> str:
    """Return why data written with *writer* cannot be read with *reader*, '' when it always can.

    Messages are those of one name within their packages; the first of both files, which are meant where a reference
    names none, are compared as well.

    Raises:
        Undecided: there is no certain answer.
    """
    resolution = _Resolution(budget)
    for name, message in writer.items():
        if name not in reader:
            return f"message {name} is not there any more"
        if why := resolution.fault(reader[name], message):
            return why
    if why := resolution.fault(next(iter(reader.values())), next(iter(writer.values()))):
        return why
    if resolution.doubts:
        raise Undecided(resolution.doubts[0])
    return ""


class _Resolution:
    """Compares messages, each pair of them once; ``doubts`` are the questions without a certain answer."""

    def __init__(self, budget: Budget) -> None:
        self.doubts: list[str] = []
        self._budget = budget
        self._seen: set[tuple[str, str]] = set()
        self._fields: dict[tuple[int, str], Fields] = {}

    def fault(self, reader: Any, writer: Any) -> str:
        """Return why messages of one type cannot be read as those of another, '' when they can or it is uncertain."""
        waiting = [(reader, writer)]
        while waiting:
            one, other = waiting.pop()
            pair = one.full_name, other.full_name
            if pair in self._seen:
                continue
            self._seen.add(pair)
            known, written = self._fields_of(one, 0), self._fields_of(other, 1)
            ranges = len(one.extension_ranges) + len(other.extension_ranges)
            self._budget.spend(_MESSAGE * (1 + len(known) + len(written)) + ranges * (len(known) + len(written)))
            if why := self._own_fault(one, other, known, written):
                return why
            for number, field in written.items():
                same = known.get(number)
                if same is not None and same.message_type is not None and field.message_type is not None:
                    waiting.append((same.message_type, field.message_type))
        return ""

    def _fields_of(self, message: Any, side: int) -> Fields:
        """Return the fields of a message of one side by number, with the extensions that its file gives it."""
        key = side, message.full_name
        if key not in self._fields:
            extensions = message.file.pool.FindAllExtensions(message)
            self._fields[key] = {**message.fields_by_number, **{each.number: each for each in extensions}}
        return self._fields[key]

    def _own_fault(self, reader: Any, writer: Any, known: Fields, written: Fields) -> str:
        """Compare two messages, but for the messages in them."""
        for number, field in known.items():
            was = written.get(number)
            if field.is_required and (was is None or not was.is_required):
                return f"{field.full_name} is required, and may be missing in what was written"
            if was is None and _extends(writer, number):
                self.doubts.append(f"{field.full_name} has a number that extensions had")
        members: Counter[str] = Counter()
        for number, field in written.items():
            same = known.get(number)
            if same is None:
                if _extends(reader, number):
                    self.doubts.append(f"{field.full_name} has a number that extensions have")
                continue
            if why := self._field_fault(same, field):
                return f"{same.full_name}: {why}"
        for together in _oneofs(writer, written):
            members.update({name for number in together for name in _oneof_of(known.get(number))})
        crowded = next((name for name, count in members.items() if count > 1), None)
        return f"fields of oneof {reader.full_name}.{crowded} could be set beside one another" if crowded else ""

    def _field_fault(self, reader: Any, writer: Any) -> str:
        if writer.is_repeated and not reader.is_repeated:
            return "it had several values, and has one"
        if _is_map(reader) != _is_map(writer) and writer.is_repeated:
            if reader.type == writer.type:
                self.doubts.append(f"{reader.full_name} is a map, and its entries were none, or the other way round")
                return ""
            return "it is a map on one side only"
        one, other = reader.type, writer.type
        if one != other and one not in _WIDER.get(other, ()):
            if (one, other) in _UNKNOWN:
                self.doubts.append(f"{reader.full_name} is {_NAMES[one]} and was {_NAMES[other]}")
                return ""
            return f"{_NAMES[other]} cannot be read as {_NAMES[one]}"
        if one != Field.TYPE_ENUM or other != Field.TYPE_ENUM:
            return ""
        self._budget.spend(len(reader.enum_type.values) + len(writer.enum_type.values))
        return _enum_fault(reader.enum_type, writer.enum_type)


def messages_of(source: SchemaSource) -> Messages:
    """Return the messages that a file defines.

    Raises:
        Undecided: it cannot be compiled here.
    """
    try:
        file = open_message(source, NoLibrary()).message.DESCRIPTOR.file
    except SchemaError as error:
        raise Undecided(str(error)) from error
    prefix = f"{file.package}." if file.package else ""
    tops = file.message_types_by_name.values()
    return {each.full_name.removeprefix(prefix): each for each in _nested(tops)}


def _nested(messages: Any) -> Iterator[Any]:
    for each in messages:
        if not each.GetOptions().map_entry:
            yield each
            yield from _nested(each.nested_types)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _extends(message: Any, number: int) -> bool:
    return any(first <= number < end for first, end in message.extension_ranges)


def _oneofs(message: Any, fields: Fields) -> Iterator[list[int]]:
    """Yield the numbers of fields of which one at most is set."""
    yield from ([field.number for field in each.fields] for each in message.oneofs)
    yield from ([number] for number, each in fields.items() if each.containing_oneof is None)


def _oneof_of(field: Any) -> Iterator[str]:
    if field is not None and field.containing_oneof is not None:
        yield field.containing_oneof.name


def _enum_fault(reader: Any, writer: Any) -> str:
    """Compare two enums: an open one keeps the numbers that it has no name for, a closed one refuses them."""
    if not reader.is_closed:
        return ""
    if not writer.is_closed:
        return f"enum {reader.full_name} is closed, and {writer.full_name} was open"
    gone = [each for each in writer.values if each.number not in reader.values_by_number]
    return f"enum {reader.full_name} lacks {gone[0].name}" if gone else ""
