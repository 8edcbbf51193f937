"""The NATS binding: native records, subjects and options, receiving, and building messages to send."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from bindings.certificates import AddressForm
from bindings.envelope import AttributeRule
from bindings.gateways import (
    EndpointSubscription,
    Gateway,
    GatewayConfig,
    GatewayError,
    ReceivingBinding,
    drop_covered,
    templates_of,
)
from bindings.parts import JSON_KIND, InboxRow, NativeForm, Part
from bindings.sending import SendingBinding
from catalog.model import Catalog, Endpoint
from catalog.protocols.properties import BLANK, PLACEHOLDER, nats_subject_fault, squash_names
from catalog.values import parse_whole_number

# NATS messages: native form, and where the CloudEvents NATS binding puts attributes.

FORM: Final = NativeForm(lists=("headers",))
RULE: Final = AttributeRule(
    prefixes=("headers.ce-",), content_type="headers.content-type", encoded=True, own_datacontenttype=True
)


# Addressing and building NATS messages; :mod:`bindings.nats.publisher` sends them.

_NAME: Final = re.compile(r"[!-9;-~]+")


class NatsSending(SendingBinding):
    """See :class:`~bindings.sending.SendingBinding`; an address is a subject."""

    family = "nats"
    address_form = AddressForm(
        "NATS",
        {"nats": 4222, "ws": 80},
        {"tls": 4222, "wss": 443},
        "{host}: NATS over {scheme}:// is not supported; use nats:// or tls://",
        "the NATS address is not valid; write nats://host:4222 or tls://host:4222",
        "the NATS address has no host; write nats://host:4222 or tls://host:4222",
        default_scheme="nats",
        upgrades_to_tls=True,
    )
    literal_rule = (re.compile(r"[^\s*>\x00{}]*"), "no spaces, '*', '>' or braces")
    address_rule = (
        re.compile(r"[^\s.*>\x00-\x1f]+(?:\.[^\s.*>\x00-\x1f]+)*"),
        "a subject must not have an empty token, space, '*' or '>'",
    )
    max_address_bytes = 1024
    has_dotted_levels = True
    address_key = "subject"
    channel_options = frozenset({"subject"})

    def convert_header(self, name: str, part: Part) -> Part | None:
        """Return a header unchanged; None if servers cannot carry it, or would interpret it."""
        # A name that begins with Nats- would set conditions for storing the message.
        if name.lower().startswith("nats-") or not _NAME.fullmatch(name) or set(part.value or b"") & set(b"\r\n"):
            return None
        return Part(name, part.value)


# Endpoint options for receiving from NATS.
#
# The specification has ``subject`` only. These are ours; each is a text unless stated otherwise, dashes optional:
#
# ``queue``
#     Core NATS: the queue group, whose members share the messages (also ``queuegroup``, ``consumergroup``, ``group``).
# ``stream``
#     Receive the subject from this JetStream stream, by a durable pull consumer. Without it the subscription is core
# NATS.
# ``durable``
#     The name of that consumer (also ``consumer``); by default the queue group, whose members share its messages, else
#     a name made of endpoint and subject. It is created if it is missing, and used unchanged if it exists.
# ``ackwait``
#     Seconds after which JetStream redelivers an unacknowledged message, when the consumer is created
#     here; 30 by default. A gateway that has not stored a message yet reports progress in time.
# ``deliver``
#     Where a consumer created here begins: ``all`` (the default) or ``new`` (also ``deliverpolicy``).

DEFAULT_ACK_WAIT: Final = 30.0
_QUEUE_OPTIONS: Final = ("queue", "queuegroup", "consumergroup", "group")
_DURABLE_OPTIONS: Final = ("durable", "consumer", *_QUEUE_OPTIONS)
_DELIVER_OPTIONS: Final = ("deliver", "deliverpolicy")
_MAX_SUBJECT: Final = 1024
"""Bytes; a server's line has room for the subject and another one to reply to."""
_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f\ud800-\udfff]")
_CONSUMER_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
"""Valid names of streams and consumers."""


@dataclass(frozen=True, slots=True)
class CorePlan:
    """A core subscription; ``queue`` is empty without a group."""

    endpoint: str
    subject: str
    queue: str = ""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A durable pull consumer; ``ack_wait`` (seconds) and ``from_first`` apply when it is created."""

    endpoint: str
    subject: str
    stream: str
    durable: str
    ack_wait: float = DEFAULT_ACK_WAIT
    from_first: bool = True


Plan = CorePlan | StreamPlan


def plan_subscriptions(subscriptions: Sequence[EndpointSubscription], options: Mapping[str, Any]) -> tuple[Plan, ...]:
    """Return a plan for each subscription; its own options override *options* of the connection.

    Raises:
        GatewayError: an invalid subject or option, or one consumer for two subjects.
    """
    plans = tuple(
        dict.fromkeys(_plan_of(one, {**squash_names(options), **squash_names(one.options)}) for one in subscriptions)
    )
    subjects: dict[tuple[str, str], Plan] = {}
    for plan in plans:
        if isinstance(plan, StreamPlan) and subjects.setdefault((plan.stream, plan.durable), plan) != plan:
            raise GatewayError(
                f"{plan.endpoint}: the durable {plan.durable} of stream {plan.stream} is used for two subjects or "
                f"endpoints; remove the options durable and queuegroup, or use a different name for each"
            )
    return plans


def is_subject(text: str, *, wildcards: bool) -> bool:
    """Whether *text* is a valid subject: tokens between dots, none empty, no blanks."""
    if _BLANK.search(text) or len(text.encode()) > _MAX_SUBJECT:
        return False
    tokens = text.split(".")
    if not all(tokens):
        return False
    wild = [token for token in tokens if token in ("*", ">")]
    return (wildcards or not wild) and ">" not in tokens[:-1]


def _plan_of(one: EndpointSubscription, options: Mapping[str, Any]) -> Plan:
    if not is_subject(one.address, wildcards=True):
        raise GatewayError(
            f"{one.endpoint}: {one.address[:200]!r} is not a NATS subject; write tokens between dots, without blanks, "
            f"* for any token and > for all that follow"
        )
    stream = _read_text(one, options, "stream")
    if not stream:
        return CorePlan(one.endpoint, one.address, _read_text(one, options, *_QUEUE_OPTIONS))
    durable = _read_text(one, options, *_DURABLE_OPTIONS) or _default_durable(one)
    for option, name in (("stream", stream), ("durable", durable)):
        if not _CONSUMER_NAME.fullmatch(name):
            raise GatewayError(f"{one.endpoint}: {name[:200]!r} cannot be a {option}; use letters, digits, - and _")
    deliver = _read_text(one, options, *_DELIVER_OPTIONS) or "all"
    if deliver not in ("all", "new"):
        raise GatewayError(f"{one.endpoint}: option deliver must be all or new, not {deliver[:50]!r}")
    return StreamPlan(one.endpoint, one.address, stream, durable, _read_ack_wait(one, options), deliver == "all")


def _read_ack_wait(one: EndpointSubscription, options: Mapping[str, Any]) -> float:
    value = options.get("ackwait", DEFAULT_ACK_WAIT)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 86_400:
        raise GatewayError(f"{one.endpoint}: option ackwait must be 1 to 86400 seconds, not {str(value)[:50]!r}")
    return float(value)


def _read_text(one: EndpointSubscription, options: Mapping[str, Any], *names: str) -> str:
    """Return the first of these options that is not empty; an empty string if all are."""
    for name in names:
        value = options.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str) or _BLANK.search(value):
            raise GatewayError(f"{one.endpoint}: option {name} must be text without blanks, not {str(value)[:50]!r}")
        return value
    return ""


def _default_durable(one: EndpointSubscription) -> str:
    """Return a stable consumer name: a readable text, made unique by a checksum."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", one.endpoint.removeprefix("/endpoints/")).strip("-")[:64]
    return f"xrouter-{readable}-{zlib.crc32(f'{one.endpoint} {one.address}'.encode()):08x}"


# Subjects to subscribe to: made from templates, and compared with each other (NATS, subject-based messaging).
#
# ``*`` stands for one token, ``>`` at the end for one or more.

_SUBJECT_OPTIONS: Final = ("subjectfilter", "subject")


def subject_of_template(template: str) -> str:
    """Return the narrowest subject that matches every subject of a template (MATCHING.md#templates).

    A token with a placeholder becomes ``*``, since a placeholder never matches a dot; a template that is one
    placeholder matches anything and becomes ``>``. Wildcards in the template are kept.
    """
    if PLACEHOLDER.fullmatch(template):
        return ">"
    tokens = PLACEHOLDER.sub(BLANK, template).split(".")
    return ".".join("*" if BLANK in token else token for token in tokens)


def subjects_of_templates(templates: Iterable[str]) -> list[str]:
    """Return the subjects of several definitions, each once, without those that another one covers."""
    return drop_covered(map(subject_of_template, templates), covers)


def subject_of_options(options: Mapping[str, Any]) -> str | None:
    """Return the subject in an endpoint's options (``subjectfilter``, else ``subject``); None without one.

    Raises:
        ValueError: it is not a valid subject.
    """
    known = squash_names(options)
    values = (known.get(name) for name in _SUBJECT_OPTIONS)
    named = next((value for value in values if isinstance(value, str) and value), None)
    if named is None:
        return None
    if fault := nats_subject_fault(named):
        raise ValueError(f"{named!r:.80} is not a subject: {fault}")
    return subject_of_template(named)


def covers(wide: str, narrow: str) -> bool:
    """Whether *wide* matches everything that *narrow* matches."""
    outer, inner = wide.split("."), narrow.split(".")
    for index, token in enumerate(outer):
        if index >= len(inner):
            return False
        if token == ">":
            return True
        if inner[index] == ">" or (token != "*" and token != inner[index]):
            return False
    return len(outer) == len(inner)


def overlap(one: str, other: str) -> bool:
    """Whether a subject can match both."""
    left, right = one.split("."), other.split(".")
    for here, there in zip(left, right, strict=False):
        if ">" in (here, there):
            return True
        if here != there and "*" not in (here, there):
            return False
    return len(left) == len(right)


# Receiving over NATS: the subjects of an endpoint, and the gateway; see :mod:`bindings.gateways`.


def _list_addresses(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    named = subject_of_options(endpoint.options)
    if named is not None:
        return (named,)
    return tuple(subjects_of_templates(templates_of(endpoint, catalog, "subject")))


def _create_gateway(config: GatewayConfig) -> Gateway:
    from bindings.nats.gateway import NatsGateway

    return NatsGateway(config)


NATS: Final = ReceivingBinding(_list_addresses, overlap, _create_gateway, partial(plan_subscriptions, options={}))


# Converting NATS messages to inbox rows (MATCHING.md#records).

# The header block of a NATS message, byte for byte.
#
# Client libraries give headers as a map, which loses repeats, order and whatever is not UTF-8; all of that has a
# meaning in a native record (MATCHING.md#records). So the block is read and written here, as ``HPUB`` and ``HMSG``
# carry it.

VERSION: Final = b"NATS/1.0"
_HEADER_NAME: Final = re.compile(rb"[!-9;-~]+")
"""Names that may be sent: printable ASCII without the colon, which all servers and clients accept."""


class NatsHeader(NamedTuple):
    """A header as written; ``value`` is None for a line without a colon."""

    name: bytes
    value: bytes | None


class NatsStatus(NamedTuple):
    """A server's status in place of a message: 100 idle heartbeat, 404, 408, 409, 503 and so on."""

    code: int
    description: str


def parse_headers(block: bytes) -> list[NatsHeader]:
    """Return the headers of a raw block, in order and with repeats, without blanks around names and values."""
    lines = (line.partition(b":") for line in block.split(b"\r\n")[1:] if line)
    return [NatsHeader(name.strip(b" \t"), value.strip(b" \t") if colon else None) for name, colon, value in lines]


def parse_status(block: bytes) -> NatsStatus | None:
    """Return the status in the first line of a raw block; None for the headers of a message."""
    line = block.partition(b"\r\n")[0].removeprefix(VERSION).strip()
    word, _, description = line.partition(b" ")
    code = parse_whole_number(word, 999)
    if code is None:
        return None
    return NatsStatus(code, description.strip().decode("utf-8", "replace"))


def build_header_block(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the raw block that carries these headers.

    Raises:
        ValueError: a name is not printable ASCII or has a colon, or a value has a line break.
    """
    lines = [VERSION]
    for name, value in headers:
        encoded = name.encode("utf-8", "surrogatepass")
        if not _HEADER_NAME.fullmatch(encoded):
            raise ValueError(f"header name {name[:100]!r} is not printable ASCII without a colon")
        if b"\r" in value or b"\n" in value:
            raise ValueError(f"the value of header {name[:100]} has a line break")
        lines.append(encoded + b": " + value)
    return b"\r\n".join((*lines, b"", b""))


PROTOCOL: Final = "NATS"
ACK_PREFIX: Final = b"$JS.ACK."
UINT64_MAX: Final = 2**64 - 1
_TOKEN_COUNT: Final = 9
_TOKEN_COUNT_WITH_DOMAIN: Final = 11


class NatsDelivery(NamedTuple):
    """A message as received: all bytes, ``headers`` the raw block or empty."""

    subject: bytes
    reply: bytes
    data: bytes
    headers: bytes


class StreamPosition(NamedTuple):
    """The position of a message in JetStream, and when it was stored (microseconds since 1970 UTC)."""

    stream: bytes
    sequence: int
    time: int


def parse_ack_subject(reply: bytes) -> StreamPosition | None:
    """Parse the acknowledgement subject of a JetStream message; None for any other subject.

    ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<nanoseconds>.<pending>``, with
    domain and account before the stream where the server puts them.
    """
    if not reply.startswith(ACK_PREFIX):
        return None
    tokens = reply.split(b".")
    shift = 0 if len(tokens) == _TOKEN_COUNT else 2
    if len(tokens) != _TOKEN_COUNT and len(tokens) < _TOKEN_COUNT_WITH_DOMAIN:
        return None
    sequence, nanoseconds = parse_whole_number(tokens[5 + shift], UINT64_MAX), parse_whole_number(tokens[7 + shift])
    if sequence is None or nanoseconds is None:
        return None  # no server writes this: the subject is a sender's own
    return StreamPosition(tokens[2 + shift], sequence, nanoseconds // 1000)


def to_row(
    endpoint: str, arrival: NatsDelivery, stored: StreamPosition | None, received: int, max_body_bytes: int
) -> InboxRow:
    """Convert a message to an inbox row; *received* is its arrival in microseconds since 1970 UTC.

    A message from JetStream has ``stream`` and ``sequence``, and JetStream's own time in place of the arrival, so that
    a redelivery makes the same event; the subject that acknowledges it is not the sender's ``reply-to``. A body of more
    than *max_body_bytes* is stored whole, with the part ``oversized``.
    """
    parts = [Part("subject", arrival.subject)]
    if stored is None and arrival.reply:
        parts.append(Part("reply-to", arrival.reply))
    if arrival.headers:
        parts.extend(_iter_header_parts(arrival.headers))
    if stored is not None:
        parts.append(Part("stream", stored.stream))
        parts.append(Part("sequence", b"%d" % stored.sequence, JSON_KIND))
    body: bytes | None = arrival.data or None
    if body is not None and len(body) > max_body_bytes:
        parts.append(Part("oversized", b"%d" % len(body), JSON_KIND))
    return InboxRow(endpoint, PROTOCOL, received if stored is None else stored.time, parts, body)


def _iter_header_parts(block: bytes) -> Iterator[Part]:
    for name, value in parse_headers(block):
        # The key of a part is text; bytes that are not UTF-8 stay recognisable.
        yield Part(f"headers.{name.decode('utf-8', 'backslashreplace')}", value)
