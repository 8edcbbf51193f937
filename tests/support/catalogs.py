"""Message catalogs that are served within a test, and what replicates them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from catalog.model import CLOUDEVENTS, Catalog, Definition
from registry.core.ancestry import Linter
from registry.core.service import RegistryService
from registry.replication.peers import Peer, PeerExchange, ReplicationRound
from registry.store.engine import open_database
from tests.support.registry import served, whole_state_of

# What a registry has of message groups, as far as replication keeps it alike in two of them.

_OWN: Final = ("self", "xid", "epoch", "createdat", "modifiedat", "messagesurl", "messagescount", "ancestorid")


def state_of(client: httpx.Client) -> dict[str, Any]:
    """Return all groups, definitions and versions, without what each registry has by itself: URLs, epochs and times."""
    answer = client.get("/messagegroups", params={"inline": "messages.versions", "limit": "1000"})
    answer.raise_for_status()
    found: dict[str, Any] = {}
    for name, group in answer.json().items():
        messages = group.pop("messages")
        versions = {
            f"{message}/{version}": {key: value for key, value in body.items() if key not in _OWN}
            for message, each in messages.items()
            for version, body in each["versions"].items()
        }
        found[name] = {**{key: value for key, value in group.items() if key not in _OWN}, "versions": versions}
    return found


@dataclass
class Side:
    """A catalog that is served, with what replicates it."""

    client: httpx.Client
    exchange: PeerExchange
    url: str

    def pull(self, other: Side) -> ReplicationRound:
        return self.exchange.run(Peer(other.url), "pull")

    def push(self, other: Side) -> ReplicationRound:
        return self.exchange.run(Peer(other.url), "push")

    def post(self, group: str, name: str, subject: str, **more: Any) -> httpx.Response:
        body = {"id": name, "definition": {"pub": {"subject": {"value": subject}}}, **more}
        self.client.put(f"/messagecatalog/{group}", json={"format": "NATS"}).raise_for_status()
        return self.client.post(f"/messagecatalog/{group}/messagedefinitions", json=body).raise_for_status()

    def subjects(self, group: str, name: str) -> dict[Any, str]:
        listed = self.client.get(f"/messagecatalog/{group}/messagedefinitions/{name}/versions").json()
        return {each["version"]: each["definition"]["pub"]["subject"]["value"] for each in listed}


@contextmanager
def side(folder: Path, authority: str = "urn:corp", **given: Any) -> Iterator[Side]:
    folder.mkdir()
    with served(folder, authority=authority, **given) as client:
        database = open_database(f"sqlite:///{folder}/registry.db")
        service = RegistryService(database, Linter(), lambda *_: {}, authority)
        yield Side(client, PeerExchange(service), f"{client.base_url}/messagecatalog")
        database.close()


def states(one: Side) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what replication keeps alike: of message groups, and of everything else."""
    return state_of(one.client), whole_state_of(one.client)


def settle(*sides: Side) -> None:
    """Pull to and fro until nothing changes, and compare."""
    for _ in range(12):
        if not sum(each.pull(other).applied for each in sides for other in sides if other is not each):
            break
    else:
        raise AssertionError("they go on for ever")
    assert all(states(each) == states(sides[0]) for each in sides[1:])


# Catalogs of one definition with the data schema that a test writes down.

XID: Final = "/messagegroups/g/messages/m"
KEY: Final = "/schemagroups/g/schemas/s/versions/1"


def catalog_of(
    family: str, document: Any, *, name: str = "", pointer: str = "", others: Mapping[str, Any] | None = None
) -> Catalog:
    """Return a catalog whose one definition is :data:`XID`; *others* are the documents that its schema refers to."""
    definition = Definition(
        XID, "/messagegroups/g", dataschemaformat=family, schemakey=KEY, schemaname=name, schemapointer=pointer
    )
    documents = {KEY: document, **(others or {})}
    schemas = {key: {"format": family, "document": each} for key, each in documents.items()}
    return Catalog(definitions={XID: definition}, schemas=schemas)


# Random documents of a registry, in the names of 1.0 and in those of CloudEvents Registry 0.4/0.5.

PROTOCOLS: Final = ("HTTP", "AMQP/1.0", "MQTT/5.0", "MQTT/3.1.1", "KAFKA", "NATS", "BunnyMQ/0.9.1")
TYPES: Final = ("string", "uritemplate", "integer", "boolean", "timestamp", "urireference", "any", None)
VALUES: Final = ("a", "{x}/b", "{x}", "7", "", None)
PROTO: Final = 'syntax = "proto3"; message A { string a = 1; }'


def constraint(rng: Random, *, older: bool) -> Any:
    """One constraint of an attribute or an option; now and then a bare value."""
    if rng.random() < 0.15:
        return rng.choice(("bare", 5, True))
    kind, value = rng.choice(TYPES), rng.choice(VALUES)
    body: dict[str, Any] = {} if kind is None else {"type": "var" if older and kind == "any" else kind}
    if value is not None:
        body["value"] = value
    if rng.random() < 0.3:
        body["required"] = rng.random() < 0.5
    return body


def options(rng: Random, protocol: str, *, older: bool) -> dict[str, Any]:
    """Options of a protocol, in the shapes of 1.0 or in older ones."""

    def body() -> Any:
        return constraint(rng, older=older)

    def listed(*names: str) -> Any:
        bodies = [{"name": name, **each} for name in names if isinstance(each := body(), dict)]
        if older and rng.random() < 0.5:
            return {each.pop("name"): each for each in bodies}
        return bodies

    plain = {
        "HTTP": ("path", "method"),
        "MQTT/5.0": ("topic-name", "qos", "response-topic", "content-type"),
        "MQTT/3.1.1": ("topic-name", "retain"),
        "KAFKA": ("topic", "key", "partition"),
        "NATS": ("subject",),
    }.get(protocol, ())
    names = plain if older else tuple(each.replace("-", "_") for each in plain)
    found = {name: body() for name in names if rng.random() < 0.5}
    if protocol == "AMQP/1.0":
        found["properties"] = {"subject": body(), "content-type": body()}
        found["application-properties"] = {"p": body()}
    elif protocol == "HTTP":
        found["query"] = listed("q", "r")
        found["headers"] = [{"name": "Content-Type", "value": "a/b"}, {"name": "h", "value": "{x}"}]
    elif protocol == "MQTT/5.0" and older:
        found["user-properties"] = [{"p": {"value": "v"}}, {"p": {"type": "string"}}]
    elif protocol == "MQTT/5.0":
        found["user_properties"] = [{"name": "p", "value": "v"}, {"name": "p"}, {"name": "value", "value": "{y}"}]
    elif protocol in ("KAFKA", "NATS"):
        found["headers"] = listed("h", "i")
    return found


def attributes(rng: Random, *, older: bool) -> dict[str, Any]:
    """Constraints of the attributes of an event."""
    names = rng.sample(("type", "source", "subject", "time", "ext", "attributes"), rng.randint(0, 4))
    found = {name: constraint(rng, older=older) for name in names}
    if "attributes" in found:  # an attribute of that name is told from a map of attributes by its type
        found["attributes"] = {"type": "string", "required": True}
    return found


def describing(rng: Random, *, older: bool) -> dict[str, Any]:
    """What describes an entity."""
    tags, docs = ("tags", "docs") if older else ("labels", "documentation")
    given = {
        "name": "a ä",
        "description": "d",
        tags: {"a": "b"},
        docs: "https://example.com/d",
        "ours": [1, {"a": None}],
    }
    return {name: value for name, value in given.items() if rng.random() < 0.3}


def newer_message(rng: Random, known: list[str]) -> dict[str, Any]:
    """A message of 1.0, which may derive from one of the *known*."""
    envelope = rng.choice((CLOUDEVENTS, CLOUDEVENTS, None))
    protocol = rng.choice((None, None, *PROTOCOLS))
    found: dict[str, Any] = {"envelope": envelope, "protocol": protocol, **describing(rng, older=False)}
    if rng.random() < 0.8:
        found["envelopemetadata"] = attributes(rng, older=False)
    if protocol is not None and rng.random() < 0.8:
        found["protocoloptions"] = options(rng, protocol, older=False)
    if known and rng.random() < 0.3:
        found["basemessage"] = rng.choice(known)
    if rng.random() < 0.2:
        found["envelopeoptions"] = {"mode": "structured"}
    if rng.random() < 0.3:
        found["datacontenttype"] = "application/json"
    schema = rng.choice(("none", "none", "inline", "xid", "version", "uri"))
    if schema != "none":
        found["dataschemaformat"] = "Protobuf/3"
    if schema == "inline":
        found["dataschema"] = PROTO
    elif schema == "uri":
        found["dataschemauri"] = "#/schemagroups/s/schemas/x:A"
    elif schema != "none":
        found["dataschemaxid"] = "/schemagroups/s/schemas/x" + ("/versions/1" if schema == "version" else "")
    return {name: value for name, value in found.items() if value is not None}


def newer_document(rng: Random) -> dict[str, Any]:
    """A document of 1.0."""
    known: list[str] = []

    def messages(owner: str, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number in range(count):
            if known and rng.random() < 0.1:
                found[f"m{number}"] = {"meta": {"xref": rng.choice(known)}}
                continue
            found[f"m{number}"] = newer_message(rng, known)
            known.append(f"{owner}/messages/m{number}")
        return found

    def selectors() -> dict[str, Any]:
        given = {"envelope": rng.choice((CLOUDEVENTS, None)), "protocol": rng.choice((None, None, *PROTOCOLS))}
        return {name: value for name, value in given.items() if value is not None}

    groups = {
        name: {**selectors(), **describing(rng, older=False), "messages": messages(f"/messagegroups/{name}", 3)}
        for name in ("g", "h")
    }
    endpoints = {
        name: {
            **selectors(),
            "usage": [rng.choice(("consumer", "producer"))],
            "messagegroups": rng.sample(("/messagegroups/g", "/messagegroups/h"), rng.randint(0, 2)),
            "protocoloptions": {"endpoints": [{"uri": "tcp://h:1"}], "topic": "t", "deployed": False},
            "messages": messages(f"/endpoints/{name}", rng.randint(0, 2)),
        }
        for name in ("e", "f")
    }
    schemas = {"x": {"versions": {"1": {"format": "Protobuf/3", "schema": PROTO, "contenttype": "text/plain"}}}}
    return {"messagegroups": groups, "endpoints": endpoints, "schemagroups": {"s": {"schemas": schemas}}}


def older_definition(rng: Random, known: list[str]) -> dict[str, Any]:
    """A definition of 0.4/0.5."""
    if known and rng.random() < 0.1:
        return {"uri": rng.choice(known)}
    chosen = rng.choice((CLOUDEVENTS, CLOUDEVENTS, *PROTOCOLS[:-1]))
    found: dict[str, Any] = {"format": chosen, **describing(rng, older=True)}
    if chosen == CLOUDEVENTS:
        found["metadata"] = {"attributes": attributes(rng, older=True)}
    else:
        found["metadata"] = options(rng, chosen, older=True)
    schema = rng.choice(("none", "inline", "pointer", "version", "deep"))
    if schema != "none":
        found["schemaformat"] = "Protobuf/3"
    if schema == "inline":
        found["schema"] = PROTO
    elif schema != "none":
        tail = {"pointer": "", "version": "/versions/1.0", "deep": ":A"}[schema]
        found["schemaurl"] = f"#/schemaGroups/s/schemas/x{tail}"
    return found


def older_document(rng: Random) -> dict[str, Any]:
    """A document of 0.4/0.5."""
    known: list[str] = []

    def definitions(owner: str, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number in range(count):
            found[f"d{number}"] = older_definition(rng, known)
            if "uri" not in found[f"d{number}"]:
                known.append(f"#{owner}/definitions/d{number}")
        return found

    groups = {
        name: {"id": name, "format": CLOUDEVENTS, **describing(rng, older=True)}
        | {"definitions": definitions(f"/definitionGroups/{name}", 3)}
        for name in ("g", "h")
    }
    endpoints = {
        name: {
            "id": name,
            "usage": rng.choice(("consumer", "producer")),
            "format": rng.choice((CLOUDEVENTS, "MQTT/5.0")),
            "config": {"protocol": rng.choice(PROTOCOLS), "endpoints": ["tcp://h:1"], "options": {"topic": "{x}"}},
            "definitionGroups": rng.sample(("#/definitionGroups/g", "#/definitionGroups/h"), rng.randint(0, 2)),
            "definitions": definitions(f"/endpoints/{name}", rng.randint(0, 2)),
        }
        for name in ("e", "f")
    }
    schemas = {"x": {"id": "x", "format": "Protobuf/3", "versions": {"1.0": {"id": "1.0", "schema": PROTO}}}}
    collections = {
        "definitionGroups": groups,
        "endpoints": endpoints,
        "schemaGroups": {"s": {"id": "s", "schemas": schemas}},
    }
    return {"specversion": rng.choice(("0.4-wip", "0.5-wip")), **collections}
