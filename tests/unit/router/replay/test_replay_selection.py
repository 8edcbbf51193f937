"""Which letters a replay takes, which sinks they still lack, and how they are put into batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from router.dead_letters.dead_letter import DeadLetter, rows_of
from router.dead_letters.reading import DeadLetterFilter
from router.errors import RouterError
from router.replay import batches as replaying
from router.replay.batches import Selection, group_letters, missing_sinks
from router.replay.replay import ReplayOptions
from router.state.ledger import LetterLedger
from tests.support.ledger import attempted, replayed

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
NEAREST = ({"message": "/messagegroups/G/messages/M", "mismatches": []},)
LETTER = DeadLetter(
    "a", "no-match", "x", NEAREST, "/endpoints/e", "HTTP", {"path": "/"}, b"{}", "1", "p-0-1", WHEN, WHEN, 1, "dead"
)


def test_standing_decides_and_what_failed_too_often_is_parked(tmp_path: Path) -> None:
    letters = [replace(LETTER, id=name, position=name) for name in "abcd"]
    with LetterLedger.open(tmp_path) as ledger:
        replayed(ledger, ["a"], WHEN)
        ledger.park(["b"])
        attempted(ledger, [("c", "no-match", "")] * 2, WHEN)
        replaying = Selection(ledger, DeadLetterFilter(), most=2)
        assert [letter.id for letter, _ in replaying.choose(letters)] == ["d"]
        assert replaying.skipped == Counter(replayed=1, parked=2)
        assert ledger.standing("c") == {"c": "parked"}
        again = Selection(ledger, DeadLetterFilter(ids=frozenset("cdz")), parked=True, most=2)
        assert [letter.id for letter, _ in again.choose(letters)] == ["c", "d"]
        assert again.seen == {"c", "d"}
        assert [letter.id for letter, _ in Selection(ledger, DeadLetterFilter(), limit=0).choose(letters)] == []


def test_sinks_that_lack_a_record_are_those_named_last(tmp_path: Path) -> None:
    rejected = replace(LETTER, reason="sink-rejected", detail="sink bus: no; sink hook: away")
    with LetterLedger.open(tmp_path) as ledger:
        assert missing_sinks(ledger, LETTER, None) == ()
        assert missing_sinks(ledger, rejected, None) == ("bus", "hook")
        # Refused by one of them; then a catalog that knew nothing of it, which changes nothing about who has it.
        attempted(ledger, [("a", "sink-rejected", "sink hook: never")], WHEN)
        attempted(ledger, [("a", "no-match", "sink bus: said a record")], WHEN)
        assert missing_sinks(ledger, rejected, ledger.entries("a")["a"]) == ("hook",)
        assert missing_sinks(ledger, LETTER, ledger.entries("a")["a"]) == ("hook",)


def test_batches_are_of_one_destination_and_have_no_position_twice() -> None:
    letters = [replace(LETTER, id=str(n), position=f"p-{n % 4}") for n in range(6)]
    chosen = [(letter, ("bus",) if n == 2 else ()) for n, letter in enumerate(letters)]
    found = [(sinks, [letter.id for letter in batch]) for sinks, batch in group_letters(chosen, 3)]
    assert found == [((), ["0", "1", "3"]), (("bus",), ["2"]), ((), ["4", "5"])]
    twice = [(replace(LETTER, id=name), ()) for name in "xy"]
    assert [len(batch) for _, batch in group_letters(twice, 3)] == [1, 1]


def test_a_batch_is_no_larger_than_a_second_of_the_rate() -> None:
    assert ReplayOptions(rate=7.9).size == 7
    assert ReplayOptions(rate=0.2).size == 1
    assert ReplayOptions(rate=1e9).size == ReplayOptions().size


def test_thousands_of_small_letters_are_one_batch_and_large_ones_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [(replace(LETTER, id=str(n), position=f"p-{n}"), ()) for n in range(5_480)]
    assert [len(batch) for _, batch in group_letters(letters, ReplayOptions().size)] == [5_480]
    monkeypatch.setattr(replaying, "MAX_BATCH_BYTES", 100)
    large = [(replace(letter, body=b"x" * 40), ()) for letter, _ in letters[:7]]
    assert [len(batch) for _, batch in group_letters(large, ReplayOptions().size)] == [3, 3, 1]


def test_a_letter_that_was_changed_where_it_lies_is_named() -> None:
    with pytest.raises(RouterError, match=r"dead letter a in dead: native\.headers must be a list"):
        rows_of([replace(LETTER, native={"headers": 1})])
    with pytest.raises(RouterError, match="protocol 'COAP' is unknown"):
        rows_of([replace(LETTER, protocol="COAP")])
