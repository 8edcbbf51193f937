"""The tables of the 1.0 message specification, and the channel options of endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final, Literal, get_args

import msgspec

from catalog.model import CLOUDEVENTS, PROTOCOLS, Endpoint, PropertyType, Severity
from catalog.parsing.texts import read_table

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
"""CloudEvents attributes with a type other than ``string``."""
ALWAYS_REQUIRED: Final = frozenset({"id", "source", "type"})

TOKEN_PARAMETER: Final = "access_token"
"""The HTTP query parameter with a credential."""


@dataclass(frozen=True, slots=True)
class ProtocolOptions:
    """The options of one protocol: scalars, lists of named values, and sections that are maps.

    A section with a table allows only the names of that table; one with None allows any. ``aliases`` are other names
    of options, normalised. ``hops`` are the options and
    sections that change hop by hop, ``content_type`` is the option that names the type of a body, and in those of
    ``dotted`` a dot ends a placeholder. Names in the lists of ``lower`` compare without regard to case.

    ``about`` is the option that identifies the kind of a message; with ``about_events`` that of an event too.
    ``fleeting``
    are options that differ between messages of one kind.

    ``names`` are options with the destination of a message, so without wildcards; ``publishes`` is the endpoint option
    with it. No record has both of ``exclusive``, and gateways remove ``withheld`` from every
    record. ``hosted`` says that gateways are the servers, so that endpoints need no address; ``bootstrap``, that
    addresses are the hosts of one cluster; ``streamed``, that brokers are also reached over WebSockets.
    """

    scalars: Mapping[str, PropertyType]
    lists: tuple[str, ...] = ()
    sections: Mapping[str, Mapping[str, PropertyType] | None] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
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


PROTOCOL_OPTIONS: Final = read_table(__package__, "protocols.yaml", dict[str, ProtocolOptions])
REQUEST_CREDENTIALS: Final = frozenset(
    {name[8:] for name in PROTOCOL_OPTIONS["HTTP"].withheld if name[:8] == "headers."}
)
CREDENTIAL_HEADERS: Final = REQUEST_CREDENTIALS | {"proxy-authenticate", "set-cookie"}
"""HTTP headers with credentials: of requests, and of requests and responses."""
AMQP_SECTIONS: Final = tuple(PROTOCOL_OPTIONS["AMQP/1.0"].sections)
ALL_OPTIONS: Final = ProtocolOptions(
    {name: kind for vocabulary in PROTOCOL_OPTIONS.values() for name, kind in vocabulary.scalars.items()},
    tuple(dict.fromkeys(name for vocabulary in PROTOCOL_OPTIONS.values() for name in vocabulary.lists)),
    dict.fromkeys(AMQP_SECTIONS),
)
"""The options of all protocols, for a message that does not declare its protocol."""
_NO_OPTIONS: Final = ProtocolOptions({})


def add_nested_option(options: dict[str, Any], name: str, body: Mapping[str, Any]) -> None:
    """Add an option in the form of 1.0: members of AMQP sections to maps, headers and the like to lists."""
    section, _, inner = name.partition(".")
    if inner and section in ALL_OPTIONS.lists:
        options.setdefault(section, []).append({"name": inner, **body})
    elif inner and section in AMQP_SECTIONS:
        options.setdefault(section, {})[inner] = body
    else:
        options[name] = body


CONTENT_TYPES: Final = tuple(dict.fromkeys(vocabulary.content_type for vocabulary in PROTOCOL_OPTIONS.values()))
"""The content-type options of all protocols."""
_HOPS: Final = frozenset(name for vocabulary in PROTOCOL_OPTIONS.values() for name in vocabulary.hops)
REPEATED_PREFIXES: Final = tuple(f"{name}." for name in ALL_OPTIONS.lists)
"""Prefixes of record members that may be repeated and have text values."""
NAMED_PREFIXES: Final = (*REPEATED_PREFIXES, "application-properties.")
"""Prefixes of record members that senders may name freely."""
CONNECTION_HEADERS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
"""HTTP headers about the connection, not the message."""
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


def options_of(protocol: str | None) -> ProtocolOptions:
    """Return the options of a protocol; empty options for an unknown protocol or None."""
    return PROTOCOL_OPTIONS.get(protocol or "", _NO_OPTIONS)


@lru_cache(maxsize=4096)
def squash_name(name: str) -> str:
    """Normalise a name: lower case, without dashes and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def squash_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by squashed name; of two spellings of one name, the last is used."""
    return {squash_name(name): value for name, value in options.items()}


def canonical_protocol(name: str) -> str:
    """Return the canonical protocol name (all HTTP versions are one); an unknown name unchanged."""
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
    """Return ``CloudEvents/1.0`` for any spelling of it, any other name unchanged."""
    return CLOUDEVENTS if _CLOUDEVENTS.fullmatch(name.strip().lower()) else name


def canonical_type(name: str) -> PropertyType | None:
    """Return the property type for a declared type; None if it is unknown."""
    squashed = squash_name(name.strip())
    return squashed if squashed in TYPES else _TYPE_ALIASES.get(squashed)  # type: ignore[return-value]


def amqp_type_of(name: str) -> str:
    """Return the AMQP type of a declared type that is more specific than its property type; else empty."""
    return _WIRE_TYPES.get(squash_name(name.strip()), "")


def canonical_option(protocol: str | None, name: str) -> str | None:
    """Return the canonical spelling of a top-level option; None if the protocol has no such option.

    Without a known protocol, options of all protocols are accepted.
    """
    squashed = squash_name(name)
    if protocol is not None and protocol in PROTOCOL_OPTIONS:
        return PROTOCOL_OPTIONS[protocol].aliases.get(squashed) or _spellings(protocol).get(squashed)
    return next((_spellings(each)[squashed] for each in PROTOCOL_OPTIONS if squashed in _spellings(each)), None)


def canonical_member(table: Mapping[str, PropertyType], name: str) -> str | None:
    """Return the spelling of *name* in a section's table; None if it is not in it."""
    if name in table:
        return name
    squashed = squash_name(name)
    return next((known for known in table if squash_name(known) == squashed), None)


def is_hop_by_hop(option: str) -> bool:
    """Whether an option changes hop by hop, so does not filter by default (MATCHING.md#hop-by-hop-properties)."""
    return not _HOPS.isdisjoint((option, option.partition(".")[0]))


def is_dotted(protocol: str, option: str) -> bool:
    """Whether a dot ends a placeholder of this option, like a slash."""
    return protocol in PROTOCOL_OPTIONS and option in PROTOCOL_OPTIONS[protocol].dotted


def canonical_channel_option(name: str) -> str:
    """Return an endpoint option in the spelling of the endpoint specification; unknown ones unchanged."""
    squashed = squash_name(name)
    return next((known for known in _CHANNEL_OPTIONS if squash_name(known) == squashed), name)


@lru_cache(maxsize=16)
def _spellings(protocol: str) -> Mapping[str, str]:
    vocabulary = PROTOCOL_OPTIONS[protocol]
    return {squash_name(name): name for name in (*vocabulary.scalars, *vocabulary.lists, *vocabulary.sections)}


# Channel options of endpoints, and which of them the router supports when receiving and sending.
#
# The table is ``channel_options.yaml``: lint uses it, and a test checks the bindings against it. For each *role* of an
# endpoint, an option has either ``true`` or exceptions: the ``values`` that are not supported (with ``except`` all
# others,
# with neither all), why, and what to do. An option without an entry for a role has no meaning in it. ``as`` is another
# name of an option. An exception with ``decides`` changes which messages arrive, so such a value is an error of a
# source.

Role = Literal["receives", "sends"]
ROLES: Final[tuple[Role, ...]] = ("receives", "sends")
TEXTUAL: Final = frozenset({"text", "filter", "subject", "topic"})
"""The kinds of options whose value is text, used as written."""
_FAMILY: Final = "MQTT"
"""The table entry for all MQTT versions; entries of a version take precedence."""


class UnsupportedValues(msgspec.Struct, frozen=True, rename={"supported": "except"}):
    """Unsupported values of an option: ``values``, or all but the ``supported`` ones; all if neither is given."""

    why: str
    hint: str
    severity: Severity = "warning"
    values: tuple[str | int | bool, ...] = ()
    supported: tuple[str | int | bool, ...] = ()
    decides: bool = False

    def includes(self, value: Any) -> bool:
        """Whether *value* is one of these, ignoring letter case."""
        listed = {str(each).lower() for each in self.values or self.supported}
        return not listed or (str(value).strip().lower() in listed) != bool(self.supported)


@dataclass(frozen=True, slots=True)
class ChannelOption:
    """A channel option of a protocol's endpoints.

    ``name`` is its usual spelling, ``kind`` the form of its value (empty: any). ``roles`` has the unsupported
    values for each role in which the option has a meaning. ``other_name`` is True for an alias.
    """

    name: str
    kind: str = ""
    roles: Mapping[Role, tuple[UnsupportedValues, ...]] = field(default_factory=dict)
    other_name: bool = False

    def find_unsupported(self, role: Role, value: Any) -> UnsupportedValues | None:
        """Return the entry for an unsupported value in a role; None if the value is supported."""
        return next((each for each in self.roles[role] if each.includes(value)), None)


def find_refused_option(endpoint: Endpoint) -> tuple[str, UnsupportedValues] | None:
    """Return an unsupported option that changes which messages an endpoint delivers; None if there is none.

    For endpoints that are also for producers, options of the sending role are ignored.
    """
    known = channel_options(endpoint.protocol or "")
    for name, value in endpoint.options.items():
        option = known.get(option_key(name))
        if option is None or "receives" not in option.roles or value is None:
            continue
        if "producer" in endpoint.usage and "sends" in option.roles:
            continue
        exemption = option.find_unsupported("receives", value)
        if exemption is not None and exemption.decides:
            return name, exemption
    return None


def option_key(name: str) -> str:
    """Normalise the name of an option; Kafka clients write ``auto.offset.reset``."""
    return squash_name(name).replace(".", "")


def channel_options(protocol: str) -> Mapping[str, ChannelOption]:
    """Return the options of a protocol's endpoints by its :func:`option_key`; empty for an unknown protocol."""
    return _read_channel_options().get(protocol, {})


@cache
def _read_channel_options() -> Mapping[str, Mapping[str, ChannelOption]]:
    tree = read_table(__package__, "channel_options.yaml", dict[str, dict[str, dict[str, Any]]])
    options: dict[str, dict[str, ChannelOption]] = {}
    for protocol in PROTOCOLS:
        rows = {**(tree[_FAMILY] if protocol.startswith(_FAMILY) else {}), **tree.get(protocol, {})}
        options[protocol] = {option_key(name): _read_option(name, rows) for name in rows}
    return options


def _read_option(name: str, rows: Mapping[str, Mapping[str, Any]]) -> ChannelOption:
    usual = rows[name].get("as", name)
    row = rows[usual]
    written = {role: row[role] if isinstance(row[role], list) else [row[role]] for role in ROLES if role in row}
    roles = {role: [] if listed == [True] else listed for role, listed in written.items()}
    typed = msgspec.convert(roles, dict[Role, tuple[UnsupportedValues, ...]])
    return ChannelOption(usual, row.get("value", ""), typed, usual != name)


# Validation of MQTT topic filters, NATS subjects and Kafka topics of endpoints.
#
# A text may be a template; placeholders count as valid text.

MAX_MQTT_BYTES: Final = 65_535
MAX_KAFKA_CHARACTERS: Final = 249
SHARE: Final = "$share/"
PLACEHOLDER: Final = re.compile(r"\{[A-Za-z0-9_.\-]+\}", re.ASCII)
BLANK: Final = "{}"
"""Replaces placeholders while a text is split, since their names may contain dots."""
_KAFKA_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_SPACES: Final = re.compile(r"[\x00-\x20\x7f]")


def mqtt_filter_fault(text: str) -> str:
    """Return why *text* is not a valid MQTT topic filter (MQTT 5.0 sections 4.7 and 4.8.2); empty if it is."""
    if PLACEHOLDER.fullmatch(text):
        return ""
    plain = strip_share(text)
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


def strip_share(text: str) -> str:
    """Return the filter of a shared subscription; any other text unchanged."""
    if not text.startswith(SHARE):
        return text
    group, slash, plain = text[len(SHARE) :].partition("/")
    return plain if slash and group and "+" not in group and "#" not in group else text


def mqtt_text_fault(text: str) -> str:
    """Return why *text* is neither an MQTT topic nor a filter; empty if it may be one."""
    if not text:
        return "it is empty"
    if "\0" in text:
        return "it holds U+0000"
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "it holds half a surrogate pair"
    return f"it has {size} bytes, {MAX_MQTT_BYTES} are the most" if size > MAX_MQTT_BYTES else ""


def nats_subject_fault(text: str) -> str:
    """Return why *text* is not a valid NATS subject for subscriptions; empty if it is."""
    plain = PLACEHOLDER.sub(BLANK, text)
    if _SPACES.search(plain):
        return "a subject has no spaces or control characters"
    tokens = plain.split(".")
    if "" in tokens:
        return "none of its tokens is empty, so that no dot begins or ends it or follows another"
    return "> stands in the last token only" if ">" in tokens[:-1] else ""


def kafka_topic_fault(text: str) -> str:
    """Return why *text* is not a valid Kafka topic name; empty if it is."""
    plain = PLACEHOLDER.sub("x", text)
    if plain in (".", "..") or not _KAFKA_NAME.fullmatch(plain):
        return "the name of a topic has letters, digits, '.', '_' and '-' alone, and is neither . nor .."
    return f"it has more than {MAX_KAFKA_CHARACTERS} characters" if len(plain) > MAX_KAFKA_CHARACTERS else ""
