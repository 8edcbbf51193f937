"""What has been read: generations and where each begins, parts of a batch, and up to when all that arrived is there."""

from __future__ import annotations

import json
from pathlib import Path

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
from router.reading.backlogs import BYTES, CHANNEL, NUMBERS, InboxBacklog, InboxRows, Range, cut
from router.reading.generations import (
    Generation,
    Offsets,
)
from router.state.durable import progress_of
from router.state.state import StateFolder
from router.watching.backlogs import Backlog

QUERY = "kafka-1"


def planned(generation: Generation, batch: int, offsets: Offsets, *, committed: bool = True) -> None:
    """Write what Spark writes of a batch."""
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offsets)}"), ("commits", "v1\n{}")):
        if folder == "offsets" or committed:
            (generation.path / folder).mkdir(exist_ok=True)
            (generation.path / folder / str(batch)).write_text(text)


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
