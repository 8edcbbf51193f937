"""Records on the status page, over HTTP: letters and pasted ones, who sees them, what is hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import yaml

from router.dead_letters.reading import read_latest
from router.dead_letters.redaction import HIDDEN
from router.overview import records
from router.settings import load_settings
from tests.support.letters import letter_id, row, settings_file, write_letters
from tests.support.status_page import SALE, TOKEN, Served, changed, event, record


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        yield made


def test_the_newest_letters_are_listed_with_the_nearest_definition(served: Served) -> None:
    write_letters(served.settings, [row(number) for number in range(60)])
    letters = served.get("/letters.json").json()["letters"]
    assert len(letters) == 50
    first = letters[0]
    assert first["reason"] == "no-match" and first["definition"] == SALE and first["standing"] == "open"
    assert first["mismatch"] == {"property": "type", "expected": "sale", "found": "sold"}


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


@pytest.mark.parametrize("sink", ["delta", "parquet", "lines"])
def test_letters_of_every_sink_on_disk_are_found(tmp_path: Path, sink: str) -> None:
    settings_file(tmp_path, (sink,))
    told = yaml.safe_load((tmp_path / "router.yaml").read_text())
    with Served(tmp_path) as served:
        (tmp_path / "router.yaml").write_text(yaml.safe_dump({**told, "metrics": {"port": 0}}))
        served.settings = load_settings(tmp_path / "router.yaml")
        served.activate()
        write_letters(served.settings, [row(1), row(2)])
        found = [each["letter"] for each in served.get("/letters.json").json()["letters"]]
        assert sorted(found) == [letter_id(1), letter_id(2)]
        assert served.get(f"/letters/{letter_id(2)}.json").json()["sink"] == sink


def test_what_is_marked_as_sensitive_is_hidden(tmp_path: Path) -> None:
    catalog = changed()
    catalog["messagegroups"]["G"]["messages"]["Sale"]["envelopemetadata"]["subject"]["sensitive"] = True
    (tmp_path / "catalog.json").write_text(json.dumps(catalog))
    with Served(tmp_path) as served:
        served.activate()
        write_letters(served.settings, [row(1, detail="subject: found 'shop/7'")])
        for path in ("/letters.json", f"/letters/{letter_id(1)}.json"):
            text = served.get(path).text
            assert "•••" in text and "shop/7" not in text


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
        assert "shop/7" not in served.get(path).text
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


def test_the_newest_letters_are_found_in_whatever_order_their_files_are(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.activate()
        for version, day in enumerate((3, 5, 1, 4, 2)):
            write_letters(served.settings, [row(day, failed=datetime(2026, 1, day, tzinfo=UTC))], version)
        newest = read_latest(served.settings, 2)
        assert [each.id for each in newest] == [letter_id(5), letter_id(4)]


def test_what_a_sink_has_already_is_not_promised_again(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        (tmp_path / "catalog.json").write_text(json.dumps(changed(Sold=event("sold"))))
        served.activate()
        write_letters(served.settings, [row(1, reason="sink-rejected", detail="sink other: too large")])
        verdict = served.get(f"/letters/{letter_id(1)}.json").json()["now"]["verdict"]
        assert (verdict["outcome"], verdict["sinks"]) == ("routed", [])


def test_a_pasted_record_is_judged(served: Served) -> None:
    told = served.post("/verdict", record("sale")).json()
    assert told["verdict"] == {
        "outcome": "routed",
        "message": SALE,
        "sinks": ["events"],
        "reason": None,
        "detail": "",
    }
    told = served.post("/verdict", record("sold")).json()
    assert told["verdict"]["reason"] == "no-match"
    kafka = b'{"endpoint": "/endpoints/till", "protocol": "KAFKA", "native": {"topic": "t"}, "body": "x"}'
    assert served.post("/verdict", kafka).json()["verdict"]["outcome"] == "dead-letter"
    answer = served.post("/verdict", b'{"protocol": "KAFKA", "native": {"topic": "t"}, "body": "x"}')
    assert answer.status_code == 400 and "`endpoint`" in answer.json()["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"protocol": "SMOKE", "native": {}}', b"\xff", b"[" * 100_000])
def test_what_is_no_record_is_said_so(served: Served, body: bytes) -> None:
    answer = served.post("/verdict", body)
    assert answer.status_code == 400 and "this is no record" in answer.json()["detail"]


def test_a_pasted_record_is_bounded_and_of_the_same_origin(served: Served) -> None:
    assert served.post("/verdict", b" " * 300_000).status_code == 413
    assert served.get("/verdict").status_code == 405
    for headers in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}, {"origin": "null"}):
        assert served.post("/verdict", record("sale"), **headers).status_code == 403
    plain = {"content-type": "text/plain"}
    answer = httpx.post(f"{served.server.base_url}/verdict", content=record("sale"), headers=plain)
    assert answer.status_code == 415
    assert served.post("/verdict", record("sale"), origin="http://[").status_code == 403
    assert served.post("/verdict", record("sale"), origin=served.server.base_url).status_code == 200
    # Through a proxy with TLS the page has another address than ours, and the browser knows that it is the page's own.
    own = {"origin": "https://status.example", "sec_fetch_site": "same-origin"}
    assert served.post("/verdict", record("sale"), **own).status_code == 200


def test_a_page_of_another_name_for_this_machine_sees_no_record(served: Served) -> None:
    assert served.get("/letters.json", host="evil.example:80").status_code == 403
    assert served.get("/letters.json", host="localhost:1").status_code == 200
    assert served.post("/verdict", record("sale"), host="evil.example").status_code == 403


@pytest.mark.parametrize("header", ["forwarded", "via", "x_forwarded_for", "x_real_ip"])
def test_a_proxy_lets_nobody_see_records_without_a_token(served: Served, header: str) -> None:
    answer = served.get("/letters.json", **{header.replace("_", "-"): "192.0.2.1"})
    assert answer.status_code == 403 and "metrics.token" in answer.json()["detail"]


def test_records_beyond_loopback_need_the_token(tmp_path: Path) -> None:
    with Served(tmp_path, host="0.0.0.0") as served:
        served.activate()
        assert served.told()["access"] == {"records": "nobody", "replay": False}
        for answer in (served.get("/letters.json"), served.post("/verdict", record("sale"))):
            assert answer.status_code == 403 and "metrics.token" in answer.json()["detail"]


def test_with_a_token_records_need_it_in_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    with Served(tmp_path, host="0.0.0.0", token="${PAGE_TOKEN}") as served:
        served.activate()
        write_letters(served.settings, [row(1)])
        assert served.told()["access"] == {"records": "token", "replay": True}
        good = {"authorization": f"Bearer {TOKEN}"}
        assert served.get("/letters.json", **good).status_code == 200
        assert served.get(f"/letters.json?access_token={TOKEN}").status_code == 401
        assert served.get("/letters.json", cookie=f"token={TOKEN}").status_code == 401
        assert served.get("/letters.json", authorization="Bearer wrong").status_code == 401
        path = f"/letters/{letter_id(1)}/replay"
        assert served.post(path, b"{}").status_code == 401
        assert served.post(path, b"{}", **good, origin="http://evil.example").status_code == 403
        answer = served.post(path, b"{}", **good)
        assert answer.status_code == 503 and "not running" in answer.json()["detail"]  # There is no Spark here.
        assert TOKEN not in served.get("/status.json").text


def test_without_a_token_nothing_is_replayed(served: Served) -> None:
    write_letters(served.settings, [row(1)])
    answer = served.post(f"/letters/{letter_id(1)}/replay", b"{}")
    assert answer.status_code == 403 and "metrics.token" in answer.json()["detail"]


def test_a_short_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_TOKEN", "short")
    with pytest.raises(Exception, match=r"metrics\.token"):
        Served(tmp_path, token="${PAGE_TOKEN}")
    with pytest.raises(Exception, match="must not be in plain text"):
        Served(tmp_path, token=TOKEN)
