"""How a registry's server ends: in its time, and with nothing left open when it never began."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event

from bindings.gateways import GatewayError
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
from tests.support.registry import served
from tests.support.waiting import wait_until
from tests.support.web import trickling

LIMIT = 60.0
GRACE = 2.0


def settings(folder: Path, metrics: tuple[str, int] | None = None) -> RegistrySettings:
    return RegistrySettings(f"sqlite:///{folder}/registry.db", port=0, metrics=metrics)


def opened(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    found: list[str] = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:
            continue
    return [each for each in found if each.startswith(str(folder))]


def writers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("registry-writer")]


def test_a_write_that_waits_for_another_process_does_not_hold_the_end_up(tmp_path: Path) -> None:
    server = RegistryServer(settings(tmp_path))
    server.start()
    url = f"http://127.0.0.1:{server.port}/messagegroups/g"
    with closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def ask() -> None:
            with suppress(httpx.HTTPError):  # the server ends before there is an answer
                httpx.put(url, json={}, timeout=LIMIT)

        asked = threading.Thread(target=ask, daemon=True)
        asked.start()
        wait_until(lambda: bool(writers()), LIMIT, "a write that waits")
        before = time.monotonic()
        server.stop(GRACE)
        took = time.monotonic() - before
        assert writers(), "the write waited for all the time"
        other.execute("ROLLBACK")
    assert took < 5 * GRACE
    wait_until(lambda: not writers(), LIMIT, "the end of the write")
    asked.join(LIMIT)


def test_nothing_is_open_where_the_port_of_metrics_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = RegistryServer(settings(tmp_path, ("127.0.0.1", taken.getsockname()[1])))
        with pytest.raises(GatewayError):
            server.start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port)).close()
    assert not opened(tmp_path)


# How long a webhook may take for an answer, whatever it sends meanwhile.


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


# A registry whose disk is full: 507 with a plain reason, no traceback, nothing half written, and reads go on.


PAGES = 400


@pytest.fixture
def little_room() -> Iterator[None]:
    """Let SQLite's files grow to so many pages only: from there on it answers as on a disk that is full."""

    def limit(connection: Any, _record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {PAGES}").close()

    event.listen(Engine, "connect", limit)
    yield
    event.remove(Engine, "connect", limit)


@pytest.mark.slow
def test_a_full_disk_answers_507(tmp_path: Path, little_room: None, caplog: pytest.LogCaptureFixture) -> None:
    body = {"description": "x" * 3000}
    with served(f"sqlite:///{tmp_path}/registry.db") as client:
        answers = [client.put(f"/endpoints/{number}", json=body) for number in range(PAGES)]
        full = next(each for each in answers if not each.is_success)
        assert full.status_code == 507
        assert full.json()["type"].endswith(":storage_full") and "disk is full" in full.json()["title"]
        refused = full.request.url.path
        assert client.get(refused).status_code == 404
        assert client.get("/endpoints/0").json()["description"] == body["description"]
    assert "Traceback" not in caplog.text
