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
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.state.state import StateFolder
from tests.benchmarks import kafka_passthrough, spark_by_hand, spark_filters
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import Cost, Streams, Way, broker, in_batches, plan_of, session, to_kafka
from tests.support import load, plain
from tests.support.kafka import create_topics, produce, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        catalog = plain.write(self._folder, load.catalog(definitions, topic=topic), f"{topic}.json")
        sinks = plain.topics(self._bootstrap, bus=out, dead=dead)
        return plan_of(self._folder, load.settings(self._bootstrap, catalog, sinks))

    def routed(self, spark: SparkSession, state: StateFolder, topic: str, plan: Plan) -> Variant:
        """Through the router's pipeline."""
        bench = kafka_passthrough.Bench(spark, state, self._bootstrap, plan, plan, topic)
        records, batch = self._chosen.records, self._chosen.batch
        if topic == PEERS:
            records, batch = self._chosen.peer_records, self._chosen.peer_batch
        return Variant(topic, bench.routed, bench.reading, f"routed, {topic}", records, batch, *_sent(topic))

    def bare(self, variant: Variant) -> Variant:
        """A copy of the same topic by Spark alone."""
        copied = partial(kafka_passthrough.copied, topic=variant.out)
        run = partial(to_kafka, self._bootstrap, copied)
        return replace(variant, name=f"bare, {variant.topic}", run=run, reading={})

    def by_hand(self, spark: SparkSession) -> list[Variant]:
        """The programs that one writes without a router."""
        chosen = self._chosen
        read = spark_by_hand.read_off(load.catalog(chosen.peer_definitions, topic=PEERS))
        variants = []
        for name, style, started in (
            ("case-when", spark_by_hand.case_when, to_kafka),
            ("filters", spark_filters.filters, in_batches),
        ):
            if name not in chosen.peers:
                continue
            out, dead = _sent(name)
            create_topics(self._bootstrap, [out, dead], PARTITIONS)
            run = partial(started, self._bootstrap, style(read, out, dead))
            records, batch = chosen.peer_records, chosen.peer_batch
            variants.append(Variant(PEERS, run, {}, f"by hand, {name}", records, batch, out, dead))
        return variants

    def sent(self, variant: Variant) -> Counter[str]:
        """Return how many records a variant has sent for each definition, and as dead letters."""
        events = (message.header("xrouter-message") or "" for message in read_all(self._bootstrap, variant.out))
        return Counter(events) + Counter(dead=len(read_all(self._bootstrap, variant.dead)))


def _sent(topic: str) -> tuple[str, str]:
    return f"{topic}-out", f"{topic}-dead"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    of_sizes = {"definitions": [10, 100, 1_000, 10_000], "records": (300_000, "of each catalog"), "batch": 100_000}
    of_rounds = {"rounds": 3, "warm": (4, "rounds before those that count")}
    of_peers = {"peers": (["case-when", "filters"], "none leaves them out"), "peer_definitions": 1_500}
    of_peers |= {"peer_records": 100_000, "peer_batch": 50_000, "peer_rounds": 1}
    chosen = options(__doc__, arguments, **of_sizes, **of_rounds, **of_peers)
    say(machine())
    with broker() as (folder, bootstrap):
        _measure(chosen, folder, bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    bench = Bench(folder, bootstrap, chosen)
    plans = {
        f"{count}-definitions": bench.fill(f"{count}-definitions", count, chosen.records)
        for count in chosen.definitions
    }
    if chosen.peers:
        plans[PEERS] = bench.fill(PEERS, chosen.peer_definitions, chosen.peer_records)
    first = next(iter(plans.values()))
    configure_logs(first.settings.log)
    with session(folder, bootstrap, first) as (spark, state, streams):
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
