"""What every client of a broker makes of a connection: addresses, logins, certificates; and what it never shows."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from bindings.amqp.client import Dialer
from bindings.certificates import Address, CertificateCollector, parse_addresses, parse_expiry
from bindings.gateways import BrokerLogin, Connection, GatewayError, Tls
from bindings.mqtt.client import LinkConnector
from bindings.nats.publisher import NatsDialer
from bindings.protocols import sending_of
from tests.support.cases import read_cases
from tests.support.ports import Authority

ADDRESSES: dict[str, Any] = read_cases(Path(__file__).parents[2] / "cases" / "values" / "addresses.yaml")

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


def test_what_else_an_amqp_connection_needs_is_said() -> None:
    with pytest.raises(GatewayError, match="write amqp://host"):
        CLIENTS["amqp"](Connection(("localhost:5672",)))
    with pytest.raises(GatewayError, match="connectionproperties"):
        CLIENTS["amqp"](Connection(("amqp://h",), options={"connection-properties": {"a": 1}}))
    with pytest.raises(GatewayError, match="set both"):
        CLIENTS["amqp"](Connection(("amqps://h",), tls=Tls(certificate=Path("/nowhere/c.pem"))))


# Addresses of every protocol: servers, TLS and logins, and what is said of those that are none.


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
    ADDRESSES["brokers"],
)
def test_an_address_is_split_as_its_protocol_writes_it(kind: str, uri: str, tls: bool, url: str) -> None:
    (address,) = parse_addresses(sending_of(kind).address_form, Connection((uri,), tls=Tls() if tls else None))
    assert (address.url, address.tls) == (url, url.startswith(("mqtts", "amqps", "tls")))
    assert sending_of(kind).address_form.is_plain(uri, tls=tls) is not address.tls


# When certificates end is told as openssl tells it.


NAME = "xrouter_certificate_end_timestamp_seconds"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def told_by_openssl(certificate: Path) -> float:
    command = ["openssl", "x509", "-in", str(certificate), "-noout", "-enddate"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(ssl.cert_time_to_seconds(done.stdout.strip().removeprefix("notAfter=")))


@pytest.mark.parametrize("days", [2, 30 * 365])
def test_the_end_is_that_of_openssl(authority: Authority, days: int) -> None:
    pair = authority.sign("us", alternatives="DNS:localhost", days=days)
    chain = pair.certificate.read_text() + authority.certificate.read_text()
    assert parse_expiry(f"a note\n{chain}") == told_by_openssl(pair.certificate)


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 40, 100])
def test_what_is_no_certificate_is_told(authority: Authority, cut: int) -> None:
    whole = ssl.PEM_cert_to_DER_cert(authority.certificate.read_text())
    with pytest.raises(ValueError):
        parse_expiry(ssl.DER_cert_to_PEM_cert(whole[:cut]))
    with pytest.raises(ValueError):
        parse_expiry("no certificate")


def test_a_renewed_file_counts_where_it_is_read_anew(authority: Authority, tmp_path: Path) -> None:
    short, long = authority.sign("short"), authority.sign("long", days=90)
    ends = [told_by_openssl(each.certificate) for each in (short, long)]
    file = tmp_path / "tls.crt"
    file.write_bytes(short.certificate.read_bytes())
    registry = CollectorRegistry()
    registry.register(CertificateCollector({"http.tls": file, "none": tmp_path / "none"}, {"logins": file}))

    def told() -> list[float | None]:
        return [registry.get_sample_value(NAME, {"certificate": key}) for key in ("http.tls", "logins", "none")]

    assert told() == [ends[0], ends[0], None]
    file.write_bytes(long.certificate.read_bytes())
    os.utime(file, ns=(1, 1))
    assert told() == [ends[0], ends[1], None]
    file.unlink()
    assert told() == [ends[0], None, None]
