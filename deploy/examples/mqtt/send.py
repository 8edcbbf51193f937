"""Publishes readings as machines do, and one to a topic that nobody declared."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

BROKER = os.environ.get("BROKER", "mqtt://localhost:1883")
VARIABLES = ("XROUTER_SOURCES__0__URIS",)
SECONDS = 30.0
READINGS = [
    ("plants/7/machines/press/temperature", b'{"degrees": 81.5}'),
    ("plants/7/machines/press/pressure", b'{"bar": 12.25}'),
    ("plants/9/machines/mill/readings", b'{"turns": 1400}'),
    ("plants/7/machines/press/temperatur", b'{"degrees": 81.5}'),  # nobody declared that
]


def prepare() -> None:
    """See that the broker is there."""
    _connected().disconnect()


def send() -> int:
    """Send, and return how many messages that were."""
    client = _connected()
    client.loop_start()
    try:
        for topic, payload in READINGS:
            client.publish(topic, payload, qos=1).wait_for_publish(SECONDS)
    finally:
        client.disconnect()
        client.loop_stop()
    return len(READINGS)


def _connected() -> paho.Client:
    place = urlsplit(BROKER)
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.connect(str(place.hostname), place.port or 1883)
    return client
