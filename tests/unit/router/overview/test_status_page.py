"""The status page by its public face: what is answered over HTTP, to whom, and that nothing can fill it or get in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from catalog.model import Finding
from router.evaluation.outputs import EMPTY, Tally
from router.overview.overview import SCRIPTS, Overview
from router.running.monitoring import MonitorServer
from router.settings import load_settings
from router.state.ledger import parse_instant
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.letters import row, settings_file, write_letters
from tests.support.plain import event
from tests.support.status_page import HOSTILE, SALE, SECONDS, TILL, Served, changed, tally
from tests.support.waiting import wait_until


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        yield made


def test_status_json_tells_what_flows_from_where_to_where(served: Served) -> None:
    counts = tally(7, 2)
    counts.records[TILL, EMPTY, ""] = 1
    served.metrics.count_written_batch("inbox", counts, 0.1, 0)
    served.metrics.count_sink_write("events", "error")
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
    totals = {name: each["records"] for name, each in flow["totals"].items()}
    assert totals == {"routed": 7, "dead_letters": 2, "empty": 1, "arriving": 0} and endpoint["empty"]["records"] == 1
    assert told["ready"] is False and told["reasons"] == ["no query is running yet"]
    assert told["access"] == {"records": "all", "replay": False}


def test_rates_are_those_of_the_last_minute(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.activate()
        served.overview.take_sample()
        served.metrics.count_written_batch("inbox", tally(40, 0), 0.1, 0)
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
    served.status.add_refused([refused])
    served.status.add_refused([refused])
    told = wait_until(lambda: with_difference(served), SECONDS, "the changes to be found")
    assert [each["result"] for each in told] == ["refused", "active", "active"]
    assert told[0]["times"] == 2 and told[0]["findings"][0]["message"] == HOSTILE
    kinds = {(each["kind"], each["xid"]) for each in told[1]["difference"]["changes"]}
    assert ("definition-added", "/messagegroups/G/messages/Refund") in kinds
    assert told[1]["difference"]["compatible"] and told[2]["difference"] is None


def with_difference(served: Served) -> list[dict[str, Any]] | None:
    epochs: list[dict[str, Any]] = served.told()["epochs"]
    return epochs if len(epochs) > 1 and epochs[1]["difference"] is not None else None


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
    assert httpx.head(served.server.base_url + "/").content == b""
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
    metrics, status = Metrics(), RouterStatus(routes=False)
    overview = Overview(settings, metrics, status, None)
    server = MonitorServer("127.0.0.1", 0, metrics, status, overview)
    server.start()
    try:
        told = httpx.get(f"{server.base_url}/status.json").json()
        assert told["access"] == {"records": "nobody", "replay": False}
        assert httpx.get(f"{server.base_url}/letters.json").status_code == 404
    finally:
        server.stop()
        overview.close()
