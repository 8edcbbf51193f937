"""Coverage over time: what never occurred and what occurred when, through reloads, restarts and repeats."""

from __future__ import annotations

import io
import json
from collections import Counter

from router.evaluation.outputs import ROUTED, Tally
from router.logs import configure_logs
from router.settings import LogSettings
from router.watching.coverage import EVERY_SECONDS, SHOWN, ThroughputLog
from router.watching.metrics import Metrics
from tests.support.shop import plan

A, B = "/endpoints/a", "/endpoints/b"
ONE, TWO, THREE = (f"/messagegroups/g/messages/{name}" for name in ("one", "two", "three"))


def batch(*pairs: tuple[str, str]) -> Tally:
    """Return the counts of a batch with a record of each definition at its endpoint."""
    records = Counter((endpoint, ROUTED, "") for endpoint, _ in pairs)
    return Tally(records, Counter(pairs))


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


# What the log says of what went through: once a minute, and nothing when nothing did.


def test_many_endpoints_make_no_endless_line() -> None:
    out = io.StringIO()
    configure_logs(LogSettings(format="json"), out)
    flow = ThroughputLog(iter([0.0, EVERY_SECONDS]).__next__)
    flow.add({(f"/endpoints/{n:03}", ROUTED, ""): 1 + (n < SHOWN) for n in range(SHOWN + 30)})
    flow.log_if_due()
    line = json.loads(out.getvalue())
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
