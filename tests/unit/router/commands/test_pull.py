"""``xrouter catalog pull``: the file means what the registry means, or nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line
from tests.support.corpora import CORPORA
from tests.support.registry import Registry
from tests.support.web import Reply, Web, serving

ROOT = Path(__file__).resolve().parents[4]
FEEDS = ("dwd", "gtfs", "jma-bosai-volcano", "wikimedia_osm_diffs")
FILES = sorted(
    path
    for path in [*CORPORA.rglob("*.xreg.json"), *(ROOT / "catalog" / "samples").glob("*.xreg.*")]
    if "feeders" not in path.parts or path.name.removesuffix(".xreg.json") in FEEDS
)
RELATIVE = {
    *("library.xreg.yaml", "sparkplug.xreg.yaml"),
    *("kafka-consumer-endpoint.xreg.json", "nats-consumer-endpoint.xreg.json"),
}
SERVED = ("self", "xid", "epoch", "versions", "versionsurl", "versionscount", "metaurl")
"""Samples with addresses beside them: a registry has nothing there, and a file has other things."""
MANY_REQUESTS = 200_000
"""Bytes of a document that is not asked for entity by entity: on a busy machine that takes longer than a load may."""
EVENT = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "t"}}}
SCHEMA = {"type": "object", "required": ["a"]}
PROTO = 'syntax = "proto3"; message M { string a = 1; }'


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


def served_of(path: Path) -> dict[str, Any]:
    """Return the tree of a document for a registry that says itself what its addresses are."""
    tree = yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else json.loads(path.read_text())
    return {key: value for key, value in tree.items() if key not in ("self", "xid")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "inline"),
    [
        pytest.param(path, inline, id=f"{path.name}-{'inline' if inline else ''}", marks=marks)
        for number, path in enumerate(FILES)
        for inline in (("*",), ())
        if inline or path.stat().st_size < MANY_REQUESTS
        for marks in [[pytest.mark.full] if number % 3 else []]
    ],
)
def test_real_documents_come_back_as_they_are(
    web: Web, path: Path, inline: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = served_of(path)
    told = load([path])
    registry = Registry(web, tree, inline, page=3).open()
    file = tmp_path / "pulled.json"
    assert run_command_line(["catalog", "pull", registry.url, str(file)]) == 0
    live, warned = load([registry.url], network=True), "relative references" in capfd.readouterr().err
    assert (load([file]).epoch != live.epoch, path.name in RELATIVE) == (warned, warned)
    assert list(live.definitions) == list(told.definitions)
    pulled = json.loads(file.read_text())
    for group in tree.get("messagegroups", {}):
        for message, held in tree["messagegroups"][group].get("messages", {}).items():
            found = pulled["messagegroups"][group]["messages"][message]
            own = {key: value for key, value in held.items() if key not in SERVED}
            assert {key: found.get(key) for key in own} == own


def test_schemas_come_with_it(web: Web, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = {
        "messagegroups": {"G": {"messages": {"m": {**EVENT, "dataschemaxid": "/schemagroups/S/schemas/s"}}}},
        "schemagroups": {
            "S": {
                "schemas": {
                    "s": {"versions": {"1": {"format": "JsonSchema/draft-07"}}},
                    "p": {"versions": {"1": {"format": "Protobuf/3"}}},
                }
            }
        },
    }
    registry = Registry(web, tree, ()).open()
    at = "/reg/schemagroups/S/schemas"
    for path, document in ((f"{at}/s/versions/1", SCHEMA), (f"{at}/p/versions/1", PROTO)):
        served = web.routes[path]
        assert callable(served)
        web.routes[path] = Reply(document)
    file = tmp_path / "pulled.yaml"
    assert run_command_line(["catalog", "pull", registry.url, str(file)]) == 0
    live = load([registry.url], network=True)
    assert (list(live.schemas), capfd.readouterr().err) == (["/schemagroups/S/schemas/s/versions/1"], "")
    web.routes.clear()
    pulled = yaml.safe_load(file.read_text())["schemagroups"]["S"]["schemas"]
    assert (pulled["s"]["versions"]["1"]["schema"], pulled["p"]["versions"]["1"]["schema"]) == (SCHEMA, PROTO)
    found = load([file])
    assert found.definitions == live.definitions
    assert all(found.schemas[key] == live.schemas[key] for key in live.schemas)


def test_what_an_older_registry_only_lists_is_in_the_file(web: Web, capfd: pytest.CaptureFixture[str]) -> None:
    event = {"format": "CloudEvents/1.0", "metadata": {"attributes": {"type": {"value": "t"}}}}
    web.routes["/groups"] = Reply({"G": {"id": "G", "definitionsURL": f"{web.url}/defs", "definitionsCount": 1}})
    web.routes["/defs"] = Reply({"M": {"id": "M", "format": "CloudEvents/1.0", "self": f"{web.url}/defs/M"}})
    web.routes["/defs/M"] = Reply(event)
    web.routes["/"] = Reply({"specVersion": "0.4", "definitionGroupsURL": f"{web.url}/groups"})
    assert run_command_line(["catalog", "pull", f"{web.url}/"]) == 0
    told = capfd.readouterr()
    group = json.loads(told.out)["definitionGroups"]["G"]
    assert (group["definitions"]["M"]["metadata"], "definitionsURL" in group) == (event["metadata"], False)
    assert told.err == ""


def test_a_message_catalog(web: Web, tmp_path: Path) -> None:
    definition = {"id": "d", "format": "CloudEvents", "version": 3, "authority": "example.com", "extension": [1]}
    definition["definition"] = {"attributes": {"type": {"value": "t", "required": True}}}
    web.routes["/messagecatalog"] = Reply(["g"])
    web.routes["/messagecatalog/g"] = Reply({"id": "g", "format": "CloudEvents"})
    web.routes["/messagecatalog/g/messagedefinitions"] = Reply([definition])
    file = tmp_path / "pulled.json"
    assert run_command_line(["catalog", "pull", f"{web.url}/messagecatalog", str(file)]) == 0
    assert json.loads(file.read_text())["groups"] == [{"id": "g", "format": "CloudEvents", "definitions": [definition]}]
    assert list(load([file]).definitions) == ["/messagegroups/g/messages/d"]


TREE: dict[str, Any] = {"messagegroups": {"G": {"messages": {"m": EVENT}}}, "schemagroups": {"S": {"schemas": {}}}}


@pytest.mark.parametrize(
    ("path", "reply", "says"),
    [
        ("/reg/schemagroups", Reply("<html>"), "is not read whole"),
        ("/reg/messagegroups/G/messages", Reply("", 404), "is not read whole"),
        ("/reg/messagegroups/G/messages", Reply("", 503), "answers 503"),
        ("/reg", Reply({"title": "hello"}), "holds no catalog"),
        ("/reg", Reply("", 401), "needs a login"),
    ],
)
def test_half_a_registry_is_never_written(
    web: Web, tmp_path: Path, capfd: pytest.CaptureFixture[str], path: str, reply: Reply, says: str
) -> None:
    registry = Registry(web, TREE, ()).open()
    web.routes[path] = reply
    file = tmp_path / "pulled.json"
    assert run_command_line(["catalog", "pull", registry.url, str(file)]) == 4
    assert says in capfd.readouterr().err
    assert not file.exists()


def test_a_relative_reference_is_warned_of(web: Web, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = "../../../other.json#/messagegroups/H/messages/b"
    registry = Registry(web, {"messagegroups": {"G": {"messages": {"m": {"basemessage": base}}}}}, ()).open()
    web.routes["/other.json"] = Reply({"messagegroups": {"H": {"messages": {"b": EVENT}}}})
    assert run_command_line(["catalog", "pull", registry.url, str(tmp_path / "pulled.json")]) == 0
    assert "differs from the registry: /messagegroups/G/messages/m" in capfd.readouterr().err


def test_what_is_there_stays(web: Web, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    registry = Registry(web, TREE).open()
    file = tmp_path / "catalog.json"
    file.write_text("mine")
    assert run_command_line(["catalog", "pull", registry.url, str(file)]) == 1
    assert (file.read_text(), web.asked) == ("mine", [])
    assert run_command_line(["catalog", "pull", registry.url, str(file), "--force"]) == 0
    assert list(load([file]).definitions) == ["/messagegroups/G/messages/m"]
    assert run_command_line(["catalog", "pull", str(file)]) == 1
    assert "catalog convert" in capfd.readouterr().err
