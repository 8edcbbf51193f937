"""The three ways in which samples of rules are judged: ``match``, the plain reference matcher, and Spark's stages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bindings.inbox.source import SPARK_SCHEMA
from bindings.kafka.binding import PROTOCOL as KAFKA
from catalog.model import Catalog
from catalog.record import Record, record_from_json
from router.evaluation.evaluator import Kind
from router.evaluation.plan import TOPIC_PREFIX, Evaluator
from router.matching.records import FEW, RecordMatcher
from tests.support.evaluating import KAFKA_SCHEMA, evaluated, in_form_of_match, inbox_row, kafka_row, with_events
from tests.support.letters import judge_of
from tests.support.reference import POSITION as UNPLACED
from tests.support.reference import Reference
from tests.support.rules import ANY, POSITION, Expected, Sample, Settings, line_of, without_prefix

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Told = list[dict[str, Any]]
"""The outcomes of one record: one, or one for each event of a batch."""
TOGETHER: Final = 500
"""Samples that ``match`` judges as one batch, of which no more than EXPLANATIONS are explained."""


def groups_of(samples: Sequence[Sample]) -> Mapping[Settings, list[int]]:
    """Return the places of the samples by the settings they need."""
    groups: dict[Settings, list[int]] = {}
    for number, sample in enumerate(samples):
        groups.setdefault(sample.settings, []).append(number)
    return groups


def _options(settings: Settings) -> dict[str, Any]:
    told = {"hop_by_hop": settings.hop_by_hop, "ambiguous": settings.ambiguous}
    return {**told, "validation": settings.validate, "frames": settings.frames}


def by_match(catalog: Catalog, samples: Sequence[Sample], together: int = TOGETHER) -> list[Told]:
    """What ``xrouter match`` says of each sample, of so many at once."""
    told: dict[int, Told] = {}
    for settings, places in groups_of(samples).items():
        matcher = RecordMatcher(catalog, **_options(settings))
        for begin in range(0, len(places), together):
            some = places[begin : begin + together]
            outcomes = matcher.decide([line_of(samples[place]) for place in some])
            told.update(zip(some, map(events_of, outcomes), strict=True))
    return [_plain(sample, told[place]) for place, sample in enumerate(samples)]


def decide_both(matcher: RecordMatcher, line: str) -> dict[str, Any]:
    """Return the outcome of a record by itself, which it has in columns with others too."""
    (alone,) = matcher.decide([line])
    assert matcher.decide([line] * (FEW + 1))[0] == alone
    return alone


def by_reference(catalog: Catalog, samples: Sequence[Sample]) -> list[Told]:
    """What the reference matcher says of each sample."""
    told: dict[int, Told] = {}
    for settings, places in groups_of(samples).items():
        reference = Reference(catalog, **_options(settings))
        told.update((place, events_of(reference.outcome(line_of(samples[place])))) for place in places)
    return [_plain(sample, told[place]) for place, sample in enumerate(samples)]


def events_of(outcome: dict[str, Any]) -> Told:
    """Return the outcomes of a record one by one."""
    return outcome["events"] if outcome["outcome"] == "batch" else [outcome]


def _plain(sample: Sample, told: Told) -> Told:
    return [without_prefix(sample, each) for each in told]


def by_run(
    spark: SparkSession, catalog: Catalog, samples: Sequence[Sample], wanted: Sequence[int], folder: Path
) -> dict[int, Told]:
    """What the stages of ``xrouter run`` make of the *wanted* samples, by their places: Kafka's come from Kafka rows,
    all others from inbox rows. One plan, so one Spark job for each kind of row, has them all.
    """
    told: dict[int, Told] = {}
    for settings, group in groups_of(samples).items():
        places = [place for place in group if place in wanted]
        if not places:
            continue
        endpoints = {endpoint_of(samples[place]) for place in places}
        judge = judge_of(catalog, folder, endpoints, **_options(settings), topic="bus")
        kafka = [place for place in places if samples[place].protocol == KAFKA]
        inbox = [place for place in places if samples[place].protocol != KAFKA]
        for turn in turns_of(samples, kafka):
            topics = {
                f"{TOPIC_PREFIX}{topic_of(samples[place])}": judge.channel_numbers[endpoint_of(samples[place])]
                for place in turn
            }
            rows = [kafka_row(record_of(samples[place])) for place in turn]
            keys = {tuple(row[2:5]): place for row, place in zip(rows, turn, strict=True)}
            frame = spark.createDataFrame(rows, KAFKA_SCHEMA)
            told.update(_ran(frame, "kafka", replace(judge, channel_numbers=topics), keys))
        if inbox:
            frame = spark.createDataFrame(
                [inbox_row(record_of(samples[place]), position_of(place)) for place in inbox], SPARK_SCHEMA
            )
            told.update(_ran(frame, "inbox", judge, {(position_of(place),): place for place in inbox}))
    return {place: _plain(samples[place], told.get(place, [])) for place in wanted}


def turns_of(samples: Sequence[Sample], places: Sequence[int]) -> Iterator[list[int]]:
    """Divide Kafka samples so that in each part a topic belongs to one endpoint."""
    left = list(places)
    while left:
        owners: dict[str, str] = {}
        turn = [
            place
            for place in left
            if owners.setdefault(topic_of(samples[place]), endpoint_of(samples[place])) == endpoint_of(samples[place])
        ]
        yield turn
        left = [place for place in left if place not in set(turn)]


def topic_of(sample: Sample) -> str:
    topic: str = sample.record["native"]["topic"]
    return topic


def endpoint_of(sample: Sample) -> str:
    endpoint: str = sample.record["endpoint"]
    return endpoint


def position_of(place: int) -> str:
    return f"inbox-{place}"


def record_of(sample: Sample) -> Record:
    """Return the record of a sample."""
    return record_from_json(dict(sample.record))


def _ran(
    frame: DataFrame, kind: Kind, judge: Evaluator, keys: Mapping[tuple[Any, ...], int]
) -> Iterator[tuple[int, Told]]:
    places = ("topic", "partition", "offset") if kind == "kafka" else ("position",)
    rows = [{**row, **row["m"]} for row in with_events(evaluated(frame, kind, judge), kind)]
    rows.sort(key=lambda row: row["position_in_batch"] or 0)
    told: dict[int, Told] = {}
    for row in rows:
        told.setdefault(keys[tuple(row["raw"][name] for name in places)], []).append(_form(row))
    yield from told.items()


def _form(row: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome of the stages in the form of ``match``, with the body that leaves as text."""
    told = in_form_of_match(row)
    told["body"] = None if row["body"] is None else row["body"].decode("latin-1")
    if row["reason"] is None:
        lineage = {each["key"]: each["value"] for each in row["sent"]}
        assert json.loads(lineage["xrouter-lineage"]).get("ambiguous") == row["ambiguous"]
        told |= {"ambiguous": row["ambiguous"]} if row["ambiguous"] is not None else {}
    return told


def differences(sample: Sample, place: int, told: Told) -> str:
    """Say what of a sample's outcomes is not what is due; empty when all is."""
    if len(told) != len(sample.expected):
        return f"{len(sample.expected)} outcomes are due, not {len(told)}"
    found = [_difference(sample, place, *each) for each in zip(sample.expected, told, strict=True)]
    return "; ".join(each for each in found if each)


def _difference(sample: Sample, place: int, due: Expected, found: Mapping[str, Any]) -> str:
    if due.reason is not None:
        return _unlike_letter(sample, due, found)
    if found["outcome"] != "routed" or not _is_message(due.message or "", found["message"]):
        return f"due is {due.message}, found {json.dumps(found)}"
    if found.get("ambiguous") != due.ambiguous:
        return f"due is that it was {due.ambiguous}, found {found.get('ambiguous')}"
    if found["context"] != due.context:
        return f"due is the context {due.context}, found {found['context']}"
    event = dict(found["cloudevent"])
    wanted = dict(due.cloudevent)
    if wanted.get("id") == POSITION:
        wanted["id"] = _position(sample, place, found)
    if event != wanted:
        return f"due is the event {wanted}, found {event}"
    if (
        "body" in found
        and due.data is not ANY
        and found["body"] != (None if due.data is None else due.data.decode("latin-1"))
    ):
        return f"due is the body {due.data!r}, found {found['body']!r}"
    return ""


def _position(sample: Sample, place: int, found: Mapping[str, Any]) -> str:
    """Return the id that the record's place gives; ``match`` and the reference have no place but the line's."""
    native = sample.record["native"]
    if sample.protocol == KAFKA:
        topic = native["topic"].removeprefix(sample.prefix)
        return f"{topic}-{native['partition']}-{native['offset']}"
    own: str = found["cloudevent"].get("id", "")
    return position_of(place) if "body" in found else own if own.isdecimal() or own == UNPLACED else POSITION


def _unlike_letter(sample: Sample, due: Expected, found: Mapping[str, Any]) -> str:
    if found.get("reason") != due.reason:
        return f"due is {due.reason}, found {json.dumps(found)}"
    if "detail" not in found:  # the reference explains nothing
        return ""
    unnamed = [text for text in due.names if text not in found["detail"]]
    if unnamed:
        return f"the detail does not name {unnamed}: {found['detail']}"
    if "body" in found and not sample.batch and found["body"] != _arrived(sample):
        return f"the letter's body is {found['body']!r}, not what arrived"
    nearest = [
        (each["message"], tuple(sorted(mismatch["property"] for mismatch in each["mismatches"])))
        for each in found["nearest"]
    ]
    wanted = nearest if due.nearest is None else due.nearest
    pairs = zip(wanted, nearest, strict=False)
    if len(wanted) == len(nearest) and all(_is_message(a[0], b[0]) and a[1] == b[1] for a, b in pairs):
        return ""
    return f"due as nearest is {wanted}, found {json.dumps(found['nearest'])}"


def _arrived(sample: Sample) -> str | None:
    body = record_of(sample).body
    return None if body is None else body.decode("latin-1")


def _is_message(name: str, xid: str) -> bool:
    return xid == name if name.startswith("/") else xid.rpartition("/")[2] == name
