"""What is told of a shadow catalog: all records of its time are accounted for, compared or not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from catalog.model import Finding
from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.watching.metrics import Metrics
from router.watching.shadow import EpochPair

PAIR = EpochPair("old", "new")
E = "/endpoints/e"


def tally(records: int, *shadow: tuple[str, str, str, int], after: str = "new") -> Tally:
    made = Tally(Counter({(E, ROUTED, ""): records - 1, (E, DEAD_LETTER, "no-match"): 1}))
    made.shadow.update({("old", after, E, what, was, now): number for what, was, now, number in shadow})
    return made


def shadowed() -> Metrics:
    metrics = Metrics()
    metrics.shadow.init_series(["next.json"], [E])
    return metrics


def told(metrics: Metrics) -> dict[str, Any]:
    document = metrics.shadow.to_json()
    assert document is not None
    return document


def broken(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("xrouter_shadow_broken")


def results(metrics: Metrics) -> dict[str, int]:
    value = metrics.registry.get_sample_value
    names = ("unchanged", "changed", "left-out", "failed")
    series = {name: value("xrouter_shadow_outcomes_total", {"endpoint": E, "result": name}) for name in names}
    return {name: int(number or 0) for name, number in series.items()}


def test_without_a_shadow_nothing_is_told_and_nothing_counted() -> None:
    metrics = Metrics()
    metrics.outcomes(tally(5))
    assert metrics.shadow.to_json() is None
    assert results(metrics) == {"unchanged": 0, "changed": 0, "left-out": 0, "failed": 0}


def test_what_was_compared_and_what_was_not_are_all_records() -> None:
    metrics = shadowed()
    metrics.outcomes(tally(3))  # It is not loaded yet.
    metrics.shadow.judging(PAIR, 7, ["no longer read with the new catalog: /endpoints/f"])
    metrics.outcomes(tally(10, ("unchanged", "", "", 4), ("changed", "", "", 2), ("route", "a", "b", 2)))
    metrics.outcomes(tally(10, ("failed", "MemoryError", "", 9), ("changed", "", "", 1), ("route", "a", "b", 1)))
    assert results(metrics) == {"unchanged": 4, "changed": 3, "left-out": 7, "failed": 9}
    document = told(metrics)
    sums = {name: document[name] for name in ("outcomes", "unchanged", "left_out", "failed", "errors")}
    assert sums == {"outcomes": 7, "unchanged": 4, "left_out": 4, "failed": 9, "errors": {"MemoryError": 9}}
    assert (document["changed"]["route"], document["definitions"], document["state"]) == (3, 7, "judging")
    assert document["groups"] == [{"kind": "route", "before": "a", "after": "b", "outcomes": 3}]
    assert [each["endpoint"] for each in document["endpoints"]] == [E]
    assert document["notes"] == ["no longer read with the new catalog: /endpoints/f"]
    value = metrics.registry.get_sample_value
    assert value("xrouter_shadow_records_total", {"endpoint": E, "difference": "route"}) == 3
    assert value("xrouter_shadow_info", {"epoch": "new"}) == 1


def test_another_catalog_begins_at_nothing_and_late_counts_are_not_its_own() -> None:
    metrics = shadowed()
    metrics.shadow.judging(PAIR, 7)
    metrics.outcomes(tally(2, ("changed", "", "", 2), ("event", "a", "a", 2)))
    metrics.shadow.judging(EpochPair("old", "newer"), 8)
    metrics.outcomes(tally(2, ("changed", "", "", 2), ("event", "a", "a", 2)))
    metrics.outcomes(tally(2, ("unchanged", "", "", 2), after="newer"))
    document = told(metrics)
    assert (document["after"], document["outcomes"], document["changed"]["event"]) == ("newer", 2, 0)
    assert results(metrics) == {"unchanged": 2, "changed": 4, "left-out": 0, "failed": 0}


def test_once_it_is_what_is_active_its_figures_stay_and_nothing_is_counted() -> None:
    metrics = shadowed()
    metrics.shadow.judging(PAIR, 7)
    metrics.outcomes(tally(2, ("changed", "", "", 2), ("matched", "no-match", "a", 2)))
    metrics.shadow.judging(EpochPair("new", "new"), 7)
    metrics.outcomes(tally(9))
    document = told(metrics)
    assert (document["state"], document["changed"]["matched"], document["left_out"]) == ("active", 2, 0)
    assert metrics.registry.get_sample_value("xrouter_shadow_info", {"epoch": "new"}) is None


def test_what_is_wrong_is_told_until_it_is_mended() -> None:
    metrics = shadowed()
    finding = Finding("next.json", "", "error", "unreadable-document", "is no JSON", "mend it")
    metrics.shadow.judging(PAIR, 7)
    metrics.shadow.broken("1 error: is no JSON", [finding])
    document = told(metrics)
    assert (document["state"], document["reason"], broken(metrics)) == ("judging", "1 error: is no JSON", 1)
    assert document["findings"][0]["rule"] == "unreadable-document"
    metrics.shadow.broken("")
    assert (told(metrics)["reason"], told(metrics)["findings"], broken(metrics)) == ("", [], 0)
    metrics.shadow.set_aside("batch 3 of inbox failed with it")
    assert (told(metrics)["state"], broken(metrics)) == ("set-aside", 1)
    metrics.outcomes(tally(4))
    assert told(metrics)["left_out"] == 4
