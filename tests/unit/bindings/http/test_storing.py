"""Messages of one turn share an append; a bad one costs no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from bindings.http.gateway import GroupStore
from bindings.inbox.space import InboxFull, InboxRowError
from bindings.parts import InboxRow
from bindings.store_and_ack import GROUP_BYTES

BAD = b"bad"


class Store:
    """Keeps what it is given, when it is told to; a group with a bad row is refused whole."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.open: list[Future[None]] = []
        self.breaks = False

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Take a group."""
        if self.breaks:
            raise ValueError("not as promised")
        self.groups.append([row.body or b"" for row in rows])
        self.open.append(Future())
        return self.open[-1]

    def end(self, error: Exception | None = None) -> None:
        """Say of what was taken that it is stored, or why not."""
        taken, self.open = self.open, []
        for done, group in zip(taken, self.groups[-len(taken) :], strict=True):
            bad = InboxRowError("no row") if BAD in group else error
            if bad is None:
                done.set_result(None)
            else:
                done.set_exception(bad)


def row(body: bytes) -> InboxRow:
    return InboxRow("/endpoints/e", "HTTP", 1, (), body)


async def turns() -> None:
    """Let the loop do what it has to do."""
    for _ in range(3):
        await asyncio.sleep(0)


async def scenario(store: Store, first: Sequence[bytes], then: Sequence[bytes] = ()) -> dict[bytes, object]:
    """Give messages, others while these are stored, and return what became of each."""
    ends: dict[bytes, object] = {}
    group = GroupStore(store)
    for body in first:
        group.add_message(row(body), lambda error, body=body: ends.__setitem__(body, error))  # type: ignore[misc]
    await turns()
    for body in then:
        group.add_message(row(body), lambda error, body=body: ends.__setitem__(body, error))  # type: ignore[misc]
    await turns()
    while store.open:
        store.end()
        await turns()
    return ends


def test_messages_of_a_turn_are_one_group() -> None:
    store = Store()
    ends = asyncio.run(scenario(store, [b"1", b"2"], [b"3", b"4", b"5"]))
    assert store.groups == [[b"1", b"2"], [b"3", b"4", b"5"]]
    assert ends == dict.fromkeys([b"1", b"2", b"3", b"4", b"5"])


def test_what_comes_while_a_group_is_stored_is_with_the_store_too() -> None:
    async def busy() -> None:
        store = Store()
        group = GroupStore(store)
        for bodies in ([b"1"], [b"2", b"3"], [b"4"]):
            for body in bodies:
                group.add_message(row(body), lambda _: None)
            await turns()
        assert store.groups == [[b"1"], [b"2", b"3"], [b"4"]]

    asyncio.run(busy())


def test_an_answer_that_fails_costs_no_other() -> None:
    async def failing() -> None:
        store, ends, faults = Store(), list[BaseException | None](), list[BaseException]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
        group = GroupStore(store)

        def fail(_: BaseException | None) -> None:
            raise ValueError("gone")

        group.add_message(row(b"1"), fail)
        group.add_message(row(b"2"), ends.append)
        await turns()
        store.end()
        await turns()
        assert (ends, [str(fault) for fault in faults]) == ([None], ["gone"])

    asyncio.run(failing())


def test_a_message_that_cannot_be_stored_is_refused_alone() -> None:
    store = Store()
    ends = asyncio.run(scenario(store, [b"1", BAD, b"2"], [b"3"]))
    assert {body for body, error in ends.items() if error is None} == {b"1", b"2", b"3"}
    assert isinstance(ends[BAD], InboxRowError)


def test_a_full_store_refuses_the_whole_group_and_takes_the_next() -> None:
    async def full() -> None:
        store = Store()
        ends: dict[bytes, BaseException | None] = {}
        group = GroupStore(store)
        for body in (b"1", b"2"):
            group.add_message(row(body), lambda error, body=body: ends.__setitem__(body, error))  # type: ignore[misc]
        await turns()
        store.end(InboxFull("full"))
        await turns()
        assert all(isinstance(error, InboxFull) for error in ends.values()) and len(ends) == 2
        group.add_message(row(b"3"), lambda error: ends.__setitem__(b"3", error))
        await turns()
        store.end()
        await turns()
        assert ends[b"3"] is None

    asyncio.run(full())


def test_a_store_that_breaks_its_promise_leaves_nobody_waiting() -> None:
    store = Store()
    store.breaks = True
    ends = asyncio.run(scenario(store, [b"1"]))
    assert isinstance(ends[b"1"], ValueError)


def test_groups_have_a_size() -> None:
    store = Store()
    large = b"x" * (GROUP_BYTES // 2 + 1)
    asyncio.run(scenario(store, [large, large, large, b"1"]))
    assert [len(group) for group in store.groups] == [1, 1, 2]
