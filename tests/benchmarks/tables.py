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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from router.evaluation.plan import Plan
from tests.benchmarks import spark_delta, steady_tables
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import Cost, Routed, Run, Way, broker, median, plan_of, session
from tests.support import load, plain
from tests.support.kafka import create_topics, produce
from tests.support.tables import files_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS: Final = 4
BATCH: Final = 100_000
SMALL: Final = 200
SMALL_BATCHES: Final = 25
DEFINITIONS: Final = 100
TABLES: Final = 50
PLANT: Final = "plant"


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
        routed = Routed(spark, state, plans)

        def by_spark(name: str, columns: Callable[[DataFrame], DataFrame], **reading: str) -> Way:
            run: Run = lambda rows, path: spark_delta.writer(columns(rows), folder / name, path)  # noqa: E731
            return Way(PLANT, lambda: run, reading)

        def by_router(plan: str, topic: str = PLANT) -> Way:
            return Way(topic, partial(routed.run, plan, topic), routed.reading)

        came = spark_delta.as_it_came
        of_small = {"Spark, as it came": by_spark("small", came), "routed, one wide table": by_router("one")}
        of_small["routed, three tables"] = by_router("three")
        small = {name: streams.each_batch(each, SMALL) for name, each in of_small.items()}
        produce(bootstrap, PLANT, records)
        produce(bootstrap, steady_tables.TOPIC, steady_tables.records(chosen.records, TABLES))
        ways = {
            "Spark, as it came": by_spark("as-it-came", came),
            "Spark, read alike": by_spark("as-it-came", came, **routed.reading),
            "Spark, the same columns": by_spark("same-columns", spark_delta.wide),
            "routed, one wide table": by_router("one"),
            f"routed, {TABLES} typed tables": by_router("many", steady_tables.TOPIC),
        }
        rounds = streams.rounds(ways, BATCH, 1, chosen.rounds)
    read = chosen.rounds + 1
    _check("the wide table", [folder / "one"], read * chosen.records * 49 // 50)
    _check("the typed tables", list((folder / "many/readings").iterdir()), read * chosen.records)
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


def _check(what: str, tables: list[Path], least: int) -> None:
    """Fail unless the tables have at least so many rows: what is quick because it loses records is no figure."""
    asked = "select count(data) from read_parquet(?, union_by_name=true)"
    told = duckdb.execute(asked, [files_of(*tables)]).fetchone()
    rows = (told or (0,))[0]
    if rows < least:
        raise SystemExit(f"{what} should have {least} rows, and has {rows}")


def _report(chosen: argparse.Namespace, rounds: Mapping[str, list[Cost]], small: Mapping[str, Cost]) -> None:
    out = [f"{chosen.records} records, batches of {BATCH}, {chosen.rounds} rounds; {machine()}"]
    for name, costs in rounds.items():
        mid, each = median(costs), " ".join(f"{cost.seconds:.2f}" for cost in costs)
        cpu = mid.cpu / chosen.records * 1e6
        figures = f"{chosen.records / mid.seconds:>10,.0f} records/s {cpu:>7.1f} us of CPU a record"
        out.append(f"{name:26} {figures}   seconds: {each}")
    out.append(f"batches of {SMALL}, median, and mean processor time:")
    out += [f"{name:26} {cost.seconds:.2f} s, {cost.cpu:.2f} s" for name, cost in small.items()]
    say("\n".join(out))


if __name__ == "__main__":
    main()
