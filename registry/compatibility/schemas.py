"""Format validation, and compatibility of Avro and Protobuf schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import FieldDescriptor as Field

from catalog.schemas.avro.resolving import find_gap
from catalog.schemas.avro.types import AvroSchema, read_schema
from catalog.schemas.contract import EmptyLibrary, SchemaError, SchemaSource
from catalog.schemas.families import FAMILIES, SchemaFormat, compile_schema, family_of, parse_format
from catalog.schemas.protobuf.validating import open_message
from registry.errors import Refusal
from registry.model.attributes import ResourceType
from registry.store.entities import Version

# Validation of a version's document by its format, with the catalog's schema families.

FORMATS: Final = tuple(f"{family.name}*" for family in FAMILIES)
"""The formats whose documents are validated, as capabilities list them."""
RESULT_NAMES: Final = ("formatvalidated", "formatvalidatedreason")


def check_format(kind: ResourceType, version: Version, document: bytes | None) -> None:
    """Validate a version, and record in its attributes whether it was validated.

    Raises:
        Refusal: it does not comply, or its type requires a validation that is not possible.
    """
    for name in RESULT_NAMES:
        version.attributes.pop(name, None)
    written = version.attributes.get("format")
    if not kind.validateformat or not written:
        return
    known = parse_format(written)
    reason = ""
    if known is None:
        if kind.strictvalidation:
            raise Refusal("format_unknown", version.xid, format=written)
        reason = f"The format {written} is not supported."
    elif kind.hasdocument and f"{kind.singular}url" in version.attributes:
        if kind.strictvalidation:
            raise Refusal("format_external", version.xid)
        reason = "The document is external."
    elif document:
        reason = _validate(version, written, schema_source(version, known, document))
    version.attributes["formatvalidated"] = not reason
    if reason:
        version.attributes["formatvalidatedreason"] = reason


def schema_source(version: Version, form: SchemaFormat, document: bytes) -> SchemaSource:
    """Return the document of a version as source of a schema.

    Raises:
        Refusal: it is not valid UTF-8.
    """
    try:
        return SchemaSource(form.family, form.version, _parse_document(form.family, document))
    except UnicodeDecodeError as error:
        written = str(version.attributes.get("format"))
        raise Refusal("format_violation", version.xid, detail="the document is not UTF-8", format=written) from error


def _parse_document(family: str, document: bytes) -> Any:
    """Return a document in the form of its schema family: a JSON tree, or text."""
    if family_of(family).is_tree:
        try:
            return msgspec.json.decode(document)
        except (msgspec.DecodeError, RecursionError):
            return document.decode("utf-8")
    text = document.decode("utf-8")
    if text[:1] == '"':
        try:
            return msgspec.json.decode(document, type=str)
        except msgspec.DecodeError:
            return text
    return text


def _validate(version: Version, written: str, source: SchemaSource) -> str:
    try:
        if any(True for _ in family_of(source.family).references_of(source)):
            return "The document refers to others, which are not resolved."
        compile_schema(source, EmptyLibrary())
    except SchemaError as error:
        raise Refusal("format_violation", version.xid, detail=str(error), format=written) from error
    return ""


# The limit of a compatibility check.

MAX_STEPS: Final = 5_000_000
"""Maximum steps for all versions of a resource in one write; beyond, the result is undecided."""


class Undecided(Exception):
    """It is proven neither that a reader can read a writer's data, nor that it cannot."""


class Budget:
    """A limited number of steps. It bounds the time that other writers wait, whatever schemas clients send."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget was exceeded."""
        return self._left < 0

    def spend(self, steps: int) -> None:
        """Count steps of work.

        Raises:
            Undecided: the budget is exceeded.
        """
        self._left -= steps
        if self._left < 0:
            raise Undecided("the schemas are too large to compare")


# Avro schema resolution: whether a reader's schema can read a writer's data.


def parse_avro(source: SchemaSource) -> AvroSchema:
    """Return an Avro schema.

    Raises:
        Undecided: it is not valid by itself.
    """
    try:
        return read_schema(source, EmptyLibrary())
    except (SchemaError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Undecided(str(error)) from error


def find_avro_gap(reader: AvroSchema, writer: AvroSchema, budget: Budget) -> str:
    """Return why data written with *writer* cannot be read with *reader*, '' if it always can.

    Raises:
        Undecided: the budget is exceeded.
    """
    try:
        return find_gap(reader, writer, budget.spend).replace("the definition", "the reader")
    except RecursionError as error:
        raise Undecided("the schemas are nested too deeply") from error


# Protobuf compatibility: whether a reader's messages can read a writer's data.
#
# The binary encoding decides: numbers and types of fields, not their names. A reader skips unknown fields. Values must
# not change: a number that may be read as another one is a fault, even if every parser accepts it.

_MESSAGE_STEPS: Final = 10
"""Steps counted for a pair of messages, and for each field of either."""
_TYPES: Final = {getattr(Field, name): name.removeprefix("TYPE_").lower() for name in dir(Field) if name[:5] == "TYPE_"}
_WIDER_TYPES: Final = {
    Field.TYPE_INT32: {Field.TYPE_INT64},
    Field.TYPE_UINT32: {Field.TYPE_UINT64, Field.TYPE_INT64},
    Field.TYPE_SINT32: {Field.TYPE_SINT64},
    Field.TYPE_BOOL: {Field.TYPE_INT32, Field.TYPE_INT64, Field.TYPE_UINT32, Field.TYPE_UINT64},
    Field.TYPE_ENUM: {Field.TYPE_INT32, Field.TYPE_INT64},
    Field.TYPE_STRING: {Field.TYPE_BYTES},
}
"""By the writer's type: other types that read all of its values unchanged."""
_UNCERTAIN_TYPES: Final = {(Field.TYPE_ENUM, Field.TYPE_INT32), (Field.TYPE_BYTES, Field.TYPE_MESSAGE)}
"""Types of reader and writer for which some values are readable, and others may be."""
Messages = Mapping[str, Any]
"""The messages of a file by name within its package, in order."""
Fields = Mapping[int, Any]


def find_protobuf_gap(reader: Messages, writer: Messages, budget: Budget) -> str:
    """Return why data written with *writer* cannot be read with *reader*, '' if it always can.

    Messages are compared by name within their packages; so are the first ones of both files, to which references
    without a name lead.

    Raises:
        Undecided: the result is uncertain.
    """
    resolution = _ProtobufResolution(budget)
    for name, message in writer.items():
        if name not in reader:
            return f"message {name} was removed"
        if why := resolution.find_fault(reader[name], message):
            return why
    if why := resolution.find_fault(next(iter(reader.values())), next(iter(writer.values()))):
        return why
    if resolution.doubts:
        raise Undecided(resolution.doubts[0])
    return ""


class _ProtobufResolution:
    """Compares messages, each pair once; ``doubts`` are the uncertain results."""

    def __init__(self, budget: Budget) -> None:
        self.doubts: list[str] = []
        self._budget = budget
        self._seen: set[tuple[str, str]] = set()
        self._fields: dict[tuple[int, str], Fields] = {}

    def find_fault(self, reader: Any, writer: Any) -> str:
        """Return why messages of one type cannot be read as another, '' if they can or it is uncertain."""
        waiting = [(reader, writer)]
        while waiting:
            one, other = waiting.pop()
            pair = one.full_name, other.full_name
            if pair in self._seen:
                continue
            self._seen.add(pair)
            known, written = self._fields_of(one, 0), self._fields_of(other, 1)
            ranges = len(one.extension_ranges) + len(other.extension_ranges)
            self._budget.spend(_MESSAGE_STEPS * (1 + len(known) + len(written)) + ranges * (len(known) + len(written)))
            if why := self._shallow_fault(one, other, known, written):
                return why
            for number, member in written.items():
                same = known.get(number)
                if same is not None and same.message_type is not None and member.message_type is not None:
                    waiting.append((same.message_type, member.message_type))
        return ""

    def _fields_of(self, message: Any, side: int) -> Fields:
        """Return the fields of a message of one side by number, with extensions of its file."""
        key = side, message.full_name
        if key not in self._fields:
            extensions = message.file.pool.FindAllExtensions(message)
            self._fields[key] = {**message.fields_by_number, **{each.number: each for each in extensions}}
        return self._fields[key]

    def _shallow_fault(self, reader: Any, writer: Any, known: Fields, written: Fields) -> str:
        """Compare two messages without nested messages."""
        for number, member in known.items():
            was = written.get(number)
            if member.is_required and (was is None or not was.is_required):
                return f"{member.full_name} is required, and may be missing in older data"
            if was is None and _is_extension_number(writer, number):
                self.doubts.append(f"{member.full_name} uses a number that was reserved for extensions")
        members: Counter[str] = Counter()
        for number, member in written.items():
            same = known.get(number)
            if same is None:
                if _is_extension_number(reader, number):
                    self.doubts.append(f"{member.full_name} used a number that is now for extensions")
                continue
            if why := self._field_fault(same, member):
                return f"{same.full_name}: {why}"
        for together in _iter_oneofs(writer, written):
            members.update({name for number in together for name in _iter_oneof_names(known.get(number))})
        crowded = next((name for name, count in members.items() if count > 1), None)
        return f"fields of oneof {reader.full_name}.{crowded} could both be set" if crowded else ""

    def _field_fault(self, reader: Any, writer: Any) -> str:
        if writer.is_repeated and not reader.is_repeated:
            return "it was repeated, and is not any more"
        if _is_map(reader) != _is_map(writer) and writer.is_repeated:
            if reader.type == writer.type:
                self.doubts.append(f"{reader.full_name} is a map on one side and a repeated message on the other")
                return ""
            return "it is a map on one side only"
        one, other = reader.type, writer.type
        if one != other and one not in _WIDER_TYPES.get(other, ()):
            if (one, other) in _UNCERTAIN_TYPES:
                self.doubts.append(f"{reader.full_name} is {_TYPES[one]} and was {_TYPES[other]}")
                return ""
            return f"{_TYPES[other]} cannot be read as {_TYPES[one]}"
        if one != Field.TYPE_ENUM or other != Field.TYPE_ENUM:
            return ""
        self._budget.spend(len(reader.enum_type.values) + len(writer.enum_type.values))
        return _enum_fault(reader.enum_type, writer.enum_type)


def parse_messages(source: SchemaSource) -> Messages:
    """Return the messages that a file defines.

    Raises:
        Undecided: it cannot be compiled.
    """
    try:
        file = open_message(source, EmptyLibrary()).message.DESCRIPTOR.file
    except SchemaError as error:
        raise Undecided(str(error)) from error
    prefix = f"{file.package}." if file.package else ""
    tops = file.message_types_by_name.values()
    return {each.full_name.removeprefix(prefix): each for each in _iter_nested(tops)}


def _iter_nested(messages: Any) -> Iterator[Any]:
    for each in messages:
        if not each.GetOptions().map_entry:
            yield each
            yield from _iter_nested(each.nested_types)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_extension_number(message: Any, number: int) -> bool:
    return any(first <= number < end for first, end in message.extension_ranges)


def _iter_oneofs(message: Any, fields: Fields) -> Iterator[list[int]]:
    """Yield the field numbers of each oneof."""
    yield from ([field.number for field in each.fields] for each in message.oneofs)
    yield from ([number] for number, each in fields.items() if each.containing_oneof is None)


def _iter_oneof_names(field: Any) -> Iterator[str]:
    if field is not None and field.containing_oneof is not None:
        yield field.containing_oneof.name


def _enum_fault(reader: Any, writer: Any) -> str:
    """Compare two enums: an open one preserves unknown numbers, a closed one refuses them."""
    if not reader.is_closed:
        return ""
    if not writer.is_closed:
        return f"enum {reader.full_name} is closed, and {writer.full_name} was open"
    gone = [each for each in writer.values if each.number not in reader.values_by_number]
    return f"enum {reader.full_name} lacks {gone[0].name}" if gone else ""
