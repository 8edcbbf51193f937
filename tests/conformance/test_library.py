"""The library says of records what ``xrouter match`` and ``run`` say, over every rule of router/MATCHING.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

import xrouter
from bindings.inbox.source import READ_SCHEMA
from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.record_columns import SOURCE_SCHEMA
from router.evaluation.outcome_rows import HEADERS_TYPE
from router.evaluation.plan import TOPIC_PREFIX
from tests.support.rule_ways import endpoint_of, events_of, inbox_row, kafka_row, position_of, topic_of, turns_of
from tests.support.rules import Settings, read_rules, suite_of
from xrouter.columns import ColumnMatcher
from xrouter.matching import LoadedCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUITE: Final = suite_of(read_rules())
PLACES: Final = [place for place, each in enumerate(SUITE.samples) if each.settings == Settings() and not each.bugs]
TOLD: Final = ("id", "source", "type", "subject", "datacontenttype", "dataschema")
CATALOG: Final = {
    "endpoints": {
        "garden": {
            "usage": ["consumer"],
            "protocol": "KAFKA",
            "protocoloptions": {"options": {"topic": "beds"}},
            "messagegroups": ["/messagegroups/garden"],
        }
    },
    "messagegroups": {
        "garden": {
            "messages": {
                "Moisture": {
                    "envelope": "CloudEvents/1.0",
                    "protocol": "KAFKA",
                    "envelopemetadata": {
                        "type": {"value": "garden.moisture"},
                        "source": {"type": "uritemplate", "value": "/beds/{bed}"},
                    },
                    "dataschemaformat": "JsonSchema/draft-07",
                    "dataschema": {
                        "type": "object",
                        "properties": {"percent": {"type": "number"}},
                        "required": ["percent"],
                    },
                }
            }
        }
    },
}


@pytest.fixture(scope="module")
def suite() -> LoadedCatalog:
    return LoadedCatalog(SUITE.catalog())


@pytest.fixture(scope="module")
def matched(suite: LoadedCatalog) -> dict[int, list[dict[str, Any]]]:
    outcomes = suite.match_many([SUITE.samples[place].record for place in PLACES])
    told: dict[int, list[dict[str, Any]]] = {}
    for place, outcome in zip(PLACES, outcomes, strict=True):
        each = outcome.events if outcome.outcome == "batch" else [outcome]
        told[place] = [
            {"outcome": one.outcome, "message": one.message or None, "context": dict(one.context)}
            | {"reason": one.reason or None, "event": {name: one.attributes.get(name) for name in TOLD}}
            for one in each
        ]
    return told


def test_columns_say_what_single_records_say(suite: LoadedCatalog, matched: Mapping[int, list[dict[str, Any]]]) -> None:
    found: dict[int, list[dict[str, Any]]] = {place: [] for place in PLACES}
    for place, row in _iter_rows(ColumnMatcher.compile(suite.catalog)):
        routed = row["outcome"] == "routed"
        told = {name: row[name] for name in ("outcome", "message", "reason")}
        event = {name: row["event"][name] for name in TOLD} if routed else dict.fromkeys(TOLD)
        found[place].append({**told, "context": dict(row["context"] or ()) if routed else {}, "event": event})
    wrong = {
        SUITE.samples[place].place: (matched[place], found[place])
        for place in PLACES
        if [_without_made_ids(each) for each in matched[place]] != [_without_made_ids(each) for each in found[place]]
    }
    assert not wrong, str(next(iter(wrong.items())))
    assert len(PLACES) > 500


def _without_made_ids(told: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out ids, which for mapped records name the record's place."""
    return {**told, "event": {name: text for name, text in told["event"].items() if name != "id"}}


def _iter_rows(matcher: ColumnMatcher) -> Iterator[tuple[int, dict[str, Any]]]:
    kafka = [place for place in PLACES if SUITE.samples[place].protocol == KAFKA]
    numbers = matcher.evaluator.channel_numbers
    for turn in turns_of(SUITE.samples, kafka):
        chosen = [SUITE.samples[place] for place in turn]
        topics = {f"{TOPIC_PREFIX}{topic_of(each)}": numbers[endpoint_of(each)] for each in chosen}
        fixed = replace(matcher, evaluator=replace(matcher.evaluator, channel_numbers=topics))
        keys = {f"{row[2]}-{row[3]}-{row[4]}": place for row, place in zip(map(kafka_row, chosen), turn, strict=True)}
        rows = _to_batch(
            [
                (*row[:6], [dict(zip(("key", "value"), each, strict=True)) for each in row[6]])
                for row in map(kafka_row, chosen)
            ],
            SOURCE_SCHEMA,
        )
        for row in fixed.match_batch("kafka", rows).to_pylist():
            yield keys[row["position"].partition("#")[0]], row
    inbox = [place for place in PLACES if SUITE.samples[place].protocol != KAFKA]
    lines = [inbox_row(place, SUITE.samples[place]) for place in inbox]
    rows = [
        (*line[:3], [dict(zip(("key", "value", "type"), each, strict=True)) for each in line[3]], *line[4:])
        for line in lines
    ]
    places = {position_of(place): place for place in inbox}
    for row in matcher.match_batch("inbox", _to_batch(rows, READ_SCHEMA)).to_pylist():
        yield places[row["position"].partition("#")[0]], row


def _to_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


@pytest.mark.spark
def test_a_dataframe_is_demultiplexed_into_typed_columns(spark: SparkSession) -> None:
    from xrouter.spark import demultiplex, payload

    catalog = xrouter.load(CATALOG)
    event = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_type", b"garden.moisture"), ("ce_source", b"/beds/7")]
    lines = [
        (None, b'{"percent": 41.5}', "beds", 0, 1, event),
        (None, b'{"percent": "wet"}', "beds", 0, 2, event),
        (None, b"{}", "beds", 0, 3, [*event[:2], ("ce_type", b"other"), event[3]]),
    ]
    columns = f"key binary, value binary, topic string, partition int, offset long, headers {HEADERS_TYPE}"
    rows = spark.createDataFrame(lines, columns).selectExpr("*", "timestamp_millis(1790000000000) as timestamp")
    outcomes = demultiplex(rows, catalog)
    told = {row["position"]: row for row in outcomes.collect()}
    assert [told[f"beds-0-{offset}"]["outcome"] for offset in (1, 2, 3)] == ["routed", "routed", "dead-letter"]
    assert told["beds-0-1"]["context"] == {"bed": "7"}
    assert told["beds-0-1"]["event"]["source"] == "/beds/7"
    assert told["beds-0-1"]["endpoint"] == "/endpoints/garden"
    assert {row["epoch"] for row in told.values()} == {catalog.epoch}
    typed = {row["position"]: row for row in payload(outcomes, catalog, "Moisture").collect()}
    assert typed["beds-0-1"]["payload"]["percent"] == 41.5
    assert typed["beds-0-1"]["undecoded"] is None
    assert typed["beds-0-2"]["payload"]["percent"] is None
    assert typed["beds-0-2"]["undecoded"].startswith("percent: ")
    with pytest.raises(ValueError, match="rows must have the columns key, value"):
        demultiplex(spark.range(1), catalog)
    with pytest.raises(KeyError, match="no definition 'Moistures'"):
        payload(outcomes, catalog, "Moistures")


def test_events_of_a_batch_have_an_outcome_each(suite: LoadedCatalog) -> None:
    batches = [place for place in PLACES if len(SUITE.samples[place].expected) > 1]
    outcome = suite.match(SUITE.samples[batches[0]].record)
    assert outcome.outcome == "batch"
    assert len(events_of({"outcome": "batch", "events": list(outcome.events)})) == len(
        SUITE.samples[batches[0]].expected
    )
