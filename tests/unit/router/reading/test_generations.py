"""Generations: where one begins is kept by its description, and handed on by one that committed nothing."""

from __future__ import annotations

import json

from router.reading import generations
from router.reading.generations import EARLIEST, Generation, Positions, starting_offsets
from router.state.state import StateFolder

QUERY = "kafka-1"


def planned(generation: Generation, batch: int, offsets: dict[str, dict[str, int]], *, committed: bool) -> None:
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
    planned(generation, 0, {"one": {"0": 8, "1": 3, "2": 1}}, committed=True)
    planned(generation, 1, {"one": {"0": 9, "1": 9, "2": 9}}, committed=False)
    assert generation.positions() == {"one": {"0": 8, "1": 3, "2": 1}, "two": {"0": 5}, "missing": {}}
    assert generation.pending == 1


def test_a_partition_that_spark_reads_no_more_is_gone(state: StateFolder) -> None:
    starting = {"deleted": {"0": 7}, "kept": {"0": 5}, "missing": {}}
    generation = generations.begin(state, QUERY, list(starting), json.dumps(starting))
    noted = generation.path / "sources" / "0" / "0"
    noted.parent.mkdir(parents=True)
    noted.write_bytes(b"\0v1\n" + json.dumps({"deleted": {"0": 7}, "kept": {"0": 5}}).encode())
    planned(generation, 0, {"kept": {"0": 8}}, committed=True)
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
