"""``make bench-definitions``: Kafka to Kafka with 10 to 10,000 definitions, and beside PySpark written by hand.

Each catalog has a topic of its own with as many records, spread over all its definitions, and rounds of its own: a
worker keeps one plan, and would take it anew if catalogs took turns, as no router does. What takes turns with it is
*bare*, a copy of the same topic by Spark alone, by which the figures of one catalog compare with those of another. The
figure is the time of a topic from its first record to its last, and the processor time of driver, JVM and Python
workers together, without HotSpot's compiler. What is routed is read with the options that the router gives its sources.

*CASE WHEN* is a peer (:mod:`tests.benchmarks.spark_by_hand`) at 1,500 definitions, and *routed* beside it the router
over the same records in the same batches. Both must have sent the same number of records for each definition, and of
dead letters.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from router.evaluation.plan import Plan
from router.logs import configure_logs
from tests.benchmarks import spark_by_hand
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import Cost, Routed, Way, broker, copied, median, plan_of, session, to_kafka
from tests.support import load, plain
from tests.support.kafka import create_topics, produce, read_all

PARTITIONS: Final = 4
PEERS: Final = "peers"
"""The topic that the router and the program written by hand share."""
BY_HAND: Final = "case-when"


def fill(folder: Path, bootstrap: str, topic: str, definitions: int, records: int) -> Plan:
    """Make the topics of one catalog with their records, and return its plan."""
    create_topics(bootstrap, [topic, f"{topic}-out", f"{topic}-dead"], PARTITIONS)
    produce(bootstrap, topic, load.records(records, definitions))
    catalog = plain.write(folder, load.catalog(definitions, topic=topic), f"{topic}.json")
    sinks = plain.topics(bootstrap, bus=f"{topic}-out", dead=f"{topic}-dead")
    return plan_of(folder, load.settings(bootstrap, catalog, sinks))


def by_hand(bootstrap: str, definitions: int) -> Way:
    """The program that one writes without a router."""
    out, dead = f"{BY_HAND}-out", f"{BY_HAND}-dead"
    create_topics(bootstrap, [out, dead], PARTITIONS)
    read = spark_by_hand.read_off(load.catalog(definitions, topic=PEERS))
    return Way(PEERS, partial(to_kafka, bootstrap, spark_by_hand.case_when(read, out, dead)), {})


def sent(bootstrap: str, topic: str) -> Counter[str]:
    """Return how many records were sent for each definition, and as dead letters."""
    events = (message.header("xrouter-message") or "" for message in read_all(bootstrap, f"{topic}-out"))
    return Counter(events) + Counter(dead=len(read_all(bootstrap, f"{topic}-dead")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    of_sizes = {"definitions": [10, 100, 1_000, 10_000], "records": (300_000, "of each catalog"), "batch": 100_000}
    of_rounds = {"rounds": 3, "warm": (4, "rounds before those that count")}
    of_peers = {"no_peer": (False, "leave the program written by hand out"), "peer_definitions": 1_500}
    of_peers |= {"peer_records": 100_000, "peer_batch": 50_000, "peer_rounds": 1}
    chosen = options(__doc__, arguments, **of_sizes, **of_rounds, **of_peers)
    say(machine())
    with broker() as (folder, bootstrap):
        _measure(chosen, folder, bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    sizes = {f"{count}-definitions": count for count in chosen.definitions}
    plans = {topic: fill(folder, bootstrap, topic, count, chosen.records) for topic, count in sizes.items()}
    if not chosen.no_peer:
        plans[PEERS] = fill(folder, bootstrap, PEERS, chosen.peer_definitions, chosen.peer_records)
    first = next(iter(plans.values()))
    configure_logs(first.settings.log)
    with session(folder, bootstrap, first) as (spark, state, streams):
        routed = Routed(spark, state, plans)
        ways = {topic: Way(topic, partial(routed.run, topic, topic), routed.reading) for topic in plans}
        costs: dict[str, list[Cost]] = {}
        for topic in sizes:
            bare = Way(topic, partial(to_kafka, bootstrap, partial(copied, topic=f"{topic}-out")), {})
            turns = {f"bare, {topic}": bare, f"routed, {topic}": ways[topic]}
            costs |= streams.rounds(turns, chosen.batch, chosen.warm, chosen.rounds)
        _report(costs, chosen.records)
        if not chosen.no_peer:
            peers = {f"routed, {PEERS}": ways[PEERS], BY_HAND: by_hand(bootstrap, chosen.peer_definitions)}
            costs = streams.rounds(peers, chosen.peer_batch, 1, chosen.peer_rounds)
            router, hand = sent(bootstrap, PEERS), sent(bootstrap, BY_HAND)
            if router != hand:  # what is quick because it does something else is no figure
                raise SystemExit(f"by hand other records were sent than routed: {(router - hand) + (hand - router)}")
            _report(costs, chosen.peer_records)


def _report(costs: Mapping[str, Sequence[Cost]], records: int) -> None:
    """Print each way's figures, with ratios to the first: of ratios to bare, where that took turns with it."""
    base: tuple[float, float] | None = None
    for name, taken in costs.items():
        if name.startswith("bare, "):
            continue
        seconds, cpu = _of(taken)
        figures = f"{records / seconds:>10,.0f} records/s {cpu / records * 1e6:>9.1f} us of CPU a record"
        beside = ""
        if bare := costs.get(name.replace("routed", "bare")) if name.startswith("routed") else None:
            bare_seconds, bare_cpu = _of(bare)
            seconds, cpu = seconds / bare_seconds, cpu / bare_cpu
            beside = f"{seconds:>8.2f} and {cpu:.2f} times bare"
        base = base or (seconds, cpu)
        say(f"{name:28}{figures}{beside}{seconds / base[0]:>8.2f} and {cpu / base[1]:.2f} of the first")


def _of(costs: Sequence[Cost]) -> tuple[float, float]:
    """Return seconds by the clock, and of processor time that was not the compiler's."""
    mid = median(costs)
    return mid.seconds, mid.cpu - mid.compiler


if __name__ == "__main__":
    main()
