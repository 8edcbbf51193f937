"""What becomes of changes that no catalog of ours would give, and of marks that do not fit the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from registry.store.tables import REPLICA
from tests.support.catalog_sides import Side, side


def change(group: str, stamp: int, **more: Any) -> dict[str, Any]:
    """Return a change of the catalog *x*: of a group unless *more* tells otherwise."""
    return {"group": group, "stamp": stamp, "origin": "x", "seen": {"x": stamp}, "attributes": {}, **more}


def version(group: str, name: str, uid: str, stamp: int, **more: Any) -> dict[str, Any]:
    """Return a change of version 1 of a definition."""
    return change(group, stamp, definition=name, uid=uid, **{"name": "1", "authority": "urn:corp", **more})


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
    assert [(name, "stamps" in why) for name, why in refused] == [("g3", True), ("g4", True)]


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
