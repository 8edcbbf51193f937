"""The face of Message Catalog 0.1 as others meet it: the project's own reader, writers with roles, and strangers."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_options_tell_whether_the_client_may_write(tmp_path: Path) -> None:
    access = Access(bearer={"reader": "r-token"}, basic={"writer": "secret"})
    with served(tmp_path, access=access, roles=Roles(writers={"writer": ("/messagegroups/ours*",)})) as client:
        reader = {"authorization": "Bearer r-token"}
        assert client.options("/messagecatalog", headers=reader).json()["update"] is False
        client.auth = ("writer", "secret")
        both = {"groups": [{"id": "ours", "format": "NATS"}, {"id": "theirs", "format": "NATS"}]}
        assert client.put("/messagecatalog", json=both).status_code == 403
        assert client.put("/messagecatalog", json={"groups": both["groups"][:1]}).status_code == 204
        assert client.options("/messagecatalog").json()["update"] is True


def test_errors_name_the_path_that_was_requested(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        for method, path, status in (
            ("PATCH", "/messagegroups/messagedefinitions/m", 405),
            ("GET", "/messagegroups/messagedefinitions/m", 404),
            ("GET", "/messagegroups/x", 404),
            ("PUT", "/g", 400),
            ("PUT", "/", 400),
        ):
            answer = client.request(method, f"/messagecatalog{path}", content="{")
            assert answer.status_code == status
            shown = "/messagegroups" if (method, status) == ("GET", 404) and "definitions" in path else path
            assert answer.json()["subject"] == shown


def test_a_model_need_not_have_groups_or_definitions(tmp_path: Path) -> None:
    whole = {"format": "NATS", "definitions": [{"id": "m", "definition": {}}]}
    lookup = "/messagedefinition?uri=http://x/g/messagedefinitions/m"
    with served(tmp_path) as client:
        client.put("/modelsource", json={"groups": {}}).raise_for_status()
        assert client.get("/messagecatalog").json() == []
        assert client.get("/messagecatalog/g").status_code == client.get(lookup).status_code == 404
        assert client.put("/messagecatalog/g", json=whole).json()["args"] == {"name": "messagegroups"}
        types = {"messagegroups": {"singular": "messagegroup", "attributes": {"*": {"type": "any"}}}}
        client.put("/modelsource", json={"groups": types}).raise_for_status()
        assert client.put("/messagecatalog/g", json={"format": "NATS"}).status_code == 201
        assert client.get("/messagecatalog").json()[0]["id"] == "g"
        for path in ("/messagecatalog?definitions", "/messagecatalog/g?definitions"):
            assert client.get(path).json()["args"]["name"] == "messages"
        for changed in (whole, {"format": "CloudEvents"}):
            assert client.put("/messagecatalog/g", json=changed).json()["args"]["name"] == "messages"


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
