"""Publishes to a stream of JetStream: positions as they are, a CloudEvent, and a subject that nobody declared."""

from __future__ import annotations

import asyncio
import os

import nats
from nats.aio.client import Client

BROKER = os.environ.get("BROKER", "nats://localhost:4222")
VARIABLES = ("XROUTER_SOURCES__0__URIS",)
SECONDS = 30.0
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "com.example.fleet.parked", "ce-source": "/trucks/12"}
MESSAGES: list[tuple[str, bytes, dict[str, str] | None]] = [
    ("fleet.12.position", b'{"lat": 52.5, "lon": 13.4}', None),
    ("fleet.12.events", b'{"place": "depot"}', {**EVENT, "content-type": "application/json"}),
    ("fleet.12.fuel", b'{"litres": 80}', None),  # nobody declared that
]


def prepare() -> None:
    """Make the stream; what is in it from an earlier run stays, behind the consumer."""
    asyncio.run(_prepare())


def send() -> int:
    """Send, and return how many messages that were."""
    asyncio.run(_send())
    return len(MESSAGES)


async def _prepare() -> None:
    client = await _connected()
    await client.jetstream().add_stream(name="FLEET", subjects=["fleet.>"])
    await client.close()


async def _send() -> None:
    client = await _connected()
    stream = client.jetstream()
    for subject, payload, headers in MESSAGES:
        await stream.publish(subject, payload, timeout=SECONDS, headers=headers)
    await client.close()


async def _connected() -> Client:
    return await nats.connect(BROKER, connect_timeout=5, allow_reconnect=False)
