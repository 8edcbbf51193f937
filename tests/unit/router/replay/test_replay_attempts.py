"""A replay that dies at each of its steps is finished by the next one: every record once where commits are kept."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from router.batches import waiting
from router.batches.plans import PlanCache
from router.dead_letters.dead_letter import DeadLetter, rows_of
from router.dead_letters.reading import DeadLetterFilter
from router.errors import RouterError
from router.replay import batches as replaying
from router.replay.batches import (
    Replayer,
    ReplayInterrupted,
    Selection,
    Summary,
    group_letters,
    missing_sinks,
)
from router.replay.replay import ReplayOptions
from router.state.ledger import LetterLedger, PendingReplay
from router.watching.metrics import Metrics
from router.writing import writer
from tests.support.ledger import attempted, replayed
from tests.support.listed import Died, Given, ListPlan, ListRows, World, dying, plan_of, points

SINKS: Final = ("lake", "files", "hook")
WHEN: Final = datetime(2026, 1, 2, tzinfo=UTC)
GIVEN: Final = tuple(
    Given(n, reason="no-match" if n == 2 else "", letter=f"letter-{n}", key={2: "A", 3: "A"}.get(n, ""))
    for n in range(6)
)
"""2 stays dead and 3 waits for it; the hook rejects 4."""
LETTERS: Final = tuple(
    DeadLetter(each.letter, "no-match", "", (), "e", "HTTP", {}, None, "epoch", each.position, None, None, 1)
    for each in GIVEN
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """What all replays of a test find."""
    made = World(forgetful={"hook"}, rejecting={"hook": {4}})
    given = {each.letter: each for each in GIVEN}
    monkeypatch.setattr(writer, "open_sink", made.open)
    monkeypatch.setattr(PlanCache, "load", lambda plans, plan: ListPlan(plan, made))
    monkeypatch.setattr(replaying, "rows_of", lambda letters: ListRows(tuple(given[each.id] for each in letters)))
    monkeypatch.setattr(waiting, "RETRY_FIRST", 0.001)
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LetterLedger]:
    """A ledger in which two letters are of one key."""
    with LetterLedger.open(tmp_path) as opened:
        opened.order.append_letters([("A", "letter-2"), ("A", "letter-3")])
        yield opened


def replay(ledger: LetterLedger, summary: Summary, stop: threading.Event | None = None) -> None:
    """Replay what is pending, in a process that remembers nothing."""
    pending = ledger.pending()
    assert pending is not None
    spark = cast(Any, SimpleNamespace(createDataFrame=lambda rows: rows))
    letters = [each for each in LETTERS if each.id in pending.letters]
    held = threading.Event() if stop is None else stop
    replayer = Replayer(PlanCache(spark, None, None, Metrics()), ledger, held, lambda reason, seconds: held.set())
    replayer.replay(plan_of(SINKS, max_replays=2), pending, letters, summary)


def begun(
    ledger: LetterLedger, letters: tuple[DeadLetter, ...] = LETTERS, sinks: tuple[str, ...] = ()
) -> PendingReplay:
    """Begin a batch, as whoever chose the letters does."""
    plan = plan_of(SINKS, max_replays=2)
    pending = PendingReplay(ledger.next_number(), plan.id, tuple(each.id for each in letters), sinks)
    ledger.begin(pending)
    return pending


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name", "nth"), points("replays"))
def test_dying_at_each_step_leaves_every_record_once(
    ledger: LetterLedger, world: World, owner: type, name: str, nth: int, when: str
) -> None:
    begun(ledger)
    with dying(owner, name, when, nth), pytest.raises(Died):
        replay(ledger, Summary())
    if ledger.pending() is not None:
        replay(ledger, Summary())
    assert ledger.pending() is None
    sent = {0, 1, 4, 5}
    assert Counter(world.numbers("lake")) == Counter(world.numbers("files")) == Counter(sent)
    assert set(world.numbers("hook")) == sent - {4}
    assert not world.letters()
    standing = ledger.standing(each.id for each in LETTERS)
    assert {letter for letter, known in standing.items() if known == "replayed"} == {"letter-0", "letter-1", "letter-5"}
    entries = ledger.entries(["letter-2", "letter-3", "letter-4"])
    assert {letter: entry.attempts for letter, entry in entries.items()} == {"letter-2": 1, "letter-4": 1}


def test_what_a_replay_did_is_told(ledger: LetterLedger, world: World) -> None:
    summary = Summary()
    begun(ledger)
    replay(ledger, summary)
    assert (summary.routed.total(), summary.dead, summary.held) == (3, Counter({"no-match": 1, "sink-rejected": 1}), 1)
    # Again, the rejected one to the sink alone that lacks it; the second failure parks it.
    begun(ledger, LETTERS[4:5], ("hook",))
    replay(ledger, summary)
    assert summary.parked == 1
    assert world.numbers("lake").count(4) == 1


def test_a_sink_that_is_away_holds_the_batch_until_it_is_back_or_somebody_ends_it(
    ledger: LetterLedger, world: World
) -> None:
    begun(ledger)
    world.down = {"hook"}
    with pytest.raises(ReplayInterrupted):
        replay(ledger, Summary())
    assert ledger.pending() is not None
    assert set(world.numbers("lake")) == {0, 1, 4, 5}

    class Waiting(threading.Event):
        """What an interrupted wait asks; the sink comes back meanwhile."""

        def wait(self, timeout: float | None = None) -> bool:
            world.down = set()
            return False

    replay(ledger, Summary(), Waiting())
    assert Counter(world.numbers("lake")) == Counter({0, 1, 4, 5})
    assert set(world.numbers("hook")) == {0, 1, 5}


def test_letters_that_are_gone_settle_the_batch(ledger: LetterLedger, world: World) -> None:
    pending = begun(ledger)
    summary = Summary()
    plans = PlanCache(cast(Any, None), None, None, Metrics())
    Replayer(plans, ledger, threading.Event(), lambda reason, seconds: None).replay(
        plan_of(SINKS), pending, (), summary
    )
    assert ledger.pending() is None
    assert summary.gone == len(LETTERS)


# Which letters a replay takes, which sinks they still lack, and how they are put into batches.


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
