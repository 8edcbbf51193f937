"""Avro schemas (1.8 to 1.12): determine the encoding of a body, and validate it.

Bodies with a JSON content type (``application/json``, ``+json``) are read by :mod:`catalog.schemas.avro.json`. Others
are binary: an object container file, a single object (``C3 01``, fingerprint, datum), or a plain datum that must use
all bytes. A body without content type is read as binary, and if that fails, as JSON if it looks like it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow.compute as pc

from catalog.schemas.avro.accepting import BatchStepMaker, Step, find_valid_bodies
from catalog.schemas.avro.binary import MAGIC, Read, ReadValue, ValueMaker, read_container
from catalog.schemas.avro.json import JsonMaker
from catalog.schemas.avro.resolving import AvroResolver, Unresolvable, compile_types, find_gap, read_writer_schema
from catalog.schemas.avro.types import (
    MAX_EMPTY,
    SINGLE_OBJECT,
    AvroSchema,
    TypeMismatch,
    Walk,
    load_document,
    missing_names,
    read_schema,
)
from catalog.schemas.contract import (
    BEYOND_LIMITS,
    MAX_DIRECT_BYTES,
    Comparison,
    CostExceeded,
    EmptyLibrary,
    Library,
    SchemaError,
    SchemaFault,
    SchemaSource,
    UnfitValue,
    Validator,
    WriterSchema,
    clip,
    encode_zigzag,
    is_json,
    looks_like_json,
    make_fault,
    parse_json,
)

_FINGERPRINT: Final = slice(2, 10)
_TOO_DEEP: Final = "nests deeper than can be read"


def compile_schema(source: SchemaSource, library: Library) -> AvroValidator:
    """Compile an Avro schema; ``source.name`` selects a named type by full name, or by a simple name if unique.

    Types that it uses but does not define are looked up in the library by full name. Bodies written with another schema
    are validated against both, by schema resolution.

    Raises:
        SchemaError: it is not a valid Avro schema, a name in it is unknown, or the selected type is missing.
    """
    try:
        return AvroValidator(read_schema(source, library), source.written)
    except RecursionError as error:
        raise SchemaError(f"the Avro schema {_TOO_DEEP}", hint="name the inner types") from error
    except (KeyError, TypeError, AttributeError) as error:
        # fastavro accepts some types that lack a member or have one of the wrong kind
        message = f"not a valid Avro schema: a type has a wrong member: {clip(str(error))}"
        raise SchemaError(message, hint="see 'Schema Declaration' in the Avro specification") from error


def references_of(source: SchemaSource) -> Iterable[str]:
    """Return the full names of types that the schema uses but does not define; none for an invalid schema."""
    try:
        return missing_names(load_document(source))
    except SchemaError:
        return ()


def find_ignored_parts(source: SchemaSource) -> Iterable[SchemaFault]:
    """Return the invalid logical types of the document, with their JSON pointers."""
    ignored: list[SchemaFault] = []
    with contextlib.suppress(SchemaError):  # invalid schemas are reported when they are compiled
        load_document(source, ignored)
    return ignored


def names_of(source: SchemaSource, library: Library) -> Mapping[str, str]:
    """Return the full name of the schema's type, or of the writer's schema's type; empty if it has no name.

    Raises:
        SchemaError: the schema is not valid.
    """
    try:
        root = read_schema(source, library).root if source.written is None else read_writer_schema(source.written).root
    except Unresolvable as error:
        raise SchemaError(str(error)) from None
    return {"name": str(root["name"])} if isinstance(root, dict) and "name" in root else {}


class AvroBodies:
    """Determines the encoding of bodies of a schema, and reads them."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._read = compile_types(schema, ValueMaker())
        self._check = compile_types(schema, JsonMaker())

    def read(self, body: bytes | None, content_type: str | None, *, strict: bool, left: int = 1) -> Any:
        """Return the value of a body; a missing body counts as empty.

        Unless *strict*, the value is complete, and a container file must have one value. *left* is the number of
        mismatches to find.

        Raises:
            TypeMismatch: the body is invalid.
        """
        json = body is not None and looks_like_json(body) if not content_type else is_json(content_type)
        try:
            if is_json(content_type):
                return self._read_json(body, Walk(strict, left=left))
            try:
                return self._read_binary(body or b"", strict)
            except TypeMismatch:
                if not json:
                    raise
                return self._read_json(body, Walk(strict, left=left))
        except RecursionError:
            raise TypeMismatch(f"the body {_TOO_DEEP}") from None
        except CostExceeded:
            raise TypeMismatch(f"the body {BEYOND_LIMITS}: too many of its values may be of several types") from None

    def _read_json(self, body: bytes | None, walk: Walk) -> Any:
        if body is None:
            raise TypeMismatch("the body is missing; JSON is expected")
        try:
            value = parse_json(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TypeMismatch(f"not JSON: {error}") from None
        try:
            return self._check(value, walk)
        except TypeMismatch as mismatch:
            if walk.strict:
                raise
            return UnfitValue(mismatch.message)

    def _read_binary(self, body: bytes, strict: bool) -> Any:
        datum = _as_value_reader(self._read, strict)
        is_single = body.startswith(SINGLE_OBJECT)
        if is_single and body[_FINGERPRINT] == self._schema.fingerprint:
            return _read_datum(datum, body, _FINGERPRINT.stop)
        try:
            return _read_datum(datum, body, 0)  # a plain datum may begin like the other two encodings
        except TypeMismatch:
            if body.startswith(MAGIC):
                first, count = read_container(body, self._schema, datum, single=not strict)
                if not strict and count != 1:
                    held = (
                        "values that are packed as nothing here unpacks"
                        if count is None
                        else f"{count} values, not one"
                    )
                    raise TypeMismatch(f"the container file has {held}") from None
                return first
            if is_single and len(body) >= _FINGERPRINT.stop:
                written, own = body[_FINGERPRINT].hex(), self._schema.fingerprint.hex()
                raise TypeMismatch(f"another schema wrote it: fingerprint {written}, and not {own}") from None
            raise


def _as_value_reader(read: Read, strict: bool) -> ReadValue:
    return lambda data, at: read(data, at, Walk(strict, len(data) + MAX_EMPTY))


def _read_datum(datum: ReadValue, body: bytes, at: int) -> Any:
    value, end = datum(body, at)
    if end < len(body):
        raise TypeMismatch(f"{len(body) - end} bytes follow the value")
    return value


class ResolvedBodies:
    """Reads bodies written with another schema; each is one datum, whatever its content type.

    ``writer`` is the writer's schema; None if bodies can never be read, so that each is invalid with the reason.
    """

    def __init__(self, schema: AvroSchema, written: WriterSchema) -> None:
        self.writer: AvroSchema | None = None
        self._written = written
        self._read: Read | None = None
        self._why = ""
        try:
            writer = read_writer_schema(written)
            self._read = AvroResolver(writer, schema, ValueMaker()).resolve()
            self.writer = writer
        except RecursionError:
            self._why = f"the schema {_TOO_DEEP}"
        except (Unresolvable, SchemaError) as error:
            self._why = str(error)
        self.raw = self.writer is not None and self.writer.root in ("bytes", {"type": "bytes"})

    def read(self, body: bytes | None, content_type: str | None, *, strict: bool, left: int = 1) -> Any:
        """Return the value of a body; a missing body counts as empty.

        Raises:
            TypeMismatch: the body is invalid; the message names the writer's schema.
        """
        try:
            if self._read is None:
                raise TypeMismatch(self._why)
            # Confluent's serializers write a bytes schema without the length.
            whole = encode_zigzag(len(body or b"")) * self.raw + (body or b"")
            return _read_datum(_as_value_reader(self._read, strict), whole, 0)
        except RecursionError:
            raise TypeMismatch(f"the body {_TOO_DEEP}; written with {self._written}") from None
        except TypeMismatch as mismatch:
            mismatch.message = f"{mismatch.message}; written with {self._written}"
            raise


class AvroValidator(Validator):
    """A compiled Avro schema. Bodies of a writer's schema are always binary, whatever their content type."""

    def __init__(self, schema: AvroSchema, written: WriterSchema | None = None) -> None:
        self.schema = schema
        self._always_binary = written is not None
        self._bodies: AvroBodies | ResolvedBodies
        self._step: Step | None = None
        if written is None:
            self._bodies = AvroBodies(schema)
            self._step = compile_types(schema, BatchStepMaker())
            return
        self._bodies = resolved = ResolvedBodies(schema, written)
        if resolved.writer is not None and not resolved.raw:
            self._step = AvroResolver(resolved.writer, schema, BatchStepMaker()).resolve()

    def find_valid(self, data: Any, begins: Any, ends: Any, content_types: Any) -> Any:
        """Return which of many bodies are certainly valid; see :class:`~catalog.schemas.contract.BatchValidator`."""
        binary = np.full(len(begins), self._step is not None)
        if not self._always_binary and self._step is not None:
            types = pc.dictionary_encode(content_types, null_encoding="encode")
            json = np.array([is_json(each) for each in types.dictionary.to_pylist()], bool)
            # A single object with the schema's own fingerprint is not a plain datum.
            single = data[np.minimum(begins, len(data) - 1)] == SINGLE_OBJECT[0]
            binary = ~json[types.indices.to_numpy()] & ~single
        chosen = np.flatnonzero(binary)
        if self._step is not None and len(chosen):
            binary[chosen] = find_valid_bodies(self._step, data, begins[chosen], ends[chosen])
        return binary

    def find_faults(
        self, body: bytes | None, content_type: str | None, limit: int, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        """Return the faults of a JSON body, or the first fault of a binary one, with dotted field paths.

        A missing body counts as empty.

        Raises:
            CostExceeded: it is larger than MAX_DIRECT_BYTES, and *at_any_cost* is False.
        """
        if not at_any_cost and body is not None and len(body) > MAX_DIRECT_BYTES:
            raise CostExceeded
        try:
            self._bodies.read(body, content_type, strict=True, left=limit)
        except TypeMismatch as mismatch:
            return [make_fault(each.message, each.field_path()) for each in (mismatch, *mismatch.others)][:limit]
        return []

    def decode(self, body: bytes | None, content_type: str | None) -> Any:
        """Return the value of a body; a missing body counts as empty. A container file must contain exactly one value.

        Raises:
            TypeMismatch: the body is invalid.
        """
        return self._bodies.read(body, content_type, strict=False)


def compare(old: Any, new: Any) -> Comparison:
    """Compare two schemas: they are compatible if each reads all values of the other."""
    try:
        before, after = (read_schema(SchemaSource("Avro", "", each), EmptyLibrary()) for each in (old, new))
        later, earlier = find_gap(after, before), find_gap(before, after)
    except (SchemaError, RecursionError, KeyError, TypeError, AttributeError) as error:
        return "unknown", f"the schemas cannot be compared: {clip(str(error))}"
    if later or earlier:
        return "incompatible", f"older messages: {later}" if later else f"newer messages: {earlier}"
    return "compatible", ""
