"""One write for all sinks sends what a write for each sends, to the byte, for records that no sane client sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catalog.model import Catalog, Relation
from router.evaluation.evaluator import Kind
from router.evaluation.outputs import EMPTY, sum_tallies
from router.evaluation.plan import Plan
from router.settings import settings_from_dict
from router.watching.metrics import Metrics
from router.writing.staging import BatchId
from router.writing.writer import BatchWriter
from tests.integration.test_match_equals_run import source
from tests.support import plain
from tests.support.evaluating import evaluated, single_write, tallies_of
from tests.support.generation import ENDPOINT
from tests.support.processes import KeptOutcomes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FAILED = "2026-01-02T03:04:05.000006+00:00"
BUS = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "out"}
DEAD = {"topic": "dead", "max_message_bytes": 65_536}


def to_topics(**sinks: dict[str, Any]) -> dict[str, Any]:
    """Return settings whose sinks are topics."""
    return plain.routed(Path("catalog.json"), {name: BUS | each for name, each in sinks.items()})


ONE = to_topics(bus={}, dead=DEAD)
SEVERAL = to_topics(
    bus={"topic": "out.{messagegroup}", "key": "{messageid}-{subject|none}-{endpointid}"},
    bare={"topic": "bare", "lineage": False, "key": "{context.a}"},
    dead={"topic": "dead.{reason}"},
) | {"routes": [{"when": {"attributes": {"type": "*1*"}}, "to": ["bare"]}, {"to": ["bus"]}]}
TIES = {**ONE, "match": {"ambiguous": "first"}}
RELATED = {**ONE}
UNTRACED = to_topics(bus={"lineage": False}, dead=DEAD)


def plan_of(catalog: Catalog, settings: dict[str, Any], folder: Path) -> Plan:
    return Plan(catalog, settings_from_dict({"sources": [{"endpoint": ENDPOINT}], **settings}, {}, folder))


def related(catalog: Catalog) -> Catalog:
    """Let every second definition answer the one before it, by its event's subject."""
    xids = sorted(catalog.definitions)
    relations = {
        xid: Relation(other, "reply" if place % 4 else "", "e.subject", "e.id")
        for place, (other, xid) in enumerate(pairwise(xids))
        if place % 2 == 0
    }
    definitions = {xid: replace(each, relation=relations.get(xid)) for xid, each in catalog.definitions.items()}
    return replace(catalog, definitions=definitions)


def as_sent(rows: list[dict[str, Any]]) -> list[str]:
    """Records as texts, in an order that does not matter."""
    return sorted(
        repr((row["topic"], row["key"], row["value"], [(each["key"], each["value"]) for each in row["headers"]]))
        for row in rows
    )


def cells() -> Iterator[Any]:
    """Give each kind of rows with each settings; some of them in every run."""
    named = {"one": ONE, "several": SEVERAL, "ties": TIES, "untraced": UNTRACED, "related": RELATED}
    for kind, seed in (("kafka", 7), ("inbox", 4)):
        for name, settings in named.items():
            often = ("several", "related") if kind == "kafka" else ("one",)
            marks = [] if name in often else [pytest.mark.full]
            yield pytest.param(kind, seed, settings, id=f"{kind}-{seed}-{name}", marks=marks)


@pytest.mark.parametrize(("kind", "seed", "settings"), list(cells()))
def test_one_write_sends_what_several_send(
    spark: SparkSession, tmp_path: Path, kind: Kind, seed: int, settings: dict[str, Any]
) -> None:
    catalog, lines, rows_of = source(spark, kind, seed, envelopeoptions={"mode": "structured"})
    frame = rows_of(lines)
    plan = plan_of(related(catalog) if settings is RELATED else catalog, settings, tmp_path)
    writer = BatchWriter(plan, Metrics())
    assert writer.is_single_write
    batch = BatchId(kind, "q", "g", 0, FAILED)
    records = single_write(frame, kind, plan).to_records(frame, FAILED).toArrow().to_pylist()
    decided = evaluated(frame, kind, plan.evaluator)
    kept = KeptOutcomes(decided, batch, plan)
    rejections = writer.new_rejections()
    writer.send_events(kept, batch, rejections)
    writer.send_dead_letters(kept.select_dead_letters(), batch, rejections)
    assert as_sent(records) == as_sent([row for rows in kept.sent.values() for row in rows])
    names = {each["key"] for row in records for each in row["headers"]}
    assert {"xrouter-letter", "xrouter-reason"} <= names
    assert "xrouter-message" in names or settings is UNTRACED
    assert "xrouter-spill" in names or settings is SEVERAL
    lineage = [each["value"] for row in records for each in row["headers"] if each["key"] == "xrouter-lineage"]
    members = {name for each in lineage for name in json.loads(each)}
    assert ("ambiguous" in members) is (settings is TIES)
    assert ({"relation", "relatedto"} <= members) is (settings is RELATED)
    contexts = [each["value"] for row in records for each in row["headers"] if each["key"] == "xrouter-context"]
    assert any(b'"correlation":' in text for text in contexts) is (settings is RELATED)


def test_each_attempt_has_its_own_letters_and_counts(spark: SparkSession, tmp_path: Path) -> None:
    catalog, lines, rows_of = source(spark, "kafka", 7)
    plan = plan_of(catalog, ONE, tmp_path)
    frame = rows_of(lines)
    tallies = tallies_of(frame)
    columns = single_write(frame, "kafka", plan, tallies)
    for count, failed in ((len(lines), "2026-01-02T03:04:05+00:00"), (len(lines) // 2, "2026-01-02T03:04:06+00:00")):
        tallies.value = {}
        records = columns.to_records(rows_of(lines[:count]), failed).toArrow().to_pylist()
        headers = [each for row in records for each in row["headers"]]
        letters = [each["value"].decode() for each in headers if each["key"] == "xrouter-failed"]
        tally = sum_tallies(tallies.value.values(), plan.evaluator.matcher.targets)
        assert set(letters) == {failed}
        empty = sum(each for (_, outcome, _), each in tally.records.items() if outcome == EMPTY)
        assert (tally.dead_letters, tally.total - empty) == (len(letters), len(records))
