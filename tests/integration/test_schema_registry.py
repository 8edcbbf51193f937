"""Records of five subjects and eight versions on one topic, by the ids that a real schema registry gave them.

Each lands in its own typed table with the reader's columns, none in another's, although the bytes of some fit others;
what nobody knows becomes a dead letter with its id. The registry is killed for a while: the batch waits, and nothing
is lost. A restart without it has the ids that are on the disk.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.conftest import Kafka, TopicFactory
from tests.support.apicurio import Apicurio
from tests.support.router import RouterProcess
from tests.support.tables import by_duckdb
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker

LIMIT: Final = 900.0
UNKNOWN: Final = 7_000_000
Body = Callable[[int], bytes]


def number(value: int) -> bytes:
    """An int or a long as Avro writes it."""
    return varint((value << 1) ^ (value >> 63))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def text(value: str) -> bytes:
    """A string as Avro writes it."""
    data = value.encode()
    return number(len(data)) + data


def record(name: str, *fields: Mapping[str, Any]) -> str:
    space, _, short = name.rpartition(".")
    return json.dumps({"type": "record", "name": short, "namespace": space, "fields": list(fields)})


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject: its schema, and the body of record *n*, behind what its frame says of the message."""

    schema: str
    body: Body
    indexes: bytes = b""


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject with its versions; the last is the definition's. ``row`` is what record *n* of a version reads as."""

    name: str
    kind: str
    form: str
    columns: str
    row: Callable[[int, int], Mapping[str, Any]]
    versions: tuple[Version, ...]

    @property
    def message(self) -> str:
        """The definition's name."""
        return self.name.rpartition(".")[2]


RIDER = {"name": "rider", "type": "string"}
PLACE = {"name": "place", "type": "string"}
BILL = 'syntax = "proto3"; package billing; message Refund { string why = 1; } message Bill { int64 cents = 1; %s}'
# A ride of version 1 and a stop of version 1 are the same bytes; a cart is also an order.
SUBJECTS: Final = (
    Subject(
        "fleet.Ride",
        "AVRO",
        "Avro",
        "STRUCT(fare BIGINT, rider VARCHAR, tip INTEGER)",
        lambda n, v: {"rider": f"rider {n}", "fare": n, "tip": 0 if v == 0 else n % 7},
        (
            Version(
                record("fleet.Ride", RIDER, {"name": "fare", "type": "int"}), lambda n: text(f"rider {n}") + number(n)
            ),
            # The order is another, a field is promoted, one is added with a default.
            Version(
                record(
                    "fleet.Ride",
                    {"name": "fare", "type": "long"},
                    RIDER,
                    {"name": "tip", "type": "int", "default": 0},
                ),
                lambda n: number(n) + text(f"rider {n}") + number(n % 7),
            ),
        ),
    ),
    Subject(
        "fleet.Stop",
        "AVRO",
        "Avro",
        "STRUCT(place VARCHAR, pause INTEGER, gate VARCHAR)",
        lambda n, v: {"place": f"place {n}", "pause": n, "gate": None if v == 0 else f"g{n}"},
        (
            Version(
                record("fleet.Stop", PLACE, {"name": "pause", "type": "int"}),
                lambda n: text(f"place {n}") + number(n),
            ),
            Version(
                record(
                    "fleet.Stop",
                    PLACE,
                    {"name": "pause", "type": "int"},
                    {"name": "gate", "type": ["null", "string"], "default": None},
                ),
                lambda n: text(f"place {n}") + number(n) + b"\x02" + text(f"g{n}"),
            ),
        ),
    ),
    Subject(
        "billing.Bill",
        "PROTOBUF",
        "Protobuf",
        "STRUCT(cents BIGINT, currency VARCHAR)",
        lambda n, v: {"cents": n + 1, "currency": "" if v == 0 else "EUR"},
        (
            Version(BILL % "", lambda n: b"\x08" + varint(n + 1), b"\x02\x02"),
            Version(BILL % "string currency = 2; ", lambda n: b"\x08" + varint(n + 1) + b"\x12\x03EUR", b"\x02\x02"),
        ),
    ),
    Subject(
        "shop.Order",
        "JSON",
        "JsonSchema/draft-07",
        "STRUCT(items BIGINT)",
        lambda n, v: {"items": n},
        (
            Version(
                json.dumps({"title": "shop.Order", "type": "object", "properties": {"items": {"type": "integer"}}}),
                lambda n: json.dumps({"items": n}).encode(),
            ),
        ),
    ),
    Subject(
        "shop.Cart",
        "JSON",
        "JsonSchema/draft-07",
        "STRUCT(items BIGINT)",
        lambda n, v: {"items": -n},
        (
            Version(
                json.dumps({"title": "shop.Cart", "type": "object", "properties": {"items": {"type": "integer"}}}),
                lambda n: json.dumps({"items": -n}).encode(),
            ),
        ),
    ),
)


def catalog(topic: str, servers: str) -> dict[str, Any]:
    """Definitions of one topic, with the last schema of each subject and no word of ids or registries."""
    schemas, messages = {}, {}
    for subject in SUBJECTS:
        schema = subject.versions[-1].schema
        document = schema if subject.kind == "PROTOBUF" else json.loads(schema)
        schemas[subject.message] = {"versions": {"1": {"format": subject.form, "schema": document}}}
        named = ":billing.Bill" if subject.kind == "PROTOBUF" else ""
        messages[subject.message] = {
            "protocol": "KAFKA",
            "dataschemaformat": subject.form,
            "dataschemauri": f"/schemagroups/s/schemas/{subject.message}{named}",
        }
    endpoint = {
        "usage": ["consumer"],
        "protocol": "KAFKA",
        "protocoloptions": {"endpoints": [{"uri": f"kafka://{servers}"}], "options": {"topic": topic}},
        "messagegroups": ["/messagegroups/g"],
    }
    return {
        "specversion": "1.0-rc2",
        "endpoints": {"all": endpoint},
        "messagegroups": {"g": {"messages": messages}},
        "schemagroups": {"s": {"schemas": schemas}},
    }


@dataclass(slots=True)
class Traffic:
    """What was sent so far: rows by definition, and unknown ids; ``sent`` is all of it."""

    producer: Producer
    topic: str
    ids: Mapping[str, list[int]]
    rows: dict[str, Counter[str]] = field(default_factory=lambda: {each.message: Counter() for each in SUBJECTS})
    unknown: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    def send(self, count: int, *, versions: Callable[[Subject], Iterator[int]], strangers: int) -> None:
        """Send *count* records of all subjects, of these versions, and that many of *strangers* with unknown ids."""
        choice = random.Random(self.sent)
        choices = [(subject, version) for subject in SUBJECTS for version in versions(subject)]
        for place in range(count):
            n = self.sent
            if place < strangers:
                unknown = UNKNOWN + place % 3
                self.unknown[str(unknown)] += 1
                body = struct.pack(">bI", 0, unknown) + text(f"rider {n}") + number(n)
            else:
                subject, version = choice.choice(choices)
                way = subject.versions[version]
                self.rows[subject.message][spelled(subject.row(n, version))] += 1
                body = struct.pack(">bI", 0, self.ids[subject.name][version]) + way.indexes + way.body(n)
            self.producer.produce(self.topic, body)
            self.producer.poll(0)
            self.sent += 1
        assert self.producer.flush(120) == 0


def spelled(row: Mapping[str, Any]) -> str:
    return json.dumps(dict(row), sort_keys=True)


def first(subject: Subject) -> Iterator[int]:
    yield 0


def every(subject: Subject) -> Iterator[int]:
    yield from range(len(subject.versions))


@pytest.mark.parametrize(
    ("records", "away"), [(1_500, 0.0), pytest.param(100_000, 60.0, marks=pytest.mark.full)], ids=["small", "full"]
)
def test_records_reach_the_table_of_their_schema(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path, records: int, away: float
) -> None:
    registry = Apicurio(tmp_path / "apicurio")
    registry.start()
    try:
        ids = {
            subject.name: [registry.register(subject.name, each.schema, subject.kind) for each in subject.versions]
            for subject in SUBJECTS
        }
        topic = topic_factory("all", 3)
        (router.folder / "catalog.json").write_text(json.dumps(catalog(topic, kafka.bootstrap)))
        router.configure(settings(router.folder, registry.url))
        traffic = Traffic(Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0}), topic, ids)
        traffic.send(records // 3, versions=first, strangers=records // 100)
        router.start()
        settle(router, traffic)

        registry.kill()
        killed = time.monotonic()
        traffic.send(records // 3, versions=every, strangers=records // 100)
        wait_until(lambda: "schema registry lake at" in json.dumps(router.readiness()), LIMIT, lambda: told(router))
        wait_until(
            lambda: router.log.count("batch blocked") >= 1 and time.monotonic() - killed >= away,
            LIMIT,
            lambda: told(router),
        )
        assert router.total("xrouter_records_total", outcome="dead-letter") == records // 100
        assert router.total("xrouter_query_held", sink="schema-registry") == 1
        registry.start()
        settle(router, traffic)
        assert "batch resumed" in router.log
        assert "schema registry" not in json.dumps(router.readiness())
        assert router.stop() == 0, told(router)
    finally:
        registry.kill()

    traffic.send(records - traffic.sent, versions=every, strangers=records // 100)
    held = router.log.count("batch blocked")
    router.start()
    settle(router, traffic)
    assert router.log.count("batch blocked") == held
    assert router.stop() == 0, told(router)
    check(router.folder, traffic)


def settings(folder: Path, url: str) -> dict[str, Any]:
    return {
        "catalog": {"source": str(folder / "catalog.json"), "network": False},
        "schema_registries": {"lake": {"url": url, "timeout": "5s"}},
        "match": {"validate": "always"},
        "sources": [{"endpoint": "/endpoints/all"}],
        "sinks": {
            "typed": {"type": "table", "layout": "definition", "path": str(folder / "typed")},
            "dead": {"type": "jsonl", "path": str(folder / "dead")},
        },
        "routes": [{"to": ["typed"]}],
        "dead_letters": {"sinks": ["dead"]},
        "trigger": "200ms",
    }


def settle(router: RouterProcess, traffic: Traffic) -> None:
    """Wait until all that was sent since the router's start has an outcome."""
    unknown = sum(traffic.unknown.values())
    done = lambda: lines(router.folder / "dead") >= unknown and rows_in(router.folder) >= traffic.sent - unknown  # noqa: E731
    wait_until(done, LIMIT, lambda: told(router))


def told(router: RouterProcess) -> str:
    return f"all records; {json.dumps(router.readiness())}\n{router.log[-4000:]}"


def lines(folder: Path) -> int:
    return sum(file.read_text().count("\n") for file in folder.glob("*.jsonl"))


def rows_in(folder: Path) -> int:
    tables = (folder / "typed" / "g" / subject.message for subject in SUBJECTS)
    logs = (DeltaTable(table).get_add_actions() for table in tables if (table / "_delta_log").is_dir())
    return sum(sum(pa.table(added)["num_records"].to_pylist()) for added in logs)


def check(folder: Path, traffic: Traffic) -> None:
    """Hold tables and dead letters against what was sent."""
    assert {path.name for path in (folder / "typed" / "g").iterdir()} == {subject.message for subject in SUBJECTS}
    for subject in SUBJECTS:
        content = by_duckdb(folder / "typed" / "g" / subject.message)
        assert content.types["payload"] == subject.columns
        found = Counter(spelled(row["payload"]) for row in content.rows)
        assert found == traffic.rows[subject.message], subject.name
        assert {row["schema_id"] for row in content.rows} == {str(each) for each in traffic.ids[subject.name]}
    files = (folder / "dead").glob("*.jsonl")
    letters = [json.loads(line) for file in files for line in file.read_text().split("\n") if line]
    assert Counter(letter["reason"] for letter in letters) == {"undecodable": sum(traffic.unknown.values())}
    named = Counter(next(each for each in traffic.unknown if each in letter["detail"]) for letter in letters)
    assert named == traffic.unknown
