"""What every client of a broker makes of a connection: addresses, logins, certificates; and what it never shows."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from bindings.amqp.client import Dialer
from bindings.certificates import Address
from bindings.gateways import BrokerLogin, Connection, GatewayError, Tls
from bindings.mqtt.client import LinkConnector
from bindings.nats.publisher import NatsDialer

CLIENTS: Final[dict[str, Callable[[Connection], tuple[Address, ...]]]] = {
    "amqp": lambda connection: Dialer(connection, "c").addresses,
    "mqtt": lambda connection: LinkConnector(connection, "MQTT/5.0", "c", clean=False).addresses,
    "nats": lambda connection: NatsDialer(connection, "c").addresses,
}
SECURE: Final = {"amqp": "amqps", "mqtt": "mqtts", "nats": "tls"}
PORTS: Final = {"amqp": (5672, 5671), "mqtt": (1883, 8883), "nats": (4222, 4222)}


@pytest.fixture(params=sorted(CLIENTS))
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def test_credentials_are_taken_out_of_addresses_and_shown_nowhere(kind: str) -> None:
    uris = (f"{kind}://us%40er:se%2Fcret@host:4333", f"{SECURE[kind]}://[::1]", f"{kind.upper()}://plain")
    first, second, third = CLIENTS[kind](Connection(uris))
    assert (first.username, first.password, str(first)) == ("us@er", "se/cret", "host:4333")
    assert (str(second), second.tls) == (f"[::1]:{PORTS[kind][1]}", True)
    assert (str(third), third.tls) == (f"plain:{PORTS[kind][0]}", False)
    assert "cret" not in f"{first!r} {first} {BrokerLogin(password='cret', token='cret')!r}"


@pytest.mark.parametrize("place", ["", "me:secret@", "me:secret@host:port", "me:secret@host:99999", "me:secret@:1"])
def test_an_address_of_no_form_is_refused_without_its_secrets(kind: str, place: str) -> None:
    with pytest.raises(GatewayError) as refused:
        CLIENTS[kind](Connection((f"{kind}://{place}",)))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["http", "ws", "kafka"])
def test_another_scheme_is_refused_without_its_secrets(kind: str, scheme: str) -> None:
    with pytest.raises(GatewayError) as refused:
        CLIENTS[kind](Connection((f"{scheme}://me:secret@host",)))
    assert "secret" not in str(refused.value)


def test_no_address_is_refused(kind: str) -> None:
    with pytest.raises(GatewayError):
        CLIENTS[kind](Connection(()))


def test_files_that_cannot_be_used_are_named(kind: str, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_text("nothing of use")
    for tls in (Tls(ca=tmp_path / "away"), Tls(certificate=odd, key=odd)):
        with pytest.raises(GatewayError, match=str(tmp_path)):
            CLIENTS[kind](Connection((f"{SECURE[kind]}://host",), tls=tls))
    with pytest.raises(GatewayError, match="key"):
        CLIENTS[kind](Connection((f"{SECURE[kind]}://host",), tls=Tls(key=odd)))


def test_settings_for_tls_forbid_a_connection_in_the_clear(kind: str) -> None:
    connection = Connection((f"{kind}://host",), BrokerLogin("me", "hidden"), Tls())
    if kind == "amqp":  # whose scheme says whether a password may go in the clear
        with pytest.raises(GatewayError, match=r"amqp://host:5672 does not use TLS; write amqps"):
            CLIENTS[kind](connection)
        return
    assert [(each.port, each.tls) for each in CLIENTS[kind](connection)] == [(PORTS[kind][1], True)]


@pytest.mark.parametrize("kind", ["amqp", "mqtt"])
def test_the_login_of_the_settings_goes_before_that_of_the_uri(kind: str) -> None:
    uris = (f"{kind}://us%40er:se%2Fcret@one", f"{kind}://two")
    for login, expected in (
        (BrokerLogin("me", "hidden"), {("me", "hidden")}),
        (BrokerLogin("me"), {("me", None)}),
        (BrokerLogin(password="hidden"), {("us@er", "hidden"), ("" if kind == "mqtt" else None, "hidden")}),
    ):
        addresses = CLIENTS[kind](Connection(uris, login))
        assert {(each.username, each.password) for each in addresses} == expected
        assert "hidden" not in repr(addresses)


def test_mqtt_verifies_certificates_and_names() -> None:
    context = LinkConnector(Connection(("mqtt://h",), tls=Tls()), "MQTT/5.0", "c", clean=False).tls
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
