"""Records of five subjects and eight versions on one topic, by the ids that a real schema registry gave them.

Each lands in its own typed table with the reader's columns, none in another's, although the bytes of some fit others;
what nobody knows becomes a dead letter with its id. The registry is killed for a while: the batch waits, and nothing
is lost. A restart without it has the ids that are on the disk.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.apicurio import Apicurio
from tests.support.cases import read_cases
from tests.support.router import RouterProcess
from tests.support.schemas import confluent, message_class, written
from tests.support.tables import by_duckdb
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker

LIMIT: Final = 900.0
UNKNOWN: Final = 7_000_000


def filled(row: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return the row of record *n*."""
    texts = {name: text.replace("$n", str(n)) if isinstance(text, str) else text for name, text in row.items()}
    return {name: n if row[name] == "$n" else text for name, text in texts.items()}


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject: its schema, what records are written as, and what they read as by the last version."""

    kind: str
    schema: Any
    row: Mapping[str, Any]
    reads: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The schema as a registry has it."""
        return self.schema if isinstance(self.schema, str) else json.dumps(self.schema)

    def body(self, n: int) -> bytes:
        """Return the body of record *n*."""
        row = filled(self.row, n)
        if self.kind == "PROTOBUF":
            return bytes(message_class(self.schema, "Bill")(**row).SerializeToString())
        form = {"plain": row} if self.kind == "AVRO" else {"body": json.dumps(row)}
        return written(form, self.kind, self.schema, "")

    def framed(self, schema_id: int, n: int) -> bytes:
        """Return it behind an id; a bill is the second message of its file."""
        return confluent(schema_id, self.body(n), (1,) if self.kind == "PROTOBUF" else None)


class Subject:
    """A subject with its versions; the last is the definition's, whose name is ``message``."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.name, self.kind, self.form, self.columns = (
            told[each] for each in ("subject", "kind", "format", "columns")
        )
        self.message = self.name.rpartition(".")[2]
        self.versions = [Version(self.kind, **each) for each in told["versions"]]

    def register(self, registry: Apicurio) -> list[int]:
        """Register all versions, and return their ids."""
        return [registry.register(self.name, each.text, self.kind) for each in self.versions]


SUBJECTS: Final = [
    Subject(each) for each in read_cases(Path(__file__).resolve().parents[1] / "cases" / "subjects.yaml")
]


def catalog(topic: str, servers: str) -> dict[str, Any]:
    """Definitions of one topic, with the last schema of each subject and no word of ids or registries."""
    schemas, messages = {}, {}
    for subject in SUBJECTS:
        document = subject.versions[-1].schema
        schemas[subject.message] = {"versions": {"1": {"format": subject.form, "schema": document}}}
        named = ":billing.Bill" if subject.kind == "PROTOBUF" else ""
        messages[subject.message] = {
            "protocol": "KAFKA",
            "dataschemaformat": subject.form,
            "dataschemauri": f"/schemagroups/s/schemas/{subject.message}{named}",
        }
    endpoint = plain.endpoint("KAFKA", {"topic": topic}, "g", uri=f"kafka://{servers}")
    return {**plain.catalog({"all": endpoint}, g=messages), "schemagroups": {"s": {"schemas": schemas}}}


@dataclass(slots=True)
class Traffic:
    """What was sent so far: rows by definition, and unknown ids; ``sent`` is all of it."""

    producer: Producer
    topic: str
    ids: Mapping[str, list[int]]
    rows: dict[str, Counter[str]] = field(default_factory=lambda: {each.message: Counter() for each in SUBJECTS})
    unknown: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    def send(self, count: int, *, newest: bool = True, strangers: int) -> None:
        """Send *count* records of all subjects, of all versions or the first, *strangers* of them with unknown ids."""
        choice = random.Random(self.sent)
        choices = [(each, at) for each in SUBJECTS for at in range(len(each.versions) if newest else 1)]
        for place in range(count):
            n = self.sent
            subject, at = (SUBJECTS[0], 0) if place < strangers else choice.choice(choices)
            known = self.ids[subject.name][at]
            if place < strangers:
                known = UNKNOWN + place % 3
                self.unknown[str(known)] += 1
            else:
                self.rows[subject.message][spelled(filled(subject.versions[at].reads, n))] += 1
            self.producer.produce(self.topic, subject.versions[at].framed(known, n))
            self.producer.poll(0)
            self.sent += 1
        assert self.producer.flush(120) == 0


def spelled(row: Mapping[str, Any]) -> str:
    return json.dumps(dict(row), sort_keys=True)


@pytest.mark.parametrize(
    ("records", "away"), [(1_500, 0.0), pytest.param(100_000, 60.0, marks=pytest.mark.full)], ids=["small", "full"]
)
def test_records_reach_the_table_of_their_schema(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path, records: int, away: float
) -> None:
    def until(condition: Callable[[], object]) -> None:
        told = lambda: f"{json.dumps(router.readiness())}\n{router.log[-4000:]}"  # noqa: E731
        wait_until(condition, LIMIT, told)

    def settle() -> None:
        """Wait until all that was sent has an outcome."""
        unknown = sum(traffic.unknown.values())
        until(lambda: len(plain.lines_of(router.folder / "dead")) >= unknown)
        until(lambda: rows_in(router.folder) >= traffic.sent - unknown)

    with Apicurio(tmp_path / "apicurio") as registry:
        ids = {subject.name: subject.register(registry) for subject in SUBJECTS}
        topic = topic_factory("all", 3)
        router.configure(settings(router.folder, registry.url, catalog(topic, kafka.bootstrap)))
        traffic = Traffic(Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0}), topic, ids)
        traffic.send(records // 3, newest=False, strangers=records // 100)
        router.start()
        settle()

        registry.kill()
        killed = time.monotonic()
        traffic.send(records // 3, strangers=records // 100)
        until(lambda: "schema registry lake at" in json.dumps(router.readiness()))
        until(lambda: router.log.count("batch blocked") >= 1 and time.monotonic() - killed >= away)
        assert router.total("xrouter_records_total", outcome="dead-letter") == records // 100
        assert router.total("xrouter_query_held", sink="schema-registry") == 1
        registry.start()
        settle()
        assert "batch resumed" in router.log
        assert "schema registry" not in json.dumps(router.readiness())
        assert router.stop() == 0, router.log[-3000:]

    traffic.send(records - traffic.sent, strangers=records // 100)
    held = router.log.count("batch blocked")
    router.start()
    settle()
    assert router.log.count("batch blocked") == held
    assert router.stop() == 0, router.log[-3000:]
    check(router.folder, traffic)


def settings(folder: Path, url: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return plain.routed(
        plain.write(folder, document),
        {**plain.tables(folder, "typed", layout="definition"), **plain.lines(folder, "dead")},
        schema_registries={"lake": {"url": url, "timeout": "5s"}},
        match={"validate": "always"},
        sources=[{"endpoint": "/endpoints/all"}],
        trigger="200ms",
    )


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
    letters = plain.lines_of(folder / "dead")
    assert Counter(letter["reason"] for letter in letters) == {"undecodable": sum(traffic.unknown.values())}
    named = Counter(next(each for each in traffic.unknown if each in letter["detail"]) for letter in letters)
    assert named == traffic.unknown
