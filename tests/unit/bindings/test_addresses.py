"""Addresses of every protocol: servers, TLS and logins, and what is said of those that are none."""

from __future__ import annotations

import pytest

from bindings.certificates import parse_addresses
from bindings.gateways import Connection, GatewayError, Tls
from bindings.protocols import sending_of


@pytest.mark.parametrize("kind", ["mqtt", "nats", "amqp"])
def test_addresses_over_websockets_are_passed_over(kind: str) -> None:
    (address,) = parse_addresses(
        sending_of(kind).address_form, Connection(("wss://a.example/x", f"{kind}://b.example:99", "WS://c.example"))
    )
    assert str(address) == "b.example:99"


@pytest.mark.parametrize("kind", ["mqtt", "nats", "amqp"])
def test_nothing_but_websockets_is_an_error(kind: str) -> None:
    with pytest.raises(GatewayError, match=rf"{kind.upper()} over WebSockets .* is not supported; use an address such"):
        parse_addresses(sending_of(kind).address_form, Connection(("wss://a.example",)))


@pytest.mark.parametrize(
    ("kind", "uri", "tls", "url"),
    [
        ("mqtt", "broker", False, "mqtt://broker:1883"),
        ("mqtt", "TCP://[::1]:7", False, "mqtt://[::1]:7"),
        ("mqtt", "mqtt://broker", True, "mqtts://broker:8883"),
        ("mqtt", "ssl://broker/path", False, "mqtts://broker:8883"),
        ("amqp", "amqp://broker/queue", True, "amqp://broker:5672"),
        ("amqp", "AMQPS://broker", False, "amqps://broker:5671"),
        ("nats", "broker:99", False, "nats://broker:99"),
        ("nats", "nats://[::1]", True, "tls://[::1]:4222"),
    ],
)
def test_an_address_is_split_as_its_protocol_writes_it(kind: str, uri: str, tls: bool, url: str) -> None:
    (address,) = parse_addresses(sending_of(kind).address_form, Connection((uri,), tls=Tls() if tls else None))
    assert (address.url, address.tls) == (url, url.startswith(("mqtts", "amqps", "tls")))
    assert sending_of(kind).address_form.is_plain(uri, tls=tls) is not address.tls
