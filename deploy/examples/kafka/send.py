"""Sends records as producers do: CloudEvents in both modes, a till's own records, and one that nobody declared."""

from __future__ import annotations

import os

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

BROKER = os.environ.get("BROKER", "localhost:9092")
VARIABLES = ("XROUTER_SOURCES__0__BOOTSTRAP_SERVERS", "XROUTER_SINKS__BUS__BOOTSTRAP_SERVERS")
TOPIC = "example.orders"
TOPICS = (TOPIC, "example.Orders", "example.Tills")
SECONDS = 30.0


def prepare() -> None:
    """Make the topics, where they are not there."""
    admin = AdminClient({"bootstrap.servers": BROKER, "log_level": 0})
    admin.list_topics(timeout=SECONDS)
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in TOPICS]).values():
        try:
            future.result(SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def send() -> int:
    """Send, and return how many messages that were."""
    event = {"ce_specversion": "1.0", "ce_id": "1", "ce_type": "com.example.order.placed", "ce_source": "/shop"}
    structured = b'{"specversion": "1.0", "id": "2", "type": "com.example.order.paid", "source": "/shop", "data": 17}'
    records: list[tuple[bytes | None, dict[str, str], bytes]] = [
        (b"A-17", {**event, "content-type": "application/json"}, b'{"order": "A-17"}'),
        (b"A-17", {"content-type": "application/cloudevents+json"}, structured),
        (b"till-4", {"kind": "sale"}, b'{"product": "cheese", "price": 4.17}'),
        (b"till-4", {"kind": "refund"}, b"{}"),  # nobody declared that
    ]
    producer = Producer({"bootstrap.servers": BROKER})
    for key, headers, value in records:
        producer.produce(TOPIC, value, key, headers=list(headers.items()))
    if producer.flush(SECONDS):
        raise TimeoutError(f"{BROKER} did not take all of them")
    return len(records)
