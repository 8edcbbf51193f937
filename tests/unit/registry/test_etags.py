"""A look at a registry that has not changed costs a conditional request and no answer is built for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select

from bindings.http.request import Reply, RequestHead
from catalog.documents.fetching import Fetcher, HttpCache
from catalog.load import load
from registry.apis.apis import apis_by_path
from registry.core.requests import RegistryRequest
from registry.core.responses import CAPABILITIES
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.access import ApiCall, RegistryApi
from registry.store.engine import OUTBOX
from tests.support.registry import served

MESSAGE = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "t"}}}


def looked(url: str, cache: HttpCache) -> tuple[set[str], bool]:
    """Load the catalog of a registry; return its definitions, and whether any answer came with a body."""
    fetcher = Fetcher(network=True, cache=cache)
    catalog = load([url], fetcher=fetcher)
    asked = [fetcher.fetch_response(address) for address in fetcher.seen]
    assert asked
    return set(catalog.definitions), any(each.fresh for each in asked)


def test_the_router_hears_that_nothing_changed(tmp_path: Path) -> None:
    cache = HttpCache()
    with served(tmp_path) as client:
        url = str(client.base_url)
        assert client.put("/messagegroups/g/messages/a", json=MESSAGE).is_success
        assert looked(url, cache) == ({"/messagegroups/g/messages/a"}, True)
        assert looked(url, cache) == ({"/messagegroups/g/messages/a"}, False)
        assert client.put("/messagegroups/g/messages/b", json=MESSAGE).is_success
        assert looked(url, cache) == ({"/messagegroups/g/messages/a", "/messagegroups/g/messages/b"}, True)
        assert not looked(url, cache)[1]


def test_a_registry_that_is_begun_anew_has_other_tags(tmp_path: Path) -> None:
    tags: list[list[str]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with served(tmp_path / name, base="http://registry.example") as client:
            first = client.get("/?inline").headers["etag"]
            client.put("/messagegroups/g", json={"name": name}).raise_for_status()
            tags.append([first, client.get("/?inline").headers["etag"]])
    assert len({tag for each in tags for tag in each}) == 4


def test_a_document_that_settings_change_has_another_tag(tmp_path: Path) -> None:
    """The operator turns subscriptions off: who asks again with the tag of before hears of it."""
    base = "http://registry.example"
    with served(tmp_path, base=base) as client:
        before = client.get("/openapi.json")
        assert client.get("/openapi.json", headers={"if-none-match": before.headers["etag"]}).status_code == 304
    assert "/subscriptions" in before.json()["paths"]
    with served(tmp_path, base=base, delivery=None) as client:
        after = client.get("/openapi.json", headers={"if-none-match": before.headers["etag"]})
        assert after.status_code == 200 and "/subscriptions" not in after.json()["paths"]


# Capabilities that clients change: kept over restarts, told of, and no matter to faces that never heard of them.


def events(folder: Path) -> list[tuple[str, str, Any]]:
    engine = create_engine(f"sqlite:///{folder}/registry.db")
    with engine.connect() as connection:
        rows = connection.execute(select(OUTBOX.c.type, OUTBOX.c.subject, OUTBOX.c.data).order_by(OUTBOX.c.number))
        found = [(kind, subject, json.loads(data or "null")) for kind, subject, data in rows]
    engine.dispose()
    return found


def test_they_outlive_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        epoch = client.get("/").json()["epoch"]
        assert client.patch("/capabilities", json={"flags": ["inline"]}).json()["flags"] == ["inline"]
        assert client.get("/").json()["epoch"] == epoch + 1
    with served(tmp_path) as client:
        assert client.get("/capabilities").json()["flags"] == ["inline"]
        tag = client.get("/capabilities").headers["etag"]
        assert client.get("/capabilities", headers={"if-none-match": tag}).status_code == 304
        client.put("/capabilities", json={}).raise_for_status()
        again = client.get("/capabilities", headers={"if-none-match": tag})
        assert "filter" in again.json()["flags"]


def test_events_tell_which_have_changed(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        client.patch("/capabilities", json={"flags": ["inline"], "pagination": False}).raise_for_status()
    found = {kind: (subject, data["changed"]) for kind, subject, data in events(tmp_path) if data}
    assert found["io.xregistry.capabilities.updated"] == ("/capabilities", ["flags", "pagination"])
    assert "capabilities" in found["io.xregistry.registry.updated"][1]


def test_other_faces_are_not_bound_by_them(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        client.patch("/capabilities", json={"flags": [], "ignores": [], "pagination": False}).raise_for_status()
        group = {"id": "g", "format": "CloudEvents/1.0", "definitions": {}}
        path = "/cloudevents/definitionGroups"
        assert client.post(path, json=group).is_success
        assert client.get(f"{path}/g?inline=definitions").json()["definitions"] == {}
        definition = {"id": "m", "format": "NATS", "definition": {}}
        assert client.put("/messagecatalog/h", json={"format": "NATS"}).is_success
        assert client.post("/messagecatalog/h/messagedefinitions", json=definition).is_success
        assert client.get("/messagegroups/h/messages/m").status_code == 200


def test_what_a_later_release_adds_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as client:
        client.patch("/capabilities", json={"flags": ["inline"], "ignores": []}).raise_for_status()
    for name in ("flags", "ignores"):
        monkeypatch.setitem(CAPABILITIES, name, [*CAPABILITIES[name], "later"])
    with served(tmp_path) as client:
        shown = client.get("/capabilities").json()
        assert (shown["flags"], shown["ignores"]) == (["inline", "later"], ["later"])


def test_they_are_the_same_within_the_root(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        alone = client.get("/capabilities").json()
        assert client.get("/?inline=capabilities").json()["capabilities"] == alone
        assert all(each.keys() == {"mutable"} for each in alone["available"].values())


# What all faces have in common: a path of their own, the server's rules of access, and one transaction.


@dataclass
class Told(RegistryApi):
    """A face that writes two endpoints, of which the second may be refused, and tells what it was asked."""

    service: RegistryService
    calls: list[ApiCall] = field(default_factory=list)

    def reply(self, call: ApiCall) -> Reply:
        self.calls.append(call)
        if call.head.method == "GET":
            return Reply(200, (), f"{call.path.decode()} {call.url} {call.registry}".encode())
        if call.head.method == "DELETE":
            raise RuntimeError("a fault of ours")
        with self.service.session(writing=True) as session:
            for name in ("first", call.path.decode().removeprefix("/")):
                request = RegistryRequest("replace", ("endpoints", name), call.url, call.url, body={})
                session.perform(request)
            assert session.reader.group("/endpoints/first") is not None
        return Reply(204, ())

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        return Reply(refusal.status, (), f"{url} says {refusal.name}".encode())


FACES = {"/old/one": Told}


def test_a_face_is_asked_below_its_path_alone(tmp_path: Path) -> None:
    with served(tmp_path, faces=FACES) as client:
        base = str(client.base_url).rstrip("/")
        assert client.get("/old/one").text == f" {base}/old/one {base}"
        assert client.get("/old/one/a%2Fb?x").text == f"/a%2Fb {base}/old/one {base}"
        assert client.get("/old/ones").json()["type"].endswith("#unknown_group_type")
        assert client.get("/endpoints").json() == {}


def test_writes_of_a_face_are_one_transaction(tmp_path: Path) -> None:
    with served(tmp_path, faces=FACES) as client:
        refused = client.put("/old/one/%20")
        assert refused.status_code == 400 and refused.text.endswith("/old/one says malformed_id")
        assert client.get("/endpoints").json() == {}
        assert client.put("/old/one/second").status_code == 204
        assert list(client.get("/endpoints").json()) == ["first", "second"]


def test_faults_are_told_by_the_face(tmp_path: Path) -> None:
    with served(tmp_path, faces=FACES) as client:
        assert client.delete("/old/one").text.endswith("says server_error")


@pytest.mark.parametrize(
    "paths", [{"unheard": "/of"}, {"cloudevents": "of"}, {"cloudevents": "/"}, {"cloudevents": "/a/"}]
)
def test_paths_that_are_none(paths: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        apis_by_path(paths)


def test_the_lookup_of_message_catalogs_is_beside_the_catalog(tmp_path: Path) -> None:
    with served(tmp_path, faces=apis_by_path({"messagecatalog": "/old/messagecatalog"})) as client:
        assert client.put("/old/messagecatalog/g", json={"format": "CloudEvents"}).status_code == 201
        definition = {"attributes": {"type": {"value": "m"}}}
        made = client.post("/old/messagecatalog/g/messagedefinitions", json={"id": "m", "definition": definition})
        assert made.status_code == 201, made.text
        uri = f"{made.json()['authority'].rstrip('/')}/g/messagedefinitions/m"
        assert client.get("/old/messagedefinition", params={"uri": uri}).json()["id"] == "m"
        assert client.get("/old/messagedefinition", params={"uri": "http://nowhere.example/g"}).status_code == 404
        assert client.get("/old/messagedefinition").status_code == 400
