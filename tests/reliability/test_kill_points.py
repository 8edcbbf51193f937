"""The router is killed at each point of a batch in turn: tables have every record once, other sinks at least once.

One state goes through all deaths: each router first finishes the batch that the one before it left, and then dies at
its own point in the next batch. What is looked at in the end has therefore been through every repair there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.dying_router import ENDED_BY_SIGNAL
from tests.support.kafka import produce, read_all
from tests.support.kill_points import read_points
from tests.support.load import numbers
from tests.support.router import RouterProcess
from tests.support.tables import column_of
from tests.support.waiting import wait_until
from tests.support.web import Webhook

DEFINITIONS: Final = 10
RECORDS: Final = 40
LIMIT: Final = 300.0
POINTS: Final = read_points()["batch"]
OF_TABLES: Final = read_points()["tables"]
"""Points of a batch that workers stage as a whole."""


def each_kind(kafka: Kafka, folder: Path, out: str, hook: Webhook) -> dict[str, Any]:
    """A sink of each kind of promise."""
    return {
        "sinks": {
            **plain.tables(folder, "wide", compact_after=2),
            **plain.tables(folder, "typed", layout="definition", table="{messageid}"),
            **plain.topics(kafka.bootstrap, bus=out),
            "hook": {"type": "http", "url": hook.url + "/{messageid}"},
            **plain.tables(folder, "files", format="parquet"),
            **plain.tables(folder, "dead"),
        },
        "routes": [{"to": ["wide", "typed", "bus", "hook", "files"]}],
    }


def of_table(folder: Path, column: str = "data") -> Counter[int]:
    """Count the records of a Delta table."""
    return numbers(column_of(folder, column))


def step_through(
    kafka: Kafka, source: str, router: RouterProcess, told: dict[str, Any], points: Iterable[tuple[str, str]]
) -> set[int]:
    """Kill a router at each point in turn, hold its wide table and its letters against what was sent; return the good.

    The last router lives, and writes what is left.
    """
    folder = router.folder
    plain.write(folder, load.catalog(DEFINITIONS, topic=source))
    router.configure(
        {
            "catalog": {"source": str(folder / "catalog.json")},
            "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": kafka.bootstrap}],
            "dead_letters": {"sinks": ["dead"]},
            **told,
        }
    )
    sent = 0
    for left, (point, when) in enumerate([*points, ("", "")]):
        produce(kafka.bootstrap, source, load.records(RECORDS, DEFINITIONS, start=sent, bad=8))
        sent += RECORDS
        if point:
            router.module = ("tests.support.dying_router", point, when, str(min(left, 1)))
            router.launch()
            assert router.wait(LIMIT) == ENDED_BY_SIGNAL, f"it did not die {when} {point}: {router.log[-2000:]}"
    router.module = ("xrouter",)
    router.start()
    bad = {n for n in range(sent) if n % 8 == 7}
    wait_until(lambda: len(of_table(folder / "dead", "body")) == len(bad), LIMIT,
               lambda: f"the last letters; log:\n{router.log[-3000:]}")  # fmt: skip
    assert router.stop() == 0, router.log[-2000:]
    assert of_table(folder / "wide") == Counter(set(range(sent)) - bad)
    assert of_table(folder / "dead", "body") == Counter(bad)
    return set(range(sent)) - bad


@pytest.mark.full
def test_killed_at_every_point_of_a_batch_of_tables(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    tables = {name: {"type": "table", "path": str(router.folder / name)} for name in ("wide", "dead")}
    step_through(kafka, topic_factory("in"), router, {"sinks": tables, "routes": [{"to": ["wide"]}]}, OF_TABLES)


@pytest.mark.full
def test_killed_at_every_point_of_a_batch_for_each_kind_of_sink(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    source, out, folder = topic_factory("in"), topic_factory("out"), router.folder
    with Webhook() as hook:
        good = step_through(kafka, source, router, each_kind(kafka, folder, out, hook), POINTS)
        posted = numbers(taken.body for taken in hook.taken)
    assert sum((of_table(table) for table in (folder / "typed").iterdir()), Counter()) == Counter(good)
    files = [str(file) for file in (folder / "files").glob("*.parquet")]
    rows = duckdb.execute("select data from read_parquet(?)", [files]).fetchall()
    assert numbers(row[0] for row in rows) == Counter(good)
    assert set(posted) == good
    assert set(numbers(message.value for message in read_all(kafka.bootstrap, out))) == good
