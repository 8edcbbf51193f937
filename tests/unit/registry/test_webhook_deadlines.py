"""How long a webhook may take for an answer, whatever it sends meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from bindings.protocols import BINDINGS
from bindings.sending import Outbound
from registry.delivery.subscriptions import (
    DeliveryLimits,
    DeliverySettings,
    EventFilter,
    EventMessages,
    SubscriberDelivery,
)
from registry.delivery.targets import Webhook, WebhookSender
from registry.http.server import RegistryServer, RegistrySettings
from registry.replication.peers import Peer
from tests.support.waiting import wait_until
from tests.support.web import trickling

HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
"""An interim answer, of which there may be any number."""
HEADER = b"HTTP/1.1 204 No Content\r\nX-Long: "
DRIPS = pytest.mark.parametrize(("first", "drop"), [(HINTS, HINTS), (HEADER, b"x")], ids=["hints", "header"])


def working() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "http-call"]


@DRIPS
@pytest.mark.parametrize("origin", ["", "reg.example"], ids=["event", "handshake"])
def test_an_answer_that_never_ends_is_given_up(first: bytes, drop: bytes, origin: str) -> None:
    with trickling(first, drop) as (url, _):
        sender = WebhookSender(Webhook(timeout=0.3, origin=origin))
        begun = time.monotonic()
        verdicts = sender.send([Outbound(url, (), b"", lane, lane) for lane in "abcdef"])
        assert time.monotonic() - begun < 20
        assert {each.kind for each in verdicts} == {"away"}
        assert f"{url} does not answer within 0.9 s" in {each.reason for each in verdicts}
        wait_until(lambda: not working(), 20, "the end of the requests")
        sender.close()


@pytest.mark.slow
def test_all_parts_of_a_server_end_by_one_grace(tmp_path: Path) -> None:
    grace = 4.0
    with trickling(HINTS, HINTS) as (url, _), trickling(HEADER, b"x") as (peer, asked):
        composer = EventMessages(BINDINGS["HTTP"], lambda _: url, "structured")
        subscriber = SubscriberDelivery(EventFilter(), composer, lambda: WebhookSender(Webhook(timeout=600.0)))
        delivery = DeliverySettings({"audit": subscriber}, limits=DeliveryLimits())
        peers = (Peer(f"{peer}/messagecatalog", interval=0.05),)
        store = f"sqlite:///{tmp_path}/r.db"
        server = RegistryServer(RegistrySettings(store, port=0, delivery=delivery, authority="urn:us", peers=peers))
        server.start()
        held = socket.create_connection(("127.0.0.1", server.port))
        with held:
            held.sendall(b"PUT /messagegroups/h HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert httpx.put(f"http://127.0.0.1:{server.port}/messagegroups/g", json={}, timeout=30).is_success
            wait_until(lambda: bool(working()) and asked() > 0, 20, "a request to the webhook and one to the peer")
            begun = time.monotonic()
            server.stop(grace)
            assert time.monotonic() - begun < 1.5 * grace
