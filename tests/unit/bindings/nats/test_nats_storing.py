"""Messages of several owners in one queue to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from bindings.inbox import InboxRowError
from bindings.nats.gateway import MessageStorer, PulledMessage
from bindings.parts import InboxRow

BAD = "bad"


class Store:
    """Stores rows, except groups with a bad one."""

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        done: Future[None] = Future()
        if any(row.endpoint == BAD for row in rows):
            done.set_exception(InboxRowError("not a row"))
        else:
            done.set_result(None)
        return done


class Owner:
    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []

    def on_stored(self, items: Sequence[PulledMessage]) -> None:
        self.told += [(item.row.endpoint, True) for item in items]

    def on_refused(self, item: PulledMessage) -> None:
        self.told.append((item.row.endpoint, False))


def test_each_owner_is_told_of_its_own() -> None:
    first: Any = Owner()
    second: Any = Owner()

    async def scene() -> None:
        storer = MessageStorer(Store(), asyncio.get_running_loop())
        for owner, name in ((first, "1"), (second, "2"), (first, BAD), (second, "3")):
            storer.add(PulledMessage(InboxRow(name, "NATS", 0, ()), owner))
        await storer.wait_until_idle()

    asyncio.run(scene())
    assert first.told == [("1", True), (BAD, False)]
    assert second.told == [("2", True), ("3", True)]
