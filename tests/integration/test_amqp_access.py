"""Who the AMQP gateway and sender trust, and who lets them in: TLS, host names, passwords; and what is never shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bindings.amqp.publisher import AmqpSender
from bindings.gateways import BrokerLogin, Connection, Tls
from bindings.inbox import Inbox
from bindings.sending import Unsettled
from tests.support.amqp import ENDPOINT, SECONDS, amqp_message, queue_name, running
from tests.support.qpid import Certificates, QpidBroker, make_certificates
from tests.support.waiting import wait_until

USER, PASSWORD = "plant", "s3cret-Wört"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[QpidBroker]:
    server = QpidBroker(tmp_path_factory.mktemp("secure"), users={USER: PASSWORD}, certificates=certificates)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    opened = Inbox(tmp_path / "inbox")
    try:
        yield opened
    finally:
        opened.close()


def test_tls_and_a_password_let_in(secure: QpidBroker, certificates: Certificates, inbox: Inbox) -> None:
    connection = Connection((secure.uri,), BrokerLogin(USER, PASSWORD), Tls(certificates.ca))
    sender = AmqpSender(connection, container_id="s", timeout=SECONDS)
    queue = queue_name()
    assert sender.send([amqp_message(queue, b"x")]) == [None]
    sender.close()
    with running(connection, queue, inbox) as (gateway, counts):
        wait_until(lambda: counts.stored[ENDPOINT] == 1, SECONDS, lambda: f"the row; {gateway.trouble}")


@pytest.mark.parametrize("fault", ["authority", "system", "host", "password", "anonymous"])
def test_who_is_not_let_in_is_told(
    fault: str, secure: QpidBroker, certificates: Certificates, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    right = Connection((secure.uri,), BrokerLogin(USER, PASSWORD), Tls(certificates.ca))
    wrong = {
        "authority": replace(right, tls=Tls(certificates.other_ca)),
        "system": replace(right, tls=None),
        "host": replace(right, uris=(secure.uri.replace("localhost", "127.0.0.1"),)),
        "password": replace(right, login=BrokerLogin(USER, f"{PASSWORD}-not")),
        "anonymous": replace(right, login=BrokerLogin()),
    }[fault]
    caplog.set_level("DEBUG")
    with running(wrong, queue_name(), inbox) as (gateway, _):
        wait_until(lambda: gateway.trouble, SECONDS, "the trouble")
        told = gateway.trouble
        assert gateway.alive and not gateway.connected
    assert ("certificate" in told.lower()) == (fault in ("authority", "system", "host")), told
    assert ("unauthorized" in told) == (fault in ("password", "anonymous")), told
    with pytest.raises(Unsettled) as caught:
        AmqpSender(wrong, container_id="s", timeout=SECONDS).send([amqp_message("q.x", b"x")])
    assert PASSWORD not in f"{told}{caught.value}{caplog.text}"
