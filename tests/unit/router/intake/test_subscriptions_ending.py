"""Subscriptions that end: deleted in time, followed by another, or over by the clock."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bindings.http.client import SubscriptionFailed, SubscriptionManager
from router.intake.subscriptions import REQUEST_SECONDS
from tests.support.subscriptions import ENDPOINT, GATEWAY, LIMIT, PATH, Manager, Router
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook, trickling


def test_a_source_that_goes_takes_its_subscription_along(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    router = Router(tmp_path, server.url).start().until_ready()
    router.subscriptions.follow_sources(())
    assert GATEWAY not in router.status.check_readiness()[1]["gateways"]
    wait_until(lambda: manager.held == {}, LIMIT, "the subscription to be deleted")
    assert GATEWAY not in router.status.check_readiness()[1]["gateways"]


def folder_in(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_one_thread_at_a_time_works_on_a_subscription(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    asked, answered = threading.Event(), threading.Event()

    def late(request: Taken) -> Answer | None:
        if request.method == "POST":
            asked.set()
            answered.wait(LIMIT)
        return None

    manager.before = late
    router = Router(tmp_path, server.url).start()
    try:
        assert asked.wait(LIMIT)
        changed = Router(tmp_path, server.url, types=["told"]).sources
        before = time.monotonic()
        for _ in range(3):
            router.subscriptions.follow_sources(changed)
        assert time.monotonic() - before < REQUEST_SECONDS
        assert manager.seen == [("POST", PATH)]
        answered.set()

        def renewed() -> bool:
            router.subscriptions.follow_sources(changed)
            return [each.get("types") for each in manager.held.values()] == [["told"]]

        wait_until(renewed, LIMIT, lambda: str(manager.held))
        assert manager.seen[1:] == [("PUT", f"{PATH}/s1")]
    finally:
        answered.set()
        router.stop()
    assert manager.held == {}


def test_one_that_is_changed_and_then_goes_is_deleted(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    router = Router(tmp_path, server.url).start().until_ready()
    for sources in (Router(tmp_path, server.url, types=["told"]).sources, ()):
        router.subscriptions.follow_sources(sources)
    wait_until(lambda: manager.held == {}, LIMIT, "the subscription to be deleted")
    router.stop()


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_all_subscriptions_end_by_one_deadline(tmp_path: Path, head: bytes) -> None:
    with trickling(head) as (url, count):
        routers = [Router(folder_in(tmp_path, name), url) for name in "abcdefghijkl"]
        several = tuple(replace(each.sources[0], endpoint=f"/endpoints/{n}") for n, each in enumerate(routers))
        router = routers[0]
        router.subscriptions.follow_sources(several)
        wait_until(lambda: count() == 12, LIMIT, "a request of each")
        before = time.monotonic()
        router.subscriptions.stop(1.0, in_order=True)
        assert time.monotonic() - before < 8, "less than a second for each"


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: x\r\n"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
    ids=["in its body", "in a header", "header by header", "hint by hint"],
)
def test_an_answer_that_trickles_has_an_end(head: bytes, drop: bytes) -> None:
    with trickling(head, drop) as (url, _):
        manager = SubscriptionManager(url, lambda: "", ssl.create_default_context, seconds=1.0)
        before = time.monotonic()
        with pytest.raises(SubscriptionFailed, match="too long"):
            manager.delete(f"{url}/s1")
        assert time.monotonic() - before < LIMIT / 2


def test_a_name_that_takes_long_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    def resolved(*_: object, **__: object) -> list[object]:
        told.wait(LIMIT)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    manager = SubscriptionManager("http://far.example/", lambda: "", ssl.create_default_context, seconds=1.0)
    before = time.monotonic()
    with pytest.raises(SubscriptionFailed, match="too long"):
        manager.delete("http://far.example/s1")
    took = time.monotonic() - before
    told.set()
    assert took < LIMIT / 2


def test_what_authorization_takes_counts(manager: Manager, server: Webhook) -> None:
    def slow() -> str:
        before = time.monotonic()
        wait_until(lambda: time.monotonic() - before > 0.6, LIMIT, "more time than there is")
        return "Bearer t"

    patient = SubscriptionManager(server.url, slow, ssl.create_default_context, seconds=0.5)
    with pytest.raises(SubscriptionFailed, match="too long"):
        patient.delete(f"{server.url}/s1")
    assert not server.taken


@pytest.mark.slow
def test_a_pause_that_a_manager_asks_for_does_not_hide_the_end(
    tmp_path: Path, manager: Manager, server: Webhook
) -> None:
    manager.lasts = timedelta(seconds=2)
    router = Router(tmp_path, server.url).start().until_ready()
    manager.before = lambda request: Answer(503, {"Retry-After": "3600"})
    wait_until(lambda: router.requests("renew", "error") >= 1, LIMIT, "a renewal that fails")
    wait_until(lambda: not router.status.check_readiness()[0], LIMIT, "the end of the subscription")
    assert "503" in str(router.status.check_readiness()[1]["gateways"][GATEWAY])
    assert router.registry.get_sample_value("xrouter_subscription_up", {"endpoint": ENDPOINT}) == 0
    router.stop(in_order=False)


@pytest.mark.slow
def test_an_end_in_the_past_is_not_renewed_for_ever(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    manager.lasts = timedelta(hours=-1)
    with capture_logs() as logged:
        router = Router(tmp_path, server.url, lasts="8s").start().until_ready()
        made = time.monotonic()
        wait_until(lambda: router.requests("renew") >= 1, LIMIT, "a renewal")
        assert time.monotonic() - made > 2.0, "half of what was asked for is four seconds"
        assert router.status.check_readiness()[0]
        router.stop()
    assert "compare the clocks" in str(logged)
