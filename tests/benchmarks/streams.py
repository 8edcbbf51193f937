"""Topics read to their end by one variant after the other, in one session: seconds, and processor time.

Processor time is that of this process, the JVM and its Python workers together; what ran before the session, such as
the brokers, is left out. It says what a record costs where other work makes wall times worth little.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalog.load import freeze_for_gc
from catalog.load import load as load_catalog
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanCache, SharedParts
from router.batches.splitting import Splitting
from router.evaluation.plan import Plan
from router.machine import BatchSizing
from router.reading.generations import begin
from router.reading.streams import records_of_batch
from router.settings import settings_from_dict
from router.sources import make_source_client
from router.spark.session import open_spark_session
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.benchmarks.machine import say
from tests.support.brokers import kafka_for_tests
from tests.support.processes import below, command_of, processor_seconds, thread_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[["DataFrame", str], Any]
"""Makes the writer of a stream, with the path of its checkpoint."""
_WARM: Final = 10
"""Batches that are left out of the median of small ones."""
_WORKER: Final = "pyspark.worker"
"""In the command line of Spark's Python workers."""
_COMPILERS: Final = ("C1 Comp", "C2 Comp")
"""How the names of HotSpot's compiler threads begin."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way over one topic: what makes it, and the options of Spark's source that are its own."""

    topic: str
    run: Callable[[], Run]
    reading: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took: seconds by the clock, and processor time.

    Of that some was that of Spark's Python workers, and some of the JVM's compiler: a JVM that has run for some minutes
    has none of the latter.
    """

    seconds: float
    cpu: float
    workers: float
    compiler: float


def median(costs: Iterable[Cost]) -> Cost:
    """Return the median of each figure."""
    return Cost(*(statistics.median(figures) for figures in zip(*map(astuple, costs), strict=True)))


class Streams:
    """A session, and the folder for its checkpoints. *others* are the processes that were there before the session."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, others: Iterable[int]) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._folder = folder
        self._others = frozenset(others)
        self._runs = 0

    def whole(self, way: Way, batch: int) -> Cost:
        """Return what a topic takes from its first record to its last, in batches of at most so many records."""
        run = way.run()
        began, before = time.monotonic(), self._processor_seconds()
        self._finished(way, run, batch)
        seconds = time.monotonic() - began
        return Cost(seconds, *(after - each for after, each in zip(self._processor_seconds(), before, strict=True)))

    def rounds(self, ways: Mapping[str, Way], batch: int, warm: int, count: int) -> dict[str, list[Cost]]:
        """Return what each way took in each round, in which they take turns; rounds that warm up do not count."""
        costs: dict[str, list[Cost]] = {name: [] for name in ways}
        for number in range(warm + count):
            for name, way in ways.items():
                cost = self.whole(way, batch)
                say(f"{name} {cost.seconds:.1f} s{'' if number >= warm else ' to warm up'}")
                costs[name] += [cost] if number >= warm else []
        return costs

    def each_batch(self, way: Way, batch: int) -> Cost:
        """Return the median time of a batch of so many records, and the mean processor time of one."""
        run = way.run()
        before = self._processor_seconds()
        progress = [each for each in self._finished(way, run, batch) if each["numInputRows"]]
        taken = zip(self._processor_seconds(), before, strict=True)
        spent = ((after - each) / len(progress) for after, each in taken)
        times = [each["durationMs"]["triggerExecution"] / 1000 for each in progress]
        return Cost(float(statistics.median(times[_WARM:])), *spent)

    def _finished(self, way: Way, run: Run, batch: int) -> list[dict[str, Any]]:
        self._runs += 1
        rows = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", way.topic)
            .option("includeHeaders", "true")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", batch)
            .options(**way.reading)
        )
        writer = run(rows.load(), str(self._folder / "checkpoints" / str(self._runs)))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        progress: list[dict[str, Any]] = list(query.recentProgress)
        return progress

    def _processor_seconds(self) -> tuple[float, float, float]:
        """Return what this process and those below it have taken so far, and of that Python workers and compilers."""
        pids = below(os.getpid(), self._others)
        workers = processor_seconds(pid for pid in pids if _WORKER in command_of(pid))
        return processor_seconds(pids), workers, sum(thread_seconds(pids, name) for name in _COMPILERS)


class Routed:
    """The router's pipeline with some plans, by name: records matched, mapped, with dead letters and all."""

    def __init__(self, spark: SparkSession, state: StateFolder, plans: Mapping[str, Plan]) -> None:
        self._state, self._metrics = state, Metrics()
        self._plans = {name: PlanCache(spark, state.batches, plan, self._metrics) for name, plan in plans.items()}
        for name, cache in self._plans.items():
            cache.activate(plans[name])
        self.reading = make_source_client(next(iter(plans.values())).sources[0]).source_options()
        """Options of Spark's source as the router has them."""
        freeze_for_gc()

    def run(self, plan: str, topic: str) -> Run:
        """Route a topic by a plan."""
        generation, plans = begin(self._state, "bench", (topic,)), self._plans[plan]
        # As when a query starts: the size of records is sampled, so that batches need not be measured.
        sizing = BatchSizing.of(plans.active.settings)
        records_of_batch(make_source_client(plans.active.sources[0]), (topic,), generation, sizing)
        shared = SharedParts(self._state, plans, self._metrics, RouterStatus())
        splitting = Splitting(self._state.batches, "bench", "kafka", generation, sizing)
        pipeline = Pipeline("bench", "kafka", generation, shared, splitting=splitting)
        return lambda rows, _: rows.writeStream.foreachBatch(pipeline.batch).option(
            "checkpointLocation", str(generation.path)
        )


@contextmanager
def broker() -> Iterator[tuple[Path, str]]:
    """Yield a folder, and the servers of a broker, for the time of the block."""
    with tempfile.TemporaryDirectory() as folder, kafka_for_tests(Path(folder) / "kafka") as bootstrap:
        yield Path(folder), bootstrap


def plan_of(folder: Path, settings: Mapping[str, Any]) -> Plan:
    """Return the plan of a router with its state below a folder."""
    told = {**settings, "state": str(folder / "state")}
    source = Path(told["catalog"]["source"])
    return Plan(load_catalog([source]), settings_from_dict(told, os.environ, folder))


@contextmanager
def session(folder: Path, bootstrap: str, plan: Plan) -> Iterator[tuple[SparkSession, StateFolder, Streams]]:
    """Yield a session as a router with this plan has it, its state, and what reads topics."""
    others = below(os.getpid())[1:]
    with (
        StateFolder.open(folder / "state") as state,
        open_spark_session(plan.settings, state.root, plan.sources) as spark,
    ):
        yield spark, state, Streams(spark, bootstrap, folder, others)


def to_kafka(bootstrap: str, records: Callable[[DataFrame], DataFrame]) -> Run:
    """Return what writes to Kafka by Spark alone."""
    return lambda rows, path: (
        records(rows).writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap).option("checkpointLocation", path)
    )  # fmt: skip


def copied(rows: DataFrame, topic: str) -> DataFrame:
    """Return the records of a topic as those of another."""
    from pyspark.sql import functions as F

    return rows.select(F.lit(topic).alias("topic"), "key", "value", "headers")


def in_batches(bootstrap: str, records: Callable[[DataFrame], DataFrame]) -> Run:
    """Return the same, written from foreachBatch."""

    def write(rows: DataFrame, _: int) -> None:
        records(rows).write.format("kafka").option("kafka.bootstrap.servers", bootstrap).save()
        rows.sparkSession.catalog.clearCache()

    return lambda rows, path: rows.writeStream.foreachBatch(write).option("checkpointLocation", path)
