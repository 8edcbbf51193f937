"""Targets of subscriptions. Subscribers are not operators, so the addresses they may name are limited.

An HTTP sink needs TLS and a public host, which is checked at each connection. Sinks of other protocols, whose clients
open their own connections, and HTTP without TLS, need a host that the settings allow by name or address.
"""

from __future__ import annotations

import ipaddress
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import httpx

from bindings.amqp.publisher import AmqpSender
from bindings.gateways import BrokerLogin, Connection, Tls
from bindings.http.binding import FIELD_NAME, FIELD_VALUE
from bindings.http.client import (
    ORIGIN_HEADER,
    ForbiddenHost,
    Version,
    ask_permission,
    call_concurrently,
    create_client,
    parse_retry_after,
    redact_url,
)
from bindings.http.publisher import OutRequest, find_invalid_member, to_request
from bindings.kafka.client import KafkaClient, SaslLogin
from bindings.kafka.publisher import KafkaPublisher
from bindings.mqtt.publisher import MqttPublisher
from bindings.nats.publisher import NatsPublisher
from bindings.parts import JSON_KIND, Part
from bindings.protocols import BINDINGS
from bindings.sending import Outbound, Publisher
from catalog.documents.connecting import ConnectionPolicy
from catalog.protocols.properties import CONNECTION_HEADERS, REQUEST_CREDENTIALS
from catalog.values import parse_whole_number
from registry.delivery.subscriptions import (
    DELIVERED,
    PATH,
    BrokerSender,
    DeliveryResult,
    EventMessages,
    Mode,
    Sender,
    SubscriberDelivery,
    Subscription,
)
from registry.errors import Refusal, invalid_value

# Webhooks (CloudEvents webhook specification): validation handshake, allowed rate, and meaning of responses.
#
# 2xx confirms an event, 410 ends the subscription. Timeouts, redirects, 401, 403, 404, 405, 407, 415 and 429 concern
# the target as a whole, other responses the event. Unconfirmed events are sent again, after ``Retry-After``.

RATE: Final = "WebHook-Allowed-Rate"
MAX_RATE: Final = 60_000
"""Requests per minute: the upper limit, whatever a target allows."""
_MINUTE: Final = 60.0
_MAX_IN_FLIGHT: Final = 8
_MAX_PAUSE: Final = 86_400.0
"""The longest ``Retry-After`` honoured, in seconds."""
_TIMEOUTS: Final = 3.0
"""Total duration of a request, in timeouts: one until the response begins, and two to read it."""
_MAX_ANSWER_BYTES: Final = 64 * 2**10
# The last two are raised when a connection is closed while it is read.
_CLIENT_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, ForbiddenHost, RuntimeError, ValueError)
_TARGET_STATUSES: Final = frozenset((401, 403, 404, 405, 407, 415, 429))


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook; secrets are only in ``headers`` and ``basic``.

    ``timeout`` (seconds) is for each step of a request, which may last three of them in total. ``origin`` names us in
    the handshake, '' skips it; ``callback`` is a URL where the target may grant permission later.
    ``permitted`` is whether it has, and ``rate`` the granted rate. ``reach`` None allows any address.
    """

    headers: tuple[tuple[str, str], ...] = ()
    basic: tuple[str, str] | None = None
    tls: Tls | None = None
    timeout: float = 10.0
    version: Version | None = None
    method: str = "POST"
    origin: str = ""
    callback: str = ""
    permitted: bool = False
    rate: int | None = None
    reach: ConnectionPolicy | None = None


class WebhookSender:
    """Implements :class:`~registry.delivery.subscriptions.Sender`; messages of one call are sent concurrently.

    Raises:
        OSError, ssl.SSLError: a certificate file cannot be read.
    """

    def __init__(self, target: Webhook) -> None:
        self._target = target
        self._client = self._open_client()
        self._permitted = target.permitted or not target.origin
        self._rate = RequestRate(target.rate)

    def send_allowance(self) -> tuple[int, float]:
        """Return how many messages the rate allows now, a few at a time."""
        left, pause = self._rate.allowance()
        return min(left, _MAX_IN_FLIGHT), pause

    def send(self, messages: Sequence[Outbound]) -> list[DeliveryResult]:
        """Request permission if there is none yet, and send."""
        requests = [to_request(self._target.method, each) for each in messages]
        if not self._permitted:
            (result,) = self._call_all([partial(self._request_permission, self._client, requests[0].url)], requests[:1])
            if result.kind != "delivered":
                return [result] * len(messages)
            self._permitted = True
            left, pause = self._rate.allowance()
            late = [DeliveryResult("away", "", pause)] * len(requests[left:])
            return [*self._post_all(requests[:left]), *late]
        return self._post_all(requests)

    def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._client.close()

    def _open_client(self) -> httpx.Client:
        target = self._target
        return create_client(
            target.headers,
            target.basic,
            target.tls,
            timeout=target.timeout,
            in_flight=_MAX_IN_FLIGHT,
            version=target.version,
            reach=target.reach,
        )

    def _post_all(self, requests: Sequence[OutRequest]) -> list[DeliveryResult]:
        return self._call_all([partial(self._post, self._client, each) for each in requests], requests)

    def _call_all(
        self, calls: Sequence[Callable[[], DeliveryResult]], requests: Sequence[OutRequest]
    ) -> list[DeliveryResult]:
        """Make calls; if one lasts too long, close the client, which ends them."""
        seconds = _TIMEOUTS * self._target.timeout
        results = call_concurrently(seconds, calls)
        if None in results:
            self._client.close()
            self._client = self._open_client()
        return [
            result or DeliveryResult("away", f"{redact_url(request.url)} does not answer within {seconds:g} s")
            for result, request in zip(results, requests, strict=True)
        ]

    def _request_permission(self, client: httpx.Client, url: str) -> DeliveryResult:
        """Request permission from a target (section 4); return the result of the handshake."""
        target = self._target
        try:
            allowed, answer = ask_permission(client, url, target.origin, target.callback)
        except _CLIENT_ERRORS as error:
            return DeliveryResult("away", _failure_text(url, error))
        status, rate = answer.status_code, parse_rate(answer.headers.get(RATE, "*"))
        if status == httpx.codes.GONE:
            return DeliveryResult("gone", f"{redact_url(url)} answered the handshake with 410")
        if not allowed or rate is None:
            reason = f"{redact_url(url)} answered the handshake with {status} and does not allow {target.origin}"
            return DeliveryResult("away", reason, _retry_after(answer.headers))
        self._rate = RequestRate(rate or None)
        return DELIVERED

    def _post(self, client: httpx.Client, request: OutRequest) -> DeliveryResult:
        fault = find_invalid_member(request)
        if fault:
            return DeliveryResult("held", fault)
        headers = [(name.encode("ascii"), value) for name, value in request.headers]
        if self._target.origin:
            headers.append((ORIGIN_HEADER.encode("ascii"), self._target.origin.encode("ascii")))
        self._rate.count_request()
        try:
            content = request.body or b""
            with client.stream(request.method, request.url, headers=headers, content=content) as answer:
                _drain_response(answer.iter_raw(), time.monotonic() + self._target.timeout)
                return _to_result(answer, request.url)
        except _CLIENT_ERRORS as error:
            return DeliveryResult("away", _failure_text(request.url, error))


class RequestRate:
    """Limits requests per minute; None is unlimited. Thread-safe."""

    def __init__(self, a_minute: int | None) -> None:
        self._most = None if a_minute is None else min(a_minute, MAX_RATE)
        self._sent: deque[float] = deque()

    def allowance(self) -> tuple[int, float]:
        """Return the number of requests allowed now and, if 0, the seconds until the next one."""
        if self._most is None:
            return MAX_RATE, 0.0
        now = time.monotonic()
        while self._sent and self._sent[0] <= now - _MINUTE:
            self._sent.popleft()
        left = self._most - len(self._sent)
        return max(left, 0), 0.0 if left > 0 else self._sent[0] + _MINUTE - now

    def count_request(self) -> None:
        """Count a request."""
        if self._most is not None:
            self._sent.append(time.monotonic())


def parse_rate(text: str) -> int | None:
    """Parse a rate in requests per minute: 0 is unlimited, None is not a valid rate."""
    value = text.strip()
    return 0 if value == "*" else parse_whole_number(value) or None


def _to_result(answer: httpx.Response, url: str) -> DeliveryResult:
    status = answer.status_code
    if answer.is_success:
        return DELIVERED
    reason = f"{redact_url(url)} answered {status}"
    if status == httpx.codes.GONE:
        return DeliveryResult("gone", reason)
    pause = _retry_after(answer.headers)
    of_target = status in _TARGET_STATUSES or status < 400 or pause > 0
    return DeliveryResult("away" if of_target else "held", reason, pause)


def _retry_after(headers: httpx.Headers) -> float:
    """Return the seconds to wait by ``Retry-After``."""
    return min(parse_retry_after(headers.get("retry-after")) or 0.0, _MAX_PAUSE)


def _drain_response(chunks: Iterable[bytes], deadline: float) -> None:
    """Read a short response to its end, so that the connection can be reused; do not read a long or slow one."""
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > _MAX_ANSWER_BYTES or time.monotonic() > deadline:
            return


def _failure_text(url: str, error: Exception) -> str:
    reason = str(error) if isinstance(error, ForbiddenHost) else f"{type(error).__name__}: {error}"
    return f"{redact_url(url)} does not answer: {reason}"


_CONNECT_SECONDS: Final = 10.0
_MAX_MESSAGE: Final = 1_000_000
_FORBIDDEN: Final = frozenset(("host", "content-type", "content-length")) | REQUEST_CREDENTIALS | CONNECTION_HEADERS
_MqttVersion = Literal["MQTT/5.0", "MQTT/3.1.1"]


@dataclass(frozen=True, slots=True)
class _Protocol:
    """One protocol of the API. ``schemes`` maps each scheme to whether it uses TLS; ``settings`` are the known ones."""

    binding: str
    schemes: Mapping[str, bool]
    settings: frozenset[str]
    address: str = ""


_HTTP_SETTINGS: Final = frozenset(("headers", "method", "mode"))
_MQTT_SETTINGS: Final = frozenset(("topicname", "qos", "retain", "expiry", "userproperties"))
_MQTT_SCHEMES: Final = {"mqtt": False, "mqtts": True}
PROTOCOLS: Final[Mapping[str, _Protocol]] = {
    "HTTP": _Protocol("HTTP", {"http": False, "https": True}, _HTTP_SETTINGS),
    "HTTPS": _Protocol("HTTP", {"https": True}, _HTTP_SETTINGS),
    "MQTT3": _Protocol("MQTT/3.1.1", _MQTT_SCHEMES, frozenset(("topicname", "qos", "retain")), "topicname"),
    "MQTT5": _Protocol("MQTT/5.0", _MQTT_SCHEMES, _MQTT_SETTINGS | {"mode"}, "topicname"),
    "AMQP": _Protocol("AMQP/1.0", {"amqp": False, "amqps": True}, frozenset(("address", "mode")), "address"),
    "KAFKA": _Protocol("KAFKA", {"kafka": False, "ssl": True}, frozenset(("topicname", "mode")), "topicname"),
    "NATS": _Protocol("NATS", {"nats": False, "tls": True}, frozenset(("subject", "mode")), "subject"),
}


def build_delivery(
    name: str, subscription: Subscription, reach: ConnectionPolicy, webhook: Webhook
) -> SubscriberDelivery:
    """Return the delivery for a subscription, to hosts in *reach*; a *webhook* as given, with what the subscription
    adds. Does not use the network or DNS.

    Raises:
        Refusal: its sink is invalid or not allowed; the error names the member.
    """
    protocol = PROTOCOLS.get(subscription.protocol)
    if protocol is None:
        raise invalid_value(PATH, "protocol", f"must be one of {', '.join(PROTOCOLS)}")
    unknown = sorted(set(subscription.settings) - protocol.settings)
    if unknown:
        raise _setting_refusal(unknown[0][:40], "is not a setting of this protocol here")
    tls, host = _parse_sink(subscription, protocol)
    _check_allowed(host, protocol, reach, tls=tls)
    if subscription.credential and not tls:
        raise invalid_value(PATH, "sinkCredential", "would be sent in plain text; use a sink with TLS")
    composer = _event_messages(subscription, protocol)
    if protocol.binding == "HTTP":
        target = replace(_with_login(webhook, subscription), reach=reach)
        return SubscriberDelivery(subscription.event_filter, composer, lambda: WebhookSender(target))
    publisher = _publisher_for(name, subscription, protocol, tls=tls)

    def open_sender() -> Sender:
        return BrokerSender(publisher())

    return SubscriberDelivery(subscription.event_filter, composer, open_sender)


def _setting_refusal(name: str, why: str) -> Refusal:
    return invalid_value(PATH, f"protocolsettings.{name}", why)


def _parse_sink(subscription: Subscription, protocol: _Protocol) -> tuple[bool, str]:
    """Return whether a sink has TLS, and its host."""
    try:
        parts = urlsplit(subscription.sink)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise invalid_value(PATH, "sink", f"is not a valid address: {error}") from None
    if parts.scheme.lower() not in protocol.schemes or not host:
        schemes = " or ".join(f"{scheme}://" for scheme in protocol.schemes)
        raise invalid_value(PATH, "sink", f"must be {schemes} and a host for {subscription.protocol}")
    if parts.username is not None or parts.fragment or "," in parts.netloc:
        raise invalid_value(
            PATH, "sink", "must not have a user, a fragment or several hosts; logins go into sinkCredential"
        )
    if not all(0x21 <= ord(each) < 0x7F for each in subscription.sink):
        raise invalid_value(PATH, "sink", "has characters that are not allowed in a URI")
    return protocol.schemes[parts.scheme.lower()], host


def _check_allowed(host: str, protocol: _Protocol, reach: ConnectionPolicy, *, tls: bool) -> None:
    written = host if _is_ip_address(host) else "0.0.0.0"  # names are allowed only by name
    if reach.allows(host, written):
        return
    if protocol.binding != "HTTP" or not tls:
        what = "sinks without TLS" if protocol.binding == "HTTP" else "sinks other than webhooks"
        raise invalid_value(PATH, "sink", f"{what} need a host listed in events.allow_addresses of the registry")
    local = host == "localhost" or host.endswith(".localhost")
    if local or (_is_ip_address(host) and not reach.can_connect(host, host)):
        raise invalid_value(
            PATH, "sink", "is not a public host, and events.allow_addresses of the registry does not list it"
        )


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _event_messages(subscription: Subscription, protocol: _Protocol) -> EventMessages:
    binding, settings = BINDINGS[protocol.binding], subscription.settings
    usual: Mode = "structured" if protocol.binding == "HTTP" or not binding.binary else "binary"
    mode = settings.get("mode", usual)
    if mode not in ("binary", "structured"):
        raise _setting_refusal("mode", "must be binary or structured")
    address = subscription.sink
    if protocol.address:
        path = unquote(urlsplit(subscription.sink).path).lstrip("/") if protocol.binding != "NATS" else ""
        address = settings.get(protocol.address) or path
        if not isinstance(address, str) or not address:
            raise _setting_refusal(protocol.address, "must be a string")
    pattern, rule = binding.sending.address_rule
    if not pattern.fullmatch(address) or len(address.encode("utf-8", "replace")) > binding.sending.max_address_bytes:
        raise _setting_refusal(protocol.address or "sink", f"cannot be used as destination: {rule}")
    given = _mqtt_parts(settings) if protocol.binding.startswith("MQTT") else ()
    return EventMessages(binding, lambda _: address, mode, given)


def _mqtt_parts(settings: Mapping[str, Any]) -> tuple[Part, ...]:
    qos, retain, expiry = (settings.get(name, usual) for name, usual in (("qos", 1), ("retain", False), ("expiry", 0)))
    if isinstance(qos, bool) or qos not in (1, 2):
        raise _setting_refusal("qos", "must be 1 or 2: QoS 0 is not confirmed")
    if not isinstance(retain, bool):
        raise _setting_refusal("retain", "must be true or false")
    if isinstance(expiry, bool) or not isinstance(expiry, int) or not 0 <= expiry < 2**32:
        raise _setting_refusal("expiry", "must be a number of seconds")
    parts = [Part("qos", b"%d" % qos, JSON_KIND), Part("retain", b"true" if retain else b"false", JSON_KIND)]
    if expiry:
        parts.append(Part("message_expiry_interval", b"%d" % expiry, JSON_KIND))
    pairs = _require_texts(settings.get("userproperties", {}), "userproperties")
    return (*parts, *(Part(f"user_properties.{name}", text.encode("utf-8")) for name, text in pairs.items()))


def _require_texts(given: Any, name: str) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise _setting_refusal(name, "must be an object of strings")
    return dict(given)


def _with_login(webhook: Webhook, subscription: Subscription) -> Webhook:
    settings = subscription.settings
    if settings.get("method", "POST") != "POST":
        raise _setting_refusal("method", "must be POST (CloudEvents webhook specification, section 2.1)")
    headers = _require_texts(settings.get("headers", {}), "headers")
    for name, value in headers.items():
        lower = name.lower()
        if not FIELD_NAME.fullmatch(name) or not FIELD_VALUE.fullmatch(value.encode("utf-8")):
            raise _setting_refusal("headers", f"has the invalid header {name[:40]!r}, or an invalid value of it")
        if lower in _FORBIDDEN or lower.startswith(("ce-", "webhook-")):
            raise _setting_refusal("headers", f"must not contain {lower}: it is set here, or belongs in sinkCredential")
    credential, basic = subscription.credential, None
    if credential.get("credentialType") == "ACCESSTOKEN":
        headers["Authorization"] = f"Bearer {credential['accessToken']}"
    elif credential:
        basic = credential["identifier"], credential["secret"]
    return replace(webhook, headers=tuple(headers.items()), basic=basic)


def _publisher_for(name: str, subscription: Subscription, protocol: _Protocol, *, tls: bool) -> Callable[[], Publisher]:
    """Return a factory of the client of a broker."""
    credential, ours = subscription.credential, f"xrouter-{name}"
    user, secret = credential.get("identifier"), credential.get("secret")
    if protocol.binding != "NATS" and "accessToken" in credential:
        raise invalid_value(PATH, "sinkCredential", "must be PLAIN for this protocol")
    parts = urlsplit(subscription.sink)
    if protocol.binding == "KAFKA":
        login = None if user is None else SaslLogin(user, secret or "")
        client = KafkaClient(f"{parts.hostname}:{parts.port or 9092}", login, tls=tls)
        return lambda: KafkaPublisher(client, max_message_bytes=_MAX_MESSAGE, timeout=_CONNECT_SECONDS)
    address = f"{parts.scheme}://{parts.netloc}"
    connection = Connection(
        (address,), BrokerLogin(user, secret, credential.get("accessToken")), Tls() if tls else None
    )
    if protocol.binding == "NATS":
        return lambda: NatsPublisher(connection, sink=name, timeout=_CONNECT_SECONDS, stream=True)
    if protocol.binding == "AMQP/1.0":
        return lambda: AmqpSender(connection, container_id=ours, timeout=_CONNECT_SECONDS)
    version: _MqttVersion = "MQTT/5.0" if protocol.binding == "MQTT/5.0" else "MQTT/3.1.1"
    return lambda: MqttPublisher(connection, protocol=version, client_id=ours, timeout=_CONNECT_SECONDS)
