"""A registry and a webhook that is told of its changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from registry.delivery.subscriptions import DeliveryLimits, DeliverySettings
from tests.support.registry_server import served
from tests.support.waiting import wait_until
from tests.support.webhook import Answer, Taken, Webhook

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


def change(client: httpx.Client, message: str, name: str) -> None:
    """Change a message of the group ``g``, made if need be."""
    assert client.put(f"/messagegroups/g/messages/{message}", json={"name": name}).is_success
