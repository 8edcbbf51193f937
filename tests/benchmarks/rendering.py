"""What does it cost to render a record for tables, JSON lines and structured mode? ``make bench-rendering``

Rows of Kafka and of the inbox: events in binary mode with six headers, and bodies of two hundred bytes of JSON with
eleven keys. Each figure is the CPU time of a row, the least of the rounds, in batches as the router has them. *Rows*
is the exact reading of one row after the other, which odd rows take; *columns* is that of whole arrays. Their rounds
take turns, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from bindings.events import encode_event
from bindings.kafka.record_columns import SOURCE_SCHEMA
from catalog.model import Catalog, Definition
from catalog.schemas.columns import payload_column
from router.rendering.events import encode_structured_events, event_columns, native_texts, read_attributes
from router.rendering.texts import (
    EVENT_TYPE,
    TIME_TEXT,
    SourceKind,
    native_json,
    parts_of_raw,
)
from router.sinks.jsonlines import (
    DEAD_LETTER,
    WIDE_WITH_AMBIGUOUS,
    render_event_lines,
    render_letter_lines,
    wide_to_json_line,
)
from tests.benchmarks.machine import machine, options, say
from tests.support.exact_rendering import event_attributes, render_event

ROWS: Final = 10_000
LINES: Final = 2_000
"""Rows of which JSON lines are written at a time."""
START: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PROPERTIES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("type", pa.string())]))
KAFKA: Final = pa.struct([field for field in SOURCE_SCHEMA if field.name != "value"])
INBOX: Final = pa.struct(
    [
        *((name, pa.string()) for name in ("endpoint", "protocol", "position")),
        ("received", pa.timestamp("us", "UTC")),
        ("properties", PROPERTIES),
    ]
)
PREFIXES: Final = {
    "HTTP": ("headers.ce-", "headers.content-type"),
    "MQTT/5.0": ("user_properties.", "content_type"),
    "AMQP/1.0": ("application-properties.cloudEvents:", "properties.content-type"),
    "NATS": ("headers.ce-", "headers.content-type"),
}
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("sensor", "unit", "operator", "comment")},
        **{name: {"type": "number"} for name in ("value", "n")},
        "time": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"line": {"type": "integer"}, "name": {"type": "string"}}},
    },
}
GROUP: Final = "/messagegroups/g"
Case = tuple[str, Callable[[], Any] | None, Callable[[], Any]]


def attributes(number: int) -> dict[str, str]:
    """Return the attributes of one event, its content type aside."""
    moment = (START + timedelta(milliseconds=number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    source = f"/plants/{number % 50}/lines/{number % 7}"
    return {"specversion": "1.0", "id": f"id-{number:09}", "source": source, "type": "reading", "time": moment}


def body(number: int) -> bytes:
    """Return the body of one event."""
    return (
        b'{"sensor":"s-%06d","value":%d.5,"unit":"C","time":"2026-01-02T03:04:05Z","tags":["a","b"],"place":'
        b'{"line":%d,"name":"north hall"},"operator":"someone","comment":"nothing to be said about it here","n":%d}'
    ) % (number, number, number % 9, number)


def kafka_rows() -> pa.StructArray:
    """Return rows of Kafka's source without their values."""

    def row(number: int) -> dict[str, Any]:
        headers = {
            **{f"ce_{name}": text for name, text in attributes(number).items()},
            "content-type": "application/json",
        }
        place = {"topic": "plant", "partition": number % 12, "offset": number, "timestamp": 1_767_323_045_000 + number}
        listed = [{"key": name, "value": text.encode()} for name, text in headers.items()]
        return {**place, "key": b"k%d" % (number % 100), "headers": listed}

    return pa.array(map(row, range(ROWS)), KAFKA, size=ROWS)


def inbox_rows(protocol: str) -> pa.StructArray:
    """Return rows of the inbox without their bodies."""
    prefix, media = PREFIXES[protocol]

    def row(number: int) -> dict[str, Any]:
        parts = {**{f"{prefix}{name}": text for name, text in attributes(number).items()}, media: "application/json"}
        listed = [{"key": key, "value": text.encode()} for key, text in parts.items()]
        given = {"endpoint": "/endpoints/e", "protocol": protocol, "position": f"p-{number}"}
        return {**given, "received": START, "properties": listed}

    return pa.array(map(row, range(ROWS)), INBOX, size=ROWS)


def rendering(name: str, kind: SourceKind, raw: pa.StructArray) -> Iterator[Case]:
    """Yield what is rendered of a source's rows."""

    # Matching gives the attributes of all events but those of Kafka.
    def headers(number: int) -> list[dict[str, Any]]:
        named = {
            **{f"ce_{name}": text for name, text in attributes(number).items()},
            "content-type": "application/json",
        }
        return [{"key": key, "value": text.encode()} for key, text in named.items()]

    given = pa.nulls(ROWS, HEADERS) if kind == "kafka" else pa.array(map(headers, range(ROWS)), HEADERS, size=ROWS)
    place = pa.nulls(ROWS, pa.int32())
    data, typed = pa.array(map(body, range(ROWS)), pa.binary(), size=ROWS), pa.nulls(ROWS, pa.string())

    def events() -> pa.Array:
        rows = zip(raw.to_pylist(), given.to_pylist(), place.to_pylist(), strict=True)
        return pa.array([render_event(*parts_of_raw(row, kind, at), named) for row, named, at in rows], EVENT_TYPE)

    def natives() -> pa.Array:
        rows = zip(raw.to_pylist(), place.to_pylist(), strict=True)
        return pa.array([native_json(*parts_of_raw(row, kind, at)) for row, at in rows], pa.string())

    def structured() -> pa.Array:
        rows = zip(raw.to_pylist(), data.to_pylist(), strict=True)
        texts = [encode_event(event_attributes(*parts_of_raw(row, kind, None), None), value) for row, value in rows]
        return pa.array(texts, pa.binary())

    yield f"{name}: event columns, native JSON among them", events, lambda: event_columns(kind, raw, given, place)
    yield f"{name}: native JSON", natives, lambda: native_texts(kind, raw, place)
    yield (
        f"{name}: structured events",
        structured,
        lambda: encode_structured_events(read_attributes(raw, given), data, typed),
    )


def lines() -> Iterator[Case]:
    """Yield the lines of events and of dead letters."""
    raw = kafka_rows()
    given, place = pa.nulls(ROWS, HEADERS), pa.nulls(ROWS, pa.int32())
    columns = event_columns("kafka", raw, given, place).to_pylist()
    same = {
        "message": "/messagegroups/g/messages/m",
        "endpoint": "/endpoints/e",
        "epoch": "0123456789ab",
        "context": [],
    }
    rows = [
        {**row, **same, "data": body(at), "position": f"plant-0-{at}", "received": START + timedelta(milliseconds=at)}
        for at, row in enumerate(columns)
    ]
    schema = WIDE_WITH_AMBIGUOUS.append(pa.field(TIME_TEXT, pa.string()))
    events = pa.RecordBatch.from_pylist(rows, schema=schema)
    letters = pa.RecordBatch.from_pylist(
        [
            {**row, "letter": f"{at:032}", "reason": "unmatched", "nearest": "[]", "body": row["data"], "failed": START}
            for at, row in enumerate(rows)
        ],
        schema=DEAD_LETTER,
    )

    def whole(batch: pa.RecordBatch, form: Callable[[pa.RecordBatch], pa.Array]) -> Any:
        return [line for at in range(0, ROWS, LINES) for line in [form(batch[at : at + LINES])]]

    yield (
        "JSON lines of events",
        lambda: [wide_to_json_line(row) for row in events.to_pylist()],
        lambda: whole(events, render_event_lines),
    )
    yield (
        "JSON lines of dead letters",
        None,
        lambda: whole(letters, render_letter_lines),
    )


def payloads() -> Iterator[Case]:
    """Yield the typed columns of bodies; there is no reading of one row beside that of all."""
    xid = f"{GROUP}/messages/m"
    definition = Definition(xid, GROUP, dataschemaformat="JsonSchema/draft-07", schemakey=xid)
    column = payload_column(Catalog({xid: definition}, schemas={xid: {"document": SCHEMA}}), xid)
    assert column is not None
    bodies = pa.array(map(body, range(ROWS)), pa.binary(), size=ROWS)
    types = ["application/json"] * ROWS
    yield "typed columns of nine members", None, lambda: column.decode(bodies, types)


def cpu(work: Callable[[], Any]) -> float:
    """Return the CPU time of *work* in microseconds a row."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) / ROWS * 1e6


def main() -> None:
    """Run the benchmark and print its figures."""
    rounds = options(__doc__, rounds=7).rounds
    pa.set_cpu_count(1)
    cases = [*rendering("KAFKA", "kafka", kafka_rows()), *lines(), *payloads()]
    for protocol in PREFIXES:
        cases += rendering(protocol, "inbox", inbox_rows(protocol))
    table = [machine(), f"least of {rounds} rounds over {ROWS:,d} rows, bodies of {len(body(1234))} bytes", ""]
    table += [f"{'CPU us a row':50} {'rows':>8} {'columns':>8} {'times':>6}", "-" * 75]
    for name, each, together in cases:
        pairs = [(cpu(each) if each is not None else 0.0, cpu(together)) for _ in range(rounds)]
        one, all_ = (min(pair[at] for pair in pairs) for at in (0, 1))
        shown = f"{one:8.2f} {all_:8.2f} {one / all_:6.1f}" if each is not None else f"{'':8} {all_:8.2f}"
        table.append(f"{name:50} {shown}")
    say("\n".join(table))


if __name__ == "__main__":
    main()
