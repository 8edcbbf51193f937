"""Open exchanges: paired in any order, once, given up in time or for room, and delivered as they were promised."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from router.evaluation.forwarding import RelatedRecord
from router.request_reply import Exchanges, Half, RecordToPair
from router.sinks.contract import Commit
from router.sinks.pairs import PairRow

ASK, ANSWER = "/messagegroups/g/messages/ask", "/messagegroups/g/messages/answer"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.behind = 0.0
        """For how many seconds what arrived has not been read."""

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, clock: Clock, *, wait: float = 60.0, most: int = 1000) -> Exchanges:
    return Exchanges(folder, wait=wait, most=most, read_until=lambda: clock.now - clock.behind, clock=clock)


def ask(key: str, place: int = 0) -> RecordToPair:
    return RecordToPair(
        Half(ASK, key, f"t-0-{place}", "2026-01-02T03:04:05+00:00", "e"), RelatedRecord(key, (f"k{key}",))
    )


def answer(key: str, place: int = 0) -> RecordToPair:
    half = Half(ANSWER, f"a{place}", f"u-0-{place}", "", "e", "reply", key)
    return RecordToPair(half, RelatedRecord(half.id, (), f"k{key}", key))


def batch(number: int, part: str = "", within: tuple[str, ...] = ()) -> Commit:
    return Commit(f"g{part}-relations", number, within)


def delivered(exchanges: Exchanges) -> list[PairRow]:
    rows: list[PairRow] = []
    while (delivery := exchanges.delivery()) is not None:
        rows += delivery.rows
        exchanges.delivered(delivery)
    return rows


def pairs(rows: list[PairRow]) -> set[tuple[str, str | None, str | None]]:
    return {(row.outcome, row.question_id, row.answer_id) for row in rows}


def test_answers_before_beside_and_after_what_they_answer(tmp_path: Path) -> None:
    exchanges = opened(tmp_path, Clock())
    assert exchanges.take(batch(0), "q", [answer("1", 1)]) == Counter()
    told = exchanges.take(batch(1), "q", [ask("1"), ask("2"), answer("2", 2), ask("3")])
    assert told == {"paired": 2}
    assert exchanges.take(batch(2), "q", [answer("3", 3), answer("3", 4)]) == {"paired": 2}
    rows = delivered(exchanges)
    assert pairs(rows) == {("paired", "1", "a1"), ("paired", "2", "a2"), ("paired", "3", "a3"), ("paired", "3", "a4")}
    assert {(row.relation, row.correlation) for row in rows} == {("reply", "1"), ("reply", "2"), ("reply", "3")}
    assert rows[0].question_received == "2026-01-02T03:04:05+00:00" and rows[0].answer_received is None
    assert len({row.id for row in rows}) == 4


def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    exchanges.take(batch(0), "q", [ask("1"), answer("1")])
    assert exchanges.take(batch(0), "q", [ask("1"), answer("1")]) == Counter()
    exchanges.close()
    exchanges = opened(tmp_path, clock)
    assert exchanges.take(batch(0), "q", [ask("1"), answer("1")]) == Counter()
    assert exchanges.take(batch(0, ".0", ("g-relations",)), "q", [answer("1")]) == Counter()
    assert len(delivered(exchanges)) == 1


def test_queries_count_their_batches_for_themselves(tmp_path: Path) -> None:
    exchanges = opened(tmp_path, Clock())
    exchanges.take(Commit("one-relations", 7), "one", [ask("1")])
    assert exchanges.take(Commit("two-relations", 3), "two", [answer("1")]) == {"paired": 1}
    assert exchanges.take(Commit("one-relations", 7), "one", [ask("1")]) == Counter()


def test_what_nothing_comes_for_is_given_up_once(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    exchanges.take(batch(0), "q", [ask("1"), ask("2"), answer("2"), answer("9", 9)])
    clock.now += 59
    assert exchanges.expire() == Counter()
    clock.now += 2
    assert exchanges.expire() == {"unanswered": 1, "unasked": 1}
    assert (exchanges.open, exchanges.expire()) == (0, Counter())
    given_up = [row for row in delivered(exchanges) if row.outcome != "paired"]
    assert [(row.outcome, row.cause, row.question_id, row.correlation) for row in given_up] == [
        ("unanswered", "time", "1", None),
        ("unasked", "time", None, "9"),
    ]


def test_time_does_not_pass_while_the_router_stands(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    exchanges.take(batch(0), "q", [ask("1")])
    exchanges.close()
    clock.now += 3600
    exchanges = opened(tmp_path, clock)
    assert exchanges.expire() == Counter()
    clock.now += 61
    assert exchanges.expire() == {"unanswered": 1}


def test_for_want_of_room_the_oldest_go(tmp_path: Path) -> None:
    exchanges = opened(tmp_path, Clock(), most=3)
    told = exchanges.take(batch(0), "q", [ask(str(number)) for number in range(5)])
    assert told == {"unanswered": 2}
    assert exchanges.open == 3
    assert {(row.cause, row.question_id) for row in delivered(exchanges)} == {("room", "0"), ("room", "1")}
    assert exchanges.take(batch(1), "q", [answer("4")]) == {"paired": 1}


def test_what_names_nothing_is_told_at_once(tmp_path: Path) -> None:
    exchanges = opened(tmp_path, Clock())
    lost = RecordToPair(Half(ANSWER, "a", "t-0-0", "", "e", "reply"), RelatedRecord("a", (), ""))
    silent = RecordToPair(Half(ASK, "b", "t-0-1", "", "e"), RelatedRecord("b"))
    assert exchanges.take(batch(0), "q", [lost, silent]) == {"unasked": 1, "unanswered": 1}
    assert {row.cause for row in delivered(exchanges)} == {"unnamed"}
    assert exchanges.open == 0


def test_questions_of_one_key_are_answered_together(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    told = exchanges.take(batch(0), "q", [ask("1", 0), ask("1", 1), answer("1")])
    assert told == {"paired": 1}
    assert [row.question_position for row in delivered(exchanges)] == ["t-0-1"]
    clock.now += 61
    assert exchanges.expire() == Counter()


def test_a_message_may_answer_one_and_ask_another(tmp_path: Path) -> None:
    exchanges = opened(tmp_path, Clock())
    middle = RecordToPair(Half(ANSWER, "m", "t-0-1", "", "e", "reply", "1"), RelatedRecord("m", ("km",), "k1", "1"))
    assert exchanges.take(batch(0), "q", [ask("1"), middle, answer("m", 5)]) == {"paired": 2}
    assert pairs(delivered(exchanges)) == {("paired", "1", "m"), ("paired", "m", "a5")}


def test_a_delivery_ends_by_its_text_as_well(tmp_path: Path) -> None:
    """Each row is far larger than ours are, so that a few of them fill a delivery."""
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    long = "x" * (3 * 2**20)
    silent = [RecordToPair(Half(ASK, f"{n}{long}", "t-0-0", "", "e"), RelatedRecord(f"{n}")) for n in range(7)]
    exchanges.take(batch(0), "q", silent)
    sizes: list[int] = []
    while (delivery := exchanges.delivery()) is not None:
        exchanges.close()
        exchanges = opened(tmp_path, clock)
        assert exchanges.delivery() == delivery
        sizes.append(len(delivery.rows))
        exchanges.delivered(delivery)
    assert sizes == [3, 3, 1]


def test_what_is_due_is_given_up_a_bounded_text_at_a_time(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    long = "x" * (3 * 2**20)
    asks = [
        RecordToPair(Half(ASK, f"{n}{long}", "t-0-0", "", "e"), RelatedRecord(f"{n}", (f"k{n}",))) for n in range(7)
    ]
    exchanges.take(batch(0), "q", asks)
    assert not exchanges.overdue()
    clock.now += 61
    given_up: list[int] = []
    while exchanges.overdue():
        given_up.append(exchanges.expire()["unanswered"])
    assert given_up == [3, 3, 1]


def test_none_is_given_up_while_what_arrived_in_its_time_is_unread(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    exchanges.take(batch(0), "q", [ask("1"), ask("2"), answer("3", 3)])
    clock.now += 100
    clock.behind = 41
    assert not exchanges.overdue() and exchanges.expire() == Counter()
    assert exchanges.take(batch(1), "q", [answer("1", 1), ask("3")]) == {"paired": 2}
    clock.behind = 40
    assert exchanges.overdue() and exchanges.expire() == {"unanswered": 1}
    assert [(row.outcome, row.cause, row.question_id) for row in delivered(exchanges)][-1] == (
        "unanswered",
        "time",
        "2",
    )


def test_a_restored_copy_delivers_under_another_commit(tmp_path: Path) -> None:
    """The sink has the numbers of its deliveries, and ids of its pairs, from what came after the copy."""
    clock = Clock()
    exchanges = opened(tmp_path / "one", clock)
    exchanges.take(batch(0), "q", [ask("1"), ask("2"), ask("3"), answer("1")])
    pending = exchanges.delivery()
    exchanges.close()
    for name in ("two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.db").write_bytes((tmp_path / "one" / "state.db").read_bytes())
    apps: set[str] = set()
    ids: set[str | None] = set()
    for name in ("one", "two", "three"):
        exchanges = opened(tmp_path / name, clock)
        assert pending is not None and exchanges.delivery() == pending  # The sink has the very rows of it, if any.
        exchanges.delivered(pending)
        exchanges.take(batch(1), "q", [answer("2"), answer("3")])
        delivery = exchanges.delivery()
        assert delivery is not None
        apps.add(delivery.commit.app)
        ids.update(row.id for row in delivery.rows)
    assert (len(apps), len(ids)) == (3, 6)


def test_a_delivery_repeats_as_it_was_until_it_is_settled(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    exchanges.take(batch(0), "q", [ask("1"), answer("1")])
    first = exchanges.delivery()
    exchanges.take(batch(1), "q", [answer("1", 7)])
    exchanges.close()
    exchanges = opened(tmp_path, clock)
    assert first is not None and exchanges.delivery() == first
    exchanges.delivered(first)
    second = exchanges.delivery()
    assert second is not None and second.commit.version == first.commit.version + 1
    assert [row.answer_id for row in second.rows] == ["a7"]
    exchanges.delivered(second)
    assert (exchanges.delivery(), exchanges.undelivered) == (None, 0)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_and_any_repeats_give_each_pair_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    records = [ask(str(number), number) for number in range(40)] + [answer(str(number), number) for number in range(30)]
    random.shuffle(records)
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    rows: list[PairRow] = []
    for number in range(14):
        for _ in range(random.randint(1, 3)):
            exchanges.take(batch(number), "q", records[5 * number : 5 * number + 5])
            if random.random() < 0.3:
                exchanges.close()
                exchanges = opened(tmp_path, clock)
        if random.random() < 0.5:
            rows += delivered(exchanges)
    rows += delivered(exchanges)
    assert sorted((row.question_id, row.answer_id) for row in rows) == sorted((str(n), f"a{n}") for n in range(30))
