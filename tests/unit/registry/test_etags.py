"""A look at a registry that has not changed costs a conditional request and no answer is built for it."""

from __future__ import annotations

from pathlib import Path

from catalog.documents.fetching import Fetcher, HttpCache
from catalog.load import load
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
