"""Subscriptions of a router: made once, renewed, found again after a crash, and ended in order."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bindings.http.subscribing import SubscriptionFailed, SubscriptionManager
from catalog.documents.logins import Login, Logins
from catalog.load import load
from router.errors import ConfigError
from router.intake.intake import Intake, local_store
from router.intake.subscribing import REQUEST_SECONDS
from router.intake.subscriptions import FOLDER, Subscriptions
from router.judging.plan import Plan
from router.settings import Settings, settings_from_dict
from router.sources.sources import Source, sources_of
from router.state.state import State
from router.watching.metrics import Metrics
from router.watching.status import Status
from router.watching.subscriptions import SubscriptionMetrics
from tests.support.ports import free_ports
from tests.support.subscribed import change, registry
from tests.support.subscription_manager import PATH, Manager, managing
from tests.support.waiting import wait_until
from tests.support.webhook import Answer, Taken, Webhook

LIMIT = 60.0
ENDPOINT = "/endpoints/news"
SINK = "http://127.0.0.1:9/news"
GATEWAY = f"subscription {ENDPOINT}"


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def server(manager: Manager) -> Iterator[Webhook]:
    with managing(manager) as webhook:
        yield webhook


def settings_of(folder: Path, url: str, **subscription: Any) -> Settings:
    endpoint = {
        "usage": ["subscriber"],
        "protocol": "HTTP",
        "envelope": "CloudEvents/1.0",
        "protocoloptions": {"endpoints": [{"uri": f"{url}{PATH}"}]},
        "messages": {"m": {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "told"}}}},
    }
    (folder / "catalog.json").write_text(json.dumps({"endpoints": {"news": endpoint}}))
    out = {"type": "jsonl", "path": str(folder / "out")}
    dead = {"type": "jsonl", "path": str(folder / "dead")}
    return settings_from_dict(
        {
            "catalog": {"source": str(folder / "catalog.json")},
            "sources": [{"endpoint": ENDPOINT, "subscription": {"sink": SINK, **subscription}}],
            "sinks": {"out": out, "dead": dead},
            "routes": [{"to": ["out"]}],
            "dead_letters": {"sinks": ["dead"]},
            "state": str(folder / "state"),
        },
        {},
        folder,
    )


class Router:
    """What of a router holds subscriptions."""

    def __init__(self, folder: Path, url: str, logins: Logins | None = None, **subscription: Any) -> None:
        settings = settings_of(folder, url, **subscription)
        self.sources: tuple[Source, ...] = sources_of(load([folder / "catalog.json"]), settings)
        self.status = Status(routes=False)
        self.status.catalog("e", 1)
        self.registry = CollectorRegistry()
        metrics = SubscriptionMetrics(self.registry)
        self.subscriptions = Subscriptions(folder / "state", logins or Logins(), self.status, lambda: metrics)

    def start(self) -> Router:
        self.subscriptions.follow(self.sources)
        return self

    def until_ready(self) -> Router:
        wait_until(lambda: self.status.ready()[0], LIMIT, lambda: str(self.status.ready()))
        return self

    def requests(self, action: str, result: str = "ok") -> float:
        labels = {"endpoint": ENDPOINT, "action": action, "result": result}
        return self.registry.get_sample_value("xrouter_subscription_requests_total", labels) or 0.0

    def stop(self, *, in_order: bool = True) -> None:
        self.subscriptions.stop(10.0, in_order=in_order)


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
    assert not list((tmp_path / "state" / FOLDER).iterdir())


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
    wait_until(lambda: "Connection" in str(router.status.ready()[1]["gateways"][GATEWAY]), LIMIT, "the reason")
    server.open()
    router.until_ready()
    router.stop()
    assert manager.held == {}


def test_what_cannot_be_renewed_lasts_until_its_end(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    manager.lasts = timedelta(seconds=20)
    router = Router(tmp_path, server.url, lasts="2s").start().until_ready()
    server.close()
    wait_until(lambda: router.requests("renew", "error") >= 1, LIMIT, "a renewal that fails")
    assert router.status.ready()[0]
    wait_until(lambda: not router.status.ready()[0], LIMIT, "the end of the subscription")
    router.stop()


@pytest.mark.parametrize(("status", "hint"), [(401, "catalog.logins"), (403, "catalog.logins"), (400, "can reach")])
def test_a_refusal_says_what_to_do(
    tmp_path: Path, manager: Manager, server: Webhook, capfd: pytest.CaptureFixture[str], status: int, hint: str
) -> None:
    manager.before = lambda request: Answer(status, {}, b'{"detail": "no\\nway"}')
    router = Router(tmp_path, server.url).start()
    wait_until(lambda: router.requests("create", "error") >= 1, LIMIT, "a refusal")
    wait_until(lambda: "no way" in str(router.status.ready()[1]["reasons"]), LIMIT, lambda: str(router.status.ready()))
    router.stop()
    said = "".join(capfd.readouterr())
    assert hint in said and "is not granted" in said


def test_who_we_are_is_shown_to_the_manager_alone(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    shown: list[str | None] = []

    def note(request: Taken) -> Answer | None:
        shown.append(request.header("authorization"))
        return None

    manager.before = note
    logins = Logins([Login(server.url, bearer="t0ken"), Login("http://127.0.0.1:9", bearer="other")])
    url = f"{server.url}{PATH}"
    Router(tmp_path, server.url, logins, manager=url).start().until_ready().stop()
    assert set(shown) == {"Bearer t0ken"}


def test_another_manager_takes_over(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    Router(tmp_path, server.url).start().until_ready().stop(in_order=False)
    after = Manager()
    with managing(after) as other:
        Router(tmp_path, other.url).start().until_ready().stop(in_order=False)
    assert (list(manager.held), list(after.held)) == ([], ["s1"])


def test_a_source_that_goes_takes_its_subscription_along(tmp_path: Path, manager: Manager, server: Webhook) -> None:
    router = Router(tmp_path, server.url).start().until_ready()
    router.subscriptions.follow(())
    assert GATEWAY not in router.status.ready()[1]["gateways"]
    wait_until(lambda: manager.held == {}, LIMIT, "the subscription to be deleted")
    assert GATEWAY not in router.status.ready()[1]["gateways"]


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
            router.subscriptions.follow(changed)
        assert time.monotonic() - before < REQUEST_SECONDS
        assert manager.seen == [("POST", PATH)]
        answered.set()

        def renewed() -> bool:
            router.subscriptions.follow(changed)
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
        router.subscriptions.follow(sources)
    wait_until(lambda: manager.held == {}, LIMIT, "the subscription to be deleted")
    router.stop()


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_all_subscriptions_end_by_one_deadline(tmp_path: Path, head: bytes) -> None:
    with trickling(head) as (url, count):
        routers = [Router(folder_in(tmp_path, name), url) for name in "abc"]
        several = tuple(replace(each.sources[0], endpoint=f"/endpoints/{n}") for n, each in enumerate(routers))
        router = routers[0]
        router.subscriptions.follow(several)
        wait_until(lambda: count() == 3, LIMIT, "three requests")
        before = time.monotonic()
        router.subscriptions.stop(1.0, in_order=True)
        assert time.monotonic() - before < 2.5


def test_an_answer_that_trickles_has_an_end() -> None:
    with trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n") as (url, _):
        manager = SubscriptionManager(url, lambda: "", ssl.create_default_context, seconds=1.0)
        before = time.monotonic()
        with pytest.raises(SubscriptionFailed, match="too long"):
            manager.delete(f"{url}/s1")
        assert time.monotonic() - before < LIMIT / 2


def test_a_pause_that_a_manager_asks_for_does_not_hide_the_end(
    tmp_path: Path, manager: Manager, server: Webhook
) -> None:
    manager.lasts = timedelta(seconds=2)
    router = Router(tmp_path, server.url).start().until_ready()
    manager.before = lambda request: Answer(503, {"Retry-After": "3600"})
    wait_until(lambda: router.requests("renew", "error") >= 1, LIMIT, "a renewal that fails")
    wait_until(lambda: not router.status.ready()[0], LIMIT, "the end of the subscription")
    assert "503" in str(router.status.ready()[1]["gateways"][GATEWAY])
    assert router.registry.get_sample_value("xrouter_subscription_up", {"endpoint": ENDPOINT}) == 0
    router.stop(in_order=False)


def test_an_end_in_the_past_is_not_renewed_for_ever(
    tmp_path: Path, manager: Manager, server: Webhook, capfd: pytest.CaptureFixture[str]
) -> None:
    manager.lasts = timedelta(hours=-1)
    router = Router(tmp_path, server.url, lasts="8s").start().until_ready()
    made = time.monotonic()
    wait_until(lambda: router.requests("renew") >= 1, LIMIT, "a renewal")
    assert time.monotonic() - made > 2.0, "half of what was asked for is four seconds"
    assert router.status.ready()[0]
    router.stop()
    assert "compare the clocks" in "".join(capfd.readouterr())


def folder_in(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


@contextmanager
def trickling(head: bytes) -> Iterator[tuple[str, Callable[[], int]]]:
    """Serve answers that begin with *head* and then come byte by byte; gives what tells how many were asked for."""
    ended, asked = threading.Event(), list[bytes]()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.request.recv(65536))
            with suppress(OSError):
                self.request.sendall(head)
                while not ended.wait(0.1):
                    self.request.sendall(b" " if head else b"")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", lambda: len(asked)
        finally:
            ended.set()
            server.shutdown()
            thread.join()


@contextmanager
def taking(tmp_path: Path, url: str, **subscription: Any) -> Iterator[Callable[[], float]]:
    """Take what a manager delivers with a gateway; gives what tells how many messages are on the disk."""
    (port,) = free_ports(1)
    sink = f"http://127.0.0.1:{port}/news/of/today"
    settings = settings_of(tmp_path, url, sink=sink, **subscription).model_copy(
        update={"http": Settings.model_fields["http"].default.model_copy(update={"port": port})}
    )
    plan = Plan(load([tmp_path / "catalog.json"]), settings)
    metrics, status = Metrics(), Status(routes=False)
    subscriptions = Subscriptions(tmp_path / "state", Logins(), status, lambda: SubscriptionMetrics(metrics.registry))
    with State.open(tmp_path / "state") as state:
        intake = Intake(settings, metrics, status, lambda: local_store(settings, state))
        try:
            status.catalog("e", 1)
            intake.take(plan)
            subscriptions.follow(plan.sources)
            wait_until(lambda: status.ready()[0], LIMIT, lambda: str(status.ready()))
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


def test_our_own_registry_is_such_a_manager(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    with registry(tmp_path / "registry") as client:
        with taking(tmp_path, str(client.base_url).rstrip("/"), lasts="3s") as counted:
            (held,) = client.get(PATH).json()
            ends = held["expiration"]
            wait_until(
                lambda: client.get(PATH).json()[0]["expiration"] != ends, LIMIT, "the subscription to be renewed"
            )
            change(client, "m", "new")
            wait_until(lambda: counted() >= 1, LIMIT, "an event of the registry")
            assert len(client.get(PATH).json()) == 1
        assert client.get(PATH).json() == []


@pytest.mark.parametrize(
    ("subscription", "says"),
    [
        ({"lasts": "1s"}, "too short"),
        ({"token": "${T}"}, "manager: is missing"),
        ({"token": "${T}", "manager": "https://m.example/s"}, "without TLS"),
        ({"sink": "ftp://h/"}, "sink"),
    ],
)
def test_settings_that_contradict_themselves(tmp_path: Path, subscription: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings_from_dict(
            {
                "sources": [{"endpoint": ENDPOINT, "subscription": {"sink": SINK, **subscription}}],
                "state": str(tmp_path / "state"),
            },
            {"T": "t"},
            tmp_path,
        )
    assert says in "\n".join(error.value.problems)


def test_each_subscription_has_a_sink_of_its_own(tmp_path: Path) -> None:
    sources = [{"endpoint": f"/endpoints/{name}", "subscription": {"sink": SINK}} for name in "ab"]
    with pytest.raises(ConfigError, match="of another source"):
        settings_from_dict({"sources": sources, "state": str(tmp_path / "state")}, {}, tmp_path)


def test_a_subscription_needs_a_manager_and_http(tmp_path: Path) -> None:
    def sources(endpoint: dict[str, Any]) -> Callable[[], object]:
        settings = settings_of(tmp_path, "http://m.example")
        (tmp_path / "catalog.json").write_text(json.dumps({"endpoints": {"news": endpoint}}))
        return lambda: sources_of(load([tmp_path / "catalog.json"]), settings)

    with pytest.raises(ConfigError, match="no subscription manager"):
        sources({"usage": ["subscriber"], "protocol": "HTTP"})()
    with pytest.raises(ConfigError, match="delivers by HTTP"):
        sources({"usage": ["subscriber"], "protocol": "NATS"})()
