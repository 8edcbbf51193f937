"""Pins and plans in the state folder: whatever a pin names is there, whenever the process ends, whoever else pins."""

from __future__ import annotations

import threading

from router.errors import RouterError
from router.state.ledger import LetterLedger, PendingReplay
from router.state.state import BlockedKeys, Hold, Park, StateFolder

QUERIES = ("inbox", "kafka-1", "kafka-2")
A, B, C, D = (letter * 32 for letter in "abcd")


def plans_of(state: StateFolder) -> set[str]:
    return {row[0] for row in state.database.read("SELECT id FROM plans")}


def whole(state: StateFolder, plans: dict[str, bytes]) -> None:
    """Check that every pin names a plan whose document is there, and as it was written."""
    for (named,) in state.database.read("SELECT plan FROM pins"):
        assert state.batches.plan(named) == plans[named]


def test_a_plan_is_there_for_as_long_as_a_batch_names_it(state: StateFolder) -> None:
    store = state.batches
    store.pin("kafka-1", 0, A, b"plan a")
    store.pin("inbox", 0, B, b"plan b")
    store.pin("inbox", 1, C, b"plan c")
    store.pin("inbox", 2, D, b"plan d")
    assert [store.plan(each) for each in (A, B, C, D)] == [b"plan a", None, b"plan c", b"plan d"]
    assert (store.pinned("inbox", 0), store.pinned("inbox", 1), store.newest_batch("inbox")) == (None, C, 2)
    store.unpin_all("kafka-1")
    # The first batch of a new generation may still be judged by the plan that nothing names any more.
    store.pin("kafka-1", 0, A, b"plan a")
    assert store.plan(A) == b"plan a"


def test_a_replay_and_a_batch_keep_the_plans_of_each_other(state: StateFolder) -> None:
    state.batches.pin("inbox", 0, A, b"plan a")
    with LetterLedger.open(state.root) as ledger:
        ledger.begin(PendingReplay(1, B, ("x",)), b"plan b")
        state.batches.pin("inbox", 1, C, b"plan c")
        state.batches.pin("inbox", 2, C, b"plan c")
        assert plans_of(state) >= {B, C}
        ledger.finish(1, [])
        ledger.begin(PendingReplay(2, D, ("x",)), b"plan d")
        assert plans_of(state) == {C, D}


def test_why_a_batch_is_held_may_name_a_path_that_is_no_text(state: StateFolder) -> None:
    held = Hold("g", "2026-01-02T03:04:05Z", "sink lake: /data/\udcff: disk full", "lake")
    state.batches.note("q", 3, held)
    assert state.batches.noted(Hold, "q", 3, "g") == held


def test_notes_go_with_the_pin_and_belong_to_a_generation(state: StateFolder) -> None:
    store, park = state.batches, Park("g", "2026-01-02T03:04:05Z", {"lake": "why"}, "0.1")
    store.pin("inbox", 0, A, b"plan a")
    store.note("inbox", 0, park)
    store.note("inbox", 0, BlockedKeys("g", {"key": "letter"}, "0.1"))
    assert (store.noted(Park, "inbox", 0, "g"), store.noted(Park, "inbox", 0, "h")) == (park, None)
    assert store.noted(BlockedKeys, "inbox", 0, "g") == BlockedKeys("g", {"key": "letter"}, "0.1")
    store.pin("inbox", 2, A, b"plan a")
    assert store.noted(Park, "inbox", 0, "g") is None
    assert store.noted(BlockedKeys, "inbox", 0, "g") is None


def test_queries_that_pin_at_once_keep_what_the_others_named(state: StateFolder) -> None:
    plans = {f"{number:032}": b"plan %d" % number for number in range(40)}
    failures: list[str] = []
    together = threading.Barrier(len(QUERIES))

    def query(name: str, offset: int) -> None:
        together.wait()
        try:
            for number in range(len(plans)):
                plan = f"{(number + offset) % len(plans):032}"
                state.batches.pin(name, number, plan, plans[plan])
                if state.batches.plan(plan) != plans[plan]:
                    failures.append(f"{name} {number}")
                if number % 10 == 9:
                    state.batches.unpin_all(name)
        except RouterError as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=query, args=(name, at * 3)) for at, name in enumerate(QUERIES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    whole(state, plans)
