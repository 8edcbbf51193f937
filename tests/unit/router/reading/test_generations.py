"""What has been read: generations and where each begins, parts of a batch, and up to when all that arrived is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.inbox.log import Inbox
from bindings.inbox.source import InboxView
from bindings.parts import InboxRow
from router.errors import StateError
from router.reading import backlogs, generations
from router.reading.backlogs import BYTES, CHANNEL, NUMBERS, InboxBacklog, InboxRows, Range, ReadUntil, cut
from router.reading.generations import (
    EARLIEST,
    Generation,
    Offsets,
    Positions,
    Succession,
    starting_offsets,
    turned_back,
)
from router.settings import SourceSettings
from router.sources import INBOX, Source
from router.state.durable import progress_of
from router.state.state import StateFolder
from router.watching.backlogs import Backlog, Backlogs

QUERY = "kafka-1"


def planned(generation: Generation, batch: int, offsets: Offsets, *, committed: bool = True) -> None:
    """Write what Spark writes of a batch."""
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offsets)}"), ("commits", "v1\n{}")):
        if folder == "offsets" or committed:
            (generation.path / folder).mkdir(exist_ok=True)
            (generation.path / folder / str(batch)).write_text(text)


def test_a_generation_that_never_commits_hands_on_where_it_began(state: StateFolder) -> None:
    starting = {"known": {"0": 7, "1": 0}, "missing": {}}
    generation = generations.begin(state, QUERY, ["known", "missing"], json.dumps(starting))
    assert generations.current(state, QUERY) == generation
    assert generation.positions() == starting
    planned(generation, 0, {"known": {"0": 9, "1": 4}}, committed=False)
    assert generation.positions() == starting


def test_what_spark_found_at_its_first_look_goes_before_what_it_was_told(state: StateFolder) -> None:
    starting = {"known": {"0": EARLIEST}, "missing": {}}
    generation = generations.begin(state, QUERY, ["known", "missing"], json.dumps(starting))
    assert not generation.begun
    noted = generation.path / "sources" / "0" / "0"
    noted.parent.mkdir(parents=True)
    noted.write_bytes(b"\0v1\n" + json.dumps({"known": {"0": 5}}).encode())
    assert generation.begun
    assert generation.positions() == {"known": {"0": 5}, "missing": {}}


def test_topics_and_partitions_without_a_commit_keep_their_beginning(state: StateFolder) -> None:
    starting = {"one": {"0": 7, "1": 3}, "two": {"0": 5}, "missing": {}}
    generation = generations.begin(state, QUERY, list(starting), json.dumps(starting))
    planned(generation, 0, {"one": {"0": 8, "1": 3, "2": 1}})
    planned(generation, 1, {"one": {"0": 9, "1": 9, "2": 9}}, committed=False)
    assert generation.positions() == {"one": {"0": 8, "1": 3, "2": 1}, "two": {"0": 5}, "missing": {}}
    assert generation.pending == 1


def test_a_partition_that_spark_reads_no_more_is_gone(state: StateFolder) -> None:
    starting = {"deleted": {"0": 7}, "kept": {"0": 5}, "missing": {}}
    generation = generations.begin(state, QUERY, list(starting), json.dumps(starting))
    noted = generation.path / "sources" / "0" / "0"
    noted.parent.mkdir(parents=True)
    noted.write_bytes(b"\0v1\n" + json.dumps({"deleted": {"0": 7}, "kept": {"0": 5}}).encode())
    planned(generation, 0, {"kept": {"0": 8}})
    assert generation.positions() == {"deleted": {"0": EARLIEST}, "kept": {"0": 8}, "missing": {}}


def test_what_the_ledger_does_not_name_begins_at_its_first_record(state: StateFolder) -> None:
    positions = Positions(state)
    positions.keep("1", {"one": {"0": 7}, "missing": {}})
    positions.keep("2", {"one": {"0": 1}})
    positions.keep("1", {"one": {"1": 2}})
    known = Positions(state).of("1")
    assert known == {"one": {"0": 7, "1": 2}, "missing": {}}
    told = json.loads(starting_offsets({"one": [0, 1, 2], "missing": [0]}, known))
    assert told == {"one": {"0": 7, "1": 2, "2": EARLIEST}, "missing": {"0": EARLIEST}}


def test_a_committed_batch_without_a_note_of_its_end_is_no_reason_to_begin_anew(state: StateFolder) -> None:
    generation = generations.begin(state, QUERY, ["t"], json.dumps({"t": {"0": 7}}))
    planned(generation, 0, {"t": {"0": 9}})
    (generation.path / "offsets" / "0").unlink()
    assert generation.ends(0) == {}
    with pytest.raises(StateError, match="offsets/0 is missing: batch 0 was committed"):
        generation.positions()


def test_files_of_spark_that_say_something_else_are_damaged(state: StateFolder) -> None:
    generation = generations.begin(state, QUERY, ["t"])
    (generation.path / "metadata").write_text('{"id": "x"}')
    planned(generation, 0, {"t": {"0": 9}}, committed=False)
    with pytest.raises(StateError, match="offsets/0 is damaged: it is truncated"):
        progress_of(generation.path)
    (generation.path / "metadata").write_text("[]")
    with pytest.raises(StateError, match="metadata is damaged"):
        progress_of(generation.path)
    (generation.path / "metadata").write_text('{"id": "x"}')
    (generation.path / "offsets" / "0").write_text('v1\n{"batchTimestampMs": 1}\n{"t": {"0": 9}}')
    assert progress_of(generation.path).end == {"t": {"0": 9}}


# Which generation comes next: an unfinished batch first, and every topic from where any query left it.

PLAN = "a" * 32
ONE, TWO = "kafka-1", "kafka-1-two"


def sources(query: str, *topics: str) -> tuple[Source, ...]:
    """Return sources of a query, which begin at their first record and so ask no broker."""
    return tuple(
        Source(f"/endpoints/{topic}", "kafka", f"kafka:{topic}", query, SourceSettings(endpoint=f"/endpoints/{topic}"),
               topic=topic, servers="nowhere:1")
        for topic in topics
    )  # fmt: skip


def test_a_topic_that_moves_is_read_on_where_it_was_left(state: StateFolder) -> None:
    succession = Succession(state)
    first = succession.next(ONE, sources(ONE, "a", "b"), "earliest")
    assert json.loads(first.starting) == {"a": {}, "b": {}}
    planned(first, 0, {"a": {"0": 5}, "b": {"0": 6}})
    moved = sources(TWO, "b")
    # Nobody asks a broker where a topic ends that some query has been reading.
    succession.place(moved, "latest")
    second = succession.next(TWO, moved, "latest")
    assert json.loads(second.starting) == {"b": {"0": 6}}
    planned(second, 0, {"b": {"0": 9}})
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
    planned(generation, 0, {"a": {"0": 5}}, committed=False)
    assert succession.unfinished(ONE) is None
    assert succession.left(()) == []
    state.batches.pin(ONE, 0, PLAN, b"plan")
    assert succession.unfinished(ONE) == generation
    assert succession.left(()) == [ONE]
    assert succession.left((ONE,)) == []
    planned(generation, 0, {"a": {"0": 5}})
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
    planned(first, 0, {"a": {"0": 5, "1": 2}, "b": {"0": 6}})
    planned(first, 1, {"a": {"0": 3, "1": 4}, "b": {"0": 6, "1": 1}}, committed=False)
    assert turned_back(first, 0) == {}
    again = turned_back(first, 1)
    assert again == {"a": {0: (5, 3)}}
    second = succession.renew(ONE, again)
    assert json.loads(second.starting) == {"a": {"0": EARLIEST, "1": 2}, "b": {"0": 6}}
    assert succession.next(ONE, topics, "earliest") == second
    planned(second, 0, {"a": {"0": 1, "1": 2}, "b": {"0": 6}})
    assert json.loads(succession.next(ONE, topics[:1], "earliest").starting) == {"a": {"0": 1, "1": 2}}


def test_a_topic_as_the_inbox_that_was_made_again_begins_at_its_first_record(state: StateFolder) -> None:
    succession = Succession(state)
    first = succession.choose(INBOX, (), cast(Any, None))
    planned(first, 0, {"inbox": {"0": 5, "1": 7}})
    planned(first, 1, {"inbox": {"0": 2, "1": 8}}, committed=False)
    second = succession.renew(INBOX, turned_back(first, 1))
    assert json.loads(second.starting) == {"inbox": {"0": EARLIEST, "1": 7}}
    assert succession.choose(INBOX, (), cast(Any, None)) == second


# Cutting a batch into ranges: every place in exactly one part, in order.


PLACES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 2**60)), st.integers(0, 2**30), min_size=2
)


@given(PLACES, st.integers(2, 12), st.booleans())
def test_each_place_is_in_one_part_in_order(
    places: dict[tuple[str, int, int], int], pieces: int, by_bytes: bool
) -> None:
    ordered = sorted(places)
    columns = zip(*ordered, strict=True)
    table = pa.table({**dict(zip((CHANNEL, *NUMBERS), columns, strict=True)), BYTES: [places[p] for p in ordered]})
    parts = cut(table, pieces, by_bytes=by_bytes)
    assert 2 <= len(parts) <= pieces
    owners = [[n for n, part in enumerate(parts) for r in part if _holds(r, place)] for place in ordered]
    assert all(len(owner) == 1 for owner in owners)
    assert owners == sorted(owners)
    assert {owner[0] for owner in owners} == set(range(len(parts)))
    assert all(msgspec.json.decode(msgspec.json.encode(r), type=Range) == r for part in parts for r in part)


def _holds(range_: Range, place: tuple[str, int, int]) -> bool:
    return range_.channel == place[0] and range_.first <= place[1:] <= range_.last


# Up to when all that arrived has been read, whatever times records carry, and what of an inbox waits.


def test_what_lay_before_the_ends_of_a_question_is_read_once_they_are_reached() -> None:
    read = ReadUntil()
    assert read.seconds == 0
    read.look(10.0, ["t"], {("t", 0): 5, ("t", 1): 7}, {("t", 0): 0, ("t", 1): 7})
    assert read.seconds == 0, "five wait"
    read.look(20.0, ["t"], {("t", 0): 9, ("t", 1): 8}, {("t", 0): 4, ("t", 1): 8})
    assert read.seconds == 0, "one of them waits"
    read.look(30.0, ["t"], {("t", 0): 20, ("t", 1): 8}, {("t", 0): 6, ("t", 1): 8})
    assert read.seconds == 10, "others came since, and always may"
    read.look(40.0, ["t"], {("t", 0): 30, ("t", 1): 8}, {("t", 0): 20, ("t", 1): 8})
    assert read.seconds == 30
    read.look(50.0, ["t"], {("t", 0): 30, ("t", 1): 8}, {("t", 0): 30, ("t", 1): 8})
    assert read.seconds == 50, "nothing waits"


def test_a_topic_that_does_not_exist_has_nothing_to_wait_for() -> None:
    read = ReadUntil()
    read.look(10.0, ["t", "nosuch"], {("t", 0): 5}, {("t", 0): 5})
    assert read.seconds == 10
    read.look(20.0, ["t", "nosuch"], {("t", 0): 9, ("nosuch", 0): 3}, {("t", 0): 9, ("nosuch", 0): 0})
    assert read.seconds == 10
    read.look(30.0, ["t", "nosuch"], {("t", 0): 9}, {("t", 0): 9})
    assert read.seconds == 30, "it was deleted"


def test_a_topic_that_was_made_anew_is_read_from_its_first_record() -> None:
    read = ReadUntil()
    read.look(10.0, ["t"], {("t", 0): 100}, {("t", 0): 90})
    read.look(20.0, ["t"], {("t", 0): 5}, {("t", 0): 0})
    assert read.seconds == 0
    read.look(30.0, ["t"], {("t", 0): 6}, {("t", 0): 5})
    assert read.seconds == 10


def test_a_source_that_is_new_may_have_older_records() -> None:
    read = ReadUntil()
    read.look(10.0, ["t"], {("t", 0): 5}, {("t", 0): 5})
    assert read.seconds == 10
    read.look(20.0, ["t", "u"], {("t", 0): 5, ("u", 0): 5}, {("t", 0): 5, ("u", 0): 1})
    assert read.seconds == 0
    read.look(30.0, ["t", "u"], {("t", 0): 5, ("u", 0): 9}, {("t", 0): 5, ("u", 0): 5})
    assert read.seconds == 20


def test_what_is_kept_of_an_inbox_that_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "MAX_CHUNKS", 4)
    inbox = Inbox(tmp_path / "inbox", partitions=1)
    try:
        view, rows = InboxView(tmp_path / "inbox"), InboxRows()
        firsts = {number: view.first_position(number) for number in view.partitions}
        for at in range(1, 20):
            inbox.append_many([InboxRow("/e/a" if at % 3 else "/e/b", "HTTP", at * 1000, [], b"")]).result(60)
            found = rows.look(view, firsts, {number: view.end_position(number) for number in view.partitions})
            assert found is not None and sum(each.records for each in found.values()) == at
            assert all(len(known) <= 4 for known in rows._known.values())
        assert found == {"/e/a": Backlog(13, 1, 12), "/e/b": Backlog(6, 3, 6)}
    finally:
        inbox.close()


def test_the_oldest_row_of_an_inbox_is_known_before_all_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "LOOK_ROWS", 2)
    inbox = Inbox(tmp_path / "inbox", partitions=1)
    try:
        inbox.append_many([InboxRow("/e/a", "HTTP", at * 1000, [], b"") for at in (7, 8, 9)]).result(60)
        backlog = InboxBacklog(tmp_path / "inbox")
        assert (backlog.look(None), backlog.endpoints) == (Backlog(3, 7), None)
        assert backlog.look(None) == Backlog(3, 7)
        assert backlog.endpoints == {"/e/a": Backlog(3, 7)}
    finally:
        inbox.close()


# Up to when all that arrived is in the sinks; figures of backlogs are cases (``tests/cases/watching/status.yaml``).


A, B = "/endpoints/a", "/endpoints/b"


def test_up_to_when_all_that_arrived_is_read() -> None:
    backlogs = Backlogs()
    assert backlogs.read_until() == 0, "nobody has said anything"
    backlogs.update("kafka-1", {A: Backlog(0), B: Backlog(0)}, 990.0)
    backlogs.update("inbox", {INBOX: Backlog(0)}, 1_000.0)
    assert backlogs.read_until() == 990
    backlogs.update("rest", {})
    assert backlogs.read_until() == 0, "one has not been asked yet"
    backlogs.forget("rest")
    assert backlogs.read_until() == 990
