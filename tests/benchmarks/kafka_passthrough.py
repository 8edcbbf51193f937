"""``make bench``: Kafka -> router -> Kafka against a bare Spark pass-through of the same topic, in one session.

Every variant reads the same topic to its end, with the same partitions, trigger, batch size and producer options.
``bare`` is Kafka to Kafka in ``writeStream``, as Spark reads when it is told nothing; ``bare in foreachBatch`` the same
write from inside the callback; ``bare, read alike`` has the options of the source that the router gives its own. The
figure is the ratio of medians, and the processor time of a record in this process, the JVM and its Python workers.

The session runs two tasks at a time for each core, as the router's do. ``--master 'local[*]'`` has Spark's own default,
one for each core: run both, to compare the router with what somebody gets who writes the copy for Spark as it comes.

What a router does once, when it starts, is left out: each comparison begins with rounds that do not count, in which
HotSpot compiles and workers take the plan. What its compiler still takes in those that count is told; with many rounds
before them (``--warm``) it is next to nothing. A worker keeps one plan; so each plan has rounds of its own, in which it
alternates with bare.
Of batches of 200 records the figure is the median time from trigger to commit, the first ten left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from catalog.load import freeze_for_gc
from catalog.load import load as load_catalog
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanCache, SharedParts
from router.batches.splitting import Splitting
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.machine import BatchSizing
from router.reading.generations import begin
from router.reading.streams import records_of_batch
from router.settings import Settings, settings_from_dict
from router.sources import make_source_client
from router.spark.session import open_spark_session
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.benchmarks.machine import machine
from tests.benchmarks.streams import Cost, Run, Streams, Way, running
from tests.support import load
from tests.support.brokers import kafka_for_tests
from tests.support.kafka import produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
BATCH: Final = 100_000
SMALL: Final = 200
SMALL_BATCHES: Final = 40
COMPARISONS: Final = (
    ("bare", "bare, read alike", "bare in foreachBatch", "routed"),
    ("bare", "bare, read alike", "routed, no lineage"),
)


class Bench:
    """One broker, one session, one topic of records."""

    def __init__(
        self, spark: SparkSession, state: StateFolder, bootstrap: str, plan: Plan, bare: Plan, topic: str
    ) -> None:
        """*bare* is the plan without headers of lineage."""
        self._state = state
        self._bootstrap = bootstrap
        self._topic = topic
        self.reading = make_source_client(plan.sources[0]).source_options()
        """Options of Spark's source as the router has them."""
        self._metrics = Metrics()
        self._holders = [PlanCache(spark, state.batches, each, self._metrics) for each in (plan, bare)]
        for holder, each in zip(self._holders, (plan, bare), strict=True):
            holder.activate(each)
        freeze_for_gc()

    def bare(self) -> Run:
        """Kafka to Kafka by Spark alone."""
        return lambda rows, path: (
            copied(rows, "out").writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap).option("checkpointLocation", path)
        )  # fmt: skip

    def bare_in_batch(self) -> Run:
        """The same, written from foreachBatch."""

        def write(rows: DataFrame, _: int) -> None:
            out = copied(rows, "out").write.format("kafka")
            out.option("kafka.bootstrap.servers", self._bootstrap).save()

        return lambda rows, path: rows.writeStream.foreachBatch(write).option("checkpointLocation", path)

    def routed(self, *, lineage: bool = True) -> Run:
        """Through the router's pipeline: matched, mapped, with dead letters and all."""
        generation = begin(self._state, "bench", (self._topic,))
        plans = self._holders[0 if lineage else 1]
        # As when a query starts: the size of records is sampled, so that batches need not be measured.
        sizing = BatchSizing.of(plans.active.settings)
        records_of_batch(make_source_client(plans.active.sources[0]), (self._topic,), generation, sizing)
        pipeline = Pipeline(
            "bench",
            "kafka",
            generation,
            SharedParts(self._state, plans, self._metrics, RouterStatus()),
            splitting=Splitting(self._state.batches, "bench", "kafka", generation, sizing),
        )
        return lambda rows, _: rows.writeStream.foreachBatch(pipeline.batch).option(
            "checkpointLocation", str(generation.path)
        )


def copied(rows: DataFrame, topic: str) -> DataFrame:
    """Return the records of a topic as those of another."""
    from pyspark.sql import functions as F

    return rows.select(F.lit(topic).alias("topic"), "key", "value", "headers")


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--definitions", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", help="that of Spark; unset is the router's own default")
    parser.add_argument("--warm", type=int, default=2, help="rounds before those that count")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, kafka_for_tests(Path(folder) / "kafka") as bootstrap:
        _measure(chosen, Path(folder), bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic in ("in", "out", "dead"):
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    path = load.write_catalog(folder / "catalog.json", load.catalog(chosen.definitions, topic="in"))
    loaded = load_catalog([path])
    spark_settings = {} if chosen.master is None else {"spark": {"master": chosen.master}}
    plans = [
        Plan(loaded, _settings(path, bootstrap, folder, spark_settings, lineage=lineage)) for lineage in (True, False)
    ]
    settings = plans[0].settings
    configure_logs(settings.log)
    records = load.records(chosen.records, chosen.definitions)
    produce(bootstrap, "in", itertools.islice(records, SMALL * SMALL_BATCHES))
    others = running()
    with (
        StateFolder.open(folder / "state") as state,
        open_spark_session(settings, state.root, plans[0].sources) as spark,
    ):
        bench = Bench(spark, state, bootstrap, plans[0], plans[1], "in")
        variants = {
            "bare": Way("in", bench.bare, {}),
            "bare, read alike": Way("in", bench.bare, bench.reading),
            "bare in foreachBatch": Way("in", bench.bare_in_batch, {}),
            "routed": Way("in", bench.routed, bench.reading),
            "routed, no lineage": Way("in", partial(bench.routed, lineage=False), bench.reading),
        }
        streams = Streams(spark, bootstrap, folder, others)
        batches = {name: streams.each_batch(each, SMALL).seconds for name, each in variants.items()}
        produce(bootstrap, "in", records)
        costs: dict[str, list[Cost]] = {name: [] for name in variants}
        for names in COMPARISONS:
            for number in range(chosen.warm + chosen.rounds):
                taken = {name: streams.whole(variants[name], BATCH) for name in names}
                if number >= chosen.warm:
                    for name, cost in taken.items():
                        costs[name].append(cost)
    _report(costs, batches, chosen)


def _settings(catalog: Path, bootstrap: str, folder: Path, more: Mapping[str, object], *, lineage: bool) -> Settings:
    sink = {"type": "kafka", "bootstrap_servers": bootstrap}
    return settings_from_dict(
        {
            "catalog": {"source": str(catalog)},
            "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": bootstrap}],
            "sinks": {"bus": {**sink, "topic": "out", "lineage": lineage}, "dead": {**sink, "topic": "dead"}},
            "routes": [{"to": ["bus"]}],
            "dead_letters": {"sinks": ["dead"]},
            "state": str(folder / "state"),
            **more,
        },
        os.environ,
        folder,
    )


def _report(costs: dict[str, list[Cost]], batches: dict[str, float], chosen: argparse.Namespace) -> None:
    master = chosen.master or "two tasks a core"
    out = [f"{chosen.records} records, {chosen.definitions} definitions, {chosen.rounds} rounds; {master}; {machine()}"]
    medians = {name: statistics.median(each.seconds for each in taken) for name, taken in costs.items()}
    for name, taken in costs.items():
        rounds = " ".join(f"{each.seconds:.2f}" for each in taken)
        cpu, workers, compiler = (
            statistics.median(times) / chosen.records * 1e6
            for times in zip(*((each.cpu, each.workers, each.compiler) for each in taken), strict=True)
        )
        rate, ratio = chosen.records / medians[name], medians["bare"] / medians[name]
        line = f"{name:22} {rate:>10,.0f} records/s   {ratio:.3f} of bare   processor time a record {cpu:.1f} us"
        out.append(f"{line}, workers {workers:.1f}, compiler {compiler:.1f}   seconds: {rounds}")
    small = ", ".join(f"{name} {value:.2f} s" for name, value in batches.items())
    out.append(f"batches of {SMALL}: {small}")
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
