"""What becomes of changes that no catalog of ours would give, and of marks that do not fit the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from bindings.http.request import Access
from catalog.findings import DocumentError
from registry.http.access import Roles
from registry.replication.peers import Peer
from registry.store.engine import REPLICA, VERSIONS
from tests.support.cases import read_cases
from tests.support.catalogs import Side, side
from tests.support.web import Reply, Request, serving

pytestmark = pytest.mark.slow


def change(group: str, stamp: int, **more: Any) -> dict[str, Any]:
    """Return a change of a group by the catalog *x*."""
    xid = f"/messagegroups/{group}"
    return {"xid": xid, "stamp": stamp, "origin": "x", "seen": {"x": stamp}, "attributes": {}, **more}


def version(group: str, message: str, uid: str, stamp: int, **more: Any) -> dict[str, Any]:
    """Return a change of version 1 of a definition."""
    named = {"name": "1", "authority": "urn:corp", **more}
    return {**change(group, stamp), "xid": "", "group": group, "definition": message, "uid": uid, **named}


def give(one: Side, *changes: dict[str, Any], **more: Any) -> Any:
    """Post changes; return the answer's body."""
    page = {"catalog": "x", "authority": "urn:corp", "position": 5, "changes": changes}
    return one.client.post("/messagecatalog", json=page, **more).json()


@pytest.fixture
def one(tmp_path: Path) -> Any:
    with side(tmp_path / "a") as found:
        yield found


def test_the_changes_of_a_page_do_not_take_the_clock_far(one: Side) -> None:
    given = [change(f"g{number}", number * 2**31) for number in range(1, 5)]
    refused = give(one, *given)["refused"]
    assert [(name, "stamps" in why) for name, why in refused] == [
        ("/messagegroups/g3", True),
        ("/messagegroups/g4", True),
    ]


def test_the_clock_has_an_end_for_others(one: Side) -> None:
    with one.exchange._service.session(writing=True) as session:  # no one gets there by changes in a lifetime
        session.reader.connection.execute(update(REPLICA).values(clock=2**62))
    assert "stamps" in give(one, change("g", 2**62 + 1))["refused"][0][1]
    one.post("g", "m", "x")


def test_a_write_of_ours_is_later_than_all_that_its_state_has_seen(one: Side) -> None:
    ours = one.client.get("/messagecatalog?changes=0").json()["catalog"]
    give(one, change("g", 5, seen={"x": 5, ours: 1000}))
    one.client.patch("/messagegroups/g", json={"name": "n"}).raise_for_status()
    (found,) = one.client.get("/messagecatalog?changes=0").json()["changes"]
    assert found["origin"] == ours and found["stamp"] == found["seen"][ours] > 1000


def test_what_is_not_in_the_store_any_more_does_not_come_back_empty(one: Side) -> None:
    for subject in ("first", "second"):
        one.post("g", "m", subject)
    with one.exchange._service.session(writing=True) as session:
        gone = "/messagegroups/g/messages/m/versions/2"
        session.reader.connection.execute(delete(VERSIONS).where(VERSIONS.c.xid == gone))
    third = version("g", "m", "0000000000000009.x", 9, name="3", attributes={"name": "third"})
    assert give(one, third)["applied"] == 1
    assert list(one.client.get("/messagegroups/g/messages/m/versions").json()) == ["1", "3"]


def test_what_maxversions_takes_away_is_told_as_deleted(one: Side) -> None:
    model = one.client.get("/modelsource").json()
    model["groups"]["messagegroups"]["resources"]["messages"]["maxversions"] = 2
    one.client.put("/modelsource", json=model).raise_for_status()
    given = [
        version("g", "m", f"{stamp:016d}.x", stamp, name=str(stamp), createdat=f"2026-01-0{stamp}T00:00:00Z")
        for stamp in range(1, 5)
    ]
    assert give(one, *given)["refused"] == []
    assert list(one.client.get("/messagegroups/g/messages/m/versions").json()) == ["3", "4"]
    changes = one.client.get("/messagecatalog?changes=0").json()["changes"]
    assert {each["name"]: each.get("attributes") for each in changes if each.get("definition")} == {
        "1": None,
        "2": None,
        "3": {},
        "4": {},
    }
    assert give(one, *given)["applied"] == 0


SCHEMA = "/schemagroups/ours/schemas/s/versions/1"
WRITTEN = {"attributes": {}, "createdat": "2026-01-01T00:00:00Z"}
ODD = read_cases(Path(__file__).parents[2] / "cases" / "replication.yaml")
REFUSED: dict[str, dict[str, Any]] = {
    **{name: change("ours", 5) | more for name, more in ODD["changes"].items()},
    **{name: version("ours", "m", "0000000000000009.x", 9) | more for name, more in ODD["versions"].items()},
    "a uid that is too long": version("ours", "m", "a" * 200, 9),
}


def test_what_cannot_be_is_refused_and_told(tmp_path: Path) -> None:
    access = Access(bearer={"clerk": "c-token", "reader": "r-token"})
    roles = Roles(writers={"clerk": ("/messagegroups/ours*", "/schemagroups/ours*")})
    with side(tmp_path / "b", access=access, roles=roles) as one:
        clerk, reader = ({"authorization": f"Bearer {name}-token"} for name in "cr")
        assert give(one, change("ours", 5), headers=reader)["status"] == 403
        assert give(one, *[change("ours", 5)] * 201, headers=clerk)["status"] == 400
        assert one.client.post("/messagecatalog", json={"changes": 5}, headers=clerk).status_code == 400
        assert one.client.get("/messagecatalog?changes=x", headers=clerk).status_code == 400
        done = give(one, *REFUSED.values(), change("", 5, xid="/schemagroups/ours"), headers=clerk)
        assert (done["applied"], done["refusedcount"]) == (1, len(REFUSED)), done["refused"]
        for name, each in REFUSED.items():
            assert give(one, each, headers=clerk)["refusedcount"] == 1, name
        assert one.client.get("/schemagroups", headers=clerk).json().keys() == {"ours"}


def test_a_uid_counts_at_the_place_that_a_change_names(one: Side) -> None:
    one.post("g", "m", "ours")
    (uid,) = [each["uid"] for each in one.client.get("/messagecatalog?changes=0").json()["changes"] if "uid" in each]
    assert give(one, version("h", "n", uid, 9, attributes={"name": "theirs"}))["applied"] == 1
    assert "name" not in one.client.get("/messagegroups/g/messages/m").json()
    assert one.client.get("/messagegroups/h/messages/n").json()["name"] == "theirs"


def test_a_group_whose_name_was_cut_on_its_way_is_known_again(tmp_path: Path) -> None:
    with side(tmp_path / "a", "urn:one") as one, side(tmp_path / "b", "urn:two") as two:
        group = "g" * 120
        one.post(group, "m", "first")
        two.post(group, "m", "theirs")
        two.pull(one)
        one.pull(two)
        (aside,) = [each["id"] for each in two.client.get("/messagecatalog").json() if each["id"] != group]
        two.client.patch(f"/messagegroups/{aside}/messages/m", json={"name": "n"}).raise_for_status()
        one.pull(two)
        assert one.client.get(f"/messagegroups/{group}/messages/m").json()["name"] == "n"


def told(catalog: str, position: int, *, more: bool) -> Reply:
    """Return the answer of a peer to a pull."""
    return Reply({"catalog": catalog, "authority": "urn:x", "position": position, "changes": [], "more": more})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda count: told("x", 0, more=True), "again and again"),
        (lambda count: told("x", 7, more=True), "again and again"),
        (lambda count: told(f"x{count}", 7, more=True), "a different catalog at each request"),
        (lambda count: told("x", 2**63, more=False), "did not return changes"),
        (lambda count: told("x", -1, more=False), "did not return changes"),
    ],
    ids=["no position", "one position", "many catalogs", "beyond all positions", "before all positions"],
)
def test_no_peer_makes_a_pull_endless(one: Side, answer: Callable[[int], Reply], why: str) -> None:
    with serving() as web:
        web.routes["/c"] = lambda request: answer(len(web.asked)) if len(web.asked) < 20 else Reply("", 500)
        with pytest.raises(DocumentError, match=why):
            one.exchange.run(Peer(f"{web.url}/c"), "pull")


def test_no_peer_makes_a_push_endless(one: Side) -> None:
    one.post("g", "m", "x")
    with serving() as web:
        web.routes["/c"] = lambda request: (
            Reply({"catalog": f"x{len(web.asked)}", "applied": 0, "refused": [], "refusedcount": 0})
            if len(web.asked) < 20
            else Reply("", 500)
        )
        assert one.exchange.run(Peer(f"{web.url}/c"), "push").sent == 2
        one.post("g", "m", "y")
        with pytest.raises(DocumentError, match="a different catalog at each request"):
            one.exchange.run(Peer(f"{web.url}/c"), "push")


def test_a_round_ends_where_it_is_to_stop(one: Side) -> None:
    stopping = threading.Event()

    def answer(request: Request) -> Reply:
        if len(web.asked) == 2:
            stopping.set()
        return told("x", len(web.asked) + 1, more=len(web.asked) < 20)

    with serving() as web:
        web.routes["/c"] = answer
        one.exchange.run(Peer(f"{web.url}/c"), "pull", stopping)
        assert len(web.asked) == 3
