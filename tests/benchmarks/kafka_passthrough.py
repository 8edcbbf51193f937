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
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from catalog.load import freeze_for_gc
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanCache, SharedParts
from router.batches.splitting import Splitting
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.machine import BatchSizing
from router.reading.generations import begin
from router.reading.streams import records_of_batch
from router.sources import make_source_client
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import Cost, Run, Way, broker, in_batches, plan_of, session, to_kafka
from tests.support import load, plain
from tests.support.kafka import create_topics, produce

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
        return to_kafka(self._bootstrap, partial(copied, topic="out"))

    def bare_in_batch(self) -> Run:
        """The same, written from foreachBatch."""
        return in_batches(self._bootstrap, partial(copied, topic="out"))

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
    warm, master = (2, "rounds before those that count"), ("", "that of Spark; unset is the router's own default")
    chosen = options(__doc__, records=500_000, definitions=1_500, rounds=5, master=master, warm=warm)
    with broker() as (folder, bootstrap):
        _measure(chosen, folder, bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    create_topics(bootstrap, ["in", "out", "dead"], PARTITIONS)
    path = plain.write(folder, load.catalog(chosen.definitions, topic="in"))
    more = {"spark": {"master": chosen.master}} if chosen.master else {}
    sinks = plain.topics(bootstrap, bus="out", dead="dead")
    plan, without = (
        plan_of(folder, load.settings(bootstrap, path, {**sinks, "bus": {**sinks["bus"], "lineage": lineage}}, **more))
        for lineage in (True, False)
    )
    configure_logs(plan.settings.log)
    records = load.records(chosen.records, chosen.definitions)
    produce(bootstrap, "in", itertools.islice(records, SMALL * SMALL_BATCHES))
    with session(folder, bootstrap, plan) as (spark, state, streams):
        bench = Bench(spark, state, bootstrap, plan, without, "in")
        variants = {
            "bare": Way("in", bench.bare, {}),
            "bare, read alike": Way("in", bench.bare, bench.reading),
            "bare in foreachBatch": Way("in", bench.bare_in_batch, {}),
            "routed": Way("in", bench.routed, bench.reading),
            "routed, no lineage": Way("in", partial(bench.routed, lineage=False), bench.reading),
        }
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
    say("\n".join(out))


if __name__ == "__main__":
    main()
