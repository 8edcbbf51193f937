"""Avro schemas (1.8 to 1.12): determine the encoding of a body, and validate it.

Bodies with a JSON content type (``application/json``, ``+json``) are read by :mod:`catalog.schemas.avro.json`. Others
are binary: an object container file, a single object (``C3 01``, fingerprint, datum), or a plain datum that must use
all bytes. A body without content type is read as binary, and if that fails, as JSON if it looks like it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from catalog.schemas.avro.binary import MAGIC, Read, ReadValue, ValueMaker, read_container
from catalog.schemas.avro.json import JsonMaker
from catalog.schemas.avro.resolving import AvroResolver, Unresolvable, compile_types, find_gap, read_writer_schema
from catalog.schemas.avro.types import (
    MAX_EMPTY,
    MAX_LEVELS,
    SINGLE_OBJECT,
    AvroSchema,
    TypeMismatch,
    Walk,
    decimal_bound,
    load_document,
    missing_names,
    number_range,
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
    is_utf8,
    looks_like_json,
    make_fault,
    parse_json,
)

# Validate many Avro bodies at once: as :mod:`catalog.schemas.avro.binary` does, but a field at a time over all bodies.
#
# The result says which bodies are certainly valid. The others may be valid too, and are validated one by one, which
# also finds what is wrong. That includes bodies that differ much from the rest of the batch (long lists, deep
# nesting), and everything left after :data:`MAX_STEPS`. The time is bounded, whatever the bodies contain.

MAX_STEPS: Final = 4_000
"""Maximum number of steps for one batch."""
FEW: Final = 16
"""Fewer bodies than this are validated one by one, which is faster."""
_ROOM: Final = 16
"""Padding after the last body, so that a number can be read at any position."""
_TOP: Final = 0x80
Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Bodies:
    """The bytes of many bodies with padding at the end, and the number of steps left."""

    data: npt.NDArray[np.uint8]
    non_ascii: npt.NDArray[np.int32] | None
    """The number of bytes before each position that are not ASCII; None if all are."""
    steps_left: int = MAX_STEPS


Step = Callable[[Bodies, Int, Int, int], tuple[Int, Bool]]
"""Bodies, value starts, body ends and level -> value ends, and which values are certainly valid."""


def find_valid_bodies(step: Step, data: npt.NDArray[np.uint8], begins: Int, ends: Int) -> Bool:
    """Return which bodies, from *begins* to *ends* in *data*, are certainly exactly one value each."""
    if len(begins) < FEW:
        return np.zeros(len(begins), bool)
    padded = np.concatenate((data, np.zeros(_ROOM, np.uint8)))
    high = padded >= _TOP
    non_ascii = np.concatenate(([0], np.cumsum(high, dtype=np.int32))) if high.any() else None
    at, ok = step(Bodies(padded, non_ascii), begins, ends, 0)
    whole: Bool = ok & (at == ends)
    return whole


def _read_numbers(batch: Bodies, at: Int) -> tuple[Int, Int, Bool]:
    """Read variable-length zigzag numbers; return them, their ends, and which have at most 64 bits."""
    bytes_ = batch.data[at]
    value = (bytes_ & 0x7F).astype(np.uint64)
    after = at + 1
    ok = np.ones(len(at), bool)
    more = np.flatnonzero(bytes_ >= _TOP)
    shift = 7
    while len(more):
        if shift == 70:
            ok[more] = False
            break
        # What a body claims may lead a step past the last byte: then it is refused, wherever it reads.
        bytes_ = batch.data[np.minimum(after[more], len(batch.data) - 1)]
        if shift == 63:
            ok[more[bytes_ > 1]] = False
        value[more] |= (bytes_ & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[bytes_ >= _TOP]
        shift += 7
    signed: Int = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
    return signed, after, ok


def _spend_step(batch: Bodies, rows: int) -> bool:
    batch.steps_left -= 1
    return rows >= FEW and batch.steps_left > 0


def _reject_all(at: Int) -> tuple[Int, Bool]:
    return at, np.zeros(len(at), bool)


def _reject_step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return _reject_all(at)


def _clip_to_bodies(at: Int, ends: Int, ok: Bool) -> tuple[Int, Bool]:
    """Reject values that end after their body, and move their end back into it."""
    ok &= at <= ends
    return np.where(ok, at, ends), ok


class BatchStepMaker:
    """Makes steps for values of a writer's schema; they accept what is certainly valid for the reader's schema."""

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Step]], defaults: Mapping[str, Any]
    ) -> Step:
        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            if level > MAX_LEVELS or not _spend_step(batch, len(at)):
                return _reject_all(at)
            ok = np.ones(len(at), bool)
            for _, each in fields:
                at, fits = each(batch, at, ends, level + 1)
                ok &= fits
            return at, ok

        return step

    def union(self, written: Sequence[Any], branches: Sequence[Step]) -> Step:
        nothing = [branch in ("null", {"type": "null"}) for branch in written]

        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            chosen, after, ok = _read_numbers(batch, at)
            after, ok = _clip_to_bodies(after, ends, ok)
            fits = np.zeros(len(at), bool)
            for number, branch in enumerate(branches):
                mine = np.flatnonzero(chosen == number)
                if nothing[number] and branch is _read_null:
                    fits[mine] = True
                elif len(mine) >= FEW:
                    after[mine], fits[mine] = branch(batch, after[mine], ends[mine], level)
            return after, ok & fits

        return step

    def array(self, item: Step) -> Step:
        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            return _read_blocks(batch, at, ends, lambda at, ends: item(batch, at, ends, level))

        return step

    def map(self, value: Step) -> Step:
        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            def entry(at: Int, ends: Int) -> tuple[Int, Bool]:
                at, ok = _read_string(batch, at, ends, level)
                at, fits = value(batch, at, ends, level)
                return at, ok & fits

            return _read_blocks(batch, at, ends, entry)

        return step

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Step:
        known = np.array([symbol is not None for symbol in symbols], bool)

        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            value, after, ok = _read_numbers(batch, at)
            ok &= (value >= 0) & (value < len(known))
            ok &= known[np.where(ok, value, 0)] if len(known) else ok
            return _clip_to_bodies(after, ends, ok)

        return step

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Step:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            first, last = number_range(schema, into) if into in ("int", "long") else (low, end)
            return _make_number(max(low, first), min(end, last))
        if "string" in (kind, into):
            return _read_string
        if kind in ("bytes", "fixed") and decimal_bound(schema):
            return _reject_step
        if kind == "bytes":
            return _read_bytes
        if kind in ("null", "boolean"):
            return _read_null if kind == "null" else _read_boolean
        return _make_fixed({"float": 4, "double": 8}.get(kind) or schema["size"])

    def branch(self, function: Step, label: str | None) -> Step:
        return function

    def failing(self, why: str) -> Step:
        return _reject_step

    def reference(self, table: Mapping[str, Step], name: str) -> Step:
        return lambda batch, at, ends, level: table[name](batch, at, ends, level)


def _read_blocks(batch: Bodies, at: Int, ends: Int, item: Callable[[Int, Int], tuple[Int, Bool]]) -> tuple[Int, Bool]:
    """Read blocks of items up to the empty block; *item* reads one item of each of several bodies."""
    at, ok = at.copy(), np.ones(len(at), bool)
    left = np.zeros(len(at), np.int64)
    waiting = np.arange(len(at))
    while len(waiting):
        if not _spend_step(batch, len(waiting)):
            ok[waiting] = False
            break
        empty = waiting[left[waiting] == 0]
        counts, after, fits = _read_numbers(batch, at[empty])
        # A block that says how many bytes it has is left to the walk.
        after, fits = _clip_to_bodies(after, ends[empty], fits & (counts >= 0))
        at[empty], ok[empty], left[empty] = after, fits, np.where(fits, counts, 0)
        waiting = waiting[left[waiting] > 0]
        after, fits = item(at[waiting], ends[waiting])
        fits &= after > at[waiting]  # items without bytes may be as many as are claimed
        at[waiting], ok[waiting] = after, fits
        left[waiting] -= 1
        waiting = waiting[fits]
    return at, ok


def _read_null(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return at, np.ones(len(at), bool)


def _make_number(low: int, end: int) -> Step:
    def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        value, after, ok = _read_numbers(batch, at)
        return _clip_to_bodies(after, ends, ok & (value >= low) & (value <= end - 1))

    return step


def _read_bytes(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    length, after, ok = _read_numbers(batch, at)
    ok &= (length >= 0) & (length <= ends - after)
    return np.where(ok, after + length, ends), ok


def _read_string(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    length, after, ok = _read_numbers(batch, at)
    ok &= (length >= 0) & (length <= ends - after)
    behind = np.where(ok, after + length, ends)
    if batch.non_ascii is not None:
        after = np.minimum(after, behind)
        doubtful = np.flatnonzero(ok & (batch.non_ascii[behind] > batch.non_ascii[after]))
        for row in doubtful.tolist():
            ok[row] = is_utf8(batch.data[after[row] : behind[row]].tobytes())
    return behind, ok


def _read_boolean(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return _clip_to_bodies(at + 1, ends, batch.data[at] < 2)


def _make_fixed(size: int) -> Step:
    def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        return _clip_to_bodies(at + size, ends, np.ones(len(at), bool))

    return step


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
