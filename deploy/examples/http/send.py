"""Sends requests as shops do: plain ones, CloudEvents in both modes, and two that are not in order."""

from __future__ import annotations

import os

import httpx

BROKER = os.environ.get("BROKER", "http://127.0.0.1:8080")
VARIABLES = ()  # the router itself listens: XROUTER_HTTP__PORT
ORDER = b'{"order": "A-17", "total": 41.50}'
JSON = {"content-type": "application/json"}


def prepare() -> None:
    """Do nothing: there is no broker."""


def send() -> int:
    """Send, and return how many messages that were."""
    event = {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-type": "com.example.shop.order.placed",
        "ce-source": "/shops/north",
    }
    structured = (
        b'{"specversion": "1.0", "id": "2", "type": "com.example.shop.order.placed", "source": "/shops/south",'
        b' "datacontenttype": "application/json", "data": ' + ORDER + b"}"
    )
    requests = [
        ("/hooks/north", {**JSON, "x-topic": "orders/create"}, ORDER),
        ("/hooks/north", {**JSON, **event}, ORDER),
        ("/hooks/south", {"content-type": "application/cloudevents+json"}, structured),
        ("/hooks/north", {**JSON, **event, "ce-id": "3"}, b'{"order": "A-18"}'),  # no total: it breaks the schema
        ("/hooks/north", {**JSON, "x-topic": "orders/cancel"}, ORDER),  # nobody declared that
    ]
    with httpx.Client(base_url=BROKER) as client:
        for path, headers, body in requests:
            client.post(path, headers=headers, content=body).raise_for_status()
    return len(requests)
