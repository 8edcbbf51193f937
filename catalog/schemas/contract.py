"""What a payload schema is before and after it is compiled (JUDGING.md"""

from __future__ import annotations

import importlib
import io
import json
import math
import re
import zlib
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
    from catalog.schemas.filling import Filler

# What a payload schema is before and after it is compiled (JUDGING.md#data-schemas).

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bodies past this size are not looked into; they get no verdict."""
MAX_DIRECT_BYTES: Final = 1024 * 1024
"""Bodies past this size are looked into in a process with limits: reading one may take much time and memory already."""
MAX_FAULTS: Final = 50
"""Faults of one body that are reported."""
BEYOND_LIMITS: Final = "could not be checked within limits"
"""What the fault of a body says that would take more time or memory than one body may."""
MessagePlace = tuple[int, ...] | int | str
"""Which message of a .proto file is meant: by indexes from level to level, by its place among all, or by name."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """What bodies were written with: a schema of a registry, and for Protobuf the message of its file."""

    schema: WrittenSchema
    message: MessagePlace = (0,)

    def __str__(self) -> str:
        return written_as(self.schema.id, self.schema)


def unusable(schema: WrittenSchema) -> str:
    """Return what the fault of each body says that was written with a schema which cannot be used."""
    return f"the registry's schema cannot be used: {schema.fault}; written with {written_as(schema.id, schema)}"


def written_as(schema_id: str, schema: WrittenSchema | None) -> str:
    """Return what a report calls an id: with subjects and versions, as far as the registry named any."""
    known = schema.subjects if schema is not None else ()
    shown = ", ".join(f"{subject} version {version}" for subject, version in known[:MAX_SUBJECTS])
    more = ", …" if len(known) > MAX_SUBJECTS else ""
    return f"schema id {schema_id}" + (f" ({shown}{more})" if shown else "")


MAX_SUBJECTS: Final = 3
"""Subjects of one id that a report names."""


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """A schema that was found and is not yet compiled.

    ``family`` is the name of one in :mod:`catalog.schemas.families`. ``version`` is what follows it in the declared
    format (``draft-07``, ``1.11``, ``3``), lower case, empty when nothing does. ``document`` is a JSON tree, or the
    text of a schema. ``name`` is the ``:Name`` deep link into a document of several types, ``pointer`` a JSON pointer
    into the document; both empty for the whole. ``uri`` is where the document stands: its own references are relative
    to it. Where ``written`` is given, bodies were written with that, and are read as values of this schema.
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
    """Why a body does not conform. ``path`` is where in the body: a JSON pointer, an XPath or a dotted field path."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SchemaError(CatalogError):
    """A schema that can never be used: invalid, of an unknown format, or without the named type.

    ``pointer`` is the place in the schema's document when it is known, ``hint`` the remedy.
    """

    def __init__(self, message: str, *, pointer: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer
        self.hint = hint


class MissingTypeError(SchemaError):
    """A schema that lacks the type or place which a reference to it names; the schema itself may be fine."""


class TooCostly(Exception):
    """Checking a body may take more time or memory than this process can spare.

    ``refused`` tells that the body is known not to conform, and only where it does not is still to be worked out.
    """

    def __init__(self, *, refused: bool = False) -> None:
        super().__init__(BEYOND_LIMITS)
        self.refused = refused

    def fault(self) -> SchemaFault:
        """Return the fault of a body that nobody could check to the end."""
        known = "the body does not conform, and where it does not " if self.refused else "the body "
        return SchemaFault("", known + BEYOND_LIMITS)


class Validator(Protocol):
    """A compiled schema. It is not shared between threads, and keeps nothing of the bodies it saw."""

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return why *body* does not conform, None when it does.

        No body is no JSON and no XML, and the empty message of Protobuf. *at_any_cost* is for processes whose time and
        memory are limited from outside (:mod:`catalog.schemas.validation`).

        Raises:
            TooCostly: the answer may take long or much memory, and *at_any_cost* was not given.
        """
        ...

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all that is wrong with *body*, as far as the family can tell, at most MAX_FAULTS.

        It costs more than :meth:`fault`, and is for bodies that are known not to conform.

        Raises:
            TooCostly: as :meth:`fault`.
        """
        ...


@runtime_checkable
class Accepting(Protocol):
    """A validator that can look at many bodies at once."""

    def accepted(self, data: Any, begins: Any, ends: Any, content_types: Any) -> Any:
        """Return which bodies conform for sure, as an array of booleans; the others are to be looked at one by one.

        Body *i* is ``data[begins[i]:ends[i]]``; *content_types* is an array of texts, or null. All are arrays.
        """
        ...


class Library(Protocol):
    """Gives the documents that a schema refers to. It never goes to the network: everything was loaded before."""

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return URI and document (tree or text) of a reference written in the document at *base*, None if unknown."""
        ...


# Verdicts on two schemas, for the families that compare theirs (:mod:`catalog.comparing`).

Verdict = Literal["same", "compatible", "incompatible", "unknown"]
Comparison = tuple[Verdict, str]
"""A verdict and the place that decides it, in words."""
MAX_DEPTH: Final = 64
"""Levels of a document that are compared; what lies deeper is only compared for being equal."""
_RANK: Final[Mapping[Verdict, int]] = {"same": 0, "compatible": 1, "unknown": 2, "incompatible": 3}


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the comparison that decides: the first of those that are worst, ``same`` when there is none."""
    return max(comparisons, key=lambda each: _RANK[each[0]], default=("same", ""))


# What a schema family is to the others: its names, what they may ask of its documents and bodies, and its folder.


@dataclass(frozen=True, slots=True)
class SchemaFamily:
    """One family of schemas; :mod:`catalog.schemas.families` lists them all.

    ``room`` is a package with the modules ``validating``, ``filling`` and ``columns``, and ``comparing`` where the
    family ``compares``. They are imported when a schema first needs them: who has only JSON schemas never loads
    Protobuf's compiler.
    """

    name: str
    room: str
    spelling: re.Pattern[str]
    """Matches, in lower case, what formats call it: all before the version."""
    media_types: frozenset[str]
    """Media types that mean it where a format is asked for."""
    content_type: str
    """The content type of bodies where a definition names none."""
    evident: Callable[[Any], bool] = lambda document: False
    """Recognises a document (tree or text) that is of this family without doubt."""
    names_itself: bool = False
    """Whether ``$schema`` of its documents is spelled as formats are."""
    is_tree: bool = True
    """Whether its documents are JSON."""
    compares: bool = False
    ignores: bool = False
    """Whether it may use a document without some parts of it, which ``ignored_in`` of ``validating`` tells."""
    frames: Literal["never", "id", "message"] = "id"
    """Whether bodies may have frames of schema registries, and whether those name a message behind the id."""
    named: bool = False
    """Whether schemas have names by which registries know them (``names_of`` in ``validating``)."""
    refers_by_name: bool = False
    """Whether its schemas refer to others by names of types, and never by an address."""
    typed: bool = True
    """Whether payloads can have columns of their own."""
    resolves: bool = False
    """Whether bodies are read by the schema that wrote them; others need only conform to the one that reads them."""
    deep_link: Callable[[str, str], tuple[str, str]] = lambda name, pointer: (name, pointer)
    """Returns name and pointer of the part that is meant, from those that a reference writes."""

    def compile_schema(self, source: SchemaSource, library: Library) -> Validator:
        """Compile a schema.

        Raises:
            SchemaError: it can never be used.
        """
        validator: Validator = self._module("validating").compile_schema(source, library)
        return validator

    def references_of(self, source: SchemaSource) -> Iterable[str]:
        """Give the references to other documents that compiling needs (``$ref``, ``import``), as written."""
        references: Iterable[str] = self._module("validating").references_of(source)
        return references

    def ignored_in(self, source: SchemaSource) -> Iterable[SchemaFault]:
        """Give what is invalid in a document and ignored, each with its JSON pointer."""
        ignored: Iterable[SchemaFault] = self._module("validating").ignored_in(source) if self.ignores else ()
        return ignored

    def names_of(self, source: SchemaSource, library: Library) -> Mapping[str, str]:
        """Return the names of what a schema means, or of what was written, by kind; none where there are none.

        Raises:
            SchemaError: it can never be used.
        """
        names: Mapping[str, str] = self._module("validating").names_of(source, library) if self.named else {}
        return names

    def message_indexes(self, source: SchemaSource, library: Library) -> bytes:
        """Return how Confluent's frame says which message of its file a body is; nothing where a schema has just one.

        Raises:
            SchemaError: it can never be used.
        """
        indexes: bytes = (
            self._module("validating").message_indexes(source, library) if self.frames == "message" else b""
        )
        return indexes

    def open_filler(self, source: SchemaSource, library: Library) -> Filler:
        """Return what makes payloads for a schema.

        Raises:
            SchemaError, Unfillable: the schema cannot be read, or lacks the type that is meant.
        """
        filler: Filler = self._module("filling").open_filler(source, library)
        return filler

    def open_columns(self, source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, BodyReader] | None:
        """Return the shape of payloads and what reads them; None, and a note in *survey*, when nothing has a type.

        Raises:
            SchemaError: it can never be used.
        """
        if not self.typed:
            survey.note((), f"has no columns: payloads of {self.name} are not typed")
            return None
        columns: tuple[Shape, BodyReader] | None = self._module("columns").open_columns(source, library, survey)
        return columns

    def compare(self, before: Any, after: Any) -> Comparison:
        """Compare two documents that are not equal; only where the family ``compares``."""
        comparison: Comparison = self._module("validating").compare(before, after)
        return comparison

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.room}.{name}")


# What a content type says of a body, and how a fault is put in words, for every family of schemas that is not JSON.


class UnfitValue:
    """Stands for a value of a body that its column cannot have; ``why`` says so, ``raw`` is what may stand in texts.

    Nothing takes it for a value: no dataclass, so that no library writes one as an object.
    """

    __slots__ = ("raw", "why")

    def __init__(self, why: str, raw: int | None = None) -> None:
        self.why = why
        self.raw = raw


MAX_MESSAGE: Final = 300
"""Characters of a fault's message and of its path: both go into headers and listings."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def is_json(content_type: str | None) -> bool:
    """Tell whether a content type names JSON: ``application/json``, ``text/json``, ``application/vnd.x+json``."""
    return media_type_of(content_type).endswith(("/json", "+json"))


def holds_json(content_type: str | None) -> bool:
    """Tell whether data of a content type is JSON; of none at all it is, as the CloudEvents JSON format has it."""
    return content_type is None or is_json(content_type)


def looks_like_json(body: bytes) -> bool:
    """Tell whether a body without content type may be JSON: it begins as an object, an array or a string does."""
    return body.lstrip(b" \t\r\n")[:1] in (b"{", b"[", b'"')


def json_value(body: bytes, *, doubles: bool = False) -> Any:
    """Return the value of a JSON text, whatever its numbers are (JUDGING.md#data-schemas).

    A number that no double can hold is a Decimal, or with *doubles* an infinity.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it is no JSON.
        RecursionError: it nests too deeply.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        if "out of range" not in str(error):
            raise
    number = float if doubles else _number
    try:
        return (_DOUBLES if doubles else _EXACT).decode(body)
    except msgspec.DecodeError as error:
        if "out of range" not in str(error):
            raise
    try:  # an integer of more digits than msgspec makes an integer of
        return json.loads(body.decode("utf-8"), parse_int=number, parse_float=number, parse_constant=_no_number)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _number(text: str) -> int | float | Decimal:
    number = float(text)
    if math.isfinite(number):
        return number if "." in text or "e" in text.lower() else int(text)
    # What libraries write out takes memory by its digits, and no schema has limits so far away.
    try:
        exact = Decimal(text) if len(text) <= _LONGEST else Decimal("Infinity")
    except InvalidOperation:  # an exponent of more than eighteen digits
        exact = Decimal("Infinity")
    if exact.is_finite() and exact.adjusted() <= _LONGEST:
        return exact
    return Decimal(f"{'-' if text.startswith('-') else ''}1e{_LONGEST}")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_LONGEST: Final = 999
_EXACT: Final = msgspec.json.Decoder(float_hook=_number)
_DOUBLES: Final = msgspec.json.Decoder(float_hook=float)


def short(text: str) -> str:
    """Return a text of one line without control characters, cut to :data:`MAX_MESSAGE` characters."""
    line = _UNPRINTABLE.sub(" ", text[: 4 * MAX_MESSAGE]).strip()
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def fault(message: str, path: str = "") -> SchemaFault:
    """Return a fault whose texts are safe to hand on, whatever the body put into them."""
    return SchemaFault(short(path), short(message))


# Bodies as schemas see them: without the content coding they travel in (JUDGING.md#data-schemas). What is stored and
# forwarded stays as it was received.

MAX_CODINGS: Final = 4
"""Codings laid over each other that are undone."""
_PIECE: Final = 64 * 1024


def decoded(body: bytes, coding: str, limit: int = MAX_BODY_BYTES) -> bytes | SchemaFault | None:
    """Return a body without its content codings, the last named undone first; a fault when it is not coded so.

    None, which is no verdict, for an unknown coding and for what would be more than *limit* bytes. No more than that is
    ever decoded, whatever a few bytes claim.
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
                if len(plain) > limit:
                    return None
        except (OSError, zlib.error, EOFError) as error:
            return fault(f"the body is not coded as {name}, which its content-encoding says: {error}")
        body = bytes(plain)
    return body


def encoded(body: bytes, coding: str) -> bytes:
    """Return a body in the content codings that are named, in their order; as it is when one is unknown."""
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


def _streamed(codec: str) -> Callable[[bytes], Iterator[bytes]]:
    def pieces(body: bytes) -> Iterator[bytes]:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(_PIECE):
                yield piece

    return pieces


def _deflated(body: bytes) -> Iterator[bytes]:
    """Give the pieces of a zlib stream, or of the bare one that many senders mean by ``deflate``."""
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
    "deflate": _deflated,
    **{name: _streamed(codec) for name, codec in _CODECS.items()},
}
