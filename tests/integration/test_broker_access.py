"""Who gateways and publishers trust, and who lets them in: TLS, host names, logins; and what is never shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from bindings.gateways import BrokerLogin, Connection, Tls
from bindings.sending import Outbound, Unsettled
from tests.support.gateways import PEERS, SECONDS, Peer, Rows, peer_for_tests, running, started
from tests.support.mqtt import Mosquitto, Security
from tests.support.nats import NatsServer
from tests.support.ports import Authority
from tests.support.qpid import make_certificates
from tests.support.waiting import wait_until

USER, PASSWORD = "plant", "s3cret/W0rd"
CERTIFICATE_FAULTS: Final = ("authority", "system", "host")


@pytest.fixture(scope="module", params=sorted(PEERS))
def secure(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Peer, Connection, Path]]:
    """A broker with a certificate for localhost alone, the right connection to it, and a wrong authority."""
    folder = tmp_path_factory.mktemp("secure")
    files = make_certificates(folder / "certificates")
    with peer_for_tests(request.param, folder, server=files, user=USER, password=PASSWORD) as peer:
        uri = peer.uri.replace("127.0.0.1", "localhost")
        yield peer, Connection((uri,), BrokerLogin(USER, PASSWORD), Tls(files.ca)), files.other_ca


def some(peer: Peer) -> Outbound:
    return Outbound(peer.place("a"), (), b"1", "", "1")


@pytest.mark.parametrize("within", [False, True], ids=["settings", "uri"])
def test_who_is_trusted_is_let_in(secure: tuple[Peer, Connection, Path], within: bool) -> None:
    peer, connection, _ = secure
    if within:
        address = connection.uris[0].replace("//", f"//{USER}:{quote(PASSWORD, safe='')}@")
        connection = replace(connection, uris=(address,), login=BrokerLogin())
    rows = Rows()
    with running(peer.protocol, connection, [peer.wanted("a")], rows) as gateway:
        with closing(peer.publisher(connection)) as publisher:
            assert publisher.send([some(peer)]) == [None]
        rows.wait(1)
        assert gateway.trouble == ""


@pytest.mark.parametrize("fault", [*CERTIFICATE_FAULTS, "password", "anonymous"])
def test_who_is_not_let_in_is_told(
    secure: tuple[Peer, Connection, Path], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer, right, other = secure
    wrong = {
        "authority": replace(right, tls=Tls(other)),
        "system": replace(right, tls=None),
        "host": replace(right, uris=(right.uris[0].replace("localhost", "127.0.0.1"),)),
        "password": replace(right, login=BrokerLogin(USER, f"{PASSWORD}-not")),
        "anonymous": replace(right, login=BrokerLogin()),
    }[fault]
    caplog.set_level("DEBUG")
    with started(peer.protocol, wrong, [peer.wanted("a")], Rows()) as gateway:
        told = wait_until(lambda: gateway.trouble, SECONDS, "the trouble")
        assert gateway.alive and not gateway.connected
    assert ("certificate" in told.lower()) == (fault in CERTIFICATE_FAULTS), told
    assert ("uthoriz" in told.lower()) == (fault not in CERTIFICATE_FAULTS), told
    with closing(peer.publisher(wrong, 2.0)) as publisher, pytest.raises(Unsettled) as caught:
        publisher.send([some(peer)])
    assert PASSWORD not in f"{told}{caught.value}{caplog.text}"


@pytest.mark.parametrize("kind", ["mqtt", "nats"])
def test_a_client_certificate_is_shown(kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server, own = authority.sign("server", alternatives="IP:127.0.0.1"), authority.sign("client")
    ca = authority.certificate
    broker: Mosquitto | NatsServer
    if kind == "mqtt":
        broker = Mosquitto(tmp_path / "broker", Security(server=server, clients=ca))
    else:
        tls = {"cert_file": str(server.certificate), "key_file": str(server.key), "verify": True, "ca_file": str(ca)}
        broker = NatsServer(tmp_path / "broker", tls=tls)
    with broker:
        right = Connection((broker.uri,), tls=Tls(ca, own.certificate, own.key))
        with running(PEERS[kind].protocol, right, {"/endpoints/e": "t"}, Rows()):
            pass
        with started(PEERS[kind].protocol, replace(right, tls=Tls(ca)), {"/endpoints/e": "t"}, Rows()) as gateway:
            wait_until(lambda: gateway.trouble, SECONDS, "the trouble")
            assert not gateway.connected
