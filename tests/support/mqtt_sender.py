"""An MQTT client that is not ours: paho as its users have it, to send to gateways and to see what publishers sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

LIMIT_SECONDS: Final = 120.0


class Client:
    """A connected client with a thread of its own; use it in a ``with`` statement."""

    def __init__(self, uri: str, *, version: str = "MQTT/5.0", **login: str) -> None:
        self._ready, self._subscribed = threading.Event(), threading.Event()
        place = urlsplit(uri)
        self._five = version == "MQTT/5.0"
        protocol = MQTTProtocolVersion.MQTTv5 if self._five else MQTTProtocolVersion.MQTTv311
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=protocol)
        self._client.max_inflight_messages = 500
        self._client.on_connect = self._connected
        self._client.on_disconnect = lambda *_: self._ready.clear()
        self._client.on_message = self._arrived
        self._client.on_publish = self._confirmed
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        if login:
            self._client.username_pw_set(**login)
        self.messages: list[paho.MQTTMessage] = []
        self._published = 0
        self._client.connect(str(place.hostname), place.port or 1883)

    def __enter__(self) -> Client:
        self._client.loop_start()
        self.wait_connected()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def wait_connected(self) -> None:
        """Wait for the connection, the first one or the one after a restart of the broker."""
        assert self._ready.wait(LIMIT_SECONDS), "the broker takes no connection"

    def send(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, **properties: Any) -> None:
        """Send one message and return when the broker has it."""
        self.begin(topic, payload, qos=qos, retain=retain, **properties).wait_for_publish(LIMIT_SECONDS)

    def begin(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, **properties: Any
    ) -> paho.MQTTMessageInfo:
        """Send one message and do not wait; *properties* have paho's names."""
        taken: Properties | None = None
        if self._five:
            taken = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            for name, value in properties.items():
                setattr(taken, name, value)
        return self._client.publish(topic, payload, qos, retain, taken)

    def send_all(self, topic: str, payloads: Iterable[bytes]) -> None:
        """Send messages and return when the broker has all of them."""
        for info in [self.begin(topic, payload) for payload in payloads]:
            info.wait_for_publish(LIMIT_SECONDS)
            assert info.is_published(), "the broker did not confirm a message"

    def has_confirmed(self, count: int) -> bool:
        """Tell whether the broker confirmed that many messages of this client."""
        return self._published >= count

    def subscribe(self, topic: str) -> None:
        """Collect in ``messages`` what is sent to a topic from now on."""
        self._subscribed.clear()
        self._client.subscribe(topic, 1)
        assert self._subscribed.wait(LIMIT_SECONDS), "the broker grants no subscription"

    def _connected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _properties: object
    ) -> None:
        if not reason.is_failure:
            self._ready.set()

    def _confirmed(self, *_: object) -> None:
        self._published += 1

    def _arrived(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.append(message)
