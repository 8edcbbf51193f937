"""The metrics of a registry: delivery by subscriber, replication by peer, and its history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from registry.delivery.dispatch import Dispatch
from registry.delivery.tallies import Tally
from registry.replication.running import PeerTally, Replication
from registry.upkeep.history import HistoryKeeper

_GAUGES: Final[tuple[tuple[str, str, Callable[[Tally, float], float]], ...]] = (
    ("pending", "Events that are not delivered yet.", lambda each, now: each.pending),
    (
        "oldest_seconds",
        "Age of the oldest event that is not delivered yet.",
        lambda each, now: max(now - each.oldest, 0.0) if each.oldest else 0.0,
    ),
    ("held", "Whether an entity, or the whole subscriber, waits.", lambda each, now: each.state in ("holding", "away")),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[Tally], int]], ...]] = (
    ("delivered", "Events that the subscriber has taken.", lambda each: each.delivered),
    ("failed", "Tries that failed.", lambda each: each.failed),
    ("dropped", "Events that were dropped because they were too old or too many.", lambda each: each.dropped),
)


class DeliveryCollector(Collector):
    """Gives the counts of delivery as they are at the moment of asking."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; those of subscribers under their ids."""
        tallies, now = self._dispatch.tallies.all().items(), time.time()
        for name, description, value in _GAUGES:
            gauge = GaugeMetricFamily(f"xrouter_registry_events_{name}", description, labels=("subscriber",))
            for subscriber, tally in tallies:
                gauge.add_metric((subscriber,), value(tally, now))
            yield gauge
        for name, description, count in _COUNTERS:
            counter = CounterMetricFamily(f"xrouter_registry_events_{name}", description, labels=("subscriber",))
            for subscriber, tally in tallies:
                counter.add_metric((subscriber,), count(tally))
            yield counter
        description = "Whether this process delivers, among those that share a database."
        yield GaugeMetricFamily("xrouter_registry_delivers", description, value=float(self._dispatch.delivers))


class HistoryCollector(Collector):
    """Gives how much history there is, and how much of it was removed."""

    def __init__(self, keeper: HistoryKeeper) -> None:
        self._keeper = keeper

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        description = "Entries of history at the last look."
        yield GaugeMetricFamily("xrouter_registry_history_entries", description, value=self._keeper.entries)
        description = "Entries of history that this process removed because they were too old or too many."
        yield CounterMetricFamily("xrouter_registry_history_pruned", description, value=self._keeper.pruned)


_OF_PEERS: Final[tuple[tuple[str, str, Callable[[PeerTally], int]], ...]] = (
    ("changes", "Changes that were sent from one side to the other.", lambda each: each.changes),
    ("applied", "Changes that were new to the side that took them.", lambda each: each.applied),
    ("refused", "Changes that the side that took them refused.", lambda each: each.refused),
    ("failures", "Rounds that failed.", lambda each: each.failures),
)


class ReplicationCollector(Collector):
    """Gives how replication goes, for each peer and direction."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; peers by their URLs."""
        tallies, now = list(self._replication.tallies.items()), time.time()
        description = "Seconds since the last completed round began, or since the start before the first."
        behind = GaugeMetricFamily(
            "xrouter_registry_replication_behind_seconds", description, labels=("peer", "direction")
        )
        description = "When the last round was completed, 0 before the first."
        success = GaugeMetricFamily(
            "xrouter_registry_replication_last_success_timestamp_seconds", description, labels=("peer", "direction")
        )
        for key, tally in tallies:
            behind.add_metric(key, max(now - tally.alike, 0.0))
            success.add_metric(key, tally.success)
        yield from (behind, success)
        for name, description, count in _OF_PEERS:
            counter = CounterMetricFamily(
                f"xrouter_registry_replication_{name}", description, labels=("peer", "direction")
            )
            for key, tally in tallies:
                counter.add_metric(key, count(tally))
            yield counter
