"""``make bench``: Kafka -> router -> Kafka against a bare Spark pass-through of the same topic, in one session.

Every variant reads the same topic to its end with the same source options, partitions, trigger and batch size, and
writes with the same producer options. Rounds alternate, after a warm-up of each; the figure is the ratio of medians.
``bare`` is Kafka to Kafka in ``writeStream``; ``bare in foreachBatch`` the same write from inside the callback.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from catalog.load import load as load_catalog
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanHolder
from router.judging.plan import Plan
from router.reading.generations import begin
from router.settings import settings_from_dict
from router.spark.session import spark_session
from router.state.state import State
from router.watching.metrics import Metrics
from router.watching.status import Status
from tests.support import load
from tests.support.brokers import kafka_for_tests
from tests.support.kafka import produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
BATCH: Final = 100_000


class Bench:
    """One broker, one session, one topic of records."""

    def __init__(self, spark: SparkSession, state: State, bootstrap: str, plan: Plan, topic: str) -> None:
        self._spark = spark
        self._state = state
        self._bootstrap = bootstrap
        self._topic = topic
        self._metrics = Metrics()
        self._plans = PlanHolder(spark, state, plan, self._metrics)
        self._plans.activate(plan)
        self._runs = 0

    def bare(self) -> float:
        """Kafka to Kafka by Spark alone."""
        return self._timed(lambda rows, path: _bare(rows, "out").writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap).option("checkpointLocation", path))  # fmt: skip

    def bare_in_batch(self) -> float:
        """The same, written from foreachBatch."""

        def write(rows: DataFrame, _: int) -> None:
            out = _bare(rows, "out").write.format("kafka")
            out.option("kafka.bootstrap.servers", self._bootstrap).save()

        return self._timed(lambda rows, path: rows.writeStream.foreachBatch(write).option("checkpointLocation", path))

    def routed(self) -> float:
        """Through the router's pipeline: matched, mapped, with lineage headers, dead letters and all."""
        generation = begin(self._state, "bench", (self._topic,))
        pipeline = Pipeline(
            "bench",
            "kafka",
            generation,
            self._state,
            self._plans,
            self._metrics,
            Status(),
            lambda _: self._plans.active,
        )
        return self._timed(
            lambda rows, _: rows.writeStream.foreachBatch(pipeline.batch).option(
                "checkpointLocation", str(generation.path)
            )
        )

    def _timed(self, writer: Callable[[DataFrame, str], Any]) -> float:
        self._runs += 1
        rows = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._topic)
            .option("includeHeaders", "true")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", BATCH)
            .load()
        )
        path = str(self._state.root / "bare" / str(self._runs))
        began = time.monotonic()
        query = writer(rows, path).trigger(availableNow=True).start()
        query.awaitTermination()
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        return time.monotonic() - began


def _bare(rows: DataFrame, topic: str) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select(F.lit(topic).alias("topic"), "key", "value", "headers")


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--definitions", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, kafka_for_tests(Path(folder) / "kafka") as bootstrap:
        _measure(chosen, Path(folder), bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic in ("in", "out", "dead"):
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    produce(bootstrap, "in", load.records(chosen.records, chosen.definitions))
    path = load.write_catalog(folder / "catalog.json", load.catalog(chosen.definitions, topic="in"))
    sink = {"type": "kafka", "bootstrap_servers": bootstrap}
    settings = settings_from_dict(
        {
            "catalog": {"source": str(path)},
            "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": bootstrap}],
            "sinks": {"bus": {**sink, "topic": "out"}, "dead": {**sink, "topic": "dead"}},
            "routes": [{"to": ["bus"]}],
            "dead_letters": {"sinks": ["dead"]},
            "state": str(folder / "state"),
        },
        os.environ,
        folder,
    )
    plan = Plan(load_catalog([path]), settings)
    with State.open(folder / "state") as state, spark_session(settings, state.root, plan.sources) as spark:
        bench = Bench(spark, state, bootstrap, plan, "in")
        variants = {"bare": bench.bare, "bare in foreachBatch": bench.bare_in_batch, "routed": bench.routed}
        for run in variants.values():
            run()
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(chosen.rounds):
            for name, run in variants.items():
                seconds[name].append(run())
    _report(seconds, chosen)


def _report(seconds: dict[str, list[float]], chosen: argparse.Namespace) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    out = [f"{chosen.records} records, {chosen.definitions} definitions, {chosen.rounds} rounds; {machine}"]
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        rounds = " ".join(f"{value:.2f}" for value in times)
        out.append(f"{name:22} {chosen.records / medians[name]:>10,.0f} records/s   seconds: {rounds}")
    out.append(f"routed / bare                  {medians['bare'] / medians['routed']:.3f}")
    out.append(f"routed / bare in foreachBatch  {medians['bare in foreachBatch'] / medians['routed']:.3f}")
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
