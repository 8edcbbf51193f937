"""Validation with Protobuf schemas (proto2, proto3, editions) from .proto texts.

Bodies with a JSON content type are read with Protobuf's JSON mapping, others as binary. Unknown fields are ignored in
both, because producers may have a later version (MATCHING.md#data-schemas). Known fields of another type are invalid.
The content of an ``Any`` is not validated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from catalog.schemas.contract import (
    BEYOND_FAULT,
    BEYOND_LIMITS,
    CostExceeded,
    Library,
    MessagePlace,
    SchemaError,
    SchemaFault,
    SchemaSource,
    UnfitValue,
    Validator,
    WriterSchema,
    clip,
    encode_zigzag,
    is_json,
    make_fault,
)
from catalog.schemas.families import documents_of
from catalog.schemas.ids.client import WrittenSchema
from catalog.schemas.protobuf.json import JsonMessageReader, NotJsonError, Unfit, iter_unfit_paths
from catalog.schemas.protobuf.protoc import compile_files, has_syntax, imports_of, is_path

MAX_PARSED_BYTES: Final = 64 * 1024 * 1024
"""Maximum memory for the messages of one body; even an empty message of two bytes needs memory."""
MAX_EXPLAINED_BYTES: Final = 256 * 1024
"""Bodies with unknown fields up to this size are searched for fields of wrong types in this process."""
_AT: Final = re.compile(r"\bat ([\w.\[\]\"'-]+?)\.*\s*$")


def compile_schema(source: SchemaSource, library: Library) -> Validator:
    """Compile a .proto text with its imports; bodies written with another message are validated against both.

    Raises:
        SchemaError: it is not a valid .proto text, an import is unknown, or the message is missing.
    """
    own = open_message(source, library)
    return own if source.written is None else ResolvedMessages(own, source.written)


def open_message(source: SchemaSource, library: Library) -> ProtobufValidator:
    """Compile a .proto text with its imports.

    ``source.name`` selects a message by full name, by name within the package (``Outer.Inner``), or by a unique simple
    name; by default, the first message. Imports of ``google/protobuf`` are bundled, others come from the library.

    Raises:
        SchemaError: it is not a valid .proto text, an import is unknown, or the message is missing.
    """
    if not isinstance(source.document, str):
        raise SchemaError("a Protobuf schema is the text of a .proto file", hint="give it as a string")
    if source.pointer:
        raise SchemaError("a JSON pointer leads nowhere in a .proto text", hint="append :MessageName to its reference")
    main, files = _collect_files(source, library)
    prefix = 'syntax = "proto3"; ' if source.version.startswith("3") and not has_syntax(source.document) else ""
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(compile_files(main, files, prefix))
    pool = descriptor_pool.DescriptorPool()
    try:
        for each in descriptors.file:
            pool.Add(each)
        own = next(each for each in descriptors.file if each.name == main)
        descriptor = pool.FindMessageTypeByName(_find_message_name(source.name, own))
    except (TypeError, KeyError) as error:
        hint = "the Protobuf library is older than the syntax, or two files define the same name"
        raise SchemaError(f"the .proto text cannot be used: {clip(str(error))}", hint=hint) from error
    try:
        return ProtobufValidator(descriptor, pool, own)
    except RecursionError as error:
        hint = "let a message lead to fewer others in a row"
        raise SchemaError("the .proto text cannot be used: its messages lead on too far", hint=hint) from error


def names_of(source: SchemaSource, library: Library) -> Mapping[str, str]:
    """Return the full name of the schema's message, or of the writer's message; empty if the index is invalid.

    Raises:
        SchemaError: the schema is not valid.
    """
    if source.written is None:
        name = open_message(source, library).message.DESCRIPTOR.full_name
    else:
        name = compile_writer_file(source.written).name_at(source.written.message) or ""
    return {"message": name} if name else {}


def message_indexes(source: SchemaSource, library: Library) -> bytes:
    """Return the message indexes of Confluent's frame: the path of a message in its file, 0 for the first message.

    Raises:
        SchemaError: the schema is not valid.
    """
    path = open_message(source, library).message_path
    return b"\0" if path == [0] else b"".join(map(encode_zigzag, (len(path), *path)))


def compile_writer_file(written: WriterSchema) -> ProtobufValidator:
    """Compile the file of the writer's schema.

    Raises:
        SchemaError: the schema is not valid.
    """
    return open_message(SchemaSource("Protobuf", "", written.schema.document), _WriterImports(written.schema))


class _WriterImports:
    """The files that a registry's schema imports, as a library."""

    def __init__(self, schema: WrittenSchema) -> None:
        self._references = schema.references

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return path and text of an import; None if unknown."""
        text = self._references.get(reference)
        return None if text is None else (reference, text)


class ResolvedMessages(Validator):
    """Validates bodies first with the writer's message, then with the reader's."""

    def __init__(self, own: ProtobufValidator, written: WriterSchema) -> None:
        self._own = own
        self._writer_note = f"; written with {written}"
        self._writer: ProtobufValidator | None = None
        self._schema_fault: SchemaFault | None = None
        try:
            file = compile_writer_file(written)
            name = file.name_at(written.message)
            self._writer = None if name is None else file.for_message(name)
            if name is None:
                self._schema_fault = make_fault(f"the message indexes of the frame match no message{self._writer_note}")
        except SchemaError as error:
            self._schema_fault = make_fault(f"the registry's schema is not valid: {error}{self._writer_note}")

    def read(self, body: bytes | None, content_type: str | None) -> Message | PartialMessage | UnfitValue | SchemaFault:
        """Return *body* as the reader's message, or why it cannot be parsed."""
        try:
            found = self.fault(body, None)
        except CostExceeded:
            return BEYOND_FAULT
        return self._own.read(body, None) if found is None else found

    def find_faults(
        self, body: bytes | None, content_type: str | None, limit: int, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        """Return why *body* is invalid for either message."""
        if self._schema_fault is not None or self._writer is None:
            return [self._schema_fault] if self._schema_fault is not None else []
        for validator in (self._writer, self._own):
            # Bodies with a frame are never JSON, whatever their content type.
            if found := validator.find_faults(body, None, limit, at_any_cost=at_any_cost):
                return [make_fault(each.message + self._writer_note, each.path) for each in found]
        return []


def references_of(source: SchemaSource) -> Iterable[str]:
    """Return the paths that the text imports, without the bundled ``google/protobuf``."""
    return imports_of(source.document) if isinstance(source.document, str) else ()


def _collect_files(source: SchemaSource, library: Library) -> tuple[str, dict[str, str]]:
    files = {path: text for (_, path), (_, text) in documents_of(source, library).items() if isinstance(text, str)}
    for path in dict.fromkeys(path for text in (source.document, *files.values()) for path in imports_of(text)):
        if not is_path(path):
            hint = "import by a relative path to a .proto file, without '..' and blanks"
            raise SchemaError(f"{clip(path)!r} cannot be imported", hint=hint)
        if path not in files:
            hint = f"add a document that the schema's {path!r} leads to"
            raise SchemaError(f"the import {clip(path)!r} is not known", hint=hint)
    main = "schema.proto"
    while main in files or any(path.startswith(f"{main}/") for path in files):
        main = f"_{main}"
    return main, {**files, main: source.document.removeprefix("\ufeff")}


def _find_message_name(name: str, own: descriptor_pb2.FileDescriptorProto) -> str:
    prefix = f"{own.package}." if own.package else ""
    known = [f"{prefix}{inner}" for inner in _iter_message_names(own.message_type)]
    if not known:
        raise SchemaError("the .proto text defines no message", hint="define one, or refer to a file that does")
    if not name:
        return known[0]
    for wanted in (name, f"{prefix}{name}"):
        if wanted in known:
            return wanted
    same = [each for each in known if each.endswith(f".{name}")]
    if len(same) == 1:
        return same[0]
    if same:
        raise SchemaError(f"{name} is the name of {clip(', '.join(same))}", hint="use the full name")
    raise SchemaError(f"the .proto text defines no message {clip(name)}", hint=f"it defines {clip(', '.join(known))}")


def _iter_message_names(messages: Iterable[descriptor_pb2.DescriptorProto]) -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            yield message.name
            yield from (f"{message.name}.{inner}" for inner in _iter_message_names(message.nested_type))


@dataclass(frozen=True, slots=True)
class PartialMessage:
    """A message without the invalid values of its body, and the tree of these."""

    message: Message
    unfit: Unfit


class ProtobufValidator(Validator):
    """A compiled message."""

    def __init__(
        self, descriptor: Descriptor, pool: descriptor_pool.DescriptorPool, own: descriptor_pb2.FileDescriptorProto
    ) -> None:
        self._descriptor = descriptor
        self._pool = pool
        self._file = own
        self.message = message_factory.GetMessageClass(descriptor)
        self._mapping = JsonMessageReader(self.message, pool)
        reachable = _reachable_messages(descriptor)
        self._max_bytes = 2 * MAX_PARSED_BYTES // max(40 + 16 * len(each.fields) for each in reachable)

    def for_message(self, name: str) -> ProtobufValidator:
        """Return the validator of another message of the same file, by its full name."""
        return ProtobufValidator(self._pool.FindMessageTypeByName(name), self._pool, self._file)

    @property
    def message_path(self) -> list[int]:
        """The indexes of the message and the messages around it in the file, outermost first."""
        full = self._descriptor.full_name
        name = full.removeprefix(f"{self._file.package}.") if self._file.package else full
        path, messages = [], self._file.message_type
        for each in name.split("."):
            path.append(next(number for number, one in enumerate(messages) if one.name == each))
            messages = messages[path[-1]].nested_type
        return path

    def name_at(self, place: MessagePlace) -> str | None:
        """Return the full name of the message at a place in the file; None if there is none."""
        prefix = f"{self._file.package}." if self._file.package else ""
        if isinstance(place, tuple):
            names, messages = [], self._file.message_type
            for index in place:
                if index >= len(messages) or messages[index].options.map_entry:
                    return None
                names.append(messages[index].name)
                messages = messages[index].nested_type
            return prefix + ".".join(names) if names else None
        known = sorted(f"{prefix}{name}" for name in _iter_message_names(self._file.message_type))
        if isinstance(place, int):
            return known[place] if place < len(known) else None
        same = [name for name in known if name in (place, f"{prefix}{place}")]
        return same[0] if same else next((name for name in known if name.endswith(f".{place}")), None)

    def find_faults(
        self, body: bytes | None, content_type: str | None, limit: int, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        """Return the faults of all invalid or missing fields, or the fault of the whole body, with dotted field paths.

        A missing body is an empty message.

        Raises:
            CostExceeded: the messages of so large a body could exceed MAX_PARSED_BYTES (with ten fields in the largest
                message from 640 KiB on), and *at_any_cost* is False.
        """
        if self._is_too_large(body) and not at_any_cost:
            raise CostExceeded
        parsed = self._parse(body, content_type)
        if isinstance(parsed, list):
            return parsed
        message, unfit = parsed
        if isinstance(unfit, UnfitValue):
            return [make_fault(unfit.why)]
        if unfit:
            return [make_fault(why, path) for path, why in islice(iter_unfit_paths(unfit), limit)]
        missing = self._missing_fields(message)[:limit]
        if missing or (is_json(content_type) and body is not None) or not _drop_unknown(message):
            return missing
        if len(body or b"") > MAX_EXPLAINED_BYTES and not at_any_cost:
            raise CostExceeded
        found = islice(self._iter_mistyped(body or b""), limit)
        return [make_fault(why, _to_path(steps)) for steps, _, why in found]

    def _iter_mistyped(self, body: bytes) -> Iterator[tuple[Steps, str, str]]:
        """Yield known fields with a wrong type or value: path, name and reason."""
        for steps, number, kind in _iter_unknown(self.message.FromString(body)):
            if number in kind.fields_by_number:
                why = f"field {number} of {kind.full_name} has another type or value"
                yield steps, kind.fields_by_number[number].name, why

    def read(self, body: bytes | None, content_type: str | None) -> Message | PartialMessage | UnfitValue | SchemaFault:
        """Return *body* as a message, or why it cannot be parsed; a missing body is an empty message.

        Invalid values are listed in a :class:`PartialMessage`. Missing fields are not set, and unknown fields are left
        out. A body of more than MAX_EXPLAINED_BYTES with unknown fields is a fault.
        """
        if self._is_too_large(body):
            return make_fault(f"the body {BEYOND_LIMITS}: it may take more than {MAX_PARSED_BYTES} bytes of memory")
        parsed = self._parse(body, content_type)
        if isinstance(parsed, list):
            return parsed[0]
        message, unfit = parsed
        if isinstance(unfit, UnfitValue):
            return unfit
        if _drop_unknown(message):
            if len(body or b"") > MAX_EXPLAINED_BYTES:
                return make_fault(f"the body has more than the fields of {self._descriptor.full_name}")
            for steps, name, why in self._iter_mistyped(body or b""):
                _mark_unfit(unfit, steps, name, why)
        return PartialMessage(message, unfit) if unfit else message

    def to_json(self, message: Message) -> str:
        """Return a message in Protobuf's JSON mapping; types in ``Any`` must be known.

        Raises:
            ValueError: the message has no JSON form.
        """
        try:
            return json_format.MessageToJson(message, indent=None, descriptor_pool=self._pool)
        except (json_format.Error, TypeError, RecursionError) as error:
            raise ValueError(f"no JSON form: {clip(str(error))}") from error

    def _is_too_large(self, body: bytes | None) -> bool:
        return body is not None and len(body) > self._max_bytes

    def _parse(
        self, body: bytes | None, content_type: str | None
    ) -> tuple[Message, Unfit | UnfitValue] | list[SchemaFault]:
        """Return the message and the tree of its invalid values, or faults if the body cannot be parsed."""
        if is_json(content_type) and body is not None:
            return self._parse_json(body)
        try:
            return self.message.FromString(body or b""), {}
        except DecodeError as error:
            if "alloc failed" in str(error):
                raise MemoryError from error  # not a fault of the body
            return [make_fault(f"not a {self._descriptor.full_name}: {str(error).rpartition(': ')[2]}")]

    def _missing_fields(self, message: Message) -> list[SchemaFault]:
        if message.IsInitialized():
            return []
        missing = message.FindInitializationErrors()  # type: ignore[attr-defined]  # the stubs leave it out
        return [make_fault("a required field is missing", path) for path in missing or ("",)]

    def _parse_json(self, body: bytes) -> tuple[Message, Unfit | UnfitValue] | list[SchemaFault]:
        try:
            return self._mapping.read(body.decode("utf-8"))
        except RecursionError:
            return [make_fault("the body nests deeper than can be read")]
        except (NotJsonError, json_format.ParseError, UnicodeDecodeError) as error:
            place = _AT.search(str(error))
            path = place[1].partition(".")[2] if place else ""
            return [make_fault(str(error).partition("\n")[0], path)]


def _reachable_messages(root: Descriptor) -> list[Descriptor]:
    """Return a message type and all types that it may contain."""
    reachable = {root.full_name: root}
    waiting = [root]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in reachable:
                reachable[inner.full_name] = inner
                waiting.append(inner)
    return list(reachable.values())


def _drop_unknown(message: Message) -> bool:
    """Drop the unknown fields of a message, and return whether there were any."""
    size = _encoded_size(message)
    message.DiscardUnknownFields()
    return _encoded_size(message) != size


def _encoded_size(message: Message) -> int:
    return message.ByteSize() if message.IsInitialized() else len(message.SerializePartialToString())


Steps = tuple[tuple[str, Any], ...]
"""The path to a nested message: field names, each with an index or key, or None."""


def _to_path(steps: Steps) -> str:
    return ".".join(name if item is None else f"{name}[{json.dumps(item)}]" for name, item in steps)


def _mark_unfit(unfit: Unfit, steps: Steps, name: str, why: str) -> None:
    """Add an invalid field to the tree of invalid values."""
    tree: Any = unfit
    for step in (step for field, item in steps for step in ((field,) if item is None else (field, (item,)))):
        tree = tree.setdefault(step, {})
        if isinstance(tree, UnfitValue):
            return
    tree[name] = UnfitValue(why)


def _iter_unknown(root: Message) -> Iterator[tuple[Steps, int, Any]]:
    """Yield path, number and message type of each unknown field that is not in an extension range."""
    waiting: list[tuple[Steps, Message]] = [((), root)]
    while waiting:
        steps, message = waiting.pop()
        descriptor = message.DESCRIPTOR
        unknown = UnknownFieldSet(message)
        for number in {unknown[index].field_number for index in range(len(unknown))}:
            if not any(first <= number < end for first, end in descriptor.extension_ranges):
                yield steps, number, descriptor
        for field, value in message.ListFields():
            waiting.extend(((*steps, (field.name, item)), inner) for item, inner in _iter_inner(field, value))


def _iter_inner(field: FieldDescriptor, value: Any) -> Iterator[tuple[Any, Message]]:
    """Yield the messages in a field's value, each with its index or key."""
    kind = field.message_type
    if kind is None:
        return
    if kind.GetOptions().map_entry:
        if kind.fields_by_name["value"].message_type is not None:
            yield from ((key, value[key]) for key in value)
    elif field.is_repeated:
        yield from enumerate(value)
    else:
        yield None, value
