"""What is marked is never shown, wherever a letter quotes it; what is not, stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

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
from tests.support.cases import read_cases
from tests.support.commands import fits
from tests.support.letters import row

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "redaction.yaml"


def letter(**changes: Any) -> DeadLetter:
    return make_letter(row(1, received=None, failed=None) | changes, "lake")


def shown(given: DeadLetter, *redact: str) -> DeadLetter:
    return Redactor(parse_marks(redact)).redact(given).letter


def everything(given: DeadLetter) -> str:
    body = (given.body or b"").decode("utf-8", "replace")
    return json.dumps([given.detail, list(given.nearest), given.native], ensure_ascii=False) + body


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_a_letter_is_shown_as_its_case_says(case: dict[str, Any]) -> None:
    members = {name: value for name, value in case["letter"].items() if name != "body"}
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in members.items()}
    body = case["letter"].get("body", "{}")
    form = letter(body=(body if isinstance(body, str) else json.dumps(body)).encode(), **given)
    for marks in case["marks"]:
        found = shown(form, *([marks] if isinstance(marks, str) else marks))
        text = everything(found)
        assert not [each for each in ("4111", "NDEx") if each in text], text
        due = case["shows"]
        assert found.detail == due.get("detail", found.detail)
        assert fits(due.get("native", {}), found.native) and fits(
            due.get("nearest", [*found.nearest]), [*found.nearest]
        )
        assert "body" not in due or json.loads(found.body or b"") == due["body"]
        assert (found.id, found.reason, found.position) == (form.id, form.reason, form.position)


def test_without_marks_a_letter_is_shown_as_it_is() -> None:
    given = letter(body=b"\xff")
    assert shown(given) == given


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
