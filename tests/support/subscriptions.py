"""A registry and a webhook that is told of its changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from catalog.documents.connecting import Logins
from catalog.load import load
from registry.delivery.subscriptions import DeliveryLimits, DeliverySettings
from registry.store.engine import OUTBOX, open_database
from router.intake.subscriptions import RouterSubscriptions
from router.settings import Settings, settings_from_dict
from router.sources import Source, resolve_sources
from router.watching.metrics import SubscriptionMetrics
from router.watching.status import RouterStatus
from tests.support import plain
from tests.support.registry import served
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

LIMIT = 60.0
ALLOWS = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}


def agreeable(request: Taken) -> Answer:
    """Allow what is asked, and take what is sent."""
    return Answer(200, ALLOWS) if request.method == "OPTIONS" else Answer(204)


@contextmanager
def registry(store: Path | str, limits: DeliveryLimits | None = None, **given: Any) -> Iterator[httpx.Client]:
    """Serve a registry whose subscriptions may name this machine."""
    delivery = {
        "allowed": ("127.0.0.1",),
        "limits": limits or DeliveryLimits(max_pause=0.2),
        **given.pop("delivery", {}),
    }
    with served(store, delivery=DeliverySettings(**delivery), **given) as client:
        yield client


def subscribe(client: httpx.Client, hook: Webhook, **more: Any) -> str:
    """Subscribe a webhook; return the id of its subscription."""
    answer = client.post("/subscriptions", json={"protocol": "HTTP", "sink": f"{hook.url}/hook", **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def events(hook: Webhook) -> list[dict[str, Any]]:
    """Return the events that a webhook has taken; of those in binary mode the attributes alone."""
    return [each.attributes() if each.header("ce-id") else json.loads(each.body) for each in hook.taken]


def until_taken(hook: Webhook, count: int) -> list[dict[str, Any]]:
    """Wait until a webhook has taken as many events, and return them."""
    wait_until(lambda: len(hook.taken) >= count, LIMIT, lambda: f"{count} events; there are {len(hook.taken)}")
    return events(hook)


def outbox(folder: Path) -> int:
    """Return how many events wait in the registry of a folder."""
    with closing(open_database(f"sqlite:///{folder}/registry.db")) as database, database.reading() as connection:
        return len(connection.execute(select(OUTBOX.c.number)).all())


def change(client: httpx.Client, message: str, name: str) -> None:
    """Change a message of the group ``g``, made if need be."""
    assert client.put(f"/messagegroups/g/messages/{message}", json={"name": name}).is_success


# A small subscription manager: the CloudEvents Subscriptions API over HTTP, as a test wants it to behave.

PATH = "/subscriptions"


@dataclass(slots=True)
class Manager:
    """Keeps subscriptions by id. ``lasts`` is the longest that one is given, None for what is asked.

    ``before`` may answer in its place. With ``asks_sinks`` it makes none whose sink does not allow it by the handshake
    of webhooks.
    """

    lasts: timedelta | None = None
    before: Callable[[Taken], Answer | None] = lambda request: None
    asks_sinks: bool = False
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    _made: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Taken) -> Answer:
        """Carry a request out."""
        with self._lock:
            self.seen.append((request.method, request.target))
            told = self.before(request)
            return told if told is not None else self._done(request)

    def deliver(self, kind: str, id: str) -> list[int]:
        """Send an event to all sinks; return what each answers."""
        headers = {"ce-specversion": "1.0", "ce-id": id, "ce-source": "/m", "ce-type": kind}
        return [httpx.post(each["sink"], headers=headers, timeout=60).status_code for each in self.held.values()]

    def _done(self, request: Taken) -> Answer:
        name = request.target.removeprefix(PATH).strip("/")
        if request.method == "GET" and not name:
            return _json(200, [{"id": key, **each} for key, each in self.held.items()])
        if request.method == "POST":
            self._made += 1
            name = f"s{self._made}"
            return self._kept(name, request, 201)
        if name not in self.held:
            return _json(404, {"title": "no such subscription"})
        if request.method == "DELETE":
            return _json(200, self.held.pop(name))
        return self._kept(name, request, 200)

    def _kept(self, name: str, request: Taken, status: int) -> Answer:
        assert request.header("content-type") == "application/cloudevents-subscription+json"
        document = json.loads(request.body)
        if self.asks_sinks:
            asked = httpx.options(document["sink"], headers={"WebHook-Request-Origin": "manager"}, timeout=60)
            if asked.headers.get("WebHook-Allowed-Origin") not in ("*", "manager"):
                return _json(400, {"title": "the sink does not allow it"})
        if self.lasts is not None:
            document["expiration"] = (datetime.now(UTC) + self.lasts).isoformat()
        self.held[name] = document
        answer = _json(status, {"id": name, **document})
        return Answer(status, {**answer.headers, "Location": f"{self.url}{PATH}/{name}"}, answer.body)


def _json(status: int, body: Any) -> Answer:
    return Answer(status, {"Content-Type": "application/json"}, json.dumps(body).encode())


@contextmanager
def managing(manager: Manager) -> Iterator[Webhook]:
    """Serve a manager; the server that is given can be closed and opened again."""
    with Webhook(manager.answer) as server:
        manager.url = server.url
        yield server


# What of a router holds subscriptions, with its settings and what watchers see of it.

ENDPOINT = "/endpoints/news"
SINK = "http://127.0.0.1:9/news"
GATEWAY = f"subscription {ENDPOINT}"


def settings_of(folder: Path, url: str, **subscription: Any) -> Settings:
    """Return settings with one source, subscribed at a manager; its catalog is written."""
    endpoint = plain.endpoint("HTTP", {}, "G", uri=f"{url}{PATH}", usage="subscriber")
    document = plain.write(folder, plain.catalog({"news": endpoint}, G={"m": plain.event("told")}))
    sources = [{"endpoint": ENDPOINT, "subscription": {"sink": SINK, **subscription}}]
    sinks = plain.lines(folder, "out", "dead")
    return settings_from_dict(plain.routed(document, sinks, sources=sources, state=str(folder / "state")), {}, folder)


class Router:
    """A router that does nothing but hold subscriptions; nothing is asked before ``start``."""

    def __init__(self, folder: Path, url: str, logins: Logins | None = None, **subscription: Any) -> None:
        settings = settings_of(folder, url, **subscription)
        self.sources: tuple[Source, ...] = resolve_sources(load([folder / "catalog.json"]), settings)
        self.status = RouterStatus(routes=False)
        self.status.set_catalog("e", 1)
        self.registry = CollectorRegistry()
        metrics = SubscriptionMetrics(self.registry)
        self.subscriptions = RouterSubscriptions(folder / "state", logins or Logins(), self.status, lambda: metrics)

    def start(self) -> Router:
        """Ask for the subscriptions."""
        self.subscriptions.follow_sources(self.sources)
        return self

    def until_ready(self) -> Router:
        """Wait until there are subscriptions."""
        wait_until(lambda: self.status.check_readiness()[0], LIMIT, lambda: str(self.status.check_readiness()))
        return self

    def requests(self, action: str, result: str = "ok") -> float:
        """Return how often something was asked of the manager."""
        labels = {"endpoint": ENDPOINT, "action": action, "result": result}
        return self.registry.get_sample_value("xrouter_subscription_requests_total", labels) or 0.0

    def stop(self, *, in_order: bool = True) -> None:
        """End, by a signal or by an error."""
        self.subscriptions.stop(10.0, in_order=in_order)
