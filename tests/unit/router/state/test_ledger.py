"""The ledger of letters: what it promises about standings, replays, crashes and other processes."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.retention import purge
from router.errors import RouterError, StateError
from router.replay.batches import missing_sinks
from router.state.ledger import (
    LetterLedger,
    only_waits,
    waits_for,
)
from router.state.state import BlockedKeys, Hold, Park, StateFolder
from router.writing.outcomes import format_detail, parse_sinks
from tests.support.ledger import replayed
from tests.support.letters import letter_id, row, settings_file, write_letters

WHEN = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def test_many_ids_at_once_and_forgetting(tmp_path: Path) -> None:
    ids = [f"{number:032x}" for number in range(1201)]
    with LetterLedger.open(tmp_path) as ledger:
        replayed(ledger, ids, WHEN)
        assert set(ledger.standing(ids).values()) == {"replayed"}
        ledger.forget(ids[1:])
        assert list(ledger.entries(ids)) == ids[:1]
        assert ledger.history(ids[1]) == []


def _hold(root: str, ready: multiprocessing.synchronize.Event, go_on: multiprocessing.synchronize.Event) -> None:
    with LetterLedger.open(Path(root)) as ledger, ledger.exclusive():
        ready.set()
        go_on.wait(60)


@pytest.mark.slow
def test_one_replay_at_a_time_and_a_killed_one_is_no_matter(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, go_on = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), ready, go_on))
    holder.start()
    try:
        assert ready.wait(60)
        with LetterLedger.open(tmp_path) as ledger:
            with pytest.raises(StateError, match=f"process {holder.pid}"), ledger.exclusive():
                pass
            replayed(ledger, ["a"], WHEN)  # the lock is of replays, not of the ledger
            holder.kill()
            holder.join(120)
            with ledger.exclusive():
                pass
    finally:
        holder.kill()
        holder.join(120)


def test_without_a_ledger_nothing_is_made_to_look(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path, create=False) as ledger:
        assert ledger.standing(["a"]) == {"a": "open"} and ledger.pending() is None
    assert list(tmp_path.iterdir()) == []


# Which letters hold up their keys: places in the ledger, crashes, and the turns of a replay.


DEAD = DeadLetter("a1", "no-match", "", (), "/endpoints/e", "KAFKA", {}, b"", "1", "t-0-1", WHEN, WHEN, 1, "dead")


def test_a_letter_that_only_waited_is_nowhere(tmp_path: Path) -> None:
    detail = format_detail(dict.fromkeys(["lake", "b;us"], waits_for("0a" * 16)))
    assert parse_sinks(detail) == ("lake", "b;us")
    assert only_waits(detail)
    assert not only_waits(f"{detail}; sink hook: away")
    assert not only_waits("sink lake: no")
    with LetterLedger.open(tmp_path) as ledger:
        assert missing_sinks(ledger, replace(DEAD, reason="sink-rejected", detail=detail), None) == ()


def letters_that_wait(folder: Path) -> Path:
    """Write two letters of one key, and return their settings file."""
    file = settings_file(folder, order="park")
    settings = write_letters(file, [row(1, received=WHEN), row(2, received=WHEN)])
    with LetterLedger.open(Path(settings.state)) as ledger:
        ledger.order.append_letters([("A", letter_id(1)), ("A", letter_id(2)), ("B", "gone")])
    return file


def test_retention_frees_keys_of_letters_that_are_gone(tmp_path: Path) -> None:
    file = letters_that_wait(tmp_path)
    settings = write_letters(file, [row(3, failed=datetime.now(UTC))], version=2)
    with LetterLedger.open(Path(settings.state)) as ledger:
        ledger.order.append_letters([("A", letter_id(3))])
        purge(settings, age=timedelta(days=1))
        # The two that were removed, and one that a purge before it did not come to forget.
        assert ledger.order.first_letters() == {"A": letter_id(3)}
        numbers = ledger.order.positions()
        ledger.order.append_letters([("A", letter_id(3))])
        ledger.order.remove_gone(numbers)
        assert ledger.order.first_letters() == {"A": letter_id(3)}


# Pins and plans in the state folder: whatever a pin names is there, whenever the process ends, whoever else pins.


QUERIES = ("inbox", "kafka-1", "kafka-2")
A, B, C, D = (letter * 32 for letter in "abcd")


def whole(state: StateFolder, plans: dict[str, bytes]) -> None:
    """Check that every pin names a plan whose document is there, and as it was written."""
    for (named,) in state.database.read("SELECT plan FROM pins"):
        assert state.batches.plan(named) == plans[named]


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
