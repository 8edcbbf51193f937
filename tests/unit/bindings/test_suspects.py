"""Messages at which a broker ends the connection: which are given up, when, and that all others pass in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.sending import (
    MAX_CALLS_WITHOUT_PROOF,
    MAX_SOLO_ATTEMPTS,
    MAX_SUSPECTS_IN_A_ROW,
    Hangup,
    Outbound,
    PoisonIsolator,
    Settled,
    Unsettled,
)

ENDED = "the broker ends the connection at this message: "


def messages(*lanes: str) -> list[Outbound]:
    return [Outbound("a", (), b"%d" % place, lane, str(place)) for place, lane in enumerate(lanes)]


class Broker:
    """Takes messages in order, and ends the connection at those of *bad*.

    It may lose the answers to the last few before that, as a connection that ends does.
    """

    def __init__(self, bad: set[int], lost: int = 0, *, sure: bool = False) -> None:
        self.bad = bad
        self.lost = lost
        self.sure = sure
        self.taken: list[int] = []

    def exchange(self, part: Mapping[int, Outbound], settled: Settled) -> None:
        good: list[int] = []
        for place in part:
            if place in self.bad:
                settled.update(dict.fromkeys(good[: max(0, len(good) - self.lost)]))
                self.taken += good
                raise Hangup(f"ended at {place}", at_fault=self.sure)
            good.append(place)
        self.taken += good
        settled.update(dict.fromkeys(good))


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
    settled = PoisonIsolator(pause=0.0).send(messages(*map(str, lanes)), broker.exchange)
    assert {place for place, outcome in enumerate(settled) if outcome is not None} == bad
    for lane in set(lanes):
        mine = [place for place in first_times(broker.taken) if lanes[place] == lane]
        assert mine == sorted(mine)


def test_a_reason_tells_how_the_connection_ended() -> None:
    first, second, third = PoisonIsolator(pause=0.0).send(messages("", "", ""), Broker({1}).exchange)
    assert (first, third) == (None, None)
    assert second is not None and second.reason == f"{ENDED}ended at 1"


def test_a_broker_that_ends_every_connection_counts_as_down() -> None:
    with pytest.raises(Unsettled, match="100 of 100 messages were not confirmed: ended at") as caught:
        PoisonIsolator(pause=0.0).send(messages(*map(str, range(100))), Broker(set(range(100))).exchange)
    assert caught.value.settled == {}
    assert MAX_SUSPECTS_IN_A_ROW < 100


def test_a_message_with_none_to_compare_with_takes_many_calls() -> None:
    broker, told = Broker({0}), PoisonIsolator(pause=0.0)
    for _ in range(MAX_CALLS_WITHOUT_PROOF - 1):
        with pytest.raises(Unsettled):
            told.send(messages(""), broker.exchange)
    (refused,) = told.send(messages(""), broker.exchange)
    assert refused is not None


def test_a_broker_that_works_again_takes_what_was_suspected() -> None:
    ended = 0

    def exchange(part: Mapping[int, Outbound], settled: Settled) -> None:
        nonlocal ended
        if ended <= MAX_SOLO_ATTEMPTS:
            ended += 1
            raise Hangup("restarting")
        settled.update(dict.fromkeys(part))

    assert PoisonIsolator(pause=0.0).send(messages("a", "a", "b"), exchange) == [None] * 3
