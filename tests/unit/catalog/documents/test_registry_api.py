"""A live registry is read whole, whatever its server can do, and never beyond its own origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalog.documents.fetching import Fetcher, HttpCache
from catalog.findings import DocumentError
from catalog.load import load
from catalog.model import Catalog
from tests.support.cases import read_cases
from tests.support.registry import Registry
from tests.support.web import Reply, Web

TREE: dict[str, Any] = read_cases(Path(__file__).parents[3] / "cases" / "documents" / "registry.yaml")
XIDS = [
    "/endpoints/e/messages/own",
    "/messagegroups/G/messages/base",
    "/messagegroups/G/messages/m",
    "/messagegroups/G/messages/n o",
]


def loaded(url: str, cache: HttpCache | None = None) -> Catalog:
    return load([url], fetcher=Fetcher(network=True, cache=cache))


def troubles(catalog: Catalog) -> list[tuple[str, str]]:
    """Return what was wrong with reading; what lint says of this small catalog is another matter."""
    return [(f.rule, f.message) for f in catalog.findings if f.rule in ("unreadable-document", "not-a-catalog")]


def whole(catalog: Catalog) -> None:
    assert troubles(catalog) == []
    assert list(catalog.definitions) == XIDS
    derived = catalog.definitions["/messagegroups/G/messages/m"]
    assert (derived.envelope, derived.protocol) == ("CloudEvents/1.0", "KAFKA")
    assert catalog.endpoints["/endpoints/e"].candidates == tuple(XIDS)


def test_everything_at_once(web: Web) -> None:
    registry = Registry(web, TREE).open()
    whole(loaded(registry.url))
    assert [target for target, _ in web.asked] == ["/reg", "/reg?inline=*"]


@pytest.mark.parametrize("page", [1000, 1])
@pytest.mark.parametrize("refuses", [False, True])
def test_a_server_without_inline(web: Web, refuses: bool, page: int) -> None:
    whole(loaded(Registry(web, TREE, inline=(), refuses=refuses, page=page).open().url))


def test_a_server_that_wants_to_be_told_what_to_inline(web: Web) -> None:
    wanted = "messagegroups.messages.versions,endpoints.messages.versions,schemagroups.schemas.versions"
    registry = Registry(web, TREE, inline=(wanted,), refuses=True).open()
    whole(loaded(registry.url))
    assert len(web.asked) == 3


def test_a_server_that_is_asked_for_pages_of_everything(web: Web) -> None:
    """All at once is too much for the root; each collection still gives all that is below it."""
    registry = Registry(web, TREE, page=1).open()
    answer = registry.answer
    web.routes["/reg"] = lambda request: (
        Reply({"title": "too_large"}, 406) if "inline" in request.target else answer(request)
    )
    whole(loaded(registry.url))
    assert not any("/messages" in target for target, _ in web.asked)


def test_a_server_that_calls_itself_by_another_name(web: Web) -> None:
    whole(loaded(Registry(web, TREE, inline=(), origin="http://registry.invalid:1").open().url))


def test_a_filter_is_kept(web: Web) -> None:
    registry = Registry(web, TREE).open()
    whole(loaded(f"{registry.url}?filter=endpoints.name=x"))
    assert web.asked[-1][0] == "/reg?filter=endpoints.name=x&inline=*"


@pytest.mark.parametrize(
    ("path", "xids"),
    [
        ("/messagegroups/G", XIDS[1:]),
        ("/messagegroups", XIDS[1:]),
        ("/endpoints/e", XIDS[:1]),
        ("/messagegroups/G/messages/m", XIDS[2:3]),
        ("/messagegroups/G/messages", XIDS[1:]),
    ],
)
@pytest.mark.parametrize("inline", [("*",), ()])
def test_parts_of_a_registry(web: Web, path: str, xids: list[str], inline: tuple[str, ...]) -> None:
    catalog = loaded(Registry(web, TREE, inline=inline, page=2).open().url + path)
    assert troubles(catalog) == []
    assert list(catalog.definitions) == xids
    if path == "/messagegroups/G":
        assert {each.protocol for each in catalog.definitions.values()} == {"KAFKA"}


def test_findings_point_into_what_was_served(web: Web) -> None:
    tree = {"messagegroups": {"G": {"messages": {"m": {"basemessage": "/messagegroups/G/messages/none"}}}}}
    registry = Registry(web, tree, inline=()).open()
    for url, file, pointer in [
        (registry.url, f"{registry.url}/messagegroups/G/messages", "/m"),
        (f"{registry.url}/messagegroups/G", f"{registry.url}/messagegroups/G/messages", "/m"),
        (f"{registry.url}/messagegroups/G/messages/m", f"{registry.url}/messagegroups/G/messages/m", ""),
    ]:
        found = [f for f in loaded(url).findings if f.rule == "dangling-base"]
        assert [(f.file, f.pointer) for f in found] == [(file, pointer)]


def test_addresses_within_the_registry_are_its_own(web: Web) -> None:
    registry = Registry(web, {}, inline=())
    base = f"{registry.url}/messagegroups/G/messages/base"
    tree = {"messagegroups": {"G": {"messages": {"base": {"datacontenttype": "a/b"}, "m": {"basemessage": base}}}}}
    registry.tree = tree
    registry.open()
    for url in (registry.url, f"{registry.url}/messagegroups/G"):
        definition = loaded(url).definitions["/messagegroups/G/messages/m"]
        assert definition.base == ("/messagegroups/G/messages/base",)
        assert definition.datacontenttype == "a/b"


def test_what_cannot_be_read_for_good_is_a_finding(web: Web) -> None:
    registry = Registry(web, TREE, inline=()).open()
    web.routes["/reg/endpoints"] = Reply("<html>", 200)
    web.routes["/reg/schemagroups"] = Reply("", 404)
    catalog = loaded(registry.url)
    assert list(catalog.definitions) == XIDS[1:]
    found = [f for f in catalog.findings if f.rule == "unreadable-document"]
    assert [(f.file, f.severity) for f in found] == [
        (f"{registry.url}/endpoints", "error"),
        (f"{registry.url}/schemagroups", "error"),
    ]


def test_half_a_registry_is_none(web: Web) -> None:
    registry = Registry(web, TREE, inline=()).open()
    good = web.routes["/reg/endpoints"]
    web.routes["/reg/endpoints"] = Reply("", 500)
    with pytest.raises(DocumentError) as caught:
        loaded(registry.url)
    assert caught.value.transient
    web.routes["/reg/endpoints"] = good
    whole(loaded(registry.url))


def test_pages_without_end(web: Web) -> None:
    def answer(request: Any) -> Reply:
        number = int(request.target.rpartition("=")[2]) if "=" in request.target else 0
        return Reply({f"g{number}": {}}, 200, {"Link": f"</reg/messagegroups?p={number + 1}>;rel=next"})

    web.routes["/reg"] = Reply({"registryid": "r", "messagegroupsurl": f"{web.url}/reg/messagegroups"})
    web.routes["/reg/messagegroups"] = answer
    catalog = load([f"{web.url}/reg"], fetcher=Fetcher(network=True, max_fetches=20))
    assert ["limit" in message for _, message in troubles(catalog)] == [True]
    assert len(web.asked) == 20


@pytest.mark.parametrize("details", ["", "$details"])
def test_documents_of_schemas_are_read_where_the_registry_serves_them(web: Web, details: str) -> None:
    """A server that is not asked to inline them shows the metadata of schemas, and the documents at their own path."""
    schema = {"type": "object", "required": ["a"]}
    tree = {
        "messagegroups": {"G": {"messages": {"m": {"dataschemaxid": "/schemagroups/S/schemas/s"}}}},
        "schemagroups": {"S": {"schemas": {"s": {"versions": {"1": {"format": "JsonSchema/draft-07"}}}}}},
    }
    registry = Registry(web, tree, inline=()).open()
    at = f"{registry.url}/schemagroups/S/schemas/s/versions/1"
    web.routes["/reg/schemagroups/S/schemas/s/versions"] = Reply(
        {"1": {"format": "JsonSchema/draft-07", "self": at + details, "xid": "/schemagroups/S/schemas/s/versions/1"}}
    )
    web.routes["/reg/schemagroups/S/schemas/s/versions/1"] = Reply(schema, etag="auto")
    catalog = loaded(registry.url)
    assert [f.message for f in catalog.findings if "schema" in f.rule] == []
    assert catalog.schemas["/schemagroups/S/schemas/s/versions/1"]["document"] == schema
    web.routes["/reg/schemagroups/S/schemas/s/versions/1"] = Reply("", 404)
    (finding,) = [f for f in loaded(registry.url).findings if f.rule == "unresolvable-schema"]
    assert "404" in finding.message


def test_other_documents_are_left_alone(web: Web) -> None:
    """A document that was exported has its collections in it, and its URLs lead nowhere."""
    web.routes["/doc.json"] = Reply(
        {
            "registryid": "r",
            "messagegroupsurl": "#/messagegroups",
            "messagegroups": {"g": {"messagesurl": "http://registry.invalid/x", "messages": {"m": {}}}},
        }
    )
    assert list(loaded(f"{web.url}/doc.json").definitions) == ["/messagegroups/g/messages/m"]
    assert len(web.asked) == 1
