"""``make bench-latency``: the time of a record from the broker of its topic to the broker of where it is sent.

Records come at a steady rate; one in fifty becomes a dead letter. Their topics and those they are sent to take the
broker's time, so that one clock measures both. *routed* is a whole router, in a process of its own, with one trigger or
another; in real-time mode records that go by the rest topic have a line of their own. *bare* is Spark's
``writeStream``, which copies records, in micro-batches as quick as they go and in its real-time mode.

A router runs for years, and its JVM compiles within the first two minutes. So each way begins with :data:`COMPILED`
seconds at the first rate that do not count, else that rate would be at a disadvantage. Of each phase the first seconds
do not count either. A phase ends when each of its records has arrived.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from router.spark.session import open_spark_session
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import broker, copied, plan_of, to_kafka
from tests.support import load, plain
from tests.support.kafka import SteadySender, create_topics, read_all, written
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARRIVAL_SECONDS: Final = 120.0
COMPILED: Final = 90
"""Seconds after which the JVM has compiled what it does in each batch, on two cores."""
REAL_TIME: Final = "5 minutes"
"""How long a batch of the real-time mode runs: longer than a phase, so that none ends within it."""
ROUTED: Final = "realtime"
"""The trigger of a router in real-time mode."""
BROKER_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
PERCENTILES: Final = (50, 90, 99, 100)


class Bench:
    """One broker, one catalog, and a set of topics for each way that records are sent on."""

    def __init__(self, folder: Path, bootstrap: str, chosen: argparse.Namespace) -> None:
        self.bootstrap = bootstrap
        self._folder = folder
        self._chosen = chosen

    def settings(self, way: str, trigger: str) -> dict[str, Any]:
        """Return the settings of a router that takes the topic of a way and sends to its others."""
        catalog = load.catalog(self._chosen.definitions, topic=f"{way}-in")
        path = plain.write(self._folder, catalog, f"{way}.json")
        more: dict[str, Any] = {"trigger": trigger, "spark": load.MEASURED}
        if trigger == ROUTED:
            more["realtime"] = {"rest": f"{way}-rest"}
            more["spark"] = {**load.MEASURED, "master": f"local[{self._chosen.partitions + 1}]"}
        sinks = plain.topics(self.bootstrap, bus=f"{way}-out", dead=f"{way}-dead")
        return load.settings(self.bootstrap, path, sinks, **more)

    @contextmanager
    def routed(self, way: str, trigger: str) -> Iterator[None]:
        """Run a router for the time of the block."""
        router = RouterProcess(self._folder / way, self.settings(way, trigger))
        router.start()
        try:
            yield
        finally:
            router.stop()

    @contextmanager
    def bare(self, spark: SparkSession, way: str, **trigger: str) -> Iterator[None]:
        """Copy records by Spark alone for the time of the block."""
        rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        rows = rows.option("subscribe", f"{way}-in").option("includeHeaders", "true")
        run = to_kafka(self.bootstrap, partial(copied, topic=f"{way}-out"))
        query = run(rows.load(), str(self._folder / way)).outputMode("update").trigger(**trigger).start()
        try:
            yield
        finally:
            query.stop()

    def measure(self, way: str, run: Callable[[str], AbstractContextManager[None]]) -> None:
        """Run a way, and send to it at one rate after the other."""
        topics = [f"{way}-{end}" for end in ("in", "out", "dead")]
        create_topics(self.bootstrap, topics, self._chosen.partitions, BROKER_TIME)
        create_topics(self.bootstrap, [f"{way}-rest"], 1, BROKER_TIME)
        with run(way):
            wait_until(lambda: self._passes(way), ARRIVAL_SECONDS, f"a record to pass {way}")
            # Phases number their records from a million on for each record a second, so these are not among them.
            first = self._chosen.rates[0]
            self._send(way, 1, first * self._chosen.compiled, first)
            for rate in self._chosen.rates:
                self._phase(way, rate)

    def _passes(self, way: str) -> bool:
        """Send a record, and tell whether one came through: a source may begin at what comes after it looked."""
        self._send(way, 0, 1, 1_000)
        time.sleep(0.5)
        return self._arrived(way) > 0

    def _arrived(self, way: str) -> int:
        return written(self.bootstrap, f"{way}-out", f"{way}-dead")

    def _phase(self, way: str, rate: int) -> None:
        began = self._quiet(way)
        count, start = rate * self._chosen.seconds, rate * 1_000_000
        self._send(way, start, count, rate)
        wait_until(lambda: self._arrived(way) >= began + count, ARRIVAL_SECONDS, f"all records of {way}")
        first = start + rate * self._chosen.warm
        sent = self._moments(f"{way}-in", first)
        arrived = self._moments(f"{way}-dead", first) | self._moments(f"{way}-out", first)
        rested = self._moments(f"{way}-rest", first)
        waits = {number: arrived[number] - moment for number, moment in sent.items() if number < start + count}
        for name, own in ((way, waits.keys() - rested), (f"{way}, rest", waits.keys() & rested)):
            if own:
                figures = np.percentile(np.array([waits[number] for number in own]), PERCENTILES)
                say(f"{name:24}{rate:>10,}{len(own):>10,}" + "".join(f"{value:>9,.0f}" for value in figures))

    def _quiet(self, way: str) -> int:
        """Wait until nothing more arrives; return how many have."""
        seen = [-1]

        def same() -> bool:
            seen.append(self._arrived(way))
            time.sleep(1.0)
            return seen[-1] == seen[-2]

        wait_until(same, ARRIVAL_SECONDS, f"{way} to be quiet")
        return seen[-1]

    def _send(self, way: str, start: int, count: int, rate: int) -> None:
        """Send so many records at a steady rate."""
        records = load.records(count, self._chosen.definitions, start=start)
        SteadySender(self.bootstrap, f"{way}-in", records, rate).run()

    def _moments(self, topic: str, first: int) -> dict[int, int]:
        """Return when the broker took each record from that number on, in milliseconds; of repeats the first."""
        moments: dict[int, int] = {}
        for message in read_all(self.bootstrap, topic):
            number = json.loads(message.value or b"{}")["n"]
            if number >= first:
                moments.setdefault(number, message.timestamp)
        return moments


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    chosen = options(
        __doc__,
        arguments,
        rates=[1_000, 5_000],
        triggers=["500ms", "0", ROUTED],
        seconds=40,
        warm=(10, "seconds of each phase that do not count"),
        compiled=(COMPILED, "seconds of each way before its first phase"),
        definitions=1_500,
        partitions=2,
        no_bare=(False, "leave Spark's own out"),
    )
    names = "".join(f"{name:>9}" for name in ("p50 ms", "p90", "p99", "most"))
    say(f"{machine()}\n{'way':24}{'records/s':>10}{'counted':>10}{names}")
    with broker() as (folder, bootstrap):
        bench = Bench(folder, bootstrap, chosen)
        for trigger in chosen.triggers:
            bench.measure(f"routed-{trigger}", partial(bench.routed, trigger=trigger))
        if not chosen.no_bare:
            _measure_bare(bench, folder)


def _measure_bare(bench: Bench, folder: Path) -> None:
    plan = plan_of(folder, bench.settings("bare", "0"))
    with open_spark_session(plan.settings, folder / "state", plan.sources) as spark:
        bench.measure("bare", partial(bench.bare, spark, processingTime="0 seconds"))
        bench.measure("bare-real-time", partial(bench.bare, spark, realTime=REAL_TIME))


if __name__ == "__main__":
    main()
