"""The Kafka binding: native records, endpoint options, broker addresses, and building messages to send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from bindings.envelope import AttributeRule
from bindings.parts import BINARY_KIND, JSON_KIND, NativeForm, Part, native_of, parts_of
from bindings.sending import SendingBinding, origin_of
from catalog.definitions.constraints import BASE64_KEY
from catalog.findings import RecordError
from catalog.model import Property
from catalog.protocols.properties import option_key
from catalog.record import member_bytes, text_or_base64

# Kafka records: native form, and where the CloudEvents Kafka binding puts attributes.

PROTOCOL: Final = "KAFKA"
INTEGERS: Final = {"partition": 32, "offset": 64, "timestamp": 64}
"""Members that are signed integers, and their width in bits."""
FORM: Final = NativeForm(lists=("headers",))
RULE: Final = AttributeRule(prefixes=("headers.ce_",), content_type="headers.content-type")


def split(native: Mapping[str, Any]) -> list[Part]:
    """Split a native record into parts; a key is bytes, whether ``key`` or ``key_base64`` has it.

    Raises:
        RecordError: as :func:`bindings.parts.parts_of`, for a record with both key members, and for a topic or
            number that no Kafka record can have.
    """
    rest = {name: value for name, value in native.items() if name not in ("key", "key_base64")}
    if not isinstance(rest.get("topic"), (str, type(None))):
        raise RecordError("native.topic must be a string")
    for member, bits in INTEGERS.items():
        value = rest.get(member)
        if not isinstance(value, (int, type(None))) or isinstance(value, bool):
            raise RecordError(f"native.{member} must be an integer")
        if value is not None and not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise RecordError(f"native.{member} must be an integer of {bits} bits")
    record_parts = parts_of(rest, FORM)
    key = member_bytes(native, "key")
    if key is not None:
        record_parts.append(Part("key", key, BINARY_KIND))
    return record_parts


def build(record_parts: list[Part]) -> dict[str, Any]:
    """Build a native record from parts: the inverse of :func:`split`."""
    key = next((part.value for part in record_parts if part.key == "key"), None)
    form = native_of((part for part in record_parts if part.key != "key"), FORM)
    if key is not None:
        form.update(text_or_base64("key", key))
    return form


def split_row(row: Mapping[str, Any]) -> list[Part]:
    """Split a row of Spark's Kafka source into parts: topic, partition, offset, timestamp (ms), key, headers."""
    record_parts = [Part("topic", row["topic"].encode())] if row.get("topic") is not None else []
    for member in ("partition", "offset", "timestamp"):
        if row.get(member) is not None:
            record_parts.append(Part(member, str(row[member]).encode(), JSON_KIND))
    if row.get("key") is not None:
        record_parts.append(Part("key", row["key"], BINARY_KIND))
    for header in row.get("headers") or ():
        record_parts.append(Part(f"headers.{header['key']}", header["value"]))
    return record_parts


# The endpoint options of Kafka for reading and sending records. Case, dashes and dots in names do not count.
#
# ``consumergroup`` is only shown to the brokers: Spark stores the offsets of a query itself, and its consumers are
# assigned their partitions and join no group. ``acks`` is ignored: a record counts as sent when all in-sync replicas
# have it, because the source was acknowledged for it.

_STARTS: Final[Mapping[str, Literal["earliest", "latest"]]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), "earliest"),
    **dict.fromkeys(("latest", "largest", "end"), "latest"),
}


def topic_option(options: Mapping[str, Any]) -> str:
    """Return the topic in the options, which may be a template; empty if there is none."""
    return _read_text(options, "topic")


def group_option(options: Mapping[str, Any]) -> str:
    """Return the consumer group in the options; empty if there is none."""
    return _read_text(options, "consumergroup")


def start_option(options: Mapping[str, Any]) -> Literal["earliest", "latest"] | None:
    """Return where a first read begins, from ``autooffsetreset``; None if that is unknown."""
    return _STARTS.get(_read_text(options, "autooffsetreset").strip().lower())


def _read_text(options: Mapping[str, Any], name: str) -> str:
    value = {option_key(written): value for written, value in options.items()}.get(name)
    return value if isinstance(value, str) else ""


# Addresses of Kafka brokers, whose scheme is the security protocol as in other bindings (OPERATIONS.md#security).

SECURITY: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Schemes that are security protocols, in any case; any other leaves it to the settings."""
SECURITY_PROTOCOL: Final = "security.protocol"


@dataclass(frozen=True, slots=True)
class Brokers:
    """Bootstrap servers, ``HOST:PORT`` with commas, and the security protocol of their addresses, if any."""

    servers: str = ""
    security: str = ""

    @property
    def address_text(self) -> str:
        """The addresses as text that :func:`parse_brokers` reads back."""
        return f"{self.security}://{self.servers}" if self.security and self.servers else self.servers

    @property
    def tls(self) -> bool:
        """Whether the addresses require TLS."""
        return self.security.endswith("SSL")


def parse_brokers(addresses: Iterable[str]) -> Brokers:
    """Parse addresses such as ``host:9092``, ``kafka://host``, ``SASL_SSL://one:9093,two:9093``.

    An address without a scheme of :data:`SECURITY` gets the security protocol of the others.

    Raises:
        ValueError: two of them have different security protocols.
    """
    servers: list[str] = []
    schemes: dict[str, None] = {}
    for address in (part.strip() for each in addresses for part in each.split(",")):
        scheme, mark, rest = address.partition("://")
        if mark and scheme.upper() in SECURITY:
            schemes[scheme.upper()] = None
        server = rest.partition("/")[0] if mark else address
        if server:
            servers.append(server)
    if len(schemes) > 1:
        raise ValueError(f"its addresses name {' and '.join(schemes)}; use one security protocol")
    return Brokers(",".join(servers), next(iter(schemes), ""))


def find_contradiction(security: str, *, tls: bool, login: bool, options: Mapping[str, object]) -> str:
    """Return why the settings contradict the security protocol of the addresses; empty if they do not.

    ``tls`` and ``login`` say whether the settings have them; ``options`` are the client's.
    """
    if not security:
        return ""
    other = str(options.get(SECURITY_PROTOCOL, security))
    own_login = login or any(name.startswith("sasl.") for name in options)
    if other.upper() != security:
        return f"its addresses say {security}, but {SECURITY_PROTOCOL} says {other}; remove one"
    if tls and not security.endswith("SSL"):
        return f"its addresses say {security}, which has no TLS, but tls is set; correct one of them"
    if login and not security.startswith("SASL"):
        return f"its addresses say {security}, which has no login, but username is set; correct one of them"
    if security.startswith("SASL") and not own_login:
        return f"its addresses say {security}, but there is no login; set username and password"
    return ""


def resolve_brokers(
    addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, object]
) -> tuple[Brokers, str]:
    """Return the brokers at these addresses for a client with these settings, and an error text, empty if all is well.

    Addresses that contradict each other or the settings are an error. No address at all is not.
    """
    try:
        brokers = parse_brokers(addresses)
    except ValueError as error:
        return Brokers(), str(error)
    return brokers, find_contradiction(brokers.security, tls=tls, login=login, options=options)


def security_protocol_of(security: str, *, tls: bool, login: bool, options: Mapping[str, str]) -> str:
    """Return a client's security protocol: from its options, else its addresses, else its settings."""
    from_settings = f"{'SASL_' if login else ''}{'SSL' if tls else 'PLAINTEXT'}"
    return options.get(SECURITY_PROTOCOL, security or from_settings).upper()


# Addressing and building Kafka messages. :mod:`bindings.kafka.publisher` sends them.

_PORT: Final = 9092
"""The usual port of brokers."""


class KafkaSending(SendingBinding):
    """See :class:`~bindings.sending.SendingBinding`; an address is a topic."""

    family = "kafka"
    literal_rule = (re.compile(r"[A-Za-z0-9._-]*"), "letters, digits, '.', '_' and '-'")
    address_rule = (re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"), "a topic must be 1 to 249 of A-Z a-z 0-9 . _ -")
    max_address_bytes = 249
    escape_character = "_"
    address_key = "topic"
    key_name = "key"
    channel_options = frozenset({"topic", "key"})
    scalar_options = ("partition",)
    binary_options = frozenset({BASE64_KEY})

    def find_plain_address(
        self, addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, str]
    ) -> str:
        """Return the brokers if the client would not use TLS; empty if it would, or if the addresses are invalid."""
        try:
            brokers = parse_brokers(addresses)
        except ValueError:
            return ""  # reported elsewhere
        protocol = security_protocol_of(brokers.security, tls=tls or brokers.tls, login=login, options=options)
        return brokers.servers if brokers.servers and not protocol.endswith("SSL") else ""

    def iter_origins(self, addresses: Iterable[str]) -> Iterator[str]:
        """Yield the brokers; their scheme is the security protocol of the addresses."""
        brokers = parse_brokers(addresses)
        scheme = brokers.security.lower() or self.family
        return (origin_of(f"{scheme}://{server}", {}, _PORT) for server in brokers.servers.split(","))

    def _build_part(self, prop: Property, text: str) -> Part:
        if prop.name == self.key_name and prop.type != "binary":
            return Part(prop.name, text.encode(), BINARY_KIND)
        part = super()._build_part(prop, text)
        return part._replace(key=self.key_name) if prop.name == BASE64_KEY else part
