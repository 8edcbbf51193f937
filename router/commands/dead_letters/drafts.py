"""Draft message definitions from records that match none: a frequency table of their kinds, and a draft for each row.

The kind of an event is its type, that of a native record its method and address; words that look like ids of instances
are gaps in both. Drafts are for a reviewer: what all records of a kind share is required, nothing else.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from bindings.parts import BINARY_KIND
from bindings.protocols import binding_of
from catalog.findings import RecordError
from catalog.linting.events import is_media_type
from catalog.model import CLOUDEVENTS
from catalog.protocols.properties import (
    ALL_OPTIONS,
    ATTRIBUTE_TYPES,
    NAMED_PREFIXES,
    PROTOCOL_OPTIONS,
    ProtocolOptions,
    is_dotted,
)
from catalog.record import Record
from catalog.schemas.contract import parse_json
from catalog.values import is_valid, media_type_of

# Properties that drafts never require: ids, times, tracing, headers of transports, and possible secrets.

_ATTRIBUTES: Final = frozenset(
    """
    id time specversion datacontenttype dataschema sequence sequencetype recordedtime expirytime sampledrate
    partitionkey correlationid causationid dataref
    """.split()
)
_SECTIONS: Final = ("header.", "footer.", "delivery-annotations.", "message-annotations.")
_TRANSPORT: Final = re.compile(
    r"""
    (?:accept|access-control|cf|if|nats|proxy|sec|x-amz|x-amzn|x-envoy|x-forwarded|xrouter)-.*
    | (?:content-(?:length|encoding|md5|digest|disposition|language)|transfer-encoding|connection|keep-alive|te|trailer)
    | (?:host|user-agent|accept|date|via|forwarded|origin|referer|expect|range|upgrade|pragma|cache-control|age|server)
    | (?:x-real-ip|x-powered-by|dnt|priority|kafka_.*|digest|etag|expires|last-modified|vary)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TRACING: Final = re.compile(
    r"""
    (?:traceparent|tracestate|baggage|b3|x-b3-.*|uber-trace-id|sentry-trace|diagnostic-id|x-cloud-trace-context)
    | (?:x-)?(?:request|correlation|causation|trace|span|message|idempotency)[-_]?(?:id|key)
    | .*(?:timestamp|[-_]time|[-_]date|delivery|[-_]nonce)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SECRET: Final = re.compile(
    r"auth(?:orization)?$|cookie|token|secret|passw|pwd|credential|signature|hmac|api[-_]?key|access[-_]?key|session",
    re.IGNORECASE,
)
"""Names of possible secrets, and of values computed from them; literals would be published with the catalog."""


def is_noise(key: str, protocol: str) -> bool:
    """Whether a property (``e.NAME`` or ``p.PATH``) is irrelevant for the kind of message."""
    side, _, path = key.partition(".")
    if side == "e":
        return path in _ATTRIBUTES or _TRACING.fullmatch(path) is not None or _SECRET.search(path) is not None
    if path in PROTOCOL_OPTIONS.get(protocol, ALL_OPTIONS).fleeting or path.startswith(_SECTIONS):
        return True
    for prefix in NAMED_PREFIXES:
        if path.startswith(prefix):
            name = path[len(prefix) :]
            return any((_TRANSPORT.fullmatch(name), _TRACING.fullmatch(name), _SECRET.search(name)))
    return path in ("response_topic", "properties.content-encoding")


# Traits of a record: its envelope, the content type of its data, and the relevant properties.

_ATTRIBUTE: Final = re.compile(r"(?!data\Z)[a-z0-9]{1,64}", re.ASCII)
_MARKS: Final = frozenset({"oversized", "undecodable"})
MAX_VALUE: Final = 1_000
"""Maximum characters of a value; a property with a longer one is never required."""
Hides = Callable[[str, str], bool]
"""Returns whether the value of a name (``x-card``) at a path (``headers.x-card``; ``""`` in bodies) is sensitive."""


def hide_nothing(name: str, path: str) -> bool:
    """Return False: no value is sensitive."""
    return False


@dataclass(frozen=True, slots=True)
class Traits:
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
    has_body: bool
    document: tuple[object] | None


def extract_traits(record: Record, sniffs: Callable[[str], bool], hides: Hides = hide_nothing) -> Traits | str:
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
    event, properties = envelope.is_event, dict[str, str | None]()
    if event:
        given = {name: text for name, text in envelope.attributes.items() if _ATTRIBUTE.fullmatch(name)}
        properties = {f"e.{name}": text for name, text in given.items() if not is_noise(f"e.{name}", "")}
    for part in () if event else parts:
        key = f"p.{part.key}"
        declarable = part.key.lower() != binding.rule.content_type and _is_declarable(
            part.key, PROTOCOL_OPTIONS[binding.protocol]
        )
        if key not in properties and declarable and not is_noise(key, binding.protocol):
            properties[key] = None if part.kind == BINARY_KIND else part.text
    shown = {
        key: text if text and len(text) <= MAX_VALUE else None
        for key, text in properties.items()
        if not hides(key.rpartition(".")[2], key[2:])
    }
    content = envelope.attributes.get("datacontenttype") if event else envelope.content_type
    media = media_type_of(content)
    media = media if is_media_type(media) else ""
    document = _parse_json_body(envelope.data) if not media or "json" in media else None
    if not content and document is not None and isinstance(document[0], (dict, list)):
        media = "application/json"
    return Traits(record, binding.protocol, event, media, shown, bool(envelope.data), document)


def _parse_json_body(body: bytes | None) -> tuple[object] | None:
    if not body:
        return None
    try:
        return (parse_json(body.removeprefix(b"\xef\xbb\xbf"), doubles=True),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_declarable(path: str, vocabulary: ProtocolOptions) -> bool:
    """Whether a definition can declare this member of the native record."""
    holder, dot, name = path.partition(".")
    if not dot:
        return path in vocabulary.scalars
    table = vocabulary.sections.get(holder)
    known = holder in vocabulary.lists or (holder in vocabulary.sections and (table is None or name in table))
    return bool(name) and known


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
_VERSION: Final = re.compile(r"v\d+(?:\.\d+)*", re.IGNORECASE | re.ASCII)
_HEX: Final = re.compile(r"(?:0x)?[0-9a-f]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"[A-Za-z_-]*[A-Za-z](?:\d{2,}|[-_]\d+)", re.ASCII)
_OPAQUE: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_\-%~+]{16,}", re.ASCII)
_NAMES: Final = frozenset({"sha256", "sha512", "utf16", "x509", "oauth20", "iso8601", "base64", "k8s"})
"""Words that end in digits but are not ids."""


class Words(NamedTuple):
    """A split value: ``words[0] delimiters[0] words[1] ...``; words may be empty, delimiters are single characters."""

    words: tuple[str, ...]
    delimiters: tuple[str, ...]


def split_words(text: str, *, subject: bool = False) -> Words:
    """Split a value into words and delimiters; a NATS *subject* only between tokens.

    A segment that is a number, a version or a date is one word.
    """
    pieces: list[str] = []
    for place, piece in enumerate([text] if subject else _SEGMENT.split(text)):
        if subject:
            pieces += _SUBJECT.split(piece)
        else:
            pieces += [piece] if place % 2 or _ATOM.fullmatch(piece) else _DELIMITER.split(piece)
    return Words(tuple(pieces[::2]), tuple(pieces[1::2]))


def looks_like_id(word: str) -> bool:
    """Whether a word looks like an id: a number, date, UUID, hexadecimal or other opaque text, or ``pump-17``."""
    if not any(character.isdecimal() for character in word) or _VERSION.fullmatch(word):
        return False
    if word[0].isdecimal() or _ATOM.fullmatch(word) or _HEX.fullmatch(word):
        return True
    if _NUMBERED.fullmatch(word):
        return word.lower() not in _NAMES
    return _OPAQUE.fullmatch(word) is not None


def to_singular(word: str) -> str:
    """Return the singular of an English plural; other words are unchanged."""
    lower = word.lower()
    if len(word) > 4 and lower.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and lower.endswith(("sses", "xes", "ches", "shes", "zzes")):
        return word[:-2]
    if len(word) > 3 and lower.endswith("s") and not lower.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


# The frequency table: how many records there are of each kind, and a sample of them.

MAX_KINDS: Final = 10_000
MAX_SAMPLED: Final = 1_000
"""Records of one kind that are kept; all are counted."""
MAX_BYTES: Final = 256 << 20
"""Approximate memory of all records that are kept."""
MAX_WORDS: Final = 20
"""Maximum different words at one place of an address that name kinds; if there are more, they are instances."""
MAX_LEVELS: Final = 100
"""Maximum words of an address that names a kind."""
TOO_MANY_KINDS: Final = "of yet another kind"


class RecordKind(NamedTuple):
    """What records of one kind share: ``words`` are those of the event type or the address; None is a gap."""

    endpoint: str
    protocol: str
    event: bool
    method: str
    delimiters: tuple[str, ...]
    words: tuple[str | None, ...]

    @property
    def address_key(self) -> str:
        """The key of the property whose words these are."""
        return "e.type" if self.event else f"p.{PROTOCOL_OPTIONS[self.protocol].about}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """The records of one kind: how many there are, and the sampled ones."""

    kind: RecordKind
    letters: int
    records: tuple[Traits, ...]


class FrequencyTable:
    """Counts and samples records by kind; the same records in the same order give the same table."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._counts: Counter[RecordKind] = Counter()
        self._samples: dict[RecordKind, list[Traits]] = {}
        self._bytes_left = MAX_BYTES

    def add(self, traits: Traits) -> None:
        """Count a record, and keep it if there is room; each kind keeps one, unless that takes twice the memory."""
        kind = _find_kind(traits)
        if kind not in self._samples and (len(self._samples) >= MAX_KINDS or self._bytes_left <= -MAX_BYTES):
            self.left_out[TOO_MANY_KINDS] += 1
            return
        self._counts[kind] += 1
        sample = self._samples.setdefault(kind, [])
        if not sample or (len(sample) < MAX_SAMPLED and self._bytes_left > 0):
            sample.append(traits)
            headers = len(msgspec.json.encode(traits.record.native))
            self._bytes_left -= 2_000 + 3 * (headers + len(traits.record.body or b""))

    def list_bundles(self) -> list[Bundle]:
        """Return the rows, sorted, with a gap wherever more than :data:`MAX_WORDS` words occur after the same words."""
        joined: dict[RecordKind, list[RecordKind]] = {}
        alike: dict[RecordKind, list[RecordKind]] = {}
        for kind in self._samples:
            alike.setdefault(kind._replace(words=()), []).append(kind)
        for kinds in alike.values():
            for words, members in _join_instances(kinds, ()):
                joined.setdefault(kinds[0]._replace(words=words), []).extend(members)
        ordered = sorted(joined.items(), key=lambda item: (item[0][:5], [word or "" for word in item[0].words]))
        return [
            Bundle(
                kind,
                sum(self._counts[each] for each in members),
                tuple(traits for each in members for traits in self._samples[each]),
            )
            for kind, members in ordered
        ]


def _find_kind(traits: Traits) -> RecordKind:
    kind = RecordKind(
        traits.record.endpoint or "",
        traits.protocol,
        traits.event,
        traits.properties.get("p.method") or "",
        ("none",),
        (),
    )
    text = traits.properties.get(kind.address_key)
    if text is None:
        return kind
    words, delimiters = split_words(text, subject=not traits.event and is_dotted(traits.protocol, kind.address_key[2:]))
    if len(words) > MAX_LEVELS:
        return kind
    masked = tuple(None if looks_like_id(word) or _UNSAFE.search(word) else word for word in words)
    return kind._replace(delimiters=delimiters, words=masked)


def _join_instances(
    kinds: Sequence[RecordKind], before: tuple[str | None, ...]
) -> Iterator[tuple[tuple[str | None, ...], Sequence[RecordKind]]]:
    """Yield the words of joined kinds, and the kinds; all *kinds* are equally long and begin with *before*."""
    place = len(before)
    if place == len(kinds[0].words):
        yield before, kinds
        return
    branches: dict[str | None, list[RecordKind]] = {}
    for kind in kinds:
        branches.setdefault(kind.words[place], []).append(kind)
    if len(branches) > MAX_WORDS:
        # No gap is ever empty.
        empty = branches.pop("", [])
        branches = {None: [kind for members in branches.values() for kind in members], **({"": empty} if empty else {})}
    for word, members in branches.items():
        yield from _join_instances(members, (*before, word))


# A JSON Schema (2020-12) that all documents conform to. It has no values, so nothing sensitive.

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FORMAT: Final = "JsonSchema/draft-2020-12"
_MAX_DEPTH: Final = 12
_MAX_MEMBERS: Final = 200
"""Members of an object that are declared one by one; an object with more is a map."""
_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


def infer_schema(values: Sequence[Any], depth: int = 0) -> dict[str, Any]:
    """Return the schema of *values*: their types, the members of objects, and which of these all have."""
    found = {_json_type(value) for value in values}
    kinds = [kind for kind in _TYPES if kind in found and not (kind == "integer" and "number" in found)]
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
        ids = sum(map(looks_like_id, members))
        if len(members) > _MAX_MEMBERS or (ids >= 5 and ids == len(members)):
            values_of_map = [value for each in members.values() for value in each]
            return {**schema, "additionalProperties": infer_schema(values_of_map, depth + 1)}
        if members:
            schema["properties"] = {name: infer_schema(members[name], depth + 1) for name in sorted(members)}
            required = sorted(name for name, each in members.items() if len(each) == len(objects))
            schema |= {"required": required} if required else {}
    return schema


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {type(None): "null", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


# The draft of a bundle.

_MIN_FIXED: Final = 5
"""Minimum records for a constant value to be required, outside of addresses."""
_MIN_SHARE: Final = 0.05
"""Minimum share of records that have a property for it to be declared."""
_MIN_JSON_SHARE: Final = 0.95
"""Minimum share of JSON bodies for a schema to be drafted."""
_FLAGS: Final = frozenset({"true", "false"})
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")
_NO_NAME: Final = re.compile(r"v?\d+(?:\.\d+)*|api|rest|rpc|urn|https?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class DraftProperty:
    """One property of a draft, written as ``{type, value, required}`` under its key."""

    key: str
    value: str | None = None
    required: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the property as JSON, without its name; its type only where the default would not accept it."""
        kind = _default_type(self.key)
        default = (
            kind in ("string", "symbol") if self.value is None else "{" in self.value or is_valid(kind, self.value)
        )
        written = {"type": None if default else "string", "value": self.value, "required": self.required or None}
        return {name: value for name, value in written.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted definition. ``messageid`` is made of its literals; whoever places it makes it unique."""

    bundle: Bundle
    messageid: str
    address: str
    properties: tuple[DraftProperty, ...]
    datacontenttype: str | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def has_values(self) -> bool:
        """Whether any property has a required value; else the draft matches everything."""
        return any(each.value is not None for each in self.properties)

    def to_json(self, schemaxid: str | None) -> dict[str, Any]:
        """Return the message as JSON; *schemaxid* is the xid of its data schema, if any.

        A draft for native records declares the event that they become, with its own type. So it does not match events
        on the same channel, and plain JSON bodies that are events stay events (MATCHING.md#cloudevents).
        """
        kind = self.bundle.kind
        metadata = {each.key[2:]: each.to_json() for each in self.properties if each.key.startswith("e.")}
        options = _options_to_json(self.properties, PROTOCOL_OPTIONS[kind.protocol])
        place = f" at {kind.endpoint}" if kind.endpoint else ""
        return {
            "messageid": self.messageid,
            "description": f"Drafted from {self.bundle.letters} dead letters{place}; review before use.",
            "envelope": CLOUDEVENTS,
            "envelopemetadata": metadata if kind.event else {"type": {"value": self.messageid}},
            # A protocol that an event's draft declares would make it one for native records too.
            **({} if kind.event else {"protocol": kind.protocol}),
            **({"protocoloptions": options} if options else {}),
            **({"datacontenttype": self.datacontenttype} if self.datacontenttype else {}),
            **({"dataschemaformat": FORMAT, "dataschemaxid": schemaxid} if schemaxid else {}),
        }


def draft_definition(bundle: Bundle) -> Draft:
    """Draft the definition of a bundle."""
    kind = bundle.kind
    address = _make_template(kind)
    asked = [DraftProperty(kind.address_key, address)] if address else []
    asked += [DraftProperty("p.method", kind.method)] if kind.method and not _UNSAFE.search(kind.method) else []
    asked += _iter_other_properties(bundle, {kind.address_key, "p.method"})
    medias = {record.media for record in bundle.records}
    media = medias.pop() if len(medias) == 1 else ""
    words = split_words(_PLACEHOLDER.sub("", f"{kind.method.lower()}/{address}")).words
    name = ".".join(filter(None, (re.sub(r"[^A-Za-z0-9_]+", "-", word).strip("-") for word in words)))
    return Draft(
        bundle,
        name[:100].strip(".-") or ("event" if kind.event else "message"),
        address,
        tuple(asked),
        None if not media or media.startswith("application/cloudevents") else media,
        _draft_body_schema(bundle.records) if "json" in media else None,
    )


def _make_template(kind: RecordKind) -> str:
    """Return the address or event type, with a placeholder for each gap that is named after the word before it."""
    names: list[str] = []
    pieces: list[str] = []
    before = ""
    for place, word in enumerate(kind.words):
        pieces += kind.delimiters[place - 1 : place] if place else []
        if word is not None:
            pieces.append(word)
            before = word or before
            continue
        name = _NOT_NAME.sub("_", to_singular(before)).strip("_")[:40]
        name = name if name and not looks_like_id(before) and not _NO_NAME.fullmatch(before) else "id"
        numbered = itertools.chain([name], (f"{name}{number}" for number in itertools.count(2)))
        chosen = next(each for each in numbered if each not in names)
        names.append(chosen)
        pieces.append(f"{{{chosen}}}")
        before = ""
    text = "".join(pieces)
    return "" if len(text) > MAX_VALUE or not any(character.isalnum() for character in text) else text


def _iter_other_properties(bundle: Bundle, known: set[str]) -> Iterator[DraftProperty]:
    """Yield constant values, then properties that all records have, then those of some."""
    texts: dict[str, list[str | None]] = {}
    for record in bundle.records:
        for key, text in record.properties.items():
            texts.setdefault(key, []).append(text)
    total = len(bundle.records)
    required: list[DraftProperty] = []
    optional: list[DraftProperty] = []
    for key in sorted(texts.keys() - known):
        values = texts[key]
        first = values[0]
        if first is not None and len(values) == total >= _MIN_FIXED and set(values) == {first} and _is_literal(first):
            yield DraftProperty(key, first)
        elif None not in values and key != "e.source" and not all(map(looks_like_id, filter(None, values))):
            if len(values) == total:
                required.append(DraftProperty(key, required=True))
            elif len(values) >= _MIN_SHARE * total:
                optional.append(DraftProperty(key))
    yield from (*required, *optional)


def _is_literal(text: str) -> bool:
    if _UNSAFE.search(text) or text.lower() in _FLAGS:
        return False  # of a flag the other value may occur later
    return not any(map(looks_like_id, split_words(text).words)) and any(character.isalnum() for character in text)


def _default_type(key: str) -> str:
    """Return the type of a property that declares none."""
    side, _, path = key.partition(".")
    if side == "e":
        return ATTRIBUTE_TYPES.get(path, "string")
    holder, _, name = path.partition(".")
    for shape in PROTOCOL_OPTIONS.values():
        table = shape.sections.get(holder)
        kind = shape.scalars.get(path) or (table.get(name) if table is not None else None)
        if kind is not None:
            return kind
    return "string"


def _options_to_json(properties: Iterable[DraftProperty], protocol: ProtocolOptions) -> dict[str, Any]:
    """Return the protocol options as scalars, lists of named values, and maps."""
    options: dict[str, Any] = {}
    for each in properties:
        holder, dot, name = each.key[2:].partition(".")
        if each.key.startswith("e."):
            continue
        if not dot:
            options[holder] = each.to_json()
        elif holder in protocol.lists:
            options.setdefault(holder, []).append({"name": name, **each.to_json()})
        else:
            options.setdefault(holder, {})[name] = each.to_json()
    return options


def _draft_body_schema(records: Sequence[Traits]) -> Mapping[str, Any] | None:
    """Draft the data schema; return None unless nearly all records have JSON bodies with a known structure."""
    documents = [record.document[0] for record in records if record.document is not None]
    if len(documents) < _MIN_JSON_SHARE * len(records):
        return None
    schema = infer_schema(documents)
    return {"$schema": DIALECT, **schema} if schema else None
