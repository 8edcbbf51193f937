"""Batches are bounded by bytes, and one that was planned too large is read and written in parts, each row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.dying_router import ENDED_BY_SIGNAL
from tests.support.kafka import produce
from tests.support.router import RouterProcess
from tests.support.tables import column_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
MIB = 2**20
DEFINITIONS = 10
SIZE = 8_000
COUNT = 600
LIMIT = 180.0


def large(start: int, count: int = COUNT) -> Any:
    """Yield records of eight kilobytes."""
    for key, value, headers in load.records(count, DEFINITIONS, start=start):
        yield key, value + b" " * (SIZE - len(value)), headers


def configure(router: RouterProcess, bootstrap: str, topic: str, **more: Any) -> None:
    """Write settings with one topic and two tables."""
    catalog = plain.write(router.folder, load.catalog(DEFINITIONS, topic=topic))
    tables = plain.tables(router.folder, "lake", "dead")
    router.configure(load.settings(bootstrap, catalog, tables, spark={"master": "local[1]"}, **more))


def numbers(folder: Path) -> Counter[int]:
    """Count the records of both tables by the number in their body."""
    return load.numbers([*column_of(folder / "lake"), *column_of(folder / "dead", "body")])


def all_once(router: RouterProcess, count: int) -> None:
    """Wait for so many records, each once."""

    def there() -> bool:
        assert router.ended is None, router.log[-3000:]
        return sum(numbers(router.folder).values()) >= count

    wait_until(there, LIMIT, lambda: f"{count} records; log:\n{router.log[-3000:]}")
    assert numbers(router.folder) == Counter(range(count))


def largest_below(router: RouterProcess, size: int) -> bool:
    """Whether no batch since the start was larger; *size* is a bound of the histogram."""
    metrics = router.metrics()
    bounds = {
        float(name.split('"')[1]): value
        for name, value in metrics.items()
        if name.startswith("xrouter_batch_bytes_bucket")
    }
    return bounds[size] == metrics["xrouter_batch_bytes_count"]


@pytest.mark.full
def test_records_that_grow_make_batches_of_fewer(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    topic = topic_factory("grows", 2)
    configure(router, kafka.bootstrap, topic, max_bytes_per_batch="1MiB")
    produce(kafka.bootstrap, topic, load.records(COUNT, DEFINITIONS))
    router.start()
    all_once(router, COUNT)
    assert "in parts" not in router.log
    produce(kafka.bootstrap, topic, large(COUNT))
    all_once(router, 2 * COUNT)
    # What was planned by the size of the small ones was cut; then the query went on with another limit.
    assert "batch is too large; writing it in parts" in router.log
    wait_until(lambda: "another batch size" in router.log, LIMIT, lambda: router.log[-3000:])
    assert router.stop() == 0, router.log[-2000:]
    produce(kafka.bootstrap, topic, large(2 * COUNT))
    router.start()
    all_once(router, 3 * COUNT)
    # A start looks at what is there, and plans no batch that has to be cut. Counts go on through restarts.
    wait_until(lambda: router.total("xrouter_records_total") == 3 * COUNT, LIMIT, lambda: router.log[-3000:])
    assert largest_below(router, 4 * MIB)
    assert router.stop() == 0, router.log[-2000:]


@pytest.mark.full
def test_a_range_that_was_planned_too_large_is_read_in_parts_and_written_once(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    topic = topic_factory("large", 2)
    produce(kafka.bootstrap, topic, large(0))
    died = [
        ("router.state.state:BatchStore.pin", "before"),
        ("router.sinks.tables.delta:DeltaSink.commit_staged", "after"),
    ]
    for bound, (point, when) in zip(("64MiB", "1MiB"), died, strict=True):
        configure(router, kafka.bootstrap, topic, max_bytes_per_batch=bound)
        router.module = ("tests.support.dying_router", point, when, "0")
        router.launch()
        assert router.wait(LIMIT) == ENDED_BY_SIGNAL, router.log[-3000:]
        assert ("in parts" in router.log) == (bound == "1MiB"), router.log[-3000:]
    assert 0 < sum(numbers(router.folder).values()) < COUNT / 2
    router.module = ("xrouter",)
    router.start()
    all_once(router, COUNT)
    assert router.stop() == 0, router.log[-2000:]
    sizes = DeltaTable(str(router.folder / "lake")).get_add_actions(flatten=True)["num_records"].to_pylist()
    assert len(sizes) >= COUNT * SIZE // (2 * MIB) and max(sizes) * SIZE < 2 * MIB
