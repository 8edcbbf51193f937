"""What each API over the store promises, whatever its specification: roles, history, sizes, pages, and no faults."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.http.request import Access
from catalog.load import load
from registry.http.access import PageSizes, Roles
from registry.http.application import RequestLimits
from tests.support.registry import served


@dataclass(frozen=True)
class Api:
    """The paths and bodies of one API; ``names`` are what its requests may contain."""

    root: str
    groups: str
    definitions: str
    group: dict[str, Any]
    definition: dict[str, Any]
    names: tuple[str, ...]

    def group_path(self, name: str) -> str:
        return f"{self.root}{self.groups}/{name}"

    def put_definition(self, client: httpx.Client, group: str, name: str, **more: Any) -> httpx.Response:
        path = f"{self.group_path(group)}/{self.definitions}/{name}"
        return client.put(path, json={**self.definition, **more})


CLOUDEVENT = {"format": "CloudEvents/1.0", "metadata": {"attributes": {"type": {"value": "t"}}}}
CORE = Api("", "/messagegroups", "messages", {}, {"envelope": "CloudEvents/1.0"}, ("messageid", "versionid", "meta"))
OLDER = Api("/cloudevents", "/definitionGroups", "definitions", {}, CLOUDEVENT, ("id", "format", "metadata"))
OLDEST = Api("/messagecatalog", "", "messagedefinitions", {"format": "NATS"}, {"definition": {}}, ("id", "definition"))
APIS = {"core": CORE, "cloudevents": OLDER, "messagecatalog": OLDEST}
ACCESS = Access(bearer={"admin": "a-token", "reader": "r-token"}, basic={"writer": "secret"})
ROLES = Roles(frozenset(("admin",)), {"writer": ("/messagegroups/ours*",)})
api_of = pytest.mark.parametrize("api", APIS.values(), ids=APIS)


@api_of
def test_readers_read_and_writers_write_to_their_groups_alone(api: Api, tmp_path: Path) -> None:
    with served(tmp_path, access=ACCESS, roles=ROLES, lint="off") as client:
        reader = {"authorization": "Bearer r-token"}
        assert client.get(f"{api.root}/").status_code == 401
        assert client.get(f"{api.root}/", headers=reader).status_code == 200
        assert client.put(api.group_path("ours"), json=api.group, headers=reader).status_code == 403
        client.auth = ("writer", "secret")
        assert client.put(api.group_path("ours"), json=api.group).status_code == 201
        refused = client.put(api.group_path("theirs"), json=api.group)
        assert refused.status_code == 403
        assert refused.json()["subject"] == api.group_path("theirs").removeprefix(api.root)
        assert api.put_definition(client, "ours", "m").status_code in (200, 201)
        assert client.get(api.group_path("theirs")).status_code == 404
        assert client.delete(api.group_path("ours")).is_success


@api_of
def test_a_write_has_its_history_and_its_events(api: Api, tmp_path: Path) -> None:
    with served(tmp_path, access=ACCESS, roles=ROLES, lint="off") as client:
        client.headers["authorization"] = "Bearer a-token"
        assert client.put(api.group_path("g"), json=api.group).status_code == 201
        assert api.put_definition(client, "g", "m").is_success
        refused = client.put(api.group_path("g"), json=api.group, headers={"if-match": '"7"'})
        assert refused.status_code == 412
        assert client.delete(f"{api.group_path('g')}/{api.definitions}/m").is_success
    with closing(sqlite3.connect(tmp_path / "registry.db")) as store:
        history = store.execute("SELECT who, action FROM history WHERE xid = '/messagegroups/g/messages/m/versions/1'")
        assert history.fetchall() == [("admin", "created"), ("admin", "deleted")]
        assert store.execute("SELECT COUNT(DISTINCT interaction) FROM history").fetchone() == (3,)
        types = store.execute("SELECT type FROM outbox WHERE subject = '/messagegroups/g/messages/m'").fetchall()
        assert types == [("io.xregistry.resource.created",), ("io.xregistry.resource.deleted",)]


@pytest.mark.slow
@api_of
def test_what_is_larger_than_an_answer_is_read_page_by_page(api: Api, tmp_path: Path) -> None:
    limits = RequestLimits(max_answer=6000, pages=PageSizes(5, 5))
    with served(tmp_path, lint="off", limits=limits) as client:
        client.put(api.group_path("g"), json=api.group).raise_for_status()
        for number in range(30):
            api.put_definition(client, "g", f"d{number:02}", description="x" * 300).raise_for_status()
        assert client.get(f"{api.root}/?inline&definitions").status_code == 406
        page = client.get(f"{api.group_path('g')}/{api.definitions}")
        assert len(page.json()) == 5 and page.links["next"]["url"]
        assert len(load([f"{client.base_url}{api.root or '/'}"], network=True, allow=["127.0.0.1"]).definitions) == 30


@api_of
def test_large_groups_count_beside_what_is_in_them(api: Api, tmp_path: Path) -> None:
    with served(tmp_path, lint="off", limits=RequestLimits(max_answer=8000)) as client:
        for number in range(5):
            client.put(api.group_path(f"g{number}"), json={**api.group, "description": "x" * 3000}).raise_for_status()
            api.put_definition(client, f"g{number}", "m").raise_for_status()
        assert client.get(f"{api.root}{api.groups}?inline=*&definitions").status_code == 406
        assert client.get(f"{api.root}{api.groups}?inline=*&definitions&limit=1").is_success


@pytest.mark.slow
@api_of
def test_no_request_is_a_fault_of_the_server(api: Api, tmp_path: Path) -> None:
    chance = random.Random(16)
    with served(tmp_path) as client:
        for _ in range(700):
            answer = _send(client, api, chance)
            assert answer.status_code < 500, (answer.request, answer.request.content, answer.text)


_ODD: tuple[Any, ...] = (None, 7, True, "", "x", "\x00", "a:b", [], [None], {}, {"value": None}, {"x": {"x": 7}}, 1e400)
_NAMES = "specversion authority documentation tags relatedto version versions definitions epoch".split()
_MORE = ("groups", "protocol", "envelope", "attributes", "publish", "pub", "properties", "epoch", "uri")


def _send(client: httpx.Client, api: Api, chance: random.Random) -> httpx.Response:
    parts = [chance.choice(("", "g", "h", "%00", "%FF", "a%2Fb", api.definitions)) for _ in range(5)]
    parts[1] = chance.choice((api.definitions, api.definitions, parts[1]))
    parts[3] = chance.choice(("versions", parts[3]))
    path = "/".join((f"{api.root}{api.groups}", *parts[: chance.randrange(6)]))
    names = ("limit", "cursor", "definitions", "versions", "inline", "meta", "epoch", "id", "x")
    query = "&".join(
        f"{chance.choice(names)}={chance.choice(('1', '', '%00', '%FF', 'g', '-1'))}"
        for _ in range(chance.randrange(3))
    )
    method = chance.choice(("GET", "PUT", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "HEAD"))
    body = json.dumps(_tree(chance, api, 4)).replace("Infinity", "1e999") if chance.random() < 0.9 else "{"
    headers = {"if-match": chance.choice(('"1"', "*", "x"))} if chance.random() < 0.1 else {}
    return client.request(method, f"{path}?{query}", content=body.encode(), headers=headers)


def _tree(chance: random.Random, api: Api, depth: int) -> Any:
    kind = chance.random() if depth else 0.0
    if kind < 0.25 and depth < 4:
        return chance.choice(_ODD)
    if kind < 0.4 and depth < 4:
        return [_tree(chance, api, depth - 1) for _ in range(chance.randrange(3))]
    plain = {"id": "g", "format": chance.choice(("CloudEvents", "AMQP", "MQTT", "NATS", "X"))}
    found: dict[str, Any] = plain if chance.random() < 0.5 else {}
    for _ in range(chance.randrange(5)):
        name = chance.choice((*api.names, *_NAMES, *_MORE))
        found[name] = _tree(chance, api, depth - 1) if depth else chance.choice(_ODD)
    return found
