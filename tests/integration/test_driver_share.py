"""No record passes the driver: Spark itself refuses it more bytes of results than a part of a batch has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.conftest import Kafka, TopicFactory
from tests.support import load
from tests.support.kafka import Headers, ends, produce
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
DEFINITIONS = 10
COUNT = 2_000
DEAD = 400
BODY = 2_000
LIMIT = 180.0
MOST = 200_000
"""Bytes of results that Spark's driver takes of a job: a third of the dead letters' bodies, which are the fewest."""
REFUSED = "spark.driver.maxResultSize"
"""In what Spark says when a job would bring more."""


def records() -> Iterator[tuple[bytes | None, bytes, Headers]]:
    """Records with large bodies, one in five of them for the dead letters."""
    for key, value, headers in load.records(COUNT, DEFINITIONS, bad=COUNT // DEAD):
        yield key, json.dumps({**json.loads(value), "pad": "x" * BODY}).encode(), headers


def started(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, sinks: dict[str, Any], events: list[str]
) -> RouterProcess:
    """A router that may take no more than MOST bytes of a job, on a topic of records; sink ``dead`` gets letters."""
    source = topic_factory("in", 4)
    produce(kafka.bootstrap, source, records())
    catalog = load.write_catalog(router.folder / "catalog.xreg.json", load.catalog(DEFINITIONS, topic=source))
    told = {
        "catalog": {"source": str(catalog)},
        "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": kafka.bootstrap}],
        "sinks": sinks,
        "routes": [{"to": events}],
        "dead_letters": {"sinks": [name for name in sinks if name not in events]},
        "spark": {"master": "local[2]", "conf": {REFUSED: str(MOST)}},
    }
    router.configure(told)
    return router.start()


def all_done(router: RouterProcess) -> bool:
    """Whether every record has its outcome, or a job was refused."""
    return router.total("xrouter_records_total") == COUNT or REFUSED in router.log


@pytest.mark.full
def test_no_record_for_topics_and_tables_passes_the_driver(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    out, dead, lake = topic_factory("out", 2), topic_factory("dead"), router.folder / "lake"
    bus = {"type": "kafka", "bootstrap_servers": kafka.bootstrap}
    sinks = {
        "bus": {**bus, "topic": out},
        "events": {"type": "table", "path": str(lake / "events")},
        "typed": {"type": "table", "path": str(lake / "typed"), "layout": "definition"},
        "letters": {"type": "table", "path": str(lake / "letters")},
        "dead": {**bus, "topic": dead},
    }
    started(kafka, topic_factory, router, sinks, ["bus", "events", "typed"])
    wait_until(lambda: all_done(router), LIMIT, lambda: router.log[-3000:])
    assert router.stop() == 0
    # A batch that is refused would be cut until its parts are small enough.
    assert REFUSED not in router.log and "batch fail" not in router.log, router.log[-3000:]
    assert sum(ends(kafka.bootstrap, out).values()) == DeltaTable(lake / "events").count() == COUNT - DEAD
    assert sum(ends(kafka.bootstrap, dead).values()) == DeltaTable(lake / "letters").count() == DEAD


@pytest.mark.full
def test_the_limit_meets_a_sink_that_the_driver_writes_to(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    """Else the test above would show nothing."""
    sinks = {"events": {"type": "jsonl"}, "dead": {"type": "table", "path": str(router.folder / "dead")}}
    started(kafka, topic_factory, router, sinks, ["events"])
    wait_until(lambda: REFUSED in router.log, LIMIT, lambda: router.log[-3000:])
