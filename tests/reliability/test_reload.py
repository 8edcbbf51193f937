"""The catalog changes under load: every record is judged by one epoch, and by the right one."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.reliability.test_kafka_crash import router_said, settings
from tests.support import load
from tests.support.kafka import Message, produce, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT = 240.0
STEP = 10
CHANGES = 5
BROKEN = 3


class Feeder(threading.Thread):
    """Produces records of all definitions, those to come included, until it is told to stop.

    It keeps a *lead* of the router, however slow the machine is, and no more.
    """

    def __init__(self, bootstrap: str, topic: str, router: RouterProcess, *, lead: int = 5_000) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._topic = topic
        self._router = router
        self._lead = lead
        self._enough = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._enough.wait(0.1):
            if self.count - self._router.total("xrouter_records_total") > self._lead:
                continue
            chunk = load.records(500, STEP * (CHANGES + 1), start=self.count, bad=0)
            self.count += produce(self._servers, self._topic, chunk)

    def finish(self) -> int:
        """Stop and return how many records there are."""
        self._enough.set()
        self.join(180)
        assert not self.is_alive(), "the producer did not end"
        return self.count


def epoch(router: RouterProcess) -> str:
    """Return the epoch that is active, as the metrics tell it."""
    found = [name for name, value in router.metrics().items() if name.startswith("xrouter_catalog_info") and value == 1]
    return found[0].split('"')[1] if found else ""


def routed_more(router: RouterProcess, count: float) -> bool:
    """Whether more than *count* records have an outcome."""
    return router.total("xrouter_records_total") > count


def batches(router: RouterProcess) -> float:
    """How many batches are done."""
    return router.total("xrouter_batch_seconds_count")


def two_more(router: RouterProcess, done: float) -> bool:
    """Whether two more batches are done: the second began after whatever was active at *done*."""
    return batches(router) >= done + 2


def changed(router: RouterProcess, before: str) -> bool:
    """Whether another epoch than *before* is active."""
    return epoch(router) not in ("", before)


@pytest.mark.full
def test_five_changes_under_load_one_of_them_invalid(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    source, out, dead = topic_factory("in", 2), topic_factory("out"), topic_factory("dead")
    path = load.write_catalog(router.folder / "catalog.xreg.json", load.catalog(STEP, topic=source))
    router.configure(settings(kafka.bootstrap, path, out, dead))
    router.start()
    sizes = {epoch(router): STEP}
    feeder = Feeder(kafka.bootstrap, source, router)
    feeder.start()
    for change in range(1, CHANGES + 1):
        wait_until(partial(two_more, router, batches(router)), LIMIT, router_said(router))
        seen = router.total("xrouter_records_total")
        wait_until(partial(routed_more, router, seen + 1_000), LIMIT, router_said(router))
        if change == BROKEN:
            path.with_suffix(".tmp").write_text('{"messagegroups": {"plant.0": ')
            path.with_suffix(".tmp").replace(path)
            wait_until(lambda: router.total("xrouter_catalog_reloads_total", result="refused") == 1, LIMIT, "a refusal")
            assert epoch(router) in sizes
            assert "refused" in json.dumps(router.readiness())
            continue
        before = epoch(router)
        load.write_catalog(path, load.catalog(STEP * (change + 1), topic=source))
        wait_until(partial(changed, router, before), LIMIT, router_said(router))
        sizes[epoch(router)] = STEP * (change + 1)
    wait_until(partial(two_more, router, batches(router)), LIMIT, router_said(router))
    count = feeder.finish()
    wait_until(lambda: router.total("xrouter_records_total") >= count, LIMIT, router_said(router))
    assert router.total("xrouter_catalog_reloads_total", result="accepted") == CHANGES - 1
    assert router.stop() == 0, router.log[-2000:]
    check_epochs(read_all(kafka.bootstrap, out), read_all(kafka.bootstrap, dead), sizes, count)


def check_epochs(routed: list[Message], letters: list[Message], sizes: dict[str, int], count: int) -> None:
    """Each record is there once, where its epoch's catalog puts it, and epochs never go back within a partition."""
    found = sorted(json.loads(message.value or b"{}")["n"] for message in (*routed, *letters))
    assert found == list(range(count))
    assert len({message.lineage("epoch") for message in (*routed, *letters)}) == len(sizes)
    order = list(sizes)
    places: dict[str, list[tuple[int, int]]] = {}
    for message in (*routed, *letters):
        told = json.loads(message.value or b"{}")
        active = message.lineage("epoch") or ""
        known = int(told["want"].removeprefix("plant.event")) < sizes[active]
        assert known == (message.header("xrouter-message") is not None)
        _, partition, offset = (message.lineage("position") or "").rsplit("-", 2)
        places.setdefault(partition, []).append((int(offset), order.index(active)))
    for seen in places.values():
        epochs = [number for _, number in sorted(seen)]
        assert epochs == sorted(epochs)


@pytest.mark.full
def test_topics_that_come_and_go_are_read_from_where_they_were_left(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    first, second = topic_factory("first", 2), topic_factory("second", 2)
    out, dead = topic_factory("out"), topic_factory("dead")
    path = router.folder / "catalog.xreg.json"
    load.write_catalog(path, both(kafka.bootstrap, first))
    told = settings(kafka.bootstrap, path, out, dead)
    del told["sources"]
    router.configure(told)
    router.start()
    expected = 0
    for round_number, topics in enumerate([(first,), (first, second), (second,), (first, second)]):
        before = epoch(router)
        load.write_catalog(path, both(kafka.bootstrap, *topics))
        if round_number:
            wait_until(partial(changed, router, before), LIMIT, router_said(router))
        for topic in (first, second):
            # What a topic gets while nobody reads it is read once it is back.
            produce(kafka.bootstrap, topic, load.records(300, STEP, start=300 * expected, bad=0))
            expected += 1
    wait_until(partial(routed_more, router, 300 * expected - 1), LIMIT, router_said(router))
    assert router.stop() == 0, router.log[-2000:]
    found = sorted(json.loads(message.value or b"{}")["n"] for message in read_all(kafka.bootstrap, out))
    assert found == list(range(300 * expected))
    assert not read_all(kafka.bootstrap, dead)


def both(bootstrap: str, *topics: str) -> dict[str, Any]:
    """Return a catalog with an endpoint for each topic, all with the same definitions."""
    document = load.catalog(STEP, topic=topics[0])
    endpoint = document["endpoints"].pop("plant")
    for number, topic in enumerate(topics):
        options = {"endpoints": [{"uri": f"kafka://{bootstrap}"}], "options": {"topic": topic}}
        document["endpoints"][f"plant{number}"] = {**endpoint, "protocoloptions": options}
    return document
