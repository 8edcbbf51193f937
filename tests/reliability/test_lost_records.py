"""Records that a broker no longer has, and topics that were deleted and made again: never passed over in silence."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from typing import Final

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conftest import Kafka, TopicFactory
from tests.reliability.test_reload_kills import (
    DEFINITIONS,
    LIMIT,
    RELOADED,
    catalog,
    change,
    has,
    numbers,
    said,
    settings,
)
from tests.support import load
from tests.support.kafka import create_topics, ends, produce
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LOST: Final = 6
"""The exit code for a state that does not fit what there is."""


def send(kafka: Kafka, topic: str, start: int, count: int) -> set[int]:
    """Send records, and return their numbers."""
    produce(kafka.bootstrap, topic, load.records(count, DEFINITIONS, start=start, bad=0))
    return set(range(start, start + count))


def make_again(kafka: Kafka, topic: str) -> None:
    """Delete a topic and make another of its name."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(LIMIT)

    def made() -> bool:
        try:
            create_topics(kafka.bootstrap, [topic])
        except KafkaException:
            return False  # The old one is still being deleted.
        return True

    wait_until(made, LIMIT, "the topic to be gone")
    wait_until(lambda: ends(kafka.bootstrap, topic) == {0: 0}, LIMIT, "the new topic to be empty")


def expire(kafka: Kafka, topic: str, before: int) -> None:
    """Have the broker delete records, as retention does."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result(LIMIT)


@pytest.mark.parametrize("away", [False, pytest.param(True, marks=pytest.mark.full)], ids=["read", "away"])
def test_records_lost_at_the_broker(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, away: bool
) -> None:
    """By retention, by a topic that is deleted, and by one that is made again with fewer records than were read."""
    expiring, renewed, deleted = (topic_factory(name) for name in ("expiring", "renewed", "deleted"))
    whole = catalog(kafka.bootstrap, [expiring, renewed, deleted])
    wanted: set[int] = set()

    def arrives(sent: set[int]) -> None:
        wanted.update(sent)
        wait_until(partial(has, router, wanted), LIMIT, said(router))

    def stopped(*problems: str) -> None:
        assert router.wait(LIMIT) == LOST, router.log[-3000:]
        last = router.log[router.log.rindex("xrouter: error:") :]
        assert all(problem in last for problem in problems), last

    def lost_while_away() -> None:
        # What a topic gets while nobody reads it is read once it is back, from where it was left.
        change(router, catalog(kafka.bootstrap, [expiring]))
        wait_until(lambda: RELOADED in router.log, LIMIT, said(router))
        arrives(send(kafka, expiring, 50, 1))
        sent = send(kafka, renewed, 55, 1)
        change(router, whole)
        arrives(sent)

        # It is lost while nobody reads it.
        seen = router.log.count(RELOADED)
        change(router, catalog(kafka.bootstrap, [expiring]))
        wait_until(lambda: router.log.count(RELOADED) > seen, LIMIT, said(router))
        arrives(send(kafka, expiring, 57, 1))
        make_again(kafka, renewed)
        sent = send(kafka, renewed, 60, 1)
        change(router, whole)
        arrives(sent)

    router.configure(settings(kafka, router.folder))
    change(router, whole)
    router.start()
    arrives(send(kafka, expiring, 0, 10) | send(kafka, renewed, 10, 10) | send(kafka, deleted, 90, 5))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([deleted])[deleted].result(LIMIT)
    stopped(f"topic {deleted} is gone", "up to offset 5")
    make_again(kafka, renewed)
    sent = send(kafka, renewed, 30, 5)
    send(kafka, expiring, 20, 5)
    expire(kafka, expiring, 13)
    router.launch()
    problems = [f"{renewed}-0 was read up to offset 10, and now ends at 5", f"{expiring}-0 no longer has offsets 10 to"]
    stopped("records were lost at the broker", *problems)
    router.configure(settings(kafka, router.folder, on_data_loss="continue"))
    router.start()
    arrives({23, 24} | sent)
    up = 'xrouter_source_up{endpoint="/endpoints/plant%s-%s"}'
    assert (router.metrics()[up % (1, renewed)], router.metrics()[up % (2, deleted)]) == (1, 0)

    # It is named when the batch is accounted for, a moment after its records are there.
    wait_until(lambda: f"{expiring}-0: offsets 10 to 12" in router.log, LIMIT, said(router))

    # While it is read.
    make_again(kafka, renewed)
    arrives(send(kafka, renewed, 40, 3))
    create_topics(kafka.bootstrap, [deleted])
    arrives(send(kafka, renewed, 45, 1) | send(kafka, deleted, 95, 1))

    if away:
        lost_while_away()
    arrives(send(kafka, renewed, 70, 1) | send(kafka, expiring, 80, 1))
    assert router.stop() == 0, router.log[-3000:]
    assert numbers(router.folder / "wide") == Counter(wanted)


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.full)], ids=["read", "stopped"])
def test_a_topic_made_again_is_known_by_its_id(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, stopped: bool
) -> None:
    """Also where it has more records by then than were read of the old one, so that no offset shows it."""
    topic, other = topic_factory("again"), topic_factory("other")
    router.configure(settings(kafka, router.folder, on_data_loss="continue"))
    change(router, catalog(kafka.bootstrap, [topic, other]))
    wanted: set[int] = set()

    def arrives(sent: set[int]) -> None:
        wanted.update(sent)
        wait_until(partial(has, router, wanted), LIMIT, said(router))

    def lost(*problems: str) -> None:
        assert router.wait(LIMIT) == LOST, router.log[-3000:]
        last = router.log[router.log.rindex("xrouter: error:") :]
        assert all(problem in last for problem in (f"topic {topic} was deleted and made again", *problems)), last

    router.start()
    arrives(send(kafka, topic, 0, 5) | send(kafka, other, 100, 3))
    # While nothing is read of anything, so that the router meets the new topic with its records.
    os.kill(router.pid, signal.SIGSTOP)
    make_again(kafka, topic)
    sent = send(kafka, topic, 10, 9)
    os.kill(router.pid, signal.SIGCONT)
    arrives(sent | send(kafka, other, 110, 1))
    assert f"topic {topic} was deleted and made again (id " in router.log
    assert f"{topic}-0 was read up to offset 5, and now ends at 9" in router.log
    assert router.total("xrouter_conservation_gap") == 0
    assert router.stop() == 0, router.log[-3000:]
    make_again(kafka, topic)
    sent = send(kafka, topic, 30, 12)
    for _ in range(2 if stopped else 1):
        router.configure(settings(kafka, router.folder))
        router.launch()
        lost("read up to offset 9")
    if stopped:
        router.configure(settings(kafka, router.folder, on_data_loss="continue"))
        router.start()
        arrives(sent)
        assert router.stop() == 0, router.log[-3000:]
        # A loss that was named once is none of the next start.
        router.configure(settings(kafka, router.folder))
        router.start()
        arrives(send(kafka, topic, 50, 1))
        make_again(kafka, topic)
        send(kafka, topic, 60, 20)
        lost()
    assert numbers(router.folder / "wide") == Counter(wanted)
