"""The sending side of the protocols: messages, what becomes of them, and what each protocol says of its own.

Sinks make :class:`Outbound` messages of parts, the form in which our codecs read records, and hand them to a
:class:`Publisher`. How messages of a protocol are addressed and put together is its :class:`Sending`, in the folder of
the protocol; :data:`bindings.protocols.BINDINGS` names it.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from bindings.certificates import AddressForm
from bindings.parts import BINARY_KIND, JSON_KIND, Part
from catalog.model import Definition, Endpoint, Property
from catalog.values import binary_value, is_valid, percent_encode

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Outbound:
    """One message for one protocol. ``address`` is the topic, node, subject or URL.

    ``lane`` names what it keeps its order with: the partition its record came from. ``id`` is the same for every retry.
    """

    address: str
    parts: tuple[Part, ...]
    body: bytes | None
    lane: str
    id: str


@dataclass(frozen=True, slots=True)
class MessageRefusal:
    """A message that will never be taken, and why, in one line without secrets of ours."""

    reason: str


class Unsettled(Exception):
    """Not every message was settled, for a reason that may pass: send again what is not in ``settled``, which has what
    became of the others by place; None is taken. The message says what is wrong, in one line without secrets.
    """

    def __init__(self, message: str, settled: Mapping[int, MessageRefusal | None] | None = None) -> None:
        super().__init__(message)
        self.settled = dict(settled or {})


class SendingClient(Protocol[M_contra]):
    """A client of one server that sends. It connects when it is first needed, and again after a connection broke."""

    def send(self, messages: Sequence[M_contra]) -> list[MessageRefusal | None]:
        """Send messages and wait until each is confirmed; a refusal says why that one will never be taken.

        Raises:
            Unsettled: the server takes nothing now; send again.
            GatewayError: an address, certificate or login that waiting does not repair.
        """
        ...

    def close(self) -> None:
        """Disconnect; a later ``send`` connects again."""
        ...


Publisher = SendingClient[Outbound]
"""What a binding gives to sinks."""


@dataclass(frozen=True, slots=True)
class Translating(Generic[M]):
    """A :class:`Publisher` that uses a *client* with its own form of messages."""

    client: SendingClient[M]
    message_of: Callable[[Outbound], M]

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages; see :class:`SendingClient`."""
        return self.client.send([self.message_of(each) for each in messages])

    def close(self) -> None:
        """Disconnect."""
        self.client.close()


class Sending:
    """What the sending side of a protocol says of addresses and parts; one subclass for each family of protocols.

    What stands here holds for a protocol of headers whose address is one part of the message, such as a topic.
    """

    family: ClassVar[str]
    """The protocol without its versions, which sinks and sources of it are called by: ``mqtt``."""
    form: ClassVar[AddressForm]
    """How addresses of its servers are written; Kafka's have a form of their own."""
    literal: ClassVar[tuple[re.Pattern[str], str]]
    """What a template of addresses may have between its variables, and this rule in words."""
    whole: ClassVar[tuple[re.Pattern[str], str]]
    """What an address may be, and this rule in words."""
    most_bytes: ClassVar[int]
    """The longest address, in bytes of UTF-8."""
    authority: ClassVar[re.Pattern[str] | None] = None
    """What must stand before the first variable of a template; None where a variable may stand anywhere."""
    escape: ClassVar[str] = "%"
    """The sign with which values are escaped in addresses."""
    dotted: ClassVar[bool] = False
    """Whether dots part the levels of an address, and not slashes."""
    address: ClassVar[str] = ""
    """The part that has the address in a record; empty where it has none, or the address is made of several."""
    key: ClassVar[str] = ""
    """The part with the key of a record; empty where records have none."""
    by_channel: ClassVar[frozenset[str]] = frozenset()
    """Options that the channel settles when a definition requires them without a value."""
    listed: ClassVar[tuple[str, ...]] = ()
    """Options of an endpoint that list names and values which go with each message."""
    scalars: ClassVar[tuple[str, ...]] = ()
    """Options of an endpoint that are parts of each message, unless a definition has them."""
    least: ClassVar[Mapping[str, int]] = {}
    """Parts whose numbers are raised to these: with lower ones nothing would be confirmed."""
    blobs: ClassVar[frozenset[str]] = frozenset()
    """Options that are bytes by the protocol, and base64 in a record, whatever type is declared."""
    texts: ClassVar[tuple[str, ...]] = ("headers.",)
    """Prefixes of options whose values are texts, whatever type is declared."""
    bare: ClassVar[frozenset[str]] = frozenset()
    """Parts that a version of the protocol without headers carries."""

    def escaped(self, value: str) -> str:
        """Return a value, escaped to ``[A-Za-z0-9._-]`` by now, such that it stays one level of an address."""
        return value.replace(".", "%2E") if self.dotted else value

    def encoded(self, value: str) -> str:
        """Percent-encode a value for an address of an endpoint, as RFC 6570 does, and dots where they part levels."""
        return self.escaped(percent_encode(value))

    def exposed(self, addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, str]) -> str:
        """Return the first address that would be spoken to without TLS, less user, path and query; empty for none.

        *tls* and *login* tell whether the settings have certificates and a user, *options* are those of the client.
        """
        plain = (each for each in addresses if self.form.is_plain(each, tls=tls))
        return next((shown(address) for address in plain), "")

    def origins(self, addresses: Iterable[str]) -> Iterator[str]:
        """Give scheme, host and port of addresses, in one form for all ways to write them."""
        full = (each if "://" in each else f"{self.family}://{each}" for each in addresses)
        return (origin_of(each, self.form.ports, self.form.secure_port) for each in full)

    def option_parts(self, options: Iterable[tuple[Property, str]]) -> list[Part]:
        """Return the parts for protocol options and their texts."""
        return [self._part(prop, text) for prop, text in options]

    def channel(self, definition: Definition, endpoint: Endpoint | None, *, connected: bool = False) -> dict[str, str]:
        """Return where a record goes by its channel, for what the definition itself leaves open; values are templates.

        Without an endpoint, or one that says it, the address is the name of the message. With *connected* the record is
        sent to the endpoint's own addresses, whose paths count then.
        """
        options = endpoint.options if endpoint else {}
        return {self.address: str(options.get(self.address) or definition.messageid)} if self.address else {}

    def address_of(self, parts: Sequence[Part], endpoint: Endpoint, declared: bool, base: str, expand: Expand) -> str:
        """Return where a message of these parts goes.

        *declared* tells whether its definition has a path, *base* is a URL in place of the endpoint's own, *expand*
        fills in a template of the endpoint.
        """
        return next((part.text or "" for part in parts if part.key == self.address), "")

    def carries_bytes(self, key: str) -> bool:
        """Tell whether the protocol has a place for bytes that are no text in this part."""
        return key.startswith("headers.") or key in self.blobs or key == self.key

    def header(self, name: str, part: Part) -> Part | None:
        """Return what a header of another record becomes, under its name here; None for one without a form here."""
        return Part(name, part.value)

    def received(self, message: Outbound, *, binary: bool) -> Iterator[Part]:
        """Give the parts that a receiver of the message reads; *binary* tells whether the version has headers."""
        if self.address:
            yield Part(self.address, message.address.encode())
        for part in message.parts:
            if part.key != self.address and (binary or part.key in self.bare):
                yield part

    def _part(self, prop: Property, text: str) -> Part:
        """Return the part for one option; numbers and booleans keep their type where the protocol has types.

        A text of type ``binary`` is the base64 of the bytes to be sent.
        """
        if prop.type == "binary" or prop.name in self.blobs:
            return Part(prop.name, binary_value(text), BINARY_KIND)
        typed = prop.type in ("integer", "number", "boolean") and is_valid(prop.type, text)
        return Part(prop.name, text.encode(), JSON_KIND if typed and not prop.name.startswith(self.texts) else None)


Expand = Callable[[str], str]


def shown(address: str) -> str:
    """Return an address without user, password, path and query."""
    scheme, mark, rest = address.partition("://")
    host = (rest if mark else scheme).partition("/")[0].rpartition("@")[2]
    return f"{scheme}://{host}" if mark else host


def origin_of(address: str, ports: Mapping[str, int], default: int) -> str:
    """Return scheme, host and port of an address; the port that its scheme means, else *default*, where it has none."""
    scheme, _, rest = address.partition("://")  # urlsplit knows no scheme with an underscore
    try:
        parts = urlsplit(f"//{rest}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return address.rpartition("@")[2]
    scheme = scheme.lower()
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port or ports.get(scheme, default)}"


def headers_of(parts: Iterable[Part], prefix: str = "headers.") -> Iterator[tuple[str, Part]]:
    """Give the headers among these parts, in order and with repeats: names, and parts with their values."""
    return ((part.key.removeprefix(prefix), part) for part in parts if part.key.startswith(prefix))


# Messages at which a broker ends the connection, and when that is the message's own fault.
#
# An ended connection says nothing by itself: a broker that restarts ends connections as well. So the messages that were
# under way are sent again, fewer at a time, until one is alone on a connection that the broker has accepted. When that
# one ends it again and again, the messages behind it in its lane wait, and the others pass. It is given up when the
# broker took others, or says that the message is at fault, and still ends the connection at this one; where nothing
# else shows that the broker works, it takes many calls.

ALONE: Final = 3
"""Times that a message by itself ends the connection before it is a suspect."""
LONELY: Final = 10
"""Calls in which a message was a suspect before it is given up with no other message to compare with."""
IN_A_ROW: Final = 8
"""Suspects, one after the other, after which the broker counts as down."""
PAUSE: Final = 0.1
"""Seconds between the tries of a message by itself, longer each time."""
_REMEMBERED: Final = 1000

R = TypeVar("R")


class Ended(Exception):
    """The broker ended a connection that it had accepted, with messages under way; the text has no secrets.

    *sure* when the broker says itself that what it was sent is at fault.
    """

    def __init__(self, text: str, *, sure: bool = False) -> None:
        super().__init__(text)
        self.sure = sure


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message: ``lane`` names what it keeps its order with, ``key`` is the same in each of its calls."""

    lane: str
    key: int


class Calls:
    """How often messages were suspects; thread-safe and bounded."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._lock = threading.Lock()

    def count(self, key: int) -> int:
        """Count one more call, and return how many there were."""
        with self._lock:
            if len(self._calls) >= _REMEMBERED:
                self._calls.clear()
            calls = self._calls[key] = self._calls.get(key, 0) + 1
        return calls

    def forget(self, key: int) -> None:
        """Forget a message that is settled."""
        with self._lock:
            self._calls.pop(key, None)


class Suspects(Generic[R]):
    """Sends messages past those at which the broker ends the connection. *refusal* makes an outcome of a reason."""

    def __init__(self, refusal: Callable[[str], R], *, pause: float = PAUSE) -> None:
        self._refusal = refusal
        self._pause = pause
        self._calls = Calls()

    def send(
        self, items: Sequence[OutgoingMessage], exchange: Callable[[Sequence[int]], None], settled: dict[int, R | None]
    ) -> None:
        """Settle every item: *settled* has the outcomes by place, None for a message that the broker took.

        *exchange* sends the messages at these places in order, on a new connection if the last one ended, and writes
        what the broker said of each. The order of a lane is kept.

        Raises:
            Ended: by *exchange*, when it may be the broker's fault and not a message's. Some items may be settled.
        """
        run = _Run(items, exchange, settled, self._pause)
        held = run.pass_through({})
        while held:
            for lane, (place, ended) in list(held.items()):
                key = items[place].key
                works = ended.sure or any(outcome is None for outcome in settled.values())
                if not works and self._calls.count(key) < LONELY:
                    raise ended
                try:
                    exchange((place,))
                except Ended as error:
                    if place not in settled:
                        settled[place] = self._refusal(f"the broker ends the connection at this message: {error}")
                self._calls.forget(key)
                del held[lane]
            held = run.pass_through(held)


class _Run(Generic[R]):
    """One call of :meth:`Suspects.send`."""

    def __init__(
        self,
        items: Sequence[OutgoingMessage],
        exchange: Callable[[Sequence[int]], None],
        settled: dict[int, R | None],
        pause: float,
    ) -> None:
        self._pause = pause
        self._items = items
        self._exchange = exchange
        self._settled = settled

    def pass_through(self, held: dict[str, tuple[int, Ended]]) -> dict[str, tuple[int, Ended]]:
        """Send all that is not behind a suspect; return suspects by lane, with what is known against each."""
        held = dict(held)
        size, tries, in_a_row = len(self._items), 0, 0
        while part := self._open(held)[:size]:
            before = len(self._settled)
            try:
                self._exchange(part)
            except Ended as error:
                if len(self._settled) > before:
                    tries = in_a_row = 0
                if len(part) > 1 or part[0] in self._settled:
                    size = 1
                    continue
                tries += 1
                if tries < ALONE:
                    # Jitter is for other clients' sake and changes nothing that is sent.
                    time.sleep(self._pause * tries * random.uniform(0.5, 1.0))
                    continue
                held[self._items[part[0]].lane] = (part[0], error)
                tries, in_a_row = 0, in_a_row + 1
                if in_a_row >= IN_A_ROW:
                    raise
            else:
                tries = in_a_row = 0
                size *= 2
        return held

    def _open(self, held: dict[str, tuple[int, Ended]]) -> list[int]:
        return [place for place, item in enumerate(self._items) if place not in self._settled and item.lane not in held]
