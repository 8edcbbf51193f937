"""Tables of a router that other engines change all the while, and that dies again and again: each row is there once.

What another engine removes or brings back (DELETE, RESTORE) is read from the entries that it committed, and no other
change of its may change which rows there are.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.benchmarks import steady_tables
from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.delta_spark import DeltaSpark, DeltaSparkError, delta_spark
from tests.support.kafka import SteadySender
from tests.support.router import RouterProcess
from tests.support.tables import by_deltalake, by_duckdb_delta, by_spark
from tests.support.waiting import wait_until

TABLES: Final = 6
LIMIT: Final = 600.0
REMOVES: Final = frozenset({"DELETE", "RESTORE"})
ROOT: Final = Path(__file__).resolve().parents[2]
Change = Callable[[Path], Any]


def of_deltalake() -> dict[str, Change]:
    """The changes that deltalake knows."""

    def merge(folder: Path) -> None:
        source = pa.table({"id": [str(number) for number in range(200)]})
        merger = DeltaTable(folder).merge(source, "s.id = t.id", "s", "t")
        merger.when_matched_update({"subject": "'merged'"}).execute()

    def restore(folder: Path) -> None:
        table = DeltaTable(folder)
        # It takes the first version, 0, for none.
        if table.version() > 1:
            table.restore(table.version() - 1)

    return {
        "compact": lambda folder: DeltaTable(folder).optimize.compact(),
        "z-order": lambda folder: DeltaTable(folder).optimize.z_order(["id"]),
        "delete": lambda folder: DeltaTable(folder).delete(f"id LIKE '%{random.randrange(100):02d}7'"),
        "update": lambda folder: DeltaTable(folder).update(predicate="id LIKE '%33'", updates={"subject": "'updated'"}),
        "merge": merge,
        "restore": restore,
        "vacuum": lambda folder: DeltaTable(folder).vacuum(0, dry_run=False, enforce_retention_duration=False),
        "checkpoint": lambda folder: DeltaTable(folder).create_checkpoint(),
    }


def of_spark(spark: DeltaSpark) -> dict[str, Change]:
    """The changes that Spark with its Delta connector knows."""

    def told(statement: str) -> Change:
        return lambda folder: spark.sql(statement.format(table=f"delta.`{folder}`", two=f"{random.randrange(100):02d}"))

    def restore(folder: Path) -> None:
        version = DeltaTable(folder).version()
        if version > 1:
            spark.sql(f"RESTORE TABLE delta.`{folder}` TO VERSION AS OF {version - 1}")

    return {
        "OPTIMIZE": told("OPTIMIZE {table}"),
        "ZORDER": told("OPTIMIZE {table} ZORDER BY (id)"),
        "DELETE": told("DELETE FROM {table} WHERE id LIKE '%{two}3'"),
        "UPDATE": told("UPDATE {table} SET subject = 'updated' WHERE id LIKE '%55'"),
        "MERGE": told(
            "MERGE INTO {table} t USING (SELECT CAST(id AS STRING) AS id FROM range(200)) s ON s.id = t.id "
            "WHEN MATCHED THEN UPDATE SET subject = 'merged'"
        ),
        "RESTORE": restore,
        "VACUUM": told("VACUUM {table} RETAIN 0.05 HOURS"),
        "VACUUM LITE": told("VACUUM {table} LITE RETAIN 0.05 HOURS"),
    }


@dataclass
class Others(threading.Thread):
    """The other engines: each of their changes in turn, on each table, as long as the test lasts.

    ``moved`` has, for each table, how often an id was brought (or removed, below zero) by what they committed.
    """

    tables: list[Path]
    changes: dict[str, Change]
    pause: float
    turns: dict[Path, threading.Lock]
    moved: dict[Path, Counter[str]] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.moved = {table: Counter() for table in self.tables}

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        turns = zip(itertools.cycle(self.changes), itertools.cycle(self.tables), strict=False)
        while not self.ends.is_set():
            name, table = next(turns)
            # One of the other engines at a time: what they do to each other is theirs.
            if self.turns[table].acquire(blocking=False):
                try:
                    before = DeltaTable(table).version()
                    self._change(name, table)
                    self._note(table, before)
                finally:
                    self.turns[table].release()
            self.ends.wait(self.pause)

    def _change(self, name: str, table: Path) -> None:
        try:
            self.changes[name](table)
            self.told[f"{name} done"] += 1
        except (DeltaError, DeltaSparkError, OSError) as error:
            # To meet another writer is right, and so is to miss what another removed. Anything else is told.
            self.told[f"{name} refused"] += 1
            if not any(text in str(error) for text in EXPECTED):
                self.faults.append(f"{name}: {str(error)[:300]}")

    def _note(self, table: Path, before: int) -> None:
        for version in range(before + 1, DeltaTable(table).version() + 1):
            actions = entry(table, version)
            info: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
            if "xregistry-router" in info.get("engineInfo", ""):
                continue
            moved = Counter[str]()
            for each in actions:
                if "add" in each:
                    moved.update(ids(table, each["add"]))
                if "remove" in each:
                    moved.subtract(ids(table, each["remove"]))
            moved = Counter({each: count for each, count in moved.items() if count})
            operation = info.get("operation", "")
            if moved and operation not in REMOVES:
                self.faults.append(f"{operation} of version {version} of {table} moved {len(moved)} rows")
            self.moved[table].update(moved)


EXPECTED: Final = (
    *("oncurrent", "CONCURRENT", "onflict", "Metadata changed", "commit", "Commit", "CANNOT_RESTORE"),
    *("not found", "FILE_NOT_FOUND", "does not exist", "No such file"),
)
"""What an error says of one who met another writer, or misses what another removed."""


def entry(table: Path, version: int) -> list[Any]:
    """Return the actions of a version."""
    text = (table / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def ids(table: Path, file: Any) -> Counter[str]:
    """Return the ids that a file of a table has."""
    column = pq.ParquetFile(table / unquote(file["path"])).read(["id"])["id"]
    return Counter({each["values"]: each["counts"] for each in column.value_counts().to_pylist()})


def versions(tables: list[Path]) -> list[int]:
    """Return the number of names in each log."""
    return [len(os.listdir(table / "_delta_log")) for table in tables]


def kill_within_a_commit(router: RouterProcess, tables: list[Path], number: int) -> str:
    """Kill the router as soon as a log or a folder shows that a commit, or a merge, is under way; return which."""
    merge = number % 2
    deadline = time.monotonic() + 60
    known = versions(tables)
    while time.monotonic() < deadline:
        if merge and any("-merged" in name for table in tables for name in fresh(table)):
            break
        if not merge and versions(tables) != known:
            break
    router.kill()
    return "a merge" if merge else "a commit"


def fresh(table: Path) -> Iterator[str]:
    """Yield the names of files in a table that are a moment old."""
    now = time.time()
    with os.scandir(table) as files:
        for file in files:
            try:
                if now - file.stat().st_mtime < 0.05:
                    yield file.name
            except FileNotFoundError:
                continue


@pytest.mark.slow
def test_other_engines_beside_a_router_for_a_while(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    with delta_spark(tmp_path / "spark") as spark:
        spark.sql("SELECT 1")
        judge(kafka, topic_factory("readings"), router, spark, seconds=10, rate=200, kills=1, pause=0.2)


@pytest.mark.full
def test_other_engines_beside_a_router_for_a_quarter_of_an_hour(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    with delta_spark(tmp_path / "spark") as spark:
        spark.sql("SELECT 1")
        judge(
            kafka,
            topic_factory("readings", 4),
            router,
            spark,
            seconds=900,
            rate=500,
            kills=20,
            pause=0.5,
            all_readers=True,
        )


def judge(
    kafka: Kafka,
    topic: str,
    router: RouterProcess,
    spark: DeltaSpark,
    *,
    seconds: int,
    rate: int,
    kills: int,
    pause: float,
    all_readers: bool = False,
) -> None:
    folder = router.folder
    source = plain.write(folder, steady_tables.catalog(TABLES, kafka.bootstrap, topic))
    sinks = plain.tables(folder, "lake", layout="definition", compact_after=1, keep_replaced="1h")
    sinks |= plain.tables(folder, "dead")
    router.configure(plain.routed(source, sinks, sources=[{"endpoint": "/endpoints/hall"}], trigger="500ms"))
    tables = [folder / f"lake/readings/reading{number}" for number in range(TABLES)]
    router.start()
    sender = SteadySender(kafka.bootstrap, topic, steady_tables.records(rate * seconds, TABLES), rate)
    sender.start()
    wait_until(lambda: all(map(is_table, tables)), LIMIT, lambda: f"the tables; {router.log[-3000:]}")
    turns = {table: threading.Lock() for table in tables}
    others = [Others(tables, changes, pause, turns) for changes in (of_deltalake(), of_spark(spark))]
    for each in others:
        each.start()
    met = Counter[str]()
    for number in range(kills):
        time.sleep(max(0.0, seconds / (kills + 1) - 5))
        met[kill_within_a_commit(router, tables, number)] += 1
        router.start()
    sender.join(seconds + LIMIT)
    for each in others:
        each.ends.set()
    for each in others:
        each.join(LIMIT)
    expected = Counter({str(number): 1 for number in range(sender.sent)})
    for each in others:
        for moved in each.moved.values():
            expected.update(moved)
    expected = Counter({each: count for each, count in expected.items() if count})

    def found(read: Callable[[Path], Counter[str]]) -> Counter[str]:
        return sum((read(table) for table in tables), Counter[str]())

    wait_until(
        lambda: found(by_deltalake).total() >= expected.total(), LIMIT, lambda: f"all rows; {router.log[-3000:]}"
    )
    wait_until(lambda: router.total("xrouter_source_lag_records") == 0, LIMIT, "the end of the topic")
    assert router.stop() == 0, router.log[-2000:]
    told = Counter[str]()
    for each in others:
        told.update(each.told)
    sys.stdout.write(f"{sender.sent} records, {dict(met)}, {json.dumps(told, sort_keys=True)}\n")
    assert not [fault for each in others for fault in each.faults]
    assert set(expected.values()) == {1}
    readers: dict[str, Callable[[Path], Counter[str]]] = {"deltalake": by_deltalake}
    readers["Spark"] = lambda table: by_spark(spark, table)
    if all_readers:
        readers["DuckDB"] = by_duckdb_delta
    for name, read in readers.items():
        rows = found(read)
        lost, double = expected - rows, rows - expected
        sys.stdout.write(f"{name}: {rows.total()} rows, {len(lost)} ids lost, {len(double)} double\n")
        assert rows == expected, name


def is_table(folder: Path) -> bool:
    return DeltaTable.is_deltatable(str(folder))
