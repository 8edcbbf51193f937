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

from bindings.parts import JSON_KIND
from bindings.protocols import BINDINGS
from catalog.model import CLOUDEVENTS, PROTOCOLS, Catalog, Definition, Endpoint, Property
from router.evaluation.outputs import EMPTY, sum_tallies
from router.evaluation.plan import Evaluator
from router.matching.inbox_columns import read_inbox_rows
from router.matching.schema_validation import Validation
from router.matching.tie_breaker import Ambiguous
from tests.support.cases import examples, read_cases, seeds
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


AMQP = "application-properties.cloudEvents:"
PATH: Entry = ("path", b"/in", None)
STRUCTURED = b"application/CloudEvents+json; a=b"
IN_JSON: list[Entry] = [("properties.content-type", STRUCTURED, None)]
CASES = read_cases(Path(__file__).parents[3] / "cases" / "values" / "inbox.yaml")
Row = tuple[str, list[Entry], bytes | None]


def row_of_case(protocol: str, properties: list[Any], body: str | None) -> Row:
    entries: list[Entry] = []
    for each in properties:
        if isinstance(each, str):
            entries += event(each)
        else:
            name, value, kind = [*each, None][:3]
            entries.append((name, None if value is None else value.encode("latin-1"), kind))
    if body is None:
        return protocol, entries, None
    return protocol, entries, body.encode("latin-1").replace(b"$EVENT", EVENT).replace(b"$OPEN", EVENT[:-1])


ORDINARY = [row_of_case(*each) for each in CASES["ordinary"]]
ODD = {name: row_of_case(*each) for name, each in CASES["odd"].items()}


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
