"""Sends orders to a queue: plain messages, a CloudEvent's worth of properties on none of them."""

from __future__ import annotations

import os

from proton import Message
from proton.utils import BlockingConnection

BROKER = os.environ.get("BROKER", "amqp://localhost:5672")
VARIABLES = ("XROUTER_SOURCES__0__URIS",)
QUEUE = "q.example"
SECONDS = 30.0
MESSAGES = [
    Message(subject="order/ada", body=b'{"part": "cog"}', content_type="application/json"),
    Message(
        subject="order/ben",
        properties={"priority": "urgent"},
        body=b'{"part": "axle"}',
        content_type="application/json",
    ),
    Message(subject="complaint/ada", body=b"too late"),  # nobody declared that
]


def prepare() -> None:
    """See that the broker is there, and that it has the queue or makes it."""
    connection = BlockingConnection(BROKER, timeout=SECONDS)
    try:
        connection.create_sender(QUEUE)
    finally:
        connection.close()


def send() -> int:
    """Send, and return how many messages that were."""
    connection = BlockingConnection(BROKER, timeout=SECONDS)
    try:
        sender = connection.create_sender(QUEUE)
        for message in MESSAGES:
            message.inferred = True  # the body is data, as it is
            sender.send(message, timeout=SECONDS)
    finally:
        connection.close()
    return len(MESSAGES)
