"""Records on the status page, over HTTP: letters and pasted ones, who sees them, what is hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from router.dead_letters.redaction import HIDDEN
from router.overview import records
from router.settings import load_settings
from tests.support.cases import filled, read_cases
from tests.support.commands import NO, fits
from tests.support.letters import letter_id, row, settings_file, write_letters
from tests.support.plain import event
from tests.support.status_page import SALE, TOKEN, Served, changed, record

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "watching" / "records.yaml"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        yield made


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_who_asks_for_records_gets_what_its_case_says(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    with Served(tmp_path, **case.get("served", {})) as served:
        served.activate()
        write_letters(served.settings, [row(number) for number in range(1, 1 + case.get("letters", 0))])
        words = {"$TOKEN": TOKEN, "$L1": letter_id(1), "$PAGE": served.server.base_url}
        for ask in case["asks"]:
            asked = filled(ask, words)
            headers = asked.get("headers", {})
            if "get" in asked:
                answer = served.get(asked["get"], **headers)
            else:
                given = asked.get("body", "")
                body = record(asked["record"]) if "record" in asked else given
                body = body if isinstance(body, bytes) else body.encode()
                answer = served.post(asked["post"], body * asked.get("times", 1), **headers)
            assert answer.status_code == asked.get("status", 200), (ask, answer.text)
            assert "json" not in asked or fits(asked["json"], answer.json()), (ask, answer.text)
            assert asked.get(NO, "\0") not in answer.text


def test_a_letter_is_told_whole_with_what_would_become_of_it_now(served: Served) -> None:
    write_letters(served.settings, [row(1)])
    told = served.get(f"/letters/{letter_id(1)}.json").json()
    assert ["headers.ce-type", "sold"] in told["native"] and told["body"] == '{"amount": 1.50}'
    assert told["now"]["verdict"]["outcome"] == "dead-letter" and told["now"]["verdict"]["reason"] == "no-match"
    (candidate,) = told["now"]["explained"]["events"][0]["candidates"]
    assert candidate["message"] == SALE and not candidate["wins"]
    assert [check["holds"] for check in candidate["checks"] if "type" in check["property"]] == [False]
    (served.folder / "catalog.json").write_text(json.dumps(changed(Sold=event("sold"))))
    served.activate()
    now = served.get(f"/letters/{letter_id(1)}.json").json()["now"]["verdict"]
    assert now["outcome"] == "routed" and now["message"].endswith("/Sold") and now["sinks"] == ["events"]
    assert served.get(f"/letters/{letter_id(2)}.json").status_code == 404


def test_what_another_catalog_marks_is_not_what_counts(tmp_path: Path) -> None:
    marked = changed()
    marked["messagegroups"]["G"]["messages"]["Sale"]["envelopemetadata"]["subject"]["sensitive"] = True
    (tmp_path / "catalog.json").write_text(json.dumps(marked))
    with Served(tmp_path) as served:
        served.activate()
        # The file has another catalog by now, which the router has not taken.
        (tmp_path / "catalog.json").write_text(json.dumps(changed(Sold=event("sold"))))
        write_letters(served.settings, [row(1)])
        for path in ("/letters.json", f"/letters/{letter_id(1)}.json"):
            assert "shop/7" not in served.get(path).text


def test_a_mark_that_is_added_while_the_router_runs_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MARKS_SECONDS", 0.0)
    with Served(tmp_path) as served:
        served.activate()
        write_letters(served.settings, [row(1)])
        path = f"/letters/{letter_id(1)}.json"
        assert "shop/7" in served.get(path).text
        marked = changed()
        marked["messagegroups"]["G"]["messages"]["Sale"]["envelopemetadata"]["subject"]["sensitive"] = True
        (tmp_path / "catalog.json").write_text(json.dumps(marked))
        hidden = served.get(path).text
        assert "shop/7" not in hidden and "•••" in hidden
        # One that cannot be read hides no less.
        (tmp_path / "catalog.json").write_text("{")
        assert "shop/7" not in served.get(path).text


def test_details_tell_nothing_of_a_body_that_is_hidden_whole(tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "card", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}],
    }
    catalog = changed()
    catalog["messagegroups"]["G"]["messages"]["Sale"] |= {"dataschemaformat": "Avro/1.11", "dataschema": schema}
    (tmp_path / "catalog.json").write_text(json.dumps(catalog))
    told = yaml.safe_load(settings_file(tmp_path).read_text())
    more = {"match": {"validate": "always"}, "dead_letters": {**told["dead_letters"], "redact": ["/card"]}}
    with Served(tmp_path) as served:
        (tmp_path / "router.yaml").write_text(yaml.safe_dump({**told, "metrics": {"port": 0}, **more}))
        served.settings = load_settings(tmp_path / "router.yaml")
        served.activate()
        native = json.loads(row(1)["native"])
        native["headers"] = [
            {**header, "value": "sale"} if header["name"] == "ce-type" else header for header in native["headers"]
        ]
        write_letters(served.settings, [row(1, native=json.dumps(native), body=b"4111-1111")])
        now = served.get(f"/letters/{letter_id(1)}.json").json()["now"]
        assert now["verdict"]["reason"] == "schema-violation"
        assert now["verdict"]["detail"] == HIDDEN


def test_what_a_sink_has_already_is_not_promised_again(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        (tmp_path / "catalog.json").write_text(json.dumps(changed(Sold=event("sold"))))
        served.activate()
        write_letters(served.settings, [row(1, reason="sink-rejected", detail="sink other: too large")])
        verdict = served.get(f"/letters/{letter_id(1)}.json").json()["now"]["verdict"]
        assert (verdict["outcome"], verdict["sinks"]) == ("routed", [])
