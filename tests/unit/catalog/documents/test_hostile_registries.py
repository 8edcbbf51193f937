"""Registries that mean no good, or are badly made: each is bounded, and an error says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from catalog.documents.fetching import REFETCH_SECONDS, Fetcher, HttpCache
from catalog.findings import DocumentError
from catalog.load import CatalogWatcher, load
from catalog.model import Catalog
from tests.support.registry import Registry
from tests.support.web import Reply, Request, Web, serving

TREE: dict[str, Any] = {"messagegroups": {"G": {"messages": {"m": {"datacontenttype": "a/b"}}}}}
M = "/messagegroups/G/messages/m"
GROUPS = {"G": {"messagegroupid": "G", "messages": {"m": {}}}}


def drip(request: Request) -> None:
    """Send a byte now and then, for good."""
    request.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{")
    while not request.stopping.wait(0.02):
        request.connection.sendall(b" ")


def paged(link: str) -> Callable[[Request], Reply]:
    return lambda request: Reply(GROUPS, 200, {"Link": link})


CASES: list[tuple[str, Any, str, bool]] = [
    ("a page of itself", paged("</reg/messagegroups>;rel=next"), "was read before", False),
    ("a page elsewhere", paged("<http://elsewhere.invalid/g>; rel=next"), "another origin", False),
    ("a page at another port", paged("<http://127.0.0.1:1/g>; rel=next"), "another origin", False),
    ("a page of a local file", paged("<file:///etc/passwd>; rel=next"), "local file", False),
    ("a page of another scheme", paged("<gopher://h/x>; rel=next"), "not supported", False),
    ("a page that is none", paged("<http://[x/>; rel=next"), "is invalid", False),
    ("a redirect to somebody else", Reply("", 302, {"Location": "OTHER/g"}), "another origin", False),
    ("a redirect to itself", Reply("", 307, {"Location": "/reg/messagegroups"}), "more than 5 times", False),
    ("a page of HTML", Reply("<html>", 200, {"Content-Type": "text/html"}), "JSON", False),
    ("a list", Reply([GROUPS]), "no JSON object", False),
    ("a text", Reply('"G"'), "no JSON object", False),
    ("more bytes than may be", Reply(b" " * 5000 + b"{}"), "is larger than 4000 bytes", False),
    ("levels without end", Reply('{"G":' * 1000 + "1" + "}" * 1000), "", False),
    ("an answer that never ends", drip, "took longer than", True),
    ("a 304 that nobody asked for", Reply("", 304), "answers 304", False),
]


@pytest.mark.parametrize(("route", "says", "transient"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_has_its_error(web: Web, route: Any, says: str, transient: bool) -> None:
    with serving() as other:
        other.routes["/g"] = Reply(GROUPS)
        if isinstance(route, Reply) and "Location" in route.headers:
            route.headers["Location"] = route.headers["Location"].replace("OTHER", other.url)
        web.routes["/reg"] = Reply({"registryid": "r", "messagegroupsurl": f"{web.url}/reg/messagegroups"})
        web.routes["/reg/messagegroups"] = route
        # Only what never ends is to meet the limit, however busy the machine is.
        fetcher = Fetcher(network=True, document_bytes=4000, fetch_seconds=0.5 if transient else 30.0)
        if transient:
            with pytest.raises(DocumentError) as caught:
                load([f"{web.url}/reg"], fetcher=fetcher)
            assert (says in str(caught.value), caught.value.transient) == (True, True)
            return
        catalog = load([f"{web.url}/reg"], fetcher=fetcher)
    (finding,) = [f for f in catalog.findings if f.rule == "unreadable-document"]
    assert says in finding.message
    assert len(web.asked) < 20


def test_a_source_may_have_moved(web: Web) -> None:
    """Where the operator's own address leads to is the registry; its pages are there."""
    with serving() as moved:
        registry = Registry(moved, {"messagegroups": {name: {"messages": {"m": {}}} for name in "abc"}}, (), page=1)
        registry.open()
        web.routes["/reg"] = lambda request: Reply("", 308, {"Location": moved.url + request.target})
        catalog = load([f"{web.url}/reg"], fetcher=Fetcher(network=True))
        assert list(catalog.groups) == [f"/messagegroups/{name}" for name in "abc"]


@pytest.mark.parametrize(("inline", "requests"), [(("*",), 1), ((), 3)])
def test_an_unchanged_registry_costs_one_request_where_one_answer_tells_all(
    web: Web, inline: tuple[str, ...], requests: int
) -> None:
    """Without ``?inline`` it is one for the root and each page, and none for what was refused before."""
    registry = Registry(web, TREE, inline, refuses=True).open()
    watcher = CatalogWatcher([registry.url], 0, network=True)
    assert isinstance(watcher.poll(), Catalog)
    web.asked.clear()
    for _ in range(3):
        assert watcher.poll() is None
        assert (len(web.asked), set(web.statuses())) == (requests, {304})


def test_an_entity_tag_that_never_changes(web: Web) -> None:
    """Who answers 304 to whatever it has now is found out when it is asked for all, and not believed any more."""
    content, seconds = ["a/b"], [0.0]

    def answer(request: Request) -> Reply:
        document = {"messagegroups": {"G": {"messages": {"m": {"datacontenttype": content[0]}}}}}
        return Reply(json.dumps(document), etag='"always"')

    web.routes["/c"] = answer
    cache = HttpCache(clock=lambda: seconds[0])

    def seen() -> str | None:
        catalog = load([f"{web.url}/c"], fetcher=Fetcher(network=True, cache=cache))
        return catalog.definitions[M].datacontenttype

    assert seen() == "a/b"
    content[0] = "c/d"
    seconds[0] = REFETCH_SECONDS - 1
    assert (seen(), web.statuses()) == ("a/b", [200, 304])
    seconds[0] = REFETCH_SECONDS
    assert (seen(), web.statuses()) == ("c/d", [200])
    content[0] = "e/f"
    assert (seen(), web.statuses()) == ("e/f", [200])
