"""The face of Message Catalog 0.1 as others meet it: the project's own reader, writers with roles, and strangers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.http.request import Access
from catalog.documents.fetching import Fetcher
from catalog.load import load
from registry.http.access import PageSizes, Roles
from registry.http.application import RequestLimits
from tests.support.registry import served

SAMPLE = Path(__file__).parents[3] / "catalog" / "samples" / "orchard.messages.json"


def test_the_projects_reader_of_message_catalogs_loads_what_was_imported(tmp_path: Path) -> None:
    sample = json.loads(SAMPLE.read_text())
    with served(tmp_path, limits=RequestLimits(pages=PageSizes(1, 1))) as client:
        for group in sample.get("groups", [sample]):
            client.put(f"/messagecatalog/{group['id']}", json=group).raise_for_status()
        read = load([f"{client.base_url}/messagecatalog"], fetcher=Fetcher(network=True))
        core = load([f"{client.base_url}/"], fetcher=Fetcher(network=True))
    assert [each for each in read.findings if each.severity == "error"] == []
    wanted = load([SAMPLE]).definitions
    assert read.definitions.keys() == core.definitions.keys() == wanted.keys()
    for xid, definition in wanted.items():
        assert read.definitions[xid] == core.definitions[xid] == definition


def test_writers_write_to_their_groups_and_are_told_so(tmp_path: Path) -> None:
    access = Access(bearer={"admin": "a-token", "reader": "r-token"}, basic={"writer": "secret"})
    roles = Roles(frozenset(("admin",)), {"writer": ("/messagegroups/ours*",)})
    with served(tmp_path, access=access, roles=roles) as client:
        reader = {"authorization": "Bearer r-token"}
        assert client.get("/messagecatalog").status_code == 401
        assert client.options("/messagecatalog", headers=reader).json()["update"] is False
        assert client.put("/messagecatalog/ours", json={"format": "NATS"}, headers=reader).status_code == 403
        client.auth = ("writer", "secret")
        assert client.put("/messagecatalog/ours", json={"format": "NATS"}).status_code == 201
        assert client.put("/messagecatalog/theirs", json={"format": "NATS"}).status_code == 403
        both = {"groups": [{"id": "ours", "format": "NATS"}, {"id": "theirs", "format": "NATS"}]}
        assert client.put("/messagecatalog", json=both).status_code == 403
        assert client.options("/messagecatalog").json()["update"] is True
        assert [each["id"] for each in client.get("/messagecatalog").json()] == ["ours"]


def test_no_number_is_given_out_twice(tmp_path: Path) -> None:
    body = {"id": "m", "definition": {}}
    with served(tmp_path) as client:
        client.put("/messagecatalog/g", json={"format": "NATS"})
        url = "/messagecatalog/g/messagedefinitions"
        assert [client.post(url, json=body).json()["version"] for _ in range(2)] == [1, 2]
        client.delete(f"{url}/m/versions/2").raise_for_status()
        assert client.post(url, json=body).json()["version"] == 3
        client.put(f"{url}/m", json={**body, "version": 7}).raise_for_status()
        client.delete(f"{url}/m/versions/7").raise_for_status()
        assert client.put(f"{url}/m", json=body).is_success
        assert client.get(f"{url}/m").json()["version"] == 8
        client.delete(f"{url}/m").raise_for_status()
        assert client.post(url, json=body).json()["version"] == 9


def test_answers_are_bounded(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(max_answer=3000)) as client:
        client.put("/messagecatalog/g", json={"format": "NATS"})
        for name in "abcdefgh":
            body = {"id": name, "description": "x" * 500, "definition": {}}
            client.post("/messagecatalog/g/messagedefinitions", json=body).raise_for_status()
        assert client.get("/messagecatalog/g/messagedefinitions").status_code == 406
        assert client.get("/messagecatalog/g?definitions").status_code == 406
        assert len(client.get("/messagecatalog/g/messagedefinitions?limit=3").json()) == 3


@pytest.mark.slow
def test_no_request_is_a_fault_of_the_server(tmp_path: Path) -> None:
    chance = random.Random(16)
    with served(tmp_path) as client:
        for _ in range(1500):
            answer = _send(client, chance)
            assert answer.status_code < 500, (answer.request, answer.request.content, answer.text)


_ODD: tuple[Any, ...] = (None, 7, True, "", "x", "\x00", "a:b", [], [None], {}, {"value": None}, {"x": {"x": 7}}, 1e400)
_NAMES = ("id", "specversion", "format", "authority", "documentation", "tags", "relatedto", "version", "versions")
_MORE = ("definition", "definitions", "groups", "protocol", "envelope", "attributes", "publish", "pub", "properties")


def _send(client: httpx.Client, chance: random.Random) -> httpx.Response:
    parts = [chance.choice(("", "g", "h", "%00", "%FF", "a%2Fb", "messagedefinitions")) for _ in range(5)]
    parts[1] = chance.choice(("messagedefinitions", "messagedefinitions", parts[1]))
    parts[3] = chance.choice(("versions", parts[3]))
    path = "/".join(("messagecatalog", *parts[: chance.randrange(6)]))
    names = ("limit", "cursor", "definitions", "versions", "id", "x")
    query = "&".join(
        f"{chance.choice(names)}={chance.choice(('1', '', '%00', '%FF', 'g', '-1'))}"
        for _ in range(chance.randrange(3))
    )
    method = chance.choice(("GET", "PUT", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "HEAD"))
    body = json.dumps(_tree(chance, 4)).replace("Infinity", "1e999") if chance.random() < 0.9 else "{"
    headers = {"if-match": chance.choice(('"1"', "*", "x"))} if chance.random() < 0.1 else {}
    return client.request(method, f"/{path}?{query}", content=body.encode(), headers=headers)


def _tree(chance: random.Random, depth: int) -> Any:
    kind = chance.random() if depth else 0.0
    if kind < 0.25 and depth < 4:
        return chance.choice(_ODD)
    if kind < 0.4 and depth < 4:
        return [_tree(chance, depth - 1) for _ in range(chance.randrange(3))]
    plain = {"id": "g", "format": chance.choice(("CloudEvents", "AMQP", "MQTT", "NATS", "X"))}
    found: dict[str, Any] = plain if chance.random() < 0.5 else {}
    for _ in range(chance.randrange(5)):
        found[chance.choice((*_NAMES, *_MORE))] = _tree(chance, depth - 1) if depth else chance.choice(_ODD)
    return found
