"""A router in real-time mode, broker to broker: outcomes as in batches, reloads, and nothing lost by a kill."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.integration.test_settling import DEFINITIONS, odd_records
from tests.support import load, plain
from tests.support.kafka import Message, Transactions, create_topics, produce, read_all, written
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT = 240.0
RECORDS = 1_500
PARTITIONS = 2
OF_THE_RUN = frozenset({"xrouter-failed"})
"""Headers that tell when a router was at work."""


def catalog(folder: Path, topic: str, **types: str) -> Path:
    """Write the load's catalog, with a definition more for each of *types* (message id and type)."""
    document = load.catalog(DEFINITIONS, topic=topic)
    messages = next(iter(document["messagegroups"].values()))["messages"]
    messages |= {name: plain.event(kind) for name, kind in types.items()}
    return plain.write(folder, document)


def settings(bootstrap: str, path: Path, out: str, dead: str, **more: Any) -> dict[str, Any]:
    told = load.settings(bootstrap, path, plain.topics(bootstrap, bus=out, dead=dead), **more)
    told["catalog"]["poll"] = "200ms"
    return told


def real_time(rest: str) -> dict[str, Any]:
    return {
        "trigger": "realtime",
        "realtime": {"rest": rest, "checkpoint": "5s"},
        "spark": {"master": f"local[{PARTITIONS + 1}]"},
    }


def as_told(messages: list[Message]) -> Counter[str]:
    """What was sent, but for where it lies and when it was made."""
    headers = ([each for each in message.headers if each[0] not in OF_THE_RUN] for message in messages)
    return Counter(repr((message.key, message.value, own)) for message, own in zip(messages, headers, strict=True))


def until(router: RouterProcess, condition: Callable[[], object]) -> None:
    """Wait for a condition, for as long as the router runs."""

    def holds() -> bool:
        assert router.ended is None, router.log[-3000:]
        return bool(condition())

    wait_until(holds, LIMIT, lambda: router.log[-3000:])


def test_outcomes_are_those_of_batches_and_a_reload_takes_effect(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    bootstrap = kafka.bootstrap
    source, rest = topic_factory("in", PARTITIONS), topic_factory("rest")
    batches, fast = (topic_factory("out"), topic_factory("dead")), (topic_factory("out"), topic_factory("dead"))
    records = [(key, value, headers or []) for key, value, *_, headers in odd_records(Random(5), RECORDS)]
    produce(bootstrap, source, records)
    path = catalog(tmp_path, source)
    in_batches = RouterProcess(tmp_path / "batches", settings(bootstrap, path, *batches))
    in_batches.launch("--once")
    try:
        assert in_batches.wait() == 0, in_batches.log[-3000:]
    finally:
        in_batches.end()
    router.configure(settings(bootstrap, path, *fast, **real_time(rest)))
    router.start()
    until(router, lambda: written(bootstrap, *fast) >= RECORDS)
    for one, other in zip(batches, fast, strict=True):
        assert as_told(read_all(bootstrap, one)) == as_told(read_all(bootstrap, other))
    assert 0 < written(bootstrap, rest) < RECORDS
    until(router, lambda: router.total("xrouter_records_total") == RECORDS)
    routed = router.total("xrouter_records_total", outcome="routed")
    assert routed == written(bootstrap, fast[0])
    assert router.total("xrouter_definition_records_total") == routed
    assert router.readiness()["ready"]
    catalog(tmp_path, source, added="added")
    until(router, lambda: router.log.count("records are sent on one by one") == 2)
    added = plain.kafka_headers("added")
    produce(bootstrap, source, [(None, b"{}", added)])
    until(router, lambda: _messages_of(bootstrap, fast[0], "added"))
    assert written(bootstrap, rest) < RECORDS
    assert router.stop() == 0, router.log[-3000:]
    assert "Aborting" not in router.log and "Traceback" not in router.log


@pytest.mark.full
def test_records_of_aborted_and_open_transactions_are_not_sent_on(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    bootstrap = kafka.bootstrap
    source, rest = topic_factory("in", PARTITIONS), topic_factory("rest")
    out, dead = topic_factory("out"), topic_factory("dead")
    router.configure(settings(bootstrap, catalog(tmp_path, source), out, dead, **real_time(rest)))
    one = Transactions(bootstrap, source)
    one.begin(source, load.records(20, DEFINITIONS, start=100, bad=0))
    one.abort()
    router.start()
    one.begin(source, load.records(20, DEFINITIONS, start=200, bad=0))
    one.abort()
    one.begin(source, load.records(20, DEFINITIONS, start=0, bad=0))
    one.commit()
    until(router, lambda: set(_wanted(bootstrap, out)) == set(range(20)))
    one.begin(source, load.records(20, DEFINITIONS, start=20, bad=0))
    # Behind a marker, an open transaction, or neither: nothing waits that could be read, whenever offsets are noted.
    until(router, lambda: "xrouter_source_lag_records" in str(router.metrics()))
    until(router, lambda: router.total("xrouter_source_lag_records") == 0)
    assert set(_wanted(bootstrap, out, dead)) == set(range(20))
    one.commit()
    until(router, lambda: set(_wanted(bootstrap, out)) == set(range(40)))
    until(router, lambda: router.total("xrouter_source_lag_records") == 0)
    assert written(bootstrap, out) == 40
    assert router.stop() == 0, router.log[-3000:]
    assert "query ended" not in router.log


def _messages_of(bootstrap: str, topic: str, message: str) -> list[Message]:
    names = ((each, each.header("xrouter-message") or "") for each in read_all(bootstrap, topic))
    return [each for each, name in names if name.endswith(f"/{message}")]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [2, 20])
def test_nothing_is_lost_when_it_is_killed(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path, kills: int
) -> None:
    bootstrap, each, chance = kafka.bootstrap, 2_000, Random(kills)
    source, rest = topic_factory("in", PARTITIONS), topic_factory("rest")
    out, dead = topic_factory("out"), topic_factory("dead")
    router.configure(settings(bootstrap, catalog(tmp_path, source), out, dead, **real_time(rest)))
    for kill in range(kills):
        router.start()
        goal = written(bootstrap, out, rest) + chance.randrange(1, each * 3 // 4)
        produce(bootstrap, source, load.records(each, DEFINITIONS, start=kill * each))
        until(router, lambda: written(bootstrap, out, rest) >= goal)  # noqa: B023
        router.kill()
    produce(bootstrap, source, load.records(each, DEFINITIONS, start=kills * each))
    count = (kills + 1) * each
    router.start()
    until(router, lambda: len(_wanted(bootstrap, out, dead)) == count)
    assert router.stop() == 0, router.log[-3000:]
    routed, letters = _wanted(bootstrap, out), _wanted(bootstrap, dead)
    account = {"sent": count, "routed": len(routed), "dead": len(letters), "kills": kills}
    again = {"routed": written(bootstrap, out) - len(routed), "dead": written(bootstrap, dead) - len(letters)}
    print(account, "again", again)  # noqa: T201
    assert not set(routed) & set(letters)
    assert set(routed) | set(letters) == set(range(count))
    assert {number for number, want in (routed | letters).items() if want == "dead"} == set(letters)


def _wanted(bootstrap: str, *topics: str) -> dict[int, str]:
    """Return what must become of each record that has arrived, by its number."""
    values = (json.loads(message.value or b"{}") for topic in topics for message in read_all(bootstrap, topic))
    return {value["n"]: value["want"] for value in values}


@pytest.mark.full
def test_too_few_cores_and_a_rest_topic_that_is_not_there_are_refused(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    source, out, dead = topic_factory("in", PARTITIONS), topic_factory("out"), topic_factory("dead")
    told = settings(kafka.bootstrap, catalog(tmp_path, source), out, dead, **real_time("nowhere"))
    router.configure(told)
    router.launch()
    assert router.wait() == 3
    assert "the fallback topic nowhere does not exist" in router.log
    create_topics(kafka.bootstrap, [f"{source}-rest"])
    router.configure({**told, **real_time(f"{source}-rest"), "spark": {"master": f"local[{PARTITIONS}]"}})
    router.launch()
    assert router.wait() == 3
    assert f"needs {PARTITIONS + 1} cores" in router.log and f"local[{PARTITIONS + 1}]" in router.log


@pytest.mark.full
def test_what_a_real_time_query_fails_of_is_routed_in_batches(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    bootstrap = kafka.bootstrap
    # A record that the rest topic does not take.
    source, rest = topic_factory("in", PARTITIONS), topic_factory("rest", max_message_bytes=4_000)
    out, dead = topic_factory("out"), topic_factory("dead")
    router.configure(settings(bootstrap, catalog(tmp_path, source, added="added"), out, dead, **real_time(rest)))
    router.start()
    added = plain.kafka_headers("added")
    produce(bootstrap, source, [(None, b"first", added), (None, b"x" * 8_000, [("kind", b"nobody")])])
    until(router, lambda: written(bootstrap, out, dead) >= 2)
    assert written(bootstrap, rest) == 0
    until(router, lambda: router.log.count("records are sent on one by one") > 1)
    produce(bootstrap, source, [(None, b"last", added)])
    until(router, lambda: b"last" in {message.value for message in read_all(bootstrap, out)})
    assert router.stop() == 0, router.log[-3000:]
    assert {message.value for message in read_all(bootstrap, out)} == {b"first", b"last"}
    assert {message.value for message in read_all(bootstrap, dead)} == {b"x" * 8_000}
