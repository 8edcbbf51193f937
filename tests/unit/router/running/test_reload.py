"""Reloading: what the router makes of a changed catalog, of one that waits, and what it says of changes."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.load import CatalogWatcher, load
from router.evaluation.outputs import Tally
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.running.reload import BackgroundReloader, CatalogComparisons, Reloader
from router.settings import LogSettings, load_settings
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.cases import read_cases
from tests.support.waiting import wait_until
from tests.support.web import Reply, serving

SOURCE = "[{endpoint: /endpoints/e}]"
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

    def __init__(self, folder: Path, catalog: str = "poll: 10ms", more: int = 0, sources: str = SOURCE) -> None:
        self.catalog, self.metrics, self.status = folder / "catalog.json", Metrics(), RouterStatus()
        self.nudges = Counter[str]()
        told = CONFIG.replace("poll: 10ms", catalog)
        (folder / "router.yaml").write_text(told.replace(SOURCE, sources))
        self.write_first(more)
        settings = load_settings(folder / "router.yaml", {})
        self.active = Plan(load([self.catalog]), settings)
        self.reloader = Reloader(
            settings, self.active, self.metrics, self.status, lambda: self.nudges.update(["an event"])
        )

    def write_first(self, more: int) -> None:
        """Write the catalog that is active."""
        write(self.catalog, None, "a/b")
        told = json.loads(self.catalog.read_text())
        told["messagegroups"] = {"g": {"messages": {f"m{number}": {"protocol": "KAFKA"} for number in range(more)}}}
        self.catalog.write_text(json.dumps(told))


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


# What a reload says of its changes: each that takes records away, a count, and with the setting a refusal.


def differences(status: RouterStatus) -> dict[str, Any]:
    """Return the changes of each catalog that became active, by its epoch."""
    return {each["epoch"]: each["difference"] for each in status.history_to_json() if each["difference"]}


def replace(path: Path, text: str) -> None:
    """Put another text in place of a file."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(path)


def write_groups(path: Path, groups: list[str], *, more: bool = False) -> None:
    """Write a catalog, whose endpoint expects what is in these groups."""
    options = {"endpoints": [{"uri": "localhost:9092"}], "options": {"topic": "t"}}
    endpoint = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": options, "messagegroups": groups}

    def event(kind: str) -> dict[str, Any]:
        return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": kind}}}

    messages = {"m": event("m"), **({"n": event("n")} if more else {})}
    document = {"endpoints": {"e": endpoint}, "messagegroups": {"g": {"messages": messages}}}
    replace(path, json.dumps(document))


class Changes(Reloads):
    """A reloader over a catalog of a group, which compares those that took effect."""

    def __init__(self, folder: Path, mode: str = "", sources: str = SOURCE) -> None:
        """Without a *mode*, it is the default one; without *sources*, the consumers of the catalog are."""
        told = f"poll: 10ms, on_incompatible: {mode}" if mode else "poll: 10ms"
        super().__init__(folder, told, sources=sources)
        self.comparisons = CatalogComparisons(self.metrics, self.status)
        self.comparisons.set_active(self.active.catalog)

    def write_first(self, more: int) -> None:
        """Write a group of one definition."""
        write_groups(self.catalog, ["/messagegroups/g"])

    def taken(self) -> Plan:
        """Wait for the next catalog that is accepted, and let it take effect."""
        plan = wait_until(self.reloader.poll, LIMIT, "the change to be seen")
        assert plan is not None
        self.status.set_catalog(plan.epoch, len(plan.catalog.definitions))
        self.comparisons.set_active(plan.catalog)
        return plan

    def refused(self) -> list[Any]:
        """Wait for the next catalog that is refused; return why it is."""

        def seen() -> bool:
            assert self.reloader.poll() is None
            return self.reloads("refused") == 1

        wait_until(seen, LIMIT, "the refusal")
        found: list[Any] = self.status.check_readiness()[1]["catalog"]["refused"]
        return found

    def changes(self, compatible: str) -> float:
        found = self.metrics.registry.get_sample_value("xrouter_catalog_changes_total", {"compatible": compatible})
        assert found is not None
        return found

    def reloads(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("xrouter_catalog_reloads_total", {"result": result})


def test_a_typo_that_sends_an_endpoint_to_the_dead_letters_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configure_logs(LogSettings())
    logging.getLogger().addHandler(caplog.handler)
    reloads = Changes(tmp_path, "warn")
    write_groups(reloads.catalog, ["/messagegroups/gg"])
    plan = reloads.taken()
    wait_until(lambda: reloads.changes("false"), LIMIT, "the change to be counted")
    wait_until(lambda: "catalog changes" in caplog.text, LIMIT, "all changes to be told")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("incompatible catalog change" in text and "candidate-removed" in text for text in told), told
    reloads.metrics.set_findings(plan.catalog.findings)
    found = reloads.metrics.registry.get_sample_value("xrouter_catalog_findings", {"severity": "warning"})
    assert found == sum(finding.severity == "warning" for finding in plan.catalog.findings) > 0


def test_what_takes_nothing_away_is_told_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    configure_logs(LogSettings())
    logging.getLogger().addHandler(caplog.handler)
    reloads = Changes(tmp_path, "refuse")
    write_groups(reloads.catalog, ["/messagegroups/g"], more=True)
    assert reloads.taken()
    wait_until(lambda: "catalog changes" in caplog.text, LIMIT, "all changes to be told")
    assert "definition-added" in caplog.text
    assert "incompatible catalog change" not in caplog.text
    assert reloads.changes("false") == 0 < reloads.changes("true")


def test_such_a_catalog_is_refused_where_the_settings_say_so(tmp_path: Path) -> None:
    reloads = Changes(tmp_path, "refuse")
    write_groups(reloads.catalog, ["/messagegroups/gg"])
    refused = reloads.refused()
    assert {finding["rule"] for finding in refused} == {"incompatible-change"}
    assert any("candidate-removed" in finding["message"] for finding in refused)
    assert reloads.changes("false") == 0
    # Put right, it goes on as it was.
    write_groups(reloads.catalog, ["/messagegroups/g"], more=True)
    assert wait_until(reloads.reloader.poll, LIMIT, "the fixed catalog")


def test_a_catalog_that_never_took_effect_is_compared_with_nothing(tmp_path: Path) -> None:
    reloads = Changes(tmp_path, "warn")
    write_groups(reloads.catalog, ["/messagegroups/gg"])
    held = wait_until(reloads.reloader.poll, LIMIT, "the change to be seen")
    assert held is not None
    # It waits, and another comes that takes its place.
    write_groups(reloads.catalog, ["/messagegroups/g"], more=True)
    plan = reloads.taken()
    difference = wait_until(lambda: differences(reloads.status).get(plan.epoch), LIMIT, "the difference")
    assert difference is not None
    assert (difference["incompatible"], {each["kind"] for each in difference["changes"]}) == (
        0,
        {"definition-added", "candidate-added"},
    )
    assert held.epoch not in differences(reloads.status)


def endpoint_of(document: dict[str, Any]) -> dict[str, Any]:
    endpoint: dict[str, Any] = document["endpoints"]["e"]
    return endpoint


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Replace a catalog by itself with a change."""
    document = json.loads(path.read_text())
    change(document)
    replace(path, json.dumps(document))


LOSSES = read_cases(Path(__file__).parents[3] / "cases" / "diff" / "losses.yaml")


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss["name"])
def test_a_source_does_not_lose_all_its_candidates_by_a_slip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: dict[str, Any]
) -> None:
    def slip(document: dict[str, Any]) -> None:
        *path, last = loss["at"]
        for key in path:
            document = document[key]
        document[last] = loss["value"]

    configure_logs(LogSettings())
    logging.getLogger().addHandler(caplog.handler)
    reloads = Changes(tmp_path, sources="[]")
    before = reloads.status.check_readiness()[1]["catalog"]
    changed(reloads.catalog, slip)
    (finding,) = reloads.refused()
    assert finding["rule"] == "incompatible-change"
    assert (
        "the source /endpoints/e would have no candidates left; it had 1 (/messagegroups/g/messages/m)"
        in (finding["message"])
    )
    assert loss["says"] in finding["message"]
    assert finding["hint"].startswith(loss["hint"])
    assert "catalog.on_incompatible" in finding["hint"]
    assert reloads.status.count_pending()["refused"] == 1
    assert reloads.changes("false") == 0
    assert "would have no candidates left" in caplog.text
    # The catalog of before is put back: nothing is refused any more, and nothing was reloaded.
    write_groups(reloads.catalog, ["/messagegroups/g"])

    def fixed() -> bool:
        assert reloads.reloader.poll() is None
        return reloads.status.count_pending()["refused"] == 0

    wait_until(fixed, LIMIT, "the catalog of before")
    assert reloads.status.check_readiness()[1]["catalog"]["refused"] == before["refused"] == []
    assert reloads.reloads("accepted") == 0


def test_an_endpoint_that_settings_name_is_not_given_up_by_a_slip(tmp_path: Path) -> None:
    reloads = Changes(tmp_path)

    def renamed(document: dict[str, Any]) -> None:
        document["endpoints"]["ee"] = document["endpoints"].pop("e")

    changed(reloads.catalog, renamed)
    (finding,) = reloads.refused()
    assert "the catalog has no such endpoint any more" in finding["message"]
    assert "did you mean /endpoints/ee?" in finding["hint"]


@pytest.mark.parametrize("purpose", ["removed", "for producers"])
def test_an_endpoint_that_only_the_catalog_makes_a_source_may_be_given_up(tmp_path: Path, purpose: str) -> None:
    reloads = Changes(tmp_path, sources="[]")

    def given_up(document: dict[str, Any]) -> None:
        endpoint = endpoint_of(document)
        document["endpoints"]["f"] = dict(endpoint)
        if purpose == "removed":
            del document["endpoints"]["e"]
        else:
            endpoint.update(usage=["producer"])

    changed(reloads.catalog, given_up)
    assert [source.endpoint for source in reloads.taken().sources] == ["/endpoints/f"]


def test_an_endpoint_that_lost_most_of_its_candidates_waits_for_a_second_look(tmp_path: Path) -> None:
    reloads = Changes(tmp_path)

    def many(document: dict[str, Any]) -> None:
        message = document["messagegroups"]["g"]["messages"]["m"]
        document["messagegroups"]["h"] = {"messages": {f"x{n}": message for n in range(9)}}
        endpoint_of(document).update(messagegroups=["/messagegroups/g", "/messagegroups/h"])

    changed(reloads.catalog, many)
    reloads.taken()
    changed(reloads.catalog, lambda each: endpoint_of(each).update(messagegroups=["/messagegroups/g"]))
    doubts: list[str] = []

    def accepted() -> Plan | None:
        plan = reloads.reloader.poll()
        doubts.extend(reloads.status.check_readiness()[1]["catalog"]["doubted"])
        return plan

    plan = wait_until(accepted, LIMIT, "the second look")
    assert plan is not None
    assert "/endpoints/e has 1 candidates, down from 10" in doubts


def test_what_a_reload_broke_counts_until_it_is_mended(tmp_path: Path) -> None:
    reloads = Changes(tmp_path, "warn")

    def broken() -> float | None:
        return reloads.metrics.registry.get_sample_value("xrouter_catalog_incompatible_changes")

    assert broken() == 0
    write_groups(reloads.catalog, ["/messagegroups/gg"])
    reloads.taken()
    wait_until(lambda: broken() == 1, LIMIT, "the change that takes records away")
    # Another change that is harmless by itself mends nothing.
    write_groups(reloads.catalog, ["/messagegroups/gg"], more=True)
    plan = reloads.taken()
    wait_until(lambda: plan.epoch in differences(reloads.status), LIMIT, "the difference")
    assert broken() == 1
    write_groups(reloads.catalog, ["/messagegroups/g"], more=True)
    reloads.taken()
    wait_until(lambda: broken() == 0, LIMIT, "the mend")
    assert reloads.changes("false") == 1


def test_a_change_that_is_put_back_is_mended_though_the_way_back_is_incompatible_too(tmp_path: Path) -> None:
    reloads = Changes(tmp_path, "warn")
    text = reloads.catalog.read_text()
    for catalog, wrong in ((text.replace('"value": "m"', '"value": "x"'), 1), (text, 0)):
        replace(reloads.catalog, catalog)
        plan = reloads.taken()
        wait_until(lambda epoch=plan.epoch: epoch in differences(reloads.status), LIMIT, "the difference")  # type: ignore[misc]
        assert differences(reloads.status)[plan.epoch]["incompatible"] >= 1
        wait_until(
            lambda wrong=wrong: (  # type: ignore[misc]
                bool(reloads.metrics.registry.get_sample_value("xrouter_catalog_incompatible_changes")) == bool(wrong)
            ),
            LIMIT,
            "the figure",
        )
