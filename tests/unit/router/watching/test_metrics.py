"""Metrics: the names of the contract, bounded labels, and batches counted in bulk."""

from __future__ import annotations

import threading
from collections import Counter

from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pytest import approx

from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally, sum_tallies
from router.watching.backlogs import Backlog
from router.watching.metrics import LATENCY_BUCKETS, BulkHistogram, Metrics, StatusCollector
from router.watching.shadow import EpochPair
from router.watching.status import RouterStatus
from tests.support.shop import plan

CONTRACT = {
    "xrouter_records": {"endpoint", "outcome", "reason"},
    "xrouter_definition_records": {"message"},
    "xrouter_batch_seconds": set(),
    "xrouter_record_latency_seconds": set(),
    "xrouter_source_lag_records": {"endpoint"},
    "xrouter_rest_records": set(),
    "xrouter_inbox_records": set(),
    "xrouter_inbox_oldest_seconds": set(),
    "xrouter_source_oldest_seconds": {"endpoint"},
    "xrouter_source_up": {"endpoint"},
    "xrouter_inbox_bytes": set(),
    "xrouter_inbox_max_bytes": set(),
    "xrouter_sink_writes": {"sink", "result"},
    "xrouter_catalog_info": set(),
    "xrouter_ready": set(),
    "xrouter_gateway_connected": set(),
    "xrouter_inbox_accepting": set(),
    "xrouter_catalog_definitions": set(),
    "xrouter_catalog_reloads": {"result"},
    "xrouter_gateway_received": {"endpoint"},
    "xrouter_gateway_acknowledged": {"endpoint"},
    # Later additions.
    "xrouter_ambiguous_records": {"endpoint"},
    "xrouter_query_held": {"query", "sink"},
    "xrouter_catalog_awaited": set(),
    "xrouter_catalog_doubted": set(),
    "xrouter_catalog_refused": set(),
    "xrouter_background_faults": {"part"},
    "xrouter_batch_faults": {"query", "fault"},
    "xrouter_batch_bytes": set(),
    "xrouter_catalog_held": set(),
    "xrouter_catalog_findings": {"severity"},
    "xrouter_catalog_changes": {"compatible"},
    "xrouter_build_info": {"version", "python"},
    "process_cpu_seconds": set(),
    "process_max_fds": set(),
    "process_open_fds": set(),
    "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
    "process_virtual_memory_bytes": set(),
    "xrouter_sink_records": {"sink", "endpoint"},
    "xrouter_sink_bytes": {"sink", "endpoint"},
    "xrouter_sink_write_seconds": {"sink"},
    "xrouter_conservation_gap": {"query"},
    "xrouter_taken_records": {"query"},
    "xrouter_empty_offsets": {"query"},
    "xrouter_source_last_record_timestamp_seconds": {"endpoint"},
    "xrouter_source_definitions": {"endpoint"},
    "xrouter_source_unseen_definitions": {"endpoint"},
    "xrouter_shadow_outcomes": {"endpoint", "result"},
    "xrouter_shadow_records": {"endpoint", "difference"},
    "xrouter_shadow_info": {"epoch"},
    "xrouter_shadow_broken": set(),
    "xrouter_unfit_values": {"sink", "message"},
    "xrouter_schema_ids": {"message", "schemaid", "by"},
    "xrouter_inbox_endpoint_records": {"endpoint"},
    "xrouter_inbox_endpoint_oldest_seconds": {"endpoint"},
    "xrouter_arrived_records": {"endpoint"},
    "xrouter_catalog_incompatible_changes": set(),
}
NOW = 1_700_000_000_000


def value(metrics: Metrics, sample: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(sample, labels)


def tally(records: dict[tuple[str, str, str], int], arrivals: dict[int, int] | None = None) -> Tally:
    return Tally(Counter(records), Counter(), Counter(arrivals or {}))


def test_names_and_labels_are_those_of_the_contract() -> None:
    metrics = Metrics(["lake"], ["/endpoints/a"])
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
    metrics.sinks.account("q", 1, 0, 0)
    metrics.shadow.init_series(["next.json"], ["/endpoints/a"])
    metrics.shadow.judging(EpochPair("e1", "e2"), 1)
    assert value(metrics, "xrouter_ambiguous_records_total", endpoint="/endpoints/a") == 5
    metrics.backlogs.update("q", {"/endpoints/a": Backlog(1, NOW)})
    metrics.backlogs.update("inbox", {"/endpoints/b": Backlog(1, NOW, 1)})
    metrics.coverage.follow(plan("m"))
    metrics.registry.register(StatusCollector(RouterStatus()))
    metrics.catalog_state.set_findings([])
    metrics.held("q", "lake")
    metrics.fault("q", "overdue")
    metrics.count_unfit_values("lake", {"/m": 4})
    assert value(metrics, "xrouter_unfit_values_total", sink="lake", message="/m") == 4
    found = {
        family.name: {name for sample in family.samples for name in sample.labels} - {"le"}
        for family in metrics.registry.collect()
    }
    assert found == CONTRACT


def test_a_batch_adds_its_outcomes_and_definitions() -> None:
    metrics = Metrics()
    batch = tally({("/endpoints/a", ROUTED, ""): 5, ("/endpoints/a", DEAD_LETTER, "no-match"): 2})
    batch.definitions["/endpoints/a", "/messagegroups/g/messages/m"] = 5
    batch.bytes = 1_000
    metrics.count_written_batch("q", batch, 0.3, NOW)
    metrics.count_written_batch("q", batch, 0.3, NOW)
    assert value(metrics, "xrouter_records_total", endpoint="/endpoints/a", outcome="routed", reason="") == 10
    assert (
        value(metrics, "xrouter_records_total", endpoint="/endpoints/a", outcome="dead-letter", reason="no-match") == 4
    )
    assert value(metrics, "xrouter_definition_records_total", message="/messagegroups/g/messages/m") == 10
    assert value(metrics, "xrouter_batch_seconds_count") == 2
    assert value(metrics, "xrouter_batch_seconds_sum") == approx(0.6)
    assert value(metrics, "xrouter_batch_bytes_sum") == 2_000


def test_latency_is_commit_less_arrival_and_never_negative() -> None:
    metrics = Metrics()
    metrics.count_written_batch("q", tally({}, {NOW - 20: 1_000_000_000, NOW - 2000: 3, NOW + 500: 1}), 0.1, NOW)
    assert value(metrics, "xrouter_record_latency_seconds_bucket", le="0.005") == 1
    assert value(metrics, "xrouter_record_latency_seconds_bucket", le="0.025") == 1_000_000_001
    assert value(metrics, "xrouter_record_latency_seconds_bucket", le="+Inf") == 1_000_000_004
    assert value(metrics, "xrouter_record_latency_seconds_count") == 1_000_000_004
    assert value(metrics, "xrouter_record_latency_seconds_sum") == approx(20_000_006)
    assert (LATENCY_BUCKETS[0], LATENCY_BUCKETS[-1]) == (0.005, 600)


def test_bulk_histogram_puts_a_bound_into_its_own_bucket() -> None:
    histogram = BulkHistogram("h", "A histogram.", (1.0, 2.0))
    histogram.add([(1.0, 1), (1.5, 1), (9.0, 2)])
    [family] = histogram.collect()
    buckets = [(sample.labels["le"], sample.value) for sample in family.samples if sample.name == "h_bucket"]
    assert buckets == [("1.0", 1), ("2.0", 2), ("+Inf", 4)]


def test_definitions_and_endpoints_past_their_cap_share_other() -> None:
    metrics = Metrics(definitions=2, endpoint_cap=1)
    batch = tally({(f"/endpoints/{n}", ROUTED, ""): 1 for n in range(3)})
    batch.definitions.update({("/endpoints/a", f"/m/{n}"): 1 for n in range(5)})
    metrics.count_written_batch("q", batch, 0.1, NOW)
    assert value(metrics, "xrouter_definition_records_total", message="/m/1") == 1
    assert value(metrics, "xrouter_definition_records_total", message="/m/2") is None
    assert value(metrics, "xrouter_definition_records_total", message="other") == 3
    assert value(metrics, "xrouter_records_total", endpoint="other", outcome="routed", reason="") == 2


def test_series_of_what_is_known_begin_at_zero() -> None:
    metrics = Metrics(["lake"], ["/endpoints/a"])
    for result in ("ok", "error"):
        assert value(metrics, "xrouter_sink_writes_total", sink="lake", result=result) == 0
    for result in ("accepted", "refused"):
        assert value(metrics, "xrouter_catalog_reloads_total", result=result) == 0
    assert value(metrics, "xrouter_records_total", endpoint="/endpoints/a", outcome="routed", reason="") == 0
    assert value(metrics, "xrouter_gateway_received_total", endpoint="/endpoints/a") == 0
    metrics.init_series(sinks=["late"])
    assert value(metrics, "xrouter_sink_writes_total", sink="late", result="ok") == 0


def test_a_write_for_several_sinks_counts_for_each() -> None:
    metrics = Metrics(["a", "b", "odd,name"])
    metrics.count_sink_write("a,b", "error")
    metrics.count_sink_write("odd,name", "ok")
    assert value(metrics, "xrouter_sink_writes_total", sink="a", result="error") == 1
    assert value(metrics, "xrouter_sink_writes_total", sink="b", result="error") == 1
    assert value(metrics, "xrouter_sink_writes_total", sink="odd,name", result="ok") == 1
    assert value(metrics, "xrouter_sink_writes_total", sink="odd", result="ok") is None


def test_a_query_is_held_by_what_is_in_the_way_now() -> None:
    metrics = Metrics(["a", "b", "odd,name"])

    def held(query: str) -> set[str]:
        samples = [each for family in metrics.registry.collect() for each in family.samples]
        held = [each for each in samples if each.name == "xrouter_query_held" and each.value == 1]
        return {each.labels["sink"] for each in held if each.labels["query"] == query}

    metrics.held("inbox", "a,b")
    metrics.held("kafka", "odd,name")
    assert (held("inbox"), held("kafka")) == ({"a", "b"}, {"odd,name"})
    metrics.held("inbox")
    assert (held("inbox"), held("kafka")) == ({""}, {"odd,name"})
    metrics.released("inbox")
    metrics.released("nobody")
    assert (held("inbox"), held("kafka")) == (set(), {"odd,name"})


def test_a_query_that_has_never_been_held_says_so() -> None:
    metrics = Metrics(["a"])
    metrics.held("before")
    for query in ("q", "before"):
        metrics.init_query_series(query)
    assert value(metrics, "xrouter_query_held", query="q", sink="") == 0
    assert value(metrics, "xrouter_query_held", query="before", sink="") == 1


def test_only_the_active_epoch_has_a_series() -> None:
    metrics, status = Metrics(), RouterStatus()
    metrics.registry.register(StatusCollector(status))
    assert value(metrics, "xrouter_catalog_definitions") == 0
    for epoch, definitions in (("e1", 3), ("e2", 5), ("e2", 5)):
        status.set_catalog(epoch, definitions)
    assert value(metrics, "xrouter_catalog_info", epoch="e1") is None
    assert value(metrics, "xrouter_catalog_info", epoch="e2") == 1
    assert value(metrics, "xrouter_catalog_definitions") == 5


def test_an_unchanged_catalog_is_no_reload() -> None:
    metrics = Metrics()
    metrics.count_reload("accepted")
    metrics.count_reload("refused")
    metrics.count_reload("unchanged")
    assert value(metrics, "xrouter_catalog_reloads_total", result="accepted") == 1
    assert value(metrics, "xrouter_catalog_reloads_total", result="refused") == 1
    assert value(metrics, "xrouter_catalog_reloads_total", result="unchanged") is None


def test_gauges_hold_what_was_last_set() -> None:
    metrics = Metrics()
    metrics.set_inbox_size(4096, 10_000)
    assert value(metrics, "xrouter_inbox_bytes") == 4096
    assert value(metrics, "xrouter_inbox_max_bytes") == 10_000


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
