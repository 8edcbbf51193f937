"""Reloading: what the router makes of a changed catalog, and of one that waits for what it refers to."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from catalog.load import CatalogWatcher, load
from router.evaluation.outputs import Tally
from router.evaluation.plan import Plan
from router.running.reload import BackgroundReloader, Reloader
from router.settings import load_settings
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.waiting import wait_until
from tests.support.web import Reply, serving

CONFIG = """
catalog: {source: ./catalog.json, poll: 10ms}
sources: [{endpoint: /endpoints/e}]
sinks: {out: {type: jsonl, path: ./out}}
routes: [{to: out}]
dead_letters: {sinks: [out]}
"""
LIMIT = 120.0


def write(path: Path, base: str | None, content_type: str) -> None:
    message = {"protocol": "KAFKA", "basemessage": base, "datacontenttype": content_type}
    options = {"endpoints": [{"uri": "localhost:9092"}], "options": {"topic": "t"}}
    endpoint = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": options, "messages": {"m": message}}
    path.write_text(json.dumps({"endpoints": {"e": endpoint}}))


class Reloads:
    """A reloader of a catalog file, which has one definition to begin with, or also so many others."""

    def __init__(self, folder: Path, catalog: str = "poll: 10ms", more: int = 0) -> None:
        self.catalog, self.metrics, self.status = folder / "catalog.json", Metrics(), RouterStatus()
        self.nudges = Counter[str]()
        (folder / "router.yaml").write_text(CONFIG.replace("poll: 10ms", catalog))
        write(self.catalog, None, "a/b")
        told = json.loads(self.catalog.read_text())
        told["messagegroups"] = {"g": {"messages": {f"m{number}": {"protocol": "KAFKA"} for number in range(more)}}}
        self.catalog.write_text(json.dumps(told))
        settings = load_settings(folder / "router.yaml", {})
        active = Plan(load([self.catalog]), settings)
        self.reloader = Reloader(settings, active, self.metrics, self.status, lambda: self.nudges.update(["an event"]))


def test_a_catalog_that_waits_takes_effect_when_it_is_whole(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path)
    catalog, reloader = reloads.catalog, reloads.reloader
    plans: list[Plan] = []

    def polled(web_asked: int) -> bool:
        plan = reloader.poll()
        if plan is not None:
            plans.append(plan)
        return len(web.asked) >= web_asked

    with serving() as web:
        web.routes["/b.json"] = Reply("", 503)
        write(catalog, f"{web.url}/b.json#/messagegroups/g/messages/b", "c/d")
        wait_until(lambda: polled(3), LIMIT, "three attempts")
        assert plans == []
        base = {"messagegroups": {"g": {"messages": {"b": {"envelope": "CloudEvents/1.0"}}}}}
        web.routes["/b.json"] = Reply(base)
        wait_until(lambda: polled(0) and bool(plans), LIMIT, "the new plan")
    definition = plans[0].catalog.definitions["/endpoints/e/messages/m"]
    assert (definition.envelope, definition.datacontenttype) == ("CloudEvents/1.0", "c/d")


def test_a_catalog_that_shrank_waits_for_a_second_look_and_says_so(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path, more=9)
    reloader, status = reloads.reloader, reloads.status
    write(reloads.catalog, None, "a/b")
    assert reloader.poll() is None
    assert status.check_readiness()[1]["catalog"]["doubted"] == ["the catalog has 1 definitions, down from 10"]
    assert status.count_pending()["doubted"] == 1
    wait_until(lambda: (plan := reloader.poll()) is not None and len(plan.catalog.definitions) == 1, LIMIT, "the plan")
    assert status.check_readiness()[1]["catalog"]["doubted"] == []


def test_a_message_that_says_so_makes_the_router_look(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path, "poll: 1h, events: /endpoints/e")
    catalog, metrics, reloader = reloads.catalog, reloads.metrics, reloads.reloader
    assert (reloader.poll(), reloader.is_due) == (None, False)
    batch = Tally(Counter({("/endpoints/e", "dead-letter", "no-match"): 1}))
    write(catalog, None, "c/d")
    metrics.acknowledged("/endpoints/other")
    metrics.count_written_batch("q", Tally(Counter({("/endpoints/other", "routed", ""): 3})), 0.1, 0)
    assert not reloader.is_due
    metrics.count_written_batch("q", batch, 0.1, 0)
    wait_until(lambda: reloader.is_due, LIMIT, "a look that is due")
    plan = reloader.poll()
    assert plan is not None
    assert plan.catalog.definitions["/endpoints/e/messages/m"].datacontenttype == "c/d"
    write(catalog, None, "e/f")

    def acknowledged() -> int:
        metrics.acknowledged("/endpoints/e")
        return reloads.nudges.total()

    wait_until(acknowledged, LIMIT, "a nudge, since a look is due")
    assert reloader.poll() is not None
    metrics.count_written_batch("q", batch, 0.1, 0)
    assert reloader.poll() is None, "what a gateway told of is news no more when a batch has it"


def test_events_during_a_look_nudge_once_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reloads = Reloads(tmp_path, "poll: 1h, events: /endpoints/e")
    reloader, metrics, nudges = reloads.reloader, reloads.metrics, reloads.nudges
    begun, goes_on, poll = threading.Event(), threading.Event(), CatalogWatcher.poll

    def slow(watcher: CatalogWatcher) -> object:
        found = poll(watcher)
        begun.set()
        assert goes_on.wait(LIMIT)
        return found

    monkeypatch.setattr(CatalogWatcher, "poll", slow)
    background = BackgroundReloader(reloader, lambda: nudges.update(["the end of a look"]))
    try:
        assert background.poll() is None
        assert begun.wait(LIMIT)

        def due() -> bool:
            metrics.acknowledged("/endpoints/e")
            return reloader.is_due

        wait_until(due, LIMIT, "another look that is due")
        assert nudges == {}
    finally:
        goes_on.set()
    wait_until(lambda: nudges, LIMIT, "a nudge")
    assert nudges == {"the end of a look": 1}


def test_an_unexpected_fault_of_a_new_catalog_rejects_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reloads = Reloads(tmp_path)
    reloader, metrics = reloads.reloader, reloads.metrics

    def fail(*_: object, **__: object) -> None:
        raise TypeError("unhashable")

    monkeypatch.setattr("catalog.load.CatalogWatcher.poll", fail)
    wait_until(lambda: reloader.is_due, LIMIT, "the next look")
    assert reloader.poll() is None
    assert metrics.registry.get_sample_value("xrouter_catalog_reloads_total", {"result": "refused"}) == 1
