"""The MQTT 3.1.1 and 5 bindings: native records, options, receiving, and building messages to send."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from bindings.certificates import AddressForm
from bindings.envelope import AttributeRule
from bindings.gateways import (
    Gateway,
    GatewayConfig,
    GatewayError,
    ReceivingBinding,
    drop_covered,
    iter_paths,
    templates_of,
)
from bindings.mqtt import messages
from bindings.mqtt.messages import Version
from bindings.parts import NativeForm, Part
from bindings.sending import SendingBinding
from catalog.model import Catalog, Definition, Endpoint
from catalog.protocols.properties import squash_names
from catalog.values import parse_whole_number

# MQTT messages, 3.1.1 and 5: native form, and where the CloudEvents MQTT binding puts attributes.

FORM: Final = NativeForm(lists=("user_properties",), binary=("correlation_data",))
RULE: Final = AttributeRule(prefixes=("user_properties.",), content_type="content_type", strict=False)


# The receiving side of MQTT: topic filters for an endpoint, and the gateway; see :mod:`bindings.gateways`.


def _list_addresses(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    named = messages.filter_of_options(endpoint.options)
    chosen = [named] if named is not None else [messages.check_filter(path) for path in iter_paths(endpoint)]
    return tuple(
        drop_covered(chosen, messages.covers) or messages.filters_of_templates(_iter_valid_topics(endpoint, catalog))
    )


def _iter_valid_topics(endpoint: Endpoint, catalog: Catalog) -> Iterator[str]:
    """Yield the topics that are valid filters; lint reports the others, which no message can have."""
    for template in templates_of(endpoint, catalog, "topic_name"):
        try:
            messages.filter_of_template(template)
        except messages.TopicFilterError:
            continue  # lint reports publish-wildcard; one such definition must not disable the endpoint
        yield template


def _create_gateway(version: Version, config: GatewayConfig) -> Gateway:
    from bindings.mqtt.gateway import MqttGateway

    return MqttGateway(config, version)


MQTT_5: Final = ReceivingBinding(
    _list_addresses, messages.overlap, partial(_create_gateway, "MQTT/5.0"), messages.to_requests
)
MQTT_3: Final = ReceivingBinding(
    _list_addresses, messages.overlap, partial(_create_gateway, "MQTT/3.1.1"), messages.to_requests
)


# Addressing and building MQTT messages; :mod:`bindings.mqtt.publisher` sends them.

_INVALID_ADDRESS: Final = "{address} is not a valid MQTT address"
MAX_TEXT: Final = 65_535
"""Maximum bytes of a text or binary value in a packet."""


class MqttSending(SendingBinding):
    """See :class:`~bindings.sending.SendingBinding`; an address is a topic."""

    family = "mqtt"
    address_form = AddressForm(
        "MQTT",
        {"mqtt": 1883, "tcp": 1883, "ws": 80},
        {"mqtts": 8883, "ssl": 8883, "tls": 8883, "wss": 443},
        f"{_INVALID_ADDRESS}; write mqtt://host:1883 or mqtts://host:8883",
        f"{_INVALID_ADDRESS}: its host or port is invalid",
        f"{_INVALID_ADDRESS}: it lacks a host or a port; write mqtt://host:1883",
        default_scheme="mqtt",
        upgrades_to_tls=True,
    )
    literal_rule = (re.compile(r"[^+#\x00{}]*"), "no '+', '#' or braces")
    address_rule = (re.compile(r"[^+#\x00]+", re.DOTALL), "a topic must not be empty or have '+', '#' or NUL")
    max_address_bytes = MAX_TEXT
    address_key = "topic_name"
    channel_options = frozenset({"topic_name"})
    scalar_options = ("qos", "retain")
    min_values: ClassVar[Mapping[str, int]] = {"qos": 1}
    binary_options = frozenset({"correlation_data"})
    text_keys = ("user_properties.",)
    headerless_keys = frozenset({"topic_name", "qos", "retain"})

    def channel_address(
        self, definition: Definition, endpoint: Endpoint | None, *, connected: bool = False
    ) -> dict[str, str]:
        """Return the topic: from the options, else the path of an address, else the message's name."""
        options = endpoint.options if endpoint else {}
        topic = str(options.get("topic") or options.get("topic_name") or "")
        if not topic and connected and endpoint is not None:
            uris = (urlsplit(uri) for uri in endpoint.uris)
            topic = next((uri.path.lstrip("/") for uri in uris if uri.scheme.startswith("mqtt") and uri.path[1:]), "")
        return {self.address_key: topic or definition.messageid}

    def carries_bytes(self, key: str) -> bool:
        """Whether a part may be bytes; user properties are texts."""
        return key in self.binary_options

    def convert_header(self, name: str, part: Part) -> Part | None:
        """Return the user property for a header; None if name or value is not MQTT text."""
        return Part(name, part.value) if _is_text(Part("", name.encode("utf-8", "surrogatepass")), part) else None


def _is_text(*parts: Part) -> bool:
    return all(part.text is not None and "\0" not in part.text and len(part.value or b"") <= MAX_TEXT for part in parts)


# Endpoint options of MQTT connections.

DEFAULT_SESSION_SECONDS: Final = 86_400
"""How long a broker keeps our session and its queue while we are disconnected: enough for an outage of a night."""
DEFAULT_KEEPALIVE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """A connection's endpoint options, in seconds.

    ``expiry`` is MQTT 5's session expiry (option ``sessionexpiryinterval``; in 3.1.1 the broker decides), ``keepalive``
    how long a connection may be silent (option ``keepalive``). Gateways ignore ``cleansession``: a session that ends
    with its connection loses what arrives in between.
    """

    expiry: int = DEFAULT_SESSION_SECONDS
    keepalive: int = DEFAULT_KEEPALIVE_SECONDS


def session_options(options: Mapping[str, Any]) -> SessionOptions:
    """Read the options; case, dashes and underscores in names are ignored.

    Raises:
        GatewayError: a value is not an integer in range.
    """
    known = squash_names(options)
    return SessionOptions(
        expiry=_seconds_option(known, "sessionexpiryinterval", DEFAULT_SESSION_SECONDS, 1, 2**32 - 1),
        keepalive=_seconds_option(known, "keepalive", DEFAULT_KEEPALIVE_SECONDS, 1, 65_535),
    )


def _seconds_option(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    written = value = options.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        value = parse_whole_number(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise GatewayError(f"option {name} must be a whole number of seconds from {low} to {high}, not {written!r:.40}")
    return value
