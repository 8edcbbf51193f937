"""A record that is replayed after its catalog was fixed leaves as it would have left, had the catalog been so then.

Through the very columns of ``run`` and of a replay, without brokers: Kafka keys, values and headers, rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from bindings.inbox.source import SPARK_SCHEMA
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from catalog.record import Record
from router.dead_letters.dead_letter import DeadLetter, rows_of
from router.dead_letters.reading import read_dead_letters
from router.evaluation.evaluator import Kind
from router.evaluation.plan import Plan
from router.replay.batches import evaluate_letters
from router.settings import settings_from_dict
from router.watching.metrics import Metrics
from router.writing.staging import BatchId
from router.writing.writer import BatchWriter
from tests.support import plain
from tests.support.cases import bytes_of, read_cases
from tests.support.evaluating import KAFKA_SCHEMA, evaluated, inbox_row, kafka_row
from tests.support.processes import KeptOutcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
GROUP = "/messagegroups/g"
RECEIVED = datetime(2026, 1, 2, 3, 4, 5, 123_450, tzinfo=UTC)
RECORDS: dict[str, list[tuple[dict[str, Any], bytes | None]]] = {
    protocol: [(each["native"], None if each["body"] is None else bytes_of(each["body"])) for each in records]
    for protocol, records in read_cases(Path(__file__).resolve().parents[1] / "cases/replayed.yaml").items()
}
PUSHED = tuple(protocol for protocol in RECORDS if protocol != "KAFKA")
PLACES = {"KAFKA": "topic", "HTTP": "path", "AMQP/1.0": "properties.to", "NATS": "subject"}
MAPPED = {"kafka": {"in-0-1", "in-0-2", "in-0-5"}, "inbox": {"m-1", "S-17", "HTTP-0", "MQTT/5.0-0", "MQTT/3.1.1-0"}}
"""Ids that events made of native records have: of the record itself, else of its place in the source."""


def endpoint_of(protocol: str) -> str:
    """Return the endpoint that records of a protocol come by."""
    return f"/endpoints/{protocol.replace('/', '-')}"


def catalog(protocols: Sequence[str], *, fixed: bool) -> Catalog:
    """Return a catalog that takes no record of these protocols, or once fixed every one."""
    nobody = (Property("source", "urireference", "urn:nobody", required=True),)
    definitions = [Definition(f"{GROUP}/messages/event", GROUP, CLOUDEVENTS, envelopemetadata=() if fixed else nobody)]
    for protocol in protocols:
        place = Property(PLACES.get(protocol, "topic_name"), "string", None if fixed else "nowhere", required=True)
        made = (Property("type", "string", "made", required=True),)
        xid = f"{GROUP}/messages/{protocol.replace('/', '-')}"
        definitions.append(
            Definition(xid, GROUP, CLOUDEVENTS, protocol, envelopemetadata=made, protocoloptions=(place,))
        )
    members = tuple(definition.xid for definition in definitions)
    options = {"topic": "in", "node": "in", "subject": "in", "path": "/in"}
    endpoints = [
        Endpoint(endpoint_of(each), ("consumer",), None, each, {}, ("tcp://broker:1",), options, (), members)
        for each in protocols
    ]
    return Catalog(
        {definition.xid: definition for definition in definitions},
        {GROUP: members},
        {endpoint.xid: endpoint for endpoint in endpoints},
    )


def plan_of(folder: Path, catalog: Catalog) -> Plan:
    """Return the plan that sends every event to Kafka, in both modes, and to a table."""
    sources = [
        {"endpoint": each.xid, **({"addresses": ["in"]} if each.protocol not in ("KAFKA", "HTTP") else {})}
        for each in catalog.endpoints.values()
    ]
    sinks = plain.topics("broker:9092", binary="binary.{messageid}", structured="structured")
    sinks = {name: {**each, "mode": name} for name, each in sinks.items()}
    sinks |= plain.tables(folder, "lake") | plain.lines(folder, "dead")
    told = plain.routed(folder, sinks, sources=sources, state=str(folder / "state"))
    return Plan(catalog, settings_from_dict(told, {}, folder))


def write(plan: Plan, rows: DataFrame, kind: Kind, query: str) -> dict[str, list[dict[str, Any]]]:
    """Judge rows and write them as ``run`` does; returns what went to Kafka."""
    judge = rows.sparkSession.sparkContext.broadcast(plan.evaluator)
    decided = evaluated(rows, kind, plan.evaluator, query=query, arrived=True)
    batch = BatchId(kind, query, f"g-{query}", 0, "2026-01-02T03:04:06.000000Z")
    outcomes = KeptOutcomes(decided, batch, plan, judge=judge)
    writer = BatchWriter(plan, Metrics())
    rejections = writer.new_rejections()
    writer.send_events(outcomes, batch, rejections)
    if kind != "letters":
        writer.send_dead_letters(outcomes.select_dead_letters(rejections), batch, rejections)
    return outcomes.sent


def source_rows(spark: SparkSession, kind: Kind) -> DataFrame:
    """Return the records as their source gives them."""
    if kind == "inbox":
        made = [
            inbox_row(Record(each, native, body, endpoint_of(each)), f"{each}-{at}", RECEIVED.isoformat())
            for each in PUSHED
            for at, (native, body) in enumerate(RECORDS[each])
        ]
        return spark.createDataFrame(made, SPARK_SCHEMA).coalesce(1)
    records = (Record("KAFKA", native, body) for native, body in RECORDS["KAFKA"])
    rows = [kafka_row(each, at, 1_767_323_045_123) for at, each in enumerate(records)]
    return spark.createDataFrame(rows, KAFKA_SCHEMA).coalesce(1)


def table(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the table, in order of position."""
    rows: list[dict[str, Any]] = DeltaTable(str(folder / "lake")).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: str(row["position"]))


@pytest.mark.parametrize("kind", ["kafka", "inbox"])
def test_a_replay_gives_what_the_record_would_have_given(spark: SparkSession, kind: Kind, tmp_path: Path) -> None:
    protocols = ("KAFKA",) if kind == "kafka" else PUSHED
    rows = source_rows(spark, kind)
    before = plan_of(tmp_path / "one", catalog(protocols, fixed=False))
    assert not any(write(before, rows, kind, "q").values())
    letters = list(read_dead_letters(before.settings))
    assert {letter.reason for letter in letters} == {"no-match"}
    assert {letter.endpoint for letter in letters} == set(map(endpoint_of, protocols))

    fixed = catalog(protocols, fixed=True)
    wanted = write(plan_of(tmp_path / "two", fixed), rows, kind, "q")
    now = plan_of(tmp_path / "three", fixed)
    given = write(now, spark.createDataFrame(rows_of(letters)).coalesce(1), "letters", "replay")
    assert given == wanted
    assert len(given["binary"]) == len(letters)
    assert table(tmp_path / "three") == table(tmp_path / "two")
    assert {row["id"] for row in table(tmp_path / "three") if row["type"] == "made"} == MAPPED[kind]
    told = {row["position"]: row["message"] for row in table(tmp_path / "three")}
    assert [verdict.message for verdict in evaluate_letters(now, letters)] == [
        told[letter.position] for letter in letters
    ]


def test_letters_keep_their_record_in_its_own_form() -> None:
    letter = DeadLetter("1", "no-match", "", (), None, "KAFKA", {"topic": "t"}, b"x", "e", "t-0-1", RECEIVED, None, 1)
    assert letter.to_record() == Record("KAFKA", {"topic": "t"}, b"x", None, "2026-01-02T03:04:05.123450Z", "t-0-1")
