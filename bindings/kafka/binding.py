"""What Kafka is to the others: native records, addresses and options, and messages to send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from bindings.envelope import AttributeRule
from bindings.parts import BINARY_KIND, JSON_KIND, NativeForm, Part, native_of, parts_of
from bindings.sending import Sending, origin_of
from catalog.definitions.constraints import BASE64_KEY
from catalog.findings import RecordError
from catalog.model import Property
from catalog.protocols.properties import option_key
from catalog.record import bytes_of, text_or_base64

# Kafka records: their native form, and where the CloudEvents Kafka binding keeps attributes.

PROTOCOL: Final = "KAFKA"
INTEGERS: Final = {"partition": 32, "offset": 64, "timestamp": 64}
"""Members that are signed integers, and their width in bits."""
FORM: Final = NativeForm(lists=("headers",))
RULE: Final = AttributeRule(prefixes=("headers.ce_",), content_type="headers.content-type")


def parts(native: Mapping[str, Any]) -> list[Part]:
    """Take a native record apart; a key is bytes, whichever of ``key`` and ``key_base64`` wrote it.

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
    taken = parts_of(rest, FORM)
    key = bytes_of(native, "key")
    if key is not None:
        taken.append(Part("key", key, BINARY_KIND))
    return taken


def native(taken: list[Part]) -> dict[str, Any]:
    """Put a native record together: the inverse of :func:`parts`."""
    key = next((part.value for part in taken if part.key == "key"), None)
    form = native_of((part for part in taken if part.key != "key"), FORM)
    if key is not None:
        form.update(text_or_base64("key", key))
    return form


def parts_of_row(row: Mapping[str, Any]) -> list[Part]:
    """Take a row of Spark's Kafka source apart: topic, partition, offset, timestamp (ms), key, headers."""
    taken = [Part("topic", row["topic"].encode())] if row.get("topic") is not None else []
    for member in ("partition", "offset", "timestamp"):
        if row.get(member) is not None:
            taken.append(Part(member, str(row[member]).encode(), JSON_KIND))
    if row.get("key") is not None:
        taken.append(Part("key", row["key"], BINARY_KIND))
    for header in row.get("headers") or ():
        taken.append(Part(f"headers.{header['key']}", header["value"]))
    return taken


# The endpoint options of Kafka for reading and sending records. Case, dashes and dots in names do not count.
#
# ``consumergroup`` is only shown to the brokers: Spark keeps the offsets of a query itself, and its consumers are
# assigned their partitions and join no group. ``acks`` has no place here: a record is sent when all replicas in sync
# have it, since what is confirmed here was acknowledged at its source.

_START: Final = "autooffsetreset"
_STARTS: Final[Mapping[str, Literal["earliest", "latest"]]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), "earliest"),
    **dict.fromkeys(("latest", "largest", "end"), "latest"),
}


def topic_of(options: Mapping[str, Any]) -> str:
    """Return the topic that the options name, which may be a template; empty when they name none."""
    topic = _squashed(options).get("topic")
    return topic if isinstance(topic, str) else ""


def group_of(options: Mapping[str, Any]) -> str:
    """Return the consumer group that the options name; empty when they name none."""
    group = _squashed(options).get("consumergroup")
    return group if isinstance(group, str) else ""


def start_of(options: Mapping[str, Any]) -> Literal["earliest", "latest"] | None:
    """Return where a first read begins by ``autooffsetreset``; None when its value is not a known one."""
    value = _squashed(options).get(_START)
    return _STARTS.get(value.strip().lower()) if isinstance(value, str) else None


def _squashed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {option_key(name): value for name, value in options.items()}


# Addresses of Kafka brokers, whose scheme says the security protocol as in other bindings (OPERATIONS.md#security).

SECURITY: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Schemes that say a security protocol, in any letter case; all others, and none, leave it to the settings."""
SECURITY_PROTOCOL: Final = "security.protocol"


@dataclass(frozen=True, slots=True)
class Brokers:
    """Bootstrap servers, ``HOST:PORT`` with commas, and the security protocol that their addresses ask for, if any."""

    servers: str = ""
    security: str = ""

    @property
    def text(self) -> str:
        """The addresses in a form that :func:`brokers_of` reads back."""
        return f"{self.security}://{self.servers}" if self.security and self.servers else self.servers

    @property
    def tls(self) -> bool:
        """Whether the addresses ask for TLS."""
        return self.security.endswith("SSL")


def brokers_of(addresses: Iterable[str]) -> Brokers:
    """Read addresses such as ``host:9092``, ``kafka://host``, ``SASL_SSL://one:9093,two:9093``.

    An address without a scheme of :data:`SECURITY` takes the security protocol of the others.

    Raises:
        ValueError: two of them say different security protocols.
    """
    servers: list[str] = []
    said: dict[str, None] = {}
    for address in (part.strip() for each in addresses for part in each.split(",")):
        scheme, mark, rest = address.partition("://")
        if mark and scheme.upper() in SECURITY:
            said[scheme.upper()] = None
        server = rest.partition("/")[0] if mark else address
        if server:
            servers.append(server)
    if len(said) > 1:
        raise ValueError(f"its addresses ask for {' and for '.join(said)}, and one client speaks one of them")
    return Brokers(",".join(servers), next(iter(said), ""))


def contradiction(security: str, *, tls: bool, login: bool, options: Mapping[str, object]) -> str:
    """Say what settings contradict the security protocol that addresses ask for; empty when nothing does.

    ``tls`` and ``login`` say whether the settings have them; ``options`` are the client's.
    """
    if not security:
        return ""
    other = str(options.get(SECURITY_PROTOCOL, security))
    own_login = login or any(name.startswith("sasl.") for name in options)
    if other.upper() != security:
        return f"its addresses ask for {security} and {SECURITY_PROTOCOL} for {other}; leave out one"
    if tls and not security.endswith("SSL"):
        return f"its addresses ask for {security}, which has no TLS, and tls is set; correct one of them"
    if login and not security.startswith("SASL"):
        return f"its addresses ask for {security}, which has no login, and username is set; correct one of them"
    if security.startswith("SASL") and not own_login:
        return f"its addresses ask for {security}, and there is no login; set username and password"
    return ""


def brokers_for(
    addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, object]
) -> tuple[Brokers, str]:
    """Return the brokers at these addresses for a client of these settings, and what is wrong with them, if anything.

    Addresses that contradict each other or the settings are a fault. No address at all is no fault.
    """
    try:
        brokers = brokers_of(addresses)
    except ValueError as error:
        return Brokers(), str(error)
    return brokers, contradiction(brokers.security, tls=tls, login=login, options=options)


def protocol_of(security: str, *, tls: bool, login: bool, options: Mapping[str, str]) -> str:
    """Return the security protocol of a client: that of its options, else of its addresses, else of its settings."""
    from_settings = f"{'SASL_' if login else ''}{'SSL' if tls else 'PLAINTEXT'}"
    return options.get(SECURITY_PROTOCOL, security or from_settings).upper()


# How messages for Kafka are addressed and made. :mod:`bindings.kafka.publisher` sends them.

_PORT: Final = 9092
"""The port that brokers usually have."""


class KafkaSending(Sending):
    """See :class:`~bindings.sending.Sending`; an address is a topic."""

    family = "kafka"
    literal = (re.compile(r"[A-Za-z0-9._-]*"), "letters, digits, '.', '_' and '-'")
    whole = (re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"), "a topic has 1 to 249 of A-Z a-z 0-9 . _ -")
    most_bytes = 249
    escape = "_"
    address = "topic"
    key = "key"
    by_channel = frozenset({"topic", "key"})
    scalars = ("partition",)
    blobs = frozenset({BASE64_KEY})

    def exposed(self, addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, str]) -> str:
        """Return the brokers if the client would use no TLS; "" if it would, or if the addresses are contradictory."""
        try:
            brokers = brokers_of(addresses)
        except ValueError:
            return ""  # reported as a fault elsewhere
        protocol = protocol_of(brokers.security, tls=tls or brokers.tls, login=login, options=options)
        return brokers.servers if brokers.servers and not protocol.endswith("SSL") else ""

    def origins(self, addresses: Iterable[str]) -> Iterator[str]:
        """Give the brokers; their scheme is the security protocol that the addresses ask for."""
        brokers = brokers_of(addresses)
        scheme = brokers.security.lower() or self.family
        return (origin_of(f"{scheme}://{server}", {}, _PORT) for server in brokers.servers.split(","))

    def _part(self, prop: Property, text: str) -> Part:
        if prop.name == self.key and prop.type != "binary":
            return Part(prop.name, text.encode(), BINARY_KIND)
        part = super()._part(prop, text)
        return part._replace(key=self.key) if prop.name == BASE64_KEY else part
