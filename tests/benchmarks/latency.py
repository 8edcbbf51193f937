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
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Producer

from catalog.load import load as load_catalog
from router.evaluation.plan import Plan
from router.settings import settings_from_dict
from router.spark.session import open_spark_session
from tests.benchmarks.machine import machine, say
from tests.support import load
from tests.support.brokers import kafka_for_tests
from tests.support.kafka import create_topics, ends, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK: Final = 0.005
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
        path = load.write_catalog(self._folder / f"{way}.json", catalog)
        sink = {"type": "kafka", "bootstrap_servers": self.bootstrap}
        master = {"master": f"local[{self._chosen.partitions + 1}]"} if trigger == ROUTED else {}
        return {
            "catalog": {"source": str(path)},
            "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": self.bootstrap}],
            "sinks": {"bus": {**sink, "topic": f"{way}-out"}, "dead": {**sink, "topic": f"{way}-dead"}},
            "routes": [{"to": ["bus"]}],
            "dead_letters": {"sinks": ["dead"]},
            "trigger": trigger,
            **({"realtime": {"rest": f"{way}-rest"}} if trigger == ROUTED else {}),
            # Not the short-lived JVM of the tests: this one is measured.
            "spark": {**master, "conf": {"spark.driver.extraJavaOptions": ""}},
        }

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
        from pyspark.sql import functions as F

        rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        rows = rows.option("subscribe", f"{way}-in").option("includeHeaders", "true")
        copied = rows.load().select(F.lit(f"{way}-out").alias("topic"), "key", "value", "headers")
        writer = copied.writeStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.option("checkpointLocation", str(self._folder / way)).outputMode("update")
        query = writer.trigger(**trigger).start()
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
        self._send(way, 0, 1, 1)
        time.sleep(0.5)
        return self._arrived(way) > 0

    def _arrived(self, way: str) -> int:
        return sum(sum(ends(self.bootstrap, f"{way}-{end}").values()) for end in ("out", "dead"))

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
        """Send so many records at a steady rate; a tick that comes late sends what it owes."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        records = load.records(count, self._chosen.definitions, start=start)
        began, sent = time.monotonic(), 0
        for tick in itertools.count(1):
            due = min(count, max(1, int(tick * TICK * rate)))
            for key, value, headers in itertools.islice(records, due - sent):
                producer.produce(f"{way}-in", value, key, headers=list(headers))
            sent = due
            producer.poll(0)
            if sent >= count:
                break
            time.sleep(max(0.0, began + tick * TICK - time.monotonic()))
        if left := producer.flush(ARRIVAL_SECONDS):
            raise SystemExit(f"{left} records could not be sent to {way}-in")

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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 5_000])
    parser.add_argument("--triggers", nargs="*", default=["500ms", "0", ROUTED])
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--warm", type=int, default=10, help="seconds of each phase that do not count")
    parser.add_argument("--compiled", type=int, default=COMPILED, help="seconds of each way before its first phase")
    parser.add_argument("--definitions", type=int, default=1_500)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--no-bare", action="store_true", help="leave Spark's own out")
    chosen = parser.parse_args(arguments)
    names = "".join(f"{name:>9}" for name in ("p50 ms", "p90", "p99", "most"))
    say(f"{machine()}\n{'way':24}{'records/s':>10}{'counted':>10}{names}")
    with tempfile.TemporaryDirectory() as folder, kafka_for_tests(Path(folder) / "kafka") as bootstrap:
        bench = Bench(Path(folder), bootstrap, chosen)
        for trigger in chosen.triggers:
            bench.measure(f"routed-{trigger}", partial(bench.routed, trigger=trigger))
        if not chosen.no_bare:
            _measure_bare(bench, Path(folder))


def _measure_bare(bench: Bench, folder: Path) -> None:
    settings = settings_from_dict(
        {**bench.settings("bare", "0"), "state": str(folder / "bare-state")}, os.environ, folder
    )
    sources = Plan(load_catalog([folder / "bare.json"]), settings).sources
    with open_spark_session(settings, folder / "bare-state", sources) as spark:
        bench.measure("bare", partial(bench.bare, spark, processingTime="0 seconds"))
        bench.measure("bare-real-time", partial(bench.bare, spark, realTime=REAL_TIME))


if __name__ == "__main__":
    main()
