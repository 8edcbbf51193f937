"""Messages on their way to the store: grouped, in order, and held while the store takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from bindings.inbox import InboxFull, InboxRowError
from bindings.nats.gateway import MessageStorer, PulledMessage
from bindings.parts import InboxRow

BAD = "bad"


class HeldStore:
    """Keeps each append until the test settles it."""

    def __init__(self) -> None:
        self.appends: list[tuple[list[str], Future[None]]] = []

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        self.appends.append(([row.endpoint for row in rows], Future()))
        return self.appends[-1][1]


class JudgingStore:
    """Stores rows, except groups with a bad one, and except when it is told that it is full."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.refusals = 0
        self.raising = False

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        done: Future[None] = Future()
        if self.refusals:
            self.refusals -= 1
            if self.raising:
                raise OSError("broken promise")
            done.set_exception(InboxFull("no room"))
        elif any(row.endpoint.startswith(BAD) for row in rows):
            done.set_exception(InboxRowError("not a row"))
        else:
            self.rows += [row.endpoint for row in rows]
            done.set_result(None)
        return done


class Owner:
    def __init__(self) -> None:
        self.kept: list[str] = []
        self.lost: list[str] = []

    def on_stored(self, items: Sequence[PulledMessage]) -> None:
        self.kept += [item.row.endpoint for item in items]

    def on_refused(self, items: Sequence[PulledMessage]) -> None:
        self.lost += [item.row.endpoint for item in items]

    def item(self, name: str) -> PulledMessage:
        return PulledMessage(InboxRow(name, "NATS", 0, ()), self)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0)


def test_what_arrives_meanwhile_is_the_next_group_and_nothing_is_told_before_it_is_stored() -> None:
    async def scene() -> None:
        store, owner = HeldStore(), Owner()
        storing = MessageStorer(store, asyncio.get_running_loop())
        storing.add(owner.item("1"))
        storing.add(owner.item("2"))
        await until(lambda: len(store.appends) == 1)
        for name in "345":
            storing.add(owner.item(name))
        await asyncio.sleep(0)
        assert [names for names, _ in store.appends] == [["1", "2"]]
        assert owner.kept == []
        store.appends[0][1].set_result(None)
        await until(lambda: len(store.appends) == 2)
        assert store.appends[1][0] == ["3", "4", "5"]
        assert owner.kept == ["1", "2"]
        store.appends[1][1].set_result(None)
        await storing.wait_until_idle()
        assert owner.kept == list("12345")

    asyncio.run(scene())


@pytest.mark.parametrize(("raising", "told"), [(False, "no room"), (True, "broken promise")])
def test_a_store_that_takes_nothing_is_offered_the_same_again_in_order(raising: bool, told: str) -> None:
    async def scene() -> None:
        store, owner = JudgingStore(), Owner()
        store.refusals, store.raising = 2, raising
        storing = MessageStorer(store, asyncio.get_running_loop())
        storing.add(owner.item("1"))
        await until(lambda: bool(storing.trouble))
        assert told in storing.trouble
        storing.add(owner.item("2"))
        await storing.wait_until_idle()
        assert (store.rows, owner.kept, owner.lost, storing.trouble) == (["1", "2"], ["1", "2"], [], "")

    asyncio.run(scene())


def test_one_row_that_cannot_be_stored_costs_its_neighbours_nothing() -> None:
    async def scene() -> None:
        store, owner = JudgingStore(), Owner()
        storing = MessageStorer(store, asyncio.get_running_loop())
        for name in ("1", "2", BAD, "3"):
            storing.add(owner.item(name))
        await storing.wait_until_idle()
        assert (store.rows, owner.kept, owner.lost) == (["1", "2", "3"], ["1", "2", "3"], [BAD])

    asyncio.run(scene())
