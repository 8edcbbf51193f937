"""Figures of the status page that are so: what arrives and what is finished, what waits, and the hour behind it."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest
import yaml

from catalog.model import Finding
from router.dead_letters.redaction import HIDDEN
from router.evaluation.outputs import EMPTY, Tally
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
from tests.support.rules import merged
from tests.support.status_page import HOSTILE, SECONDS, TILL, TOKEN, Served, changed, record, tally
from tests.support.waiting import wait_until

HISTORIES = 10
HOUR_POINTS = 40
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        yield made


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


def test_the_error_of_a_sink_fades_once_it_works() -> None:
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


# Records on the status page, over HTTP: letters and pasted ones, who sees them, what is hidden.


CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "watching"


def given(value: Any) -> Any:
    """Return what a case calls with: counts, backlogs, findings and replays are maps with one member."""
    match value:
        case {"counts": [routed, dead, empty]}:
            counts = tally(routed, dead)
            counts.records[TILL, EMPTY, ""] = empty
            return counts
        case {"definition": [message, count]}:
            return Tally(definitions=Counter({(TILL, message): count}))
        case {"backlog": [lag, *more]}:
            age, *arriving = more or [None]
            return Backlog(lag, None if age is None else int((time.time() - age) * 1000), *arriving)
        case {"finding": members}:
            return [Finding(*members)]
        case {"replay": [number, plan, letters]}:
            return PendingReplay(number, plan, tuple(letters))
        case {"outcomes": outcomes}:
            return [Outcome(*each) for each in outcomes]
        case dict():
            return {key: given(each) for key, each in value.items()}
    return value


def prepare(served: Served, step: dict[str, Any]) -> None:
    """Write the catalog of a step, and do its calls."""
    if "catalog" in step:
        told = step["catalog"]
        if not isinstance(told, str):
            events = {**told.get("events", {}), **{f"M{number}": f"m{number}" for number in range(told.get("many", 0))}}
            tree = changed(**{name: event(kind) for name, kind in events.items()})
            sale = tree["messagegroups"]["G"]["messages"]["Sale"]
            tree["messagegroups"]["G"]["messages"]["Sale"] = merged(sale, told.get("sale", {}))
            told = json.dumps(tree)
        (served.folder / "catalog.json").write_text(told)
    if step.get("activate"):
        served.activate()
    with LetterLedger.open(Path(served.settings.state)) as ledger:
        parts = SimpleNamespace(metrics=served.metrics, status=served.status, ledger=ledger)
        for name, *arguments in step.get("does", ()):
            attrgetter(name)(parts)(*map(given, arguments))


def ask(served: Served, asked: dict[str, Any]) -> httpx.Response:
    headers = asked.get("headers", {})
    if "get" in asked:
        return served.get(asked["get"], **headers)
    body = record(asked["record"]) if "record" in asked else asked.get("body", "")
    body = body if isinstance(body, bytes) else body.encode()
    return served.post(asked["post"], body * asked.get("times", 1), **headers)


@pytest.mark.parametrize(
    "case", [*read_cases(CASES / "records.yaml"), *read_cases(CASES / "page.yaml")], ids=lambda case: case["case"]
)
def test_who_asks_gets_what_its_case_says(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    monkeypatch.setattr(records, "MARKS_SECONDS", 0.0)
    for name in ("LEDGER_SECONDS", "KEPT_SECONDS"):
        monkeypatch.setattr(overview, name, 0.0)
    with Served(tmp_path, **case.get("served", {})) as served:
        if not case.get("idle"):
            served.activate()
        words = {"$TOKEN": TOKEN, "$L1": letter_id(1), "$L2": letter_id(2), "$HOSTILE": HOSTILE}
        words["$PAGE"] = served.server.base_url
        letters = filled(case.get("letters", 0), words)
        letters = [{}] * letters if isinstance(letters, int) else letters
        write_letters(served.settings, [row(number, **changes) for number, changes in enumerate(letters, 1)])
        for written in case["asks"]:
            asked = filled(written, words)
            prepare(served, asked)
            if asked.get("until"):
                wait_until(
                    lambda asked=asked: fits(asked["json"], ask(served, asked).json()),  # type: ignore[misc]
                    SECONDS,
                    lambda: served.get("/status.json").text,
                )
            answer = ask(served, asked)
            assert answer.status_code == asked.get("status", 200), (asked, answer.text)
            assert "json" not in asked or fits(asked["json"], answer.json()), (asked, answer.text)
            assert asked.get(NO, "\0") not in answer.text
            assert asked.get("shows", {}).items() <= answer.headers.items()


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
