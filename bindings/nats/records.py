"""From a message as NATS delivered it to a row of the inbox (JUDGING.md#records)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from bindings.nats.headers import headers_of
from bindings.parts import JSON_KIND, InboxRow, Part
from catalog.values import whole_number

PROTOCOL: Final = "NATS"
ACK_PREFIX: Final = b"$JS.ACK."
UINT64_MAX: Final = 2**64 - 1
_TOKENS: Final = 9
_TOKENS_WITH_DOMAIN: Final = 11


class Arrival(NamedTuple):
    """One message as it came: bytes throughout, ``headers`` the raw block or empty."""

    subject: bytes
    reply: bytes
    data: bytes
    headers: bytes


class Stored(NamedTuple):
    """Where JetStream keeps a message, and since when (microseconds since 1970 UTC)."""

    stream: bytes
    sequence: int
    time: int


def stored_at(reply: bytes) -> Stored | None:
    """Return what the acknowledgement subject of a JetStream message says; None when it is no such subject.

    ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<nanoseconds>.<pending>``, with
    domain and account before the stream where the server puts them.
    """
    if not reply.startswith(ACK_PREFIX):
        return None
    tokens = reply.split(b".")
    shift = 0 if len(tokens) == _TOKENS else 2
    if len(tokens) != _TOKENS and len(tokens) < _TOKENS_WITH_DOMAIN:
        return None
    sequence, nanoseconds = whole_number(tokens[5 + shift], UINT64_MAX), whole_number(tokens[7 + shift])
    if sequence is None or nanoseconds is None:
        return None  # no server writes this: the subject is a sender's own
    return Stored(tokens[2 + shift], sequence, nanoseconds // 1000)


def row_of(endpoint: str, arrival: Arrival, stored: Stored | None, received: int, max_body_bytes: int) -> InboxRow:
    """Return the row of a message; *received* is its arrival in microseconds since 1970 UTC.

    A message from JetStream has ``stream`` and ``sequence``, and JetStream's own time in place of the arrival, so that
    a redelivery makes the same event; the subject that acknowledges it is not the sender's ``reply-to``. A body of more
    than *max_body_bytes* is stored whole, with the part ``oversized``.
    """
    parts = [Part("subject", arrival.subject)]
    if stored is None and arrival.reply:
        parts.append(Part("reply-to", arrival.reply))
    if arrival.headers:
        parts.extend(_header_parts(arrival.headers))
    if stored is not None:
        parts.append(Part("stream", stored.stream))
        parts.append(Part("sequence", b"%d" % stored.sequence, JSON_KIND))
    body: bytes | None = arrival.data or None
    if body is not None and len(body) > max_body_bytes:
        parts.append(Part("oversized", b"%d" % len(body), JSON_KIND))
    return InboxRow(endpoint, PROTOCOL, received if stored is None else stored.time, parts, body)


def _header_parts(block: bytes) -> Iterator[Part]:
    for name, value in headers_of(block):
        # The key of a part is text; bytes that are none stay recognisable.
        yield Part(f"headers.{name.decode('utf-8', 'backslashreplace')}", value)
