"""Catalogs through CloudEvents Registry 0.4/0.5 and through the core API mean the same, whoever wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from catalog.comparing import compare_catalogs
from catalog.load import load
from catalog.model import Catalog, Definition
from tests.support.cases import spread
from tests.support.catalogs import newer_document, older_document
from tests.support.registry import empty, served

FACE = "/cloudevents"
COLLECTIONS = {"definitionGroups": "definitions", "endpoints": "definitions", "schemaGroups": "schemas"}
SERVER_SAID = ("epoch", "modifiedat", "createdat")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A registry that takes what lint would not: that is for lint's own tests."""
    with served(tmp_path_factory.mktemp("registry"), lint="off") as found:
        yield found


def read(client: httpx.Client, path: str) -> Catalog:
    return load([f"{str(client.base_url).rstrip('/')}{path}"], network=True, allow=["127.0.0.1"])


def placeless(definition: Definition) -> Definition:
    """A definition without the addresses of its schema, which differ with the address of the document."""
    return replace(definition, dataschemauri=None, dataschemaxid=None, schemauri=None, schemakey=None)


def assert_same(one: Catalog, other: Catalog) -> None:
    assert one.definitions.keys() == other.definitions.keys()
    for xid, definition in one.definitions.items():
        assert placeless(definition) == placeless(other.definitions[xid]), xid
        assert (definition.schemakey is None) == (other.definitions[xid].schemakey is None), xid
    parts = [each for each in compare_catalogs(one, other).changes if each.kind != "definition-changed"]
    changes = [each for each in parts if (each.kind, each.name) != ("mapped-attribute-changed", "dataschema")]
    assert not changes, changes[:3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_what_the_core_wrote_this_face_shows(seed: int, client: httpx.Client) -> None:
    empty(client)
    document = newer_document(Random(seed))
    written = client.post("/", json=document)
    assert written.status_code == 200, written.text
    core, face = read(client, "/"), read(client, FACE)
    assert core.definitions
    assert_same(core, face)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_what_this_face_wrote_the_core_shows(seed: int, client: httpx.Client, tmp_path: Path) -> None:
    empty(client)
    document = older_document(Random(seed))
    for name in COLLECTIONS:
        for body in document[name].values():
            written = client.post(f"{FACE}/{name}", json=body)
            assert written.status_code == 201, written.text
    file = tmp_path / "document.cereg"
    file.write_text(json.dumps(document))
    core = read(client, "/")
    assert core.definitions
    assert_same(load([file]), core)
    assert_same(core, read(client, FACE))


@pytest.mark.slow
@pytest.mark.parametrize("seed", spread(range(20, 30), quick=3))
def test_what_is_sent_back_as_it_was_shown_changes_nothing(seed: int, client: httpx.Client) -> None:
    empty(client)
    assert client.post("/", json=newer_document(Random(seed))).status_code == 200
    before = stored(client)
    for name, held in COLLECTIONS.items():
        for group in client.get(f"{FACE}/{name}").json():
            put_back(client, f"{FACE}/{name}/{group}")
            for each in client.get(f"{FACE}/{name}/{group}/{held}").json():
                put_back(client, f"{FACE}/{name}/{group}/{held}/{each}")
                put_back(client, f"{FACE}/{name}/{group}/{held}/{each}?meta")
    assert stored(client) == before


def put_back(client: httpx.Client, path: str) -> None:
    shown = client.get(path)
    assert shown.status_code == 200, shown.text
    media = {"content-type": shown.headers["content-type"]}
    told = {name: value for name, value in shown.headers.items() if name.startswith("registry-")}
    written = client.put(path, content=shown.content, headers={**media, **told})
    assert written.status_code == 200, f"{path}: {written.text}"
    listed = client.get(path.removesuffix("?meta"))
    assert listed.status_code == 200


def stored(client: httpx.Client) -> Any:
    """Return all that the registry has, but for epochs and times."""

    def bare(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: bare(value) for name, value in tree.items() if name not in SERVER_SAID}
        return tree

    return bare(client.get("/export").json())


@pytest.mark.slow
def test_the_two_older_faces_show_one_another_s_definitions(client: httpx.Client) -> None:
    empty(client)
    body = {"format": "CloudEvents/1.0", "metadata": {"attributes": {"type": {"value": "t"}}}}
    assert client.put(f"{FACE}/definitionGroups/g", json={"format": "CloudEvents/1.0"}).status_code == 201
    assert client.put(f"{FACE}/definitionGroups/g/definitions/d", json=body).status_code == 201
    listed = client.get("/messagecatalog/g")
    assert listed.status_code == 200 and "d" in listed.text, listed.text
    assert_same(read(client, "/"), read(client, FACE))
