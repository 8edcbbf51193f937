"""The ledger of letters: what it promises about standings, replays, crashes and other processes."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.retention import purge
from router.errors import RouterError, StateError
from router.replay.batches import group_letters, missing_sinks
from router.state.ledger import (
    HistoryEntry,
    LedgerEntry,
    LetterLedger,
    Outcome,
    PendingReplay,
    ReplayOrder,
    held_up,
    only_waits,
    waits_for,
)
from router.state.state import BlockedKeys, Hold, Park, StateFolder
from router.writing.outcomes import format_detail, parse_sinks
from tests.support.ledger import attempted, replayed
from tests.support.letters import letter_id, row, settings_file, write_letters

WHEN = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
LATER = datetime(2026, 1, 3, tzinfo=UTC)


def test_what_is_unknown_is_open_and_what_happens_is_kept(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as ledger:
        own = ledger.id
        assert ledger.standing(["a", "b"]) == {"a": "open", "b": "open"}
        attempted(ledger, [("a", "no-match", "type")], WHEN)
        attempted(ledger, [("a", "ambiguous", "two"), ("b", "no-match", "")], LATER)
        replayed(ledger, ["b"], LATER)
    with LetterLedger.open(tmp_path) as ledger:
        assert ledger.id == own
        assert ledger.standing(["b", "a", "b"]) == {"b": "replayed", "a": "open"}
        assert ledger.entries(["a", "x"]) == {"a": LedgerEntry("a", "open", 2, "ambiguous", "two", LATER)}
        assert ledger.entries(["b"])["b"].attempts == 2
        assert ledger.history("a") == [
            HistoryEntry(WHEN, "failed", 1, "no-match", "type"),
            HistoryEntry(LATER, "failed", 2, "ambiguous", "two"),
        ]


def test_parking_moves_open_letters_only(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as ledger:
        replayed(ledger, ["done"], WHEN)
        assert ledger.park(["done", "new", "new"]) == 1
        assert ledger.standing(["done", "new"]) == {"done": "replayed", "new": "parked"}
        attempted(ledger, [("new", "no-match", "x")], WHEN)
        assert ledger.entries(["new"])["new"].standing == "parked"
        assert ledger.entries(["new"])["new"].attempts == 1
        assert [each.what for each in ledger.history("new")] == ["parked", "failed"]


def test_many_ids_at_once_and_forgetting(tmp_path: Path) -> None:
    ids = [f"{number:032x}" for number in range(1201)]
    with LetterLedger.open(tmp_path) as ledger:
        replayed(ledger, ids, WHEN)
        assert set(ledger.standing(ids).values()) == {"replayed"}
        ledger.forget(ids[1:])
        assert list(ledger.entries(ids)) == ids[:1]
        assert ledger.history(ids[1]) == []


def test_a_replay_is_pending_until_it_is_settled_with_all_its_letters(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as ledger:
        first = PendingReplay(ledger.next_number(), "plan", ("a", "b"), ("lake",))
        ledger.begin(first)
        with pytest.raises(StateError, match="replay batch 1 is not finished"):
            ledger.begin(PendingReplay(2, "plan", ("c",)))
    with LetterLedger.open(tmp_path) as ledger:
        assert ledger.pending() == first
        ledger.finish(1, [Outcome("a"), Outcome("b", "no-match", "why")], WHEN)
        assert ledger.pending() is None
        assert ledger.standing("ab") == {"a": "replayed", "b": "open"}
        assert ledger.history("b") == [HistoryEntry(WHEN, "failed", 1, "no-match", "why")]
        with pytest.raises(StateError, match="not pending"):
            ledger.finish(1, [])
        with pytest.raises(StateError, match="used before"):
            ledger.begin(PendingReplay(1, "plan", ("c",)))
        for number in (2, 3):
            assert ledger.next_number() == number
            ledger.begin(PendingReplay(number, "plan", ()))
            ledger.finish(number, [])
        assert ledger.next_number() == 4


def test_a_failing_finish_changes_nothing(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as ledger:
        ledger.begin(PendingReplay(1, "plan", ("a", "b")))
        broken = Outcome("b", "no-match", object())  # type: ignore[arg-type]
        with pytest.raises(StateError):
            ledger.finish(1, [Outcome("a"), broken])
        assert ledger.pending() is not None
        assert ledger.standing(["a"]) == {"a": "open"}


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
ARRIVED = [("A", "a1"), ("B", "b1"), ("A", "a2"), ("A", "a3")]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LetterLedger]:
    """A ledger with three letters of one key and one of another."""
    with LetterLedger.open(tmp_path) as opened:
        opened.order.append_letters(ARRIVED)
        yield opened


def test_a_key_is_blocked_by_its_first_letter_until_that_is_replayed_or_gone(ledger: LetterLedger) -> None:
    order = ledger.order
    assert order.first_letters() == {"A": "a1", "B": "b1"}
    assert [order.count_behind(letter) for letter in ("a1", "a2", "a3", "x")] == [2, 1, 0, 0]
    assert order.keys_of_letters(["a2", "b1", "x"]) == {"a2": "A", "b1": "B"}
    ledger.begin(PendingReplay(1, "plan", ("a1", "b1")))
    ledger.finish(1, [Outcome("a1"), Outcome("b1", "no-match", "still")])
    assert order.first_letters() == {"A": "a2", "B": "b1"}
    assert (order.earlier("a2"), order.earlier("a3")) == (None, "a2")
    ledger.forget(["b1"])
    replayed(ledger, ["a2"], WHEN)
    assert order.first_letters() == {"A": "a3"}
    assert order.release(["a3", "a1"]) == 1
    assert order.positions() == {}
    assert ledger.standing(["a3"]) == {"a3": "open"}


def test_a_batch_that_is_repeated_stands_as_before_and_without_what_was_replayed(ledger: LetterLedger) -> None:
    order = ledger.order
    replayed(ledger, ["a1"], WHEN)
    order.append_letters(ARRIVED)
    assert order.first_letters() == {"B": "b1", "A": "a2"}
    # One that a sink turned down comes in its place among those that stood there before the write.
    order.append_letters([("A", "a2"), ("A", "a0"), ("A", "a3")])
    assert [ReplayOrder(order).earlier(letter) for letter in ("a2", "a0", "a3")] == [None, "a2", "a0"]


def test_what_is_behind_a_letter_that_stays_dead_is_held_up() -> None:
    keys = {"a1": "A", "a2": "A", "b1": "B", "b2": "B"}
    assert held_up(["a1", "b1", "x", "a2", "b2", "y"], ["a1", "x", "b2"], keys) == {"a2"}


def test_a_letter_that_only_waited_is_nowhere(tmp_path: Path) -> None:
    detail = format_detail(dict.fromkeys(["lake", "b;us"], waits_for("0a" * 16)))
    assert parse_sinks(detail) == ("lake", "b;us")
    assert only_waits(detail)
    assert not only_waits(f"{detail}; sink hook: away")
    assert not only_waits("sink lake: no")
    with LetterLedger.open(tmp_path) as ledger:
        assert missing_sinks(ledger, replace(DEAD, reason="sink-rejected", detail=detail), None) == ()


def gathered(
    ledger: LetterLedger, letters: Sequence[str], lasting: str = "", lake: str = ""
) -> tuple[list[list[str]], set[str]]:
    """Replay letters in the order in which they are read, all but *lasting*; returns batches, and who was left out."""
    turns = ReplayOrder(ledger.order)
    chosen = (
        (replace(DEAD, id=letter, position=letter), ("lake",) if letter in lake.split() else ()) for letter in letters
    )
    found: list[list[str]] = []
    for _, batch in group_letters(chosen, 2, turns):
        ids = [letter.id for letter in batch]
        found.append(ids)
        held = held_up(ids, lasting.split(), ledger.order.keys_of_letters(ids))
        replayed(ledger, [letter for letter in ids if letter not in held and letter not in lasting.split()], WHEN)
    return found, turns.left


def test_letters_of_a_key_are_replayed_in_order(ledger: LetterLedger) -> None:
    assert gathered(ledger, ["a1", "b1", "a2", "x", "a3"]) == ([["a1", "b1"], ["a2", "x"], ["a3"]], set())


def test_what_goes_to_other_sinks_waits_for_the_batch_before_it(ledger: LetterLedger) -> None:
    assert gathered(ledger, ["a1", "a2", "a3", "b1"], lake="a2 a3") == ([["a1"], ["a2", "a3"], ["b1"]], set())


def test_a_letter_is_left_out_while_one_before_it_is_dead_or_no_part_of_the_replay(ledger: LetterLedger) -> None:
    assert gathered(ledger, ["a2", "b1"]) == ([["b1"]], {"a2"})
    assert gathered(ledger, ["a1", "a2", "a3"], lasting="a1") == ([["a1", "a2"]], {"a3"})
    assert gathered(ledger, ["a1", "a2"], lasting="a1", lake="a2") == ([["a1"]], {"a2"})
    assert ledger.order.first_letters() == {"A": "a1"}


def test_one_that_is_read_before_its_turn_is_left_for_another_pass(ledger: LetterLedger) -> None:
    assert gathered(ledger, ["a3", "a2", "a1"]) == ([["a1"]], {"a2", "a3"})
    assert ledger.order.earlier("a2") is None


def test_in_a_dry_run_what_passed_holds_up_nothing(ledger: LetterLedger) -> None:
    turns = ReplayOrder(ledger.order)
    assert turns.earlier("a2") == "a1"
    turns.passed.add("a1")
    assert (turns.earlier("a2"), turns.earlier("a3")) == (None, "a2")
    assert ledger.order.first_letters()["A"] == "a1"


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
