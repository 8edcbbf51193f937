"""Interfaces and types that all schema families share: schemas, validators, faults (MATCHING.md#data-schemas)."""

from __future__ import annotations

import importlib
import io
import json
import math
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import msgspec

from catalog.findings import CatalogError
from catalog.schemas.ids.client import WrittenSchema
from catalog.values import media_type_of

if TYPE_CHECKING:
    from catalog.schemas.columns import BodyReader, Shape, Survey
    from catalog.schemas.filling import PayloadSampler

# Payload schemas before and after they are compiled (MATCHING.md#data-schemas).

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Larger bodies are not validated."""
MAX_DIRECT_BYTES: Final = 1024 * 1024
"""Larger bodies are validated in a process with limits: parsing them may need much time and memory."""
MAX_FAULTS: Final = 50
"""Maximum number of faults reported for one body."""
BEYOND_LIMITS: Final = "could not be checked within limits"
"""The end of the message of :data:`BEYOND_FAULT`."""
MessagePlace = tuple[int, ...] | int | str
"""A message of a .proto file: its index at each level of nesting, its index among all, or its name."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """The writer's schema of bodies: a schema of a registry, and for Protobuf the message in its file."""

    schema: WrittenSchema
    message: MessagePlace = (0,)

    def __str__(self) -> str:
        return describe_schema_id(self.schema.id, self.schema)


def unusable_schema_message(schema: WrittenSchema) -> str:
    """Return the fault message for bodies whose writer's schema is not valid."""
    return f"the registry's schema is not valid: {schema.fault}; written with {describe_schema_id(schema.id, schema)}"


def describe_schema_id(schema_id: str, schema: WrittenSchema | None) -> str:
    """Return a schema id for reports, with its known subjects and versions."""
    known = schema.subjects if schema is not None else ()
    shown = ", ".join(f"{subject} version {version}" for subject, version in known[:MAX_SUBJECTS])
    more = ", …" if len(known) > MAX_SUBJECTS else ""
    return f"schema id {schema_id}" + (f" ({shown}{more})" if shown else "")


MAX_SUBJECTS: Final = 3
"""Maximum number of subjects in a report."""


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """A schema before it is compiled.

    ``family`` is a name in :mod:`catalog.schemas.families`, ``version`` the lower-case rest of the declared format
    (``draft-07``, ``1.11``, ``3``) or empty. ``document`` is a JSON tree or the text of a schema. ``name`` is the
    ``:Name`` deep link into a document with several types, ``pointer`` a JSON pointer into the document; both are empty
    for the whole. ``uri`` is the base of relative references. ``written`` is the writer's schema, if bodies were
    written with another one.
    """

    family: str
    version: str
    document: Any
    name: str = ""
    pointer: str = ""
    uri: str = ""
    written: WriterSchema | None = None


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """Why a body is not valid. ``path`` locates it in the body: a JSON pointer, an XPath or a dotted field path."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


BEYOND_FAULT: Final = SchemaFault("", f"the body {BEYOND_LIMITS}")
"""The fault of a body whose validation exceeds the limits on time or memory."""


class SchemaError(CatalogError):
    """A schema is invalid, of an unknown format, or lacks the named type.

    ``pointer`` is the location in the schema's document, if known, ``hint`` the remedy.
    """

    def __init__(self, message: str, *, pointer: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer
        self.hint = hint


class MissingTypeError(SchemaError):
    """A schema lacks the type or location that a reference names; the schema itself may be valid."""


class CostExceeded(Exception):
    """Validating a body may need too much time or memory for this process."""

    def __init__(self) -> None:
        super().__init__(BEYOND_LIMITS)


class Validator(ABC):
    """A compiled schema. Not thread-safe; bodies are validated independently of each other."""

    @abstractmethod
    def find_faults(
        self, body: bytes | None, content_type: str | None, limit: int, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        """Return why *body* is not valid: at most *limit* faults, of those that the family can find.

        A missing body is invalid JSON and XML, and the empty message of Protobuf. *at_any_cost* is for processes whose
        time and memory are limited from outside (:mod:`catalog.schemas.sandbox`).

        Raises:
            CostExceeded: validation may need much time or memory, and *at_any_cost* is False.
        """

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return the first fault of *body*, None if it is valid; raises as :meth:`find_faults`."""
        return next(iter(self.find_faults(body, content_type, 1, at_any_cost=at_any_cost)), None)

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return at most MAX_FAULTS faults of *body*; slower than :meth:`fault`, and raises as :meth:`find_faults`."""
        return self.find_faults(body, content_type, MAX_FAULTS, at_any_cost=False)


@runtime_checkable
class BatchValidator(Protocol):
    """A validator that can validate many bodies at once."""

    def find_valid(self, data: Any, begins: Any, ends: Any, content_types: Any) -> Any:
        """Return which bodies are certainly valid, as an array of booleans; the others must be validated one by one.

        Body *i* is ``data[begins[i]:ends[i]]``; *content_types* is an array of texts, or null. All are arrays.
        """
        ...


class Library(Protocol):
    """The documents that a schema refers to, all loaded before; never uses the network."""

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return URI and document (tree or text) of a reference in the document at *base*; None if unknown."""
        ...


class EmptyLibrary:
    """A library without other documents."""

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return nothing."""
        return None


# Verdicts on two schemas, for the families that compare theirs (:mod:`catalog.comparing`).

Verdict = Literal["same", "compatible", "incompatible", "unknown"]
Comparison = tuple[Verdict, str]
"""A verdict, and the location that decides it, in words."""
_RANK: Final[Mapping[Verdict, int]] = {"same": 0, "compatible": 1, "unknown": 2, "incompatible": 3}


def worst_comparison(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the first of the worst comparisons, ``same`` if there is none."""
    return max(comparisons, key=lambda each: _RANK[each[0]], default=("same", ""))


# The description of a schema family: its names, features and package.


@dataclass(frozen=True, slots=True)
class SchemaFamily:
    """One family of schemas; :mod:`catalog.schemas.families` lists them all.

    ``room`` is a package with the modules ``validating`` (with ``compare`` if the family ``compares``), ``filling``,
    and ``columns`` if it is ``typed``. They are imported when a schema first needs them, so a catalog with JSON schemas
    only never loads Protobuf's compiler.
    """

    name: str
    room: str
    spelling: re.Pattern[str]
    """Matches the lower-case name of the family in formats, without the version."""
    media_types: frozenset[str]
    """Media types that are accepted as its format."""
    content_type: str
    """The content type of bodies if a definition names none."""
    evident: Callable[[Any], bool] = lambda document: False
    """Whether a document (tree or text) is certainly of this family."""
    names_itself: bool = False
    """Whether ``$schema`` of its documents is spelled like a format."""
    is_tree: bool = True
    """Whether its documents are JSON."""
    compares: bool = False
    ignores: bool = False
    """Whether it may ignore invalid parts of a document (``find_ignored_parts`` in ``validating``)."""
    frames: Literal["never", "id", "message"] = "id"
    """Whether bodies may have schema registry frames, and whether these name a message after the id."""
    named: bool = False
    """Whether its schemas have names that registries use (``names_of`` in ``validating``)."""
    refers_by_name: bool = False
    """Whether its schemas refer to others by type name, never by URI."""
    typed: bool = True
    """Whether payloads can have columns of their own, and samples can be generated."""
    resolves: bool = False
    """Whether reading a body needs its writer's schema, with schema resolution as in Avro."""
    deep_link: Callable[[str, str], tuple[str, str]] = lambda name, pointer: (name, pointer)
    """Returns name and pointer of the part that the name and pointer of a reference mean."""

    def compile_schema(self, source: SchemaSource, library: Library) -> Validator:
        """Compile a schema.

        Raises:
            SchemaError: the schema is not valid.
        """
        validator: Validator = self._load_module("validating").compile_schema(source, library)
        return validator

    def references_of(self, source: SchemaSource) -> Iterable[str]:
        """Yield the references to other documents that compiling needs (``$ref``, ``import``), as written."""
        references: Iterable[str] = self._load_module("validating").references_of(source)
        return references

    def find_ignored_parts(self, source: SchemaSource) -> Iterable[SchemaFault]:
        """Yield ignored invalid parts of a document, each with its JSON pointer."""
        ignored: Iterable[SchemaFault] = (
            self._load_module("validating").find_ignored_parts(source) if self.ignores else ()
        )
        return ignored

    def names_of(self, source: SchemaSource, library: Library) -> Mapping[str, str]:
        """Return the names in a schema, or in the writer's schema, by kind.

        Raises:
            SchemaError: the schema is not valid.
        """
        names: Mapping[str, str] = self._load_module("validating").names_of(source, library) if self.named else {}
        return names

    def message_indexes(self, source: SchemaSource, library: Library) -> bytes:
        """Return the message indexes of Confluent's frame for the schema's message; empty if its file has only one.

        Raises:
            SchemaError: the schema is not valid.
        """
        indexes: bytes = (
            self._load_module("validating").message_indexes(source, library) if self.frames == "message" else b""
        )
        return indexes

    def open_sampler(self, source: SchemaSource, library: Library) -> PayloadSampler:
        """Return the generator of sample payloads for a schema.

        Raises:
            SchemaError, UnsupportedSchema: the schema cannot be read, lacks the named type, or is of a family
                without samples (XSD).
        """
        if not self.typed:
            from catalog.schemas.filling import UnsupportedSchema

            raise UnsupportedSchema(f"payloads of {self.name} are not generated")
        sampler: PayloadSampler = self._load_module("filling").open_sampler(source, library)
        return sampler

    def open_columns(self, source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, BodyReader] | None:
        """Return the columns of payloads and their reader; None, and a note in *survey*, if nothing is typed.

        Raises:
            SchemaError: the schema is not valid.
        """
        if not self.typed:
            survey.add_finding((), f"has no columns: payloads of {self.name} are not typed")
            return None
        columns: tuple[Shape, BodyReader] | None = self._load_module("columns").open_columns(source, library, survey)
        return columns

    def compare(self, before: Any, after: Any) -> Comparison:
        """Compare two documents that are not equal; only if the family ``compares``."""
        comparison: Comparison = self._load_module("validating").compare(before, after)
        return comparison

    def _load_module(self, name: str) -> Any:
        return importlib.import_module(f"{self.room}.{name}")


# Content types, JSON values and fault messages, for all families.


class UnfitValue:
    """A value of a body that its column cannot store; ``why`` has the reason, ``raw`` the value for text columns.

    It is not a dataclass, so that no library encodes it as an object.
    """

    __slots__ = ("raw", "why")

    def __init__(self, why: str, raw: int | None = None) -> None:
        self.why = why
        self.raw = raw


MAX_MESSAGE: Final = 300
"""Maximum characters of a fault's message and of its path, which appear in headers and listings."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def is_json(content_type: str | None) -> bool:
    """Whether a content type is JSON: ``application/json``, ``text/json``, ``application/vnd.x+json``."""
    return media_type_of(content_type).endswith(("/json", "+json"))


def is_json_data(content_type: str | None) -> bool:
    """Whether data of a content type is JSON; also without content type, as in the CloudEvents JSON format."""
    return content_type is None or is_json(content_type)


def looks_like_json(body: bytes) -> bool:
    """Whether a body without content type may be JSON: it begins like an object, an array or a string."""
    return body.lstrip(b" \t\r\n")[:1] in (b"{", b"[", b'"')


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8 text."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def encode_zigzag(number: int) -> bytes:
    """Encode a non-negative number as a zigzag varint, as Avro and the frames of Protobuf have them."""
    value, out = number << 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def parse_json(body: bytes, *, doubles: bool = False) -> Any:
    """Return the value of a JSON text with numbers of any size (MATCHING.md#data-schemas).

    A number out of the range of a double is a Decimal, or with *doubles* an infinity.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        if "out of range" not in str(error):
            raise
    number = float if doubles else _parse_number
    try:
        return (_DOUBLES if doubles else _EXACT).decode(body)
    except msgspec.DecodeError as error:
        if "out of range" not in str(error):
            raise
    try:  # an integer with more digits than msgspec can read
        return json.loads(body.decode("utf-8"), parse_int=number, parse_float=number, parse_constant=_reject_constant)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _parse_number(text: str) -> int | float | Decimal:
    number = float(text)
    if math.isfinite(number):
        return number if "." in text or "e" in text.lower() else int(text)
    # Printing a number takes memory by its digits, and no schema has limits this large.
    try:
        exact = Decimal(text) if len(text) <= _LONGEST else Decimal("Infinity")
    except InvalidOperation:  # an exponent of more than eighteen digits
        exact = Decimal("Infinity")
    if exact.is_finite() and exact.adjusted() <= _LONGEST:
        return exact
    return Decimal(f"{'-' if text.startswith('-') else ''}1e{_LONGEST}")


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_LONGEST: Final = 999
_EXACT: Final = msgspec.json.Decoder(float_hook=_parse_number)
_DOUBLES: Final = msgspec.json.Decoder(float_hook=float)


def clip(text: str) -> str:
    """Return a text as one line without control characters, truncated to :data:`MAX_MESSAGE` characters."""
    line = _UNPRINTABLE.sub(" ", text[: 4 * MAX_MESSAGE]).strip()
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def make_fault(message: str, path: str = "") -> SchemaFault:
    """Return a fault with sanitized texts."""
    return SchemaFault(clip(path), clip(message))


# Decoding the content coding of bodies before validation (MATCHING.md#data-schemas). What is stored and
# forwarded is not decoded.

MAX_CODINGS: Final = 4
"""Maximum number of nested content codings that are decoded."""
_PIECE: Final = 64 * 1024


def decode_content(body: bytes, coding: str) -> bytes | SchemaFault | None:
    """Return a body with its content codings decoded, the last one first; a fault if decoding fails.

    Return None, for no validation, for an unknown coding and for more than MAX_BODY_BYTES, which are never decoded.
    """
    names = [name.strip().lower() for name in coding.split(",") if name.strip()]
    if len(names) > MAX_CODINGS:
        return None
    for name in reversed(names):
        if name == "identity":
            continue
        decoder = _DECODERS.get(name)
        if decoder is None:
            return None
        plain = bytearray()
        try:
            for piece in decoder(body):
                plain += piece
                if len(plain) > MAX_BODY_BYTES:
                    return None
        except (OSError, zlib.error, EOFError) as error:
            return make_fault(f"the body is not encoded as its content-encoding {name}: {error}")
        body = bytes(plain)
    return body


def encode_content(body: bytes, coding: str) -> bytes:
    """Return a body encoded with these content codings, in order; unchanged if one is unknown."""
    names = [name.strip().lower() for name in coding.split(",") if name.strip() and name.strip().lower() != "identity"]
    if not all(name in _DECODERS for name in names):
        return body
    import pyarrow as pa

    for name in names:
        if name == "deflate":
            body = zlib.compress(body)
            continue
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, _CODECS[name]) as stream:
            stream.write(body)
        body = sink.getvalue().to_pybytes()
    return body


def _decompressor_for(codec: str) -> Callable[[bytes], Iterator[bytes]]:
    def decompress(body: bytes) -> Iterator[bytes]:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(_PIECE):
                yield piece

    return decompress


def _inflate(body: bytes) -> Iterator[bytes]:
    """Yield the pieces of a zlib stream, or of the raw deflate stream that many senders use for ``deflate``."""
    for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        decoder, source = zlib.decompressobj(bits), io.BytesIO(body)
        try:
            piece = decoder.decompress(source.read(_PIECE), _PIECE)
        except zlib.error:
            if bits < 0:
                raise
            continue
        while piece:
            yield piece
            piece = decoder.decompress(decoder.unconsumed_tail or source.read(_PIECE), _PIECE)
        if not decoder.eof:
            raise EOFError("it ends too early")
        return


_CODECS: Final[Mapping[str, str]] = {"gzip": "gzip", "x-gzip": "gzip", "br": "brotli", "zstd": "zstd"}
_DECODERS: Final[Mapping[str, Callable[[bytes], Iterator[bytes]]]] = {
    "deflate": _inflate,
    **{name: _decompressor_for(codec) for name, codec in _CODECS.items()},
}
