"""``make bench-tables``: Kafka into Delta tables, beside Spark's own Kafka to Delta, in one session.

Every variant reads the same topic to its end with the same partitions, trigger and batch size; rounds alternate,
after a warm-up of each. What is routed is read with the options that the router gives its sources, Spark's own with
none, but for *read alike*, which has the router's. *As it came* is what Spark does with the least columns, *the same
columns* what one writes by hand for a table like ours, without a catalog. *Fifty tables* have payloads as typed
columns. In the end an independent reader counts what is in the tables.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
from deltalake import DeltaTable

from router.batches.pipeline import Pipeline
from router.batches.plans import PlanCache, SharedParts
from router.evaluation.plan import Plan
from router.reading.generations import begin
from router.sources import make_source_client
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.benchmarks import spark_delta, steady_tables
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import Cost, Run, Way, broker, plan_of, session
from tests.support import load, plain
from tests.support.kafka import create_topics, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
BATCH: Final = 100_000
SMALL: Final = 200
SMALL_BATCHES: Final = 25
DEFINITIONS: Final = 100
TABLES: Final = 50
PLANT: Final = "plant"
Rounds = dict[str, list[Cost]]


class Bench:
    """The variants, over topics of one broker, into tables below one folder."""

    def __init__(self, spark: SparkSession, state: StateFolder, folder: Path, plans: Mapping[str, Plan]) -> None:
        self._state = state
        self._folder = folder
        self._metrics = Metrics()
        self._holders = {name: PlanCache(spark, state.batches, plan, self._metrics) for name, plan in plans.items()}
        for name, holder in self._holders.items():
            holder.activate(plans[name])
        self._reading = make_source_client(plans["one"].sources[0]).source_options()

    def spark(self, name: str, columns: Callable[[DataFrame], DataFrame]) -> Run:
        """Into one table by Spark alone."""
        return lambda rows, path: spark_delta.writer(columns(rows), self._folder / name, path)

    def routed(self, plan: str, topic: str) -> Run:
        """Through the router's pipeline: matched, mapped, with dead letters and all."""
        generation = begin(self._state, "bench", (topic,))
        plans = self._holders[plan]
        pipeline = Pipeline(
            "bench", "kafka", generation, SharedParts(self._state, plans, self._metrics, RouterStatus())
        )
        return lambda rows, _: rows.writeStream.foreachBatch(pipeline.batch).option(
            "checkpointLocation", str(generation.path)
        )

    def variants(self) -> dict[str, Way]:
        """Return the variants of large batches."""
        came = partial(self.spark, "as-it-came", spark_delta.as_it_came)
        many = partial(self.routed, "many", steady_tables.TOPIC)
        return {
            "Spark, as it came": Way(PLANT, came, {}),
            "Spark, read alike": Way(PLANT, came, self._reading),
            "Spark, the same columns": Way(PLANT, partial(self.spark, "same-columns", spark_delta.wide), {}),
            "routed, one wide table": Way(PLANT, partial(self.routed, "one", PLANT), self._reading),
            f"routed, {TABLES} typed tables": Way(steady_tables.TOPIC, many, self._reading),
        }

    def small(self) -> dict[str, Way]:
        """Return the variants of small batches."""
        return {
            "Spark, as it came": Way(PLANT, partial(self.spark, "small", spark_delta.as_it_came), {}),
            "routed, one wide table": Way(PLANT, partial(self.routed, "one", PLANT), self._reading),
            "routed, three tables": Way(PLANT, partial(self.routed, "three", PLANT), self._reading),
        }


def main() -> None:
    """Run the benchmark and print its figures."""
    chosen = options(__doc__, records=300_000, rounds=3)
    with broker() as (folder, bootstrap):
        _measure(chosen, folder, bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    create_topics(bootstrap, [PLANT, steady_tables.TOPIC], PARTITIONS)
    plans = _plans(folder, bootstrap)
    records = load.records(chosen.records, DEFINITIONS)
    produce(bootstrap, PLANT, itertools.islice(records, SMALL * SMALL_BATCHES))
    with session(folder, bootstrap, plans["one"]) as (spark, state, streams):
        bench = Bench(spark, state, folder, plans)
        small = {name: streams.each_batch(each, SMALL) for name, each in bench.small().items()}
        produce(bootstrap, PLANT, records)
        produce(bootstrap, steady_tables.TOPIC, steady_tables.records(chosen.records, TABLES))
        rounds: Rounds = {}
        for number in range(chosen.rounds + 1):
            for name, each in bench.variants().items():
                cost = streams.whole(each, BATCH)
                if number:
                    rounds.setdefault(name, []).append(cost)
    read = chosen.rounds + 1
    _check("the wide table", [folder / "one"], "data", read * chosen.records * 49 // 50)
    _check("the typed tables", list((folder / "many/readings").iterdir()), "data", read * chosen.records)
    _report(chosen, rounds, small)


def _plans(folder: Path, bootstrap: str) -> dict[str, Plan]:
    """Return the plans by name: one wide table, three of them with that of dead letters, and typed tables."""
    plant = plain.write(folder, load.catalog(DEFINITIONS, topic=PLANT), "plant.json")
    readings = plain.write(folder, steady_tables.catalog(TABLES, bootstrap), "readings.json")

    def plan(catalog: Path, endpoint: str, sinks: Mapping[str, Any]) -> Plan:
        dead = plain.tables(folder / "-".join(sinks), "dead")
        sources = [{"endpoint": f"/endpoints/{endpoint}", "bootstrap_servers": bootstrap}]
        conf = {"conf": spark_delta.delta_conf()}
        return plan_of(folder, load.settings(bootstrap, catalog, {**sinks, **dead}, sources=sources, spark=conf))

    return {
        "one": plan(plant, PLANT, plain.tables(folder, "one")),
        "three": plan(plant, PLANT, plain.tables(folder, "first", "second")),
        "many": plan(readings, "hall", plain.tables(folder, "many", layout="definition")),
    }


def _check(what: str, tables: list[Path], column: str, least: int) -> None:
    """Fail unless the tables have at least so many rows: what is quick because it loses records is no figure."""
    files = [uri.removeprefix("file://") for table in tables for uri in DeltaTable(table).file_uris()]
    told = duckdb.execute(f"select count({column}) from read_parquet(?, union_by_name=true)", [files]).fetchone()
    rows = (told or (0,))[0]
    if rows < least:
        raise SystemExit(f"{what} should have {least} rows, and has {rows}")


def _report(chosen: argparse.Namespace, rounds: Rounds, small: Mapping[str, Cost]) -> None:
    out = [f"{chosen.records} records, batches of {BATCH}, {chosen.rounds} rounds; {machine()}"]
    for name, costs in rounds.items():
        seconds = statistics.median(cost.seconds for cost in costs)
        cpu = statistics.median(cost.cpu for cost in costs)
        each = " ".join(f"{cost.seconds:.2f}" for cost in costs)
        figures = f"{chosen.records / seconds:>10,.0f} records/s {cpu / chosen.records * 1e6:>7.1f} us of CPU a record"
        out.append(f"{name:26} {figures}   seconds: {each}")
    out.append(f"batches of {SMALL}, median, and mean processor time:")
    out += [f"{name:26} {cost.seconds:.2f} s, {cost.cpu:.2f} s" for name, cost in small.items()]
    say("\n".join(out))


if __name__ == "__main__":
    main()
