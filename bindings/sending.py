"""Sending: messages, their outcomes, and the rules of each protocol.

Sinks build :class:`Outbound` messages of parts, the form in which our codecs read records, and pass them to a
:class:`Publisher`. How a protocol addresses and builds messages is in its :class:`SendingBinding`, in the protocol's
folder; :data:`bindings.protocols.BINDINGS` lists it.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol
from urllib.parse import urlsplit

from bindings.certificates import AddressForm
from bindings.parts import BINARY_KIND, JSON_KIND, Part
from catalog.model import Definition, Endpoint, Property
from catalog.values import decode_binary, is_valid, percent_encode


@dataclass(frozen=True, slots=True)
class Outbound:
    """One message for one protocol. ``address`` is the topic, node, subject or URL.

    ``lane`` is the partition of its record, within which order is kept. ``id`` is the same for every retry.
    """

    address: str
    parts: tuple[Part, ...]
    body: bytes | None
    lane: str
    id: str


@dataclass(frozen=True, slots=True)
class MessageRefusal:
    """A message that will never be accepted, and why, in one line without our secrets."""

    reason: str


class Unsettled(Exception):
    """Some messages were not settled, for a temporary reason, and must be sent again. ``settled`` has the outcomes of
    the others by index; None is delivered. The message says what is wrong, in one line without secrets.
    """

    def __init__(self, message: str, settled: Mapping[int, MessageRefusal | None] | None = None) -> None:
        super().__init__(message)
        self.settled = dict(settled or {})


Settled = dict[int, MessageRefusal | None]
"""The outcomes of messages by index; None is delivered."""


class Publisher(Protocol):
    """A client of one server that sends. It connects when first needed, and again after a connection broke."""

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages and wait until each is confirmed; a refusal says why that one will never be accepted.

        Raises:
            Unsettled: the server accepts nothing now; send again.
            GatewayError: an address, certificate or login has a fault that waiting does not fix.
        """
        ...

    def close(self) -> None:
        """Disconnect; a later ``send`` reconnects."""
        ...


class SendingBinding:
    """A protocol's rules for addresses and parts when sending; one subclass per protocol family.

    The defaults are for a protocol with headers whose address is one part of the message, such as a topic.
    """

    family: ClassVar[str]
    """The protocol without its version, as used in the types of sinks and sources: ``mqtt``."""
    address_form: ClassVar[AddressForm]
    """How addresses of its servers are written; Kafka has its own form."""
    literal_rule: ClassVar[tuple[re.Pattern[str], str]]
    """The allowed text of an address template between its variables, as a pattern and in words."""
    address_rule: ClassVar[tuple[re.Pattern[str], str]]
    """The allowed addresses, as a pattern and in words."""
    max_address_bytes: ClassVar[int]
    """The maximum length of an address, in bytes of UTF-8."""
    authority_pattern: ClassVar[re.Pattern[str] | None] = None
    """The required text before the first variable of a template; None if a variable may be anywhere."""
    escape_character: ClassVar[str] = "%"
    """The escape character of values in addresses."""
    has_dotted_levels: ClassVar[bool] = False
    """Whether dots, not slashes, separate the levels of an address."""
    address_key: ClassVar[str] = ""
    """The part with the address in a record; empty if it has none, or the address is made of several."""
    key_name: ClassVar[str] = ""
    """The part with the key of a record; empty if records have none."""
    channel_options: ClassVar[frozenset[str]] = frozenset()
    """Options that the channel determines when a definition requires them without a value."""
    listed_options: ClassVar[tuple[str, ...]] = ()
    """Options of an endpoint that list names and values to send with each message."""
    scalar_options: ClassVar[tuple[str, ...]] = ()
    """Options of an endpoint that become parts of each message, unless a definition has them."""
    min_values: ClassVar[Mapping[str, int]] = {}
    """Minimum values of numeric parts; with lower ones the broker would confirm nothing."""
    binary_options: ClassVar[frozenset[str]] = frozenset()
    """Options that are bytes in the protocol, and base64 in a record, whatever type is declared."""
    text_keys: ClassVar[tuple[str, ...]] = ("headers.",)
    """Prefixes of options whose values are texts, whatever type is declared."""
    headerless_keys: ClassVar[frozenset[str]] = frozenset()
    """Parts that a protocol version without headers carries."""

    def escape_level(self, value: str) -> str:
        """Return a value as one level of an address; *value* has only ``[A-Za-z0-9._-]``."""
        return value.replace(".", "%2E") if self.has_dotted_levels else value

    def encode_value(self, value: str) -> str:
        """Percent-encode a value for an endpoint's address (RFC 6570), including dots if they separate levels."""
        return self.escape_level(percent_encode(value))

    def find_plain_address(
        self, addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, str]
    ) -> str:
        """Return the first address without TLS, without its user, path and query; empty if all use TLS.

        *tls* and *login* say whether the settings have certificates and a user; *options* are the client's.
        """
        plain = (each for each in addresses if self.address_form.is_plain(each, tls=tls))
        return next((redact_address(address) for address in plain), "")

    def iter_origins(self, addresses: Iterable[str]) -> Iterator[str]:
        """Yield scheme, host and port of addresses, normalized."""
        full = (each if "://" in each else f"{self.family}://{each}" for each in addresses)
        return (origin_of(each, self.address_form.ports, self.address_form.secure_port) for each in full)

    def build_option_parts(self, options: Iterable[tuple[Property, str]]) -> list[Part]:
        """Return the parts for protocol options and their texts."""
        return [self._build_part(prop, text) for prop, text in options]

    def channel_address(
        self, definition: Definition, endpoint: Endpoint | None, *, connected: bool = False
    ) -> dict[str, str]:
        """Return the address parts that a definition leaves open, as templates, from the record's channel.

        Without an endpoint, or an endpoint's own address, the address is the message's name. With *connected* the
        record is sent to the endpoint's own addresses, whose paths then count.
        """
        options = endpoint.options if endpoint else {}
        return (
            {self.address_key: str(options.get(self.address_key) or definition.messageid)} if self.address_key else {}
        )

    def build_address(self, parts: Sequence[Part], endpoint: Endpoint, declared: bool, expand: Expand) -> str:
        """Return the address of a message with these parts.

        *declared*: its definition has a path. *expand* expands a template of the endpoint.
        """
        return next((part.text or "" for part in parts if part.key == self.address_key), "")

    def carries_bytes(self, key: str) -> bool:
        """Whether this part may be bytes that are not text."""
        return key.startswith("headers.") or key in self.binary_options or key == self.key_name

    def convert_header(self, name: str, part: Part) -> Part | None:
        """Convert a header of another protocol to a part; None if it cannot be carried."""
        return Part(name, part.value)

    def iter_received_parts(self, message: Outbound, *, binary: bool) -> Iterator[Part]:
        """Yield the parts that a receiver of the message gets; *binary*: the protocol version has headers."""
        if self.address_key:
            yield Part(self.address_key, message.address.encode())
        for part in message.parts:
            if part.key != self.address_key and (binary or part.key in self.headerless_keys):
                yield part

    def _build_part(self, prop: Property, text: str) -> Part:
        """Return the part for one option; numbers and booleans keep their type if the protocol has types.

        A text of type ``binary`` is the base64 of the bytes to send.
        """
        if prop.type == "binary" or prop.name in self.binary_options:
            return Part(prop.name, decode_binary(text), BINARY_KIND)
        typed = prop.type in ("integer", "number", "boolean") and is_valid(prop.type, text)
        return Part(prop.name, text.encode(), JSON_KIND if typed and not prop.name.startswith(self.text_keys) else None)


Expand = Callable[[str], str]


def redact_address(address: str) -> str:
    """Return an address without user, password, path and query."""
    scheme, mark, rest = address.partition("://")
    host = (rest if mark else scheme).partition("/")[0].rpartition("@")[2]
    return f"{scheme}://{host}" if mark else host


def origin_of(address: str, ports: Mapping[str, int], default: int) -> str:
    """Return scheme, host and port of an address; without a port the scheme's, else *default*."""
    scheme, _, rest = address.partition("://")  # urlsplit knows no scheme with an underscore
    try:
        parts = urlsplit(f"//{rest}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return address.rpartition("@")[2]
    scheme = scheme.lower()
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port or ports.get(scheme, default)}"


def iter_headers(parts: Iterable[Part], prefix: str = "headers.") -> Iterator[tuple[str, Part]]:
    """Yield the headers among these parts, in order and with repeats: names, and parts with their values."""
    return ((part.key.removeprefix(prefix), part) for part in parts if part.key.startswith(prefix))


# Isolating messages at which a broker ends the connection.
#
# An ended connection alone proves nothing: a broker that restarts ends connections as well. So the messages in flight
# are sent again, fewer at a time, until one is alone on an accepted connection. If that one ends it again and again,
# the messages behind it in its lane wait, and the others are sent. It is given up if the broker accepted others, or
# says that the message is at fault, and still ends the connection at this one. If no other message shows that the
# broker works, that needs many calls.

MAX_SOLO_ATTEMPTS: Final = 3
"""How often a message alone ends the connection before it is a suspect."""
MAX_CALLS_WITHOUT_PROOF: Final = 10
"""Calls in which a message was a suspect before it is given up although no other message was accepted."""
MAX_SUSPECTS_IN_A_ROW: Final = 8
"""Consecutive suspects after which the broker counts as down."""
_REMEMBERED: Final = 1000
"""Maximum messages whose calls are counted; a peer that ends the connection at each new message adds one each time."""
SOLO_PAUSE: Final = 0.1
"""Seconds between the tries of a message alone, longer each time."""


class Hangup(Exception):
    """The broker ended a connection that it had accepted, with messages in flight; the text has no secrets.

    *at_fault*: the broker says that a message is at fault.
    """

    def __init__(self, text: str, *, at_fault: bool = False) -> None:
        super().__init__(text)
        self.at_fault = at_fault


Exchange = Callable[[Mapping[int, Outbound], Settled], None]
"""Sends messages in order, on a new connection if the last one ended, and records the broker's answer for each. It
raises :class:`Hangup` if the broker ends the connection, and :class:`Unsettled` for any other reason to try again.
"""


class PoisonIsolator:
    """Sends messages, and refuses those at which the broker (*peer* in their reasons) ends the connection."""

    def __init__(self, *, peer: str = "the broker", pause: float = SOLO_PAUSE) -> None:
        self._peer = peer
        self._pause = pause
        self._calls = Counter[int]()

    def send(self, messages: Sequence[Outbound], exchange: Exchange) -> list[MessageRefusal | None]:
        """Send messages until each is settled. The order of a lane is kept; other lanes may overtake a bad message.

        Raises:
            Unsettled: by *exchange*, or the broker may be at fault and not a message.
        """
        settled: Settled = {}
        try:
            self._settle_all(messages, exchange, settled)
        except (Hangup, Unsettled) as error:
            missing = len(messages) - len(settled)
            text = f"{missing} of {len(messages)} messages were not confirmed: {error}"
            raise Unsettled(text, settled) from error
        return [settled[index] for index in range(len(messages))]

    def _settle_all(self, messages: Sequence[Outbound], exchange: Exchange, settled: Settled) -> None:
        suspects: dict[str, tuple[int, Hangup]] = {}
        self._send_past_suspects(messages, exchange, settled, suspects)
        while suspects:
            for lane, (index, ended) in list(suspects.items()):
                message = messages[index]
                if not ended.at_fault and all(outcome is not None for outcome in settled.values()):
                    if len(self._calls) >= _REMEMBERED:
                        self._calls.clear()
                    self._calls[hash(message)] += 1
                    if self._calls[hash(message)] < MAX_CALLS_WITHOUT_PROOF:
                        raise ended
                try:
                    exchange({index: message}, settled)
                except Hangup as error:
                    reason = f"{self._peer} ends the connection at this message: {error}"
                    settled.setdefault(index, MessageRefusal(reason))
                self._calls.pop(hash(message), None)
                del suspects[lane]
            self._send_past_suspects(messages, exchange, settled, suspects)

    def _send_past_suspects(
        self,
        messages: Sequence[Outbound],
        exchange: Exchange,
        settled: Settled,
        suspects: dict[str, tuple[int, Hangup]],
    ) -> None:
        """Send all messages that no suspect blocks; *suspects* (index and error by lane) gets further ones."""
        size, tries, in_a_row = len(messages), 0, 0
        while left := [at for at, each in enumerate(messages) if at not in settled and each.lane not in suspects]:
            part, before = left[:size], len(settled)
            try:
                exchange({at: messages[at] for at in part}, settled)
            except Hangup as error:
                if len(settled) > before:
                    tries = in_a_row = 0
                if len(part) > 1 or part[0] in settled:
                    size = 1
                    continue
                tries += 1
                if tries < MAX_SOLO_ATTEMPTS:
                    # Jitter is for other clients' sake and changes nothing that is sent.
                    time.sleep(self._pause * tries * random.uniform(0.5, 1.0))
                    continue
                suspects[messages[part[0]].lane] = (part[0], error)
                tries, in_a_row = 0, in_a_row + 1
                if in_a_row >= MAX_SUSPECTS_IN_A_ROW:
                    raise
            else:
                tries = in_a_row = 0
                size *= 2
