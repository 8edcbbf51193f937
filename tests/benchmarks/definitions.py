"""``make bench-definitions``: Kafka to Kafka with 10 to 10,000 definitions, and beside PySpark written by hand.

Each catalog has a topic of its own with as many records, spread over all its definitions, and rounds of its own: a
worker keeps one plan, and would take it anew if catalogs took turns, as no router does. What takes turns with it is
*bare*, a copy of the same topic by Spark alone, by which the figures of one catalog compare with those of another. The
figure is the time of a topic from its first record to its last, and the processor time of driver, JVM and Python
workers together, without HotSpot's compiler. What is routed is read with the options that the router gives its sources.

*CASE WHEN* and *filters* are peers (:mod:`tests.benchmarks.spark_by_hand`, :mod:`tests.benchmarks.spark_filters`) at
1,500 definitions, and *routed* beside them the router over the same records in the same batches. Filters plan a share
for each definition in every batch, which takes longer than the records do. All of these must have sent the same number
of records for each definition, and of dead letters.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from catalog.load import load as load_catalog
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.settings import settings_from_dict
from router.spark.session import open_spark_session
from router.state.state import StateFolder
from tests.benchmarks import kafka_passthrough, spark_by_hand, spark_filters
from tests.benchmarks.machine import machine, say
from tests.benchmarks.streams import Cost, Run, Streams, Way, running
from tests.support import load
from tests.support.brokers import kafka_for_tests
from tests.support.kafka import create_topics, produce, read_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
PEERS: Final = "peers"
"""The topic that the router and the programs written by hand share."""


@dataclass(frozen=True, slots=True)
class Variant(Way):
    """One way over one topic, and the topics that it sends to."""

    name: str
    records: int
    batch: int
    out: str
    dead: str


class Bench:
    """The variants, over topics of one broker."""

    def __init__(self, folder: Path, bootstrap: str, chosen: argparse.Namespace) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._chosen = chosen

    def fill(self, topic: str, definitions: int, records: int) -> Plan:
        """Make the topics of one catalog with their records, and return its plan."""
        out, dead = _sent(topic)
        create_topics(self._bootstrap, [topic, out, dead], PARTITIONS)
        produce(self._bootstrap, topic, load.records(records, definitions))
        catalog = load.write_catalog(self._folder / f"{topic}.json", load.catalog(definitions, topic=topic))
        sink = {"type": "kafka", "bootstrap_servers": self._bootstrap}
        told = {
            "catalog": {"source": str(catalog)},
            "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": self._bootstrap}],
            "sinks": {"bus": {**sink, "topic": out}, "dead": {**sink, "topic": dead}},
            "routes": [{"to": ["bus"]}],
            "dead_letters": {"sinks": ["dead"]},
            "state": str(self._folder / "state"),
        }
        return Plan(load_catalog([catalog]), settings_from_dict(told, os.environ, self._folder))

    def routed(self, spark: SparkSession, state: StateFolder, topic: str, plan: Plan) -> Variant:
        """Through the router's pipeline."""
        bench = kafka_passthrough.Bench(spark, state, self._bootstrap, plan, plan, topic)
        records, batch = self._chosen.records, self._chosen.batch
        if topic == PEERS:
            records, batch = self._chosen.peer_records, self._chosen.peer_batch
        return Variant(topic, bench.routed, bench.reading, f"routed, {topic}", records, batch, *_sent(topic))

    def bare(self, variant: Variant) -> Variant:
        """A copy of the same topic by Spark alone."""

        def copied(rows: DataFrame) -> DataFrame:
            return kafka_passthrough.copied(rows, variant.out)

        name = f"bare, {variant.topic}"
        return replace(variant, name=name, run=partial(self._stream, copied), reading={})

    def by_hand(self, spark: SparkSession) -> list[Variant]:
        """The programs that one writes without a router."""
        chosen = self._chosen
        read = spark_by_hand.read_off(load.catalog(chosen.peer_definitions, topic=PEERS))
        variants = []
        for name, style, started in (
            ("case-when", spark_by_hand.case_when, self._stream),
            ("filters", spark_filters.filters, self._batches),
        ):
            if name not in chosen.peers:
                continue
            out, dead = _sent(name)
            create_topics(self._bootstrap, [out, dead], PARTITIONS)
            run = partial(started, style(read, out, dead))
            records, batch = chosen.peer_records, chosen.peer_batch
            variants.append(Variant(PEERS, run, {}, f"by hand, {name}", records, batch, out, dead))
        return variants

    def sent(self, variant: Variant) -> Counter[str]:
        """Return how many records a variant has sent for each definition, and as dead letters."""
        events = (message.header("xrouter-message") or "" for message in read_all(self._bootstrap, variant.out))
        return Counter(events) + Counter(dead=len(read_all(self._bootstrap, variant.dead)))

    def _stream(self, records: Callable[[DataFrame], DataFrame]) -> Run:
        return lambda rows, path: (
            records(rows).writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap).option("checkpointLocation", path)
        )  # fmt: skip

    def _batches(self, records: Callable[[DataFrame], DataFrame]) -> Run:
        def write(rows: DataFrame, _: int) -> None:
            records(rows).write.format("kafka").option("kafka.bootstrap.servers", self._bootstrap).save()
            rows.sparkSession.catalog.clearCache()

        return lambda rows, path: rows.writeStream.foreachBatch(write).option("checkpointLocation", path)


def _sent(topic: str) -> tuple[str, str]:
    return f"{topic}-out", f"{topic}-dead"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--definitions", type=int, nargs="*", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--records", type=int, default=300_000, help="of each catalog")
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=4, help="rounds before those that count")
    parser.add_argument("--peers", nargs="*", default=["case-when", "filters"], help="none leaves them out")
    parser.add_argument("--peer-definitions", type=int, default=1_500)
    parser.add_argument("--peer-records", type=int, default=100_000)
    parser.add_argument("--peer-batch", type=int, default=50_000)
    parser.add_argument("--peer-rounds", type=int, default=1)
    chosen = parser.parse_args(arguments)
    say(machine())
    with tempfile.TemporaryDirectory() as folder, kafka_for_tests(Path(folder) / "kafka") as bootstrap:
        _measure(chosen, Path(folder), bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    bench, others = Bench(folder, bootstrap, chosen), running()
    plans = {
        f"{count}-definitions": bench.fill(f"{count}-definitions", count, chosen.records)
        for count in chosen.definitions
    }
    if chosen.peers:
        plans[PEERS] = bench.fill(PEERS, chosen.peer_definitions, chosen.peer_records)
    first = next(iter(plans.values()))
    configure_logs(first.settings.log)
    with (
        StateFolder.open(folder / "state") as state,
        open_spark_session(first.settings, state.root, first.sources) as spark,
    ):
        streams = Streams(spark, bootstrap, folder, others)
        routed = {topic: bench.routed(spark, state, topic, plan) for topic, plan in plans.items()}
        sizes = [variant for topic, variant in routed.items() if topic != PEERS]
        costs: dict[str, list[Cost]] = {}
        for each in sizes:
            costs |= _rounds(streams, [bench.bare(each), each], chosen.warm, chosen.rounds)
        _report(sizes, costs)
        if chosen.peers:
            peers = [routed[PEERS], *bench.by_hand(spark)]
            costs = _rounds(streams, peers, 1, chosen.peer_rounds)
            _check(bench, peers)
            _report(peers, costs)


def _rounds(streams: Streams, variants: Sequence[Variant], warm: int, rounds: int) -> dict[str, list[Cost]]:
    """Return what each variant took in each round; the first rounds, which warm up, do not count."""
    costs: dict[str, list[Cost]] = {each.name: [] for each in variants}
    for number in range(warm + rounds):
        for each in variants:
            cost = streams.whole(each, each.batch)
            counts = number >= warm
            say(f"{each.name} {cost.seconds:.1f} s{'' if counts else ' to warm up'}")
            if counts:
                costs[each.name].append(cost)
    return costs


def _check(bench: Bench, variants: Sequence[Variant]) -> None:
    """Fail unless all sent the same: what is quick because it does something else is no figure."""
    first, *others = (bench.sent(each) for each in variants)
    for variant, sent in zip(variants[1:], others, strict=True):
        if sent != first:
            raise SystemExit(
                f"{variant.name} sent other records than {variants[0].name}: {(sent - first) + (first - sent)}"
            )


def _report(variants: Sequence[Variant], costs: Mapping[str, list[Cost]]) -> None:
    """Print each variant's figures, with ratios to the first: of ratios to bare, where that took turns with it."""
    base: tuple[float, float] | None = None
    for each in variants:
        seconds, cpu = _medians(costs[each.name])
        figures = f"{each.records / seconds:>10,.0f} records/s {cpu / each.records * 1e6:>9.1f} us of CPU a record"
        beside = ""
        if (bare := costs.get(f"bare, {each.topic}")) is not None:
            bare_seconds, bare_cpu = _medians(bare)
            seconds, cpu = seconds / bare_seconds, cpu / bare_cpu
            beside = f"{seconds:>8.2f} and {cpu:.2f} times bare"
        base = base or (seconds, cpu)
        ratios = f"{seconds / base[0]:>8.2f} and {cpu / base[1]:.2f} of the first"
        say(f"{each.name:28}{figures}{beside}{ratios}   {each.records:,} records, batches of {each.batch:,}")


def _medians(costs: Sequence[Cost]) -> tuple[float, float]:
    """Return seconds by the clock, and of processor time that was not the compiler's."""
    return statistics.median(each.seconds for each in costs), statistics.median(
        each.cpu - each.compiler for each in costs
    )


if __name__ == "__main__":
    main()
