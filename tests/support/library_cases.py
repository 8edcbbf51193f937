"""The samples of all rules as inputs of the library's columns, and what ``match`` says of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

import pyarrow as pa

from bindings.inbox.source import READ_SCHEMA
from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.record_columns import SOURCE_SCHEMA
from router.evaluation.evaluator import Kind
from router.evaluation.plan import TOPIC_PREFIX
from tests.support.evaluating import inbox_row, kafka_row
from tests.support.rule_ways import endpoint_of, position_of, record_of, topic_of, turns_of
from tests.support.rules import Settings, read_rules, suite_of
from xrouter.columns import ColumnMatcher
from xrouter.matching import LoadedCatalog

SUITE: Final = suite_of(read_rules())
PLACES: Final = [place for place, each in enumerate(SUITE.samples) if each.settings == Settings() and not each.bugs]
_TEXTS: Final = ("id", "source", "type", "subject", "datacontenttype", "dataschema")
_ATTRIBUTES: Final = (*_TEXTS, "time", "specversion")
Told = dict[int, list[dict[str, Any]]]
"""The outcomes of each sample by its place: one, or one for each event of a batch."""


@cache
def suite_catalog() -> LoadedCatalog:
    """Return the catalog of all rules."""
    return LoadedCatalog(SUITE.catalog())


@dataclass(frozen=True, slots=True)
class Input:
    """Rows of one kind, the matcher for them, and the place of the sample by the row's position."""

    kind: Kind
    matcher: ColumnMatcher
    rows: pa.RecordBatch
    places: Mapping[str, int]


def inputs() -> Iterator[Input]:
    """Yield the samples as rows of Kafka's source, so that a topic belongs to one endpoint, and of the inbox."""
    matcher = ColumnMatcher.compile(suite_catalog().catalog)
    kafka = [place for place in PLACES if SUITE.samples[place].protocol == KAFKA]
    numbers = matcher.evaluator.channel_numbers
    for turn in turns_of(SUITE.samples, kafka):
        chosen = [SUITE.samples[place] for place in turn]
        topics = {f"{TOPIC_PREFIX}{topic_of(each)}": numbers[endpoint_of(each)] for each in chosen}
        rows = [kafka_row(record_of(each)) for each in chosen]
        yield Input(
            "kafka",
            replace(matcher, evaluator=replace(matcher.evaluator, channel_numbers=topics)),
            _to_batch([(*row[:6], _named(row[6], "key", "value")) for row in rows], SOURCE_SCHEMA),
            {f"{row[2]}-{row[3]}-{row[4]}": place for row, place in zip(rows, turn, strict=True)},
        )
    inbox = [place for place in PLACES if SUITE.samples[place].protocol != KAFKA]
    lines = [inbox_row(record_of(SUITE.samples[place]), position_of(place)) for place in inbox]
    batch = _to_batch([(*each[:3], _named(each[3], "key", "value", "type"), *each[4:]) for each in lines], READ_SCHEMA)
    yield Input("inbox", matcher, batch, {position_of(place): place for place in inbox})


def _named(parts: Sequence[Sequence[Any]], *names: str) -> list[dict[str, Any]]:
    return [dict(zip(names, each, strict=True)) for each in parts]


def _to_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def told_by_columns(given: Input, rows: Sequence[Mapping[str, Any]]) -> Told:
    """Return what rows of :data:`xrouter.columns.OUTCOMES` say of the samples of an input."""
    found: Told = {place: [] for place in given.places.values()}
    for row in sorted(rows, key=lambda row: int(row["position"].partition("#")[2] or 0)):
        routed = row["outcome"] == "routed"
        event = dict(row["event"] or {})
        extensions = dict(event.pop("extensions", None) or ())
        attributes = {**{name: event.get(name) for name in (*_TEXTS, "time")}, **extensions}
        found[given.places[row["position"].partition("#")[0]]].append(
            {name: row[name] for name in ("outcome", "message", "reason")}
            | {"context": dict(row["context"] or ()) if routed else {}, "event": _without_made_id(attributes)}
        )
    return found


@cache
def told_by_match() -> Told:
    """Return what ``match_many`` says of all samples."""
    outcomes = suite_catalog().match_many([SUITE.samples[place].record for place in PLACES])
    told: Told = {}
    for place, outcome in zip(PLACES, outcomes, strict=True):
        each = outcome.events if outcome.outcome == "batch" else [outcome]
        told[place] = [
            {"outcome": one.outcome, "message": one.message or None, "reason": one.reason or None}
            | {"context": dict(one.context), "event": _event(one.attributes)}
            for one in each
        ]
    return told


def _event(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as columns have them: extensions as texts, the time as an instant."""
    extensions = {name: _text(value) for name, value in attributes.items() if name not in _ATTRIBUTES}
    time = attributes.get("time")
    instant = None if time is None else datetime.fromisoformat(time)
    return _without_made_id({name: attributes.get(name) for name in _TEXTS} | {"time": instant} | extensions)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_made_id(event: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the id, which for mapped records names the record's place."""
    return {name: value for name, value in event.items() if name != "id"}


def differences(given: Input, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the samples of which an input's outcomes and ``match`` differ, with both."""
    expected = told_by_match()
    return {
        SUITE.samples[place].place: (expected[place], found)
        for place, found in told_by_columns(given, rows).items()
        if expected[place] != found
    }
