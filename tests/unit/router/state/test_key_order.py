"""Which letters hold up their keys: places in the ledger, crashes, and the turns of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.retention import purge
from router.replay.batches import group_letters, missing_sinks
from router.state.ledger import LetterLedger, Outcome, PendingReplay, ReplayOrder, held_up, only_waits, waits_for
from router.writing.outcomes import format_detail, parse_sinks
from tests.support.ledger import replayed
from tests.support.letters import letter_id, row, settings_file, write_letters

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
LETTER = DeadLetter("a1", "no-match", "", (), "/endpoints/e", "KAFKA", {}, b"", "1", "t-0-1", WHEN, WHEN, 1, "dead")
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
        assert missing_sinks(ledger, replace(LETTER, reason="sink-rejected", detail=detail), None) == ()


def gathered(
    ledger: LetterLedger, letters: Sequence[str], lasting: str = "", lake: str = ""
) -> tuple[list[list[str]], set[str]]:
    """Replay letters in the order in which they are read, all but *lasting*; returns batches, and who was left out."""
    turns = ReplayOrder(ledger.order)
    chosen = (
        (replace(LETTER, id=letter, position=letter), ("lake",) if letter in lake.split() else ()) for letter in letters
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
