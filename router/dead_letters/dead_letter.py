"""One dead letter, read back from a sink (MATCHING.md#what-comes-out)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.protocols import BINDINGS, binding_of
from catalog.findings import RecordError
from catalog.record import Record
from router.errors import RouterError
from router.evaluation.evaluator import to_kafka_row
from router.rendering.texts import INSTANT
from router.state.ledger import instant, parse_instant

_LIST: Final = json.JSONDecoder()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that did not become an event, with all its content and the reason.

    ``id`` is the same for every retry of its batch. ``nearest`` holds objects
    ``{"message", "mismatches": [{"property", "expected", "found"}]}``. ``native`` is the record's own JSON form
    without its body, ``body`` its bytes (None for no body). ``received`` is the record's arrival, ``failed`` when the
    letter was written; None if the sink could not store the time. ``attempts`` counts those before the letter was
    written; replays are counted in the ledger. ``sink`` is the sink it was read from, and the only member that
    differs between sinks.
    """

    id: str
    reason: str
    detail: str
    nearest: tuple[Mapping[str, Any], ...]
    endpoint: str | None
    protocol: str
    native: Mapping[str, Any]
    body: bytes | None
    epoch: str
    position: str
    received: datetime | None
    failed: datetime | None
    attempts: int
    sink: str = ""

    @classmethod
    def of_record(cls, record: Record, *, id: str = "", reason: str = "") -> DeadLetter:
        """Return a record as a dead letter that no sink has, to evaluate or redact it."""
        native, position = record.native, record.position or id
        return cls(
            id, reason, "", (), record.endpoint, record.protocol, native, record.body, "", position, None, None, 0
        )

    @classmethod
    def to_evaluate(cls, record: Record, number: int = 0) -> DeadLetter:
        """Return record *number* of some as a dead letter to evaluate, with what its source would add.

        All records of a Kafka topic have a partition, an offset and a timestamp.
        """
        received, native = parse_instant(record.time), record.native
        binding = binding_of(record.protocol)
        if binding is not None and binding.protocol == KAFKA:
            milliseconds = None if received is None else (received - _EPOCH) // timedelta(milliseconds=1)
            given = {name: value for name, value in native.items() if value is not None}
            added = {"partition": 0, "offset": number} | ({} if received is None else {"timestamp": milliseconds})
            native = added | given
        letter = cls.of_record(record, id=str(number))
        return replace(letter, native=native, position=str(number), received=received)

    def to_record(self) -> Record:
        """Return the native record of the dead letter, with its original arrival time and position."""
        time = None if self.received is None else instant(self.received)
        return Record(self.protocol, self.native, self.body, self.endpoint, time, self.position)


def make_letter(members: Mapping[str, Any], sink: str) -> DeadLetter:
    """Make a letter from the members that every sink stores, with ``letter`` for its id; missing ones may be left out.

    ``native`` and ``nearest`` are JSON text, ``native`` may also be an object.

    Raises:
        ValueError: its native record is not a JSON object.
    """
    native = members.get("native")
    return DeadLetter(
        id=members["letter"] or "",
        reason=members.get("reason") or "",
        detail=members.get("detail") or "",
        nearest=parse_nearest(members.get("nearest")),
        endpoint=members.get("endpoint"),
        protocol=members.get("protocol") or "",
        native=native if isinstance(native, Mapping) else parse_native(native),
        body=members.get("body"),
        epoch=members.get("epoch") or "",
        position=members.get("position") or "",
        received=members["received"],
        failed=members["failed"],
        attempts=members.get("attempts") or 1,
        sink=sink,
    )


def parse_native(text: str | None) -> dict[str, Any]:
    """Return the parsed native record of a dead letter.

    Raises:
        ValueError: the text is no JSON object.
    """
    try:
        native = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise ValueError(f"native is not valid JSON: {error}") from error
    if not isinstance(native, dict):
        raise ValueError("native is not a JSON object")
    return native


def parse_nearest(text: str | None) -> tuple[dict[str, Any], ...]:
    """Return the nearest definitions; if a header's size limit truncated them, only the complete ones."""
    entries: list[dict[str, Any]] = []
    rest = (text or "").strip().removeprefix("[")
    while rest and not rest.startswith("]"):
        try:
            entry, end = _LIST.raw_decode(rest)
        except (ValueError, RecursionError):
            break  # Truncated here: the size of Kafka headers is limited.
        if isinstance(entry, dict):
            entries.append(entry)
        rest = rest[end:].lstrip().removeprefix(",").lstrip()
    return tuple(entries)


# Dead letters as text for people: safe for a terminal, on one line, and limited in length.

CUT: Final = "…"
BODY_SHOWN: Final = 4_096
"""Bytes of a body that are shown; the sink has all of them."""
_WIDTH: Final = 16


def sanitize(text: str, max_length: int = 0) -> str:
    """Return a text without control characters and line breaks, truncated to *max_length* characters if set."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return shown[: max_length - 1] + CUT if max_length and len(shown) > max_length else shown


def shorten_nearest(nearest: Mapping[str, Any], max_length: int, max_mismatches: int | None = None) -> dict[str, Any]:
    """Return a nearest definition with its first mismatches and truncated texts."""
    wrong = [each for each in nearest.get("mismatches") or () if isinstance(each, Mapping)][:max_mismatches]
    names = ("property", "expected", "found")
    mismatches = [
        {name: None if each.get(name) is None else cut(str(each[name]), max_length) for name in names} for each in wrong
    ]
    return {"message": cut(str(nearest.get("message")), max_length), "mismatches": mismatches}


def cut(text: str, max_length: int) -> str:
    """Return a text, truncated if it is longer."""
    return text if len(text) <= max_length else f"{text[:max_length]}{CUT}"


def format_time(moment: datetime | None, *, short: bool = False) -> str:
    """Return a time as text, ``-`` for None; *short* omits fractions of a second."""
    if moment is None:
        return "-"
    text = instant(moment)
    return f"{text[:19]}Z" if short else text


def iter_values(native: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and text of each value of a native record, in order, including repeats."""
    for member, value in native.items():
        if isinstance(value, list):
            for entry in value:
                if not isinstance(entry, Mapping) or "name" not in entry:
                    yield member, format_value(entry)
                elif "value_base64" in entry:
                    yield f"{member}.{entry['name']}", f"base64 {format_value(entry['value_base64'])}"
                else:
                    yield f"{member}.{entry['name']}", format_value(entry.get("value"))
        elif isinstance(value, Mapping):
            yield from ((f"{member}.{name}", format_value(inner)) for name, inner in value.items())
        else:
            yield member, format_value(value)


def format_value(value: Any) -> str:
    """Return a value as text: strings unchanged, everything else as JSON."""
    return sanitize(value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8"))


def format_body(body: bytes | None, max_length: int = BODY_SHOWN) -> list[str]:
    """Return a body as lines: text if it is UTF-8, else a hex dump."""
    if body is None:
        return ["(none)"]
    shown = body[:max_length]
    more = [f"{CUT} {len(body) - max_length} bytes more"] if len(body) > max_length else []
    text = body_to_json(body).get("body")
    if text is not None and "\x00" not in text:
        # The last character may be truncated.
        return [sanitize(line.rstrip("\r")) for line in shown.decode("utf-8", "ignore").split("\n")] + more
    lines = []
    for start in range(0, len(shown), _WIDTH):
        piece = shown[start : start + _WIDTH]
        plain = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)
        lines.append(f"{start:08x}  {piece.hex(' '):<{_WIDTH * 3 - 1}}  {plain}")
    return lines + more


def body_to_json(body: bytes | None) -> dict[str, Any]:
    """Return a body as a JSON member, ``body`` for UTF-8 text, else ``body_base64``; empty without a body."""
    if body is None:
        return {}
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


# Dead letters as rows to be judged again: the columns of an inbox row, and what a letter brings along.

_PART: Final = pa.struct([("key", pa.string()), ("value", pa.binary()), ("type", pa.string())])
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
ROWS: Final = pa.schema(
    [
        ("endpoint", pa.string()),
        ("protocol", pa.string()),
        ("received", INSTANT),
        ("properties", pa.list_(_PART)),
        ("body", pa.binary()),
        ("position", pa.string()),
        ("headers", pa.list_(_HEADER)),
        ("key", pa.binary()),
        ("letter", pa.string()),
    ]
)
"""``headers`` and ``key`` are given for records of Kafka, and have the form of Kafka's own rows."""
_MOST: Final = (1 << 62) // 1000
"""Maximum Kafka timestamp in milliseconds that a column can represent."""


def rows_of(letters: Iterable[DeadLetter]) -> pa.Table:
    """Return dead letters as rows, in their order.

    Raises:
        RouterError: the record of one cannot be taken apart; names the letter and where it was read.
    """
    return pa.Table.from_pylist([_row(letter) for letter in letters], ROWS)


def _row(letter: DeadLetter) -> dict[str, Any]:
    binding = binding_of(letter.protocol)
    try:
        if binding is None:
            raise RecordError(f"protocol {letter.protocol[:40]!r} is unknown; known: {', '.join(BINDINGS)}")
        parts = binding.split(letter.native)
    except RecordError as error:
        hint = "the letter was changed where it lies; restore it, or leave it out"
        raise RouterError(f"dead letter {letter.id} in {letter.sink}: {error}", hint=hint) from error
    row: dict[str, Any] = {
        "endpoint": letter.endpoint,
        "protocol": letter.protocol,
        "received": letter.received,
        "properties": [{"key": part.key, "value": part.value, "type": part.kind} for part in parts],
        "body": letter.body,
        "position": letter.position,
        "letter": letter.id,
    }
    if binding.protocol == KAFKA:
        source = to_kafka_row(parts)
        # The timestamp may be beyond Python's calendar.
        milliseconds = source["timestamp"]
        received = None if milliseconds is None or abs(milliseconds) > _MOST else milliseconds * 1000
        row |= {"headers": source["headers"], "key": source["key"], "received": received}
    return row
