"""The HTTP API of a message catalog (CNCF Message Catalog 0.1) is read whole: groups, definitions, latest versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.documents.fetching import Fetcher
from catalog.findings import DocumentError
from catalog.load import CatalogWatcher, PendingCatalog, load
from catalog.model import Catalog
from router.matching.records import RecordMatcher
from tests.support.cases import read_cases
from tests.support.web import Reply, Request, Web

CASES = read_cases(Path(__file__).parents[3] / "cases" / "documents" / "message_catalog.yaml")

ROOT = "/api/messagecatalog"


def event(name: str, version: int, kind: str) -> dict[str, Any]:
    attributes = {"specversion": {"value": "1.0", "required": True}, "type": {"value": kind, "required": True}}
    common = {"id": name, "authority": "example.com", "format": "CloudEvents"}
    return {**common, "version": version, "definition": {"attributes": attributes}}


def group(name: str) -> dict[str, Any]:
    """Return what the API shows of a group: which definitions it has, and not what they hold."""
    return {"messagedefinitions": [{"id": "a"}], "id": name, "specversion": "0.1", "format": "CloudEvents"}


class Service:
    """A message catalog with the groups g and h; *form* says how it lists, *page* how many at a time."""

    def __init__(self, web: Web, form: str, page: int = 100) -> None:
        self.web, self.form, self.page = web, form, page
        self.groups = {
            "g": {"a": [event("a", 1, "a1")], "b c/d": [event("b c/d", 2, "b2"), event("b c/d", 10, "b10")]},
            "h": {"z": [event("z", 1, "z1")]},
        }

    def open(self) -> Service:
        """Answer every path of the API."""
        self.web.routes[ROOT] = lambda request: self._listed(request, ROOT, [group(name) for name in self.groups])
        for name, definitions in self.groups.items():
            at = f"{ROOT}/{name}"
            self.web.routes[at] = Reply(group(name), etag="auto")
            self._serve(f"{at}/messagedefinitions", definitions)
        return self

    def _serve(self, at: str, definitions: dict[str, list[dict[str, Any]]]) -> None:
        latest = [versions[-1] for versions in definitions.values()]
        self.web.routes[at] = lambda request: self._listed(request, at, latest)
        for name, versions in definitions.items():
            path = f"{at}/{name.replace(' ', '%20').replace('/', '%2F')}"
            bare = {key: value for key, value in versions[-1].items() if key not in ("definition", "version")}
            self.web.routes[path] = Reply(bare if self.form == "versions" else versions[-1], etag="auto")
            self.web.routes[f"{path}/versions"] = Reply([each["version"] for each in versions], etag="auto")
            for each in versions:
                self.web.routes[f"{path}/versions/{each['version']}"] = Reply(each, etag="auto")

    def _listed(self, request: Request, at: str, members: list[dict[str, Any]]) -> Reply:
        start = int(request.target.rpartition("=")[2]) if "=" in request.target else 0
        shown = members[start : start + self.page]
        more = f'<{at}?from={start + self.page}>; rel="next"' if start + self.page < len(members) else ""
        forms: dict[str, Any] = {
            "ids": [each["id"] for each in shown],
            "versions": [{"id": each["id"]} for each in shown],
            "objects": shown,
            "named": {"groups" if at == ROOT else "messagedefinitions": shown},
            "map": {each["id"]: each for each in shown},
        }
        return Reply(forms[self.form], 200, {"Link": more} if more else {}, etag="auto")


def matched(catalog: Catalog, *kinds: str) -> list[str]:
    def line(kind: str) -> str:
        names = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": kind}
        headers = [{"name": name, "value": value} for name, value in names.items()]
        return json.dumps({"protocol": "HTTP", "native": {"headers": headers}})

    return [each.get("message") or each["reason"] for each in RecordMatcher(catalog).decide([*map(line, kinds)])]


def troubles(catalog: Catalog) -> list[tuple[str, str]]:
    rules = ("unreadable-document", "not-a-catalog", "missing-id", "wrong-shape")
    return [(f.file, f.message) for f in catalog.findings if f.rule in rules]


@pytest.mark.parametrize("page", [100, 1])
@pytest.mark.parametrize("form", ["ids", "objects", "named", "map", "versions"])
def test_a_catalog_is_read_whole(web: Web, form: str, page: int) -> None:
    Service(web, form, page).open()
    catalog = load([web.url + ROOT], fetcher=Fetcher(network=True))
    assert troubles(catalog) == []
    a, b, z = ("/messagegroups/g/messages/a", "/messagegroups/g/messages/b c/d", "/messagegroups/h/messages/z")
    assert matched(catalog, "a1", "b10", "b2", "z1") == [a, b, "no-match", z]


@pytest.mark.parametrize("path", ["/g", "/g/messagedefinitions"])
@pytest.mark.parametrize("form", ["ids", "objects"])
def test_one_group(web: Web, form: str, path: str) -> None:
    Service(web, form).open()
    catalog = load([web.url + ROOT + path], fetcher=Fetcher(network=True))
    assert (troubles(catalog), list(catalog.groups)) == ([], ["/messagegroups/g"])
    assert matched(catalog, "b10", "z1") == ["/messagegroups/g/messages/b c/d", "no-match"]


def test_findings_point_to_where_things_are_written(web: Web) -> None:
    service = Service(web, "ids")
    service.groups["h"]["z"] = [{**event("z", 1, "z1"), "relatedto": "nothing"}]
    service.open()
    catalog = load([web.url + ROOT], fetcher=Fetcher(network=True))
    where = {(f.file, f.pointer) for f in catalog.findings if f.rule == "dangling-relation"}
    assert where == {(f"{web.url}{ROOT}/h/messagedefinitions/z", "/relatedto")}


def test_a_change_is_seen_and_nothing_else_costs_a_body(web: Web) -> None:
    service = Service(web, "ids").open()
    watcher = CatalogWatcher([web.url + ROOT], 0, network=True)
    assert isinstance(watcher.poll(), Catalog)
    web.statuses()
    assert watcher.poll() is None
    assert set(web.statuses()) == {304}
    service.groups["h"]["z"] = [event("z", 2, "z2")]
    service.open()
    changed = watcher.poll()
    assert isinstance(changed, Catalog) and matched(changed, "z2") == ["/messagegroups/h/messages/z"]
    web.routes[f"{ROOT}/h/messagedefinitions"] = Reply("", 503)
    assert isinstance(watcher.poll(), PendingCatalog)


@pytest.mark.parametrize(("path", "returned", "says"), CASES["never"])
def test_what_can_never_be_read_is_a_finding(web: Web, path: str, returned: list[Any], says: str) -> None:
    reply = Reply(*returned)
    service = Service(web, "versions" if "versions" in path else "ids").open()
    assert service.web is web
    web.routes[ROOT + path] = reply
    try:
        catalog = load([web.url + ROOT], fetcher=Fetcher(network=True))
    except DocumentError as error:
        assert error.transient and reply.status == 302
        return
    assert [says in message for _, message in troubles(catalog)] == [True]
    assert matched(catalog, "a1") == ["/messagegroups/g/messages/a"]


def test_a_catalog_that_is_away_is_not_read_by_half(web: Web) -> None:
    Service(web, "ids").open()
    web.routes[f"{ROOT}/h/messagedefinitions/z"] = Reply("", 500)
    with pytest.raises(DocumentError) as caught:
        load([web.url + ROOT], fetcher=Fetcher(network=True))
    assert caught.value.transient


@pytest.mark.parametrize(
    ("path", "document", "xid"),
    [
        (
            "/messagecatalog",
            {"specversion": "0.1", "groups": [{**group("g"), "definitions": [event("a", 1, "t")]}]},
            "",
        ),
        ("/messagecatalog/g.json", {**group("g"), "definitions": [event("a", 1, "t")]}, ""),
        ("/messagecatalog/a.json", event("a", 1, "t"), "/messagegroups/a/messages/a"),
        ("/messagecatalog/x.json", {"messagegroups": {"g": {"messages": {"a": {}}}}}, ""),
    ],
)
def test_documents_at_such_paths_stay_documents(web: Web, path: str, document: Any, xid: str) -> None:
    web.routes[path] = Reply(document)
    catalog = load([web.url + path], fetcher=Fetcher(network=True))
    assert list(catalog.definitions) == [xid or "/messagegroups/g/messages/a"]
    assert len(web.asked) == 1
