"""Addresses of every protocol: servers, TLS and logins, and what is said of those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bindings.certificates import create_tls_context, parse_addresses
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


@pytest.mark.parametrize(
    ("kind", "uri", "says"),
    [
        (
            "mqtt",
            "http://u:secret@h",
            "http://h is not a valid MQTT address; write mqtt://host:1883 or mqtts://host:8883",
        ),
        ("mqtt", "mqtt://u:secret@h:port", "mqtt://h:port is not a valid MQTT address: its host or port is invalid"),
        ("mqtt", "u:secret@:1", ":1 is not a valid MQTT address: it lacks a host or a port; write mqtt://host:1883"),
        ("amqp", "h:5672", "a URI of an AMQP broker is not valid; write amqp://host:5672 or amqps://host:5671"),
        ("nats", "mqtt://u:secret@h", "h: NATS over mqtt:// is not supported; use nats:// or tls://"),
        ("nats", "nats://u:secret@h:port", "the NATS address is not valid; write nats://host:4222 or tls://host:4222"),
        ("nats", "nats://", "the NATS address has no host; write nats://host:4222 or tls://host:4222"),
    ],
)
def test_an_address_of_no_form_is_refused_without_its_secrets(kind: str, uri: str, says: str) -> None:
    with pytest.raises(GatewayError) as refused:
        parse_addresses(sending_of(kind).address_form, Connection((uri,)))
    assert str(refused.value) == says


def test_files_for_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    odd, away = tmp_path / "odd.pem", tmp_path / "away.pem"
    odd.write_text("nothing of use")
    for tls, says in (
        (Tls(ca=odd), rf"certificate authority {odd} cannot be read: .+"),
        (Tls(ca=away), rf"certificate authority {away} cannot be read: .+"),
        (Tls(key=odd), rf"key {odd} has no certificate; set both, or neither"),
        (Tls(certificate=odd), rf"certificate {odd} with key {odd} cannot be used: .+; both must be PEM, .+"),
        (Tls(certificate=odd, key=away), rf"certificate {odd} with key {away} cannot be used: .+"),
    ):
        with pytest.raises(GatewayError, match=says):
            create_tls_context(tls)
