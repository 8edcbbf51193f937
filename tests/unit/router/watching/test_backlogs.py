"""What waits at the sources, as metrics: there when a source has said it, and gone when it has not."""

from __future__ import annotations

from router.watching.backlogs import INBOX, REST, STALE_SECONDS, Backlog, Backlogs
from router.watching.metrics import Metrics

A, B = "/endpoints/a", "/endpoints/b"


def figures(backlogs: Backlogs) -> dict[tuple[str, str], float]:
    samples = [sample for family in backlogs.collect() for sample in family.samples]
    found = {(each.name.removeprefix("xrouter_"), each.labels.get("endpoint", "")): each.value for each in samples}
    return {key: value for key, value in found.items() if key[0] != "arrived_records_total"}


def test_what_waits_and_since_when() -> None:
    backlogs = Backlogs(now=lambda: 1_000.0)
    backlogs.update("kafka-1", {A: Backlog(1_682, 940_000), B: Backlog(0)})
    backlogs.update("inbox", {INBOX: Backlog(3, 1_007_000)})
    backlogs.update("rest", {REST: Backlog(4)})
    assert figures(backlogs) == {
        ("source_lag_records", A): 1_682,
        ("source_oldest_seconds", A): 60,
        ("source_up", A): 1,
        ("source_lag_records", B): 0,
        ("source_oldest_seconds", B): 0,
        ("source_up", B): 1,
        ("inbox_records", ""): 3,
        ("inbox_oldest_seconds", ""): 0,
        ("rest_records", ""): 4,
    }


def test_a_source_that_does_not_answer_has_no_figures_and_is_down() -> None:
    backlogs = Backlogs()
    backlogs.update("kafka-1", {A: Backlog(7, 1)})
    backlogs.update("inbox", {INBOX: Backlog(7, 1)})
    backlogs.update("kafka-1", {A: None})
    backlogs.update("inbox", {INBOX: None})
    assert figures(backlogs) == {("source_up", A): 0}


def test_an_age_that_is_not_known_is_absent() -> None:
    backlogs = Backlogs()
    backlogs.update("kafka-1", {A: Backlog(7)})
    assert figures(backlogs) == {("source_lag_records", A): 7, ("source_up", A): 1}


def test_figures_that_nobody_brings_up_to_date_go() -> None:
    now = 0.0
    backlogs = Backlogs(clock=lambda: now)
    backlogs.update("kafka-1", {A: Backlog(7)})
    now = STALE_SECONDS
    assert figures(backlogs)[("source_lag_records", A)] == 7
    now = STALE_SECONDS + 1
    assert figures(backlogs) == {("source_up", A): 0}
    backlogs.forget("kafka-1")
    assert not figures(backlogs)


def test_endpoints_past_the_cap_are_one_series_and_known_only_together() -> None:
    metrics = Metrics(max_series=1)
    metrics.init_series(endpoints=[A])
    metrics.backlogs.update("kafka-1", {A: Backlog(1), "/endpoints/x": Backlog(2), "/endpoints/y": Backlog(3)})
    found = figures(metrics.backlogs)
    assert (found[("source_lag_records", A)], found[("source_lag_records", "other")]) == (1, 5)
    metrics.backlogs.update("kafka-1", {A: Backlog(1), "/endpoints/x": None, "/endpoints/y": Backlog(3)})
    found = figures(metrics.backlogs)
    assert found[("source_up", "other")] == 0
    assert ("source_lag_records", "other") not in found


def test_up_to_when_all_that_arrived_is_read() -> None:
    backlogs = Backlogs()
    assert backlogs.read_until() == 0, "nobody has said anything"
    backlogs.update("kafka-1", {A: Backlog(0), B: Backlog(0)}, 990.0)
    backlogs.update("inbox", {INBOX: Backlog(0)}, 1_000.0)
    assert backlogs.read_until() == 990
    backlogs.update("rest", {})
    assert backlogs.read_until() == 0, "one has not been asked yet"
    backlogs.forget("rest")
    assert backlogs.read_until() == 990


def test_arrivals_go_on_over_a_new_connection() -> None:
    metrics = Metrics()

    def arrived(endpoint: str) -> float | None:
        return metrics.registry.get_sample_value("xrouter_arrived_records_total", {"endpoint": endpoint})

    assert arrived(A) is None
    for count, whole in ((0, 0), (5, 5), (5, 5), (9, 9), (2, 11), (4, 13)):
        metrics.backlogs.update("kafka-1", {A: Backlog(1, None, count)})
        assert arrived(A) == whole
    metrics.backlogs.update("kafka-1", {A: None})
    assert arrived(A) == 13


def test_an_endpoint_of_the_inbox_has_its_share_of_it_and_no_broker() -> None:
    backlogs = Backlogs(now=lambda: 1_000.0)
    backlogs.update("inbox", {INBOX: Backlog(9, 940_000), A: Backlog(7, 940_000), B: Backlog(2, 990_000)})
    assert figures(backlogs) == {
        ("inbox_records", ""): 9,
        ("inbox_oldest_seconds", ""): 60,
        ("inbox_endpoint_records", A): 7,
        ("inbox_endpoint_oldest_seconds", A): 60,
        ("inbox_endpoint_records", B): 2,
        ("inbox_endpoint_oldest_seconds", B): 10,
    }
    backlogs.update("inbox", {INBOX: Backlog(9, 940_000), A: None, B: None})
    assert figures(backlogs).keys() == {("inbox_records", ""), ("inbox_oldest_seconds", "")}
