"""Samples of each shape, drawn while records pass: any number of letters in bounded memory.

A shape is all that is known of a record without looking at others. Each has a reservoir, so that every record of
it is as likely to be kept, and the same records in the same order give the same sample.
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
from catalog.protocols.properties import ANY_VOCABULARY, NAMED, VOCABULARIES, Vocabulary, is_dotted
from catalog.record import Record
from catalog.schemas.contract import json_value
from catalog.values import media_type_of

# Properties that no draft asks for: ids, times, tracing, what transports add, and anything that may be a secret.

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
"""What may be a secret, or is computed of one; a literal of it would be published with the catalog."""


def is_noise(key: str, protocol: str) -> bool:
    """Whether a property, by its key ``e.NAME`` or ``p.PATH``, says nothing about what kind of message it is."""
    side, _, path = key.partition(".")
    if side == "e":
        return path in _ATTRIBUTES or _TRACING.fullmatch(path) is not None or _SECRET.search(path) is not None
    if path in VOCABULARIES.get(protocol, ANY_VOCABULARY).fleeting or path.startswith(_SECTIONS):
        return True
    for prefix in NAMED:
        if path.startswith(prefix):
            name = path[len(prefix) :]
            return any((_TRANSPORT.fullmatch(name), _TRACING.fullmatch(name), _SECRET.search(name)))
    return path in ("response_topic", "properties.content-encoding")


# What a record shows of its kind: its envelope, the content type of its data, and the properties worth asking for.

_ATTRIBUTE: Final = re.compile(r"(?!data\Z)[a-z0-9]{1,64}", re.ASCII)
_MARKS: Final = frozenset({"oversized", "undecodable"})
MAX_VALUE: Final = 1_000
"""Characters of a value; a property with a longer one is never asked for."""
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Traits:
    """One record as drafting sees it.

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
        """The key of the property that says what the message is about; empty for events where none does."""
        vocabulary = VOCABULARIES[self.protocol]
        return "" if self.event and not vocabulary.about_events else f"p.{vocabulary.about}"

    @property
    def size(self) -> int:
        """About how many bytes of memory the record takes."""
        return 2_000 + 3 * len(self.record.body or b"")


Hides = Callable[[str, str], bool]
"""Returns whether the value of a name (``x-card``) at a path (``headers.x-card``; ``""`` in bodies) is sensitive."""


def never(name: str, path: str) -> bool:
    """Take nothing as sensitive."""
    return False


def traits_of(record: Record, sniffs: Callable[[str], bool], hides: Hides = never) -> Traits | str:
    """Return what a record shows, or why no definition can be drafted from it; what *hides* names is left aside.

    *sniffs* returns, by protocol, whether its channel takes events in plain JSON bodies (MATCHING.md#cloudevents).
    """
    binding = binding_of(record.protocol)
    if binding is None:
        return "of an unknown protocol"
    try:
        parts = binding.parts(record.native)
    except RecordError:
        return "no native record"
    if any(part.key in _MARKS for part in parts):
        return "oversized or undecodable"
    envelope = binding.envelope(parts, record.body, lambda: sniffs(binding.protocol))
    if envelope.mode in ("batch", "undecodable") or envelope.faults:
        return "a batch of events" if envelope.mode == "batch" else "no valid event"
    event = envelope.is_event
    content = envelope.attributes.get("datacontenttype") if event else envelope.content_type
    media = media_type_of(content)
    media = media if is_media_type(media) else ""
    document = document_of(envelope.data) if not media or "json" in media else None
    if not content and document is not None and isinstance(document[0], (dict, list)):
        media = JSON
    properties = _attributes(envelope.attributes) if event else {}
    properties.update(_options(parts, binding, event=event))
    shown = {key: text for key, text in properties.items() if not hides(key.rpartition(".")[2], key[2:])}
    has_key = not event and envelope.content_type is not None and binding.binary
    key = f"p.{binding.rule.content_type}" if has_key else None
    return Traits(record, binding.protocol, event, media, bool(content), shown, envelope.data, document, key)


def document_of(body: bytes | None) -> tuple[object] | None:
    """Return the value of a JSON body in a tuple; None for what is no JSON."""
    if not body:
        return None
    try:
        return (json_value(body.removeprefix(b"\xef\xbb\xbf"), doubles=True),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _attributes(attributes: Mapping[str, str]) -> dict[str, str | None]:
    return {
        f"e.{name}": text if 0 < len(text) <= MAX_VALUE else None
        for name, text in attributes.items()
        if _ATTRIBUTE.fullmatch(name) and not is_noise(f"e.{name}", "")
    }


def _options(parts: Iterable[Part], binding: Binding, *, event: bool) -> dict[str, str | None]:
    """Return the options of a record, first value of each; of an event only the address, where that says something."""
    protocol, vocabulary = binding.protocol, VOCABULARIES[binding.protocol]
    options: dict[str, str | None] = {}
    for part in parts:
        key = f"p.{part.key}"
        if key in options or part.key.lower() == binding.rule.content_type or not _is_option(part.key, vocabulary):
            continue
        if event and not (vocabulary.about_events and part.key == vocabulary.about):
            continue
        if is_noise(key, protocol):
            continue
        text = None if part.kind == BINARY_KIND else part.text
        options[key] = text if text and len(text) <= MAX_VALUE else None
    return options


def _is_option(path: str, vocabulary: Vocabulary) -> bool:
    """Whether a definition can ask for a member of the native record."""
    holder, dot, name = path.partition(".")
    if not dot:
        return path in vocabulary.scalars
    table = vocabulary.sections.get(holder)
    return bool(name) and (
        holder in vocabulary.lists or (holder in vocabulary.sections and (table is None or name in table))
    )


# Values as words between delimiters, and which words name one instance of something rather than a kind.

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
"""Words that end in digits and are names of kinds all the same."""


class Words(NamedTuple):
    """A value taken apart: ``words[0] delimiters[0] words[1] ...``; words may be empty, delimiters are characters."""

    words: tuple[str, ...]
    delimiters: tuple[str, ...]


def words_of(text: str, *, subject: bool = False) -> Words:
    """Take a value apart; a NATS *subject* only where its tokens end, since a placeholder there ends at any dot.

    A segment that is as a whole a number, a version or a date is one word.
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
    """Tell a word that names one instance: a number, date, UUID, hexadecimal or other opaque text, or ``pump-17``."""
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
    """Tell a text that no template can hold as it is: it has braces, or wildcards of subscriptions."""
    return _UNSAFE.search(text) is not None


def singular(word: str) -> str:
    """Return the singular of an English plural; any other word as it is."""
    lower = word.lower()
    if len(word) > 4 and lower.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and lower.endswith(("sses", "xes", "ches", "shes", "zzes")):
        return word[:-2]
    if len(word) > 3 and lower.endswith("s") and not lower.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


MOST: Final = 10_000
"""Records of one shape that are kept."""
MOST_TOGETHER: Final = 100_000
"""Records of all shapes that are kept; past it, every shape keeps half as many."""
MOST_BYTES: Final = 256 << 20
MOST_SHAPES: Final = 1_000
TOO_MANY: Final = "of yet another shape"


class RecordShape(NamedTuple):
    """What all records of a sample have in common; ``structure`` are the delimiters of the address.

    Events have none: their type says what they are, wherever they come from.
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
    """The sample of one shape; ``seen`` counts all its records."""

    kept: list[Traits] = field(default_factory=list)
    seen: int = 0


class Sampler:
    """Takes records one by one; ``left_out`` counts those that no sample stands for, by why."""

    def __init__(self, most: int = MOST, together: int = MOST_TOGETHER, size: int = MOST_BYTES) -> None:
        self.reservoirs: dict[RecordShape, Reservoir] = {}
        self.left_out: Counter[str] = Counter()
        self._most = most
        self._together = together
        self._bytes = size
        self._kept = 0
        self._size = 0
        # Not for secrets: a fixed seed makes equal letters give equal drafts.
        self._random = random.Random(0)

    def add(self, traits: Traits) -> None:
        """Count a record, and keep it when its turn comes."""
        shape = shape_of(traits)
        reservoir = self.reservoirs.get(shape)
        if reservoir is None:
            if len(self.reservoirs) >= MOST_SHAPES:
                self.left_out[TOO_MANY] += 1
                return
            reservoir = self.reservoirs[shape] = Reservoir()
        reservoir.seen += 1
        if len(reservoir.kept) < self._most:
            reservoir.kept.append(traits)
            self._kept += 1
            self._size += traits.size
        else:
            place = self._random.randrange(reservoir.seen)
            if place < len(reservoir.kept):
                self._size += traits.size - reservoir.kept[place].size
                reservoir.kept[place] = traits
        while self._most > 1 and (self._kept > self._together or self._size > self._bytes):
            self._halve()

    def _halve(self) -> None:
        self._most = max(1, min(self._most, max(len(each.kept) for each in self.reservoirs.values())) // 2)
        for reservoir in self.reservoirs.values():
            if len(reservoir.kept) > self._most:
                reservoir.kept = self._random.sample(reservoir.kept, self._most)
        self._kept = sum(len(each.kept) for each in self.reservoirs.values())
        self._size = sum(each.size for reservoir in self.reservoirs.values() for each in reservoir.kept)


def shape_of(traits: Traits) -> RecordShape:
    """Return the shape of a record. Two types of events that differ only in what looks like ids are one."""
    kind = words_of(traits.properties.get("e.type") or "") if traits.event else None
    address = None if traits.event else traits.properties.get(traits.address)
    structure = (
        words_of(address, subject=is_dotted(traits.protocol, traits.address[2:])).delimiters
        if address is not None
        else ("none",)
    )
    return RecordShape(
        traits.endpoint or "",
        traits.protocol,
        traits.event,
        traits.media,
        "".join(_masked(word) for word in kind.words) + "".join(kind.delimiters) if kind else "",
        traits.properties.get("p.method") or "",
        structure,
    )


def _masked(word: str) -> str:
    return "\0" if looks_like_id(word) else f"\1{word}"


# Kinds of bodies: records whose bodies look alike have one label, whatever optional members each of them has.

_ALIKE: Final = 0.5
"""Share of common members from which two objects are of one kind."""
_MAX_KINDS: Final = 64
_ROOT: Final = re.compile(rb"\s*(?:<\?[^>]*\?>\s*|<!--.*?-->\s*|<![^>]*>\s*)*<([A-Za-z_][^\s/>]*)", re.DOTALL)
_HEAD: Final = 2_000


def labels_of(traits: Sequence[Traits]) -> list[int]:
    """Return a small number for each record, the same for bodies of one kind; 0 is the commonest kind."""
    looks = [_look(each) for each in traits]
    counted = sorted(Counter(looks).items(), key=lambda item: (-item[1], repr(_ordered(item[0]))))
    numbers = numbered([look for look, _ in counted])
    return [numbers[look] for look in looks]


def numbered(looks: Iterable[Hashable]) -> dict[Hashable, int]:
    """Number the looks, in order; sets that have much in common share a number."""
    known: list[Hashable] = []
    numbers: dict[Hashable, int] = {}
    for look in looks:
        kind = next((number for number, other in enumerate(known) if _alike(look, other)), None)
        if kind is None:
            kind = min(len(known), _MAX_KINDS)
            if kind < _MAX_KINDS:
                known.append(look)
        numbers[look] = kind
    return numbers


def purity(groups: Iterable[Sequence[int]]) -> float:
    """Return how well groups differ by label: the share of records with the commonest label of their group."""
    sizes = total = 0
    for labels in groups:
        sizes += max(Counter(labels).values())
        total += len(labels)
    return sizes / total if total else 1.0


def commonest(labels: Iterable[int]) -> int:
    """Return the label that most have; the smallest of several."""
    return min(Counter(labels).items(), key=lambda item: (-item[1], item[0]))[0]


def _look(traits: Traits) -> Hashable:
    """Return the names of members of an object, or a text that says what else it is."""
    if traits.document is not None:
        return _look_of(traits.document[0])
    if not traits.body:
        return "nothing"
    head = traits.body[:_HEAD]
    root = _ROOT.match(head)
    if root is not None:
        return f"<{root.group(1).decode('utf-8', 'replace')}>"
    return "binary" if b"\0" in head else "text"


def _look_of(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset("*" if looks_like_id(name) else name for name in value)
    if isinstance(value, list):
        return ("list", _look_of(value[0]) if value else "")
    return type(value).__name__


def _alike(one: Hashable, other: Hashable) -> bool:
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        united = one | other
        return not united or len(one & other) / len(united) >= _ALIKE
    return one == other


def _ordered(look: Hashable) -> object:
    return sorted(map(str, look)) if isinstance(look, frozenset) else look
