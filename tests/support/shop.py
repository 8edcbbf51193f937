"""A shop whose messages end as every kind of dead letter, and the catalog that mends what can be fixed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from bindings.inbox.log import Inbox
from bindings.parts import InboxRow, Part
from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.load import build_catalog
from catalog.record import Record
from router.evaluation.plan import Plan
from router.settings import settings_from_dict
from tests.support import plain
from tests.support.router import RouterProcess

SHOP: Final = "/endpoints/shop"
EMPTY: Final = "/endpoints/empty"
SENT: Final = 1_767_323_045_123_456
MENDABLE: Final = ("no-candidates", "no-match", "ambiguous", "schema-violation", "unmappable", "sink-rejected")
LASTING: Final = ("invalid-cloudevent", "undecodable", "oversized")
COMMAND_SECONDS: Final = 240.0


def catalog(*, fixed: bool) -> dict[str, Any]:
    """Return the shop's catalog, before or after somebody looked at the dead letters."""
    schema = {"type": "object"} if fixed else {"type": "object", "required": ["n", "price"]}
    messages = {
        **plain.events("good", "picky", "twin"),
        "checked": plain.event("checked", dataschemaformat="JsonSchema/draft-07", dataschema=schema),
        "native": plain.event(
            "native", protocol="HTTP", protocoloptions={"path": {"value": "/native", "type": "string"}}
        ),
    }
    if not fixed:
        messages["native"]["envelopemetadata"]["subject"] = {"value": "{nobody}", "type": "uritemplate"}
    messages.update({"late": plain.event("late")} if fixed else {"brother": plain.event("twin")})

    def endpoint(path: str, *groups: str) -> dict[str, Any]:
        return plain.endpoint("HTTP", {"path": path, "method": "POST"}, *groups)

    endpoints = {"shop": endpoint("/shop", "G"), "empty": endpoint("/empty", *(["G"] if fixed else []))}
    return plain.catalog(endpoints, G=messages)


def records(reason: str, numbers: Iterable[int]) -> Iterator[InboxRow]:
    """Yield records that end as dead letters for that reason under the first catalog; ``good`` do not."""
    kinds = {"no-match": "late", "ambiguous": "twin", "schema-violation": "checked", "sink-rejected": "picky"}
    for n in numbers:
        endpoint = EMPTY if reason == "no-candidates" else SHOP
        headers = plain.http_headers(kinds.get(reason, "good"), f"id-{n}")
        path, body = "/shop", json.dumps({"n": n}).encode()
        if reason == "invalid-cloudevent":
            del headers["ce-source"]
        elif reason == "undecodable":
            headers, body = {"content-type": "application/cloudevents+json"}, b"{no event"
        elif reason == "unmappable":
            headers, path = {"content-type": "application/json"}, "/native"
        parts = [Part("method", b"POST"), Part("path", path.encode())]
        parts += [Part(f"headers.{name}", value.encode()) for name, value in headers.items()]
        if reason == "oversized":
            parts, body = [*parts, Part("oversized", b"9999999")], b""
        yield InboxRow(endpoint, "HTTP", SENT + n, parts, body or None)


def fill(state: Path, rows: Iterable[InboxRow]) -> None:
    """Store records in the inbox of a router that is not running yet."""
    inbox = Inbox(state / "inbox", partitions=4)
    inbox.append_many(list(rows)).result(60)
    inbox.close()


def settings(folder: Path, hook: str, **more: Any) -> dict[str, Any]:
    """Return settings with a table for all events, a webhook for some, and a table of dead letters."""
    told: dict[str, Any] = {
        "catalog": {"source": str(folder / "catalog.json"), "poll": "200ms"},
        "sources": [{"endpoint": SHOP}, {"endpoint": EMPTY}],
        "http": {"port": 0},
        "match": {"validate": "always"},
        "routes": [{"when": {"message": "*/picky"}, "to": ["lake", "hook"]}, {"to": ["lake"]}],
    }
    sinks = plain.tables(folder, "lake") | {"hook": {"type": "http", "url": hook}} | plain.tables(folder, "dead")
    return plain.routed(folder, sinks, **{**told, **more})


def write_catalog(folder: Path, *, fixed: bool) -> None:
    """Write the catalog, as an editor does: at once."""
    plain.write(folder, catalog(fixed=fixed))


def write_catalog_with_lane(folder: Path, topic: str) -> None:
    """Write a catalog whose shop takes ``good`` events by HTTP, and whose lane takes ``aside`` ones by a topic."""
    endpoints = catalog(fixed=True)["endpoints"] | {"lane": plain.endpoint("KAFKA", {"topic": topic}, "L")}
    plain.write(folder, plain.catalog(endpoints, G=plain.events("good"), L=plain.events("aside")))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table; none when there is no table yet."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return found


def command(
    router: RouterProcess, *words: str, module: tuple[str, ...] = ("xrouter",)
) -> subprocess.CompletedProcess[str]:
    """Run ``xrouter WORDS`` and wait for its end; ``CONFIG`` stands for the router's settings file."""
    told = [str(router.config) if word == "CONFIG" else word for word in words]
    return subprocess.run(
        [sys.executable, "-m", *module, *told], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )


def answer(router: RouterProcess, *words: str) -> Any:
    """Run a command that ends well, and return the JSON that it writes."""
    done = command(router, *words, "--format", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def without_none(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that say something."""
    return {name: value for name, value in told.items() if value}


# Counters for gateways under test.


class Counts:
    """What a gateway counted, by endpoint."""

    def __init__(self) -> None:
        self.arrived: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()

    def received(self, endpoint: str) -> None:
        """Count a message that arrived."""
        self.arrived[endpoint] += 1

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that was acknowledged."""
        self.stored[endpoint] += 1


# Letters that no definition matches, made by code: of fleets, shops and webhooks that nobody has described.


def _native(protocol: str, **options: str) -> dict[str, Any]:
    told = {name: {"value": value} for name, value in options.items()}
    return {"envelope": "CloudEvents/1.0", "protocol": protocol, "protocoloptions": told}


PLANT: Final = "/endpoints/plant"
HOOKS: Final = "/endpoints/hooks"
CATALOG: Final[dict[str, Any]] = {
    "specversion": "1.0-rc4",
    "endpoints": {
        name: {"usage": ["consumer"], "protocol": protocol, "messagegroups": [f"/messagegroups/{name.title()}"]}
        for name, protocol in (("plant", "MQTT/5.0"), ("shop", "KAFKA"), ("hooks", "HTTP"))
    },
    "messagegroups": {
        "Plant": {"messages": {"Plant.Boot": _native("MQTT/5.0", topic_name="plants/{plant}/boot")}},
        "Shop": {
            "envelope": "CloudEvents/1.0",
            "messages": {"Shop.Opened": {"envelopemetadata": {"type": {"value": "com.example.shop.opened"}}}},
        },
        "Hooks": {"messages": {"Hooks.Ping": _native("HTTP", method="POST", path="/ping")}},
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


# Plans of a few endpoints that expect a few definitions.


def plan(*names: str, endpoints: str = "ab") -> Plan:
    """Return a plan whose endpoints all expect definitions of these names."""
    told = {name: plain.endpoint("KAFKA", {"topic": name}, "g", uri="kafka://broker:9092") for name in endpoints}
    document = plain.catalog(told, g=plain.events(*names))
    sinks = {"lake": {"type": "table", "path": "lake"}}
    settings = {"sinks": sinks, "routes": [{"to": ["lake"]}]}
    return Plan(build_catalog([Document("c.json", document)], Findings()), settings_from_dict(settings, {}, Path()))
