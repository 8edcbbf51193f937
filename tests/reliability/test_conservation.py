"""SIGKILLs under load: what was taken is all written or dead-lettered, and counters equal what the tables have."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain, shop
from tests.support.kafka import produce, written
from tests.support.router import RouterProcess
from tests.support.waiting import repeating, wait_until

DEFINITIONS = 20
LIMIT = 300.0
BURST = 200
KILLS = 1


def configured(router: RouterProcess, kafka: Kafka, topic: str) -> None:
    catalog = plain.write(router.folder, load.catalog(DEFINITIONS, topic=topic))
    tables = plain.tables(router.folder, "lake", "copy", "dead")
    more = {"max_records_per_batch": 2_000, "trigger": "100ms", "log": {"format": "json"}}
    router.configure(load.settings(kafka.bootstrap, catalog, tables, **more))


def kill_and_count(router: RouterProcess, kafka: Kafka, topic: str, *, kills: int, seconds: float) -> int:
    """Kill the router under load at random moments, at least so often and for so long; then look at all counts.

    Returns how often it was killed.
    """
    chance, killed = random.Random(17), 0
    configured(router, kafka, topic)
    bursts: list[int] = []

    def send(number: int) -> None:
        bursts.append(produce(kafka.bootstrap, topic, load.records(BURST, DEFINITIONS, start=BURST * number)))

    until = time.monotonic() + seconds
    with repeating(send, 0.5):
        while killed < kills or time.monotonic() < until:
            router.start()
            before = router.total("xrouter_taken_records_total")
            wait_until(partial(has_taken_more, router, before), LIMIT, said(router))
            # Not a synchronisation: whichever step of a batch it dies in is to do no harm.
            threading.Event().wait(chance.uniform(0, 3))
            router.kill()
            killed += 1
    router.start()
    sent = written(kafka.bootstrap, topic)
    assert sent == sum(bursts)
    wait_until(lambda: router.total("xrouter_taken_records_total") == sent, LIMIT, said(router))
    assert [value for name, value in router.metrics().items() if name.startswith("xrouter_conservation_gap")] == [0]
    assert router.total("xrouter_empty_offsets_total") == 0
    routed, dead = (router.total("xrouter_records_total", outcome=each) for each in ("routed", "dead-letter"))
    assert routed + dead == sent
    rows = {name: len(shop.rows_of(router.folder / name)) for name in ("lake", "copy", "dead")}
    assert rows == {"lake": routed, "copy": routed, "dead": dead}
    assert rows == {name: router.total("xrouter_sink_records_total", sink=name) for name in rows}
    lag = 'xrouter_source_lag_records{endpoint="/endpoints/plant"}'
    wait_until(lambda: router.metrics().get(lag) == 0, LIMIT, said(router))
    assert router.stop() == 0, router.log[-2000:]
    lines = [json.loads(line) for line in router.log.splitlines()]
    assert {"catalog loaded", "running", "stopped"} <= {line["event"] for line in lines}
    return killed


def has_taken_more(router: RouterProcess, before: float) -> bool:
    return router.total("xrouter_taken_records_total") > before


def said(router: RouterProcess) -> Callable[[], str]:
    return lambda: f"all to be counted; metrics: {router.metrics()}; log:\n{router.log[-3000:]}"


@pytest.mark.timeout(900)
def test_counters_equal_the_tables_after_kills(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    assert kill_and_count(router, kafka, topic_factory("in", 2), kills=KILLS, seconds=0) == KILLS


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_counters_equal_the_tables_after_ten_minutes_of_kills(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    assert kill_and_count(router, kafka, topic_factory("in", 2), kills=8, seconds=600) >= 8
