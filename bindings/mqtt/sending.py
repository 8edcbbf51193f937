"""How messages for MQTT, 3.1.1 and 5, are addressed and made; they go by :mod:`bindings.mqtt.publisher`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final
from urllib.parse import urlsplit

from bindings.addresses import AddressForm
from bindings.parts import Part
from bindings.sending import Sending
from catalog.model import Definition, Endpoint

_NO_ADDRESS: Final = "{address} is no MQTT address"
_MOST_BYTES: Final = 65_535


class MqttSending(Sending):
    """See :class:`~bindings.sending.Sending`; an address is a topic."""

    family = "mqtt"
    form = AddressForm(
        "MQTT",
        {"mqtt": 1883, "tcp": 1883, "ws": 80},
        {"mqtts": 8883, "ssl": 8883, "tls": 8883, "wss": 443},
        f"{_NO_ADDRESS}; write mqtt://host:1883 or mqtts://host:8883",
        f"{_NO_ADDRESS}: its host or port is none",
        f"{_NO_ADDRESS}: it lacks a host or a port; write mqtt://host:1883",
        bare="mqtt",
        raised=True,
    )
    literal = (re.compile(r"[^+#\x00{}]*"), "no '+', '#' or braces")
    whole = (re.compile(r"[^+#\x00]+", re.DOTALL), "a topic is not empty and has no '+', '#' or NUL")
    most_bytes = _MOST_BYTES
    address = "topic_name"
    by_channel = frozenset({"topic_name"})
    scalars = ("qos", "retain")
    least: ClassVar[Mapping[str, int]] = {"qos": 1}
    blobs = frozenset({"correlation_data"})
    texts = ("user_properties.",)
    bare = frozenset({"topic_name", "qos", "retain"})

    def channel(self, definition: Definition, endpoint: Endpoint | None, *, connected: bool = False) -> dict[str, str]:
        """Return the topic: that of the options, of an address's path, else the name of the message."""
        options = endpoint.options if endpoint else {}
        topic = str(options.get("topic") or options.get("topic_name") or "")
        if not topic and connected and endpoint is not None:
            uris = (urlsplit(uri) for uri in endpoint.uris)
            topic = next((uri.path.lstrip("/") for uri in uris if uri.scheme.startswith("mqtt") and uri.path[1:]), "")
        return {self.address: topic or definition.messageid}

    def carries_bytes(self, key: str) -> bool:
        """Tell whether a part may be bytes; user properties are texts."""
        return key in self.blobs

    def header(self, name: str, part: Part) -> Part | None:
        """Return the user property that a header becomes; None where name or value is no MQTT text."""
        return Part(name, part.value) if _is_text(Part("", name.encode("utf-8", "surrogatepass")), part) else None


def _is_text(*parts: Part) -> bool:
    return all(
        part.text is not None and "\0" not in part.text and len(part.value or b"") <= _MOST_BYTES for part in parts
    )
