"""Crashes of the router between Kafka and Kafka, and between two sinks of one batch: every record is accounted for."""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.brokers import KafkaBroker, KafkaCluster
from tests.support.kafka import Message, create_topics, produce, read_all, written
from tests.support.router import RouterProcess
from tests.support.tables import column_of
from tests.support.waiting import wait_until

DEFINITIONS = 60
LIMIT = 300.0


def has_written(bootstrap: str, topics: tuple[str, ...], goal: int) -> bool:
    """Whether the topics have that many records."""
    return written(bootstrap, *topics) >= goal


def numbers(messages: list[Message]) -> Counter[int]:
    """Count the records by the number in their value."""
    return load.numbers(message.value for message in messages)


def settings(bootstrap: str, catalog: Path, out: str, dead: str, **more: Any) -> dict[str, Any]:
    """Return settings for one Kafka source, and two Kafka sinks."""
    told = {"catalog": {"source": str(catalog), "poll": "200ms"}, "max_records_per_batch": 5_000, **more}
    return load.settings(bootstrap, catalog, plain.topics(bootstrap, bus=out, dead=dead), **told)


def crash_and_account(
    kafka: Kafka, topics: tuple[str, str, str], router: RouterProcess, count: int, kills: int = 3
) -> None:
    """Feed *count* records through a router that is killed, then look for each."""
    source, out, dead = topics
    catalog = plain.write(router.folder, load.catalog(DEFINITIONS, topic=source), "catalog.xreg.json")
    router.configure(settings(kafka.bootstrap, catalog, out, dead))
    produce(kafka.bootstrap, source, load.records(count, DEFINITIONS))
    for part in range(1, kills + 1):
        router.start()
        goal = count * part // (kills + 1)
        wait_until(partial(has_written, kafka.bootstrap, (out, dead), goal), LIMIT, router_said(router))
        router.kill()
    router.start()
    wait_until(lambda: router.total("xrouter_source_lag_records") == 0 and done(kafka, router, count, out, dead),
               LIMIT, router_said(router))  # fmt: skip
    assert router.stop() == 0, router.log[-2000:]
    routed, letters = read_all(kafka.bootstrap, out), read_all(kafka.bootstrap, dead)
    assert set(numbers(routed)) | set(numbers(letters)) == set(range(count))
    assert not set(numbers(routed)) & set(numbers(letters))
    for message in routed:
        wanted = json.loads(message.value or b"{}")["want"]
        assert (message.header("xrouter-message") or "").endswith(f"/messages/{wanted}")
    assert all(json.loads(message.value or b"{}")["want"] == "dead" for message in letters)
    assert all(message.header("xrouter-reason") for message in letters)


def done(kafka: Kafka, router: RouterProcess, count: int, out: str, dead: str) -> bool:
    """Whether each number has arrived at least once."""
    if written(kafka.bootstrap, out, dead) < count:
        return False
    found = set(numbers(read_all(kafka.bootstrap, out))) | set(numbers(read_all(kafka.bootstrap, dead)))
    return len(found) == count


def router_said(router: RouterProcess) -> Any:
    """Return a message that shows the router's log when a wait fails."""
    return lambda: f"the records to arrive; log:\n{router.log[-3000:]}"


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_two_hundred_thousand_records_survive_three_kills(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    topics = (topic_factory("in", 4), topic_factory("out", 2), topic_factory("dead"))
    router.folder.joinpath("full").touch()
    crash_and_account(kafka, topics, router, 200_000)


@pytest.mark.full
def test_a_batch_cut_between_two_sinks_is_finished_under_its_own_plan(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    source, dead = topic_factory("in"), topic_factory("dead")
    catalog = router.folder / "catalog.xreg.json"
    plain.write(catalog.parent, load.catalog(DEFINITIONS, topic=source), catalog.name)
    second = KafkaBroker(tmp_path / "second")
    second.start()
    topics = [f"{age}.plant.{group}" for age in ("old", "new") for group in range(load.GROUPS)]
    create_topics(second.bootstrap, topics)
    try:
        told = two_sinks(kafka.bootstrap, second.bootstrap, catalog, dead, tmp_path / "lake", "old.{messagegroup}")
        router.configure(told)
        router.start()
        second.stop()
        produce(kafka.bootstrap, source, load.records(1_000, DEFINITIONS))
        wait_until(lambda: "held" in json.dumps(router.readiness()["queries"]), LIMIT, router_said(router))
        first = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table(columns=["position", "message", "epoch"])
        router.kill()
        assert 0 < first.num_rows < 1_000

        # Another catalog, in which half of the definitions are gone, and routes that lead elsewhere.
        plain.write(catalog.parent, load.catalog(DEFINITIONS // 2, topic=source), catalog.name)
        second.restart()
        told = two_sinks(kafka.bootstrap, second.bootstrap, catalog, dead, tmp_path / "other", "new.{messagegroup}")
        router.configure(told)
        router.start()
        produce(kafka.bootstrap, source, load.records(1_000, DEFINITIONS, start=1_000))
        wait_until(lambda: accounted(kafka, second.bootstrap, dead, topics) == 2_000, LIMIT, router_said(router))
        assert router.stop() == 0, router.log[-2000:]
        check_pinned(kafka, second.bootstrap, dead, topics, tmp_path)
    finally:
        second.stop()


def two_sinks(bootstrap: str, second: str, catalog: Path, dead: str, lake: Path, topic: str) -> dict[str, Any]:
    """Return settings that send every event to a table and then to the second cluster."""
    quick = {"max.block.ms": "1500", "delivery.timeout.ms": "1500", "request.timeout.ms": "1000", "linger.ms": "0"}
    told = settings(bootstrap, catalog, "unused", dead)
    told["sinks"]["lake"] = {"type": "table", "path": str(lake)}
    told["sinks"]["bus"] = {"type": "kafka", "bootstrap_servers": second, "topic": topic, "options": quick}
    told["routes"] = [{"to": ["lake", "bus"]}]
    return told


def accounted(kafka: Kafka, second: str, dead: str, topics: list[str]) -> int:
    """Return how many distinct records have reached the second cluster or the dead letters."""
    found = {n for topic in topics for n in numbers(read_all(second, topic))}
    return len(found | set(numbers(read_all(kafka.bootstrap, dead))))


def check_pinned(kafka: Kafka, second: str, dead: str, topics: list[str], folder: Path) -> None:
    """The first batches are wholly where the old plan puts them, once in its table; the rest is the new plan's."""
    letters = numbers(read_all(kafka.bootstrap, dead))
    old = {message.lineage("position"): message for topic in topics[:5] for message in read_all(second, topic)}
    new = {message.lineage("position"): message for topic in topics[5:] for message in read_all(second, topic)}
    assert not set(old) & set(new)
    for table, events in ((folder / "lake", old), (folder / "other", new)):
        rows = DeltaTable(str(table)).to_pyarrow_table(columns=["position", "message", "epoch"]).to_pylist()
        assert len({row["position"] for row in rows}) == len(rows)
        assert {row["position"]: row["message"] for row in rows} == {
            position: message.header("xrouter-message") for position, message in events.items()
        }
        assert len({row["epoch"] for row in rows}) == 1
    for n in range(2_000):
        definition = n % DEFINITIONS
        gone = definition >= DEFINITIONS // 2
        assert (n in letters) == (n % 50 == 49 or (n >= 1_000 and gone)), n


@pytest.mark.full
def test_a_broker_that_is_killed_and_comes_back_needs_no_hand(router: RouterProcess, tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "broker")
    broker.start()
    try:
        create_topics(broker.bootstrap, ["in"], 2)
        create_topics(broker.bootstrap, ["out", "dead"])
        catalog = plain.write(router.folder, load.catalog(DEFINITIONS, topic="in"), "catalog.xreg.json")
        router.configure(settings(broker.bootstrap, catalog, "out", "dead"))
        router.start()
        produce(broker.bootstrap, "in", load.records(1_000, DEFINITIONS))
        wait_until(partial(has_written, broker.bootstrap, ("out", "dead"), 1), LIMIT, router_said(router))
        broker.kill()
        broker.restart()
        produce(broker.bootstrap, "in", load.records(1_000, DEFINITIONS, start=1_000))
        wait_until(lambda: all_numbers(broker.bootstrap) == set(range(2_000)), LIMIT, router_said(router))
        assert router.stop() == 0, router.log[-2000:]
    finally:
        broker.stop()


class Feeder(threading.Thread):
    """Sends the records of the load to a topic, a few at a time, each acknowledged, until it is ended."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._brokers, self._topic = bootstrap, topic
        self._stopping = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._stopping.wait(0.2):
            produce(self._brokers, self._topic, load.records(50, DEFINITIONS, start=self.sent), idempotent=True)
            self.sent += 50

    def end(self) -> int:
        """Return how many were sent."""
        self._stopping.set()
        self.join(LIMIT)
        assert not self.is_alive()
        return self.sent


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_a_cluster_loses_one_broker_after_the_other(router: RouterProcess, tmp_path: Path) -> None:
    """Each of three is killed twice, once while the router is killed as well; leaders change; one is lost for good."""
    cluster = KafkaCluster(tmp_path / "cluster")
    cluster.start()
    feeder = Feeder(cluster.bootstrap, "in")
    lake, letters = router.folder / "lake", router.folder / "letters"
    elections = 0
    try:
        create_topics(cluster.bootstrap, ["in"], 6, copies=3)
        create_topics(cluster.bootstrap, ["out"], 3, copies=3)
        catalog = plain.write(router.folder, load.catalog(DEFINITIONS, topic="in"), "catalog.xreg.json")
        told = settings(cluster.bootstrap, catalog, "out", "unused")
        told["sinks"]["lake"] = {"type": "table", "path": str(lake)}
        told["sinks"]["dead"] = {"type": "table", "path": str(letters)}
        told["routes"] = [{"to": ["lake", "bus"]}]
        router.configure(told)
        router.start()
        feeder.start()

        def goes_on(records: int = 200) -> None:
            goal = rows_in(lake) + records
            wait_until(lambda: rows_in(lake) >= goal, LIMIT, router_said(router))

        for round_ in range(6):
            goes_on()
            broker = cluster.brokers[round_ % 3]
            broker.kill()
            if round_ >= 3:
                router.kill()
                router.start()
            goes_on()
            broker.restart()
            wait_until(cluster.whole, LIMIT, "three copies of each partition")
            cluster.elect()
            elections += 1
        goes_on()
        cluster.brokers[0].kill()
        goes_on(1_000)
        sent = feeder.end()
        wait_until(lambda: rows_in(lake) + rows_in(letters) >= sent, LIMIT, router_said(router))
        assert router.stop() == 0, router.log[-2000:]
        written, dead = of_column(lake, "data"), of_column(letters, "body")
        positions = Counter(position for table in (lake, letters) for position in column_of(table, "position"))
        sent_on = numbers(read_all(cluster.bootstrap, "out"))
    finally:
        feeder.end()
        cluster.stop()
    account = {
        "sent": sent,
        "written": len(written),
        "dead": len(dead),
        "elections": elections,
        "again": sent_on.total() - len(sent_on),
    }
    print(account)  # noqa: T201
    assert {*positions.values()} == {1}
    assert written == Counter(n for n in range(sent) if n % 50 != 49)
    assert dead == Counter(n for n in range(sent) if n % 50 == 49)
    assert set(sent_on) == set(written)


def rows_in(table: Path) -> int:
    """Return how many rows a table has; none before there is one."""
    return len(column_of(table, "position"))


def of_column(table: Path, column: str) -> Counter[int]:
    """Count the records of a table by the number in their body."""
    return load.numbers(column_of(table, column))


def all_numbers(bootstrap: str) -> set[int]:
    """Return the numbers that have reached the topics ``out`` and ``dead``."""
    return {number for topic in ("out", "dead") for number in numbers(read_all(bootstrap, topic))}
