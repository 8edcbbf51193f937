"""Messages at which a broker ends the connection: which are given up, when, and that all others pass in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.sending import (
    MAX_CALLS_WITHOUT_PROOF,
    MAX_SOLO_ATTEMPTS,
    MAX_SUSPECTS_IN_A_ROW,
    Hangup,
    OutgoingMessage,
    PoisonIsolator,
)


class Broker:
    """Takes messages in order, and ends the connection at those of *bad*.

    It may lose the answers to the last few before that, as a connection that ends does.
    """

    def __init__(self, bad: set[int], lost: int = 0, *, sure: bool = False) -> None:
        self.bad = bad
        self.lost = lost
        self.sure = sure
        self.settled: dict[int, str | None] = {}
        self.taken: list[int] = []

    def exchange(self, places: Sequence[int]) -> None:
        good: list[int] = []
        for place in places:
            if place in self.bad:
                for each in good[: max(0, len(good) - self.lost)]:
                    self.settled[each] = None
                self.taken += good
                raise Hangup(f"ended at {place}", at_fault=self.sure)
            good.append(place)
        self.taken += good
        self.settled.update(dict.fromkeys(good))


def first_times(places: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(places))


@given(
    lanes=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    bad=st.sets(st.integers(0, 39), max_size=6),
    lost=st.integers(0, 3),
)
def test_all_but_the_bad_pass_in_the_order_of_their_lanes(lanes: list[int], bad: set[int], lost: int) -> None:
    bad = {place for place in bad if place < len(lanes)}
    broker = Broker(bad, lost, sure=True)
    items = [OutgoingMessage(str(lane), place) for place, lane in enumerate(lanes)]
    PoisonIsolator[str](str, pause=0.0).send(items, broker.exchange, broker.settled)
    assert {place for place, outcome in broker.settled.items() if outcome is not None} == bad
    assert broker.settled.keys() == set(range(len(lanes)))
    for lane in set(lanes):
        mine = [place for place in first_times(broker.taken) if lanes[place] == lane]
        assert mine == sorted(mine)


def test_a_reason_tells_how_the_connection_ended() -> None:
    broker = Broker({1})
    PoisonIsolator[str](str, pause=0.0).send(
        [OutgoingMessage("", place) for place in range(3)], broker.exchange, broker.settled
    )
    assert broker.settled == {0: None, 1: "the broker ends the connection at this message: ended at 1", 2: None}


def test_a_broker_that_ends_every_connection_counts_as_down() -> None:
    broker = Broker(set(range(100)))
    with pytest.raises(Hangup, match="ended at"):
        PoisonIsolator[str](str, pause=0.0).send(
            [OutgoingMessage(str(place), place) for place in range(100)], broker.exchange, broker.settled
        )
    assert broker.settled == {}
    assert MAX_SUSPECTS_IN_A_ROW < 100


def test_a_message_with_none_to_compare_with_takes_many_calls() -> None:
    broker, told = Broker({0}), PoisonIsolator[str](str, pause=0.0)
    for _ in range(MAX_CALLS_WITHOUT_PROOF - 1):
        with pytest.raises(Hangup):
            told.send([OutgoingMessage("", 0)], broker.exchange, broker.settled)
        assert broker.settled == {}
    told.send([OutgoingMessage("", 0)], broker.exchange, broker.settled)
    assert broker.settled.keys() == {0}


def test_a_broker_that_works_again_takes_what_was_suspected() -> None:
    ended = 0

    def exchange(places: Sequence[int]) -> None:
        nonlocal ended
        if ended <= MAX_SOLO_ATTEMPTS:
            ended += 1
            raise Hangup("restarting")
        settled.update(dict.fromkeys(places))

    settled: dict[int, str | None] = {}
    PoisonIsolator[str](str, pause=0.0).send(
        [OutgoingMessage("a", 0), OutgoingMessage("a", 1), OutgoingMessage("b", 2)], exchange, settled
    )
    assert settled == {0: None, 1: None, 2: None}
