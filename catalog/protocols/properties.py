"""The tables of the 1.0 message specification, and the options of endpoints: names, types, who honours them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, cast, get_args

from catalog.model import CLOUDEVENTS, PROTOCOLS, Endpoint, PropertyType, Severity
from catalog.parsing.texts import parse_text

# The tables of the 1.0 message specification: protocols, their properties, canonical spelling and default types.

TYPES: Final = frozenset(get_args(PropertyType))
_TYPE_ALIASES: Final[dict[str, PropertyType]] = {
    "datetime": "timestamp",
    "var": "any",
    "bool": "boolean",
    **dict.fromkeys(("int", "int32", "long", "ulong", "uint", "uinteger"), "integer"),
    **dict.fromkeys(("byte", "ubyte", "short", "ushort"), "integer"),
    "float": "number",
    "double": "number",
    "decimal": "number",
    "uuid": "string",
    "bytes": "binary",
}
_WIRE_TYPES: Final = {
    **{name: name for name in ("byte", "ubyte", "short", "ushort", "int", "uint", "long", "ulong")},
    **{name: name for name in ("float", "double", "uuid")},
    "int32": "int",
    "uinteger": "uint",
}
ATTRIBUTE_TYPES: Final[Mapping[str, PropertyType]] = {
    "source": "urireference",
    "dataschema": "uri",
    "time": "timestamp",
}
"""CloudEvents attributes that are no ``string`` by themselves."""
ALWAYS_REQUIRED: Final = frozenset({"id", "source", "type"})

AMQP_SECTIONS: Final = (
    "properties",
    "application-properties",
    "message-annotations",
    "delivery-annotations",
    "header",
    "footer",
)

REQUEST_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
CREDENTIAL_HEADERS: Final = REQUEST_CREDENTIALS | {"proxy-authenticate", "set-cookie"}
"""Headers of HTTP requests, and of requests and answers, that let somebody in."""
TOKEN_PARAMETER: Final = "access_token"
"""The query parameter of HTTP that does so."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The options of one protocol: scalars, lists of named values, and sections that are maps.

    A section with a table takes only the names of that table; one with None takes any. ``hops`` are the options and
    sections that change hop by hop, ``content_type`` is the option that names the type of a body, and in those of
    ``dotted`` a dot ends a placeholder. Names in the lists of ``lower`` compare without regard to case.

    ``about`` is the option that says what a message is about. With ``about_events`` it says so of an event too, and not
    only which channel it is on. ``fleeting`` are options that differ from message to message of one kind.

    ``names`` are options that name where a message is published to, so without wildcards, and ``publishes`` is the
    option of an endpoint that does. No record has both of ``exclusive``, and gateways remove ``withheld`` from every
    record. ``hosted`` says that gateways are the servers, so that endpoints need no address; ``bootstrap``, that
    addresses are the hosts of one cluster; ``streamed``, that brokers are also reached over WebSockets.
    """

    scalars: Mapping[str, PropertyType]
    lists: tuple[str, ...] = ()
    sections: Mapping[str, Mapping[str, PropertyType] | None] = field(default_factory=dict)
    hops: frozenset[str] = frozenset()
    content_type: str = ""
    dotted: frozenset[str] = frozenset()
    lower: frozenset[str] = frozenset()
    about: str = ""
    about_events: bool = False
    fleeting: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    publishes: str = ""
    exclusive: tuple[str, ...] = ()
    withheld: frozenset[str] = frozenset()
    hosted: bool = False
    bootstrap: bool = False
    streamed: bool = False


_AMQP_PROPERTIES: Final[dict[str, PropertyType]] = {
    "message-id": "string",
    "user-id": "binary",
    "to": "uritemplate",
    "subject": "string",
    "reply-to": "uritemplate",
    "correlation-id": "string",
    "content-type": "symbol",
    "content-encoding": "symbol",
    "absolute-expiry-time": "timestamp",
    "creation-time": "timestamp",
    "group-id": "string",
    "group-sequence": "integer",
    "reply-to-group-id": "uritemplate",
}
_AMQP_HEADER: Final[dict[str, PropertyType]] = {
    "durable": "boolean",
    "priority": "integer",
    "ttl": "integer",
    "first-acquirer": "boolean",
    "delivery-count": "integer",
}
_MQTT: Final = Vocabulary(
    {
        "qos": "integer",
        "retain": "boolean",
        "topic_name": "uritemplate",
        "payload_format": "integer",
        "message_expiry_interval": "integer",
        "response_topic": "uritemplate",
        "correlation_data": "binary",
        "content_type": "symbol",
    },
    ("user_properties",),
    hops=frozenset({"qos", "retain", "message_expiry_interval"}),
    content_type="content_type",
    about="topic_name",
    about_events=True,
    fleeting=frozenset({"qos", "retain"}),
    names=frozenset({"topic_name", "response_topic"}),
    publishes="topic",
    streamed=True,
)
_CONTENT_TYPE: Final = "headers.content-type"
VOCABULARIES: Final[Mapping[str, Vocabulary]] = {
    "HTTP": Vocabulary(
        {"path": "uritemplate", "method": "string", "status": "string"},
        ("headers", "query"),
        content_type=_CONTENT_TYPE,
        lower=frozenset({"headers"}),
        about="path",
        exclusive=("method", "status"),
        withheld=frozenset({f"query.{TOKEN_PARAMETER}", *(f"headers.{name}" for name in REQUEST_CREDENTIALS)}),
        hosted=True,
    ),
    "AMQP/1.0": Vocabulary(
        {},
        sections={
            **dict.fromkeys(AMQP_SECTIONS, None),
            "properties": _AMQP_PROPERTIES,
            "header": _AMQP_HEADER,
        },
        hops=frozenset({"header", "delivery-annotations"}),
        content_type="properties.content-type",
        about="properties.subject",
        fleeting=frozenset(
            {
                *("properties.message-id", "properties.user-id", "properties.correlation-id", "properties.reply-to"),
                *("properties.absolute-expiry-time", "properties.creation-time", "properties.group-id"),
                *("properties.group-sequence", "properties.reply-to-group-id"),
            }
        ),
        streamed=True,
    ),
    "MQTT/3.1.1": _MQTT,
    "MQTT/5.0": replace(
        _MQTT, fleeting=_MQTT.fleeting | {"payload_format", "message_expiry_interval", "correlation_data"}
    ),
    "KAFKA": Vocabulary(
        {"topic": "string", "partition": "integer", "key": "string", "key_base64": "binary", "schemaid": "string"},
        ("headers",),
        hops=frozenset({"partition"}),
        content_type=_CONTENT_TYPE,
        about="topic",
        fleeting=frozenset({"partition", "key", "key_base64", "schemaid"}),
        exclusive=("key", "key_base64"),
        bootstrap=True,
    ),
    "NATS": Vocabulary(
        {"subject": "uritemplate", "reply-to": "uritemplate"},
        ("headers",),
        content_type=_CONTENT_TYPE,
        dotted=frozenset({"subject", "reply-to"}),
        about="subject",
        about_events=True,
        fleeting=frozenset({"reply-to"}),
        names=frozenset({"subject", "reply-to"}),
        publishes="subject",
        streamed=True,
    ),
}
ANY_VOCABULARY: Final = Vocabulary(
    {name: kind for vocabulary in VOCABULARIES.values() for name, kind in vocabulary.scalars.items()},
    tuple(dict.fromkeys(name for vocabulary in VOCABULARIES.values() for name in vocabulary.lists)),
    dict.fromkeys(AMQP_SECTIONS),
)
"""All options of all protocols, for a message whose protocol is not said where it is written."""
_NO_VOCABULARY: Final = Vocabulary({})
CONTENT_TYPES: Final = tuple(dict.fromkeys(vocabulary.content_type for vocabulary in VOCABULARIES.values()))
"""The options that name the type of a body, of all protocols."""
_HOPS: Final = frozenset(name for vocabulary in VOCABULARIES.values() for name in vocabulary.hops)
REPEATED: Final = tuple(f"{name}." for name in ANY_VOCABULARY.lists)
"""What members of records begin with that may come several times, and whose values are texts."""
NAMED: Final = (*REPEATED, "application-properties.")
"""What members begin with that senders name as they like."""
CONNECTION_HEADERS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
"""Headers of HTTP that speak of a connection, not of the message."""
_OPTION_ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "MQTT/3.1.1": {"topic": "topic_name"},
    "NATS": {"reply": "reply-to"},
    "MQTT/5.0": {
        "topic": "topic_name",
        "userproperty": "user_properties",
        "payloadformatindicator": "payload_format",
        "messageexpiry": "message_expiry_interval",
    },
}
_CHANNEL_OPTIONS: Final = (
    "clean-session",
    "connection-properties",
    "consumer-group",
    "content-mode",
    "distribution-mode",
    "link-properties",
    "topic-filter",
    "will-message",
    "will-topic",
)
_PROTOCOL: Final = re.compile(r"(http|amqp|mqtt|kafka|nats)(?:/([0-9][0-9A-Za-z.]*))?", re.ASCII)
_VERSIONLESS: Final = {"http": "HTTP", "kafka": "KAFKA", "nats": "NATS"}
_MQTT_VERSIONS: Final = {"3": "3.1.1", "3.1": "3.1.1", "3.1.1": "3.1.1"}
_CLOUDEVENTS: Final = re.compile(r"cloudevents(?:/(?:v)?1(?:\.0(?:\.[0-9]+)?)?)?", re.ASCII)


def vocabulary_of(protocol: str | None) -> Vocabulary:
    """Return the options of a protocol; for one that is not known, or not said, a vocabulary without any."""
    return VOCABULARIES.get(protocol or "", _NO_VOCABULARY)


@lru_cache(maxsize=4096)
def squash(name: str) -> str:
    """Reduce a name to what its spellings share: no case, no dashes, no underscores."""
    return name.lower().replace("-", "").replace("_", "")


def squashed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their squashed names; of two spellings of one the last counts."""
    return {squash(name): value for name, value in options.items()}


def canonical_protocol(name: str) -> str:
    """Return the canonical protocol name (HTTP versions are one), or the name itself when unknown."""
    match = _PROTOCOL.fullmatch(name.strip().lower())
    if match is None:
        return name
    family, version = match.groups()
    if family in _VERSIONLESS:
        return _VERSIONLESS[family]
    if family == "mqtt":
        return (
            f"MQTT/{_MQTT_VERSIONS.get(version or '', '5.0')}"
            if version in (None, "5", "5.0", *_MQTT_VERSIONS)
            else name
        )
    return "AMQP/1.0" if version in (None, "1", "1.0") else name


def canonical_envelope(name: str) -> str:
    """Return ``CloudEvents/1.0`` for each spelling of it, any other name as it is."""
    return CLOUDEVENTS if _CLOUDEVENTS.fullmatch(name.strip().lower()) else name


def canonical_type(name: str) -> PropertyType | None:
    """Return the property type that a declared type means, None when it means none."""
    squashed = squash(name.strip())
    return squashed if squashed in TYPES else _TYPE_ALIASES.get(squashed)  # type: ignore[return-value]


def wire_type(name: str) -> str:
    """Return the AMQP type that a declared type names beyond its property type; empty when it names none."""
    return _WIRE_TYPES.get(squash(name.strip()), "")


def canonical_option(protocol: str | None, name: str) -> str | None:
    """Return the canonical spelling of a top-level option of a protocol, None when it has no such option.

    Without a known protocol a name of any of them is taken.
    """
    squashed = squash(name)
    if protocol is not None and protocol in VOCABULARIES:
        return _OPTION_ALIASES.get(protocol, {}).get(squashed) or _spellings(protocol).get(squashed)
    return next((_spellings(each)[squashed] for each in VOCABULARIES if squashed in _spellings(each)), None)


def canonical_member(table: Mapping[str, PropertyType], name: str) -> str | None:
    """Return the spelling of *name* in a section's table, None when it is not there."""
    if name in table:
        return name
    squashed = squash(name)
    return next((known for known in table if squash(known) == squashed), None)


def changes_by_hop(option: str) -> bool:
    """Tell an option that changes hop by hop, and so filters nothing by default (MATCHING.md#hop-by-hop-properties)."""
    return not _HOPS.isdisjoint((option, option.partition(".")[0]))


def is_dotted(protocol: str, option: str) -> bool:
    """Tell an option of a protocol in which a dot ends a placeholder, as a slash does."""
    return protocol in VOCABULARIES and option in VOCABULARIES[protocol].dotted


def canonical_channel_option(name: str) -> str:
    """Return an endpoint option in the spelling of the endpoint specification; unknown ones stay as they are."""
    squashed = squash(name)
    return next((known for known in _CHANNEL_OPTIONS if squash(known) == squashed), name)


@lru_cache(maxsize=16)
def _spellings(protocol: str) -> Mapping[str, str]:
    vocabulary = VOCABULARIES[protocol]
    return {squash(name): name for name in (*vocabulary.scalars, *vocabulary.lists, *vocabulary.sections)}


# The options that endpoints have, and which of them the router honours where it receives and where it sends.
#
# The table is ``channel_options.yaml``, the one place for it: lint is made from it, and a test holds that the bindings
# do what it says. An option has for each *role* of an endpoint either ``true``, or an exception or several: the
# ``values`` for which it is not honoured (or with ``except`` all others, or with neither any), why, and what to do. One
# without a word on a role means nothing in it. ``as`` is another name for an option. An exception that ``decides``
# which messages come is an error of a source that has such a value.

TABLE: Final = Path(__file__).with_name("channel_options.yaml")
Role = Literal["receives", "sends"]
ROLES: Final[tuple[Role, ...]] = ("receives", "sends")
TEXTUAL: Final = frozenset({"text", "filter", "subject", "topic"})
"""The kinds of options whose value is a text, and stands as it is written."""
_FAMILY: Final = "MQTT"
"""What holds for all versions of MQTT; a version's own words go before it."""


@dataclass(frozen=True, slots=True)
class Exemption:
    """Values of an option that are not honoured: ``values``, or with *inverted* all but those; no values are all."""

    why: str
    hint: str
    severity: Severity = "warning"
    values: tuple[str, ...] = ()
    inverted: bool = False
    decides: bool = False

    def concerns(self, value: Any) -> bool:
        """Whether the value of an option is one of these; letter case does not count."""
        return not self.values or (_text(value) in self.values) != self.inverted


@dataclass(frozen=True, slots=True)
class ChannelOption:
    """One option of the endpoints of a protocol.

    ``name`` is its usual spelling, and ``kind`` names the form its value has (empty: any). ``roles`` has what is not
    honoured in each role that the option has a meaning in. ``other_name`` is True for one that only goes by this name.
    """

    name: str
    kind: str = ""
    roles: Mapping[Role, tuple[Exemption, ...]] = field(default_factory=dict)
    other_name: bool = False

    def unhonoured(self, role: Role, value: Any) -> Exemption | None:
        """Return why a value is not honoured in a role that the option has a meaning in; None when it is."""
        return next((each for each in self.roles[role] if each.concerns(value)), None)


def refused_option(endpoint: Endpoint) -> tuple[str, Exemption] | None:
    """Return an option that decides which messages come from an endpoint and is not honoured; None without one.

    What means something where others produce is no word to a receiver, when the endpoint is one for producers too.
    """
    known = channel_options(endpoint.protocol or "")
    for name, value in endpoint.options.items():
        option = known.get(option_key(name))
        if option is None or "receives" not in option.roles or value is None:
            continue
        if "producer" in endpoint.usage and "sends" in option.roles:
            continue
        exemption = option.unhonoured("receives", value)
        if exemption is not None and exemption.decides:
            return name, exemption
    return None


def option_key(name: str) -> str:
    """Reduce the name of an option to what its spellings share: Kafka's clients write ``auto.offset.reset``."""
    return squash(name).replace(".", "")


@cache
def channel_options(protocol: str) -> Mapping[str, ChannelOption]:
    """Return the options of a protocol's endpoints by its :func:`option_key`; empty for an unknown protocol."""
    return _table().get(protocol, MappingProxyType({}))


@cache
def _table() -> Mapping[str, Mapping[str, ChannelOption]]:
    tree: Mapping[str, Any] = parse_text(TABLE.name, TABLE.read_bytes()).tree
    table: dict[str, Mapping[str, ChannelOption]] = {}
    for protocol in PROTOCOLS:
        rows: dict[str, Any] = dict(tree[_FAMILY]) if protocol.startswith(_FAMILY) else {}
        rows |= tree.get(protocol, {})
        table[protocol] = MappingProxyType({option_key(name): _option(name, rows) for name in rows})
    return MappingProxyType(table)


def _option(name: str, rows: Mapping[str, Any]) -> ChannelOption:
    usual = rows[name].get("as", name)
    row = rows[usual]
    roles = {role: _exemptions(row[role]) for role in ROLES if role in row}
    return ChannelOption(usual, row.get("value", ""), MappingProxyType(roles), usual != name)


def _exemptions(written: Any) -> tuple[Exemption, ...]:
    if written is True:
        return ()
    listed = written if isinstance(written, list) else [written]
    return tuple(
        Exemption(
            each["why"],
            each["hint"],
            cast(Severity, each.get("severity", "warning")),
            tuple(map(_text, each.get("values", each.get("except", ())))),
            "except" in each,
            each.get("decides", False),
        )
        for each in listed
    )


def _text(value: Any) -> str:
    return str(value).strip().lower()


# What an endpoint subscribes to, held against its protocol: topic filters of MQTT, subjects of NATS, topics of Kafka.
#
# A text may be a template. Its placeholders stand for whatever a name may have at their place.

MAX_MQTT_BYTES: Final = 65_535
MAX_KAFKA_CHARACTERS: Final = 249
SHARE: Final = "$share/"
PLACEHOLDER: Final = re.compile(r"\{[A-Za-z0-9_.\-]+\}", re.ASCII)
BLANK: Final = "{}"
"""Stands for a placeholder while a text is split into tokens, since its name may have dots."""
_KAFKA_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_SPACES: Final = re.compile(r"[\x00-\x20\x7f]")


def filter_fault(text: str) -> str:
    """Return what makes *text* no topic filter, shared or not (MQTT 5.0 sections 4.7 and 4.8.2); empty for one."""
    if PLACEHOLDER.fullmatch(text):
        return ""
    plain = unshared(text)
    if text.startswith(SHARE) and (plain == text or not plain):
        return "a shared subscription is $share/<group>/<filter>"
    fault = mqtt_text_fault(plain)
    if fault:
        return fault
    levels = ["+" if PLACEHOLDER.search(level) else level for level in plain.split("/")]
    for place, level in enumerate(levels):
        if level == "#" and place == len(levels) - 1:
            continue
        if "#" in level or ("+" in level and level != "+"):
            return "+ stands alone in its level, # alone in the last one"
    return ""


def unshared(text: str) -> str:
    """Return the filter within a shared subscription; any other text as it is."""
    if not text.startswith(SHARE):
        return text
    group, slash, plain = text[len(SHARE) :].partition("/")
    return plain if slash and group and "+" not in group and "#" not in group else text


def mqtt_text_fault(text: str) -> str:
    """Return what makes *text* neither topic nor filter of MQTT; empty when nothing does."""
    if not text:
        return "it is empty"
    if "\0" in text:
        return "it holds U+0000"
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "it holds half a surrogate pair"
    return f"it has {size} bytes, {MAX_MQTT_BYTES} are the most" if size > MAX_MQTT_BYTES else ""


def subject_fault(text: str) -> str:
    """Return what makes *text* no subject that NATS lets anybody subscribe to; empty for one."""
    plain = PLACEHOLDER.sub(BLANK, text)
    if _SPACES.search(plain):
        return "a subject has no spaces or control characters"
    tokens = plain.split(".")
    if "" in tokens:
        return "none of its tokens is empty, so that no dot begins or ends it or follows another"
    return "> stands in the last token only" if ">" in tokens[:-1] else ""


def topic_fault(text: str) -> str:
    """Return what makes *text* no name of a Kafka topic; empty for one."""
    plain = PLACEHOLDER.sub("x", text)
    if plain in (".", "..") or not _KAFKA_NAME.fullmatch(plain):
        return "the name of a topic has letters, digits, '.', '_' and '-' alone, and is neither . nor .."
    return f"it has more than {MAX_KAFKA_CHARACTERS} characters" if len(plain) > MAX_KAFKA_CHARACTERS else ""
