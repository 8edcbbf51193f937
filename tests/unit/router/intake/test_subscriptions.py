"""Subscriptions of a router: made once, renewed, found again after a crash, and ended in order and in time."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bindings.http.client import SubscriptionFailed, SubscriptionManager
from catalog.documents.connecting import Logins, OriginLogin
from catalog.load import load
from router.errors import ConfigError
from router.evaluation.plan import Plan
from router.intake.intake import Intake, open_local_store
from router.intake.subscriptions import FOLDER_NAME, REQUEST_SECONDS, RouterSubscriptions
from router.settings import Settings
from router.sources import resolve_sources
from router.state.state import StateFolder
from router.watching.metrics import Metrics, SubscriptionMetrics
from router.watching.status import RouterStatus
from tests.support.ports import free_ports
from tests.support.subscriptions import (
    ENDPOINT,
    GATEWAY,
    LIMIT,
    PATH,
    SINK,
    Manager,
    Router,
    managing,
    settings_of,
)
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook, trickling


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def server(manager: Manager) -> Iterator[Webhook]:
    with managing(manager) as webhook:
        yield webhook


# Subscriptions of a router: made once, renewed, found again after a crash, and ended in order.


@pytest.mark.slow
def test_it_is_made_as_asked_renewed_and_deleted(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    manager.lasts = timedelta(seconds=3)
    asked: dict[str, Any] = {
        "source": "https://s.example",
        "types": ["told"],
        "prefix": {"subject": "/messagecatalog/5"},
    }
    router = Router(tmp_path, server.url, **asked).start().until_ready()
    (made,) = manager.held.values()
    assert {name: made[name] for name in ("protocol", "sink", "source", "types", "filter")} == {
        "protocol": "HTTP",
        "sink": SINK,
        "source": "https://s.example",
        "types": ["told"],
        "filter": {"prefix": {"subject": "/messagecatalog/5"}},
    }
    wait_until(lambda: router.requests("renew") >= 2, LIMIT, lambda: str(manager.seen))
    assert router.registry.get_sample_value("xrouter_subscription_up", {"endpoint": ENDPOINT}) == 1
    assert router.requests("create") == 1
    router.stop()
    assert manager.held == {}
    assert not list((tmp_path / "state" / FOLDER_NAME).iterdir())


def test_a_crash_does_not_double_it(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    for _ in range(3):
        router = Router(tmp_path, server.url).start().until_ready()
        router.stop(in_order=False)
    assert list(manager.held) == ["s1"]
    assert [method for method, _ in manager.seen] == ["POST", "PUT", "PUT"]


def test_what_is_kept_is_not_deleted(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    Router(tmp_path, server.url, keep=True).start().until_ready().stop()
    Router(tmp_path, server.url).start().until_ready().stop()
    assert [method for method, _ in manager.seen] == ["POST", "PUT", "DELETE"]


def test_a_crash_while_it_is_made_leaves_one(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    # The manager makes one, and nobody hears of it.
    def silent(request: Taken) -> Answer | None:
        if request.method == "POST":
            manager.held[f"lost{len(manager.held)}"] = json.loads(request.body)
            return Answer(503, {"Retry-After": "1"})
        return Answer(503) if request.method == "GET" else None

    manager.before = silent
    manager.held["other"] = {"sink": "http://elsewhere.example/"}
    router = Router(tmp_path, server.url).start()
    wait_until(lambda: "lost1" in manager.held, LIMIT, "the first try")
    router.stop(in_order=False)
    manager.held["lost2"] = dict(manager.held["lost1"])
    manager.before = lambda request: None
    Router(tmp_path, server.url).start().until_ready().stop(in_order=False)
    assert sorted(manager.held) == ["lost1", "other"]
    assert ("POST", PATH) not in manager.seen[-3:]


def test_one_that_its_manager_forgot_is_made_anew(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    Router(tmp_path, server.url).start().until_ready().stop(in_order=False)
    manager.held.clear()
    Router(tmp_path, server.url).start().until_ready().stop(in_order=False)
    assert list(manager.held) == ["s2"]


def test_a_manager_that_is_away_is_asked_again(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    server.close()
    router = Router(tmp_path, server.url).start()
    wait_until(lambda: router.requests("create", "error") >= 1, LIMIT, "a try")
    wait_until(lambda: "onnection" in str(router.status.check_readiness()[1]["gateways"][GATEWAY]), LIMIT, "the reason")
    server.open()
    router.until_ready()
    router.stop()
    assert manager.held == {}


@pytest.mark.parametrize(("status", "hint"), [(401, "catalog.logins"), (403, "catalog.logins"), (400, "can reach")])
def test_a_refusal_says_what_to_do(tmp_path: Path, manager: Manager, server: Webhook, status: int, hint: str) -> None:
    manager.before = lambda request: Answer(status, {}, b'{"detail": "no\\nway"}')
    with capture_logs() as logged:
        router = Router(tmp_path, server.url).start()
        wait_until(lambda: router.requests("create", "error") >= 1, LIMIT, "a refusal")
        wait_until(
            lambda: "no way" in str(router.status.check_readiness()[1]["reasons"]),
            LIMIT,
            lambda: str(router.status.check_readiness()),
        )
        router.stop()
    said = str(logged)
    assert hint in said and "subscription failed" in said


def test_who_we_are_is_shown_to_the_manager_alone(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    shown: list[str | None] = []

    def note(request: Taken) -> Answer | None:
        shown.append(request.header("authorization"))
        return None

    manager.before = note
    logins = Logins([OriginLogin(server.url, bearer="t0ken"), OriginLogin("http://127.0.0.1:9", bearer="other")])
    url = f"{server.url}{PATH}"
    Router(tmp_path, server.url, logins, manager=url).start().until_ready().stop()
    assert set(shown) == {"Bearer t0ken"}


def test_another_manager_takes_over(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    Router(tmp_path, server.url).start().until_ready().stop(in_order=False)
    after = Manager()
    with managing(after) as other:
        Router(tmp_path, other.url).start().until_ready().stop(in_order=False)
    assert (list(manager.held), list(after.held)) == ([], ["s1"])


@contextmanager
def taking(tmp_path: Path, url: str, **subscription: Any) -> Iterator[Callable[[], float]]:
    """Take what a manager delivers with a gateway; gives what tells how many messages are on the disk."""
    (port,) = free_ports(1)
    sink = f"http://127.0.0.1:{port}/news/of/today"
    settings = settings_of(tmp_path, url, sink=sink, **subscription).model_copy(
        update={"http": Settings.model_fields["http"].default.model_copy(update={"port": port})}
    )
    plan = Plan(load([tmp_path / "catalog.json"]), settings)
    metrics, status = Metrics(), RouterStatus(routes=False)
    subscriptions = RouterSubscriptions(
        tmp_path / "state", Logins(), status, lambda: SubscriptionMetrics(metrics.registry)
    )
    with StateFolder.open(tmp_path / "state") as state:
        intake = Intake(settings, metrics, status, lambda: open_local_store(settings, state))
        try:
            status.set_catalog("e", 1)
            intake.receive_for_plan(plan)
            subscriptions.follow_sources(plan.sources)
            wait_until(lambda: status.check_readiness()[0], LIMIT, lambda: str(status.check_readiness()))
            labels = {"endpoint": ENDPOINT}
            name = "xrouter_gateway_acknowledged_total"
            yield lambda: metrics.registry.get_sample_value(name, labels) or 0.0
        finally:
            subscriptions.stop(10.0, in_order=True)
            intake.close()


def test_what_is_delivered_comes_by_the_gateway(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    manager.asks_sinks = True
    with taking(tmp_path, server.url) as counted:
        assert manager.deliver("told", "1") == [202]
        assert counted() == 1
    assert manager.held == {}


def test_a_subscription_needs_a_manager_and_http(tmp_path: Path) -> None:
    def sources(endpoint: dict[str, Any]) -> Callable[[], object]:
        settings = settings_of(tmp_path, "http://m.example")
        (tmp_path / "catalog.json").write_text(json.dumps({"endpoints": {"news": endpoint}}))
        return lambda: resolve_sources(load([tmp_path / "catalog.json"]), settings)

    with pytest.raises(ConfigError, match="no subscription manager"):
        sources({"usage": ["subscriber"], "protocol": "HTTP"})()
    with pytest.raises(ConfigError, match="delivers by HTTP"):
        sources({"usage": ["subscriber"], "protocol": "NATS"})()


# Subscriptions that end: deleted in time, followed by another, or over by the clock.


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
