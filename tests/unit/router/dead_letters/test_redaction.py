"""What is marked is never shown, wherever a letter quotes it; what is not, stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.findings import Declarations
from catalog.load import load
from router.dead_letters.dead_letter import DeadLetter, make_letter
from router.dead_letters.redaction import (
    HIDDEN,
    MAX_STEPS,
    MAX_VALUES,
    Redactor,
    SensitiveMarks,
    find_marks,
    parse_marks,
)
from tests.support.letters import row

SECRET = "4111-1111-2222-3333"


def letter(**changes: Any) -> DeadLetter:
    return make_letter(row(1, received=None, failed=None) | changes, "lake")


def shown(given: DeadLetter, *redact: str) -> DeadLetter:
    return Redactor(parse_marks(redact)).redact(given).letter


def everything(given: DeadLetter) -> str:
    body = (given.body or b"").decode("utf-8", "replace")
    return json.dumps([given.detail, list(given.nearest), given.native], ensure_ascii=False) + body


def test_without_marks_a_letter_is_shown_as_it_is() -> None:
    given = letter(body=b"\xff")
    assert shown(given) == given


@pytest.mark.parametrize("name", ["subject", "Subject", "ce-subject", "sub*", "headers.ce-subject"])
def test_a_name_hides_the_value_in_every_place(name: str) -> None:
    native = {"headers": [{"name": "ce-subject", "value": SECRET}, {"name": "ce-id", "value": "1"}], "path": "/till"}
    near = [{"message": "/m", "mismatches": [{"property": "subject", "expected": "shop/{s}", "found": SECRET}]}]
    given = letter(native=json.dumps(native), nearest=json.dumps(near), detail=f"subject is '{SECRET}', not shop/{{s}}")
    found = shown(given, name)
    assert SECRET not in everything(found)
    assert found.native["headers"] == [{"name": "ce-subject", "value": HIDDEN}, {"name": "ce-id", "value": "1"}]
    assert found.detail == f"subject is '{HIDDEN}', not shop/{{s}}"
    assert found.native["path"] == "/till"
    assert (found.id, found.reason, found.position) == (given.id, given.reason, given.position)


@pytest.mark.parametrize(
    ("native", "name"),
    [
        ({"application-properties": {"cloudEvents:subject": SECRET, "other": 1}}, "subject"),
        ({"application-properties": {"card": {"base64": "NDExMS0xMTExLTIyMjItMzMzMw=="}}}, "card"),
        ({"user_properties": [{"name": "card", "value": SECRET}, {"name": "card", "value": "x"}]}, "card"),
        ({"headers": [{"name": "card", "value_base64": "NDExMS0xMTExLTIyMjItMzMzMw=="}]}, "card"),
        ({"topic": "t", "key": SECRET}, "key"),
        ({"topic": "t", "key_base64": "NDExMS0xMTExLTIyMjItMzMzMw=="}, "key"),
        ({"query": [{"name": "card", "value": SECRET}]}, "query.card"),
        ({"headers": [{"name": "x.card", "value": SECRET}]}, "x.card"),
        ({"headers": [{"name": "ce_card", "value": "4111%2D1111-2222-3333"}]}, "card"),
    ],
)
def test_names_in_all_shapes_of_native_records(native: dict[str, Any], name: str) -> None:
    given = letter(native=json.dumps(native), detail=f"found {SECRET} there")
    found = shown(given, name)
    assert "4111" not in everything(found) and "NDEx" not in everything(found)
    assert found.detail == f"found {HIDDEN} there"


def test_mismatches_are_hidden_by_any_end_of_their_path() -> None:
    wrong = {"property": "protocoloptions.headers.x.card", "expected": "1{n}", "found": None}
    [near] = shown(letter(nearest=json.dumps([{"message": "/m", "mismatches": [wrong]}])), "x.card").nearest
    assert near["mismatches"] == [{**wrong, "expected": HIDDEN}]


def test_pointers_reach_into_bodies_and_what_quotes_them() -> None:
    body = {"card": {"number": SECRET, "owner": "A. B"}, "items": [{"pin": 1234}, {"pin": 98765.40}], "pin": 5}
    text = json.dumps(body).replace("98765.4", "98765.40")
    told = f"/card/number: '{SECRET[:14]}… is no number; pins 1234 98765.40 and 12345"
    found = shown(letter(body=text.encode(), detail=told, reason="schema-violation"), "/card/number", "/items/*/pin")
    assert json.loads(found.body or b"") == {
        "card": {"number": HIDDEN, "owner": "A. B"},
        "items": [{"pin": HIDDEN}, {"pin": HIDDEN}],
        "pin": 5,
    }
    assert found.detail == f"/card/number: '{HIDDEN}… is no number; pins {HIDDEN} {HIDDEN} and {HIDDEN}5"


def test_short_values_are_hidden_as_words_only() -> None:
    found = shown(letter(body=b'{"pin": 7}', detail="expected 17 or 71, found 7"), "/pin")
    assert found.detail == f"expected 17 or 71, found {HIDDEN}"


def test_structured_events_have_attributes_and_data_of_their_own() -> None:
    event = {"specversion": "1.0", "id": "1", "subject": SECRET, "data": {"card": SECRET}}
    found = shown(letter(body=json.dumps([event, 5]).encode()), "subject", "/card")
    assert json.loads(found.body or b"") == [{**event, "subject": HIDDEN, "data": {"card": HIDDEN}}, 5]
    binary = {"specversion": "1.0", "data_base64": "eyJjYXJkIjoxfQ=="}
    assert json.loads(shown(letter(body=json.dumps(binary).encode()), "/card").body or b"")["data_base64"] == HIDDEN


def test_repeated_members_do_not_hide_from_a_pointer() -> None:
    found = shown(letter(body=f'{{"card": "{SECRET}", "card": 1}}'.encode()), "/card")
    assert SECRET not in everything(found)


@pytest.mark.parametrize("body", [b'{"card": "4111', b"\xff4111", b"[" * 100_000])
def test_a_body_that_cannot_be_looked_into_is_hidden_whole(body: bytes) -> None:
    given = letter(body=body, reason="schema-violation", detail="4111 is wrong")
    found = shown(given, "/card")
    assert (found.body, found.detail) == (HIDDEN.encode(), HIDDEN)
    assert shown(given, "card").body == body


def test_hiding_everything_leaves_nothing_of_the_record() -> None:
    found = Redactor(SensitiveMarks(everything=True)).redact(letter(detail="sold is no sale")).letter
    assert found.detail == HIDDEN and found.body == HIDDEN.encode()
    assert "sold" not in everything(found) and "shop" not in everything(found)
    assert found.reason == "no-match"


def test_what_a_catalog_marks(tmp_path: Path) -> None:
    schema = {"properties": {"card": {"properties": {"pin": {"x-sensitive": True}}}, "iban": {"writeOnly": True}}}
    catalog = tmp_path / "catalog.json"
    message = {
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"subject": {"required": True, "sensitive": True}, "type": {"value": "a"}},
        "protocol": "HTTP",
        "protocoloptions": {"headers": [{"name": "X-Card", "sensitive": True}], "query": {"a[1]": {"sensitive": True}}},
        "dataschemaformat": "JSONSchema/draft-07",
        "dataschema": schema,
    }
    catalog.write_text(json.dumps({"messagegroups": {"G": {"messages": {"A": message}}}}))
    declarations = Declarations()
    marks = find_marks(declarations=declarations, catalog=load([catalog], declarations=declarations))
    assert marks.members == {"pin", "iban"}
    redactor = Redactor(marks)
    assert all(redactor.hides(name) for name in ("subject", "ce-subject", "x-card", "X-Card", "a[1]"))
    assert not any(redactor.hides(name) for name in ("type", "card", "a1"))
    found = redactor.redact(
        letter(body=b'{"card": {"pin": "12345"}, "x": [{"iban": "DE1234"}]}', detail="12345")
    ).letter
    assert json.loads(found.body or b"") == {"card": {"pin": HIDDEN}, "x": [{"iban": HIDDEN}]}
    assert found.detail == HIDDEN


def test_texts_are_hidden_whole_where_too_many_values_would_be_looked_for() -> None:
    """Each value was searched for in each text of a letter: many headers took minutes."""
    native = {"headers": [{"name": "card", "value": f"number {count}"} for count in range(MAX_VALUES + 1)]}
    redaction = Redactor(parse_marks(["card"])).redact(letter(native=json.dumps(native), detail="number 7 is no"))
    assert redaction.letter.detail == HIDDEN
    assert (redaction.redact_text("it is number 9"), redaction.redact_text("")) == (HIDDEN, "")


def test_a_name_of_many_dots_is_hidden_without_trying_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    redactor = Redactor(parse_marks(["card"]))
    redaction = redactor.redact(letter(body=None))
    monkeypatch.setattr(Redactor, "hides", lambda self, name, path="": asked.append(name))
    assert redaction.redact_value("a." * MAX_STEPS + "b", "x") == HIDDEN
    assert redaction.redact_value("headers.a.b", "x") == "x"
    assert asked == ["headers.a.b", "a.b", "b"]
