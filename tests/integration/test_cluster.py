"""A router on a standalone cluster: executors and Python workers die while they write; nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.kafka import produce, read_all, written
from tests.support.router import RouterProcess
from tests.support.spark_cluster import SparkCluster, spark_cluster
from tests.support.tables import column_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
DEFINITIONS = 20
LIMIT = 240.0
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    # So that the try that lost comes to its end.
    "spark.python.task.killTimeout": "100s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def settings(cluster: SparkCluster, kafka: Kafka, router: RouterProcess, topics: tuple[str, ...]) -> dict[str, Any]:
    """Settings of a router from a topic to a topic and a table, and dead letters in both kinds."""
    source, out, dead = topics
    lake = router.folder / "lake"
    catalog = plain.write(router.folder, load.catalog(DEFINITIONS, topic=source), "catalog.xreg.json")
    sinks = plain.topics(kafka.bootstrap, bus=out, dead=dead) | plain.tables(lake, "events", "letters")
    return load.settings(
        kafka.bootstrap,
        catalog,
        sinks,
        routes=[{"to": ["bus", "events"]}],
        dead_letters={"sinks": ["dead", "letters"]},
        max_records_per_batch=1_000,
        # No record passes the driver: Spark refuses it more than a share of a batch.
        spark=cluster.settings(lake, spark__driver__maxResultSize="100k"),
    )


def in_topic(kafka: Kafka, topic: str) -> Counter[int]:
    """How often each number is in a topic."""
    return load.numbers(each.value for each in read_all(kafka.bootstrap, topic))


def in_table(folder: Path, column: str) -> Counter[int]:
    """How often each number is in a table."""
    return load.numbers(column_of(folder, column))


def is_ready(router: RouterProcess) -> bool:
    """Whether it says so, and has read all there is."""
    return router.readiness().get("ready") is True and router.total("xrouter_source_lag_records") == 0


def logs(cluster: SparkCluster, router: RouterProcess) -> str:
    """Return how the router is, and the ends of what it and executors have written."""
    return f"{router.readiness()}\n{router.log[-3000:]}\n{cluster.logs()[-3000:]}"


def killed_under_load(
    cluster: SparkCluster, kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, count: int, kills: int
) -> None:
    """Feed *count* records; so many times an executor is killed, and then a Python worker, while it works."""
    topics = (topic_factory("in", 4), topic_factory("out", 2), topic_factory("dead"))
    router.configure(settings(cluster, kafka, router, topics))
    produce(kafka.bootstrap, topics[0], load.records(count, DEFINITIONS))
    router.start()

    def sent() -> int:
        return written(kafka.bootstrap, topics[1])

    def said() -> str:
        return f"records; sent {sent()}; {logs(cluster, router)}"

    for number in range(2 * kills):
        goal = count * (number + 1) // (2 * kills + 2)
        wait_until(lambda goal=goal: sent() >= goal, LIMIT, said)  # type: ignore[misc]
        some = cluster.python_workers if number % 2 else cluster.executors
        cluster.kill_one(wait_until(some, LIMIT, said))
    lake = router.folder / "lake"
    wait_until(lambda: sent() >= count - count // 50 and is_ready(router), LIMIT, said)
    assert router.stop() == 0, router.log[-2000:]
    dead = {number for number in range(count) if number % 50 == 49}
    assert set(in_topic(kafka, topics[1])) == set(range(count)) - dead
    assert set(in_topic(kafka, topics[2])) == dead
    assert in_table(lake / "events", "data") == Counter(set(range(count)) - dead)
    assert in_table(lake / "letters", "body") == Counter(dead)
    assert router.total("xrouter_records_total") in (0, count)


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_when_an_executor_and_a_worker_are_killed(
    cluster: SparkCluster, kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    killed_under_load(cluster, kafka, topic_factory, router, 4_000, kills=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_many_kills_under_load(
    cluster: SparkCluster, kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    killed_under_load(cluster, kafka, topic_factory, router, 100_000, kills=5)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fate", ["killed", "twice"])
def test_a_task_that_runs_again_doubles_nothing(
    fate: str, cluster: SparkCluster, kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    """Its executor dies between its files and the commit, or two tries of it write the same rows."""
    source, marks = topic_factory("in", 4), tmp_path / "marks"
    told = settings(cluster, kafka, router, (source, "unused", "unused"))
    sinks = {name: told["sinks"][name] for name in ("events", "letters")}
    told |= {"sinks": sinks, "routes": [{"to": ["events"]}], "dead_letters": {"sinks": ["letters"]}}
    told["spark"]["conf"] |= SPECULATION if fate != "killed" else {}
    router.configure(told)
    router.module = ("tests.support.fated_staging", fate, str(marks))
    marks.mkdir()
    count = 2_000
    produce(kafka.bootstrap, source, load.records(count, DEFINITIONS))
    router.start()

    def said() -> str:
        return f"records; {logs(cluster, router)}"

    wait_until(lambda: router.total("xrouter_records_total") == count and (marks / "met").exists(), LIMIT, said)
    wait_until(lambda: is_ready(router), LIMIT, said)
    produce(kafka.bootstrap, source, load.records(100, DEFINITIONS, start=count))
    wait_until(lambda: router.total("xrouter_records_total") == count + 100, LIMIT, said)
    assert router.stop() == 0, router.log[-2000:]
    lake, dead = router.folder / "lake", {number for number in range(count + 100) if number % 50 == 49}
    assert in_table(lake / "events", "data") == Counter(set(range(count + 100)) - dead)
    assert in_table(lake / "letters", "body") == Counter(dead)
    assert (marks / "again").exists() or fate == "killed"
