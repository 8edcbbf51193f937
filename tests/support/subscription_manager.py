"""A small subscription manager: the CloudEvents Subscriptions API over HTTP, as a test wants it to behave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tests.support.webhook import Answer, Taken, Webhook

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
