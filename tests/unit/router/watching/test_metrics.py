"""Metrics: the names of the contract, bounded labels, and batches counted in bulk."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Final

from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.evaluation.outputs import Tally, sum_tallies
from router.watching.backlogs import Backlog
from router.watching.metrics import BulkHistogram, Metrics, StatusCollector
from router.watching.shadow import EpochPair
from router.watching.status import RouterStatus
from tests.support.cases import read_cases
from tests.support.shop import plan

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "watching" / "metrics.yaml"
CONTRACT: Final = {name: set(labels.split()) for labels, names in read_cases(CASES).items() for name in names.split()}
NOW = 1_700_000_000_000


def value(metrics: Metrics, sample: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(sample, labels)


def test_names_and_labels_are_those_of_the_contract() -> None:
    metrics = Metrics(["lake"])
    metrics.init_series(endpoints=["/endpoints/a"])
    decided = sum_tallies(['{"arrivals": [], "spilled": 0, "bytes": 0, "ties": [["/endpoints/a", 2]]}'], ())
    decided.add(
        Tally.from_json(
            Tally(
                Counter(), Counter({("/endpoints/a", "/m"): 1}), Counter(), ties=Counter({"/endpoints/a": 3})
            ).to_json()
        )
    )
    decided.delivered["lake", "/endpoints/a"] = 1
    decided.ids["/m", "7", "name"] = 1
    metrics.count_written_batch("q", decided, 0.1, NOW)
    metrics.account("q", 1, 0, 0)
    metrics.shadow.init_series(["next.json"], ["/endpoints/a"])
    metrics.shadow.judging(EpochPair("e1", "e2"), 1)
    assert value(metrics, "xrouter_ambiguous_records_total", endpoint="/endpoints/a") == 5
    metrics.backlogs.update("q", {"/endpoints/a": Backlog(1, NOW)})
    metrics.backlogs.update("inbox", {"/endpoints/b": Backlog(1, NOW, 1)})
    metrics.coverage.follow(plan("m"))
    metrics.registry.register(StatusCollector(RouterStatus()))
    metrics.set_findings([])
    metrics.held("q", "lake")
    metrics.fault("q", "overdue")
    metrics.count_unfit_values("lake", {"/m": 4})
    assert value(metrics, "xrouter_unfit_values_total", sink="lake", message="/m") == 4
    found = {
        family.name: {name for sample in family.samples for name in sample.labels} - {"le"}
        for family in metrics.registry.collect()
    }
    assert found == CONTRACT


def test_bulk_histogram_puts_a_bound_into_its_own_bucket() -> None:
    histogram = BulkHistogram("h", "A histogram.", (1.0, 2.0))
    histogram.add([(1.0, 1), (1.5, 1), (9.0, 2)])
    [family] = histogram.collect()
    buckets = [(sample.labels["le"], sample.value) for sample in family.samples if sample.name == "h_bucket"]
    assert buckets == [("1.0", 1), ("2.0", 2), ("+Inf", 4)]


def test_gateway_counts_from_many_threads_are_all_kept() -> None:
    metrics = Metrics()

    def count() -> None:
        for _ in range(2000):
            metrics.received("/endpoints/a")
            metrics.acknowledged("/endpoints/a")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "xrouter_gateway_received_total", endpoint="/endpoints/a") == 8000
    assert value(metrics, "xrouter_gateway_acknowledged_total", endpoint="/endpoints/a") == 8000


def test_each_router_has_a_registry_of_its_own_and_both_forms_can_be_read() -> None:
    first, second = Metrics(["lake"]), Metrics(["lake"])
    first.count_sink_write("lake", "ok")
    assert value(second, "xrouter_sink_writes_total", sink="lake", result="ok") == 0
    text = generate_latest(first.registry).decode()  # type: ignore[no-untyped-call]
    assert text.endswith("# EOF\n") and "_created" not in text
    assert list(text_string_to_metric_families(text.replace("# EOF\n", "")))
