"""How fast are inbox rows judged on one core, from Arrow batch to lists of outcomes? ``make bench-judging``

One batch for each kind of sender, as gateways store them: CloudEvents in binary mode by HTTP, native MQTT messages told
by topic, AMQP and NATS messages, events and native ones of each. A hundred definitions, of which every row is won by
one; ``--definitions 10 1000 10000`` shows whether their number matters. Then the first batch with every subject given
twice, which leaves all its rows to the exact codec.

The last lines are records of Kafka whose bodies are Avro of ten fields in frames of Confluent's, one definition,
``validate: always``: read with the definition's schema alone, and resolved to it from the same version, an older and a
newer one.

A figure is the median over rounds of rows per second of CPU time of this process, on one thread, warm; the rounds of
all kinds take turns.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fastavro
import pyarrow as pa

from bindings.envelope import STRUCTURED
from bindings.inbox.source import READ_SCHEMA
from bindings.kafka.record_columns import SOURCE_SCHEMA
from bindings.parts import BINARY_KIND, JSON_KIND
from bindings.protocols import BINDINGS
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from catalog.schemas.ids.deciding import FrameSettings
from catalog.schemas.validation import PayloadValidation
from router.evaluation.evaluator import Kind, evaluate
from router.evaluation.outputs import OutputBuilder
from router.evaluation.plan import TOPIC_PREFIX, Evaluator, Plan
from router.matching.channels import ChannelBuilder
from router.matching.matcher import Matcher
from router.routing import Routes, SizeLimits
from router.settings import Settings, settings_from_dict
from tests.benchmarks.machine import machine, options, say
from tests.support import plain
from tests.support.evaluating import outcome_lists
from tests.support.schemas import confluent, known_ids

BATCH: Final = 10_000
GROUP: Final = "/messagegroups/Bench"
ENDPOINT: Final = "/endpoints/bench"
GOAL: Final = 150_000
"""Rows a second that are asked for."""
_ADDRESS: Final = {"MQTT/5.0": "topic_name", "AMQP/1.0": "properties.subject", "NATS": "subject", "HTTP": "path"}
Entry = tuple[str, bytes | None, str | None]
Maker = Callable[[Random, int], list[Entry]]


def definition(number: int, protocol: str, *, event: bool) -> Definition:
    """Return a definition: of events told by their type, or of native messages told by where they are sent."""
    attributes = (
        Property("type", "string", f"com.example.area{number % 10}.Event{number}", required=True),
        Property("source", "uritemplate", "https://feeds.example.com/{agency}", required=True),
        Property("subject", "uritemplate", "{agency}/{station}"),
    )
    address = f"area{number % 10}/{{agency}}/{{station}}/event{number}"
    path = address.replace("/", ".") if protocol == "NATS" else address
    return Definition(
        f"{GROUP}/messages/m{number}",
        GROUP,
        envelope=CLOUDEVENTS,
        protocol=protocol,
        envelopemetadata=attributes,
        protocoloptions=() if event else (Property(_ADDRESS[protocol], "uritemplate", path),),
    )


def judge_of(protocol: str, definitions: Sequence[Definition]) -> Evaluator:
    """Return what judges rows of one endpoint with these definitions."""
    xids = tuple(each.xid for each in definitions)
    endpoint = Endpoint(
        ENDPOINT,
        usage=("consumer",),
        protocol=protocol,
        uris=(f"{BINDINGS[protocol].sending.family}://localhost:9092",),
        options=dict.fromkeys(("topic", "node", "subject"), "in"),
        candidates=xids,
    )
    settings = _settings(sources=[{"endpoint": ENDPOINT}])
    catalog = Catalog({each.xid: each for each in definitions}, {GROUP: xids}, {ENDPOINT: endpoint})
    return Plan(catalog, settings).evaluator


def _settings(**more: Any) -> Settings:
    sinks = plain.topics("localhost:9092", bus="out", dead="dead")
    return settings_from_dict(plain.routed(Path("bench.json"), sinks, **more), {}, Path())


def _attributes(chosen: Random, number: int) -> dict[str, str]:
    agency, station = f"agency{chosen.randrange(60)}", f"station{chosen.randrange(5_000)}"
    return {
        "specversion": "1.0",
        "id": f"{chosen.randrange(1 << 60):016x}",
        "source": f"https://feeds.example.com/{agency}",
        "type": f"com.example.area{number % 10}.Event{number}",
        "subject": f"{agency}/{station}",
        "time": "2026-07-01T12:34:56.789Z",
    }


def _event(prefix: str, content: str, chosen: Random, number: int) -> list[Entry]:
    attributes = _attributes(chosen, number)
    entries: list[Entry] = [(f"{prefix}{name}", text.encode(), None) for name, text in attributes.items()]
    return [*entries, (content, b"application/json", None)]


def _data(chosen: Random) -> dict[str, Any]:
    return {"value": chosen.random(), "text": "x" * 180}


def _body(entries: Sequence[Entry], chosen: Random, number: int) -> bytes:
    """Return data alone, or a whole event where the content type says so."""
    structured = any(value == STRUCTURED.encode() for _, value, _ in entries)
    return json.dumps({**_attributes(chosen, number), "data": _data(chosen)} if structured else _data(chosen)).encode()


def _http(chosen: Random, number: int) -> list[Entry]:
    names = ("host", "user-agent", "accept", "content-length", "traceparent")
    values = (b"router.example.com", b"sensor/1.7", b"*/*", b"212", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f0-01")
    own: list[Entry] = [("method", b"POST", None), ("path", b"/in", None)]
    own += [(f"headers.{name}", value, None) for name, value in zip(names, values, strict=True)]
    return own + _event("headers.ce-", "headers.content-type", chosen, number)


def _http_json(chosen: Random, number: int) -> list[Entry]:
    """Return what comes with an event in structured mode."""
    own = _http(chosen, number)[:7]
    return [*own, ("headers.content-type", STRUCTURED.encode(), None)]


def _topic(chosen: Random, number: int, separator: str = "/") -> bytes:
    levels = (f"area{number % 10}", f"agency{chosen.randrange(60)}", f"station{chosen.randrange(5_000)}")
    return separator.join((*levels, f"event{number}")).encode()


def _mqtt(chosen: Random, number: int) -> list[Entry]:
    flags: list[Entry] = [("qos", b"1", JSON_KIND), ("retain", b"false", JSON_KIND)]
    users: list[Entry] = [("user_properties.unit", b"kW", None), ("user_properties.line", b"7", None)]
    return [("topic_name", _topic(chosen, number), None), *flags, ("content_type", b"application/json", None), *users]


def _mqtt_event(chosen: Random, number: int) -> list[Entry]:
    flags: list[Entry] = [("qos", b"1", JSON_KIND), ("retain", b"false", JSON_KIND)]
    return [("topic_name", b"in", None), *flags, *_event("user_properties.", "content_type", chosen, number)]


def _amqp(chosen: Random, number: int) -> list[Entry]:
    return [
        ("header.durable", b"true", JSON_KIND),
        ("header.priority", b"4", JSON_KIND),
        ("properties.message-id", f"{chosen.randrange(1 << 60):016x}".encode(), None),
        ("properties.user-id", b"\x00\xff", BINARY_KIND),
        ("properties.subject", _topic(chosen, number), None),
        ("properties.content-type", b"application/json", None),
        ("properties.creation-time", b"2026-07-01T12:34:56.789Z", None),
        ("application-properties.unit", b"kW", None),
        ("application-properties.line", b"7", JSON_KIND),
    ]


def _amqp_event(chosen: Random, number: int) -> list[Entry]:
    own: list[Entry] = [("header.durable", b"true", JSON_KIND), ("application-properties.line", b"7", JSON_KIND)]
    return own + _event("application-properties.cloudEvents:", "properties.content-type", chosen, number)


def _nats(chosen: Random, number: int) -> list[Entry]:
    stored: list[Entry] = [("stream", b"SENSORS", None), ("sequence", b"%d" % chosen.randrange(1 << 40), JSON_KIND)]
    return [("subject", _topic(chosen, number, "."), None), ("headers.unit", b"kW", None), *stored]


def _nats_event(chosen: Random, number: int) -> list[Entry]:
    return [("subject", b"in", None), *_event("headers.ce-", "headers.content-type", chosen, number)]


KINDS: Final[tuple[tuple[str, str, bool, Maker], ...]] = (
    ("HTTP events", "HTTP", True, _http),
    ("HTTP, structured", "HTTP", True, _http_json),
    ("MQTT native", "MQTT/5.0", False, _mqtt),
    ("MQTT events", "MQTT/5.0", True, _mqtt_event),
    ("AMQP native", "AMQP/1.0", False, _amqp),
    ("AMQP events", "AMQP/1.0", True, _amqp_event),
    ("NATS native", "NATS", False, _nats),
    ("NATS events", "NATS", True, _nats_event),
)


def rows_of(protocol: str, make: Maker, definitions: int, *, odd: bool = False) -> pa.RecordBatch:
    """Return a batch as the inbox gives it; *odd* rows have their subject twice."""
    chosen = Random(7)
    begin = datetime(2026, 7, 1, tzinfo=UTC)
    rows: list[dict[str, Any]] = []
    for at in range(BATCH):
        number = chosen.randrange(definitions)
        entries = make(chosen, number)
        if odd:
            entries += [each for each in entries if each[0].endswith("subject")]
        rows.append(
            {
                "endpoint": ENDPOINT,
                "protocol": protocol,
                "received": begin + timedelta(microseconds=chosen.randrange(10**9)),
                "properties": [{"key": key, "value": value, "type": kind} for key, value, kind in entries],
                "body": _body(entries, chosen, number),
                "position": f"3f2a9c00-0-17-{at}",
            }
        )
    return pa.RecordBatch.from_pylist(rows, READ_SCHEMA)


_FIELDS: Final[Sequence[tuple[str, Any]]] = (
    ("id", "string"),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("driver", "string"),
    ("number", "int"),
    ("price", "double"),
    ("paid", "boolean"),
    ("note", ["null", "string"]),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["a", "b", "c"]}),
    ("distance", "float"),
    ("count", "long"),
)


def _ride(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    defaults: dict[str, dict[str, Any]] = {"note": {"default": None}, "count": {"default": 0}, "extra": {"default": ""}}
    members = [{"name": name, "type": kind, **defaults.get(name, {})} for name, kind in fields]
    return {"type": "record", "name": "bench.Ride", "fields": members}


VERSIONS: Final = {
    "older": _ride(_FIELDS[:-1]),
    "same": _ride(_FIELDS),
    "newer": _ride((*_FIELDS, ("extra", "string"))),
}
"""Schemas that bodies are written with; the definition has ``same``."""


def framed_judge(*, registered: bool) -> Evaluator:
    """Return what judges records of a topic whose bodies are in frames, with or without a registry."""
    xid, key = f"{GROUP}/messages/ride", f"{GROUP}/messages/ride#dataschema"
    ride = Definition(
        xid, GROUP, protocol="KAFKA", dataschemaformat="Avro/1.11", dataschema=VERSIONS["same"], schemakey=key
    )
    documents = {key: {"format": None, "document": VERSIONS["same"]}}
    catalog = Catalog({xid: ride}, {GROUP: (xid,)}, schemas=documents)
    builder = ChannelBuilder(catalog)
    known = {
        number: {"schema": schema, "subjects": {"rides": number}} for number, schema in enumerate(VERSIONS.values())
    }
    frames = FrameSettings("confluent", known_ids(known) if registered else None)
    builder.add_definitions(f"{TOPIC_PREFIX}bench", [xid], frames)
    matcher = Matcher(builder.targets, builder.channels, PayloadValidation(catalog), "always", builder.tie_breaker())
    settings = _settings()
    outputs = OutputBuilder(matcher, Routes(settings), SizeLimits(settings))
    return Evaluator(matcher, outputs, {f"{TOPIC_PREFIX}bench": 0}, 2**30)


def framed_rows(version: str, chosen: Random) -> pa.RecordBatch:
    """Return a batch of records whose bodies are of a version of the schema."""
    schema, number = fastavro.parse_schema(VERSIONS[version]), list(VERSIONS).index(version)
    rows: list[dict[str, Any]] = []
    for at in range(BATCH):
        body = io.BytesIO()
        ride = {
            "id": f"{chosen.randrange(1 << 60):x}",
            "at": 1_780_000_000_000 + at,
            "driver": f"driver {chosen.randrange(1_000)}",
            "number": chosen.randrange(100_000),
            "price": chosen.random(),
            "paid": True,
            "note": None if chosen.random() < 0.5 else "x" * 10,
            "kind": "b",
            "distance": 1.5,
            "count": chosen.randrange(1 << 40),
            "extra": "abc",
        }
        fastavro.schemaless_writer(body, schema, ride)
        value = confluent(number, body.getvalue())
        place = {"topic": "bench", "partition": 0, "offset": at, "timestamp": 1_780_000_000_000}
        rows.append({"key": b"k%d" % at, "value": value, "headers": [{"key": "trace", "value": b"00-4bf9"}], **place})
    return pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)


@dataclass
class Bench:
    """One kind of sender, its batch, and the rates measured so far."""

    name: str
    judge: Evaluator
    rows: pa.RecordBatch
    kind: Kind = "inbox"
    rates: list[float] = field(default_factory=list)

    def check(self) -> None:
        """Fail unless every row is routed."""
        lists, _ = outcome_lists(self.kind, self.judge, self.rows)
        outcomes = lists.flatten()
        assert len(outcomes) == BATCH and outcomes.field("reason").null_count == BATCH, self.name

    def round(self) -> None:
        """Judge the batch once more."""
        begin = time.process_time()
        evaluate(self.kind, self.judge, self.rows)
        self.rates.append(BATCH / (time.process_time() - begin))


def benches(sizes: Sequence[int]) -> list[Bench]:
    """Return all kinds with so many definitions, and the first one left to the exact codec."""
    made: list[Bench] = []
    for size in sizes:
        for name, protocol, event, make in KINDS:
            judge = judge_of(protocol, [definition(number, protocol, event=event) for number in range(size)])
            made.append(Bench(f"{name}, {size:,d}", judge, rows_of(protocol, make, size)))
    name, protocol, _, make = KINDS[0]
    made.append(Bench(f"{name}, odd", made[0].judge, rows_of(protocol, make, sizes[0], odd=True)))
    made.append(Bench("Avro, unresolved", framed_judge(registered=False), framed_rows("same", Random(7)), "kafka"))
    for version in VERSIONS:
        rows = framed_rows(version, Random(7))
        made.append(Bench(f"Avro, {version}", framed_judge(registered=True), rows, "kafka"))
    return made


def report(measured: Sequence[Bench], rounds: int) -> str:
    """Return the table."""
    lines = [machine(), f"medians of {rounds} rounds, {BATCH:,d} rows a batch; pickled is what workers get", ""]
    lines.append(f"{'definitions':>24} {'rows/s':>9} us a row pickled kB")
    for each in measured:
        rate = statistics.median(each.rates)
        size = len(pickle.dumps(each.judge)) / 1000
        told = "" if rate >= GOAL else "   under the goal"
        lines.append(f"{each.name:24} {rate:9,.0f} {1e6 / rate:8.2f} {size:10,.0f}{told}")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its figures."""
    chosen = options(__doc__, rounds=15, definitions=[100])
    pa.set_cpu_count(1)
    measured = benches(chosen.definitions)
    for each in measured:
        each.check()
    for _ in range(chosen.rounds):
        for each in measured:
            each.round()
    say(report(measured, chosen.rounds))


if __name__ == "__main__":
    main()
