"""Replication of all that is no message: schemas with versions and documents, endpoints, our own types, the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from bindings.http.request import Access
from catalog.documents.connecting import Logins, OriginLogin
from catalog.findings import DocumentError
from registry.http.access import Roles
from registry.http.application import RequestLimits
from registry.model.attributes import model_source
from registry.replication import peers
from registry.replication.peers import Peer
from tests.support.catalogs import Side, side, state_of
from tests.support.catalogs import settle as settle_sides
from tests.support.registry import PLACED, SCHEMA, fill, whole_state_of
from tests.support.web import Reply, serving

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with side(tmp_path / "a") as one, side(tmp_path / "b") as other:
        yield one, other


def settle(*sides: Side) -> dict[str, Any]:
    """Pull to and fro until nothing changes, and return what all have."""
    settle_sides(*sides)
    return whole_state_of(sides[0].client)


def put(client: httpx.Client, path: str, body: Any) -> None:
    client.put(path, json=body).raise_for_status()


def schema(client: httpx.Client, version: str, text: str, **more: Any) -> None:
    body = {"format": "JsonSchema/draft-07", "schema": {"title": text}, **more}
    put(client, f"{SCHEMA}/versions/{version}$details", body)


def test_what_a_message_refers_to_is_there_too(pair: tuple[Side, Side]) -> None:
    one, other = pair
    fill(one.client)
    binary = bytes(range(256))
    one.client.put("/schemagroups/shop/schemas/b", content=binary, headers={"content-type": "a/b"}).raise_for_status()
    put(one.client, "/schemagroups/shop/schemas/away$details", {"schemaurl": "https://example.com/s"})
    done = other.pull(one)
    assert not done.refused, done.reported
    state = whole_state_of(other.client)
    assert state == whole_state_of(one.client) and state_of(other.client) == state_of(one.client)
    assert other.client.get(other.client.get(PLACED).json()["dataschemauri"]).json()["type"] == "object"
    assert other.client.get("/schemagroups/shop/schemas/b").content == binary
    assert other.client.get("/robots/r2/programs/wash").json()["name"] == "Washing"
    assert other.client.get("/endpoints/web").json()["messagegroups"] == ["/messagegroups/shop"]
    assert other.pull(one).sent == 0 and one.pull(other).applied == 0


def test_default_versions_order_and_meta_go_over(pair: tuple[Side, Side]) -> None:
    one, other = pair
    for version in ("a", "b", "c"):
        schema(one.client, version, version)
    schema(one.client, "d", "d", ancestorid="a")
    settle(one, other)
    sticky = {"defaultversionid": "b", "defaultversionsticky": True, "compatibility": "backward"}
    one.client.patch(f"{SCHEMA}/meta", json=sticky).raise_for_status()
    order = {"a": "d", "c": "a", "d": "d"}
    chain = {name: {"ancestorid": other} for name, other in order.items()}
    one.client.patch(f"{SCHEMA}/versions", json=chain).raise_for_status()
    state = settle(one, other)
    assert state[SCHEMA]["defaultversionid"] == "b" and state[SCHEMA]["compatibility"] == "backward"
    assert {name: state[f"{SCHEMA}/versions/{name}"]["ancestorid"] for name in "abcd"} == {**order, "b": "a"}
    one.client.patch(f"{SCHEMA}/meta", json={"defaultversionsticky": False}).raise_for_status()
    assert settle(one, other)[SCHEMA]["defaultversionsticky"] is False


def test_what_comes_late_is_ordered_as_it_is_at_the_source(
    pair: tuple[Side, Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that were written to again come behind those that descend from them, and pages end anywhere."""
    one, _ = pair
    for version in ("1", "2", "3", "4"):
        schema(one.client, version, version)
    sticky = {"defaultversionid": "2", "defaultversionsticky": True, "compatibility": "backward"}
    one.client.patch(f"{SCHEMA}/meta", json=sticky).raise_for_status()
    for version in ("3", "1"):
        schema(one.client, version, f"{version} again")
    for page in (1, 2, 3):
        monkeypatch.setattr(peers, "PAGE_CHANGES", page)
        with side(tmp_path / f"fresh-{page}") as fresh:
            done = fresh.pull(one)
            assert not done.refused, done.reported
            assert whole_state_of(fresh.client) == whole_state_of(one.client)


def test_a_content_is_taken_though_both_orders_together_would_be_a_cycle(pair: tuple[Side, Side]) -> None:
    one, other = pair
    schema(one.client, "1", "one")
    schema(one.client, "2", "two")
    settle(one, other)
    order = {"1": {"ancestorid": "2"}, "2": {"ancestorid": "2"}}
    other.client.patch(f"{SCHEMA}/versions", json=order).raise_for_status()
    schema(one.client, "2", "two again")
    other.pull(one)
    assert settle(one, other)[f"{SCHEMA}/versions/2"]["schema"] == {"title": "two again"}


def _any_write(chance: Random, sides: tuple[Side, Side], text: str) -> None:
    """Write, reorder, delete, pull or push; what the order of versions forbids is refused."""
    here, version, other = chance.randrange(2), chance.randrange(1, 4), str(chance.randrange(1, 4))
    client, at, body = sides[here].client, f"{SCHEMA}/versions/{version}$details", {"schema": {"title": text}}
    match chance.randrange(11):
        case 0:
            client.put(at, json={**body, "ancestorid": other})
        case 1:
            client.put(at, json=body)
        case 2:
            client.post(f"{SCHEMA}$details", json=body)
        case 3:
            client.delete(f"{SCHEMA}/versions/{version}")
        case 4:
            client.patch(at, json={"ancestorid": other})
        case 5:
            sticky = {"defaultversionid": str(version), "defaultversionsticky": True}
            client.patch(f"{SCHEMA}/meta", json=sticky)
        case 6 | 7:
            sides[here].pull(sides[1 - here])
        case 8 | 9:
            sides[here].push(sides[1 - here])
        case 10:
            client.delete(SCHEMA)


def _settle_after_writes(pair: tuple[Side, Side], seeds: Iterable[int]) -> None:
    for seed in seeds:
        chance = Random(seed)
        for step in range(chance.randrange(4, 16)):
            _any_write(chance, pair, f"{seed}-{step}")
        settle(*pair)
        for each in pair:
            each.client.delete(SCHEMA)
        settle(*pair)


def test_whatever_both_sides_do_to_versions_they_become_alike(pair: tuple[Side, Side]) -> None:
    _settle_after_writes(pair, range(4))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_whatever_both_sides_do_to_versions_a_thousand_times_they_become_alike(pair: tuple[Side, Side]) -> None:
    _settle_after_writes(pair, range(1000))


def test_deletions_go_over(pair: tuple[Side, Side]) -> None:
    one, other = pair
    fill(one.client)
    for name in ("keep", "drop"):
        put(one.client, f"/schemagroups/more/schemas/{name}$details", {"schema": {"a": 1}})
    settle(one, other)
    other.client.delete(f"{SCHEMA}/versions/1").raise_for_status()
    other.client.delete("/schemagroups/more/schemas/drop").raise_for_status()
    one.client.delete("/endpoints/web").raise_for_status()
    one.client.delete("/robots").raise_for_status()
    state = settle(one, other)
    assert f"{SCHEMA}/versions/1" not in state and f"{SCHEMA}/versions/2" in state
    assert {each for each in state if each.startswith(("/robots", "/endpoints", "/schemagroups/more"))} == {
        "/schemagroups/more",
        "/schemagroups/more/schemas/keep",
        "/schemagroups/more/schemas/keep/versions/1",
    }
    one.client.delete("/schemagroups/more").raise_for_status()
    source = one.client.get("/modelsource").json()
    del source["groups"]["robots"]
    put(one.client, "/modelsource", source)  # which their deletion allows
    state = settle(one, other)
    assert "/schemagroups/more" not in state and "robots" not in state["modelsource"]["groups"]
    put(one.client, "/schemagroups/more/schemas/keep$details", {"schema": {"a": 2}})
    assert settle(one, other)["/schemagroups/more/schemas/keep/versions/1"]["schema"] == {"a": 2}


def test_references_and_what_becomes_of_them_go_over(pair: tuple[Side, Side]) -> None:
    one, other = pair
    schema(one.client, "1", "one")
    alias = "/schemagroups/shop/schemas/alias"
    put(one.client, f"{alias}/meta", {"xref": SCHEMA})
    assert settle(one, other)[alias]["xref"] == SCHEMA
    put(one.client, f"{alias}/meta", {"xref": None})
    put(one.client, f"{alias}/versions/9$details", {"schema": {"own": 1}})
    state = settle(one, other)
    assert "xref" not in state[alias] and state[f"{alias}/versions/9"]["schema"] == {"own": 1}
    put(other.client, f"{alias}/meta", {"xref": SCHEMA})
    assert settle(one, other)[alias]["xref"] == SCHEMA


def test_models_that_both_sides_change_have_the_types_of_both(pair: tuple[Side, Side]) -> None:
    one, other = pair
    for each, plural in ((one, "robots"), (other, "rockets")):
        source = model_source()
        source["groups"][plural] = {"singular": plural[:-1], "resources": {}}
        put(each.client, "/modelsource", source)
        put(each.client, f"/{plural}/x", {})
    state = settle(one, other)
    assert {"/robots/x", "/rockets/x"} < state.keys()


def test_what_is_too_large_for_a_peer_holds_nothing_up(tmp_path: Path) -> None:
    with side(tmp_path / "a") as one, side(tmp_path / "b", limits=RequestLimits(max_body=60_000)) as other:
        schema(one.client, "1", "before")
        put(one.client, "/schemagroups/shop/schemas/large$details", {"schema": "x" * 50_000})
        schema(one.client, "2", "after")
        done = one.push(other)
        assert done.refused and all("too large" in why for _, why in done.reported)
        assert other.client.get(SCHEMA).json() == {"title": "after"}
        assert other.client.get("/schemagroups/shop/schemas/large").status_code == 404
        assert one.push(other).sent == 0


def test_a_peer_that_refuses_every_page_misses_nothing_for_good(tmp_path: Path) -> None:
    with side(tmp_path / "a") as one, serving() as web:
        web.routes["/messagecatalog"] = Reply("", 413)
        for name in ("1", "2", "3"):
            schema(one.client, name, name)
        for _ in range(2):
            with pytest.raises(DocumentError, match="too large"):
                one.exchange.run(Peer(f"{web.url}/messagecatalog"), "push")
        with side(tmp_path / "b") as other:
            assert one.push(other).refused == 0
            assert other.client.get(SCHEMA).json() == {"title": "3"}


def test_a_writer_pushes_without_being_asked_for_the_model_that_both_have(tmp_path: Path) -> None:
    access, roles = Access(bearer={"clerk": "c-token"}), Roles(frozenset(), {"clerk": ("/schemagroups/*",)})
    with side(tmp_path / "a") as one, side(tmp_path / "b", access=access, roles=roles) as other:
        source = model_source()
        put(one.client, "/modelsource", {**source, "description": "ours"})
        put(one.client, "/modelsource", source)
        schema(one.client, "1", "first")
        peer = Peer(
            other.url, "push", logins=Logins([OriginLogin(other.url.removesuffix("/messagecatalog"), bearer="c-token")])
        )
        assert one.exchange.run(peer, "push").refused == 0
        put(one.client, "/modelsource", {**source, "description": "ours"})
        refused = one.exchange.run(peer, "push").reported
        assert {subject for subject, _ in refused} == {"/modelsource"}
