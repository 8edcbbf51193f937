"""Pages for people: who gets them and who the API, what they show, and that nothing from outside becomes markup."""

from __future__ import annotations

import base64
import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from lxml import html

from bindings.http.request import Access
from registry.http import pages
from registry.http.access import Roles
from registry.http.application import RequestLimits
from tests.support.registry import PLACED, SCHEMA, fill, served

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PAGES = (
    *("/", "/messagegroups", "/messagegroups/shop", "/messagegroups/shop/messages", PLACED, f"{PLACED}/meta"),
    *(f"{PLACED}/versions", f"{PLACED}/versions/1", SCHEMA, f"{SCHEMA}?view=diff", f"{SCHEMA}?view=history"),
    *("/?view=history", "/?view=findings", "/messagegroups/shop?view=findings", "/?q=order", "/endpoints/web"),
    *("/robots", "/robots/r2", "/robots/r2/programs/wash"),
)
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u0007"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(tmp_path_factory.mktemp("shop")) as client:
        fill(client)
        yield client


def tree_of(answer: httpx.Response) -> Any:
    return html.fromstring(answer.text)


def seen(client: httpx.Client, path: str, status: int = 200, login: Mapping[str, str] | None = None) -> Any:
    """Return the tree of a page."""
    answer = client.get(path, headers={**BROWSER, **(login or {})})
    assert answer.status_code == status and answer.headers["content-type"] == "text/html; charset=utf-8", answer.text
    return tree_of(answer)


def text_of(tree: Any) -> str:
    return " ".join(tree.find(".//main").text_content().split())


def rows(tree: Any, name: str) -> list[list[str]]:
    """Return the cells of a table."""
    (table,) = tree.xpath(f"//table[@aria-label='{name}']")
    return [[" ".join(cell.text_content().split()) for cell in row] for row in table.iterfind("./tbody/tr")]


@pytest.mark.parametrize(
    "accept",
    [
        *("*/*", "application/json", "", "application/problem+json", "application/json, text/html"),
        *("text/html;q=0.5, application/json", "text/html;q=0", "text/*", "text/html;q=x"),
        *("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "text/html, image/gif, image/jpeg, */*; q=0.2"),
    ],
)
def test_whoever_does_not_prefer_html_gets_the_api(shop: httpx.Client, accept: str) -> None:
    for path in ("/", "/messagegroups", PLACED):
        answer = shop.get(path, headers={"accept": accept})
        assert answer.headers["content-type"].startswith("application/json") and answer.headers["vary"] == "Accept"
    bare = shop.build_request("GET", "/")
    del bare.headers["accept"]
    assert shop.send(bare).json()["registryid"] == "registry"
    assert shop.get(SCHEMA, headers={"accept": accept}).json()["type"] == "object"


def test_browsers_get_the_api_where_they_ask_for_what_only_it_has(shop: httpx.Client) -> None:
    for path in ("/?inline=*", f"{SCHEMA}$details", "/model", "/capabilities", "/openapi.json", "/history.json"):
        answer = shop.get(path, headers=BROWSER)
        assert answer.headers["content-type"].startswith("application/json"), path
    assert "registries" in shop.get("/.well-known/xregistry", headers=BROWSER).json()
    assert shop.put("/robots/r3", json={}, headers=BROWSER).json()["robotid"] == "r3"
    assert shop.delete("/robots/r3", headers=BROWSER).status_code == 204
    assert shop.get("/cloudevents/schemaGroups", headers=BROWSER).headers["content-type"].startswith("application/json")


def test_what_writers_wrote_is_no_page_of_ours(shop: httpx.Client) -> None:
    evil = {"content-type": "text/html"}
    shop.put("/schemagroups/shop/schemas/evil", content=SCRIPT.encode(), headers=evil).raise_for_status()
    answer = shop.get("/schemagroups/shop/schemas/evil?specversion=1.0-rc4", headers=BROWSER)
    assert answer.content == SCRIPT.encode()
    assert answer.headers["content-security-policy"].endswith("sandbox")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in shop.get("/schemagroups/shop/schemas/evil").headers


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_a_policy_that_runs_nothing_and_links_that_lead_somewhere(shop: httpx.Client, path: str) -> None:
    answer = shop.get(path, headers=BROWSER)
    tree = tree_of(answer)
    (style,) = tree.xpath("//style/text()")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';") and "unsafe" not in policy
    assert not tree.xpath("//script|//@style|//@onclick|//iframe|//object")
    assert tree.xpath("count(//h1)") == 1 and tree.get("lang") == "en"
    assert len(set(tree.xpath("//@id"))) == len(tree.xpath("//@id"))
    for link in set(tree.xpath("//a/@href")):
        if link.startswith("/"):
            assert shop.get(link, headers=BROWSER).status_code == 200, link


def test_the_root_lists_all_types_and_custom_ones(shop: httpx.Client) -> None:
    types = {each[0]: each[1:] for each in rows(seen(shop, "/"), "Group types")}
    assert types["robots"] == ["1", "programs"] and types["messagegroups"] == ["1", "messages"]
    assert ["wash", "Washing"] == rows(seen(shop, "/robots/r2"), "/robots/r2/programs")[0][:2]


def test_the_view_that_is_shown_is_marked(shop: httpx.Client) -> None:
    for path, label in (("/", "Overview"), ("/robots", "Overview"), (f"{SCHEMA}?view=diff", "Differences")):
        assert seen(shop, path).xpath("//nav[@aria-label='Views']//a[@aria-current='page']/text()") == [label]


def test_a_message_shows_what_counts_and_where_it_comes_from(shop: httpx.Client) -> None:
    tree = seen(shop, PLACED)
    counts = {name: more for name, *more in rows(tree, "Effective definition")}
    assert counts["protocol"] == ["HTTP", "", "", "/messagegroups/shop"]
    base = "/messagegroups/shop/messages/order"
    assert counts["envelopemetadata.source"][:3] == ["/shops/{shop}", "uritemplate", "yes"]
    assert f"value: {base}" in counts["envelopemetadata.source"][3]
    assert f'value: the message itself, instead of "order" of {base}' in counts["envelopemetadata.type"][3]
    assert "required: CloudEvents" in counts["envelopemetadata.type"][3]
    assert tree.xpath(f"//a[@href='{SCHEMA}']") and tree.xpath(f"//a[@href='{base}']")


def test_versions_are_compared(shop: httpx.Client) -> None:
    tree = seen(shop, f"{SCHEMA}?view=diff&from=1&to=2")
    added = tree.xpath("//code[@class='add']/text()")
    assert any("currency" in line for line in added) and not tree.xpath("//code[@class='del']")
    back = seen(shop, f"{SCHEMA}?view=diff&from=2&to=1")
    assert back.xpath("//code[@class='del']/text()") == [line.replace("+", "-", 1) for line in added]
    assert "No differences" in text_of(back)
    seen(shop, f"{SCHEMA}?view=diff&from=1&to=9", 404)
    changed = "/robots/r2/programs/dry"
    for version, name in (("a", "Old"), ("b", "New")):
        shop.put(f"{changed}/versions/{version}", json={"name": name}).raise_for_status()
    found = rows(seen(shop, f"{changed}?view=diff&from=a&to=b"), "Different attributes")
    assert found == [["/name", '"Old"', '"New"']]


def test_texts_are_compared_line_by_line_within_bounds() -> None:
    many = [str(number) for number in range(pages.MAX_LINES)]
    assert pages.diff_lines(many, [*many, "more"]) is None
    for others in (many[1:], ["x" + line for line in many], random.Random(5).choices(many, k=pages.MAX_LINES)):
        lines = pages.diff_lines(many, others) or []
        assert [text for sign, text in lines if sign != "+"] == many
        assert [text for sign, text in lines if sign != "-"] == others


def test_findings_of_an_entity_and_of_all(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        fill(client)
        message = {"basemessage": "/messagegroups/shop/messages/away"}
        client.put("/messagegroups/shop/messages/odd", json=message).raise_for_status()
        for path in ("/messagegroups/shop/messages/odd", "/?view=findings", "/messagegroups/shop?view=findings"):
            tree = seen(client, path)
            found = rows(tree, "Findings")
            assert any("away" in each[3] and each[1] == "warning" for each in found), path
        assert tree.xpath("//a[@href='/messagegroups/shop/messages/odd']")
        assert "No findings." in text_of(seen(client, f"{SCHEMA}?view=findings"))
        many = {f"m{number:03d}": message for number in range(150)}
        client.post("/messagegroups/shop/messages", json=many).raise_for_status()
        linted, path = set(), "/?view=findings"
        while path:
            tree = seen(client, path)
            linted |= {"/".join(each[2].split("/")[:5]) for each in rows(tree, "Findings")}
            path = next(iter(tree.xpath("//a[@rel='next']/@href")), "")
        assert {f"/messagegroups/shop/messages/{name}" for name in many} <= linted


def test_collections_and_searches_go_on_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as client:
        fill(client)
        many = {f"r{number:03d}": {"name": f"Robot {number:03d}"} for number in range(120)}
        client.post("/robots", json=many).raise_for_status()
        monkeypatch.setattr(pages, "MAX_SCANNED", 40)

        def all_of(path: str, name: str) -> list[str]:
            found: list[str] = []
            while path:
                tree = seen(client, path)
                here = rows(tree, name) if tree.xpath(f"//table[@aria-label='{name}']") else []
                assert len(here) <= 50
                found += [each[0] for each in here]
                path = next(iter(tree.xpath("//a[@rel='next']/@href")), "")
            return found

        assert all_of("/robots", "/robots") == [*many, "r2"]
        assert all_of("/?q=ROBOT%200", "Found") == [f"/robots/{name}" for name in list(many)[:100]]
        assert all_of("/?q=100%25", "Found") == all_of("/?q=zzz", "Found") == []
        assert all_of("/?q=order.pl", "Found") == [PLACED, f"{PLACED}/versions/1"]
        assert all_of(f"/?q={PLACED}", "Found")[0] == PLACED
        assert f"{PLACED}/versions/1" in all_of("/?q=once%20for%20each", "Found")


def test_history_says_who_to_readers_with_credentials_alone(tmp_path: Path) -> None:
    access, roles = Access(basic={"ann": "pw"}), Roles(frozenset(("ann",)), anonymous=True)
    login = {"authorization": f"Basic {base64.b64encode(b'ann:pw').decode()}"}
    with served(tmp_path, access=access, roles=roles) as client:
        fill(client, **login)
        client.patch("/robots/r2", json={"arms": 3}, headers=login).raise_for_status()
        path = "/robots/r2?view=history"
        known = rows(seen(client, path, login=login), "History")
        assert known[0][1:4] == ["ann", "updated", "/robots/r2"] and "/arms: 2 becomes 3" in known[0][4]
        assert len(known) == 5  # with what is below it
        unknown = client.get(path, headers=BROWSER)
        assert "ann" not in unknown.text and unknown.headers["cache-control"] == "no-store"
        assert len(rows(tree_of(unknown), "History")) == 5
    with served(tmp_path, access=access, roles=Roles(frozenset(("ann",)))) as client:
        refused = client.get("/", headers=BROWSER)
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic")
        seen(client, "/", login=login)


def test_pages_are_asked_for_again_by_their_tag(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        fill(client)
        page = client.get(PLACED, headers=BROWSER)
        assert page.headers["vary"] == "Accept" and page.headers["cache-control"] == "private, no-cache"
        again = client.get(PLACED, headers={**BROWSER, "if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content, again.headers["vary"]) == (304, b"", "Accept")
        api = client.get(PLACED, headers={"if-none-match": page.headers["etag"]})
        assert api.status_code == 200 and api.headers["etag"] != page.headers["etag"]
        assert client.head(PLACED, headers=BROWSER).headers["content-length"] == str(len(page.content))
        client.patch("/messagegroups/shop", json={"protocol": "KAFKA"}).raise_for_status()
        after = client.get(PLACED, headers={**BROWSER, "if-none-match": page.headers["etag"]})
        assert after.status_code == 200 and "KAFKA" in after.text


def test_nothing_from_outside_becomes_markup(tmp_path: Path) -> None:
    with served(tmp_path, lint="off") as client:
        fill(client)
        odd: dict[str, Any] = {
            "name": SCRIPT,
            "description": "javascript:alert(1)",
            "documentation": "https://a.example/",
        }
        odd |= {"labels": {"x": SCRIPT}, "dataschema": {SCRIPT: [SCRIPT]}, "odd": {"more": SCRIPT}}
        odd |= {
            "envelope": SCRIPT,
            "envelopemetadata": {"type": {"value": SCRIPT}},
            "basemessage": "javascript:alert(1)",
        }
        message = "/messagegroups/shop/messages/odd"
        put = client.put(message, json=odd)
        assert put.is_success, put.text
        client.put(f"{message}/versions/2", json={**odd, "name": f"{SCRIPT}2"}).raise_for_status()
        client.patch("/", json={"name": SCRIPT}).raise_for_status()
        views = ("", "?view=history", "?view=diff", "?view=findings", f"?q={quote(SCRIPT)}", f"?view={quote(SCRIPT)}")
        for path in [
            *(message + each for each in views),
            "/",
            f"/{quote(SCRIPT)}",
            "/messagegroups/shop",
            f"{message}/versions",
        ]:
            answer = client.get(path, headers=BROWSER)
            tree = tree_of(answer)
            assert not tree.xpath("//script|//img|//@onerror"), path
            assert not [
                link for link in tree.xpath("//@href") if not re.match(r"/|https://a\.example/|#main$|data:,$", link)
            ]
            assert "\u0007" not in answer.text


@pytest.mark.slow
def test_large_values_are_cut(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        fill(client)
        deep: Any = "x"
        for _ in range(90):
            deep = {"a": deep}
        wide = {f"k{number}": ["y" * 50] * 20 for number in range(1500)}
        client.put(
            PLACED, json={"dataschema": {"text": "n" * 300_000, "wide": wide, "deep": deep}, **wide}
        ).raise_for_status()
        client.put("/schemagroups/shop/schemas/big", content=b"line\n" * 200_000).raise_for_status()
        for path in (PLACED, "/messagegroups/shop", f"{PLACED}?view=history", "/schemagroups/shop/schemas/big"):
            answer = client.get(path, headers=BROWSER)
            assert answer.status_code == 200 and len(answer.content) < 700_000, path


def test_links_stay_below_the_path_of_the_registry(tmp_path: Path) -> None:
    with served(tmp_path, base="https://example.com/registries/one/") as client:
        fill(client)
        tree = seen(client, PLACED)
        links = [each for each in tree.xpath("//a/@href|//form/@action") if each != "#main"]
        assert links and all(each.startswith("/registries/one/") for each in links)


def test_what_is_not_there_is_said_on_a_page(shop: httpx.Client) -> None:
    assert "was not found" in text_of(seen(shop, "/messagegroups/away", 404))
    assert "was not found" in text_of(seen(shop, "/messagegroups/away/messages", 404))
    assert "Unknown group type" in text_of(seen(shop, "/nothing", 400))
    for query in ("view=away", "view=history&cursor=x", "q=%00", "view=history&view=diff", "cursor=%E4"):
        seen(shop, f"/messagegroups?{query}", 400)
    seen(shop, "/messagegroups?view=findings", 404)
    seen(shop, "/robots/r9?view=history", 404)
    shop.put("/robots/r9", json={}).raise_for_status()
    shop.delete("/robots/r9").raise_for_status()
    assert [each[2] for each in rows(seen(shop, "/robots/r9?view=history"), "History")] == ["deleted", "created"]


def test_an_answer_is_no_larger_than_the_api_allows(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(max_answer=20_000)) as client:
        fill(client)
        client.put(PLACED, json={"dataschema": "n" * 30_000}).raise_for_status()
        assert "too large" in text_of(seen(client, "/messagegroups/shop", 406)).lower()
