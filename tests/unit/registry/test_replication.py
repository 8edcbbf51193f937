"""Replication between catalogs in one process: what becomes of writes on both sides, by pulls and by pushes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bindings.http.request import Access
from catalog.documents.connecting import Logins, OriginLogin
from catalog.findings import DocumentError
from registry.http.access import Roles
from registry.replication.peers import Peer, ReplicationRound
from router.cli import run_command_line
from tests.support.catalogs import Side, settle, side, state_of, states

pytestmark = pytest.mark.slow
KINDS = {"messages": "/messagegroups/g/messages/m", "schemas": "/schemagroups/g/schemas/s"}
each_kind = pytest.mark.parametrize("resource", KINDS.values(), ids=KINDS)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with side(tmp_path / "a") as one, side(tmp_path / "b") as other:
        yield one, other


# Asked of messages, whose versions catalogs number, and of schemas, which stand for everything else.


def write(one: Side, resource: str, version: str, name: str) -> None:
    details = "$details" if resource.startswith("/schemagroups") else ""
    one.client.put(f"{resource}/versions/{version}{details}", json={"name": name}).raise_for_status()


def names(one: Side, resource: str) -> list[str]:
    return sorted(each["name"] for each in one.client.get(f"{resource}/versions").json().values())


def group_of(resource: str) -> str:
    return "/".join(resource.split("/")[:3])


@each_kind
@pytest.mark.parametrize("pulling", [True, False], ids=["pull", "push"])
def test_what_is_there_goes_over_once(pair: tuple[Side, Side], resource: str, pulling: bool) -> None:
    one, other = pair
    one.client.put(group_of(resource), json={"labels": {"a": "b"}}).raise_for_status()
    write(one, resource, "1", "n")

    def exchange() -> ReplicationRound:
        return other.pull(one) if pulling else one.push(other)

    done = exchange()
    assert done.applied and not done.refused, done.reported
    assert states(one) == states(other)
    assert other.client.get(group_of(resource)).json()["labels"] == {"a": "b"} and names(other, resource) == ["n"]
    assert exchange().sent == 0
    assert (one.pull(other) if pulling else other.push(one)).applied == 0


@each_kind
def test_deletions_go_over(pair: tuple[Side, Side], resource: str) -> None:
    one, other = pair
    for version in "12":
        write(one, resource, version, version)
    write(one, f"{resource}b", "1", "b")
    write(one, resource.replace("/g/", "/h/"), "1", "h")
    settle(one, other)
    other.client.delete(f"{resource}/versions/1").raise_for_status()
    other.client.delete(f"{resource}b").raise_for_status()
    one.client.delete(group_of(resource).replace("/g", "/h")).raise_for_status()
    settle(one, other)
    assert names(one, resource) == ["2"]
    assert list(one.client.get(group_of(resource).removesuffix("/g")).json()) == ["g"]
    assert one.client.get(f"{resource}b").status_code == 404


@each_kind
def test_both_sides_change_one_version_and_none_of_it_is_lost(pair: tuple[Side, Side], resource: str) -> None:
    one, other = pair
    write(one, resource, "1", "first")
    settle(one, other)
    for version in "12":
        write(one, resource, version, f"mine {version}")
        write(other, resource, version, f"theirs {version}")
    settle(one, other)
    assert names(one, resource) == ["mine 1", "mine 2", "theirs 1", "theirs 2"]


@each_kind
def test_a_change_goes_before_a_deletion_that_had_not_seen_it(pair: tuple[Side, Side], resource: str) -> None:
    one, other = pair
    write(one, resource, "1", "first")
    one.client.patch(group_of(resource), json={"name": "kept"}).raise_for_status()
    settle(one, other)
    one.client.delete(group_of(resource)).raise_for_status()
    write(other, resource, "2", "second")
    settle(one, other)
    assert names(one, resource) == ["second"] and one.client.get(group_of(resource)).json()["name"] == "kept"


@each_kind
def test_groups_that_both_sides_change_have_the_attributes_of_both(pair: tuple[Side, Side], resource: str) -> None:
    one, other = pair
    path = group_of(resource)
    one.client.put(path, json={"name": "n"}).raise_for_status()
    settle(one, other)
    one.client.patch(path, json={"description": "mine"}).raise_for_status()
    other.client.patch(path, json={"labels": {"a": "b"}}).raise_for_status()
    settle(one, other)
    group = one.client.get(path).json()
    assert (group["name"], group["description"], group["labels"]) == ("n", "mine", {"a": "b"})


@each_kind
def test_three_registries_in_a_circle_come_to_rest(tmp_path: Path, resource: str) -> None:
    with side(tmp_path / "a") as a, side(tmp_path / "b") as b, side(tmp_path / "c") as c:
        for number, each in enumerate((a, b, c)):
            write(each, resource, "1", f"s{number}")
            write(each, f"{resource}{number}", "1", "x")
        for _ in range(12):
            if not sum(each.pull(peer).applied for each, peer in ((a, b), (b, c), (c, a))):
                break
        else:
            raise AssertionError("they go on for ever")
        assert states(a) == states(b) == states(c)
        assert names(a, resource) == ["s0", "s1", "s2"]


# Asked of messages alone.


def test_both_sides_give_out_one_number_and_no_version_is_lost(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "first")
    settle(one, other)
    one.post("g", "m", "mine")
    other.post("g", "m", "theirs")
    other.post("g", "m", "theirs too")
    settle(one, other)
    found = one.subjects("g", "m")
    assert sorted(found.values()) == ["first", "mine", "theirs", "theirs too"]
    assert len(found) == 4 and {1, 2} <= found.keys()  # which of them moves behind the rest is for their uids
    for each in pair:
        assert each.client.get("/messagegroups/g/messages/m").json()["versionid"] == str(max(found))


def test_versions_that_the_core_names_descend_alike_on_both_sides(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "first")
    settle(one, other)
    one.client.put("/messagegroups/g/messages/m/versions/v3", json={"name": "n"}).raise_for_status()
    settle(one, other)


def test_both_sides_make_one_definition(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "mine", description="x")
    other.post("g", "m", "theirs")
    settle(one, other)
    assert sorted(one.subjects("g", "m").values()) == ["mine", "theirs"]


def test_definitions_of_two_authorities_lie_side_by_side(tmp_path: Path) -> None:
    with side(tmp_path / "a", "http://one.example/cat") as one, side(tmp_path / "b", "http://two.example/cat") as two:
        one.post("g", "m", "mine")
        two.post("g", "m", "theirs")
        for _ in range(3):
            one.pull(two)
            two.pull(one)
        assert one.pull(two).sent == two.pull(one).sent == 0
        assert one.subjects("g", "m") == {1: "mine"}
        assert two.subjects("g", "m") == {1: "theirs"}
        (aside,) = [each["id"] for each in one.client.get("/messagecatalog").json() if each["id"] != "g"]
        assert aside.startswith("g@two.example")
        found = one.client.get(f"/messagecatalog/{aside}/messagedefinitions/m").json()
        assert found["authority"] == "http://two.example/cat"
        two.post("g", "m", "theirs again")
        one.client.delete("/messagecatalog/g/messagedefinitions/m").raise_for_status()
        one.pull(two)
        two.pull(one)
        assert one.subjects(aside, "m") == {1: "theirs", 2: "theirs again"}
        assert two.subjects("g", "m") == {1: "theirs", 2: "theirs again"}
        assert len(two.client.get("/messagecatalog").json()) == 2


def test_what_a_catalog_gets_keeps_its_authority(tmp_path: Path) -> None:
    with side(tmp_path / "a", "http://one.example/cat") as one, side(tmp_path / "b", "http://two.example/cat") as two:
        one.post("g", "m", "mine")
        two.pull(one)
        uri = "http://one.example/cat/g/messagedefinitions/m/versions/1"
        for each in (one, two):
            assert (
                each.client.get("/messagedefinition", params={"uri": uri}).json()["authority"]
                == uri.partition("/g/")[0]
            )
        assert one.pull(two).applied == 0
        assert "authority" not in one.client.get("/messagegroups/g/messages/m").json()


def test_pages_are_bounded_and_positions_kept(pair: tuple[Side, Side]) -> None:
    one, other = pair
    messages = {f"m{number}": {"name": f"n{number}"} for number in range(210)}
    one.client.post("/messagegroups/g/messages", json=messages).raise_for_status()
    page = one.client.get("/messagecatalog?changes=0&limit=9999").json()
    assert (len(page["changes"]), page["more"]) == (200, True)
    assert other.pull(one).sent == 211
    assert state_of(other.client) == state_of(one.client)


def test_all_changes_that_were_refused_are_counted_and_the_first_are_told(tmp_path: Path) -> None:
    access, roles = Access(bearer={"clerk": "c-token"}), Roles(frozenset(), {"clerk": ("/messagegroups/ours*",)})
    with side(tmp_path / "a") as one, side(tmp_path / "b", access=access, roles=roles) as other:
        groups: dict[str, Any] = {f"g{number:03d}": {} for number in range(230)}
        one.client.post("/messagegroups", json=groups).raise_for_status()
        login = OriginLogin(other.url.removesuffix("/messagecatalog"), bearer="c-token")
        peer = Peer(other.url, "push", logins=Logins([login]))
        done = one.exchange.run(peer, "push")
        assert (done.sent, done.applied, done.refused, len(done.reported)) == (230, 0, 230, 20)
        assert [subject for subject, _ in done.reported] == [f"/messagegroups/{each}" for each in sorted(groups)[:20]]


def test_a_push_without_news_asks_the_peer(tmp_path: Path) -> None:
    with side(tmp_path / "a") as one:
        with side(tmp_path / "b") as other:
            one.post("g", "m", "a")
            assert one.push(other).applied == 2
            peer, port = Peer(other.url), other.client.base_url.port
            assert (one.exchange.run(peer, "push").sent, one.push(other).answered) == (0, True)
        with pytest.raises(DocumentError):
            one.exchange.run(peer, "push")
        with side(tmp_path / "c", port=port) as emptied:
            assert emptied.url == peer.url
            assert one.exchange.run(peer, "push").applied == 2
            assert state_of(emptied.client) == state_of(one.client)


def test_catalogs_that_are_none(pair: tuple[Side, Side], tmp_path: Path) -> None:
    one, other = pair
    for url in ("http://127.0.0.1:9/messagecatalog", f"{other.client.base_url}/messagegroups", one.url):
        one.post("g", "m", "x")
        for direction in ("pull", "push"):
            with pytest.raises(DocumentError):
                one.exchange.run(Peer(url), direction)
    assert one.subjects("g", "m") == {1: "x", 2: "x", 3: "x"}


def test_rounds_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with side(tmp_path / "a") as one:
        one.post("g", "m", "x")
        config = tmp_path / "registry.yaml"
        config.write_text(f"open: true\nauthority: urn:corp\nreplication: [{{url: '{one.url}'}}]\n")
        assert run_command_line(["registry", "pull", str(config)]) == 0
        assert f"pull {one.url}: 2 changes, 2 of them new" in capsys.readouterr().out
        assert run_command_line(["registry", "push", str(config), one.url]) == 0
        assert "2 changes, 0 of them new" in capsys.readouterr().out
        assert run_command_line(["registry", "pull", str(config), "http://other.example/c"]) == 1
        assert "no such catalog in replication" in capsys.readouterr().err
