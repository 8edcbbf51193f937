"""What outcomes say of a definition's relation, by cases; and that every way of reading records says the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bindings.inbox.source import READ_SCHEMA
from bindings.protocols import BINDINGS
from catalog.load import load
from catalog.model import Catalog, Endpoint
from catalog.record import parse_record
from router.evaluation.evaluator import evaluate_inbox
from router.evaluation.forwarding import EXCHANGE, RelationColumns, decode_exchange
from router.matching.records import RecordMatcher
from tests.support.cases import read_cases
from tests.support.letters import ENDPOINT, inbox_row, judge_of

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
