"""Records as they leave a Kafka sink, binary and structured: through the very columns of ``run``, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bindings.inbox.source import SPARK_SCHEMA
from bindings.protocols import BINDINGS
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint
from catalog.record import Record
from router.evaluation.evaluator import Kind, TallyAccumulator
from router.evaluation.outputs import Tally
from router.evaluation.plan import Evaluator, Plan
from router.evaluation.stages import HEADERS_TYPE, evaluated, unified_outcomes
from router.settings import KafkaSink, settings_from_dict
from router.writing.outcomes import SparkOutcomes
from router.writing.staging import BatchId
from router.writing.writer import BatchWriter

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

ENDPOINT: Final = "/endpoints/e"
GROUP: Final = "/messagegroups/g"
ANY_EVENT: Final = Definition(f"{GROUP}/messages/any", GROUP, envelope=CLOUDEVENTS)
RECEIVED: Final = "2026-01-02T03:04:05.000000Z"
MODES: Final = ("binary", "structured")
_KAFKA_ROW: Final = (
    f"key binary, value binary, topic string, partition int, offset long, timestamp long, headers {HEADERS_TYPE}"
)


@dataclass(frozen=True)
class Sent:
    """What a Kafka client would send. ``headers`` are the event's and those passed on, without lineage."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]

    @property
    def named(self) -> dict[str, bytes]:
        """The headers by name, each of which occurs once."""
        assert len({name for name, _ in self.headers}) == len(self.headers), self.headers
        return dict(self.headers)


def any_event(protocol: str) -> Catalog:
    """A catalog whose one endpoint, of that protocol, takes every CloudEvent."""
    uri = "kafka://broker:9092" if protocol == "KAFKA" else "http://router/in"
    endpoint = Endpoint(ENDPOINT, ("consumer",), None, protocol, {}, (uri,), {"topic": "in"}, (), (ANY_EVENT.xid,))
    return Catalog({ANY_EVENT.xid: ANY_EVENT}, {GROUP: (ANY_EVENT.xid,)}, {ENDPOINT: endpoint})


class KeptOutcomes(SparkOutcomes):
    """Outcomes that keep what Spark would send to Kafka, by the name of the sink."""

    def __init__(
        self,
        rows: DataFrame,
        batch: BatchId,
        plan: Plan,
        outgoing: DataFrame | None = None,
        judge: Broadcast[Evaluator] | None = None,
    ) -> None:
        super().__init__(lambda: rows, batch, plan, Tally, outgoing=outgoing, judge=judge)
        self.kept: dict[str, DataFrame] = {}

    def _save(self, rows: DataFrame, sink: KafkaSink, name: str) -> None:
        self.kept[name] = rows

    @property
    def sent(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each sink."""
        return {name: rows.toArrow().to_pylist() for name, rows in self.kept.items()}


def leave(
    spark: SparkSession, folder: Path, records: Sequence[Record], catalog: Catalog | None = None
) -> dict[str, list[Sent]]:
    """Return what leaves for Kafka or HTTP records, all of one protocol, by mode; every event must be routed."""
    protocol = records[0].protocol
    sinks = {name: {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": name, "mode": name} for name in MODES}
    sinks["dead"] = {**sinks["binary"], "topic": "dead"}
    told = {
        "sources": [{"endpoint": ENDPOINT}],
        "sinks": sinks,
        "routes": [{"to": list(MODES)}],
        "dead_letters": {"sinks": ["dead"]},
    }
    plan = Plan(catalog or any_event(protocol), settings_from_dict(told, {}, folder))
    kafka = protocol == "KAFKA"
    rows = [_kafka_row(*each) if kafka else _inbox_row(*each) for each in enumerate(records)]
    frame = spark.createDataFrame(rows, _KAFKA_ROW if kafka else SPARK_SCHEMA).coalesce(1)
    tallies = spark.sparkContext.accumulator({}, TallyAccumulator())
    kind: Kind = "kafka" if kafka else "inbox"
    rows_out = unified_outcomes(evaluated(frame, kind, spark.sparkContext.broadcast(plan.judge), tallies), kind, "q")
    batch = BatchId(kind, "q", "g", 0, RECEIVED)
    outcomes = KeptOutcomes(rows_out, batch, plan)
    writer = BatchWriter(plan, lambda sink, result: None)
    writer.send_events(outcomes, batch)
    writer.send_letters(outcomes.letters(), batch)
    sent = outcomes.sent
    assert not sent["dead"], sent["dead"]
    return {mode: [_sent(row) for row in sent[mode]] for mode in MODES}


def _sent(row: dict[str, Any]) -> Sent:
    headers = [(each["key"], each["value"]) for each in row["headers"] if not each["key"].startswith("xrouter-")]
    return Sent(row["key"], row["value"], headers)


def _kafka_row(number: int, record: Record) -> tuple[Any, ...]:
    parts = BINDINGS["KAFKA"].parts(record.native)
    headers = [(part.key.removeprefix("headers."), part.value) for part in parts if part.key.startswith("headers.")]
    key = next((part.value for part in parts if part.key == "key"), None)
    return (key, record.body, "in", 0, number, 1_700_000_000_123, headers)


def _inbox_row(number: int, record: Record) -> tuple[Any, ...]:
    parts = [(part.key, part.value, part.kind) for part in BINDINGS[record.protocol].parts(record.native)]
    received = datetime.fromisoformat(RECEIVED.replace("Z", "+00:00"))
    return (ENDPOINT, record.protocol, received, parts, record.body, str(number))


def at_endpoint(record: Record) -> Record:
    """Return the record as of the endpoint that takes every event."""
    return replace(record, endpoint=ENDPOINT)
