"""What documents name by address and do not show: read as references are, and never taken for what takes everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog import references
from catalog.documents.fetching import Fetcher
from catalog.load import load
from catalog.model import Catalog
from router.matching.records import RecordMatcher
from tests.support.registry import Registry
from tests.support.web import Reply, Web

M = "/messagegroups/G/messages/M"
EVENT = {"format": "CloudEvents/1.0", "metadata": {"attributes": {"type": {"value": "t"}}}}
LISTED = {"id": "M", "name": "m", "format": "CloudEvents/1.0", "version": 3, "epoch": 1}
DEFINITIONS = "/definitionGroups/G/definitions"
ABOUT = {"unreadable-document", "unreachable-reference", "network-off", "not-a-catalog"}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def told(catalog: Catalog) -> list[tuple[str, str, str]]:
    return [(f.severity, f.rule, f.pointer) for f in catalog.findings if f.rule in ABOUT]


def outcome(catalog: Catalog, kind: str) -> Any:
    names = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": kind}
    headers = [{"name": name, "value": value} for name, value in names.items()]
    record = {"protocol": "HTTP", "native": {"headers": headers}}
    (found,) = RecordMatcher(catalog).decide([json.dumps(record)])
    return found.get("message") or found["reason"]


def network() -> Fetcher:
    return Fetcher(network=True)


def test_a_file_may_name_a_live_registry(tmp_path: Path, web: Web) -> None:
    tree = {"messagegroups": {"G": {"messages": {"M": {"protocol": "KAFKA"}, "N": {"protocol": "NATS"}}}}}
    registry = Registry(web, tree, page=1).open()
    groups = {"messagegroupsurl": f"{registry.url}/messagegroups"}
    messages = {"messagegroups": {"G": {"messagesurl": f"{registry.url}/messagegroups/G/messages"}}}
    for document in (groups, messages):
        catalog = load([write(tmp_path / "c.json", document)], fetcher=network())
        assert (list(catalog.definitions), told(catalog)) == ([M, "/messagegroups/G/messages/N"], [])


def registry_of_0_4(web: Web, own: str, *, count: int = 1, nested: bool = False) -> None:
    """Serve a registry of the CloudEvents Registry API, which calls itself *own* and shows definitions when asked."""

    def entity(name: str, shown: bool) -> dict[str, Any]:
        event = {**EVENT, "metadata": {"attributes": {"type": {"value": f"t{name}"}}}}
        return {
            **LISTED,
            "id": name,
            "self": f"{own}{DEFINITIONS}/{name}",
            **({"definition": event} if shown else {}),
        }

    def groups(request: Any) -> dict[str, Any]:
        shown = nested and "inline" in request.target
        group: dict[str, Any] = {
            "id": "G",
            "definitionsURL": own + DEFINITIONS,
            "definitionsCount": count,
        }
        return {"G": {**group, **({"definitions": listed(shown)} if shown else {})}}

    def listed(shown: bool) -> dict[str, Any]:
        return {str(number): entity(str(number), shown) for number in range(count)}

    def root(request: Any) -> Reply:
        top = {"specVersion": "0.4", "self": f"{own}/", "definitionGroupsURL": f"{own}/definitionGroups"}
        inline = nested and "inline" in request.target
        return Reply({**top, **({"definitionGroups": groups(request)} if inline else {})})

    web.routes["/"] = root
    web.routes["/definitionGroups"] = lambda request: Reply(groups(request))
    web.routes[DEFINITIONS] = lambda request: Reply(listed(False))
    for number in range(count):
        event = {**EVENT, "metadata": {"attributes": {"type": {"value": f"t{number}"}}}}
        web.routes[f"{DEFINITIONS}/{number}"] = Reply(event)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("own", ["", "http://registry.invalid:1"])
def test_a_live_registry_of_older_days(web: Web, own: str, nested: bool) -> None:
    registry_of_0_4(web, own or web.url, nested=nested, count=2)
    catalog = load([f"{web.url}/"], fetcher=network())
    assert told(catalog) == []
    found = [outcome(catalog, kind) for kind in ("t0", "t1", "t2")]
    assert found == ["/messagegroups/G/messages/0", "/messagegroups/G/messages/1", "no-match"]


@pytest.mark.slow
def test_a_registry_that_lists_many(web: Web) -> None:
    registry_of_0_4(web, web.url, count=300)
    catalog = load([f"{web.url}/"], fetcher=network())
    assert (told(catalog), len(catalog.definitions)) == ([], 300)


def test_there_is_an_end_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "MAX_DOCUMENTS", 2)
    write(tmp_path / "m.json", {"M": {"protocol": "KAFKA"}})
    source = write(tmp_path / "c.json", {"messagegroups": {f"G{n}": {"messagesurl": "m.json"} for n in range(4)}})
    catalog = load([source])
    assert len(catalog.definitions) == 2
    assert [rule for _, rule, _ in told(catalog)] == ["unreadable-document"] * 2
