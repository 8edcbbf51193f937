"""A Sparkplug B edge node as its specification has it, without any of our code: topics, payload bytes, and the will."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.support.waiting import wait_until

SECONDS: Final = 120.0
INT32, INT64, DOUBLE, BOOLEAN, STRING = 3, 4, 10, 11, 12
"""Data types of metrics (Sparkplug 3.0 section 6.4.16)."""
Value = int | float | bool | str


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(value)) + value


def metric(name: str, value: Value, alias: int, timestamp: int) -> bytes:
    """Return the bytes of a metric, its value in the field that its type asks for."""
    head = _bytes(1, name.encode()) + _varint(2, alias) + _varint(3, timestamp)
    if isinstance(value, bool):
        return head + _varint(4, BOOLEAN) + _varint(14, int(value))
    if isinstance(value, int):
        return head + _varint(4, INT64) + _varint(11, value)
    if isinstance(value, float):
        return head + _varint(4, DOUBLE) + _number(13 << 3 | 1) + struct.pack("<d", value)
    return head + _varint(4, STRING) + _bytes(15, value.encode())


def payload(timestamp: int, metrics: Iterable[bytes], seq: int | None = None) -> bytes:
    """Return the bytes of a payload; an extension of somebody's own is in it."""
    made = _varint(1, timestamp) + b"".join(_bytes(2, each) for each in metrics)
    if seq is not None:
        made += _varint(3, seq)
    return made + _bytes(1000, b"an extension")


class EdgeNode:
    """A connected edge node with a will; leaving the context is a crash: the broker has to publish its death."""

    def __init__(self, uri: str, group: str, node: str, *, old: bool) -> None:
        self._place = urlsplit(uri)
        self._group, self._node = group, node
        version = MQTTProtocolVersion.MQTTv311 if old else MQTTProtocolVersion.MQTTv5
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{group}-{node}", protocol=version)
        death = payload(1, [metric("bdSeq", 0, 0, 1)])
        self._client.will_set(self._topic("NDEATH"), death, qos=1)

    def __enter__(self) -> EdgeNode:
        self._client.connect(str(self._place.hostname), self._place.port or 1883)
        self._client.loop_start()
        wait_until(self._client.is_connected, SECONDS, "the edge node to connect")
        return self

    def __exit__(self, *_: object) -> None:
        # The loop goes first: it would connect again.
        self._client.loop_stop()
        place: Any = self._client.socket()
        place.close()

    def send(self, kind: str, body: bytes, device: str = "") -> None:
        """Publish with QoS 0, as births and data are, and return when it is on its way."""
        self._client.publish(self._topic(kind, device), body).wait_for_publish(SECONDS)

    def _topic(self, kind: str, device: str = "") -> str:
        return "/".join(filter(None, ("spBv1.0", self._group, kind, self._node, device)))
