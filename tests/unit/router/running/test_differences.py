"""What a reload says of its changes: each that takes records away, a count, and with the setting a refusal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.load import load
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.running.reload import CatalogComparisons, Reloader
from router.settings import LogSettings, load_settings
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.cases import read_cases
from tests.support.waiting import wait_until

LIMIT = 60.0
CONFIG = """
catalog: {source: ./catalog.json, poll: 10ms, on_incompatible: MODE}
sources: [{endpoint: /endpoints/e}]
sinks: {out: {type: jsonl, path: ./out}}
routes: [{to: out}]
dead_letters: {sinks: [out]}
"""


def differences(status: RouterStatus) -> dict[str, Any]:
    """Return the changes of each catalog that became active, by its epoch."""
    return {each["epoch"]: each["difference"] for each in status.history_to_json() if each["difference"]}


def write(path: Path, groups: list[str], *, more: bool = False) -> None:
    """Write a catalog, whose endpoint expects what is in these groups."""
    options = {"endpoints": [{"uri": "localhost:9092"}], "options": {"topic": "t"}}
    endpoint = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": options, "messagegroups": groups}

    def event(kind: str) -> dict[str, Any]:
        return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": kind}}}

    messages = {"m": event("m"), **({"n": event("n")} if more else {})}
    document = {"endpoints": {"e": endpoint}, "messagegroups": {"g": {"messages": messages}}}
    fresh = path.with_suffix(".fresh")
    fresh.write_text(json.dumps(document))
    fresh.replace(path)


class Reloads:
    """A reloader over a catalog file."""

    def __init__(self, folder: Path, mode: str = "", sources: str = "[{endpoint: /endpoints/e}]") -> None:
        """Without a *mode*, it is the default one; without *sources*, the consumers of the catalog are."""
        self.catalog = folder / "catalog.json"
        told = CONFIG.replace("MODE", mode) if mode else CONFIG.replace(", on_incompatible: MODE", "")
        (folder / "router.yaml").write_text(told.replace("[{endpoint: /endpoints/e}]", sources))
        write(self.catalog, ["/messagegroups/g"])
        settings = load_settings(folder / "router.yaml", {})
        self.metrics, self.status = Metrics(), RouterStatus()
        active = Plan(load([self.catalog]), settings)
        self.reloader = Reloader(settings, active, self.metrics, self.status)
        self.comparisons = CatalogComparisons(self.metrics, self.status)
        self.comparisons.set_active(active.catalog)

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
    reloads = Reloads(tmp_path, "warn")
    write(reloads.catalog, ["/messagegroups/gg"])
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
    reloads = Reloads(tmp_path, "refuse")
    write(reloads.catalog, ["/messagegroups/g"], more=True)
    assert reloads.taken()
    wait_until(lambda: "catalog changes" in caplog.text, LIMIT, "all changes to be told")
    assert "definition-added" in caplog.text
    assert "incompatible catalog change" not in caplog.text
    assert reloads.changes("false") == 0 < reloads.changes("true")


def test_such_a_catalog_is_refused_where_the_settings_say_so(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path, "refuse")
    write(reloads.catalog, ["/messagegroups/gg"])
    refused = reloads.refused()
    assert {finding["rule"] for finding in refused} == {"incompatible-change"}
    assert any("candidate-removed" in finding["message"] for finding in refused)
    assert reloads.changes("false") == 0
    # Put right, it goes on as it was.
    write(reloads.catalog, ["/messagegroups/g"], more=True)
    assert wait_until(reloads.reloader.poll, LIMIT, "the fixed catalog")


def test_a_catalog_that_never_took_effect_is_compared_with_nothing(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path, "warn")
    write(reloads.catalog, ["/messagegroups/gg"])
    held = wait_until(reloads.reloader.poll, LIMIT, "the change to be seen")
    assert held is not None
    # It waits, and another comes that takes its place.
    write(reloads.catalog, ["/messagegroups/g"], more=True)
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
    fresh = path.with_suffix(".fresh")
    fresh.write_text(json.dumps(document))
    fresh.replace(path)


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
    reloads = Reloads(tmp_path, sources="[]")
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
    write(reloads.catalog, ["/messagegroups/g"])

    def fixed() -> bool:
        assert reloads.reloader.poll() is None
        return reloads.status.count_pending()["refused"] == 0

    wait_until(fixed, LIMIT, "the catalog of before")
    assert reloads.status.check_readiness()[1]["catalog"]["refused"] == before["refused"] == []
    assert reloads.reloads("accepted") == 0


def test_an_endpoint_that_settings_name_is_not_given_up_by_a_slip(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path)

    def renamed(document: dict[str, Any]) -> None:
        document["endpoints"]["ee"] = document["endpoints"].pop("e")

    changed(reloads.catalog, renamed)
    (finding,) = reloads.refused()
    assert "the catalog has no such endpoint any more" in finding["message"]
    assert "did you mean /endpoints/ee?" in finding["hint"]


@pytest.mark.parametrize("purpose", ["removed", "for producers"])
def test_an_endpoint_that_only_the_catalog_makes_a_source_may_be_given_up(tmp_path: Path, purpose: str) -> None:
    reloads = Reloads(tmp_path, sources="[]")

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
    reloads = Reloads(tmp_path)

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
    reloads = Reloads(tmp_path, "warn")

    def broken() -> float | None:
        return reloads.metrics.registry.get_sample_value("xrouter_catalog_incompatible_changes")

    assert broken() == 0
    write(reloads.catalog, ["/messagegroups/gg"])
    reloads.taken()
    wait_until(lambda: broken() == 1, LIMIT, "the change that takes records away")
    # Another change that is harmless by itself mends nothing.
    write(reloads.catalog, ["/messagegroups/gg"], more=True)
    plan = reloads.taken()
    wait_until(lambda: plan.epoch in differences(reloads.status), LIMIT, "the difference")
    assert broken() == 1
    write(reloads.catalog, ["/messagegroups/g"], more=True)
    reloads.taken()
    wait_until(lambda: broken() == 0, LIMIT, "the mend")
    assert reloads.changes("false") == 1


def test_a_change_that_is_put_back_is_mended_though_the_way_back_is_incompatible_too(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path, "warn")
    text = reloads.catalog.read_text()
    for catalog, wrong in ((text.replace('"value": "m"', '"value": "x"'), 1), (text, 0)):
        fresh = reloads.catalog.with_suffix(".fresh")
        fresh.write_text(catalog)
        fresh.replace(reloads.catalog)
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
