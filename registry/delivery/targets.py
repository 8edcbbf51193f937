"""From a subscription of the API to its target. Whoever subscribes is no operator, so where it may lead is limited.

An HTTP sink needs a public host, which is judged with each connection, and TLS. Sinks of the other protocols, whose
clients connect by themselves, and HTTP without TLS, need a host that the settings allow by name or address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from bindings.amqp.outgoing import message_of as amqp_message
from bindings.amqp.sender import AmqpSender
from bindings.gateways import Connection, Login, Tls
from bindings.http.sending import FIELD_NAME, FIELD_VALUE
from bindings.kafka.client import KafkaClient
from bindings.kafka.login import SaslLogin
from bindings.kafka.publisher import KafkaPublisher
from bindings.mqtt.outgoing import message_of as mqtt_message
from bindings.mqtt.publisher import MqttPublisher
from bindings.nats.publisher import NatsPublisher
from bindings.nats.publisher import message_of as nats_message
from bindings.parts import JSON_KIND, Part
from bindings.protocols import BINDINGS
from bindings.sending import Publisher, Translating
from catalog.documents.reach import Reach
from catalog.protocols.properties import CONNECTION_HEADERS, REQUEST_CREDENTIALS
from registry.delivery.messages import Composer, Mode
from registry.delivery.sending import BrokerSender, Sender
from registry.delivery.subscriptions import PATH, Subscription
from registry.delivery.wants import Delivery
from registry.delivery.webhooks import Webhook, WebhookSender
from registry.errors import Refusal, invalid

_SECONDS: Final = 10.0
_MAX_HEADERS: Final = 32
_MAX_MESSAGE: Final = 1_000_000
_NO_HEADERS: Final = frozenset(("host", "content-type", "content-length")) | REQUEST_CREDENTIALS | CONNECTION_HEADERS
_MqttVersion = Literal["MQTT/5.0", "MQTT/3.1.1"]


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms sinks are sent to: whereto, our name to webhooks, and where each may allow us later."""

    reach: Reach
    origin: str
    callback: str = ""
    permitted: bool = False
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class _Protocol:
    """One protocol of the API. ``schemes`` tell for each whether it is TLS; ``settings`` are those that are known."""

    binding: str
    schemes: Mapping[str, bool]
    settings: frozenset[str]
    address: str = ""


_HTTP: Final = frozenset(("headers", "method", "mode"))
_MQTT_SETTINGS: Final = frozenset(("topicname", "qos", "retain", "expiry", "userproperties"))
_MQTT_SCHEMES: Final = {"mqtt": False, "mqtts": True}
PROTOCOLS: Final[Mapping[str, _Protocol]] = {
    "HTTP": _Protocol("HTTP", {"http": False, "https": True}, _HTTP),
    "HTTPS": _Protocol("HTTP", {"https": True}, _HTTP),
    "MQTT3": _Protocol("MQTT/3.1.1", _MQTT_SCHEMES, frozenset(("topicname", "qos", "retain")), "topicname"),
    "MQTT5": _Protocol("MQTT/5.0", _MQTT_SCHEMES, _MQTT_SETTINGS | {"mode"}, "topicname"),
    "AMQP": _Protocol("AMQP/1.0", {"amqp": False, "amqps": True}, frozenset(("address", "mode")), "address"),
    "KAFKA": _Protocol("KAFKA", {"kafka": False, "ssl": True}, frozenset(("topicname", "mode")), "topicname"),
    "NATS": _Protocol("NATS", {"nats": False, "tls": True}, frozenset(("subject", "mode")), "subject"),
}


def delivery_of(name: str, subscription: Subscription, terms: Terms) -> Delivery:
    """Return what a subscription asks for. Touches no network, and looks no name up.

    Raises:
        Refusal: it cannot be sent to, or may not; names the member.
    """
    protocol = PROTOCOLS.get(subscription.protocol)
    if protocol is None:
        raise invalid(PATH, "protocol", f"it is none of {', '.join(PROTOCOLS)}")
    unknown = sorted(set(subscription.settings) - protocol.settings)
    if unknown:
        raise _setting(unknown[0][:40], "this protocol has no such setting here")
    tls, host = _server(subscription, protocol)
    _check_reach(host, protocol, terms.reach, tls=tls)
    if subscription.credential and not tls:
        raise invalid(PATH, "sinkCredential", "it would cross the network in plain text; name a sink with TLS")
    composer = _composer(subscription, protocol)
    if protocol.binding == "HTTP":
        webhook = _webhook(subscription, terms)
        return Delivery(subscription.wants, composer, lambda: WebhookSender(webhook))
    publisher = _publisher(name, subscription, protocol, tls=tls)

    def sender() -> Sender:
        return BrokerSender(publisher())

    return Delivery(subscription.wants, composer, sender)


def _setting(name: str, why: str) -> Refusal:
    return invalid(PATH, f"protocolsettings.{name}", why)


def _server(subscription: Subscription, protocol: _Protocol) -> tuple[bool, str]:
    """Return whether a sink has TLS, and its host."""
    try:
        parts = urlsplit(subscription.sink)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise invalid(PATH, "sink", f"it is no address: {error}") from None
    if parts.scheme.lower() not in protocol.schemes or not host:
        schemes = " or ".join(f"{scheme}://" for scheme in protocol.schemes)
        raise invalid(PATH, "sink", f"it needs to be {schemes} and a host for {subscription.protocol}")
    if parts.username is not None or parts.fragment or "," in parts.netloc:
        raise invalid(PATH, "sink", "it has a user, a fragment or several hosts; logins go into sinkCredential")
    if not all(0x21 <= ord(each) < 0x7F for each in subscription.sink):
        raise invalid(PATH, "sink", "it has characters that no URI has")
    return protocol.schemes[parts.scheme.lower()], host


def _check_reach(host: str, protocol: _Protocol, reach: Reach, *, tls: bool) -> None:
    written = host if _is_address(host) else "0.0.0.0"  # a name is allowed by name alone here
    if reach.allows(host, written):
        return
    if protocol.binding != "HTTP" or not tls:
        what = "sinks without TLS" if protocol.binding == "HTTP" else "sinks other than webhooks"
        raise invalid(PATH, "sink", f"{what} need a host that events.allow_addresses of the registry names")
    local = host == "localhost" or host.endswith(".localhost")
    if local or (_is_address(host) and not reach.admits(host, host)):
        raise invalid(PATH, "sink", "it is no public host, and events.allow_addresses of the registry does not name it")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _composer(subscription: Subscription, protocol: _Protocol) -> Composer:
    binding, settings = BINDINGS[protocol.binding], subscription.settings
    usual: Mode = "structured" if protocol.binding == "HTTP" or not binding.binary else "binary"
    mode = settings.get("mode", usual)
    if mode not in ("binary", "structured"):
        raise _setting("mode", "it needs to be binary or structured")
    address = subscription.sink
    if protocol.address:
        path = unquote(urlsplit(subscription.sink).path).lstrip("/") if protocol.binding != "NATS" else ""
        address = settings.get(protocol.address) or path
        if not isinstance(address, str) or not address:
            raise _setting(protocol.address, "it needs to be a text")
    pattern, rule = binding.sending.whole
    if not pattern.fullmatch(address) or len(address.encode("utf-8", "replace")) > binding.sending.most_bytes:
        raise _setting(protocol.address or "sink", f"it cannot be sent to: {rule}")
    given = _mqtt_parts(settings) if protocol.binding.startswith("MQTT") else ()
    return Composer(binding, lambda _: address, mode, given)


def _mqtt_parts(settings: Mapping[str, Any]) -> tuple[Part, ...]:
    qos, retain, expiry = (settings.get(name, usual) for name, usual in (("qos", 1), ("retain", False), ("expiry", 0)))
    if isinstance(qos, bool) or qos not in (1, 2):
        raise _setting("qos", "it needs to be 1 or 2: nothing less is confirmed")
    if not isinstance(retain, bool):
        raise _setting("retain", "it needs to be true or false")
    if isinstance(expiry, bool) or not isinstance(expiry, int) or not 0 <= expiry < 2**32:
        raise _setting("expiry", "it needs to be a number of seconds")
    parts = [Part("qos", b"%d" % qos, JSON_KIND), Part("retain", b"true" if retain else b"false", JSON_KIND)]
    if expiry:
        parts.append(Part("message_expiry_interval", b"%d" % expiry, JSON_KIND))
    pairs = _texts(settings.get("userproperties", {}), "userproperties")
    return (*parts, *(Part(f"user_properties.{name}", text.encode("utf-8")) for name, text in pairs.items()))


def _texts(given: Any, name: str) -> dict[str, str]:
    fine = isinstance(given, dict) and len(given) <= _MAX_HEADERS
    if not fine or not all(isinstance(each, str) and len(each) <= 1024 for pair in given.items() for each in pair):
        raise _setting(name, f"it needs to be an object of up to {_MAX_HEADERS} texts")
    return dict(given)


def _webhook(subscription: Subscription, terms: Terms) -> Webhook:
    settings = subscription.settings
    if settings.get("method", "POST") != "POST":
        raise _setting("method", "it needs to be POST (CloudEvents webhook specification, section 2.1)")
    headers = _texts(settings.get("headers", {}), "headers")
    for name, value in headers.items():
        lower = name.lower()
        if not FIELD_NAME.fullmatch(name) or not FIELD_VALUE.fullmatch(value.encode("utf-8")):
            raise _setting("headers", f"{name[:40]!r} or its value cannot be in a header")
        if lower in _NO_HEADERS or lower.startswith(("ce-", "webhook-")):
            raise _setting("headers", f"{lower} is made here, or goes into sinkCredential")
    credential, basic = subscription.credential, None
    if credential.get("credentialType") == "ACCESSTOKEN":
        headers["Authorization"] = f"Bearer {credential['accessToken']}"
    elif credential:
        basic = credential["identifier"], credential["secret"]
    return Webhook(
        tuple(headers.items()),
        basic,
        timeout=_SECONDS,
        origin=terms.origin,
        callback=terms.callback,
        permitted=terms.permitted,
        rate=terms.rate,
        reach=terms.reach,
    )


def _publisher(name: str, subscription: Subscription, protocol: _Protocol, *, tls: bool) -> Callable[[], Publisher]:
    """Return what makes the client of a broker."""
    credential, ours = subscription.credential, f"xrouter-{name}"
    user, secret = credential.get("identifier"), credential.get("secret")
    if protocol.binding != "NATS" and "accessToken" in credential:
        raise invalid(PATH, "sinkCredential", "this protocol takes PLAIN")
    parts = urlsplit(subscription.sink)
    if protocol.binding == "KAFKA":
        login = None if user is None else SaslLogin(user, secret or "")
        client = KafkaClient(f"{parts.hostname}:{parts.port or 9092}", login, tls=tls)
        return lambda: KafkaPublisher(client, max_message_bytes=_MAX_MESSAGE, timeout=_SECONDS)
    address = f"{parts.scheme}://{parts.netloc}"
    connection = Connection((address,), Login(user, secret, credential.get("accessToken")), Tls() if tls else None)
    if protocol.binding == "NATS":
        return lambda: Translating(
            NatsPublisher(connection, name=ours, timeout=_SECONDS, stream=True), partial(nats_message, name)
        )
    if protocol.binding == "AMQP/1.0":
        return lambda: Translating(AmqpSender(connection, container_id=ours, timeout=_SECONDS), amqp_message)
    version: _MqttVersion = "MQTT/5.0" if protocol.binding == "MQTT/5.0" else "MQTT/3.1.1"
    return lambda: Translating(
        MqttPublisher(connection, protocol=version, client_id=ours, timeout=_SECONDS), mqtt_message
    )
