"""Coverage over time: what never occurred and what occurred when, through reloads, restarts and repeats."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.logs import configure_logs
from router.settings import LogSettings
from router.state.database import StateDatabase
from router.state.ledger import DefinitionAtEndpoint as At
from router.state.ledger import Sighting, instant_of, sightings_in
from router.watching.coverage import EVERY_SECONDS, SHOWN, Coverage, CoverageView, ThroughputLog
from router.watching.metrics import Metrics
from tests.support.shop import plan

A, B = "/endpoints/a", "/endpoints/b"
ONE, TWO, THREE = (f"/messagegroups/g/messages/{name}" for name in ("one", "two", "three"))
FILE = Path("state.db")


class Clock:
    """Goes on when told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def batch(*pairs: tuple[str, str]) -> Tally:
    """Return the counts of a batch with a record of each definition at its endpoint."""
    records = Counter((endpoint, ROUTED, "") for endpoint, _ in pairs)
    return Tally(records, Counter(pairs))


def process(clock: Clock, root: Path | None = None) -> Coverage:
    """Return what a router that starts has of it."""
    coverage = Coverage(clock=clock, now=clock)
    if root is not None:
        coverage.keep_in(StateDatabase(root))
    return coverage


def view(coverage: Coverage, endpoint: str) -> dict[str, Any]:
    return CoverageView(coverage.all_sightings()).source_to_json(endpoint)


def never(coverage: Coverage) -> set[At]:
    return {place for place, each in coverage.all_sightings().items() if each.first is None}


def test_what_is_expected_is_unseen_until_it_occurs_where_it_is_expected(clock: Clock) -> None:
    coverage = process(clock)
    coverage.follow(plan("one", "two"))
    assert never(coverage) == {At(A), At(A, ONE), At(A, TWO), At(B), At(B, ONE), At(B, TWO)}
    clock.now += 5
    coverage.add_batch(batch((A, ONE), (A, THREE), ("", ONE)))
    assert never(coverage) == {At(A, TWO), At(B), At(B, ONE), At(B, TWO)}
    first = coverage.all_sightings()[At(A, ONE)]
    assert (first.first, first.last, first.since) == (1_700_000_005, 1_700_000_005, 1_700_000_000)
    clock.now += 5
    coverage.add_batch(batch((A, ONE)))
    assert coverage.all_sightings()[At(A, ONE)] == Sighting(first.epoch, first.since, first.first, 1_700_000_010)
    assert view(coverage, A)["unseen"] == 1 and view(coverage, B)["last_record"] is None


def test_dead_letters_are_records_of_their_endpoint_and_of_no_definition(clock: Clock) -> None:
    coverage = process(clock)
    coverage.follow(plan("one"))
    coverage.add_batch(Tally(Counter({(A, DEAD_LETTER, "no-match"): 2, (B, ROUTED, ""): 0})))
    assert never(coverage) == {At(A, ONE), At(B), At(B, ONE)}


def test_a_reload_forgets_what_goes_and_begins_what_comes(clock: Clock) -> None:
    coverage = process(clock)
    before, after = plan("one", "two"), plan("two", "three", endpoints="a")
    coverage.follow(before)
    coverage.add_batch(batch((A, ONE), (A, TWO), (B, ONE)))
    clock.now += 100
    coverage.follow(after)
    known = coverage.all_sightings()
    assert set(known) == {At(A), At(A, TWO), At(A, THREE)}
    assert (known[At(A, TWO)].first, known[At(A, TWO)].epoch) == (1_700_000_000, before.epoch)
    assert known[At(A, THREE)] == Sighting(after.epoch, 1_700_000_100)
    coverage.follow(before)
    assert coverage.all_sightings()[At(A, ONE)] == Sighting(before.epoch, 1_700_000_100)
    assert view(coverage, A)["unseen"] == 1


def test_it_goes_on_through_restarts_and_a_first_occurrence_survives_a_kill(clock: Clock, tmp_path: Path) -> None:
    assert sightings_in(tmp_path) is None
    killed = process(clock, tmp_path)
    killed.follow(plan("one", "two"))
    clock.now += 5
    killed.add_batch(batch((A, ONE)))
    clock.now += 5
    killed.add_batch(batch((A, ONE)))
    found = sightings_in(tmp_path)
    assert found is not None
    assert (found[At(A, ONE)].last, found[At(A, TWO)].last) == (1_700_000_005, None)
    killed.add_batch(batch((B, TWO)))
    found = sightings_in(tmp_path)
    # A first occurrence is written by itself.
    assert found is not None and found[At(B, TWO)].last == 1_700_000_010
    assert found[At(A, ONE)].last == 1_700_000_005
    clock.now += EVERY_SECONDS
    killed.save_if_due()
    assert (sightings_in(tmp_path) or {})[At(A, ONE)].last == 1_700_000_010
    # Nobody closed it.
    again = process(clock, tmp_path)
    again.follow(plan("two", "one", "three", endpoints="a"))
    assert never(again) == {At(A, TWO), At(A, THREE)}
    assert again.all_sightings()[At(A, ONE)].since == 1_700_000_000
    assert again.all_sightings()[At(A, THREE)].since == int(clock.now)
    again.add_batch(batch((A, ONE)))
    again.close()
    found = sightings_in(tmp_path)
    assert found is not None and set(found) == set(again.all_sightings())
    assert found[At(A, ONE)].last == int(clock.now)


def test_a_clock_that_goes_back_takes_nothing_back(clock: Clock) -> None:
    coverage = process(clock)
    coverage.follow(plan("one"))
    coverage.add_batch(batch((A, ONE)))
    clock.now -= 1000
    coverage.add_batch(batch((A, ONE)))
    assert view(coverage, A)["last_record"] == instant_of(1_700_000_000)


def test_a_batch_that_comes_again_after_a_crash_is_seen_though_it_counts_once() -> None:
    metrics = Metrics()
    metrics.coverage.follow(plan("one"))
    metrics.count_written_batch("q", batch((A, ONE)), 0.1, 0, counted=True)
    assert metrics.registry.get_sample_value("xrouter_source_unseen_definitions", {"endpoint": A}) == 0
    assert metrics.registry.get_sample_value("xrouter_definition_records_total", {"message": ONE}) is None


def test_there_is_a_series_for_each_source_and_none_for_definitions() -> None:
    metrics = Metrics(max_series=1)
    metrics.init_series(endpoints=[A])
    metrics.coverage.follow(plan(*(f"m{number}" for number in range(50))))
    metrics.outcomes(batch((B, "/messagegroups/g/messages/m1")))
    families = [family for family in metrics.registry.collect() if family.name.startswith("xrouter_source_")]
    told = {
        (sample.name.removeprefix("xrouter_source_"), sample.labels["endpoint"]): sample.value
        for family in families
        for sample in family.samples
    }
    assert told[("definitions", A)] == 50 == told[("definitions", "other")]
    assert told[("unseen_definitions", A)] == 50 and told[("unseen_definitions", "other")] == 49
    assert told[("last_record_timestamp_seconds", A)] == 0
    assert told[("last_record_timestamp_seconds", "other")] > 1_700_000_000


def test_what_could_not_be_written_is_written_later(clock: Clock, tmp_path: Path) -> None:

    coverage = process(clock, tmp_path)
    coverage.follow(plan("one"))
    database = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    database.execute("ALTER TABLE sightings RENAME TO away")
    coverage.add_batch(batch((A, ONE)))
    coverage.follow(plan("one", endpoints="a"))
    database.execute("ALTER TABLE away RENAME TO sightings")
    database.close()
    clock.now += EVERY_SECONDS
    coverage.save_if_due()
    found = sightings_in(tmp_path)
    assert found is not None and set(found) == {At(A), At(A, ONE)}
    assert found[At(A, ONE)].first == 1_700_000_000


# What the log says of what went through: once a minute, and nothing when nothing did.


class Minutes:
    """A flow whose clock a test turns, and the lines that it logs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._out = io.StringIO()
        configure_logs(LogSettings(format="json"), self._out)
        self.flow = ThroughputLog(lambda: self.now)

    def told(self, seconds: float = EVERY_SECONDS, *, last: bool = False) -> list[dict[str, Any]]:
        """Let time pass, and return what is logged then."""
        self.now += seconds
        self._out.seek(0)
        self._out.truncate()
        self.flow.log_if_due(last=last)
        return [json.loads(line) for line in self._out.getvalue().splitlines()]


def test_one_line_a_minute_has_the_counts_of_each_endpoint() -> None:
    minutes = Minutes()
    minutes.flow.add({("/endpoints/a", ROUTED, ""): 5, ("/endpoints/a", DEAD_LETTER, "no-match"): 2})
    minutes.flow.add({("/endpoints/b", ROUTED, ""): 9, ("/endpoints/c", ROUTED, ""): 0})
    assert minutes.told(EVERY_SECONDS / 2) == []
    [line] = minutes.told(EVERY_SECONDS / 2)
    assert line["event"] == "throughput"
    assert (line["records"], line["dead_letters"], line["seconds"]) == (16, 2, EVERY_SECONDS)
    assert line["endpoints"] == {"/endpoints/b": {"routed": 9}, "/endpoints/a": {"routed": 5, "no-match": 2}}
    assert minutes.told() == [], "a minute without a record has no line"
    minutes.flow.add({("/endpoints/a", ROUTED, ""): 1})
    assert [line["records"] for line in minutes.told()] == [1]


def test_what_went_through_since_the_last_line_is_told_in_the_end() -> None:
    minutes = Minutes()
    minutes.flow.add({("/endpoints/a", ROUTED, ""): 5})
    [line] = minutes.told(7, last=True)
    assert (line["records"], line["seconds"]) == (5, 7)
    assert minutes.told(7, last=True) == []


def test_many_endpoints_make_no_endless_line() -> None:
    minutes = Minutes()
    minutes.flow.add({(f"/endpoints/{n:03}", ROUTED, ""): 1 + (n < SHOWN) for n in range(SHOWN + 30)})
    [line] = minutes.told()
    assert len(line["endpoints"]) == SHOWN + 1
    assert line["endpoints"]["other"] == {"records": 30}


def test_batches_are_told_and_what_a_start_resumes_is_not() -> None:
    metrics, tally = Metrics(), Tally()
    tally.records["/endpoints/a", ROUTED, ""] = 3
    out = io.StringIO()
    configure_logs(LogSettings(format="json"), out)
    metrics.flow = ThroughputLog(iter([0.0, EVERY_SECONDS]).__next__)
    metrics.count_written_batch("q", tally, 0.1, 0)
    metrics.count_written_batch("q", tally, 0.1, 0, counted=True)
    metrics.flow.log_if_due()
    assert [json.loads(line)["records"] for line in out.getvalue().splitlines()] == [3]
