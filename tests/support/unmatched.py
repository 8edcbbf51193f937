"""Letters that no definition matches, made by code: of fleets, shops and webhooks that nobody has described."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from typing import Any, Final

from catalog.record import Record

PLANT: Final = "/endpoints/plant"
SHOP: Final = "/endpoints/shop"
HOOKS: Final = "/endpoints/hooks"
CATALOG: Final[dict[str, Any]] = {
    "specversion": "1.0-rc4",
    "endpoints": {
        "plant": {"usage": ["consumer"], "protocol": "MQTT/5.0", "messagegroups": ["/messagegroups/Plant"]},
        "shop": {"usage": ["consumer"], "protocol": "KAFKA", "messagegroups": ["/messagegroups/Shop"]},
        "hooks": {"usage": ["consumer"], "protocol": "HTTP", "messagegroups": ["/messagegroups/Hooks"]},
    },
    "messagegroups": {
        "Plant": {
            "messages": {
                "Plant.Boot": {
                    "envelope": "CloudEvents/1.0",
                    "protocol": "MQTT/5.0",
                    "protocoloptions": {"topic_name": {"value": "plants/{plant}/boot"}},
                }
            }
        },
        "Shop": {
            "envelope": "CloudEvents/1.0",
            "messages": {"Shop.Opened": {"envelopemetadata": {"type": {"value": "com.example.shop.opened"}}}},
        },
        "Hooks": {
            "messages": {
                "Hooks.Ping": {
                    "envelope": "CloudEvents/1.0",
                    "protocol": "HTTP",
                    "protocoloptions": {"method": {"value": "POST"}, "path": {"value": "/ping"}},
                }
            }
        },
    },
}
"""A catalog that knows the channels and one message of each."""


def telemetry(count: int, seed: int = 1) -> Iterator[Record]:
    """Native MQTT messages of many devices: three kinds by topic, and a fourth whose body is no JSON."""
    chance = random.Random(seed)
    for number in range(count):
        plant, device = chance.randrange(1, 40), f"{chance.choice('abcdef')}-{chance.randrange(1000):04d}"
        kind = chance.choice(("state", "reading", "reading", "alarm", "log"))
        properties = [{"name": "device", "value": device}, {"name": "firmware", "value": f"v{chance.randrange(1, 9)}"}]
        body: Any
        if kind == "state":
            body = {
                "on": chance.random() < 0.5,
                "since": "2026-01-02T03:04:05Z",
                "mode": chance.choice(("auto", "manual")),
            }
        elif kind == "reading":
            body = {"celsius": round(chance.uniform(-10, 40), 1), "at": 1_700_000_000 + number}
            if chance.random() < 0.3:
                body["humidity"] = chance.randrange(100)
        elif kind == "alarm":
            body = {"code": chance.choice(("E1", "E2")), "text": f"trouble {number}", "parts": [{"id": 1, "ok": False}]}
        native = {
            "topic_name": f"plants/{plant}/devices/{device}/{kind}",
            "qos": 1,
            "retain": False,
            "user_properties": properties,
        }
        if kind == "log":
            yield Record("MQTT/5.0", {**native, "content_type": "text/plain"}, b"line %d" % number, PLANT)
        else:
            yield Record("MQTT/5.0", {**native, "content_type": "application/json"}, json.dumps(body).encode(), PLANT)


def orders(count: int, seed: int = 2) -> Iterator[Record]:
    """CloudEvents over Kafka, binary and structured: three types, of which one comes in two versions."""
    chance = random.Random(seed)
    for number in range(count):
        name = chance.choice(("created", "created", "paid", "cancelled"))
        order = str(uuid.UUID(int=chance.getrandbits(128)))
        attributes = {
            "specversion": "1.0",
            "id": f"e{number}",
            "source": f"/shops/{chance.choice(('berlin', 'paris', 'oslo'))}/tills/{chance.randrange(50)}",
            "type": f"com.example.order.{name}",
            "subject": order,
            "time": "2026-01-02T03:04:05Z",
        }
        body: dict[str, Any] = {"order": order, "total": round(chance.uniform(1, 500), 2)}
        if name == "created":
            version = chance.choice(("1", "2"))
            attributes["schemaversion"] = version
            lines = [{"sku": f"S{chance.randrange(99)}", "count": chance.randrange(1, 5)}]
            body = (
                {**body, "lines": lines}
                if version == "1"
                else {"id": order, "basket": {"items": lines}, "currency": "EUR"}
            )
        elif name == "paid":
            body = {"order": order, "by": chance.choice(("card", "invoice")), "mail": f"c{number}@example.com"}
        key = {
            "key": order,
            "topic": "orders",
            "partition": number % 4,
            "offset": number,
            "timestamp": 1_700_000_000_000,
        }
        if chance.random() < 0.2:
            event = {**attributes, "datacontenttype": "application/json", "data": body}
            headers = [{"name": "content-type", "value": "application/cloudevents+json"}]
            yield Record("KAFKA", {**key, "headers": headers}, json.dumps(event).encode(), SHOP)
        else:
            headers = [{"name": f"ce_{each}", "value": value} for each, value in attributes.items()]
            headers.append({"name": "content-type", "value": "application/json; charset=utf-8"})
            yield Record("KAFKA", {**key, "headers": headers}, json.dumps(body).encode(), SHOP)


def webhooks(count: int, seed: int = 3) -> Iterator[Record]:
    """Native HTTP requests of three senders: one tells its kinds by a header, one by its path, one sends XML."""
    chance = random.Random(seed)
    for number in range(count):
        sender = chance.choice(("forge", "forge", "pay", "erp", "text"))
        headers = {
            "host": "hooks.example.com",
            "user-agent": f"agent/{chance.randrange(9)}",
            "content-length": str(number),
            "x-request-id": str(uuid.UUID(int=chance.getrandbits(128))),
        }
        path, method = "/", "POST"
        media, body = "application/json", b""
        if sender == "forge":
            kind = chance.choice(("push", "issue"))
            headers |= {"x-forge-event": kind, "x-forge-delivery": str(uuid.UUID(int=chance.getrandbits(128)))}
            path = "/hooks/forge"
            commits = [{"sha": f"{chance.getrandbits(160):040x}", "by": "ann"}]
            told = (
                {"ref": "refs/heads/main", "commits": commits}
                if kind == "push"
                else {"issue": number, "title": "x" * (number % 9)}
            )
            body = json.dumps(told).encode()
        elif sender == "pay":
            account = chance.choice(("acme", "initech", "hooli", "umbrella", "wonka", "stark"))
            path = f"/v1/accounts/{account}/payments/{number}"
            method = "PUT"
            headers["x-signature"] = f"{chance.getrandbits(64):x}"
            body = json.dumps({"amount": number, "state": chance.choice(("open", "done"))}).encode()
        elif sender == "erp":
            path, media = f"/erp/{chance.randrange(100, 999)}/invoices", "application/xml"
            body = f"<?xml version='1.0'?><invoice no='{number}'/>".encode()
        else:
            path, media, body = "/notes", "text/plain", b"remember the milk"
        named = [{"name": name, "value": value} for name, value in {**headers, "content-type": media}.items()]
        yield Record("HTTP", {"method": method, "path": path, "headers": named}, body, HOOKS)


def noise(count: int, seed: int = 4) -> Iterator[Record]:
    """What is in any pile of letters: strays of one kind each, broken events, and messages the catalog knows."""
    chance = random.Random(seed)
    for number in range(count):
        turn = number % 4
        if turn == 0:
            topic = "/".join(f"{chance.choice('xyz')}{chance.choice('uvw')}" for _ in range(chance.randrange(1, 9)))
            yield Record("MQTT/5.0", {"topic_name": f"stray{'/s' * number}/{topic}"}, b"?", PLANT)
        elif turn == 1:
            headers = [{"name": "ce_specversion", "value": "1.0"}, {"name": "ce_id", "value": "1"}]
            yield Record("KAFKA", {"topic": "orders", "headers": headers}, b"{", SHOP)
        elif turn == 2:
            yield Record("MQTT/5.0", {"topic_name": f"plants/{number}/boot"}, b"{}", PLANT)
        else:
            yield Record("HTTP", {"method": "POST", "path": "/ping", "headers": []}, None, HOOKS)
