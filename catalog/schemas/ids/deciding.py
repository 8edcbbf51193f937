"""Which definitions take a body whose frame has an id (MATCHING.md#schema-ids).

A definition that declares its ids takes those and no others. Else the registry's schema and the definition's must be of
one name, where both have one. Else nothing is known, and the id decides nothing.
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
"""The option of Kafka that a definition may constrain."""
MAX_KNOWN: Final = 4096
_JSON: Final = frozenset({"JsonSchema", "JsonStructure"})
_SUBJECTS: Final = "/subjects/"
_IDS: Final = "/schemas/ids/"
DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST: Final = 64
"""Characters of an id."""


@dataclass(frozen=True, slots=True)
class DeclaredIds:
    """The ids that a definition declares: by themselves, as those of a subject (of any version: None), or by a
    constraint, which matching has held them against before.
    """

    ids: frozenset[str] = frozenset()
    subject: tuple[str, int | None] | None = None
    constrained: bool = False

    def includes(self, schema_id: str, written: WrittenSchema | None) -> bool:
        """Return whether an id is one of them."""
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
    """A frame that some bodies have: its id, what the source's registry has under it, and for Protobuf the message.

    ``known`` is False where there is no registry, or it has nothing. ``required`` refuses what nothing resolves.
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
    """Whether a definition takes bodies of a frame. ``expected`` and ``found`` say why, as a mismatch does.

    ``unread`` tells a frame that nobody can read: its ``id`` is unknown, or it names no ``message``. ``by`` says
    what decided: nothing, where ids of other types may be among those that are taken.
    """

    accepts: bool
    expected: str
    found: str
    unread: Unread = ""
    by: DecidedBy = "nothing"


class SchemaIdRule:
    """Decides, by what is declared and by names: from the catalog and what registries have, and nothing else."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._library = CatalogLibrary(schemas)
        self._sources: dict[str, SchemaSource | None] = {}
        self._names: dict[str, Mapping[str, str]] = {}
        self._written: dict[tuple[str, str, MessagePlace | None], Mapping[str, str]] = {}

    def can_have_frames(self, definition: Definition) -> bool:
        """Return whether a definition has a schema whose bodies may have frames."""
        source = self._source_of(definition)
        return source is not None and family_of(source.family).frames != "never"

    def is_json(self, definition: Definition) -> bool:
        """Return whether bodies of a definition are JSON by its schema."""
        source = self._source_of(definition)
        return source is not None and source.family in _JSON

    def names_message(self, definition: Definition) -> bool:
        """Return whether frames of a definition's bodies name a message."""
        source = self._source_of(definition)
        return source is not None and family_of(source.family).frames == "message"

    def declared_ids(self, definition: Definition, registry: SchemaIds | None) -> DeclaredIds | None:
        """Return the ids that a definition declares, for bodies of a source with this registry; None for no such."""
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

    def decide(self, definition: Definition, lookup: FrameLookup) -> IdDecision:
        """Decide whether a definition takes bodies whose frame is *lookup* for."""
        declared = self.declared_ids(definition, lookup.registry)
        if declared is not None:
            if not declared.includes(lookup.id, lookup.written):
                return IdDecision(False, str(declared), str(lookup))
            by_message = self._decide_by_message(definition, lookup)
            return by_message or IdDecision(True, str(declared) or "as constrained", str(lookup), by="declared")
        if not self.can_have_frames(definition):
            return IdDecision(True, "any: it has no schema that bodies with frames may have", str(lookup))
        if lookup.written is not None:
            return self._decide_by_name(definition, lookup, lookup.written)
        if lookup.registry is not None:
            why = f"an id that the registry {lookup.registry.name} knows"
            return IdDecision(False, why, str(lookup), unread="id")
        if lookup.required:
            return IdDecision(
                False, "an id that a definition declares or a registry resolves", str(lookup), unread="id"
            )
        return self._decide_by_message(definition, lookup) or IdDecision(
            True, "any: nothing is known of ids", str(lookup)
        )

    def _decide_by_name(self, definition: Definition, lookup: FrameLookup, written: WrittenSchema) -> IdDecision:
        source = self._source_of(definition)
        own, theirs = self._names_of(definition), self._writer_names(written, lookup.place)
        assert source is not None  # who asks has seen that there is one
        if written.fault:
            return IdDecision(True, "any: the registry's schema is not valid", f"{lookup}, which cannot be used")
        if source.family != written.family and not {source.family, written.family} <= _JSON:
            return IdDecision(False, f"an id of {source.family}", f"{lookup} of {written.family}")
        if family_of(source.family).frames == "message" and lookup.place is not None and not theirs:
            return IdDecision(
                False, _list_names(own), f"{lookup}, of whose file the message indexes lead nowhere", unread="message"
            )
        kind = next((kind for kind in own if kind in theirs), None)
        if kind is None:
            return IdDecision(True, "any: no names to compare", str(lookup))
        accepts = own[kind] == theirs[kind]
        return IdDecision(accepts, f"an id of {own[kind]}", f"{lookup} of {theirs[kind]}", by="name")

    def _decide_by_message(self, definition: Definition, lookup: FrameLookup) -> IdDecision | None:
        """Return the decision if a frame names another message than the definition; None if it may be the same."""
        source = self._source_of(definition)
        if source is None or lookup.place is None or family_of(source.family).frames != "message":
            return None
        own = self._names_of(definition)
        theirs = (
            self._message_names(definition, source, lookup.place)
            if lookup.written is None
            else self._writer_names(lookup.written, lookup.place)
        )
        if own == theirs or not own:
            return None
        if not theirs:
            found = f"{lookup}, of whose file the message indexes lead nowhere"
            return IdDecision(False, _list_names(own), found, unread="message")
        return IdDecision(False, _list_names(own), f"{lookup}, {_list_names(theirs)}")

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
        """Return the name of the message at a place in a definition's own file."""
        references = {
            name: text for name, text in _imported_documents(source, self._library).items() if isinstance(text, str)
        }
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
    """Return an id as frames have it: a number without zeros before it, a UUID in small letters."""
    text = schema_id.strip()[:_LONGEST]
    return str(int(text)) if DIGITS.fullmatch(text) else text.lower()


def _parse_subject(rest: str) -> tuple[str, int | None]:
    """Read ``S``, ``S/versions/V`` or ``S/versions/latest``, which is any: the latest is another tomorrow."""
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


def _imported_documents(source: SchemaSource, library: CatalogLibrary) -> dict[str, Any]:
    return {reference: document for (_, reference), (_, document) in documents_of(source, library).items()}


def _list_names(names: Mapping[str, str]) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in names.items())


# Frames: how bodies of Kafka begin that serializers of schema registries wrote (MATCHING.md#schema-ids).
#
# Byte 0 and an id of four bytes (``confluent``) or eight (``apicurio``), both big-endian; or a header of two bytes and
# a UUID (``glue``), whose second byte may say that zlib packed what follows. In bodies of Protobuf the message's place
# in its file follows. :func:`read_frame` reads one body, :func:`ids_of` whole columns; a test holds both equal.

HEAD_BYTES: Final = 18
"""Bytes of a body that hold the id of any frame."""
MAX_INDEXES: Final = 64
"""Levels of messages within messages that a frame's indexes may lead down."""
_PLAIN: Final = 0
_PACKED: Final = 5
_GLUE: Final = 3
_SIZES: Final = {"confluent": 4, "apicurio": 8, "glue": 16}
ID_ENDS: Final = {"confluent": 5, "apicurio": 9, "glue": 18}
"""Where ids end."""
Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SchemaIdFrame:
    """The schema's id in a frame, as text, where what follows it begins, and whether zlib packed that."""

    id: str
    data: int
    packed: bool = False

    def unpack(self, body: bytes) -> bytes | SchemaFault | None:
        """Return what follows the id; None, which is no verdict, for more than MAX_BODY_BYTES.

        No more than that is ever unpacked, whatever a few bytes claim.
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
class Frames:
    """How bodies of a source begin, and the registry that knows their ids, if any.

    ``required`` refuses a frame whose id nothing resolves or declares.
    """

    framing: Framing = "auto"
    registry: SchemaIds | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """How some bodies are to be read: framed or not, and by which schema of a registry, where that is known."""

    framing: Framing = "none"
    written: WrittenSchema | None = None


PLAIN: Final = Begin()
"""The whole body is read."""


class FrameIds(NamedTuple):
    """The ids of many bodies: ``codes`` number them in ``names``, -1 where a body has no frame."""

    codes: Int
    names: list[str]


def frame_kind(framing: Framing) -> Framing:
    """Return the frame that a framing looks for."""
    return "confluent" if framing == "auto" else framing


def first_byte(framing: Framing) -> bytes:
    """Return what every body with such a frame begins with."""
    return bytes((_GLUE,)) if frame_kind(framing) == "glue" else b"\0"


def read_frame(body: bytes, framing: Framing) -> SchemaIdFrame | None:
    """Return the frame that a body begins with; None for none. A body begins with all of an id, or with no frame."""
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


def ids_of(bodies: pa.BinaryArray, framing: Framing) -> FrameIds:
    """Return the ids that bodies begin with, all at once; the first HEAD_BYTES of each body are enough."""
    kind, rows = frame_kind(framing), len(bodies)
    codes = np.full(rows, -1, np.int64)
    _, offsets, data = bodies.buffers()
    if kind == "none" or not rows or offsets is None or data is None:
        return FrameIds(codes, [])
    bytes_ = np.frombuffer(data, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + rows + 1].astype(np.int64)
    begin = 2 if kind == "glue" else 1
    framed = np.diff(bounds) >= begin + _SIZES[kind]
    if bodies.null_count:
        framed &= bodies.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(framed)
    starts = bounds[places]
    here = bytes_[starts] == (_GLUE if kind == "glue" else 0)
    if kind == "glue":
        here &= np.isin(bytes_[np.minimum(starts + 1, len(bytes_) - 1)], (_PLAIN, _PACKED))
    places, starts = places[here], starts[here]
    if not len(places):
        return FrameIds(codes, [])
    held = bytes_[starts[:, None] + np.arange(begin, begin + _SIZES[kind])]
    if kind == "glue":
        ids, owners = np.unique(np.ascontiguousarray(held).view("V16").reshape(-1), return_inverse=True)
        names = [str(UUID(bytes=each.tobytes())) for each in ids]
    else:
        numbers = np.ascontiguousarray(held).view(">u4" if kind == "confluent" else ">u8").reshape(-1)
        ids, owners = np.unique(numbers.astype(np.uint64), return_inverse=True)
        names = [str(number) for number in ids.tolist()]
    codes[places] = owners.reshape(-1)
    return FrameIds(codes, names)


def read_message_place(data: bytes, framing: Framing) -> tuple[MessagePlace, int] | None:
    """Return which message of its file a Protobuf body says it is, and where that message begins; None for no frame.

    By Confluent it is the path of indexes, where a single 0 stands for the first message; by Apicurio a name, which
    may be missing and is then the first one's; by Glue the place among all messages in the order of their names.
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


def _parse_message_ref(ref: bytes) -> str | None:
    """Return the name in Apicurio's message of one text field; empty for none, None where it is another message."""
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
    """Return an unsigned number and the position after it, which is past the end where the data ends within."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return 0, len(data) + 1
