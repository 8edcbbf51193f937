"""The status page by its public face: what is answered over HTTP, to whom, and that nothing can fill it or get in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from catalog.model import Finding
from router.judging.tally import Tally
from router.letters.latest import latest_letters
from router.letters.redaction import HIDDEN
from router.overview import records
from router.overview.overview import Overview
from router.overview.page import SCRIPTS
from router.settings import load_settings
from router.state.instants import parse_instant
from router.watching.metrics import Metrics
from router.watching.monitor import MonitorServer
from router.watching.status import Status
from tests.support.letters import letter_id, row, settings_file, write_letters
from tests.support.status_page import HOSTILE, SALE, SECONDS, TILL, TOKEN, Served, changed, event, record, tally
from tests.support.waiting import wait_until


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        yield made


def test_status_json_tells_what_flows_from_where_to_where(served: Served) -> None:
    served.metrics.batch_done("inbox", tally(7, 2), 0.1, 0)
    served.metrics.sink_write("events", "error")
    served.metrics.held("inbox", "events")
    told = served.told()
    flow = told["flow"]
    (endpoint,) = flow["endpoints"]
    assert (endpoint["endpoint"], endpoint["protocol"]) == (TILL, "HTTP")
    assert endpoint["routed"]["records"] == 7 and endpoint["dead_letters"]["records"] == 2
    assert [(each["definition"], each["records"]) for each in flow["definitions"]] == [(SALE, 7)]
    ways = {(link["from"], link["to"], link["kind"]) for link in flow["links"]}
    assert ways == {(TILL, SALE, "definition"), (SALE, "events", "sink"), (TILL, "delta", "letters")}
    sinks = {each["sink"]: each for each in flow["sinks"]}
    assert sinks["events"]["writes"] == {"ok": 0, "error": 1, "rejected": 0}
    assert sinks["events"]["holds"] == ["inbox"]
    (letters,) = [link for link in flow["links"] if link["kind"] == "letters"]
    assert letters["records"] == 2
    assert {name: each["records"] for name, each in flow["totals"].items()} == {"routed": 7, "dead_letters": 2}
    assert told["ready"] is False and told["reasons"] == ["no query has been started"]
    assert told["access"] == {"records": "all", "replay": False}


def test_rates_are_those_of_the_last_minute(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.activate()
        served.overview.tick()
        served.metrics.batch_done("inbox", tally(40, 0), 0.1, 0)
        wanted = "a rate, which two samples a second apart give"
        told = wait_until(lambda: flow_with_rate(served), SECONDS, wanted)
        definition = told["definitions"][0]
        assert 0 < definition["rate"] <= 40
        assert definition["rate"] == pytest.approx(40 / told["window_seconds"], rel=0.2)


def flow_with_rate(served: Served) -> dict[str, Any] | None:
    flow: dict[str, Any] = served.told()["flow"]
    return flow if flow["definitions"][0]["rate"] is not None else None


def test_before_there_is_a_catalog_it_answers(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        told = served.told()
        assert told["flow"] is None and told["epochs"] == []
        assert served.get("/letters.json").status_code == 503


def test_thousands_of_definitions_are_summed_up(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        many = {f"M{number}": event(f"m{number}") for number in range(300)}
        (tmp_path / "catalog.json").write_text(json.dumps(changed(**many)))
        served.activate()
        served.metrics.outcomes(Tally(definitions=Counter({(TILL, "/messagegroups/G/messages/M299"): 5})))
        flow = served.told()["flow"]
        assert flow["definitions"][0]["definition"] == "/messagegroups/G/messages/M299"
        assert len(flow["definitions"]) == 40 and flow["left_out"]["definitions"] == 261


def test_what_never_occurred_is_told_with_since_when(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        many = {f"M{number}": event(f"m{number}") for number in range(120)}
        (tmp_path / "catalog.json").write_text(json.dumps(changed(**many)))
        served.activate()
        told = served.told()
        coverage, endpoint = told["coverage"], told["flow"]["endpoints"][0]
        assert (coverage["expected"], coverage["unseen"], coverage["silent"]) == (121, 121, 1)
        assert len(coverage["unseen_definitions"]) == 100
        epoch = told["catalog"]["epoch"]
        (silent,) = coverage["silent_endpoints"]
        assert (silent["endpoint"], silent["epoch"]) == (TILL, epoch) and parse_instant(silent["since"])
        assert (endpoint["last_record"], endpoint["definitions"], endpoint["unseen"]) == (None, 121, 121)
        served.metrics.outcomes(tally(1, 0))
        told = wait_until(lambda: seen(served), SECONDS, "the record to be told")
        (sale,) = [each for each in told["flow"]["definitions"] if each["definition"] == SALE]
        endpoint = told["flow"]["endpoints"][0]
        assert endpoint["unseen"] == 120 and endpoint["last_record"] == sale["last_record"]
        assert parse_instant(sale["last_record"]) and told["coverage"]["silent_endpoints"] == []
        assert SALE not in {each["definition"] for each in told["coverage"]["unseen_definitions"]}


def seen(served: Served) -> dict[str, Any] | None:
    told = served.told()
    return told if told["coverage"]["unseen"] == 120 else None


def test_the_time_of_a_batch_is_told_by_step(served: Served) -> None:
    served.status.query("inbox", "running", batch=3)
    steps = served.status.steps
    steps.begin("inbox", 3)
    steps.turn("inbox", "judge")
    steps.turn("inbox", "sink events")
    now = served.told()["queries"]["inbox"]["time"]["now"]
    assert now["batch"] == 3 and now["step"] == "sink events"
    steps.end("inbox", 12)
    time = wait_until(lambda: ended(served), SECONDS, "the end of the batch")
    assert {each["step"] for each in time["last"]["steps"]} == {"rest", "judge", "sink events"}
    assert time["last"]["records"] == 12 and time["recent"]["batches"] == 1


def ended(served: Served) -> dict[str, Any] | None:
    time: dict[str, Any] = served.told()["queries"]["inbox"]["time"]
    return time if time["now"] is None else None


def test_each_reload_is_told_with_its_changes_and_refused_ones_with_findings(served: Served) -> None:
    (served.folder / "catalog.json").write_text(json.dumps(changed(Refund=event("refund"))))
    served.activate()
    refused = Finding("catalog.json", "/messagegroups/G", "error", "bad-group", HOSTILE, "mend it")
    served.status.refused([refused])
    served.status.refused([refused])
    told = wait_until(lambda: with_difference(served), SECONDS, "the changes to be found")
    assert [each["result"] for each in told] == ["refused", "active", "active"]
    assert told[0]["times"] == 2 and told[0]["findings"][0]["message"] == HOSTILE
    kinds = {(each["kind"], each["xid"]) for each in told[1]["difference"]["changes"]}
    assert ("definition-added", "/messagegroups/G/messages/Refund") in kinds
    assert told[1]["difference"]["compatible"] and told[2]["difference"] is None


def with_difference(served: Served) -> list[dict[str, Any]] | None:
    epochs: list[dict[str, Any]] = served.told()["epochs"]
    return epochs if len(epochs) > 1 and epochs[1]["difference"] is not None else None


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
        newest = latest_letters(served.settings, 2)
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
    answer = httpx.post(f"{served.server.address}/verdict", content=record("sale"), headers=plain)
    assert answer.status_code == 415
    assert served.post("/verdict", record("sale"), origin="http://[").status_code == 403
    assert served.post("/verdict", record("sale"), origin=served.server.address).status_code == 200
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
    with pytest.raises(Exception, match="must not be written out"):
        Served(tmp_path, token=TOKEN)


def test_the_page_is_whole_and_browsers_are_held_to_it(served: Served) -> None:
    answer = served.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    for kind, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", answer.text)
    assert not re.search(r"<[^>]+\s(?:on\w+|style)=", answer.text.replace(script, ""))
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script
    assert len(SCRIPTS) == 6 and served.get("/").headers["x-content-type-options"] == "nosniff"
    assert httpx.head(served.server.address + "/").content == b""
    assert served.post("/", b"").status_code == 405


def test_hostile_names_arrive_as_they_are_and_as_json_alone(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.activate()
        write_letters(served.settings, [row(1, detail=HOSTILE, endpoint=HOSTILE)])
        answer = served.get("/letters.json")
        assert answer.json()["letters"][0]["endpoint"] == HOSTILE
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_process_without_letters_shows_figures_alone(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    metrics, status = Metrics(), Status(routes=False)
    overview = Overview(settings, metrics, status, None)
    server = MonitorServer("127.0.0.1", 0, metrics, status, overview)
    server.start()
    try:
        told = httpx.get(f"{server.address}/status.json").json()
        assert told["access"] == {"records": "nobody", "replay": False}
        assert httpx.get(f"{server.address}/letters.json").status_code == 404
    finally:
        server.stop()
        overview.close()
