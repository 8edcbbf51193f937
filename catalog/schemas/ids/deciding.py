"""Decide which definitions match a body by the schema id in its frame; read frames (MATCHING.md#schema-ids).

A definition that declares ids matches only those. Otherwise the names of the registry's schema and of the definition's
must be equal, if both have one. Otherwise the id is not used.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from catalog.model import Definition
from catalog.schemas.contract import (
    MAX_BODY_BYTES,
    MessagePlace,
    SchemaError,
    SchemaFault,
    SchemaSource,
    WriterSchema,
    describe_schema_id,
    make_fault,
)
from catalog.schemas.families import documents_of, family_of
from catalog.schemas.ids.client import Framing, SchemaIds, WrittenSchema
from catalog.schemas.library import CatalogLibrary, schema_source

PROPERTY: Final = "schemaid"
"""The Kafka protocol option with the id, which definitions may constrain."""
MAX_KNOWN: Final = 4096
_JSON: Final = frozenset({"JsonSchema", "JsonStructure"})
_SUBJECTS: Final = "/subjects/"
_IDS: Final = "/schemas/ids/"
DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST: Final = 64
"""Maximum characters of an id."""


@dataclass(frozen=True, slots=True)
class DeclaredIds:
    """The ids that a definition declares: a set, those of a subject (version None: any), or a constraint.

    Matching has already evaluated the constraint.
    """

    ids: frozenset[str] = frozenset()
    subject: tuple[str, int | None] | None = None
    constrained: bool = False

    def includes(self, schema_id: str, written: WrittenSchema | None) -> bool:
        """Return whether an id is one of the declared ids."""
        if schema_id in self.ids or (self.constrained and not self.ids and self.subject is None):
            return True
        if self.subject is None or written is None:
            return False
        name, version = self.subject
        return any(subject == name and version in (None, number) for subject, number in written.subjects)

    def __str__(self) -> str:
        known = sorted(self.ids)
        if self.subject is not None:
            name, version = self.subject
            known.append(f"an id of {name}" + ("" if version is None else f" version {version}"))
        return " or ".join(known)


@dataclass(frozen=True, slots=True)
class FrameLookup:
    """The frame of some bodies: its id, the registry's schema with that id, and the message for Protobuf.

    With ``required``, ids must be declared or resolved.
    """

    id: str
    registry: SchemaIds | None = None
    written: WrittenSchema | None = None
    place: MessagePlace | None = None
    required: bool = False

    def __str__(self) -> str:
        return describe_schema_id(self.id, self.written).removeprefix("schema id ")


Unread = Literal["", "id", "message"]
DecidedBy = Literal["declared", "name", "nothing"]


@dataclass(frozen=True, slots=True)
class IdDecision:
    """Whether a definition accepts bodies with a frame. ``expected`` and ``found`` explain it, as in a mismatch.

    ``unread`` marks an unreadable frame: its ``id`` is unknown, or its message index is invalid (``message``). ``by``
    says what decided; with ``nothing``, bodies of other types may be accepted, too.
    """

    accepts: bool
    expected: str
    found: str
    unread: Unread = ""
    by: DecidedBy = "nothing"


class SchemaIdRule:
    """Decides by declared ids and by names, using only the catalog and the registries' schemas."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._library = CatalogLibrary(schemas)
        self._sources: dict[str, SchemaSource | None] = {}
        self._names: dict[str, Mapping[str, str]] = {}
        self._written: dict[tuple[str, str, MessagePlace | None], Mapping[str, str]] = {}

    def can_have_frames(self, definition: Definition) -> bool:
        """Return whether bodies of a definition may have frames, by its schema's family."""
        source = self._source_of(definition)
        return source is not None and family_of(source.family).frames != "never"

    def is_json(self, definition: Definition) -> bool:
        """Return whether a definition has a JSON schema."""
        source = self._source_of(definition)
        return source is not None and source.family in _JSON

    def names_message(self, definition: Definition) -> bool:
        """Return whether frames of a definition's bodies identify a message, as in Protobuf."""
        source = self._source_of(definition)
        return source is not None and family_of(source.family).frames == "message"

    def declared_ids(self, definition: Definition, registry: SchemaIds | None) -> DeclaredIds | None:
        """Return the ids that a definition declares, for sources with this registry; None if it declares none."""
        entry = self._schemas.get(definition.schemakey or "", {})
        ids = {normalize_id(text) for text in entry.get("schemaids", ())}
        address = (definition.dataschemauri or "").partition("#")[0].partition("?")[0].rstrip("/")
        subject = None
        base, found, rest = address.rpartition(_IDS)
        if found and (registry is None or base == registry.url):
            ids.add(normalize_id(rest.partition("/")[0].partition(":")[0]))
        base, found, rest = address.rpartition(_SUBJECTS)
        if found and registry is not None and base == registry.url:
            subject = _parse_subject(rest)
        constrained = any(each.name == PROPERTY and each.value is not None for each in definition.protocoloptions)
        declared = DeclaredIds(frozenset(ids), subject, constrained)
        return None if declared == DeclaredIds() else declared

    def decide(self, definition: Definition, frame: FrameLookup) -> IdDecision:
        """Decide whether a definition accepts bodies with this frame."""
        declared = self.declared_ids(definition, frame.registry)
        if declared is not None:
            if not declared.includes(frame.id, frame.written):
                return IdDecision(False, str(declared), str(frame))
            by_message = self._decide_by_message(definition, frame)
            return by_message or IdDecision(True, str(declared) or "as constrained", str(frame), by="declared")
        if not self.can_have_frames(definition):
            return IdDecision(True, "any: it has no schema that bodies with frames may have", str(frame))
        if frame.written is not None:
            return self._decide_by_name(definition, frame, frame.written)
        if frame.registry is not None:
            why = f"an id that the registry {frame.registry.name} knows"
            return IdDecision(False, why, str(frame), unread="id")
        if frame.required:
            return IdDecision(False, "an id that a definition declares or a registry resolves", str(frame), unread="id")
        return self._decide_by_message(definition, frame) or IdDecision(
            True, "any: nothing is known of ids", str(frame)
        )

    def _decide_by_name(self, definition: Definition, frame: FrameLookup, written: WrittenSchema) -> IdDecision:
        source = self._source_of(definition)
        own, theirs = self._names_of(definition), self._writer_names(written, frame.place)
        assert source is not None  # checked by the caller
        if written.fault:
            return IdDecision(True, "any: the registry's schema is not valid", f"{frame}, which cannot be used")
        if source.family != written.family and not {source.family, written.family} <= _JSON:
            return IdDecision(False, f"an id of {source.family}", f"{frame} of {written.family}")
        if family_of(source.family).frames == "message" and frame.place is not None and not theirs:
            return IdDecision(
                False, _list_names(own), f"{frame}, of whose file the message indexes lead nowhere", unread="message"
            )
        kind = next((kind for kind in own if kind in theirs), None)
        if kind is None:
            return IdDecision(True, "any: no names to compare", str(frame))
        accepts = own[kind] == theirs[kind]
        return IdDecision(accepts, f"an id of {own[kind]}", f"{frame} of {theirs[kind]}", by="name")

    def _decide_by_message(self, definition: Definition, frame: FrameLookup) -> IdDecision | None:
        """Return a negative decision if the frame's message is not the definition's, else None."""
        source = self._source_of(definition)
        if source is None or frame.place is None or family_of(source.family).frames != "message":
            return None
        own = self._names_of(definition)
        theirs = (
            self._message_names(definition, source, frame.place)
            if frame.written is None
            else self._writer_names(frame.written, frame.place)
        )
        if own == theirs or not own:
            return None
        if not theirs:
            found = f"{frame}, of whose file the message indexes lead nowhere"
            return IdDecision(False, _list_names(own), found, unread="message")
        return IdDecision(False, _list_names(own), f"{frame}, {_list_names(theirs)}")

    def _source_of(self, definition: Definition) -> SchemaSource | None:
        if definition.xid not in self._sources:
            self._sources[definition.xid] = schema_source(definition, self._schemas)
        return self._sources[definition.xid]

    def _names_of(self, definition: Definition) -> Mapping[str, str]:
        if definition.xid not in self._names:
            source = self._source_of(definition)
            self._names[definition.xid] = {} if source is None else _read_names(source, self._library)
        return self._names[definition.xid]

    def _message_names(self, definition: Definition, source: SchemaSource, place: MessagePlace) -> Mapping[str, str]:
        """Return the name of a message in the file of the definition's schema."""
        found = documents_of(source, self._library)
        references = {name: text for (_, name), (_, text) in found.items() if isinstance(text, str)}
        return self._writer_names(WrittenSchema(definition.xid, source.family, source.document, references), place)

    def _writer_names(self, written: WrittenSchema, place: MessagePlace | None) -> Mapping[str, str]:
        key = (written.id, written.document, place)
        if key not in self._written:
            if len(self._written) >= MAX_KNOWN:
                self._written.clear()
            source = SchemaSource(written.family, "", written.document, written=WriterSchema(written, place or (0,)))
            self._written[key] = _read_names(source, self._library) if written.family else {}
        return self._written[key]


def normalize_id(schema_id: str) -> str:
    """Return an id in the form used in frames: a number without leading zeros, or a lower-case UUID."""
    text = schema_id.strip()[:_LONGEST]
    return str(int(text)) if DIGITS.fullmatch(text) else text.lower()


def _parse_subject(rest: str) -> tuple[str, int | None]:
    """Parse ``S`` or ``S/versions/V`` to subject and version; the version is None for ``latest``, which may change."""
    name, _, path = rest.partition("/")
    version = path.removeprefix("versions/").partition("/")[0].partition(":")[0]
    if not path:
        name = name.partition(":")[0]
    return unquote(name), int(version) if DIGITS.fullmatch(version) and len(version) < 10 else None


def _read_names(source: SchemaSource, library: CatalogLibrary) -> Mapping[str, str]:
    try:
        return family_of(source.family).names_of(source, library)
    except SchemaError:
        return {}


def _list_names(names: Mapping[str, str]) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in names.items())


# Frames: the beginning of Kafka bodies that were written by schema registry serializers (MATCHING.md#schema-ids).
#
# Byte 0 and an id of four bytes (``confluent``) or eight (``apicurio``), both big-endian; or a header of two bytes and
# a UUID (``glue``), whose second byte may say that zlib packed what follows. In bodies of Protobuf the message's place
# in its file follows. :func:`read_frame` reads one body, :func:`find_frame_ids` each distinct one of a column.

HEAD_BYTES: Final = 18
"""The first bytes of a body that are enough to read the id of any frame."""
MAX_INDEXES: Final = 64
"""Maximum number of message indexes in a frame."""
_PLAIN: Final = 0
_PACKED: Final = 5
_GLUE: Final = 3
_SIZES: Final = {"confluent": 4, "apicurio": 8, "glue": 16}
ID_ENDS: Final = {"confluent": 5, "apicurio": 9, "glue": 18}
"""The position after the id."""
Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SchemaIdFrame:
    """A frame: the schema's id as text, where the data begin, and whether they are compressed by zlib."""

    id: str
    data: int
    packed: bool = False

    def unpack(self, body: bytes) -> bytes | SchemaFault | None:
        """Return the decompressed data after the id, or a fault; None, for no validation, if over MAX_BODY_BYTES.

        At most that many bytes are decompressed.
        """
        rest = body[self.data :]
        if not self.packed:
            return rest
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(rest, MAX_BODY_BYTES + 1)
        except zlib.error as error:
            return make_fault(f"the body is not packed by zlib, as its frame says: {error}")
        if len(plain) > MAX_BODY_BYTES:
            return None
        if not unpacker.eof or unpacker.unused_data:
            return make_fault("the body is not packed by zlib, as its frame says: it ends too early or too late")
        return plain


@dataclass(frozen=True, slots=True)
class FrameSettings:
    """The framing of a source's bodies, and the registry that resolves their ids, if any.

    With ``required``, records are rejected if their id is neither declared nor resolved.
    """

    framing: Framing = "auto"
    registry: SchemaIds | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """How some bodies are read: their framing, and the writer's schema if known."""

    framing: Framing = "none"
    written: WrittenSchema | None = None


PLAIN: Final = Begin()
"""The body has no frame."""


class FrameIds(NamedTuple):
    """The schema ids of many bodies: ``codes`` are indexes of ``names``, -1 for a body without a frame."""

    codes: Int
    names: list[str]


def frame_kind(framing: Framing) -> Framing:
    """Return the kind of frame for a framing: ``confluent`` for ``auto``."""
    return "confluent" if framing == "auto" else framing


def first_byte(framing: Framing) -> bytes:
    """Return the first byte of every body with such a frame."""
    return bytes((_GLUE,)) if frame_kind(framing) == "glue" else b"\0"


def read_frame(body: bytes, framing: Framing) -> SchemaIdFrame | None:
    """Return the frame of a body; None without a complete frame."""
    kind = frame_kind(framing)
    if kind == "none":
        return None
    begin = 2 if kind == "glue" else 1
    end = begin + _SIZES[kind]
    if len(body) < end or body[0] != (_GLUE if kind == "glue" else 0):
        return None
    if kind == "glue":
        if body[1] not in (_PLAIN, _PACKED):
            return None
        return SchemaIdFrame(str(UUID(bytes=bytes(body[begin:end]))), end, body[1] == _PACKED)
    return SchemaIdFrame(str(int.from_bytes(body[begin:end], "big")), end)


def find_frame_ids(bodies: pa.BinaryArray, framing: Framing) -> FrameIds:
    """Return the schema ids of many bodies; the first HEAD_BYTES of each body are enough."""
    codes, ids = np.full(len(bodies), -1, np.int64), dict[str, int]()
    kind = frame_kind(framing)
    rows = np.flatnonzero(pc.fill_null(pc.starts_with(bodies, first_byte(framing)), False))
    if kind != "none" and len(rows):
        distinct = pc.binary_slice(bodies, 0, ID_ENDS[kind]).take(pa.array(rows)).dictionary_encode()
        frames = [read_frame(head, framing) for head in distinct.dictionary.to_pylist()]
        known = [-1 if frame is None else ids.setdefault(frame.id, len(ids)) for frame in frames]
        codes[rows] = np.array(known, np.int64)[distinct.indices.to_numpy()]
    return FrameIds(codes, list(ids))


def read_message_place(data: bytes, framing: Framing) -> tuple[MessagePlace, int] | None:
    """Return the message that a Protobuf body names, and the position of its data; None if the frame is invalid.

    Confluent's frame has a path of indexes, or a single 0 for the first message; Apicurio's an optional name, by
    default that of the first message; Glue's an index of all messages sorted by name.
    """
    kind = frame_kind(framing)
    number, at = _read_varint(data, 0)
    if at > len(data):
        return None
    if kind == "glue":
        return number, at
    if kind == "apicurio":
        name = _parse_message_ref(data[at : at + number]) if number <= len(data) - at else None
        return None if name is None else (name or (0,), at + number)
    count = _decode_zigzag(number)
    if not 0 <= count <= MAX_INDEXES:
        return None
    path: list[int] = []
    for _ in range(count):
        number, at = _read_varint(data, at)
        path.append(_decode_zigzag(number))
    return None if at > len(data) or min(path, default=0) < 0 else (tuple(path) or (0,), at)


NO_FRAME: Final = make_fault("the body does not begin with a schema registry frame, which `framing` requires")
NO_MESSAGE: Final = make_fault("the schema id is not followed by valid message indexes")


def strip_frame(
    body: bytes, framing: Framing, *, names_message: bool
) -> tuple[bytes, MessagePlace] | SchemaFault | None:
    """Return the data after the frame of a body, and the message of the schema; a fault for an invalid frame.

    Return None, for no validation, if the decompressed data exceed MAX_BODY_BYTES.
    """
    frame = read_frame(body, framing)
    if frame is None:
        return NO_FRAME
    data = frame.unpack(body)
    if not names_message or not isinstance(data, bytes):
        return (data, (0,)) if isinstance(data, bytes) else data
    found = read_message_place(data, framing)
    return NO_MESSAGE if found is None else (data[found[1] :], found[0])


def _parse_message_ref(ref: bytes) -> str | None:
    """Return the name in Apicurio's one-field message; empty if missing, None if the bytes are not that message."""
    if not ref:
        return ""
    size, at = _read_varint(ref, 1)
    if ref[0] != 0x0A or at + size != len(ref):
        return None
    try:
        return ref[at:].decode("utf-8")
    except UnicodeDecodeError:
        return None


def _decode_zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and the position after it; a position past the end if the data end too early."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return 0, len(data) + 1
