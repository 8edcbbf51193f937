"""Where to connect and on what terms, and what is said of wrong ones."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bindings.background import Backoff
from bindings.certificates import Address
from bindings.gateways import BrokerLogin, Connection, GatewayError, Tls
from bindings.mqtt.binding import session_options
from bindings.mqtt.client import create_connector


def addresses_of(connection: Connection) -> tuple[Address, ...]:
    return create_connector(connection, "MQTT/5.0", "c", clean=False).addresses


@pytest.mark.parametrize(
    ("uri", "host", "port", "secure"),
    [
        ("mqtt://broker", "broker", 1883, False),
        ("mqtts://broker", "broker", 8883, True),
        ("MQTT://[::1]:99", "::1", 99, False),
        ("tcp://broker:1", "broker", 1, False),
        ("broker:7", "broker", 7, False),
    ],
)
def test_uris(uri: str, host: str, port: int, secure: bool) -> None:
    (address,) = addresses_of(Connection((uri,)))
    assert (address.host, address.port, address.tls) == (host, port, secure)


def test_the_login_goes_before_the_uri_and_settings_for_tls_before_its_scheme() -> None:
    (first,) = addresses_of(Connection(("mqtt://a:b%40c@host",)))
    assert (first.username, first.password, str(first)) == ("a", "b@c", "host:1883")
    connector = create_connector(
        Connection(("mqtt://a:b@host",), BrokerLogin("x", "y"), Tls()), "MQTT/5.0", "c", clean=False
    )
    (second,), context = connector.addresses, connector.terms.tls
    assert (second.username, second.password, second.port, second.tls) == ("x", "y", 8883, True)
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert "b@c" not in repr(first)


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:secret@host",
        "ws://me:secret@host",
        "mqtt://",
        "mqtt://me:secret@host:port",
        "mqtt://me:secret@host:99999",
        "mqtt://me:secret@:1",
    ],
)
def test_no_uris(uri: str) -> None:
    with pytest.raises(GatewayError) as caught:
        addresses_of(Connection((uri,)))
    assert "secret" not in str(caught.value)


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    for tls in (
        Tls(ca=tmp_path / "gone.pem"),
        Tls(ca=tmp_path / "no.pem"),
        Tls(key=tmp_path / "k"),
        Tls(None, tmp_path / "no.pem"),
    ):
        with pytest.raises(GatewayError):
            addresses_of(Connection(("mqtts://host",), tls=tls))


def test_options() -> None:
    assert (session_options({}).expiry, session_options({}).keepalive) == (86_400, 60)
    told = session_options({"session-expiry-interval": 5, "keepAlive": "7"})
    assert (told.expiry, told.keepalive) == (5, 7)
    for value in (0, -1, "x", True, 2**32):
        with pytest.raises(GatewayError):
            session_options({"sessionexpiryinterval": value})


def test_a_connection_has_a_version_and_a_client_id() -> None:
    with pytest.raises(GatewayError):
        create_connector(Connection(("mqtt://h",)), "MQTT/4", "c", clean=False)
    with pytest.raises(GatewayError):
        create_connector(Connection(("mqtt://h",)), "MQTT/5.0", "", clean=False)
    with pytest.raises(GatewayError):
        create_connector(Connection(()), "MQTT/5.0", "c", clean=False)


def test_pauses_grow_to_a_bound() -> None:
    backoff = Backoff(1.0, 8.0)
    pauses = [backoff.next_pause() for _ in range(6)]
    assert all(each / 2 <= pause <= each for pause, each in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True))
    backoff.reset()
    assert backoff.next_pause() <= 1.0
