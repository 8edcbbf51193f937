"""What outcomes say of a definition's relation, by cases; and that every way of reading records says the same."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from bindings.inbox.source import READ_SCHEMA
from bindings.protocols import BINDINGS
from catalog.load import load
from catalog.model import Catalog, Definition, Endpoint, Property
from catalog.record import parse_record
from router.commands.match import ExplanationWriter
from router.evaluation.evaluator import evaluate_inbox
from router.evaluation.forwarding import EXCHANGE, RelationColumns, decode_exchange
from router.matching.explanation import BEST, EventExplanation, Explainer, RecordExplanation
from router.matching.records import RecordMatcher
from router.matching.schema_validation import Validation
from tests.support.cases import read_cases, seeds
from tests.support.generation import ENDPOINT, GROUP, SCHEMAS, random_catalog, random_record
from tests.support.letters import inbox_row, judge_of

CASES = read_cases(Path(__file__).parents[3] / "cases" / "matching" / "relations.yaml")


def catalog_of(document: Any, folder: Path) -> Catalog:
    (folder / "catalog.json").write_text(json.dumps(document), "utf-8")
    return load([folder / "catalog.json"])


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    matcher = RecordMatcher(catalog_of(case["catalog"], tmp_path))
    (outcome,) = matcher.outcomes([json.dumps(case["record"])])

    assert {name: outcome.get(name) for name in case["outcome"]} == case["outcome"]
    assert outcome["context"] == case["context"]


PUSHED = {name: case for name, case in CASES.items() if case["record"]["protocol"] != "KAFKA"}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in PUSHED.items()])
def test_columns_of_the_inbox_say_the_same(case: dict[str, Any], tmp_path: Path) -> None:
    catalog = catalog_of(case["catalog"], tmp_path)
    endpoint = Endpoint(ENDPOINT, candidates=tuple(catalog.definitions))
    judge = judge_of(replace(catalog, endpoints={ENDPOINT: endpoint}), tmp_path)
    record = parse_record(json.dumps(case["record"]))
    parts = BINDINGS[record.protocol].split(record.native)
    rows = [inbox_row([(part.key, part.value, part.kind) for part in parts], record.protocol, record.body)]
    decided = evaluate_inbox(judge, pa.RecordBatch.from_pylist(rows, READ_SCHEMA))

    assert [dict(context) for context in decided.outcomes.contexts.to_pylist()][-1] == case["context"]
    winner = judge.matcher.targets[int(decided.outcomes.winners[-1])]
    assert winner.xid == case["outcome"].get("message", winner.xid)


def exchanges(document: Any, records: list[dict[str, Any]], folder: Path) -> list[Any]:
    catalog = catalog_of(document, folder)
    matcher = RecordMatcher(catalog)
    _, (decided,) = matcher.judge([json.dumps(record) for record in records])
    columns = RelationColumns.from_catalog(matcher.matcher, catalog, pairs=True).build(decided.outcomes)
    texts: pa.StringArray = columns[EXCHANGE]
    return [None if text is None else decode_exchange(text) for text in texts.to_pylist()]


def event(kind: str, id: str, **more: str) -> dict[str, Any]:
    attributes = {"specversion": "1.0", "id": id, "source": "/s", "type": kind, **more}
    headers = [{"name": f"ce_{name}", "value": value} for name, value in attributes.items()]
    return {"protocol": "KAFKA", "native": {"topic": "t", "headers": headers}}


def test_an_answer_names_what_the_other_asks_by(tmp_path: Path) -> None:
    document = CASES["event-in-binary-mode"]["catalog"]
    placed, accepted, lost = exchanges(
        document,
        [event("placed", "p1", subject="orders/1"), event("accepted", "a1", orderid="p1"), event("accepted", "a2")],
        tmp_path,
    )
    assert (placed.id, placed.answers) == ("p1", None)
    assert placed.asks == (accepted.answers,)
    assert (accepted.id, accepted.asks, accepted.correlation) == ("a1", (), "p1")
    assert (lost.answers, lost.correlation) == ("", "")


def mqtt(topic: str, **native: Any) -> dict[str, Any]:
    return {"protocol": "MQTT/5.0", "native": {"topic_name": f"lamps/7/{topic}", **native}}


def amqp(subject: str, of: str = "", **properties: str) -> dict[str, Any]:
    own = {"application-properties": {"of": of}} if of else {}
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    return {"protocol": "AMQP/1.0", "native": {"properties": {"subject": subject, **named}, **own}}


def test_correlation_data_and_a_user_property_are_one_key(tmp_path: Path) -> None:
    records = [mqtt(topic, correlation_data="eDE=") for topic in ("ask", "told")]
    records += [mqtt("heard", user_properties=[{"name": "of", "value": value}]) for value in ("x1", "x2")]
    ask, told, heard, other = exchanges(CASES["mqtt-correlation-data"]["catalog"], records, tmp_path)
    assert ask.asks == (told.answers,) == (heard.answers,)
    assert other.answers not in ask.asks


def test_what_was_asked_without_a_name_asks_for_nothing(tmp_path: Path) -> None:
    records = [amqp("start"), amqp("start", message_id="m-1"), amqp("started", correlation_id="m-1")]
    records += [amqp("failed", of="m-1")]
    silent, asking, by_id, by_property = exchanges(CASES["amqp-correlation-id"]["catalog"], records, tmp_path)
    assert silent.asks == ()
    assert asking.asks == (by_id.answers,) == (by_property.answers,)


def test_a_long_id_is_cut_and_yet_pairs(tmp_path: Path) -> None:
    document = CASES["event-in-binary-mode"]["catalog"]
    long = "ä" * 100_000
    placed, other, accepted, short = exchanges(
        document,
        [
            event("placed", f"{long}1", subject="orders/1"),
            event("placed", f"{long}2", subject="orders/1"),
            event("accepted", f"{long}3", orderid=f"{long}1"),
            event("placed", "ä" * 512, subject="orders/1"),
        ],
        tmp_path,
    )
    assert placed.asks == (accepted.answers,) != other.asks
    assert placed.id == accepted.id == accepted.correlation == "ä" * 512 + "…"
    assert all(len(each.asks[0].encode()) < 2000 for each in (placed, other))
    assert short.id == "ä" * 512 and short.asks[0].endswith(short.id)


# ``match --explain`` tells what ``match`` decided, whatever the catalog and the record.


def explained(catalog: Catalog, line: str, *, everything: bool = False, **scope: Any) -> RecordExplanation:
    return Explainer(RecordMatcher(catalog, **scope), everything=everything).explain(1, line)


def agree(event: EventExplanation, outcome: dict[str, Any]) -> str:
    """Hold what is told against what `match` decided; returns the outcome or reason."""
    assert event.outcome == outcome
    reason = str(outcome.get("reason", outcome["outcome"]))
    matching = [each for each in event.candidates if each.matches]
    wins = [each.message for each in event.candidates if each.wins]
    assert wins == ([event.winner] if event.winner else [])
    if reason == "routed":
        assert event.winner == outcome["message"]
    elif reason == "unmappable":
        assert event.winner and outcome["detail"].startswith(event.winner)
    elif reason == "ambiguous":
        ties = {each.message for each in matching if each.verdict == "matches, but ties with others"}
        assert event.winner is None
        named = set(outcome["detail"].removeprefix("equally specific: ").split(", "))
        assert ties == named or (ties < named and len(event.candidates) == BEST)
    elif reason == "schema-violation":
        assert matching and all(each.schema not in ((), ("fits",)) for each in matching)
    elif reason == "no-match" and not any(each.verdict.endswith("rejects the data") for each in matching):
        assert not matching
        nearest = [(each.message, [c.to_json() for c in each.checks if not c.holds]) for each in event.candidates]
        assert nearest[:3] == [(each["message"], each["mismatches"]) for each in outcome["nearest"]]
    else:
        assert event.winner is None
    return reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(12, quick=4))
def test_the_winner_is_that_of_match(seed: int) -> None:
    rng = Random(seed)
    catalog = random_catalog(rng, rng.choice((4, 30)))
    validation: Validation = rng.choice(("ambiguous", "always", "never"))
    matcher = RecordMatcher(catalog, endpoint=rng.choice((None, ENDPOINT)), validation=validation)
    lines = [json.dumps(random_record(rng, catalog)) for _ in range(60)]
    for everything in (False, True):
        explainer = Explainer(matcher, everything=everything)
        for number, line in enumerate(lines):
            (outcome,) = matcher.decide([line])
            told = explainer.explain(number, line)
            events = outcome.get("events", [outcome])
            if told.error:
                assert outcome["detail"] == told.error
                continue
            assert len(told.events) == len(events)
            for event, each in zip(told.events, events, strict=True):
                agree(event, each)
                assert everything or len(event.candidates) <= BEST
                assert not everything or not event.more


def define(name: str, *options: Property, **rest: Any) -> Definition:
    return Definition(f"{GROUP}/messages/{name}", GROUP, protocol="KAFKA", protocoloptions=options, **rest)


BASE = define("base", Property("headers.kind", "string", "a"))
DERIVED = define("derived", Property("headers.kind", "string", "a"), base=(BASE.xid,))
TEMPLATE = define("template", Property("headers.kind", "string", "{x}"), Property("headers.n", "integer"))
OTHER = define("another", Property("headers.kind", "string", "b"))
FITTING = define("fitting", Property("headers.kind", "string", "s"), schemakey="object")
REJECTING = define("rejecting", Property("headers.kind", "string", "s"), schemakey="text")


def catalog_with(*definitions: Definition) -> Catalog:
    xids = tuple(each.xid for each in definitions)
    endpoint = Endpoint(ENDPOINT, candidates=xids)
    return Catalog({each.xid: each for each in definitions}, {GROUP: xids}, {ENDPOINT: endpoint}, SCHEMAS)


EVERY = catalog_with(BASE, DERIVED, TEMPLATE, OTHER, FITTING, REJECTING)


def kafka(kind: str, body: str = "{}") -> str:
    native = {"topic": "t", "headers": [{"name": "kind", "value": kind}]}
    return json.dumps({"protocol": "KAFKA", "endpoint": ENDPOINT, "native": native, "body": body})


def verdicts(line: str, validation: Validation = "ambiguous") -> dict[str, str]:
    (event,) = explained(EVERY, line, everything=True, validation=validation).events
    return {each.message.rsplit("/", 1)[-1]: each.verdict for each in event.candidates}


@pytest.mark.parametrize(("ambiguous", "winner"), [("dead-letter", None), ("first", "fitting"), ("base", None)])
def test_a_tie_says_how_it_was_decided(ambiguous: Any, winner: str | None) -> None:
    (event,) = explained(EVERY, kafka("s"), validation="never", ambiguous=ambiguous).events
    told = {each.message.rpartition("/")[2]: (each.verdict, each.wins) for each in event.candidates}
    assert told["rejecting"] == ("matches, but ties with others", False)
    assert told["fitting"] == (("wins", True) if winner else ("matches, but ties with others", False))
    why = "2 candidates are equally specific"
    assert event.why == (f"{why}; match.ambiguous chooses {FITTING.xid}" if winner else why)
    assert event.winner == (FITTING.xid if winner else None)
    assert event.outcome["outcome"] == ("routed" if winner else "dead-letter")


def test_schemas_are_told_where_they_were_looked_at() -> None:
    (event,) = explained(EVERY, kafka("s")).events
    schemas = {each.message.rsplit("/", 1)[-1]: each.schema for each in event.candidates if each.matches}
    assert schemas["fitting"] == ("fits",) and schemas["rejecting"] not in ((), ("fits",)) and not schemas["template"]
    assert event.why == "the most specific of 2 that match"
    assert verdicts(kafka("s"), "never")["fitting"] == "matches, but ties with others"


def written(line: str, encoding: str = "utf-8", **scope: Any) -> str:
    buffer = io.BytesIO()
    output = io.TextIOWrapper(buffer, encoding=encoding, errors="strict", write_through=True)
    ExplanationWriter(output).write(explained(EVERY, line, **scope))
    return buffer.getvalue().decode(encoding)


def test_the_text_has_every_part() -> None:
    text = written(kafka("a"))
    for part in (
        f"record 1: KAFKA at {ENDPOINT}",
        "  topic 't', 2 bytes of body",
        "  envelope: no CloudEvent",
        f"  ✓ {DERIVED.xid}: wins (1 literal, 0 characters)",
        "      ✓ protocol: 'KAFKA'",
        "      ✓ protocoloptions.headers.kind: 'a', as '{x}'",
        "      ✓ protocoloptions.headers.n: absent (optional)",
        "      ✗ protocoloptions.headers.kind: expected 'b', found 'a'",
        "  and 1 more candidate (--all shows all)",
        "  why: the most specific of 3 that match",
        f"  routed to {DERIVED.xid}",
        "    context: none",
        f"    cloudevent: specversion='1.0', id='t-0-0', source='{ENDPOINT}', type='derived'",
    ):
        assert part in text.splitlines(), f"{part}\n{text}"


def test_values_cannot_move_the_cursor() -> None:
    text = written(kafka("\x1b[2J\u202e\n[bold]x"))
    assert "\x1b" not in text and "\u202e" not in text
    assert "found '\\x1b[2J\\u202e\\n[bold]x'" in text


def test_faults_of_an_event_are_told_one_by_one() -> None:
    native = {"headers": [{"name": "ce_specversion", "value": "1.0"}, {"name": "ce_id", "value": "1"}]}
    text = written(json.dumps({"protocol": "KAFKA", "endpoint": ENDPOINT, "native": native}))
    assert "    ✗ source: missing" in text and "    ✗ type: missing" in text
    assert "dead letter, invalid-cloudevent" in text


def test_ascii_where_the_encoding_shows_no_more() -> None:
    text = written(kafka("ä"), "ascii")
    assert "      - protocoloptions.headers.kind: expected 'a', found '\\xe4'" in text.splitlines()
    assert "      + protocoloptions.headers.kind: '\\xe4', as '{x}'" in text.splitlines()
