"""Which generation comes next: an unfinished batch first, and every topic from where any query left it."""

from __future__ import annotations

import json
from typing import Any, cast

from router.reading import generations
from router.reading.generations import EARLIEST, Generation, Offsets, Positions, Succession, turned_back
from router.settings import SourceSettings
from router.sources import INBOX, Source
from router.state.state import StateFolder

PLAN = "a" * 32
ONE, TWO = "kafka-1", "kafka-1-two"


def sources(query: str, *topics: str) -> tuple[Source, ...]:
    """Return sources of a query, which begin at their first record and so ask no broker."""
    return tuple(
        Source(f"/endpoints/{topic}", "kafka", f"kafka:{topic}", query, SourceSettings(endpoint=f"/endpoints/{topic}"),
               topic=topic, servers="nowhere:1")
        for topic in topics
    )  # fmt: skip


def spark_wrote(generation: Generation, batch: int, offsets: Offsets, *, committed: bool = True) -> None:
    """Write what Spark writes of a batch."""
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offsets)}"), ("commits", "v1\n{}")):
        if folder == "offsets" or committed:
            (generation.path / folder).mkdir(exist_ok=True)
            (generation.path / folder / str(batch)).write_text(text)


def test_a_topic_that_moves_is_read_on_where_it_was_left(state: StateFolder) -> None:
    succession = Succession(state)
    first = succession.next(ONE, sources(ONE, "a", "b"), "earliest")
    assert json.loads(first.starting) == {"a": {}, "b": {}}
    spark_wrote(first, 0, {"a": {"0": 5}, "b": {"0": 6}})
    moved = sources(TWO, "b")
    # Nobody asks a broker where a topic ends that some query has been reading.
    succession.place(moved, "latest")
    second = succession.next(TWO, moved, "latest")
    assert json.loads(second.starting) == {"b": {"0": 6}}
    spark_wrote(second, 0, {"b": {"0": 9}})
    # What the first query knew of it is old by now, and it has not begun another generation since.
    back = succession.next(ONE, sources(ONE, "a"), "earliest")
    assert json.loads(back.starting) == {"a": {"0": 5}}
    again = succession.next(ONE, sources(ONE, "a", "b"), "earliest")
    assert json.loads(again.starting) == {"a": {"0": 5}, "b": {"0": 9}}


def test_generations_without_a_commit_hand_their_positions_on(state: StateFolder) -> None:
    Positions(state).keep("1", {"new": {"0": 40, "1": 2}})
    succession = Succession(state)
    for topics in (("new",), ("new", "other"), ("other",), ("other", "new", "third")):
        generation = succession.next(ONE, sources(ONE, *topics), "earliest")
    assert json.loads(generation.starting) == {"new": {"0": 40, "1": 2}, "other": {}, "third": {}}
    assert succession.next(ONE, sources(ONE, "third", "new", "other"), "earliest") == generation


def test_a_batch_that_may_be_written_in_part_goes_first(state: StateFolder) -> None:
    succession = Succession(state)
    generation = succession.next(ONE, sources(ONE, "a"), "earliest")
    spark_wrote(generation, 0, {"a": {"0": 5}}, committed=False)
    assert succession.unfinished(ONE) is None
    assert succession.left(()) == []
    state.batches.pin(ONE, 0, PLAN, b"plan")
    assert succession.unfinished(ONE) == generation
    assert succession.left(()) == [ONE]
    assert succession.left((ONE,)) == []
    spark_wrote(generation, 0, {"a": {"0": 5}})
    assert succession.unfinished(ONE) is None


def test_the_inbox_is_read_for_as_long_as_there_is_one(state: StateFolder) -> None:
    succession = Succession(state)
    assert succession.left(()) == []
    generation = succession.choose(INBOX, (), cast(Any, None))
    assert succession.choose(INBOX, (), cast(Any, None)) == generation == generations.current(state, INBOX)
    assert succession.left(()) == [INBOX]


def test_topics_that_were_made_again_begin_at_their_first_record(state: StateFolder) -> None:
    succession = Succession(state)
    topics = sources(ONE, "a", "b")
    first = succession.next(ONE, topics, "earliest")
    spark_wrote(first, 0, {"a": {"0": 5, "1": 2}, "b": {"0": 6}})
    spark_wrote(first, 1, {"a": {"0": 3, "1": 4}, "b": {"0": 6, "1": 1}}, committed=False)
    assert turned_back(first, 0) == {}
    again = turned_back(first, 1)
    assert again == {"a": {0: (5, 3)}}
    second = succession.renew(ONE, again)
    assert json.loads(second.starting) == {"a": {"0": EARLIEST, "1": 2}, "b": {"0": 6}}
    assert succession.next(ONE, topics, "earliest") == second
    spark_wrote(second, 0, {"a": {"0": 1, "1": 2}, "b": {"0": 6}})
    assert json.loads(succession.next(ONE, topics[:1], "earliest").starting) == {"a": {"0": 1, "1": 2}}


def test_a_topic_as_the_inbox_that_was_made_again_begins_at_its_first_record(state: StateFolder) -> None:
    succession = Succession(state)
    first = succession.choose(INBOX, (), cast(Any, None))
    spark_wrote(first, 0, {"inbox": {"0": 5, "1": 7}})
    spark_wrote(first, 1, {"inbox": {"0": 2, "1": 8}}, committed=False)
    second = succession.renew(INBOX, turned_back(first, 1))
    assert json.loads(second.starting) == {"inbox": {"0": EARLIEST, "1": 7}}
    assert succession.choose(INBOX, (), cast(Any, None)) == second
