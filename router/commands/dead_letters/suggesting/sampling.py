"""Sample any number of dead letters by shape, in bounded memory.

A shape is everything that is known about a record by itself. Each shape has a reservoir, so that all its records are
equally likely to be sampled, and the same records in the same order give the same sample.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from bindings.parts import BINARY_KIND, Part
from bindings.protocols import Binding, binding_of
from catalog.findings import RecordError
from catalog.linting.events import is_media_type
from catalog.protocols.properties import ALL_OPTIONS, NAMED_PREFIXES, PROTOCOL_OPTIONS, ProtocolOptions, is_dotted
from catalog.record import Record
from catalog.schemas.contract import parse_json
from catalog.values import media_type_of

# Properties that drafts never require: ids, times, tracing, headers of transports, and possible secrets.

_ATTRIBUTES: Final = frozenset(
    """
    id time specversion datacontenttype sequence sequencetype recordedtime expirytime sampledrate partitionkey
    correlationid causationid dataref
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
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one record that drafts are made from.

    ``media`` is the media type of the data without parameters, lower case, ``""`` for none; ``typed`` is True when the
    record itself gave it. ``properties`` are texts by key: ``e.NAME`` for an attribute, ``p.PATH`` for a protocol
    option; None for one that is there and no text, or too long a one. ``body`` is the data, ``document`` its value when
    it is JSON, inside a tuple. ``content_key`` is the option of the native content type, when the record has one.
    """

    record: Record
    protocol: str
    event: bool
    media: str
    typed: bool
    properties: Mapping[str, str | None]
    body: bytes | None
    document: tuple[object] | None
    content_key: str | None = None

    @property
    def endpoint(self) -> str | None:
        """The xid of the endpoint that the record came through."""
        return self.record.endpoint

    @property
    def address(self) -> str:
        """The key of the property with the address, such as the topic; empty if events have none."""
        vocabulary = PROTOCOL_OPTIONS[self.protocol]
        return "" if self.event and not vocabulary.about_events else f"p.{vocabulary.about}"

    @property
    def size(self) -> int:
        """The approximate memory of the record in bytes."""
        return 2_000 + 3 * len(self.record.body or b"")


Hides = Callable[[str, str], bool]
"""Returns whether the value of a name (``x-card``) at a path (``headers.x-card``; ``""`` in bodies) is sensitive."""


def hide_nothing(name: str, path: str) -> bool:
    """Return False: no value is sensitive."""
    return False


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
    event = envelope.is_event
    content = envelope.attributes.get("datacontenttype") if event else envelope.content_type
    media = media_type_of(content)
    media = media if is_media_type(media) else ""
    document = parse_json_body(envelope.data) if not media or "json" in media else None
    if not content and document is not None and isinstance(document[0], (dict, list)):
        media = JSON
    properties = _extract_attributes(envelope.attributes) if event else {}
    properties.update(_extract_options(parts, binding, event=event))
    shown = {key: text for key, text in properties.items() if not hides(key.rpartition(".")[2], key[2:])}
    has_key = not event and envelope.content_type is not None and binding.binary
    key = f"p.{binding.rule.content_type}" if has_key else None
    return Traits(record, binding.protocol, event, media, bool(content), shown, envelope.data, document, key)


def parse_json_body(body: bytes | None) -> tuple[object] | None:
    """Return the value of a JSON body in a tuple; None if it is not JSON."""
    if not body:
        return None
    try:
        return (parse_json(body.removeprefix(b"\xef\xbb\xbf"), doubles=True),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _extract_attributes(attributes: Mapping[str, str]) -> dict[str, str | None]:
    return {
        f"e.{name}": text if 0 < len(text) <= MAX_VALUE else None
        for name, text in attributes.items()
        if _ATTRIBUTE.fullmatch(name) and not is_noise(f"e.{name}", "")
    }


def _extract_options(parts: Iterable[Part], binding: Binding, *, event: bool) -> dict[str, str | None]:
    """Return the protocol options of a record, the first value of each; of an event at most the address."""
    protocol, vocabulary = binding.protocol, PROTOCOL_OPTIONS[binding.protocol]
    options: dict[str, str | None] = {}
    for part in parts:
        key = f"p.{part.key}"
        if key in options or part.key.lower() == binding.rule.content_type or not _is_declarable(part.key, vocabulary):
            continue
        if event and not (vocabulary.about_events and part.key == vocabulary.about):
            continue
        if is_noise(key, protocol):
            continue
        text = None if part.kind == BINARY_KIND else part.text
        options[key] = text if text and len(text) <= MAX_VALUE else None
    return options


def _is_declarable(path: str, vocabulary: ProtocolOptions) -> bool:
    """Whether a definition can declare this member of the native record."""
    holder, dot, name = path.partition(".")
    if not dot:
        return path in vocabulary.scalars
    table = vocabulary.sections.get(holder)
    return bool(name) and (
        holder in vocabulary.lists or (holder in vocabulary.sections and (table is None or name in table))
    )


# Splitting values into words and delimiters, and recognizing words that are ids of instances.

_DELIMITER: Final = re.compile(r"([/.:;,=&?#|@ ])")
_SUBJECT: Final = re.compile(r"([/.])")
_SEGMENT: Final = re.compile(r"([/?#&=;, |@])")
_UNSAFE: Final = re.compile(r"[{}+#*>]")
_HEX_DIGITS: Final = 8
_OPAQUE: Final = 16
_ATOM: Final = re.compile(
    r"""
    [-+]?\d+(?:\.\d+)*                                              # a number, an address of IPv4
    | v\d+(?:\.\d+)+                                                # a version
    | \d{4}-\d{2}(?:-\d{2}(?:[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:[Zz]|[-+]\d{2}:?\d{2})?)?)?
    """,
    re.VERBOSE | re.ASCII,
)
_VERSION: Final = re.compile(r"v\d+(?:\.\d+)*", re.IGNORECASE | re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_HEX: Final = re.compile(r"(?:0x)?[0-9a-f]+", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"[A-Za-z_-]*[A-Za-z](?:\d{2,}|[-_]\d+)", re.ASCII)
_OPAQUE_WORD: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_\-%~+]+", re.ASCII)
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
    if subject:
        pieces = _SUBJECT.split(text)
        return Words(tuple(pieces[::2]), tuple(pieces[1::2]))
    words: list[str] = []
    delimiters: list[str] = []
    for place, piece in enumerate(_SEGMENT.split(text)):
        if place % 2:
            delimiters.append(piece)
        elif _ATOM.fullmatch(piece):
            words.append(piece)
        else:
            inner = _DELIMITER.split(piece)
            words.extend(inner[::2])
            delimiters.extend(inner[1::2])
    return Words(tuple(words), tuple(delimiters))


def looks_like_id(word: str) -> bool:
    """Whether a word looks like an id: a number, date, UUID, hexadecimal or other opaque text, or ``pump-17``."""
    if not word or not any(character.isdecimal() for character in word) or _VERSION.fullmatch(word):
        return False
    if _ATOM.fullmatch(word) or _UUID.fullmatch(word) or word[0].isdecimal():
        return True
    if len(word) >= _HEX_DIGITS and _HEX.fullmatch(word):
        return True
    if _NUMBERED.fullmatch(word):
        return word.lower() not in _NAMES
    return len(word) >= _OPAQUE and _OPAQUE_WORD.fullmatch(word) is not None


def is_unsafe(text: str) -> bool:
    """Whether a text cannot be literal in a template, because of braces or subscription wildcards."""
    return _UNSAFE.search(text) is not None


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


MAX_EACH: Final = 10_000
"""Maximum sampled records of one shape."""
MAX_RECORDS: Final = 100_000
"""Maximum sampled records of all shapes; if exceeded, the limit per shape is halved."""
MAX_BYTES: Final = 256 << 20
MAX_SHAPES: Final = 1_000
TOO_MANY_SHAPES: Final = "of yet another shape"


class RecordShape(NamedTuple):
    """The properties that all records of a sample share; ``structure`` has the delimiters of their topic or path.

    Events have no structure: they are distinguished by type, whatever their address.
    """

    endpoint: str
    protocol: str
    event: bool
    media: str
    type: str
    method: str
    structure: tuple[str, ...]


@dataclass(slots=True)
class Reservoir:
    """The sampled records of one shape, and the number of all its records."""

    sampled: list[Traits] = field(default_factory=list)
    seen_records: int = 0


class Sampler:
    """Samples records one by one; ``left_out`` counts records that are not represented, by reason."""

    def __init__(self, max_each: int = MAX_EACH, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES) -> None:
        self.reservoirs: dict[RecordShape, Reservoir] = {}
        self.left_out: Counter[str] = Counter()
        self._most = max_each
        self._together = max_records
        self._bytes = max_bytes
        self._kept = 0
        self._size = 0
        # Not for secrets: a fixed seed makes equal letters give equal drafts.
        self._random = random.Random(0)

    def add(self, traits: Traits) -> None:
        """Count a record, and sample it with the probability of its reservoir."""
        shape = find_shape(traits)
        reservoir = self.reservoirs.get(shape)
        if reservoir is None:
            if len(self.reservoirs) >= MAX_SHAPES:
                self.left_out[TOO_MANY_SHAPES] += 1
                return
            reservoir = self.reservoirs[shape] = Reservoir()
        reservoir.seen_records += 1
        if len(reservoir.sampled) < self._most:
            reservoir.sampled.append(traits)
            self._kept += 1
            self._size += traits.size
        else:
            place = self._random.randrange(reservoir.seen_records)
            if place < len(reservoir.sampled):
                self._size += traits.size - reservoir.sampled[place].size
                reservoir.sampled[place] = traits
        while self._most > 1 and (self._kept > self._together or self._size > self._bytes):
            self._halve_samples()

    def _halve_samples(self) -> None:
        self._most = max(1, min(self._most, max(len(each.sampled) for each in self.reservoirs.values())) // 2)
        for reservoir in self.reservoirs.values():
            if len(reservoir.sampled) > self._most:
                reservoir.sampled = self._random.sample(reservoir.sampled, self._most)
        self._kept = sum(len(each.sampled) for each in self.reservoirs.values())
        self._size = sum(each.size for reservoir in self.reservoirs.values() for each in reservoir.sampled)


def find_shape(traits: Traits) -> RecordShape:
    """Return the shape of a record; event types that differ only in ids are the same."""
    kind = split_words(traits.properties.get("e.type") or "") if traits.event else None
    address = None if traits.event else traits.properties.get(traits.address)
    structure = (
        split_words(address, subject=is_dotted(traits.protocol, traits.address[2:])).delimiters
        if address is not None
        else ("none",)
    )
    return RecordShape(
        traits.endpoint or "",
        traits.protocol,
        traits.event,
        traits.media,
        "".join(_mask_word(word) for word in kind.words) + "".join(kind.delimiters) if kind else "",
        traits.properties.get("p.method") or "",
        structure,
    )


def _mask_word(word: str) -> str:
    return "\0" if looks_like_id(word) else f"\1{word}"


# Kinds of bodies: records with similar bodies have the same label, whatever their optional members.

_MIN_COMMON_SHARE: Final = 0.5
"""Minimum share of common members for two objects to be of one kind."""
_MAX_KINDS: Final = 64
_ROOT: Final = re.compile(rb"\s*(?:<\?[^>]*\?>\s*|<!--.*?-->\s*|<![^>]*>\s*)*<([A-Za-z_][^\s/>]*)", re.DOTALL)
_HEAD_BYTES: Final = 2_000


def label_bodies(traits: Sequence[Traits]) -> list[int]:
    """Return the kind of each record's body as a number; 0 is the most common kind."""
    looks = [_body_look(each) for each in traits]
    counted = sorted(Counter(looks).items(), key=lambda item: (-item[1], repr(_look_sort_key(item[0]))))
    numbers = number_looks([look for look, _ in counted])
    return [numbers[look] for look in looks]


def number_looks(looks: Iterable[Hashable]) -> dict[Hashable, int]:
    """Number the looks, in order; similar sets share a number."""
    known: list[Hashable] = []
    numbers: dict[Hashable, int] = {}
    for look in looks:
        kind = next((number for number, other in enumerate(known) if _is_alike(look, other)), None)
        if kind is None:
            kind = min(len(known), _MAX_KINDS)
            if kind < _MAX_KINDS:
                known.append(look)
        numbers[look] = kind
    return numbers


def measure_purity(groups: Iterable[Sequence[int]]) -> float:
    """Return the share of records that have the most common label of their group."""
    sizes = total = 0
    for labels in groups:
        sizes += max(Counter(labels).values())
        total += len(labels)
    return sizes / total if total else 1.0


def find_commonest(labels: Iterable[int]) -> int:
    """Return the most common label; of several, the smallest."""
    return min(Counter(labels).items(), key=lambda item: (-item[1], item[0]))[0]


def _body_look(traits: Traits) -> Hashable:
    """Return the member names of a JSON object, or a text that describes another body."""
    if traits.document is not None:
        return _value_look(traits.document[0])
    if not traits.body:
        return "nothing"
    head = traits.body[:_HEAD_BYTES]
    root = _ROOT.match(head)
    if root is not None:
        return f"<{root.group(1).decode('utf-8', 'replace')}>"
    return "binary" if b"\0" in head else "text"


def _value_look(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset("*" if looks_like_id(name) else name for name in value)
    if isinstance(value, list):
        return ("list", _value_look(value[0]) if value else "")
    return type(value).__name__


def _is_alike(one: Hashable, other: Hashable) -> bool:
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        united = one | other
        return not united or len(one & other) / len(united) >= _MIN_COMMON_SHARE
    return one == other


def _look_sort_key(look: Hashable) -> object:
    return sorted(map(str, look)) if isinstance(look, frozenset) else look
