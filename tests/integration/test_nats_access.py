"""Who is let in by a NATS server, over TLS and not, and that no secret is told when somebody is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bindings.gateways import BrokerLogin, Connection, GatewayLimits, Tls
from bindings.nats.publisher import NatsMessage, NatsPublisher
from tests.support.nats import SECONDS, Kept, NatsServer, accounts, certificates, core, key, made, running
from tests.support.shop import Counts
from tests.support.waiting import wait_until


def secured(folder: Path, **tls: Any) -> tuple[NatsServer, Tls]:
    made_here = certificates(folder / "certificates")
    settings = {"cert_file": str(made_here.certificate), "key_file": str(made_here.key), **tls}
    return NatsServer(folder / "nats", tls=settings), Tls(ca=made_here.ca)


def test_tls_with_the_right_authority_and_a_client_certificate(tmp_path: Path) -> None:
    server, trust = secured(tmp_path, verify=True, ca_file=str(tmp_path / "certificates" / "ca.pem"))
    folder = tmp_path / "certificates"
    own = Tls(ca=trust.ca, certificate=folder / "cert.pem", key=folder / "key.pem")
    with server, running(Connection((server.uri,), tls=own), Kept(), core("a")):
        publisher = NatsPublisher(Connection((server.uri,), tls=own), name="test", timeout=10, stream=False)
        assert publisher.send([NatsMessage("a", b"1")]) == [None]
        publisher.close()
        assert str(server.port) in refused(Connection((server.uri,), tls=trust))


def test_tls_with_the_wrong_authority_or_another_name(tmp_path: Path) -> None:
    server, _ = secured(tmp_path)
    other = certificates(tmp_path / "other")
    with server:
        assert "not trusted" in refused(Connection((server.uri,), tls=Tls(ca=other.ca)))
    named = certificates(tmp_path / "named", "elsewhere.example")
    settings = {"cert_file": str(named.certificate), "key_file": str(named.key)}
    with NatsServer(tmp_path / "second", tls=settings) as elsewhere:
        assert "not trusted" in refused(Connection((elsewhere.uri,), tls=Tls(ca=named.ca)))


def test_credentials_are_not_sent_in_the_clear_when_tls_is_asked_for(tmp_path: Path) -> None:
    login = BrokerLogin(username="u", password="hidden")
    with NatsServer(tmp_path / "nats", authorization={"user": "u", "password": "hidden"}) as server:
        uri = server.uri.replace("nats:", "tls:")
        assert "does not offer TLS" in refused(Connection((uri,), login))
        with running(Connection((server.uri,), login), Kept(), core("a")):
            pass


def refused(connection: Connection) -> str:
    """Return the trouble of a gateway that is not let in."""
    gateway = made(connection, Kept(), core("a"), counts=Counts(), limits=GatewayLimits())
    gateway.start()
    try:
        wait_until(lambda: bool(gateway.trouble), SECONDS, "a trouble")
        assert not gateway.connected
        assert gateway.alive
        return gateway.trouble
    finally:
        gateway.stop(1)


def logins(folder: Path) -> dict[str, tuple[dict[str, Any], BrokerLogin, str]]:
    """Server settings, what is let in by them, and user information that counts in place of the login."""
    user = key()
    seed = folder / "user.seed"
    seed.write_text(user.seed)
    held = accounts(folder)
    return {
        "password": (
            {"authorization": {"user": "u", "password": "p/w"}},
            BrokerLogin(username="u", password="p/w"),
            "u:p%2Fw@",
        ),
        "token": ({"authorization": {"token": "t0ken"}}, BrokerLogin(token="t0ken"), "t0ken@"),
        "nkey": ({"authorization": {"users": [{"nkey": user.public}]}}, BrokerLogin(seed=seed), ""),
        "creds": ({**held.settings, "jetstream": False}, BrokerLogin(credentials=held.credentials), ""),
    }


@pytest.mark.parametrize("way", ["password", "token", "nkey", "creds"])
def test_logins(tmp_path: Path, way: str) -> None:
    settings, login, information = logins(tmp_path)[way]
    with NatsServer(tmp_path / "nats", **settings) as server:
        with running(Connection((server.uri,), login), Kept(), core("a")):
            pass
        if information:
            with running(Connection((server.uri.replace("//", f"//{information}"),)), Kept(), core("a")):
                pass
        wrong = Connection((server.uri.replace("//", "//u:hidden@"),), BrokerLogin(username="u", password="hidden"))
        for trouble in (refused(wrong), refused(Connection((server.uri,)))):
            assert "authorization" in trouble.lower()
            assert "hidden" not in trouble


def test_a_changed_password_needs_no_hand_here(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", authorization={"user": "u", "password": "old"})
    with (
        server,
        running(Connection((server.uri,), BrokerLogin(username="u", password="old")), Kept(), core("a")) as gateway,
    ):
        server.kill()
        server.configure(authorization={"user": "u", "password": "new"})
        server.start()
        wait_until(lambda: "authorization" in gateway.trouble.lower(), SECONDS, lambda: gateway.trouble)
        server.kill()
        server.configure(authorization={"user": "u", "password": "old"})
        server.start()
        wait_until(lambda: gateway.connected, SECONDS, lambda: gateway.trouble)
        assert gateway.trouble == ""


def test_a_forbidden_subject_is_told(tmp_path: Path) -> None:
    user = {"user": "u", "password": "p", "permissions": {"subscribe": ["allowed", "_INBOX.>"], "publish": [">"]}}
    with NatsServer(tmp_path / "nats", authorization={"users": [user]}) as server:
        connection = Connection((server.uri,), BrokerLogin(username="u", password="p"))
        gateway = made(connection, Kept(), core("forbidden"), counts=Counts(), limits=GatewayLimits())
        gateway.start()
        try:
            wait_until(lambda: "forbidden" in gateway.trouble, SECONDS, lambda: gateway.trouble)
            assert not gateway.connected
            gateway.replace_subscriptions([core("allowed")])
            wait_until(lambda: gateway.connected, SECONDS, lambda: gateway.trouble)
        finally:
            gateway.stop(1)
