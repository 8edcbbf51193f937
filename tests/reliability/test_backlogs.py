"""Backlogs drain at default settings within bounded memory, whatever the size of their records."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.kafka import produce, written
from tests.support.router import RouterProcess
from tests.support.tables import column_of
from tests.support.waiting import wait_until
from tests.support.watched import Footprint, Peaks

MIB: Final = 2**20
GIB: Final = 2**30
DEFINITIONS: Final = 60
DRAIN_SECONDS: Final = 1500.0


def sized(count: int, size: int, start: int = 0) -> Iterator[tuple[bytes | None, bytes, load.Headers]]:
    """Yield records of :func:`tests.support.load.records` whose values have *size* bytes at least."""
    for key, value, headers in load.records(count, DEFINITIONS, start=start):
        yield key, value + b" " * (size - len(value)), headers


def drained(router: RouterProcess, count: int) -> Peaks:
    """Run a router until it has settled so many records; return what memory it took, and print figures."""
    router.start()
    began = time.monotonic()

    def settled() -> bool:
        assert router.ended is None, router.log[-3000:]
        return router.total("xrouter_records_total") >= count

    with Footprint(router.pid) as peaks:
        wait_until(settled, DRAIN_SECONDS, lambda: router.log[-3000:])
    seconds = time.monotonic() - began
    batches = router.total("xrouter_batch_seconds_count")
    sys.stdout.write(f"\n{count} records in {seconds:.0f} s, {batches:.0f} batches; {peaks}\n")
    assert router.stop() == 0, router.log[-2000:]
    return peaks


def configure(router: RouterProcess, bootstrap: str, source: str, sinks: dict[str, Any], **more: Any) -> None:
    """Write settings with one Kafka source, the first sink for events and the last one for dead letters."""
    catalog = plain.write(router.folder, load.catalog(DEFINITIONS, topic=source), "catalog.xreg.json")
    names = list(sinks)
    router.configure(
        {
            "catalog": {"source": str(catalog), "poll": "0"},
            "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": bootstrap}],
            "sinks": sinks,
            "routes": [{"to": [names[0]]}],
            "dead_letters": {"sinks": [names[-1]]},
            **more,
        }
    )


@pytest.mark.full
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("count", "size"), [(200_000, 8_000), (1_000_000, 200)])
@pytest.mark.parametrize("to", ["kafka", "table"])
def test_a_backlog_drains_at_default_settings_within_bounded_memory(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, count: int, size: int, to: str
) -> None:
    source, out, dead = topic_factory("in"), topic_factory("out"), topic_factory("dead")
    produce(kafka.bootstrap, source, sized(count, size))
    tables, topics = plain.tables(router.folder, "lake", "letters"), plain.topics(kafka.bootstrap, bus=out, dead=dead)
    sinks = topics if to == "kafka" else tables
    configure(router, kafka.bootstrap, source, sinks)
    peaks = drained(router, count)
    if to == "kafka":
        assert written(kafka.bootstrap, out, dead) == count
    else:
        assert sum(len(column_of(router.folder / name, "position")) for name in sinks) == count
    assert peaks.driver < 1.5 * GIB
    assert peaks.worker < 1.5 * GIB
    assert peaks.jvm < 4.5 * GIB
