"""Subscriptions of a router: made once, renewed, found again after a crash, and ended in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from catalog.documents.connecting import Logins, OriginLogin
from catalog.load import load
from router.errors import ConfigError
from router.evaluation.plan import Plan
from router.intake.intake import Intake, open_local_store
from router.intake.subscriptions import FOLDER_NAME, RouterSubscriptions
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
from tests.support.web import Answer, Taken, Webhook


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
