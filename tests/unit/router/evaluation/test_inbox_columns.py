"""Inbox rows that columns settle have the outcomes of the exact codec, to the byte, and most rows are settled so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bindings.parts import BINARY_KIND, JSON_KIND
from bindings.protocols import BINDINGS
from catalog.model import CLOUDEVENTS, PROTOCOLS, Catalog, Definition, Endpoint, Property
from router.evaluation.outputs import EMPTY, sum_tallies
from router.evaluation.plan import Evaluator
from router.matching.inbox_columns import read_inbox_rows
from router.matching.schema_validation import Validation
from router.matching.tie_breaker import Ambiguous
from tests.support.cases import examples, seeds
from tests.support.evaluating import outcome_lists
from tests.support.generation import GROUP, SCHEMAS, random_catalog, random_record
from tests.support.letters import (
    CORE,
    ENDPOINT,
    EVENT,
    JSON_EVENTS,
    Entry,
    batch_of,
    inbox_row,
    judge_of,
    judged_exactly,
    row_of,
    rows,
    spoil,
)

FOLDER = Path("unused")
EACH = 250
"""Rows of one catalog: below the number of dead letters of one batch that are explained."""


def definition(name: str, protocol: str | None, *options: Property, **more: Any) -> Definition:
    return Definition(f"{GROUP}/messages/{name}", GROUP, protocol=protocol, protocoloptions=options, **more)


def catalog_of(*definitions: Definition) -> Catalog:
    xids = tuple(each.xid for each in definitions)
    endpoint = Endpoint(ENDPOINT, candidates=xids)
    return Catalog({each.xid: each for each in definitions}, {GROUP: xids}, {ENDPOINT: endpoint}, SCHEMAS)


SUBJECT = Property("subject", "uritemplate", "{a}")
NATIVE = {"envelope": CLOUDEVENTS, "envelopemetadata": (SUBJECT, Property("partitionkey", "string", "k-{a}"))}
OBJECT = {"dataschemaformat": "JsonSchema/draft-07", "schemakey": "object"}
ANY_NATIVE = tuple(
    definition(f"native{number}", protocol, *(Property(name, "string") for name in names))
    for number, (protocol, names) in enumerate(
        {
            "HTTP": ("path", "headers.h1", "headers.content-type", "query.h1"),
            "AMQP/1.0": ("properties.subject", "properties.user-id", "application-properties.h1"),
            "MQTT/5.0": ("topic_name", "user_properties.h1", "content_type"),
            "MQTT/3.1.1": ("topic_name",),
            "NATS": ("subject", "headers.h1"),
        }.items()
    )
)
"""Takes every native record, and looks at properties where they are."""
BYTES = (
    definition("http", "HTTP", Property("headers.h1", "binary", "YQ=="), Property("headers.content-type", "binary")),
    definition("amqp", "AMQP/1.0", Property("properties.user-id", "binary"), Property("properties.subject", "binary")),
    definition("mqtt", "MQTT/5.0", Property("user_properties.h1", "binary"), **NATIVE),
    definition("nats", "NATS", Property("headers.h1", "string", "{a}"), **NATIVE),
    definition("any", None, envelope=CLOUDEVENTS, envelopemetadata=(Property("ext", "string"),), **OBJECT),
    definition("body", None, datacontenttype="application/json", **OBJECT),
)
JUDGES = (
    judge_of(catalog_of(definition("any", None, envelope=CLOUDEVENTS), *ANY_NATIVE), FOLDER, ambiguous="first"),
    judge_of(catalog_of(*BYTES), FOLDER, validation="always", ambiguous="first"),
    *(judge_of(random_catalog(Random(seed), 20), FOLDER, validation="always", hop_by_hop=True) for seed in range(4)),
)


def same(judge: Evaluator, batch: pa.RecordBatch) -> list[list[dict[str, Any]]]:
    """Hold both ways against each other; returns the outcomes of each row."""
    (lists, counts), (due, due_counts) = outcome_lists("inbox", judge, batch), judged_exactly(judge, batch)
    outcomes: list[list[dict[str, Any]]] = lists.to_pylist()
    for each, one, other in zip(batch.to_pylist(), outcomes, due.to_pylist(), strict=True):
        assert one == other, each
    assert lists.equals(due)
    assert counts == due_counts
    return outcomes


def left(judge: Evaluator, batch: pa.RecordBatch) -> set[int]:
    """Return the rows that are left to the exact codec."""
    facts = read_inbox_rows(batch, judge.matcher, judge.channel_numbers)
    return {int(facts.sources[place]) for place in facts.readings}


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(JUDGES), st.lists(rows(), min_size=1, max_size=12))
def test_any_rows_have_the_outcomes_of_the_exact_codec(judge: Evaluator, given: list[dict[str, Any]]) -> None:
    same(judge, batch_of(given))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(12, quick=4))
def test_records_of_random_catalogs_do_too(seed: int) -> None:
    chosen = Random(seed)
    catalog = random_catalog(chosen, 15)
    validation: Validation = chosen.choice(get_args(Validation))
    ambiguous: Ambiguous = chosen.choice(get_args(Ambiguous))
    judge = judge_of(catalog, FOLDER, validation=validation, hop_by_hop=seed % 2 == 0, ambiguous=ambiguous)
    # Rows of one protocol lie in the inbox as a rule, but those of several may.
    protocols = PROTOCOLS if seed % 3 else tuple(BINDINGS)[1:]
    found: list[dict[str, Any]] = []
    while len(found) < EACH:
        made = row_of(random_record(chosen, catalog, protocols))
        if made is not None:
            if chosen.random() < 0.5:
                spoil(chosen, made)
            found.append(made)
    batch = batch_of(found)
    reasons = {each["reason"] for outcomes in same(judge, batch) for each in outcomes}
    assert None in reasons and len(reasons) > 2
    assert 0 < len(left(judge, batch)) < EACH
    for begin, length in ((0, 1), (7, 50), (EACH - 1, 1), (9, 0)):
        same(judge, batch.slice(begin, length))


def event(prefix: str, *more: Entry) -> list[Entry]:
    return [*((f"{prefix}{name}", value, None) for name, value in CORE), *more]


HTTP, MQTT, AMQP = "headers.ce-", "user_properties.", "application-properties.cloudEvents:"
PATH: Entry = ("path", b"/in", None)
STRUCTURED = b"application/CloudEvents+json; a=b"
ORDINARY: tuple[tuple[str, list[Entry], bytes], ...] = (
    ("HTTP", [PATH, *event(HTTP, ("headers.Content-Type", b"text/plain", None), ("headers.h1", b"", None))], b""),
    ("HTTP", event(HTTP, (f"{HTTP}ext", None, None), ("headers.content-type", None, None)), b""),
    ("HTTP", [PATH, ("headers.ce-id", b"%ff", None), ("headers.x", b"1", None), ("headers.x", b"2", None)], EVENT[:9]),
    ("HTTP", [PATH, ("headers.content-encoding", None, None), ("headers.content-encoding", b"gzip", None)], b"{}"),
    ("http/2", [PATH, ("headers.xrouter-a", b"\xff", None), ("query.q", None, None)], b"text"),
    ("MQTT/5.0", [("topic_name", b"a", None), ("qos", b"1", JSON_KIND), *event(MQTT)], b"{}"),
    ("MQTT/5.0", [("topic_name", b"a", None), ("user_properties.Odd Name", b"1", None)], b""),
    ("MQTT/5.0", [("correlation_data", b"\xff", BINARY_KIND), ("topic_name", b"a/b", None)], b"\xff"),
    ("MQTT/3.1.1", [("topic_name", b"a", None)], b'{"a": 1}'),
    ("AMQP/1.0", event(AMQP, ("properties.user-id", b"\xff", BINARY_KIND)), b""),
    ("AMQP/1.0", event("application-properties.cloudEvents_", ("properties.content-type", b"a/b", None)), b""),
    ("AMQP/1.0", event(AMQP, (f"{AMQP}n", b"-7", JSON_KIND)), b""),
    ("AMQP/1.0", [("properties.message-id", b"m", None), ("properties.creation-time", b"never", None)], b""),
    ("AMQP/1.0", [("properties.message-id", b"a\x00", None), ("properties.creation-time", None, None)], b""),
    ("AMQP/1.0", [("properties.message-id", b"m", None), ("stream", b"S", None), ("sequence", b"7", JSON_KIND)], b""),
    ("AMQP/1.0", [("properties.message-id", b"", None), ("stream", b"S", None), ("sequence", b"7", JSON_KIND)], b""),
    ("AMQP/1.0", [("properties.message-id", None, None), ("properties.message-id", b"m", None)], b""),
    ("NATS", [("subject", b"a.b", None), ("stream", b"S", None), ("sequence", b"7", JSON_KIND)], b""),
    ("NATS", event(HTTP, ("headers.ce-datacontenttype", b"a/b", None), ("subject", b"a", None)), b""),
    ("HTTP", [("headers.content-type", STRUCTURED, None), ("headers.x", b"1", None)], EVENT),
    ("MQTT/5.0", [("content_type", STRUCTURED, None), ("user_properties.x", b"1", None)], EVENT),
    ("MQTT/3.1.1", [("topic_name", b"a", None), ("user_properties.x", b"1", None)], b"\n " + EVENT),
    ("MQTT/3.1.1", [("topic_name", b"a", None)], b'{"specversion": 1.0}'),
)
IN_JSON: list[Entry] = [("properties.content-type", STRUCTURED, None)]
ODD: dict[str, tuple[str, list[Entry], bytes | None]] = {
    "percent": ("HTTP", event(HTTP, ("headers.ce-subject", b"a%20b", None)), b""),
    "quotes": ("NATS", event(HTTP, ("headers.ce-subject", b'"a"', None)), b""),
    "attribute twice": ("HTTP", event(HTTP, ("headers.ce-id", b"2", None)), b""),
    "both prefixes": ("AMQP/1.0", event(AMQP, ("application-properties.cloudEvents_id", b"2", None)), b""),
    "no attribute name": ("HTTP", event(HTTP, ("headers.ce-a_b", b"1", None)), b""),
    "named data": ("NATS", event(HTTP, ("headers.ce-data", b"1", None)), b""),
    "an attribute that is no text": ("MQTT/5.0", event(MQTT, ("user_properties.ext", b"\xff", None)), b""),
    "a content type that is no text": ("MQTT/5.0", [("content_type", b"\xff", None)], b""),
    "an empty id": ("HTTP", [*event(HTTP)[2:], ("headers.ce-specversion", b"1.0", None)], b""),
    "another version": ("HTTP", [("headers.ce-specversion", b"0.3", None)], b""),
    "a list": ("AMQP/1.0", event(AMQP, (f"{AMQP}l", b"[]", "json")), b""),
    "no number": ("AMQP/1.0", event(AMQP, (f"{AMQP}n", b"NaN", None)), b""),
    "bytes": ("AMQP/1.0", event(AMQP, (f"{AMQP}b", b"a", BINARY_KIND)), b""),
    "a content type of bytes": ("HTTP", [("headers.Content-Type", b"a/b", BINARY_KIND)], b""),
    "structured, with an escape": ("HTTP", [("headers.content-type", STRUCTURED, None)], EVENT[:-1] + b',"a":"\\n"}'),
    "structured, but no event": ("HTTP", [("headers.content-type", STRUCTURED, None)], b"{}"),
    "structured and binary": ("HTTP", event(HTTP, ("headers.content-type", STRUCTURED, None)), EVENT),
    "structured, without a body": ("HTTP", [("headers.content-type", STRUCTURED, None)], None),
    "a batch": ("HTTP", [("headers.content-type", b"application/cloudevents-batch+json", None)], b"[" + EVENT + b"]"),
    "another media type of events": ("HTTP", [("headers.content-type", b"application/cloudevents+avro", None)], EVENT),
    "a property twice": ("HTTP", [PATH, PATH], b""),
    "a property that is no text": ("NATS", [("headers.h1", b"\xff", None)], b""),
    "oversized": ("MQTT/5.0", [("oversized", b"9", None)], b""),
    "oversized by what": ("NATS", [("oversized", None, None)], b""),
    "undecodable": ("AMQP/1.0", [("undecodable", b"no", None)], b""),
    "no sequence": ("NATS", [("stream", b"S", None), ("sequence", None, None)], b""),
    "Kafka": ("KAFKA", [("topic", b"t", None)], b""),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "entries", "body"), [*ORDINARY, *(("AMQP/1.0", IN_JSON, body) for body in JSON_EVENTS)]
)
def test_ordinary_rows_are_settled_by_columns(protocol: str, entries: list[Entry], body: bytes) -> None:
    batch = batch_of([inbox_row(entries, protocol, body)])
    for judge in JUDGES[:2]:
        assert not left(judge, batch)
        same(judge, batch)


@pytest.mark.parametrize("name", ODD)
def test_odd_rows_alone_are_left_to_the_codec(name: str) -> None:
    protocol, entries, body = ODD[name]
    given = [inbox_row([PATH], body=b"text"), inbox_row(entries, protocol, body), inbox_row([PATH], body=b"text")]
    assert left(JUDGES[0], batch_of(given)) == {1}
    same(JUDGES[0], batch_of(given))


def kafka_letter(number: int) -> dict[str, Any]:
    entries: list[Entry] = [
        ("topic", b"t", None),
        ("partition", b"0", JSON_KIND),
        ("offset", b"%d" % number, JSON_KIND),
    ]
    entries += [("timestamp", b"1700000000123", JSON_KIND), *event("headers.ce_")]
    return inbox_row(entries, "KAFKA", b'{"b": 1}')


def test_letters_of_all_protocols_are_judged_as_each_by_itself() -> None:
    judge = JUDGES[1]
    given = [
        kafka_letter(0),
        *(inbox_row(entries, protocol, body) for protocol, entries, body in ORDINARY),
        kafka_letter(2),
    ]
    given += [inbox_row(entries, protocol, body) for name, (protocol, entries, body) in ODD.items() if name != "Kafka"]
    batch = batch_of(given)
    together: Sequence[Any] = outcome_lists("letters", judge, batch)[0].to_pylist()
    alone = [outcome_lists("letters", judge, batch.slice(number, 1))[0].to_pylist()[0] for number in range(len(given))]
    assert together == alone
    assert {each["reason"] for outcomes in together for each in outcomes} > {None, "schema-violation", "no-match"}


def test_a_batch_of_no_events_is_counted_and_leaves_nothing() -> None:
    batch = batch_of(
        [
            inbox_row([("headers.content-type", b"application/cloudevents-batch+json", None)], body=b" [ ] "),
            inbox_row([("headers.content-type", STRUCTURED, None)], body=EVENT),
            inbox_row(
                [("headers.content-type", b"application/cloudevents-batch+json", None)], body=b"[]", endpoint="/none"
            ),
        ]
    )
    outcomes, counts = outcome_lists("inbox", JUDGES[0], batch)
    assert [len(each) for each in outcomes.to_pylist()] == [0, 1, 0]
    tally = sum_tallies([counts or ""], JUDGES[0].matcher.targets)
    assert tally.rows == 3
    assert tally.records == {(ENDPOINT, EMPTY, ""): 1, (ENDPOINT, "routed", ""): 1, ("", EMPTY, ""): 1}


def test_the_key_of_an_amqp_record_is_that_of_its_event() -> None:
    key: Entry = ("message-annotations.x-opt-partition-key", b"k", None)
    own: Entry = (f"{AMQP}partitionkey", b"own", None)
    given = [event(AMQP, key), event(AMQP, key, own), event(AMQP, key, (f"{AMQP}id", b"2", None)), [key]]
    outcomes = same(JUDGES[0], batch_of([inbox_row(entries, "AMQP/1.0") for entries in given]))
    assert [each["key"] for (each,) in outcomes] == [b"k", b"own", b"k", b"k"]
