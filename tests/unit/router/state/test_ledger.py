"""The ledger of letters: what it promises about standings, replays, crashes and other processes."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from router.errors import StateError
from router.state.ledger import Happening, LedgerEntry, LetterLedger, Outcome, PendingReplay

WHEN = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
LATER = datetime(2026, 1, 3, tzinfo=UTC)


def test_what_is_unknown_is_open_and_what_happens_is_kept(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as ledger:
        own = ledger.id
        assert ledger.standing(["a", "b"]) == {"a": "open", "b": "open"}
        ledger.attempted([("a", "no-match", "type")], WHEN)
        ledger.attempted([("a", "ambiguous", "two"), ("b", "no-match", "")], LATER)
        ledger.replayed(["b"], LATER)
    with LetterLedger.open(tmp_path) as ledger:
        assert ledger.id == own
        assert ledger.standing(["b", "a", "b"]) == {"b": "replayed", "a": "open"}
        assert ledger.entries(["a", "x"]) == {"a": LedgerEntry("a", "open", 2, "ambiguous", "two", LATER)}
        assert ledger.entries(["b"])["b"].attempts == 2
        assert ledger.history("a") == [
            Happening(WHEN, "failed", None, "no-match", "type"),
            Happening(LATER, "failed", None, "ambiguous", "two"),
        ]


def test_parking_moves_open_letters_only(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as ledger:
        ledger.replayed(["done"], WHEN)
        assert ledger.park(["done", "new", "new"]) == 1
        assert ledger.standing(["done", "new"]) == {"done": "replayed", "new": "parked"}
        ledger.attempted([("new", "no-match", "x")], WHEN)
        assert ledger.entries(["new"])["new"].standing == "parked"
        assert ledger.entries(["new"])["new"].attempts == 1
        assert [each.what for each in ledger.history("new")] == ["parked", "failed"]


def test_many_ids_at_once_and_forgetting(tmp_path: Path) -> None:
    ids = [f"{number:032x}" for number in range(1201)]
    with LetterLedger.open(tmp_path) as ledger:
        ledger.replayed(ids, WHEN)
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
        assert ledger.history("b") == [Happening(WHEN, "failed", 1, "no-match", "why")]
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


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from router.state.ledger import LetterLedger, Outcome, PendingReplay

def outcomes():
    for number in range(2000):
        yield Outcome(f"a{number}")

with LetterLedger.open(Path(sys.argv[1])) as ledger:
    ledger.begin(PendingReplay(1, "plan", ("a0",)))
    seen = 0
    def watch(statement):
        global seen
        seen += statement.startswith("INSERT INTO letters")
        if seen == 1500:
            os.kill(os.getpid(), signal.SIGKILL)
    ledger._database.set_trace_callback(watch)
    ledger.finish(1, outcomes(), datetime.now(UTC))
"""


@pytest.mark.slow
def test_killed_inside_a_transaction_nothing_of_it_is_there(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    with LetterLedger.open(tmp_path) as ledger:
        pending = ledger.pending()
        assert pending is not None and pending.number == 1
        assert ledger.standing(["a0", "a1"]) == {"a0": "open", "a1": "open"}
        ledger.finish(1, [Outcome("a0")])
        assert ledger.standing(["a0"]) == {"a0": "replayed"}


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
            ledger.replayed(["a"], WHEN)  # the lock is of replays, not of the ledger
            holder.kill()
            holder.join(120)
            with ledger.exclusive():
                pass
    finally:
        holder.kill()
        holder.join(120)


def test_a_reader_sees_all_or_none_and_never_waits(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as writer, LetterLedger.open(tmp_path) as reader:
        with writer._writing() as database:
            database.execute("INSERT INTO letters VALUES ('a', 'replayed', 1, '', '', '')")
            assert reader.standing(["a"]) == {"a": "open"}
        assert reader.standing(["a"]) == {"a": "replayed"}


def test_without_a_ledger_nothing_is_made_to_look(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path, create=False) as ledger:
        assert ledger.standing(["a"]) == {"a": "open"} and ledger.pending() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: _sql(path, "PRAGMA user_version = 99"), "format 99"),
        (lambda path: path.write_bytes(b"no database" * 500), "damaged"),
        (lambda path: _replace(path, "CREATE TABLE other (a)"), "is not a state database of this router"),
        (lambda path: _replace(path, ""), "cannot be used"),
    ],
)
def test_what_is_no_ledger_of_ours_is_refused(tmp_path: Path, spoil: Callable[[Path], object], told: str) -> None:
    with LetterLedger.open(tmp_path):
        pass
    path = tmp_path / "ledger" / "letters.db"
    for left in path.parent.glob("letters.db-*"):
        left.unlink()
    spoil(path)
    with pytest.raises(StateError, match=told), LetterLedger.open(tmp_path):
        pass


def _replace(path: Path, statement: str) -> None:
    """Put another database, or without a statement a folder, in the place of the file."""
    path.unlink()
    if statement:
        _sql(path, statement)
    else:
        path.mkdir()


def _sql(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()
