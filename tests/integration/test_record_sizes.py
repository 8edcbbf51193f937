"""The mean size of records that a query begins with, sampled where they are largest."""

from __future__ import annotations

import pytest

from bindings.kafka.client import KafkaClient
from bindings.kafka.offsets import mean_record_bytes
from tests.conftest import Kafka, TopicFactory
from tests.support.kafka import produce

pytestmark = pytest.mark.broker


def test_the_largest_mean_of_beginning_middle_and_end_counts(kafka: Kafka, topic_factory: TopicFactory) -> None:
    client, topic = KafkaClient(kafka.bootstrap), topic_factory("sizes", 1)
    assert mean_record_bytes(client, [topic], {}) is None
    produce(kafka.bootstrap, topic, ((None, b"x" * (5_000 if at < 100 else 10), []) for at in range(400)))
    first, later = (mean_record_bytes(client, [topic], starts) for starts in ({}, {topic: {"0": 100}}))
    assert first is not None and 5_000 < first < 5_200
    assert later is not None and later < 200


def test_brokers_that_do_not_answer_leave_the_size_unknown() -> None:
    assert mean_record_bytes(KafkaClient("127.0.0.1:1"), ["any"], {}) is None
