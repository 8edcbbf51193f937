"""Figures of the status page that are so: what arrives and what is finished, what waits, and the hour behind it."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from router.dead_letters.redaction import HIDDEN
from router.evaluation.outputs import Tally
from router.overview import overview, picture, records
from router.overview.overview import CHARTS, draw_chart
from router.overview.picture import (
    LATENCY,
    FigureReading,
    Figures,
    Point,
    Samples,
)
from router.settings import load_settings
from router.state.ledger import LetterLedger, Outcome, PendingReplay
from router.watching.backlogs import INBOX, Backlog
from router.watching.batches import BatchWatch
from router.watching.metrics import FADE_SECONDS, Metrics, SinkProblems
from router.watching.status import RouterStatus
from tests.support.cases import filled, read_cases
from tests.support.commands import NO, fits
from tests.support.letters import letter_id, row, settings_file, write_letters
from tests.support.plain import event
from tests.support.status_page import SALE, TILL, TOKEN, Served, changed, record, tally

HISTORIES = 10
HOUR_POINTS = 40
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        yield made


def endpoint(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.told()["flow"]["endpoints"][0]
    return found


def test_a_pushed_endpoint_has_its_own_lag_and_age_and_not_those_of_the_whole_inbox(served: Served) -> None:
    now = int(time.time() * 1000)
    waits = {INBOX: Backlog(500, now - 90_000), TILL: Backlog(20, now - 8_000, 70), "/endpoints/other": Backlog(480)}
    served.metrics.backlogs.update(INBOX, waits)
    told = endpoint(served)
    assert told["lag"] == 20 and 7 < told["oldest_seconds"] < 60
    assert told["arriving"]["records"] == 70
    assert served.told()["inbox"]["records"] == 500


@pytest.mark.parametrize(
    ("grown", "half", "most"),
    [
        ({"0.1": 0, "1.0": 0, "+Inf": 0}, None, None),
        ({"0.1": 100, "1.0": 100, "+Inf": 100}, 0.05, 0.095),
        ({"0.1": 0, "1.0": 100, "+Inf": 100}, 0.55, 0.955),
        ({"0.1": 60, "1.0": 60, "+Inf": 100}, 0.1 * 50 / 60, 1.0),
    ],
)
def test_latency_is_that_of_the_window(grown: dict[str, int], half: float | None, most: float | None) -> None:
    before: Samples = {(LATENCY, bound): 1000.0 for bound in grown}
    now: Samples = {(LATENCY, bound): 1000.0 + count for bound, count in grown.items()}
    reading = FigureReading(now, before, 60.0)
    assert reading.latency(0.5) == (None if half is None else pytest.approx(half, abs=1e-3))
    assert reading.latency(0.95) == (None if most is None else pytest.approx(most, abs=1e-3))


def test_an_hour_is_kept_of_the_busiest_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "HISTORIES", HISTORIES)
    monkeypatch.setattr(picture, "HOUR_POINTS", HOUR_POINTS)
    clock = [0.0]
    metrics = Metrics()
    figures = Figures(metrics.registry, lambda: clock[0])
    names = [f"/endpoints/e{number}" for number in range(HISTORIES + 5)]
    for turn in range(HOUR_POINTS + 30):
        records = Counter({(name, "routed", ""): number + 1 for number, name in enumerate(names)})
        metrics.outcomes(Tally(records=records))
        metrics.backlogs.update("kafka-1", {"/endpoints/e14": Backlog(turn, None, turn * 60)})
        for _ in range(6):
            clock[0] += 5.0
            figures.take_sample()
    whole = figures.list_points()
    assert len(whole) == HOUR_POINTS == len(figures.list_points("/endpoints/e14"))
    assert whole[-1].lag == HOUR_POINTS + 29 and whole[0].lag == 30
    assert whole[-1].arriving == pytest.approx(2.0, rel=0.2)
    assert whole[-1].finished == pytest.approx(sum(range(1, HISTORIES + 6)) / 30, rel=0.2)
    assert sum(bool(figures.list_points(name)) for name in names) == HISTORIES
    assert not figures.list_points("/endpoints/nobody")


def test_records_of_no_endpoint_have_no_figures_of_all(served: Served) -> None:
    clock = [0.0]
    figures = Figures(served.metrics.registry, lambda: clock[0])
    served.metrics.backlogs.update(INBOX, {INBOX: Backlog(500, int(time.time() * 1000) - 90_000)})
    served.metrics.outcomes(Tally(records=Counter({("", "dead-letter", "undecodable"): 7})))
    for _ in range(2):
        figures.take_sample()
        clock[0] += 60.0
    assert len(figures.list_points()) == 2 and figures.list_points()[-1].lag == 500
    nowhere = next(each for each in served.told()["flow"]["endpoints"] if not each["endpoint"])
    assert nowhere["dead_letters"]["records"] == 7
    assert nowhere["lag"] is None and nowhere["oldest_seconds"] is None


def test_charts_are_pictures_that_the_router_draws(served: Served) -> None:
    served.metrics.backlogs.update(INBOX, {INBOX: Backlog(7), TILL: Backlog(7, None, 7)})
    served.overview.take_sample()
    for name in CHARTS:
        for query in (
            "",
            f"?small&endpoint={TILL}",
            "?endpoint=%ff%3Csvg",
        ):
            answer = served.get(f"/history/{name}.svg{query}")
            assert answer.status_code == 200 and answer.headers["content-type"] == "image/svg+xml"
            assert answer.headers["x-content-type-options"] == "nosniff"
            root = ElementTree.fromstring(answer.text)
            assert root.tag == f"{SVG}svg" and root.find(f"{SVG}title") is not None
            assert not root.findall(f".//{SVG}script") and "nosuch" not in answer.text
    assert "lag 7" in served.get(f"/history/lag.svg?endpoint={TILL}").text
    assert served.get("/history/other.svg").status_code == 404
    assert served.post("/history/lag.svg", b"").status_code == 405
    page = served.get("/")
    assert re.findall(r'<img src="/history/(\w+)\.svg"', page.text) == list(CHARTS)
    assert "img-src 'self' data:" in page.headers["content-security-policy"]
    history = served.told()["history"]
    assert history["lag"] == [7] and history["every_seconds"] == 30


def test_a_chart_has_gaps_where_nothing_was_known() -> None:
    lags = [5.0, 10.0, None, 20.0, 40.0]
    root = ElementTree.fromstring(draw_chart("lag", [Point(None, None, lag, None, None) for lag in lags]))
    lines = [path.get("d") or "" for path in root.findall(f"{SVG}path[@class='b']")]
    assert len(lines) == 2
    (x, y) = re.findall(r"[\d.]+", lines[1])[2:4]
    assert (float(x), float(y)) == (320.0, 16.0)
    assert [text.text for text in root.findall(f"{SVG}text")] == [None, "60 min ago", "now", "at most 40"]
    assert [text.text for text in root.iter(f"{SVG}tspan")] == ["lag 40"]
    small = ElementTree.fromstring(draw_chart("lag", [Point(None, None, 1.0, None, None)], small=True))
    assert not list(small.iter(f"{SVG}text")) and small.find(f"{SVG}title") is not None
    # Without any point, and without any value, it is still a picture.
    for points in ([], [Point(None, None, None, None, None)], [Point(0.0, 0.0, 0.0, 0.0, 0.0)]):
        for chart in CHARTS:
            ElementTree.fromstring(draw_chart(chart, points))


def test_letters_that_were_replayed_or_removed_are_not_open(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "LEDGER_SECONDS", 0.0)
    monkeypatch.setattr(overview, "KEPT_SECONDS", 0.0)
    served.metrics.count_written_batch("inbox", tally(7, 10), 0.1, 0)

    def dead() -> tuple[int, int]:
        told = served.told()["flow"]["totals"]["dead_letters"]
        return told["open"], told["records"]

    assert dead() == (10, 10)
    with LetterLedger.open(Path(served.settings.state)) as ledger:
        ledger.begin(PendingReplay(1, "p", ("a", "b", "c", "d")))
        ledger.finish(1, [Outcome("a"), Outcome("b"), Outcome("c"), Outcome("d", "no-match")])
        assert dead() == (7, 10)
        # One that was replayed counts once, also when it is removed; a parked one needs somebody.
        ledger.forget(["a", "e", "e"])
        ledger.park(["f"])
        assert dead() == (6, 10)


def test_the_error_of_a_sink_has_its_time_and_fades_once_it_works(served: Served) -> None:
    clock = [1_780_000_000.0]
    sinks = SinkProblems(lambda: clock[0])
    assert sinks.get("lake") is None
    sinks.set("lake", "disk full " + "x" * 2000)
    clock[0] += 10 * FADE_SECONDS
    found = sinks.get("lake")
    assert found is not None and not found.over and found.text.startswith("disk full") and len(found.text) == 500
    sinks.set("lake", "")
    assert sinks.get("lake") is None
    sinks.set("lake", "away")
    sinks.set("lake", "")
    clock[0] += FADE_SECONDS - 1
    assert sinks.get("lake") is not None
    clock[0] += 2
    assert sinks.get("lake") is None

    served.metrics.count_sink_write("events", "error", "sink events: no space left on device")
    (sink,) = [each for each in served.told()["flow"]["sinks"] if each["sink"] == "events"]
    assert sink["last_error"]["text"] == "sink events: no space left on device"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", sink["last_error"]["at"])


def test_the_time_that_a_write_waits_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    status, metrics = RouterStatus(clock=lambda: clock[0]), Metrics(["lake"])
    watch = BatchWatch("inbox", metrics, status)
    watch.begin_write("lake", by_spark=False)
    clock[0] += 31
    watch._check_write(clock[0])
    for waited in (31, 61):
        clock[0] = 100.0 + waited
        _, told = status.check_readiness()
        assert told["queries"]["inbox"]["reason"].endswith(f"no progress for {waited} s")
        assert any(reason.endswith(f"no progress for {waited} s") for reason in told["reasons"])


def test_the_page_says_all_times_in_utc(served: Served) -> None:
    script = served.get("/").text
    assert "toLocaleString" not in script and "toLocaleTimeString" not in script
    assert "All times are UTC" in script and served.told()["at"].endswith("+00:00")


def test_lag_moves_while_a_batch_is_worked_through(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "KEPT_SECONDS", 0.0)
    steps = served.status.steps

    def left() -> int:
        told = endpoint(served)
        assert told["lag"] == 100_000
        return int(told["lag"] - told["worked"])

    served.metrics.backlogs.update(INBOX, {INBOX: Backlog(100_000), TILL: Backlog(100_000)})
    assert left() == 100_000
    steps.begin(INBOX, 1)
    # Of a batch that is written in parts, each part counts when it is written.
    for written in (0, 20_000, 70_000):
        steps.written(INBOX, written)
        assert left() == 100_000 - written
    # Its end takes nothing back: the source was not asked since.
    steps.end(INBOX, 90_000)
    assert left() == 10_000
    steps.begin(INBOX, 2)
    assert left() == 10_000
    steps.written(INBOX, 50_000)
    assert left() == 0
    served.metrics.backlogs.update(INBOX, {INBOX: Backlog(100_000), TILL: Backlog(100_000)})
    assert left() == 50_000


# Records on the status page, over HTTP: letters and pasted ones, who sees them, what is hidden.


CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "watching" / "records.yaml"


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
