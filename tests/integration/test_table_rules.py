"""A router whose tables have rules: a row that breaks one is a dead letter that names it, and the rest is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from router.sinks.tables.head import TableHead
from tests.benchmarks import steady_tables
from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.kafka import produce
from tests.support.router import RouterProcess
from tests.support.tables import by_duckdb
from tests.support.waiting import wait_until

LIMIT: Final = 300.0
EACH: Final = 40


def constrain(folder: Path, name: str, sql: str) -> None:
    """Set a constraint in a table, whoever writes to it."""
    TableHead(str(folder), DeltaTable(folder)).set_properties({f"delta.constraints.{name}": sql})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, read by an engine that shares no code with what writes; none before there is one."""
    return by_duckdb(folder).rows if DeltaTable.is_deltatable(str(folder)) else []


@pytest.mark.slow
def test_rows_that_break_a_rule_become_letters_and_the_rest_is_written(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    folder, topic = router.folder, topic_factory("readings")
    catalog = steady_tables.catalog(2, kafka.bootstrap, topic)
    sinks = plain.tables(folder, "wide", compact_after=1) | plain.tables(folder, "dead")
    sinks |= plain.tables(folder, "typed", layout="definition", table="{messageid}")
    sources = [{"endpoint": "/endpoints/hall"}]
    router.configure(plain.routed(plain.write(folder, catalog), sinks, sources=sources, trigger="200ms"))
    router.start()
    produce(kafka.bootstrap, topic, steady_tables.records(EACH, 2))
    wait_until(lambda: len(rows_of(folder / "wide")) == EACH, LIMIT, lambda: f"the first rows; {router.log[-3000:]}")
    wait_until(lambda: len(rows_of(folder / "typed/reading1")) == EACH // 2, LIMIT, "the first typed rows")
    constrain(folder / "wide", "notTen", "CAST(id AS INT) % 10 <> 0")
    constrain(folder / "typed/reading1", "low", "payload.n < 60 AND forall(payload.tags, tag -> length(tag) = 1)")
    produce(kafka.bootstrap, topic, (steady_tables.record(number, 2) for number in range(EACH, 2 * EACH)))
    bad = {number: "wide" for number in range(EACH, 2 * EACH) if number % 10 == 0}
    bad |= {number: "typed" for number in range(61, 2 * EACH, 2)}
    wait_until(lambda: len(rows_of(folder / "dead")) >= len(bad), LIMIT, lambda: f"the letters; {router.log[-3000:]}")
    wait_until(lambda: router.readiness().get("ready", True), LIMIT, "a router that is ready")
    metrics = router.metrics()
    assert router.stop() == 0, router.log[-2000:]
    letters = rows_of(folder / "dead")
    assert {letter["reason"] for letter in letters} == {"sink-rejected"} and len(letters) == len(bad)
    told = {
        "sink wide: the row breaks CHECK constraint notTen (CAST(id AS INT) % 10 <> 0)": "wide",
        "sink typed: the row breaks CHECK constraint low "
        "(payload.n < 60 AND forall(payload.tags, tag -> length(tag) = 1))": "typed",
    }
    numbers = (json.loads(bytes.fromhex(letter["body"]))["n"] for letter in letters)
    assert dict(zip(numbers, (told[letter["detail"]] for letter in letters), strict=True)) == bad
    wide = sorted(int(row["id"]) for row in rows_of(folder / "wide"))
    assert wide == [number for number in range(2 * EACH) if bad.get(number) != "wide"]
    parted = [int(row["id"]) for name in ("reading0", "reading1") for row in rows_of(folder / "typed" / name)]
    assert sorted(parted) == [number for number in range(2 * EACH) if bad.get(number) != "typed"]
    assert sum(value for name, value in metrics.items() if name.startswith("xrouter_conservation_gap")) == 0
