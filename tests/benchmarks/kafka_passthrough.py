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
from functools import partial
from pathlib import Path
from typing import Final

from router.logs import configure_logs
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import (
    Cost,
    Routed,
    Way,
    broker,
    copied,
    in_batches,
    median,
    plan_of,
    session,
    to_kafka,
)
from tests.support import load, plain
from tests.support.kafka import create_topics, produce

PARTITIONS: Final = 4
BATCH: Final = 100_000
SMALL: Final = 200
SMALL_BATCHES: Final = 40
COMPARISONS: Final = (
    ("bare", "bare, read alike", "bare in foreachBatch", "routed"),
    ("bare", "bare, read alike", "routed, no lineage"),
)


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
    plans = {
        name: plan_of(
            folder, load.settings(bootstrap, path, {**sinks, "bus": {**sinks["bus"], "lineage": lineage}}, **more)
        )
        for name, lineage in (("routed", True), ("routed, no lineage", False))
    }
    configure_logs(plans["routed"].settings.log)
    records = load.records(chosen.records, chosen.definitions)
    produce(bootstrap, "in", itertools.islice(records, SMALL * SMALL_BATCHES))
    with session(folder, bootstrap, plans["routed"]) as (spark, state, streams):
        routed = Routed(spark, state, plans)
        bare = partial(to_kafka, bootstrap, partial(copied, topic="out"))
        variants = {
            "bare": Way("in", bare, {}),
            "bare, read alike": Way("in", bare, routed.reading),
            "bare in foreachBatch": Way("in", partial(in_batches, bootstrap, partial(copied, topic="out")), {}),
            **{name: Way("in", partial(routed.run, name, "in"), routed.reading) for name in plans},
        }
        batches = {name: streams.each_batch(each, SMALL).seconds for name, each in variants.items()}
        produce(bootstrap, "in", records)
        costs: dict[str, list[Cost]] = {name: [] for name in variants}
        for names in COMPARISONS:
            ways = {name: variants[name] for name in names}
            for name, taken in streams.rounds(ways, BATCH, chosen.warm, chosen.rounds).items():
                costs[name] += taken
    _report(costs, batches, chosen)


def _report(costs: dict[str, list[Cost]], batches: dict[str, float], chosen: argparse.Namespace) -> None:
    master = chosen.master or "two tasks a core"
    out = [f"{chosen.records} records, {chosen.definitions} definitions, {chosen.rounds} rounds; {master}; {machine()}"]
    bare = median(costs["bare"]).seconds
    for name, taken in costs.items():
        rounds = " ".join(f"{each.seconds:.2f}" for each in taken)
        mid = median(taken)
        cpu, workers, compiler = (each / chosen.records * 1e6 for each in (mid.cpu, mid.workers, mid.compiler))
        line = f"{name:22} {chosen.records / mid.seconds:>10,.0f} records/s   {bare / mid.seconds:.3f} of bare"
        line += f"   processor time a record {cpu:.1f} us, workers {workers:.1f}, compiler {compiler:.1f}"
        out.append(f"{line}   seconds: {rounds}")
    small = ", ".join(f"{name} {value:.2f} s" for name, value in batches.items())
    out.append(f"batches of {SMALL}: {small}")
    say("\n".join(out))


if __name__ == "__main__":
    main()
