"""Answers are paired with what they answer, from Kafka to a table or topic, once, through a kill and a repeat."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.kafka import Headers, produce, read_all
from tests.support.router import RouterProcess
from tests.support.shop import rows_of
from tests.support.waiting import wait_until

LIMIT = 300.0
PLACED, ACCEPTED = "/messagegroups/orders/messages/placed", "/messagegroups/orders/messages/accepted"


def catalog_of(bootstrap: str, topics: tuple[str, str]) -> dict[str, Any]:
    """Two topics, for questions and answers, and a group in which one definition answers the other."""
    endpoints = {
        name: plain.endpoint("KAFKA", {"topic": topic}, "orders", uri=f"PLAINTEXT://{bootstrap}")
        for name, topic in zip(("asks", "answers"), topics, strict=True)
    }
    accepted = plain.event("accepted", relatedto="placed", relatedvia="orderid", relation="reply")
    accepted["envelopemetadata"]["orderid"] = {"required": True}
    return plain.catalog(endpoints, orders={"placed": plain.event("placed"), "accepted": accepted})


def events(kind: str, numbers: range, **more: str) -> Iterator[tuple[bytes | None, bytes | None, Headers]]:
    for number in numbers:
        named = {name: text.format(number) for name, text in more.items()}
        yield None, b"{}", plain.kafka_headers(kind, f"{kind}-{number}", **named)


class Exchange:
    """A router that pairs what the two topics have."""

    def __init__(
        self, router: RouterProcess, kafka: Kafka, topics: tuple[str, str], pairs: dict[str, Any], *, wait: str = "5s"
    ) -> None:
        self.router = router
        self._kafka = kafka
        self._topics = topics
        told = plain.routed(
            plain.write(router.folder, catalog_of(kafka.bootstrap, topics)),
            plain.tables(router.folder, "events", "dead"),
            relations={"to": "pairs", "wait": wait},
            trigger="200ms",
        )
        told["sinks"]["pairs"] = pairs
        router.configure(told)

    def ask(self, numbers: range) -> None:
        produce(self._kafka.bootstrap, self._topics[0], events("placed", numbers))

    def answer(self, numbers: range) -> None:
        produce(self._kafka.bootstrap, self._topics[1], events("accepted", numbers, orderid="placed-{}"))

    def until(self, outcome: str, count: int) -> None:
        """Wait until so many exchanges have ended so since the router was started."""
        wait_until(
            lambda: self.router.total("xrouter_relations_total", outcome=outcome) >= count,
            LIMIT,
            lambda: f"{count} {outcome}\n{self.router.log[-3000:]}",
        )

    def repeat_last_batch(self) -> None:
        """Let Spark believe that it never noted its last batch as done."""
        for folder in (self.router.folder / "state" / "checkpoints").glob("*/*/commits"):
            numbers = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
            for name in (str(max(numbers)), f".{max(numbers)}.crc"):
                (folder / name).unlink(missing_ok=True)

    def through_a_kill(self) -> None:
        """Ask 30 times and answer 20 of these, and answer what nobody asked; kill the router in between."""
        self.ask(range(20))
        self.answer(range(5))
        self.router.start()
        self.until("paired", 5)
        self.router.kill()
        self.ask(range(20, 30))
        self.answer(range(5, 20))
        self.router.start()
        self.until("paired", 15)
        self.answer(range(100, 101))
        self.until("unanswered", 10)
        self.until("unasked", 1)
        assert self.router.stop() == 0, self.router.log[-3000:]

    def once_more(self) -> None:
        """Repeat a batch."""
        self.repeat_last_batch()
        self.router.start()
        self.answer(range(101, 102))
        self.until("unasked", 1)
        assert self.router.total("xrouter_relations_total", outcome="paired") == 0
        assert self.router.stop() == 0, self.router.log[-3000:]


def expected(*, again: bool) -> Counter[tuple[str, str | None, str | None]]:
    paired = [("paired", f"placed-{number}", f"accepted-{number}") for number in range(20)]
    unanswered = [("unanswered", f"placed-{number}", None) for number in range(20, 30)]
    unasked = [("unasked", None, f"accepted-{number}") for number in range(100, 102 if again else 101)]
    return Counter([*paired, *unanswered, *unasked])


def told(rows: list[dict[str, Any]]) -> Counter[tuple[str, str | None, str | None]]:
    return Counter((row["outcome"], row.get("question_id"), row.get("answer_id")) for row in rows)


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.full)], ids=["once", "repeated"])
def test_a_table_has_each_pair_once(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, again: bool
) -> None:
    topics = topic_factory("asks"), topic_factory("answers")
    exchange = Exchange(router, kafka, topics, {"type": "table", "path": str(router.folder / "pairs")})
    exchange.through_a_kill()
    if again:
        exchange.once_more()

    pairs = rows_of(router.folder / "pairs")
    assert told(pairs) == expected(again=again)
    by_answer = {row["answer_id"]: row for row in pairs}
    one = by_answer["accepted-7"]
    assert (one["relation"], one["correlation"]) == ("reply", "placed-7")
    assert (one["question_message"], one["answer_message"]) == (PLACED, ACCEPTED)
    assert (one["question_position"], one["answer_position"]) == (f"{topics[0]}-0-7", f"{topics[1]}-0-7")
    lineage = {row["id"]: row for row in rows_of(router.folder / "events")}
    assert len(lineage) == (52 if again else 51)
    said = lineage["accepted-7"]
    assert (said["relation"], said["relatedto"], dict(said["context"])) == (
        "reply",
        PLACED,
        {"correlation": "placed-7"},
    )
    assert (lineage["placed-7"]["relation"], lineage["placed-7"]["relatedto"]) == (None, None)


@pytest.mark.full
def test_a_topic_has_each_pair_under_one_id(kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess) -> None:
    topic = topic_factory("pairs")
    sink = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "topic": topic}
    exchange = Exchange(router, kafka, (topic_factory("asks"), topic_factory("answers")), sink)
    exchange.through_a_kill()
    exchange.once_more()

    messages = {message.header("ce_id"): message for message in read_all(kafka.bootstrap, topic)}
    assert told([json.loads(message.value or b"") for message in messages.values()]) == expected(again=True)
    assert {message.key for message in messages.values()} >= {b"placed-7", b"placed-100"}
