"""References beyond the sources: what they lead to serves the catalog and is no part of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from catalog.load import load
from catalog.model import Catalog
from tests.support.cases import read_cases
from tests.support.registry import Registry
from tests.support.web import Reply, Web

M = "/messagegroups/G/messages/M"
CASES = read_cases(Path(__file__).parents[3] / "cases" / "documents" / "references.yaml")
ABOUT = {
    *("base-cycle", "base-error", "dangling-base", "dangling-borrow", "dangling-group", "unreachable-reference"),
    *("unreadable-document", "network-off", "not-a-catalog", "wrong-shape"),
}


def group(defaults: dict[str, Any] | None = None, **messages: Any) -> dict[str, Any]:
    return {"messagegroups": {"G": {**(defaults or {}), "messages": messages}}}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def rules(catalog: Catalog) -> list[str]:
    return [f.rule for f in catalog.findings if f.rule in ABOUT]


def test_a_catalog_means_the_same_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "common" / "base.json", group({"protocol": "KAFKA"}, M={"datacontenttype": "a/b"}))
    source = write(tmp_path / "cat" / "c.json", group(M={"basemessage": f"../common/base.json#{M}"}))
    shutil.copytree(tmp_path, tmp_path / "moved" / "elsewhere")
    assert load([tmp_path / "moved" / "elsewhere" / "cat"]).epoch == load([source]).epoch


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_documents(case: Any, tmp_path: Path, web: Web) -> None:
    case = json.loads(json.dumps(case).replace("{web}", web.url).replace("{folder}", str(tmp_path)))
    for name, content in case["files"].items():
        write(tmp_path / name, content)
    for path, content in case.get("web", {}).items():
        web.routes[path] = Reply("", content["status"]) if "status" in content else Reply(content)
    source = case["source"] if "://" in case["source"] else tmp_path / case["source"]
    catalog = load([source], network="web" in case)
    assert list(catalog.definitions) == case["definitions"]
    for xid, values in case.get("values", {}).items():
        definition = catalog.definitions[xid]
        assert {
            name: list(getattr(definition, name)) if name == "base" else getattr(definition, name) for name in values
        } == values
    for xid, value in case.get("types", {}).items():
        assert [each.value for each in catalog.definitions[xid].envelopemetadata if each.name == "type"] == [value]
    assert list(catalog.groups) == case.get("groups", list(catalog.groups))
    if "candidates" in case:
        assert list(catalog.endpoints["/endpoints/e"].candidates) == case["candidates"]
    found = [each for each in catalog.findings if each.rule in ABOUT]
    assert [each.rule for each in found] == case.get("told", [])
    assert [each.file for each in found] == case.get("at", [each.file for each in found])
    assert [each.pointer for each in found] == case.get("pointers", [each.pointer for each in found])
    assert all(case.get("says", "") in each.message for each in found)
    assert list(catalog.pending) == case.get("pending", [])
    assert [target for target, _ in web.asked] == case.get("asked", [target for target, _ in web.asked])


def test_an_inline_message_of_an_endpoint_beyond(tmp_path: Path) -> None:
    """Its options are spelled for the endpoint's protocol, which is no protocol of the message."""
    message = {"protocoloptions": {"topic-name": "t/{x}"}}
    write(tmp_path / "b.json", {"endpoints": {"e": {"protocol": "MQTT/5.0", "messages": {"m": message}}}})
    source = write(
        tmp_path / "a.json", group(M={"protocol": "MQTT/5.0", "basemessage": "b.json#/endpoints/e/messages/m"})
    )
    assert [(p.name, p.value) for p in load([source]).definitions[M].protocoloptions] == [("topic_name", "t/{x}")]


def test_a_message_in_a_live_registry(web: Web, tmp_path: Path) -> None:
    tree = {
        "messagegroups": {"G": {"protocol": "HTTP", "messages": {"B": {"basemessage": "/messagegroups/H/messages/b"}}}}
    }
    tree["messagegroups"]["H"] = {"messages": {"b": {"datacontenttype": "a/b"}}}
    registry = Registry(web, tree).open()
    source = write(tmp_path / "a.json", group(M={"basemessage": f"{registry.url}/messagegroups/G/messages/B"}))
    definition = load([source], network=True).definitions[M]
    assert definition.protocol == "HTTP"
    assert definition.base[0] == f"{registry.url}/messagegroups/G/messages/B"


@pytest.mark.parametrize(
    "document", ["x" * 6000, "a\0b", "pipe", "..", "http://[x", "urn:x:y", "C:\\x", "%ff", "//h/x"]
)
def test_addresses_that_lead_nowhere(tmp_path: Path, document: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    content = group(M={"basemessage": f"{document}#{M}"}, N={"uri": f"{document}/messagegroups/G/messages/X"})
    endpoint = {"messagegroups": [f"{document}#/messagegroups/X", f"{document}/messagegroups/X", f"{document}.json"]}
    catalog = load([write(tmp_path / "a.json", {**content, "endpoints": {"e": endpoint}})])
    assert list(catalog.definitions) == [M]
    assert sorted(rules(catalog)) == ["dangling-base", "dangling-borrow", *["dangling-group"] * 3]
