"""Messages between arrival and disk: when they are acknowledged, in what order, and what a store that fails costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from bindings.background import Backoff
from bindings.inbox.space import InboxFull, InboxRowError
from bindings.parts import InboxRow
from bindings.store_and_ack import GROUP_BYTES, GROUP_ROWS, AckAfterStore


@dataclass(frozen=True)
class Held:
    row: InboxRow
    comes_again: bool = False

    @property
    def name(self) -> str:
        return self.row.endpoint


def held(name: str, *, size: int = 0, comes_again: bool = False) -> Held:
    return Held(InboxRow(name, "MQTT/5.0", 0, (), b"x" * size), comes_again)


class Store:
    """Keeps each append until the test answers it."""

    def __init__(self) -> None:
        self.appends: list[list[str]] = []
        self._futures: list[Future[None]] = []

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        self.appends.append([row.endpoint for row in rows])
        self._futures.append(Future())
        return self._futures[-1]

    def answer(self, error: Exception | None = None, number: int = -1) -> None:
        if error is None:
            self._futures[number].set_result(None)
        else:
            self._futures[number].set_exception(error)


class Scene:
    """A handover with a store and an owner that note everything."""

    def __init__(self, *, pause: float = 0.0, eager: float = math.inf) -> None:
        self.store = Store()
        self.kept: list[str] = []
        self.lost: list[str] = []
        self.woken = 0
        self.handover = AckAfterStore(self.store, self, self._wake, Backoff(pause, pause), eager=eager)

    def _wake(self) -> None:
        self.woken += 1

    def on_stored(self, messages: Sequence[Held]) -> None:
        self.kept += [message.name for message in messages]

    def on_refused(self, message: Held) -> None:
        self.lost.append(message.name)

    def select_retries(self, messages: Sequence[Held]) -> Sequence[Held]:
        return [message for message in messages if not message.comes_again]

    def add(self, *names: str) -> None:
        for name in names:
            self.handover.add(held(name))
        self.handover.advance()

    def answer(self, error: Exception | None = None, number: int = -1) -> None:
        self.store.answer(error, number)
        self.handover.advance()


def test_nothing_is_acknowledged_before_it_is_stored_and_what_arrives_meanwhile_is_the_next_group() -> None:
    scene = Scene()
    scene.add("1")
    scene.add("2", "3")
    assert (scene.store.appends, scene.kept, scene.handover.unstored_count, scene.woken) == ([["1"]], [], 3, 0)
    scene.answer()
    assert (scene.store.appends, scene.kept, scene.woken) == ([["1"], ["2", "3"]], ["1"], 1)
    scene.answer()
    assert (scene.kept, scene.handover.unstored_count) == (["1", "2", "3"], 0)


def test_a_store_that_takes_nothing_is_offered_fewer_in_the_old_order_after_a_pause() -> None:
    scene = Scene()
    scene.add("1", "2", "3", "4")
    scene.add("5")
    scene.answer(InboxFull("no room"))
    assert scene.handover.trouble == "the inbox accepts no messages: no room"
    assert scene.store.appends == [["1", "2", "3", "4"], ["1", "2"]]
    scene.answer()
    assert (scene.handover.trouble, scene.kept) == ("", ["1", "2"])
    scene.answer()
    assert (scene.kept, scene.lost, scene.handover.unstored_count) == (["1", "2", "3", "4", "5"], [], 0)


def test_the_store_is_left_alone_while_it_takes_nothing() -> None:
    scene = Scene(pause=1000.0)
    scene.add("1")
    scene.answer(InboxFull("no room"))
    scene.add("2")
    assert scene.store.appends == [["1"]]
    assert 400 < scene.handover.seconds_until_due(2000.0) <= 1000
    assert scene.handover.seconds_until_due(1.0) == 1.0


@pytest.mark.parametrize("bad", ["1", "2", "4"])
def test_a_message_that_cannot_be_stored_is_refused_alone(bad: str) -> None:
    scene = Scene()
    scene.add(*"1234")
    while scene.handover.unstored_count:
        scene.answer(InboxRowError("no row") if bad in scene.store.appends[-1] else None)
    assert (scene.kept, scene.lost) == ([name for name in "1234" if name != bad], [bad])
    assert scene.store.appends == [["1", "2", "3", "4"], ["1"], ["2"], ["3"], ["4"]]
    assert not scene.handover.trouble


def test_what_its_broker_sends_again_is_not_offered_twice() -> None:
    scene = Scene()
    for name in "123":
        scene.handover.add(held(name, comes_again=name == "2"))
    scene.handover.advance()
    scene.answer(InboxFull("no room"))
    assert scene.store.appends[1:] == [["1"]]
    scene.handover.add(held("4", comes_again=True))
    scene.handover.drop_waiting(lambda message: message.comes_again)
    scene.answer()
    scene.answer()
    assert scene.kept == ["1", "3"]


def test_a_store_that_raises_loses_nothing() -> None:
    scene = Scene()
    append = scene.store.append_many

    def failing(rows: Sequence[InboxRow]) -> Future[None]:
        scene.store.append_many = append  # type: ignore[method-assign]
        raise OSError("broken promise")

    scene.store.append_many = failing  # type: ignore[method-assign]
    scene.add("1")
    scene.handover.advance()
    assert scene.handover.trouble == "the store failed: OSError('broken promise')"
    scene.answer()
    assert (scene.kept, scene.handover.trouble) == (["1"], "")


def test_groups_are_bounded_by_rows_and_by_bytes() -> None:
    scene = Scene()
    for each in (held("big", size=GROUP_BYTES + 1), held("a", size=GROUP_BYTES), held("b", size=1)):
        scene.handover.add(each)
    scene.handover.advance()
    for _ in range(2):
        scene.answer()
    assert scene.store.appends == [["big"], ["a"], ["b"]]
    scene.answer()
    for number in range(GROUP_ROWS + 1):
        scene.handover.add(held(str(number)))
    scene.handover.advance()
    scene.answer()
    assert [len(names) for names in scene.store.appends[3:]] == [GROUP_ROWS, 1]


def test_an_eager_handover_gives_the_store_further_groups_once_many_wait() -> None:
    scene = Scene(eager=2)
    scene.add("1")
    scene.add("2")
    assert scene.store.appends == [["1"]]
    scene.add("3")
    assert scene.store.appends == [["1"], ["2", "3"]]
    scene.answer(number=1)
    scene.answer(number=0)
    assert scene.kept == ["2", "3", "1"]


@pytest.mark.parametrize("answer", [None, InboxFull("no room")])
def test_what_was_abandoned_is_answered_no_more(answer: Exception | None) -> None:
    scene = Scene()
    scene.add("1")
    scene.add("2")
    assert [message.name for message in scene.handover.abandon()] == ["1", "2"]
    scene.answer(answer)
    assert (scene.handover.unstored_count, scene.kept, scene.lost, scene.handover.trouble) == (0, [], [], "")


def test_what_the_store_calls_back_with_holds_no_message() -> None:
    """proton's deliveries have to be dropped on the thread of their container."""
    scene = Scene()
    scene.add("1")
    (callback,) = scene.store._futures[0]._done_callbacks  # type: ignore[attr-defined]
    cells: list[Callable[..., object]] = [cell.cell_contents for cell in callback.__closure__]
    assert cells == [scene._wake]
