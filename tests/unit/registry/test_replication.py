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
from registry.replication.peers import Peer
from router.cli import run_command_line
from tests.support.catalogs import Side, settle, side, state_of

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with side(tmp_path / "a") as one, side(tmp_path / "b") as other:
        yield one, other


def test_what_is_there_is_pulled_once(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "a")
    one.client.put("/messagegroups/h/messages/n", json={"name": "n", "labels": {"a": "b"}}).raise_for_status()
    assert other.pull(one).applied == 4
    assert state_of(other.client) == state_of(one.client)
    assert other.client.get("/messagegroups/h/messages/n").json()["labels"] == {"a": "b"}
    assert other.pull(one).sent == 0
    assert one.pull(other).applied == 0


def test_what_is_there_is_pushed_once(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "a")
    assert one.push(other).applied == 2
    assert state_of(other.client) == state_of(one.client)
    assert one.push(other).sent == 0
    assert other.push(one).applied == 0


def test_deletions_go_over(pair: tuple[Side, Side]) -> None:
    one, other = pair
    for name in "abc":
        one.post("g", name, name)
    one.post("g", "a", "again")
    one.post("h", "m", "m")
    settle(one, other)
    other.client.delete("/messagecatalog/g/messagedefinitions/a/versions/1").raise_for_status()
    other.client.delete("/messagegroups/g/messages/b").raise_for_status()
    one.client.delete("/messagecatalog/h").raise_for_status()
    settle(one, other)
    assert one.subjects("g", "a") == {2: "again"}
    assert list(state_of(one.client)) == ["g"]
    assert one.client.get("/messagecatalog/g/messagedefinitions/b").status_code == 404


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


def test_both_sides_change_one_version_and_none_of_it_is_lost(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "first")
    settle(one, other)
    path = "/messagegroups/g/messages/m/versions/1"
    one.client.patch(path, json={"name": "mine"}).raise_for_status()
    other.client.patch(path, json={"name": "theirs"}).raise_for_status()
    settle(one, other)
    names = [each["name"] for each in one.client.get("/messagegroups/g/messages/m/versions").json().values()]
    assert sorted(names) == ["mine", "theirs"]


def test_a_change_goes_before_a_deletion_that_had_not_seen_it(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "first")
    settle(one, other)
    one.client.delete("/messagecatalog/g").raise_for_status()
    other.client.patch("/messagegroups/g/messages/m", json={"name": "kept"}).raise_for_status()
    settle(one, other)
    assert one.client.get("/messagegroups/g/messages/m").json()["name"] == "kept"
    assert one.client.get("/messagecatalog/g").json()["format"] == "NATS"


def test_a_new_version_goes_before_the_deletion_of_its_group(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.post("g", "m", "first")
    settle(one, other)
    one.client.delete("/messagecatalog/g").raise_for_status()
    other.post("g", "m", "second")
    settle(one, other)
    assert one.subjects("g", "m") == {2: "second"}


def test_groups_that_both_sides_change_have_the_attributes_of_both(pair: tuple[Side, Side]) -> None:
    one, other = pair
    one.client.put("/messagegroups/g", json={"name": "n"}).raise_for_status()
    settle(one, other)
    one.client.patch("/messagegroups/g", json={"description": "mine"}).raise_for_status()
    other.client.patch("/messagegroups/g", json={"labels": {"a": "b"}}).raise_for_status()
    settle(one, other)
    group = one.client.get("/messagegroups/g").json()
    assert (group["name"], group["description"], group["labels"]) == ("n", "mine", {"a": "b"})


def test_three_catalogs_in_a_circle_come_to_rest(tmp_path: Path) -> None:
    with side(tmp_path / "a") as a, side(tmp_path / "b") as b, side(tmp_path / "c") as c:
        for number, each in enumerate((a, b, c)):
            each.post("g", "m", f"s{number}")
            each.post("g", f"m{number}", "x")
        for _ in range(10):
            if not sum(each.pull(peer).applied for each, peer in ((a, b), (b, c), (c, a))):
                break
        else:
            raise AssertionError("they go on for ever")
        assert state_of(a.client) == state_of(b.client) == state_of(c.client)
        assert sorted(a.subjects("g", "m").values()) == ["s0", "s1", "s2"]


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


def test_changes_that_the_other_side_cannot_take_are_told(tmp_path: Path) -> None:
    access = Access(bearer={"clerk": "c-token"})
    roles = Roles(frozenset(), {"clerk": ("/messagegroups/ours*",)})
    with side(tmp_path / "a", access=access, roles=roles) as one:
        headers = {"authorization": "Bearer c-token"}
        seen = {"x": 5}
        change = {"group": "theirs", "stamp": 5, "origin": "x", "seen": seen, "attributes": {}}
        page = {"catalog": "x", "authority": "urn:x", "position": 5, "changes": [change, {**change, "group": "ours"}]}
        told = one.client.post("/messagecatalog", json=page, headers=headers).json()
        assert (told["applied"], [each[0] for each in told["refused"]]) == (1, ["theirs"])
        far = {**change, "group": "ours", "stamp": 2**60, "seen": {"x": 2**60}}
        told = one.client.post("/messagecatalog", json={**page, "changes": [far]}, headers=headers).json()
        assert told["applied"] == 0 and "stamps" in told["refused"][0][1]
        odd = [{**change, "group": name} for name in ("ours/x", "\x00", "", "ours%00")]
        odd += [
            {**change, "group": "ours", "definition": "m", "uid": name, "name": "1"} for name in ("", "\x00", "a" * 200)
        ]
        told = one.client.post("/messagecatalog", json={**page, "changes": odd}, headers=headers).json()
        assert (told["applied"], len(told["refused"])) == (0, len(odd))
        assert one.client.post("/messagecatalog", json={"changes": 5}, headers=headers).status_code == 400
        assert one.client.get("/messagecatalog?changes=x", headers=headers).status_code == 400


def test_all_changes_that_were_refused_are_counted_and_the_first_are_told(tmp_path: Path) -> None:
    access, roles = Access(bearer={"clerk": "c-token"}), Roles(frozenset(), {"clerk": ("/messagegroups/ours*",)})
    with side(tmp_path / "a") as one, side(tmp_path / "b", access=access, roles=roles) as other:
        groups: dict[str, Any] = {f"g{number:03d}": {} for number in range(230)}
        one.client.post("/messagegroups", json=groups).raise_for_status()
        login = OriginLogin(other.url.removesuffix("/messagecatalog"), bearer="c-token")
        peer = Peer(other.url, "push", logins=Logins([login]))
        done = one.exchange.run(peer, "push")
        assert (done.sent, done.applied, done.refused, len(done.reported)) == (230, 0, 230, 20)
        assert [subject for subject, _ in done.reported] == sorted(groups)[:20]


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
