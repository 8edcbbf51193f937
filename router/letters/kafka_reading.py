"""Dead letters out of Kafka topics: from their beginning to where they end when reading begins.

A letter is the record it was made from (key, value, headers), and behind those headers ours, ``xrouter-*``
(:meth:`router.writing.writer.BatchWriter`). A record that came from Kafka has no header with its native form: that is
what the letter's own key and headers show, and the position names the rest. What was too large for a topic lies in a
file. Records without our headers are somebody else's and left out. Nothing is committed, and no consumer group is
joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Message

from bindings.kafka.client import KafkaUnreachable
from bindings.kafka.codec import PROTOCOL as KAFKA
from bindings.kafka.codec import native, parts_of_row
from catalog.errors import RecordError
from catalog.parsing.regular import read_regular
from catalog.record import parse_record
from catalog.values import whole_number
from router.errors import BrokerUnreachable
from router.letters.kafka_merge import merged
from router.letters.letter import Letter, parse_native, parse_nearest
from router.logs import get_logger
from router.settings import KafkaSink
from router.settings.names import DEAD_LETTER_VARIABLES, KAFKA_LIMIT, parse_name
from router.sinks.messages.events import LINEAGE
from router.state.instants import parse_instant

FIRST: Final = f"{LINEAGE}letter"
"""The first header that is ours; an earlier one of that name was the record's own."""
_HINT: Final = "start the broker, or correct bootstrap_servers and credentials of the sink"
Headers = Sequence[tuple[str, bytes | None]]
_log = get_logger()


def read_topics(
    sink: str, settings: KafkaSink, spill: Path, *, bodies: bool = True, last: int | None = None
) -> Iterator[Letter]:
    """Yield the letters in the topics of a sink, by the time they were written; *spill* is the folder of large ones.

    With *last*, only so many records at the end of each partition are read.

    Raises:
        BrokerUnreachable: no broker answers, or what was to be read does not come.
    """
    client = settings.cluster()
    try:
        for message in merged(client, fitting(settings.topic), last):
            try:
                letter = letter_of(message, sink, spill)
            except (ValueError, RecordError) as error:
                place = f"{message.topic()}-{message.partition()}-{message.offset()}"
                _log.warning("record left out: no dead letter", sink=sink, record=place, problem=str(error))
                continue
            if letter is not None:
                yield letter
    except KafkaUnreachable as error:
        raise BrokerUnreachable(f"sink {sink}: {error}", hint=_HINT) from error


def fitting(template: str) -> re.Pattern[str]:
    """Return the pattern of all topics that a template for dead letters can give."""
    name = parse_name(template, DEAD_LETTER_VARIABLES)
    pieces = ["[A-Za-z0-9._-]+" if place % 2 else re.escape(part) for place, part in enumerate(name.parts)]
    # A name that is too long is cut and ends in a digest: of such a one only the beginning is known.
    capped = rf"(?=.{{{KAFKA_LIMIT}}}$){re.escape(name.parts[0])}.*-[0-9a-f]{{16}}"
    return re.compile(f"(?:{''.join(pieces)}|{capped})" if name.variables else "".join(pieces))


def letter_of(message: Message, sink: str, spill: Path) -> Letter | None:
    """Return the letter that a record is; None for one without our headers.

    Raises:
        ValueError: its headers contradict what we write, or its file is gone.
        RecordError: its file holds no record.
    """
    headers: Headers = message.headers() or []  # type: ignore[assignment]  # confluent's own type allows less
    at = next((place for place in reversed(range(len(headers))) if headers[place][0] == FIRST), None)
    if at is None:
        return None
    lineage = {name: value.decode("utf-8", "replace") for name, value in headers[at:] if value is not None}
    body, form = message.value(), _native(lineage, message.key(), headers[:at])
    if f"{LINEAGE}spill" in lineage:
        form, body = _spilled(spill / f"{lineage[FIRST]}.json")
    return Letter(
        id=lineage[FIRST],
        reason=lineage.get(f"{LINEAGE}reason", ""),
        detail=lineage.get(f"{LINEAGE}detail", ""),
        nearest=parse_nearest(lineage.get(f"{LINEAGE}nearest")),
        endpoint=lineage.get(f"{LINEAGE}endpoint"),
        protocol=lineage.get(f"{LINEAGE}protocol", ""),
        native=form,
        body=body,
        epoch=lineage.get(f"{LINEAGE}epoch", ""),
        position=lineage.get(f"{LINEAGE}position", ""),
        received=parse_instant(lineage.get(f"{LINEAGE}received")),
        failed=parse_instant(lineage.get(f"{LINEAGE}failed")),
        attempts=int(lineage.get(f"{LINEAGE}attempts", "1")),
        sink=sink,
    )


def _native(lineage: dict[str, str], key: bytes | None, headers: Headers) -> dict[str, object]:
    given = lineage.get(f"{LINEAGE}native")
    if given is not None:
        return parse_native(given)
    if lineage.get(f"{LINEAGE}protocol") != KAFKA:
        raise ValueError("it has no native record")
    place = lineage.get(f"{LINEAGE}position", "").partition("#")[0]
    topic, partition, offset = [*place.rsplit("-", 2), "", ""][:3]
    numbers = whole_number(partition), whole_number(offset)
    if None in numbers:
        raise ValueError(f"its position {place!r} is no place in a topic")
    received = parse_instant(lineage.get(f"{LINEAGE}received"))
    row = {
        "topic": topic,
        "partition": numbers[0],
        "offset": numbers[1],
        "timestamp": None if received is None else round(received.timestamp() * 1000),
        "key": key,
        "headers": [{"key": name, "value": value} for name, value in headers],
    }
    return native(parts_of_row(row))


def _spilled(path: Path) -> tuple[dict[str, object], bytes | None]:
    try:
        record = parse_record(read_regular(path))
    except FileNotFoundError as error:
        raise ValueError(f"its file {path} is gone") from error
    return dict(record.native), record.body
