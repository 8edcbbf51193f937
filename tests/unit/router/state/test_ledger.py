"""The ledger of letters: what it promises about standings, replays, crashes and other processes."""

from __future__ import annotations

import multiprocessing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from router.errors import StateError
from router.state.ledger import HistoryEntry, LedgerEntry, LetterLedger, Outcome, PendingReplay
from tests.support.ledger import attempted, replayed

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
