"""``make bench-cluster``: one, two and more executors of one core each, and how much of the work is the driver's.

A whole router takes a Kafka topic to another and to a Delta table, with dead letters. After a first part, in which its
processes warm up, the clock and the processor time of each of them are read, and again at the end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.machine import machine, options, say
from tests.support import load, plain
from tests.support.brokers import KafkaBroker
from tests.support.kafka import create_topics, produce
from tests.support.processes import below, processor_seconds
from tests.support.router import RouterProcess
from tests.support.spark_cluster import SparkCluster, spark_cluster
from tests.support.waiting import wait_until

PARTITIONS: Final = 4
BATCH: Final = 20_000
LIMIT: Final = 1_800.0


@dataclass(frozen=True, slots=True)
class Spent:
    """The clock, the records that are done, and seconds of processor time, by part of the work."""

    clock: float
    records: float
    times: dict[str, float]

    def since(self, before: Spent) -> Spent:
        """Return what was spent after *before*."""
        times = {name: seconds - before.times[name] for name, seconds in self.times.items()}
        return Spent(self.clock - before.clock, self.records - before.records, times)


def main() -> None:
    """Run the benchmark and print its figures."""
    chosen = options(__doc__, executors=[1, 2], records=200_000, warm=60_000, definitions=1_500)
    say(f"{chosen.records} records, {chosen.definitions} definitions; {machine()}")
    for count in chosen.executors:
        with tempfile.TemporaryDirectory() as folder:
            say(_figures(count, _measured(count, chosen, Path(folder))))


def _measured(count: int, chosen: argparse.Namespace, folder: Path) -> Spent:
    with KafkaBroker(folder / "kafka", heap="768m") as broker:
        create_topics(broker.bootstrap, ["in", "out"], PARTITIONS)
        produce(broker.bootstrap, "in", load.records(chosen.warm + chosen.records, chosen.definitions))
        with spark_cluster(folder / "cluster", count) as cluster:
            router = RouterProcess(folder / "router", _settings(broker, cluster, folder, chosen.definitions))
            parts: dict[str, Callable[[], Sequence[int]]] = {
                "driver": lambda: [router.pid],
                "executors": cluster.executors,
                "broker": lambda: [broker.pid],
            }
            router.start()
            try:
                before = _spent(router, parts, chosen.warm)
                return _spent(router, parts, chosen.warm + chosen.records).since(before)
            finally:
                router.stop()


def _settings(broker: KafkaBroker, cluster: SparkCluster, folder: Path, definitions: int) -> dict[str, Any]:
    catalog = plain.write(folder, load.catalog(definitions, topic="in"))
    # The best code here, where tests want a quick start.
    best = {"spark.driver.extraJavaOptions": "", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC"}
    spark = cluster.settings(folder / "lake")
    spark["conf"] |= best
    sinks = plain.topics(broker.bootstrap, bus="out") | plain.tables(folder / "lake", "events", "dead")
    return load.settings(broker.bootstrap, catalog, sinks, max_records_per_batch=BATCH, spark=spark)


def _spent(router: RouterProcess, parts: dict[str, Callable[[], Sequence[int]]], records: int) -> Spent:
    """Return what was spent once so many records, or more, are done; *parts* name processes, with all below them."""
    done = wait_until(lambda: _done(router, records), LIMIT, lambda: f"{records} records; {router.log[-2000:]}")
    times = {name: sum(processor_seconds(below(pid)) for pid in pids()) for name, pids in parts.items()}
    return Spent(time.monotonic(), done, times)


def _done(router: RouterProcess, records: int) -> float | None:
    done = router.total("xrouter_records_total")
    return done if done >= records else None


def _figures(count: int, spent: Spent) -> str:
    each = {name: seconds / spent.records * 1e6 for name, seconds in spent.times.items()}
    ours = each["driver"] + each["executors"]
    told = ", ".join(f"{name} {time:.1f}" for name, time in each.items())
    return (
        f"{count} executors: {spent.records / spent.clock:,.0f} records/s; microseconds of processor time a record: "
        f"{told}; the driver's share {each['driver'] / ours:.3f}; a core would do {1e6 / ours:,.0f} records/s"
    )


if __name__ == "__main__":
    main()
