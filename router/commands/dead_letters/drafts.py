"""Draft message definitions from records that match none: a frequency table of their kinds, and a draft for each row.

The kind of an event is its type, that of a native record its method and address; words that look like ids of instances
are gaps in both. Drafts are for a reviewer: what all records of a kind share is required, nothing else.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from bindings.parts import BINARY_KIND
from bindings.protocols import binding_of
from catalog.findings import RecordError
from catalog.linting.events import is_media_type
from catalog.model import CLOUDEVENTS
from catalog.parsing.texts import read_table
from catalog.protocols.properties import (
    ATTRIBUTE_TYPES,
    NAMED_PREFIXES,
    PROTOCOL_OPTIONS,
    ProtocolOptions,
    add_nested_option,
    is_dotted,
)
from catalog.record import Record
from catalog.schemas.contract import parse_json
from catalog.values import is_valid, media_type_of

# Properties that drafts never require: ids, times, tracing, headers of transports, and possible secrets.

_PATTERNS: Final = read_table(__package__, "noise.yaml", dict[str, list[Any]])
_ATTRIBUTES: Final = frozenset(itertools.chain(*_PATTERNS["attributes"]))
_NOISE: Final = re.compile("|".join(_PATTERNS["names"]), re.IGNORECASE | re.DOTALL)
_SECTIONS: Final = ("header.", "footer.", "delivery-annotations.", "message-annotations.")


def is_noise(key: str, protocol: str) -> bool:
    """Whether a property (``e.NAME`` or ``p.PATH``) is irrelevant for the kind of message."""
    side, _, path = key.partition(".")
    if side == "e":
        return path in _ATTRIBUTES or _NOISE.fullmatch(path) is not None
    if path in PROTOCOL_OPTIONS[protocol].fleeting or path in ("response_topic", "properties.content-encoding"):
        return True
    return path.startswith(_SECTIONS) or any(
        path.startswith(prefix) and _NOISE.fullmatch(path, len(prefix)) for prefix in NAMED_PREFIXES
    )


# Traits of a record: its envelope, the content type of its data, and the relevant properties.

_ATTRIBUTE: Final = re.compile(r"(?!data\Z)[a-z0-9]{1,64}", re.ASCII)
_MARKS: Final = frozenset({"oversized", "undecodable"})
MAX_VALUE: Final = 1_000
"""Maximum characters of a value; a property with a longer one is never required."""
Hides = Callable[[str, str], bool]
"""Returns whether the value of a name (``x-card``) at a path (``headers.x-card``; ``""`` in bodies) is sensitive."""


class Traits(NamedTuple):
    """The traits of one record that drafts are made from.

    ``media`` is the media type of the data, ``""`` for none. ``properties`` are texts by key: ``e.NAME`` for an
    attribute, ``p.PATH`` for a protocol option; None for one that is there and no text, or too long a one.
    ``document`` is the data's value when it is JSON, inside a tuple.
    """

    record: Record
    protocol: str
    event: bool
    media: str
    properties: Mapping[str, str | None]
    document: tuple[object] | None


def extract_traits(record: Record, sniffs: Callable[[str], bool], hides: Hides) -> Traits | str:
    """Return the traits of a record without sensitive values, or why no definition can be drafted from it.

    *sniffs* returns, by protocol, whether its channel accepts events in plain JSON bodies (MATCHING.md#cloudevents).
    """
    binding = binding_of(record.protocol)
    if binding is None:
        return "of an unknown protocol"
    try:
        parts = binding.split(record.native)
    except RecordError:
        return "no native record"
    if any(part.key in _MARKS for part in parts):
        return "oversized or undecodable"
    envelope = binding.read_envelope(parts, record.body, lambda: sniffs(binding.protocol))
    if envelope.mode in ("batch", "undecodable") or envelope.faults:
        return "a batch of events" if envelope.mode == "batch" else "no valid event"
    found: dict[str, str | None] = {}
    if envelope.is_event:
        found = {f"e.{name}": text for name, text in envelope.attributes.items() if _ATTRIBUTE.fullmatch(name)}
    else:
        for part in parts:
            if part.key.lower() != binding.rule.content_type and _is_declarable(part.key, binding.protocol):
                found.setdefault(f"p.{part.key}", None if part.kind == BINARY_KIND else part.text)
    properties = {
        key: text if text and len(text) <= MAX_VALUE else None
        for key, text in found.items()
        if not is_noise(key, binding.protocol) and not hides(key.rpartition(".")[2], key[2:])
    }
    content = envelope.attributes.get("datacontenttype") if envelope.is_event else envelope.content_type
    media = media_type_of(content)
    media = media if is_media_type(media) else ""
    document = _parse_json_body(envelope.data) if not media or "json" in media else None
    if not content and document is not None and isinstance(document[0], (dict, list)):
        media = "application/json"
    return Traits(record, binding.protocol, envelope.is_event, media, properties, document)


def _parse_json_body(body: bytes | None) -> tuple[object] | None:
    try:
        return (parse_json(body.removeprefix(b"\xef\xbb\xbf"), doubles=True),) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_declarable(path: str, protocol: str) -> bool:
    """Whether a definition can declare this member of the native record."""
    known, (holder, dot, name) = PROTOCOL_OPTIONS[protocol], path.partition(".")
    if not dot:
        return path in known.scalars
    table = known.sections.get(holder)
    return bool(name) and (holder in known.lists or (holder in known.sections and (table is None or name in table)))


# Splitting values into words and delimiters, and recognizing words that are ids of instances.

_DELIMITER: Final = re.compile(r"([/.:;,=&?#|@ ])")
_SUBJECT: Final = re.compile(r"([/.])")
_SEGMENT: Final = re.compile(r"([/?#&=;, |@])")
_UNSAFE: Final = re.compile(r"[{}+#*>]")
"""What cannot be literal in a template: braces, and wildcards of subscriptions."""
_ATOM: Final = re.compile(
    r"""
    [-+]?\d+(?:\.\d+)*                                              # a number, an address of IPv4
    | v\d+(?:\.\d+)+                                                # a version
    | \d{4}-\d{2}(?:-\d{2}(?:[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:[Zz]|[-+]\d{2}:?\d{2})?)?)?
    """,
    re.VERBOSE | re.ASCII,
)
_ID: Final = re.compile(
    r"""
    (?!v\d+(?:\.\d+)*\Z | (?:sha256|sha512|utf16|x509|oauth20|iso8601|base64|k8s)\Z) (?=.*\d)
    (?: [-+]?\d.*                                                   # a number, a date, an address of IPv4, 42nd
        | (?:0x)?[0-9a-f]{8,} | [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}
        | [a-z_-]*[a-z](?:\d{2,}|[-_]\d+)                           # pump-17
        | (?=.*[a-z])[a-z0-9_\-%~+]{16,}                            # another opaque text
    )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def split_words(text: str, *, subject: bool = False) -> list[str]:
    """Split a value into words, which may be empty, with a delimiter after each but the last.

    A NATS *subject* is split only between tokens. A segment that is a number, a version or a date is one word.
    """
    if subject:
        return _SUBJECT.split(text)
    pieces: list[str] = []
    for place, piece in enumerate(_SEGMENT.split(text)):
        pieces += [piece] if place % 2 or _ATOM.fullmatch(piece) else _DELIMITER.split(piece)
    return pieces


def looks_like_id(word: str) -> bool:
    """Whether a word looks like an id: a number, date, UUID, hexadecimal or other opaque text, or ``pump-17``."""
    return _ID.fullmatch(word) is not None


def to_singular(word: str) -> str:
    """Return the singular of an English plural; other words are unchanged."""
    lower = word.lower()
    if len(word) > 4 and lower.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and lower.endswith(("sses", "xes", "ches", "shes", "zzes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and re.search(r"[^sui]s\Z", lower) else word


# The frequency table: how many records there are of each kind, and a sample of them.

MAX_KINDS: Final = 10_000
MAX_SAMPLED: Final = 1_000
"""Records of one kind that are kept; all are counted."""
MAX_BYTES: Final = 256 << 20
"""Approximate memory of all records that are kept; then there are no further kinds."""
MAX_WORDS: Final = 20
"""Maximum different words at one place of an address that name kinds; if there are more, they are instances."""
MAX_LEVELS: Final = 100
"""Maximum words of an address that names a kind."""
TOO_MANY_KINDS: Final = "of yet another kind"
Pieces = tuple[str | None, ...]
"""Words and delimiters of an event type or address, alternating; None is a gap in place of a word."""


class RecordKind(NamedTuple):
    """What records of one kind share."""

    endpoint: str
    protocol: str
    event: bool
    method: str
    pieces: Pieces = ()

    @property
    def address_key(self) -> str:
        """The key of the property whose words these are."""
        return "e.type" if self.event else f"p.{PROTOCOL_OPTIONS[self.protocol].about}"


class FrequencyTable:
    """Counts and samples records by kind; the same records in the same order give the same table."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._counts: Counter[RecordKind] = Counter()
        self._samples: dict[RecordKind, list[Traits]] = {}
        self._bytes_left = MAX_BYTES

    def add(self, traits: Traits) -> None:
        """Count a record, and keep it if there is room."""
        kind = _find_kind(traits)
        if kind not in self._samples and (len(self._samples) >= MAX_KINDS or self._bytes_left <= 0):
            self.left_out[TOO_MANY_KINDS] += 1
            return
        self._counts[kind] += 1
        sample = self._samples.setdefault(kind, [])
        if len(sample) < MAX_SAMPLED and self._bytes_left > 0:
            sample.append(traits)
            headers = len(msgspec.json.encode(traits.record.native))
            self._bytes_left -= 2_000 + 3 * (headers + len(traits.record.body or b""))

    def list_drafts(self, fewest: int) -> list[Draft]:
        """Return a draft for each kind with *fewest* records, sorted.

        There is a gap wherever more than :data:`MAX_WORDS` words occur after the same words.
        """
        alike: dict[tuple[Any, ...], list[RecordKind]] = {}
        for kind in self._samples:
            alike.setdefault((kind[:4], kind.pieces[1::2], bool(kind.pieces)), []).append(kind)
        joined: dict[RecordKind, list[RecordKind]] = {}
        for kinds in alike.values():
            for pieces, members in _join_instances(kinds, ()):
                joined.setdefault(kinds[0]._replace(pieces=pieces), []).extend(members)
        drafts = []
        for kind in sorted(joined, key=lambda kind: (kind[:4], [piece or "" for piece in kind.pieces])):
            letters = sum(self._counts[each] for each in joined[kind])
            if letters >= fewest:
                drafts.append(Draft(kind, letters, [one for each in joined[kind] for one in self._samples[each]]))
            else:
                self.left_out[f"of a shape with fewer than {fewest} letters"] += letters
        return drafts


def _find_kind(traits: Traits) -> RecordKind:
    method = traits.properties.get("p.method") or ""
    kind = RecordKind(traits.record.endpoint or "", traits.protocol, traits.event, method)
    text = traits.properties.get(kind.address_key)
    if text is None:
        return kind
    pieces = split_words(text, subject=not traits.event and is_dotted(traits.protocol, kind.address_key[2:]))
    if len(pieces) > 2 * MAX_LEVELS:
        return kind
    return kind._replace(
        pieces=tuple(
            None if place % 2 == 0 and (looks_like_id(piece) or _UNSAFE.search(piece)) else piece
            for place, piece in enumerate(pieces)
        )
    )


def _join_instances(kinds: Sequence[RecordKind], before: Pieces) -> Iterator[tuple[Pieces, Sequence[RecordKind]]]:
    """Yield the pieces of joined kinds, and the kinds; all *kinds* are equally long and begin with *before*."""
    place = len(before)
    if place >= len(kinds[0].pieces):
        yield before, kinds
        return
    branches: dict[str | None, list[RecordKind]] = {}
    for kind in kinds:
        branches.setdefault(kind.pieces[place], []).append(kind)
    if len(branches) > MAX_WORDS:
        # No gap is ever empty.
        empty = branches.pop("", [])
        branches = {None: [kind for members in branches.values() for kind in members], **({"": empty} if empty else {})}
    for word, members in branches.items():
        yield from _join_instances(members, (*before, word, *kinds[0].pieces[place + 1 : place + 2]))


# A JSON Schema (2020-12) that all documents conform to. It has no values, so nothing sensitive.

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FORMAT: Final = "JsonSchema/draft-2020-12"
_MAX_DEPTH: Final = 12
_MAX_MEMBERS: Final = 200
"""Members of an object that are declared one by one; an object with more is a map."""
_TYPES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def infer_schema(values: Sequence[Any], depth: int = 0) -> dict[str, Any]:
    """Return the schema of *values*: their types, the members of objects, and which of these all have."""
    found = {_TYPES[type(value)] for value in values}
    kinds = [kind for kind in _TYPES.values() if kind in found and not (kind == "integer" and "number" in found)]
    if not kinds or kinds == ["null"]:
        return {}  # only null was seen, so any other value may follow
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    items = [item for value in values if isinstance(value, list) for item in value]
    objects = [value for value in values if isinstance(value, dict)]
    if depth < _MAX_DEPTH and items:
        schema["items"] = infer_schema(items, depth + 1)
    if depth < _MAX_DEPTH and objects:
        members: dict[str, list[Any]] = {}
        for each in objects:
            for name, value in each.items():
                members.setdefault(name, []).append(value)
        if len(members) > _MAX_MEMBERS or (len(members) >= 5 and all(map(looks_like_id, members))):
            values_of_map = [value for each in members.values() for value in each]
            return {**schema, "additionalProperties": infer_schema(values_of_map, depth + 1)}
        if members:
            schema["properties"] = {name: infer_schema(members[name], depth + 1) for name in sorted(members)}
            required = sorted(name for name, each in members.items() if len(each) == len(objects))
            schema |= {"required": required} if required else {}
    return schema


# The draft of a kind.

_MIN_FIXED: Final = 5
"""Minimum records for a constant value to be required, outside of addresses."""
_MIN_SHARE: Final = 0.05
"""Minimum share of records that have a property for it to be declared."""
_MIN_JSON_SHARE: Final = 0.95
"""Minimum share of JSON bodies for a schema to be drafted."""
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")
_NO_NAME: Final = re.compile(r"v?\d+(?:\.\d+)*|api|rest|rpc|urn|https?", re.IGNORECASE | re.ASCII)


@dataclass(slots=True)
class Draft:
    """One drafted definition, and the results of its trial.

    ``letters`` is the number of its dead letters, ``matched`` the share of its *records*, a sample of them, that became
    events. ``messageid`` is made of its literals; ``group`` is where it goes. ``notes`` are for the reviewer.

    ``properties`` are by key: the required value, or whether any value is required. First address and method, then
    constant values, then properties that all records have, then those of some.
    """

    kind: RecordKind
    letters: int
    records: list[Traits]
    messageid: str = ""
    group: str = ""
    matched: float = 0.0
    notes: tuple[str, ...] = ()
    properties: Mapping[str, str | bool] = field(init=False)

    def __post_init__(self) -> None:
        self.properties = self._find_properties()
        words = split_words(re.sub(r"\{[^{}]*\}", "", f"{self.kind.method.lower()}/{self.address}"))[::2]
        name = ".".join(filter(None, (_NOT_NAME.sub("-", word).strip("-") for word in words)))
        self.messageid = name[:100].strip(".-") or ("event" if self.kind.event else "message")

    @property
    def xid(self) -> str:
        """The xid of the drafted definition."""
        return f"{self.group}/messages/{self.messageid}"

    @property
    def address(self) -> str:
        """The address or event type, with a placeholder for each gap that is named after the word before it."""
        names: set[str] = set()
        text, before = "", ""
        for place, piece in enumerate(self.kind.pieces):
            if piece is not None:
                text += piece
                before = before if place % 2 else piece or before
                continue
            name = _NOT_NAME.sub("_", to_singular(before)).strip("_")[:40]
            name = name if name and not looks_like_id(before) and not _NO_NAME.fullmatch(before) else "id"
            name = find_unused(name, "", names)
            names.add(name.lower())
            text, before = f"{text}{{{name}}}", ""
        return "" if len(text) > MAX_VALUE or not any(character.isalnum() for character in text) else text

    def _find_properties(self) -> dict[str, str | bool]:
        kind, total = self.kind, len(self.records)
        fixed: dict[str, str] = {kind.address_key: self.address} if self.address else {}
        fixed |= {"p.method": kind.method} if kind.method and not _UNSAFE.search(kind.method) else {}
        texts: dict[str, list[str | None]] = {}
        for record in self.records:
            for key, text in record.properties.items():
                texts.setdefault(key, []).append(text)
        required: dict[str, bool] = {}
        optional: dict[str, bool] = {}
        for key in sorted(texts.keys() - {kind.address_key, "p.method"}):
            values = texts[key]
            first = values[0]
            if first and len(values) == total >= _MIN_FIXED and set(values) == {first} and _is_literal(first):
                fixed[key] = first
            elif None not in values and key != "e.source" and not all(map(looks_like_id, filter(None, values))):
                if len(values) == total:
                    required[key] = True
                elif len(values) >= _MIN_SHARE * total:
                    optional[key] = False
        return {**fixed, **required, **optional}

    def to_json(self) -> dict[str, Any]:
        """Return the message as JSON.

        A draft for native records declares the event that they become, with its own type. So it does not match events
        on the same channel, and plain JSON bodies that are events stay events (MATCHING.md#cloudevents).
        """
        kind, protocol = self.kind, PROTOCOL_OPTIONS[self.kind.protocol]
        place = f" at {kind.endpoint}" if kind.endpoint else ""
        form: dict[str, Any] = {
            "messageid": self.messageid,
            "description": f"Drafted from {self.letters} dead letters{place}; review before use.",
            "envelope": CLOUDEVENTS,
            "envelopemetadata": {} if kind.event else {"type": {"value": self.messageid}},
            # A protocol that an event's draft declares would make it one for native records too.
            **({} if kind.event else {"protocol": kind.protocol, "protocoloptions": {}}),
        }
        for key, value in self.properties.items():
            written = _property_to_json(key, value, protocol)
            if key.startswith("e."):
                form["envelopemetadata"][key[2:]] = written
            else:
                add_nested_option(form["protocoloptions"], key[2:], written)
        medias = {record.media for record in self.records}
        media = medias.pop() if len(medias) == 1 else ""
        if media and not media.startswith("application/cloudevents"):
            form["datacontenttype"] = media
        documents = [record.document[0] for record in self.records if record.document is not None]
        if "json" in media and len(documents) >= _MIN_JSON_SHARE * len(self.records):
            if schema := infer_schema(documents):
                form |= {"dataschemaformat": FORMAT, "dataschema": {"$schema": DIALECT, **schema}}
        return {name: value for name, value in form.items() if value or name == "envelopemetadata"}


def find_unused(name: str, mark: str, taken: Collection[str]) -> str:
    """Return the name, with the first number that makes it unused if it is among *taken*, in lower case."""
    numbered = itertools.chain([name], (f"{name}{mark}{number}" for number in itertools.count(2)))
    return next(each for each in numbered if each.lower() not in taken)


def _is_literal(text: str) -> bool:
    if _UNSAFE.search(text) or text.lower() in ("true", "false"):
        return False  # of a flag the other value may occur later
    words = split_words(text)[::2]
    return not any(map(looks_like_id, words)) and any(character.isalnum() for character in text)


def _property_to_json(key: str, value: str | bool, protocol: ProtocolOptions) -> dict[str, Any]:
    """Return a property of a draft without its name; its type only where the default would not accept the value."""
    path, (holder, _, name) = key[2:], key[2:].partition(".")
    types, section = ATTRIBUTE_TYPES if key.startswith("e.") else protocol.scalars, protocol.sections.get(holder)
    kind = section.get(name, "string") if section and key.startswith("p.") else types.get(path, "string")
    if isinstance(value, bool):
        written = {} if kind in ("string", "symbol") else {"type": "string"}
        return {**written, **({"required": True} if value else {})}
    return {**({} if "{" in value or is_valid(kind, value) else {"type": "string"}), "value": value}
