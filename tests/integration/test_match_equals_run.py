"""`xrouter match` and `xrouter run` give the same outcomes on the same records, however odd (issue: done when 5)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from bindings.inbox.source import SPARK_SCHEMA
from bindings.kafka.binding import split_row
from bindings.protocols import BINDINGS
from catalog.findings import RecordError
from catalog.model import Catalog, Endpoint
from catalog.record import parse_record
from router.evaluation.evaluator import Kind
from router.evaluation.plan import Plan
from router.matching.records import RecordMatcher
from router.matching.schema_validation import Validation
from router.settings import settings_from_dict
from router.watching.metrics import Metrics
from router.writing.writer import BatchWriter
from tests.support import plain
from tests.support.cases import bytes_of, read_cases
from tests.support.evaluating import (
    KAFKA_SCHEMA,
    RECEIVED,
    evaluated,
    in_form_of_match,
    inbox_row,
    kafka_row,
    single_write,
    with_events,
)
from tests.support.generation import ENDPOINT, random_catalog, random_record
from tests.support.reference import Reference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
EACH = 900
"""Records of one catalog: below the number of dead letters of one batch that are explained."""
MEMBERS = {
    "KAFKA": frozenset({"key", "key_base64", "headers"}),
    "HTTP": frozenset({"method", "path", "query", "headers"}),
}
CORE = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
_ROWS = read_cases(Path(__file__).resolve().parents[1] / "cases/hostile/rows.yaml")["match"]
BODIES = [bytes_of(each).decode() for each in _ROWS["bodies"]]
HEADERS: list[dict[str, Any]] = [
    {**each, "value": bytes_of(each["value"]).decode()} if isinstance(each.get("value"), dict) else each
    for each in _ROWS["headers"]
]


def make_odd(rng: Random, record: dict[str, Any]) -> None:
    """Do to a record what no sane client does: one thing or two, among them structured bodies of odd JSON."""
    headers: list[dict[str, Any]] = record["native"].setdefault("headers", [])
    form = rng.random()
    if form < 0.35:
        headers.insert(rng.randint(0, len(headers)), rng.choice(HEADERS))
    elif form < 0.6:
        media = rng.choice(
            ("application/cloudevents+json", "application/json", None, "application/cloudevents-batch+json")
        )
        headers[:] = [{"name": "content-type", "value": media}] if media else []
        event = json.dumps(
            {**CORE, **rng.choice(({}, {"datacontenttype": "text/plain"}, {"n": 7, "b": True, "x": [1]}))}
        )
        body = event[:-1] + f', "data": {rng.choice(BODIES)}' + "}"
        record["body"] = f"[{event},{body}, 3, {event}]" if media and "batch" in media else body
        record.pop("body_base64", None)
    elif form < 0.7:
        record["native"].pop("key", None)
        record["native"]["key_base64"] = base64.b64encode(rng.randbytes(3)).decode()
    elif form < 0.8:
        record["body"] = rng.choice(BODIES)
        record.pop("body_base64", None)


def lines_of(rng: Random, catalog: Catalog, protocol: str) -> list[str]:
    """Records of one protocol as lines of JSON."""
    members = MEMBERS[protocol]
    lines: list[str] = []
    while len(lines) < EACH:
        record = random_record(rng, catalog, (protocol,))
        record["native"] = {name: value for name, value in record["native"].items() if name in members}
        if not isinstance(record["native"].get("headers", []), list):
            continue
        if rng.random() < 0.5:
            make_odd(rng, record)
        record |= {"protocol": protocol, "time": RECEIVED}
        record["native"] = {name: value for name, value in record["native"].items() if name in members}
        if "key_base64" in record["native"]:
            record["native"].pop("key", None)
            record["native"]["key_base64"] = base64.b64encode(rng.randbytes(2)).decode()
        if protocol == "KAFKA":
            record["native"] |= {"topic": "in", "partition": 0, "offset": len(lines), "timestamp": 1_700_000_000_123}
        if is_record(line := json.dumps(record)):
            lines.append(line)
    return lines


def is_record(line: str) -> bool:
    """Whether a client could have sent it; a line that could not is for ``match`` alone."""
    try:
        record = parse_record(line)
        BINDINGS[record.protocol].split(record.native)
    except RecordError:
        return False
    return True


def plan_of(catalog: Catalog, folder: Path, validation: Validation = "ambiguous") -> Plan:
    sinks = plain.topics("broker:9092", bus="bus", dead="dead")
    told = plain.routed(folder, sinks, sources=[{"endpoint": ENDPOINT}], match={"validate": validation})
    return Plan(catalog, settings_from_dict(told, {}, folder))


def catalog_for(seed: int, protocol: str, **endpoint: Any) -> Catalog:
    """A random catalog whose endpoint is a channel of that protocol, and whose definitions mostly fit it."""
    catalog = random_catalog(Random(seed), 25)
    fitted = {
        xid: replace(each, protocol=None, protocoloptions=()) if each.protocol not in (None, protocol) else each
        for xid, each in catalog.definitions.items()
    }
    made = Endpoint(
        xid=ENDPOINT,
        usage=("consumer",),
        protocol=protocol,
        uris=("kafka://broker:9092" if protocol == "KAFKA" else "http://router/in",),
        options={"topic": "in"},
        candidates=tuple(fitted),
        **endpoint,
    )
    return replace(catalog, definitions=fitted, endpoints={ENDPOINT: made})


def source(
    spark: SparkSession, kind: Kind, seed: int, **endpoint: Any
) -> tuple[Catalog, list[str], Callable[[Sequence[str]], DataFrame]]:
    """A random catalog, records for it, and what makes rows of a source of some of them."""
    protocol = "KAFKA" if kind == "kafka" else "HTTP"
    catalog = catalog_for(seed, protocol, **endpoint)

    def frame(lines: Sequence[str]) -> DataFrame:
        records = [replace(parse_record(line), endpoint=ENDPOINT) for line in lines]
        if kind == "kafka":
            return spark.createDataFrame([kafka_row(each) for each in records], KAFKA_SCHEMA)
        return spark.createDataFrame([inbox_row(*each[::-1]) for each in enumerate(records)], SPARK_SCHEMA)

    return catalog, lines_of(Random(seed), catalog, protocol), frame


def by_match(catalog: Catalog, lines: list[str], validation: Validation = "ambiguous") -> list[dict[str, Any]]:
    """What `match` says, one entry per event, with the bytes that leave."""
    reference = Reference(catalog, endpoint=ENDPOINT)
    told: list[dict[str, Any]] = []
    matcher = RecordMatcher(catalog, endpoint=ENDPOINT, validation=validation)
    for number, (line, outcome) in enumerate(zip(lines, matcher.decide([*lines]), strict=True)):
        events = outcome["events"] if outcome["outcome"] == "batch" else [outcome]
        for place, (event, (data, raw)) in enumerate(zip(events, reference.bodies(line), strict=True)):
            body = data if event["outcome"] == "routed" else raw
            told.append({**event, "row": number, "place": place, "body": body})
    return told


def by_run(outcomes: DataFrame, kind: Kind) -> list[dict[str, Any]]:
    """What `run` makes of the same records, in the same order and form."""
    rows = [{**row, **row["m"]} for row in with_events(outcomes, kind)]
    told = [in_form_of_match(row) for row in rows]
    for row, one in zip(rows, told, strict=True):
        one["row"] = row["raw"]["offset"] if kind == "kafka" else int(row["raw"]["position"])
        one["place"] = row["position_in_batch"] or 0
        if row["sent"] is not None:
            parts = split_row({"topic": "out", "headers": row["sent"]})
            assert dict(BINDINGS["KAFKA"].read_envelope(parts, None, lambda: False).attributes) == row["attributes"]
    return sorted(told, key=lambda one: (one["row"], one["place"]))


def same(lines: list[str], matched: list[dict[str, Any]], ran: list[dict[str, Any]]) -> set[str]:
    """Hold the two against each other; returns the outcomes and reasons met."""
    for one, other in zip(matched, ran, strict=False):
        assert one == other, f"{lines[one['row']][:3000]}\nmatch: {str(one)[:3000]}\nrun:   {str(other)[:3000]}"
    assert len(matched) == len(ran)
    return {one.get("reason", one["outcome"]) for one in matched}


@pytest.mark.parametrize(
    ("kind", "seed", "validation"),
    [
        ("kafka", 8, "always"),
        pytest.param("kafka", 7, "ambiguous", marks=pytest.mark.full),
        pytest.param("kafka", 2, "never", marks=pytest.mark.full),
        ("inbox", 4, "ambiguous"),
    ],
)
def test_both_give_the_same_outcomes(
    spark: SparkSession, tmp_path: Path, kind: Kind, seed: int, validation: Validation
) -> None:
    options = {"envelopeoptions": {"mode": "structured"}} if seed != 2 else {}
    catalog, lines, frame = source(spark, kind, seed, **options)
    outcomes = evaluated(frame(lines), kind, plan_of(catalog, tmp_path, validation).evaluator)
    met = same(lines, by_match(catalog, lines, validation), by_run(outcomes, kind))
    assert {"routed", "invalid-cloudevent", "undecodable"} <= met
    assert met & {"no-match", "ambiguous"}
    assert kind == "inbox" or ("schema-violation" in met) is (validation != "never")


def test_one_pass_has_one_python_node_and_no_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    catalog, lines, frame = source(spark, "kafka", 1)
    plan = plan_of(catalog, tmp_path)
    assert BatchWriter(plan, Metrics()).is_single_write
    rows = frame(lines[:10])
    written = single_write(rows, "kafka", plan).to_records(rows, "2026-01-02T03:04:05Z")
    physical = written._jdf.queryExecution().executedPlan().toString()
    assert len(re.findall(r"\w*(?:EvalPython|InArrow|InPandas)\b", physical)) == 1, physical
    assert "Exchange" not in physical, physical
