"""Avro schemas (1.8 to 1.12): which encoding a body has, and whether it fits.

By content type: JSON (``application/json``, ``+json``) is read as :mod:`catalog.schemas.avro.json` says. Any other
is binary: an object container file, a single object (``C3 01``, fingerprint, datum), or a bare datum that must take
all bytes. Without a content type a body is binary if it fits so, else JSON if it looks like it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow.compute as pc

from catalog.schemas.avro.accepting import AcceptingMakers, Step, accepted, compile_accepting
from catalog.schemas.avro.binary import (
    MAGIC,
    AvroResolver,
    Makers,
    Read,
    ReadValue,
    ResolvedBinary,
    Unresolvable,
    compile_binary,
    read_container,
    writer_of,
)
from catalog.schemas.avro.json import Walk, compile_json
from catalog.schemas.avro.types import AvroSchema, Misfit, ignored_logical_types, missing_names, read_schema
from catalog.schemas.contract import (
    BEYOND_LIMITS,
    MAX_DEPTH,
    MAX_FAULTS,
    Comparison,
    CostExceeded,
    Library,
    SchemaError,
    SchemaFault,
    SchemaSource,
    Validator,
    WriterSchema,
    fault,
    is_json,
    json_value,
    looks_like_json,
    short,
    worst,
)

F = TypeVar("F")
SINGLE_OBJECT: Final = b"\xc3\x01"
MAX_STEPS: Final = 2_000_000
"""Records that may be read for one body before it is too costly for a process that has others to look at."""
_FINGERPRINT: Final = slice(2, 10)
_TOO_DEEP: Final = "nests deeper than can be read"


def compile_schema(source: SchemaSource, library: Library) -> Validator:
    """Compile an Avro schema; ``source.name`` chooses a named type of it, by full name or by a simple name it has once.

    Types that it uses and does not define are asked of the library by full name. Bodies that were written with another
    schema are held against both, resolved.

    Raises:
        SchemaError: it is no valid Avro schema, a name in it is unknown, or it has not the type.
    """
    try:
        schema = read_schema(source, library)
        return _plain_validator(schema) if source.written is None else _written_validator(schema, source.written)
    except RecursionError as error:
        raise SchemaError(f"the Avro schema {_TOO_DEEP}", hint="name the inner types") from error
    except (KeyError, TypeError, AttributeError) as error:
        # fastavro takes some types for sound that lack a member or have one of the wrong kind
        message = f"not a valid Avro schema: a type has a wrong member: {short(str(error))}"
        raise SchemaError(message, hint="see 'Schema Declaration' in the Avro specification") from error


def references_of(source: SchemaSource) -> Iterable[str]:
    """Yield the full names of types that the schema uses and does not define."""
    return missing_names(source)


def ignored_in(source: SchemaSource) -> Iterable[SchemaFault]:
    """Yield the logical types of the document that are invalid for their types, each with its JSON pointer."""
    return ignored_logical_types(source)


def names_of(source: SchemaSource, library: Library) -> Mapping[str, str]:
    """Return the full name of the type that a schema is, or that was written; nothing for one without a name.

    Raises:
        SchemaError: it can never be used.
    """
    try:
        root = read_schema(source, library).root if source.written is None else writer_of(source.written).root
    except Unresolvable as error:
        raise SchemaError(str(error)) from None
    return {"name": str(root["name"])} if isinstance(root, dict) and "name" in root else {}


class AvroBodies:
    """Tells which encoding a body has, and reads it by functions for one value of the schema each.

    *datum* reads bytes from a position on, *converted* a JSON value; ``single`` asks a container file for one value.
    """

    def __init__(
        self, schema: AvroSchema, datum: ReadValue, converted: Callable[[Any], Any], *, single: bool = False
    ) -> None:
        self._schema = schema
        self._datum = datum
        self._converted = converted
        self._single = single

    def value(self, body: bytes | None, content_type: str | None) -> Any:
        """Return what the functions make of a body; no body is the empty datum.

        Raises:
            Misfit: the body does not conform.
        """
        try:
            if is_json(content_type):
                return self._json(body)
            return self._binary(body or b"") if content_type else self._either(body or b"")
        except RecursionError:
            raise Misfit(f"the body {_TOO_DEEP}") from None
        except CostExceeded:
            raise Misfit(f"the body {BEYOND_LIMITS}: too many of its values may be of several types") from None

    def _either(self, body: bytes) -> Any:
        try:
            return self._binary(body)
        except Misfit:
            if not looks_like_json(body):
                raise
            return self._json(body)

    def _json(self, body: bytes | None) -> Any:
        if body is None:
            raise Misfit("the body is missing; JSON is expected")
        try:
            value = json_value(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Misfit(f"not JSON: {error}") from None
        return self._converted(value)

    def _binary(self, body: bytes) -> Any:
        is_single = body.startswith(SINGLE_OBJECT)
        if is_single and body[_FINGERPRINT] == self._schema.fingerprint:
            return self._whole(body, _FINGERPRINT.stop)
        try:
            return self._whole(body, 0)  # a datum may happen to begin as the other two do
        except Misfit:
            if body.startswith(MAGIC):
                return self._contained(body)
            if is_single and len(body) >= _FINGERPRINT.stop:
                written, own = body[_FINGERPRINT].hex(), self._schema.fingerprint.hex()
                raise Misfit(f"another schema wrote it: fingerprint {written}, and not {own}") from None
            raise

    def _whole(self, body: bytes, at: int) -> Any:
        value, end = self._datum(body, at)
        if end != len(body):
            raise Misfit(f"{len(body) - end} bytes follow the value")
        return value

    def _contained(self, body: bytes) -> Any:
        first, count = read_container(body, self._schema, self._datum)
        if self._single and count != 1:
            held = "values that are packed as nothing here unpacks" if count is None else f"{count} values, not one"
            raise Misfit(f"the container file has {held}")
        return first


class WrittenBodies:
    """Reads bodies that were written with another schema: each is one datum, whatever its content type says."""

    def __init__(self, datum: ReadValue, written: WriterSchema, writer: AvroSchema | None = None) -> None:
        """*writer* is the schema that bodies were written with; None where they can never be read."""
        self._datum = datum
        self._written = written
        self.writer = writer
        self.raw = writer is not None and writer.root in ("bytes", {"type": "bytes"})

    @classmethod
    def of(
        cls,
        schema: AvroSchema,
        written: WriterSchema,
        makers: Callable[[AvroSchema], Makers[F]],
        datum: Callable[[F], ReadValue],
    ) -> WrittenBodies:
        """Resolve what was *written* to a schema; where that can never be, each body is a misfit that says so."""
        try:
            writer = writer_of(written)
            function = AvroResolver(writer, schema, makers(writer)).function()
        except RecursionError:
            return cls(_refusing(f"the schema {_TOO_DEEP}"), written)
        except (Unresolvable, SchemaError) as error:
            return cls(_refusing(str(error)), written)
        return cls(datum(function), written, writer)

    def value(self, body: bytes | None, content_type: str | None) -> Any:
        """Return what the functions make of a body; no body is the empty datum.

        Raises:
            Misfit: the body does not conform; it says what was written.
        """
        body = body or b""
        try:
            # Serializers of Confluent's write bytes alone without their length.
            value, end = self._datum(_sized(body) if self.raw else body, 0)
            if end < len(body):
                raise Misfit(f"{len(body) - end} bytes follow the value")
        except RecursionError:
            raise self._told(Misfit(f"the body {_TOO_DEEP}")) from None
        except Misfit as misfit:
            raise self._told(misfit) from None
        return value

    def _told(self, misfit: Misfit) -> Misfit:
        told = misfit.copy()
        told.message = f"{misfit.message}; written with {self._written}"
        return told


def _refusing(why: str) -> ReadValue:
    def datum(body: bytes, at: int) -> tuple[Any, int]:
        raise Misfit(why)

    return datum


def _sized(body: bytes) -> bytes:
    """Return bytes behind their length, as Avro writes them."""
    rest, size = len(body) << 1, bytearray()
    while rest > 0x7F:
        size.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(size) + bytes((rest,)) + body


def _written_validator(schema: AvroSchema, written: WriterSchema) -> AvroValidator:
    bodies = WrittenBodies.of(schema, written, ResolvedBinary, _passing)
    if bodies.writer is None:
        return AvroValidator(bodies, bodies, 1, None, always_binary=True)
    step = None if bodies.raw else AvroResolver(bodies.writer, schema, AcceptingMakers(bodies.writer)).function()
    return AvroValidator(bodies, bodies, _records_of(bodies.writer), step, always_binary=True)


def _passing(read: Read) -> ReadValue:
    return lambda body, at: (None, read(body, at, 0))


def _records_of(schema: AvroSchema) -> int:
    return 1 + sum(each["type"] in ("record", "error") for each in schema.named.values())


def _plain_validator(schema: AvroSchema) -> AvroValidator:
    datum = _passing(compile_binary(schema.root, schema.named))
    check = compile_json(schema.root, schema.named)
    return AvroValidator(
        AvroBodies(schema, datum, lambda value: check(value, Walk())),
        AvroBodies(schema, datum, lambda value: check(value, Walk(left=MAX_FAULTS))),
        _records_of(schema),
        compile_accepting(schema),
    )


class AvroValidator:
    """A compiled Avro schema: what finds the first fault of a body, what finds all, and how many records it has.

    ``step`` accepts many bodies at once; those of a writer's schema are *always_binary*, whatever their content type.
    """

    def __init__(
        self,
        bodies: AvroBodies | WrittenBodies,
        thorough: AvroBodies | WrittenBodies,
        records: int,
        step: Step | None,
        *,
        always_binary: bool = False,
    ) -> None:
        self._bodies = bodies
        self._thorough = thorough
        self._records = records
        self._step = step
        self._always_binary = always_binary

    def accepted(self, data: Any, begins: Any, ends: Any, content_types: Any) -> Any:
        """Return which of many bodies conform for sure; see :class:`~catalog.schemas.contract.Accepting`."""
        binary = np.full(len(begins), self._step is not None)
        if not self._always_binary and self._step is not None:
            types = pc.dictionary_encode(content_types, null_encoding="encode")
            json = np.array([is_json(each) for each in types.dictionary.to_pylist()], bool)
            # An object that begins with the schema's own fingerprint is no datum from its first byte.
            single = data[np.minimum(begins, len(data) - 1)] == SINGLE_OBJECT[0]
            binary = ~json[types.indices.to_numpy()] & ~single
        chosen = np.flatnonzero(binary)
        if self._step is not None and len(chosen):
            binary[chosen] = accepted(self._step, data, begins[chosen], ends[chosen])
        return binary

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return why *body* does not conform, with a dotted field path; no body is the empty datum.

        Raises:
            TooCostly: it may take more than MAX_STEPS, and *at_any_cost* was not given.
        """
        return next(iter(self._faults(self._bodies, body, content_type, at_any_cost=at_any_cost)), None)

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all that does not conform in a body of JSON, of any other the first; raises as :meth:`fault`."""
        return self._faults(self._thorough, body, content_type, at_any_cost=False)[:MAX_FAULTS]

    def _faults(
        self, bodies: AvroBodies | WrittenBodies, body: bytes | None, content_type: str | None, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        # Each byte may be that of a record which is the only field of a record, and so on.
        if not at_any_cost and body is not None and len(body) * self._records > MAX_STEPS:
            raise CostExceeded
        try:
            bodies.value(body, content_type)
        except Misfit as misfit:
            return [fault(each.message, each.path()) for each in (misfit, *misfit.others)]
        return []


# How one Avro schema differs from another, by schema resolution, for which a reader needs the writer's schema too.

_WORDS: Final = frozenset({"doc", "aliases"})


def compare(before: Any, after: Any) -> Comparison:
    """Compare two schemas."""
    return _compare(before, after, "", 0)


def _compare(old: Any, new: Any, at: str, depth: int) -> Comparison:
    if isinstance(old, dict) and isinstance(new, dict) and depth <= MAX_DEPTH:
        comparisons: list[Comparison] = []
        for name in dict.fromkeys((*old, *new)):
            if name in _WORDS:
                comparisons.append(("compatible", ""))
            elif name == "fields":
                comparisons.append(_fields(old.get(name), new.get(name), at, depth))
            elif name in ("items", "values") or (name == "type" and isinstance(old.get(name), dict | list)):
                comparisons.append(_compare(old.get(name), new.get(name), f"{at}/{name}", depth + 1))
            elif old.get(name) != new.get(name):
                comparisons.append(("incompatible", f"{at}/{name} changes"))
        return worst(comparisons)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and depth <= MAX_DEPTH:
        return worst(
            [_compare(*each, f"{at}/{place}", depth + 1) for place, each in enumerate(zip(old, new, strict=True))]
        )
    return ("same", "") if old == new else ("incompatible", f"{at or '/'} changes")


def _fields(old: Any, new: Any, at: str, depth: int) -> Comparison:
    """Compare fields: one that comes or goes needs a default, with which either side reads the other."""
    if not isinstance(old, list) or not isinstance(new, list):
        return "unknown", f"{at}/fields is not a list"
    one, other = _named(old), _named(new)
    comparisons: list[Comparison] = []
    for name in dict.fromkeys((*one, *other)):
        here = f"{at}/fields/{name}"
        if name in one and name in other:
            comparisons.append(_field(one[name], other[name], here, depth))
        elif "default" in (one.get(name) or other.get(name) or {}):
            comparisons.append(("compatible", f"{here} {'is gone' if name in one else 'is new'}"))
        else:
            comparisons.append(("incompatible", f"{here} {'is gone' if name in one else 'is new'} and has no default"))
    moved = [name for name in one if name in other] != [name for name in other if name in one]
    return worst([*comparisons, ("compatible", "") if moved else ("same", "")])


def _field(old: Mapping[str, Any], new: Mapping[str, Any], here: str, depth: int) -> Comparison:
    ignored = ("default", "order", *_WORDS)
    one, other = ({name: value for name, value in each.items() if name not in ignored} for each in (old, new))
    return worst([_compare(one, other, here, depth + 1), ("same" if old == new else "compatible", "")])


def _named(fields: list[Any]) -> dict[str, Any]:
    return {str(each.get("name")): each for each in fields if isinstance(each, dict)}
