"""How many records a batch may have follows from their size, as far as it is known."""

from __future__ import annotations

import json
from pathlib import Path

from router.machine.sizing import LARGEST, LEAST_RECORDS, BatchSizing
from router.reading.generations import Generation
from router.reading.planned import planned, records_in

MIB = 2**20


def test_a_sample_bounds_the_first_batch() -> None:
    assert BatchSizing(64 * MIB, 100_000).begin(200.0) == 100_000
    assert BatchSizing(64 * MIB, 100_000).begin(8_192.0) == 8_192
    assert BatchSizing(64 * MIB, 100_000).begin(None) == 100_000
    assert BatchSizing(MIB, 100_000).begin(50.0 * MIB) == LEAST_RECORDS
    assert BatchSizing(MIB, 3).begin(50.0 * MIB) == 3


def test_what_batches_taught_goes_before_a_sample() -> None:
    sizing = BatchSizing(64 * MIB, 100_000)
    sizing.begin(8_192.0)
    for _ in range(40):
        sizing.learn(8_192, 8_192 * 100)
    assert sizing.relimit
    assert sizing.begin(8_192.0) == 100_000
    assert not sizing.relimit


def test_records_that_grow_ask_for_another_limit_at_once() -> None:
    sizing = BatchSizing(64 * MIB, 100_000)
    assert sizing.begin(200.0) == 100_000
    sizing.learn(100_000, 100_000 * 300)
    assert not sizing.relimit
    sizing.learn(100_000, 100_000 * 8_192)
    assert sizing.relimit
    assert sizing.begin(None) == 8_192


def test_a_limit_that_never_binds_is_left_alone() -> None:
    sizing = BatchSizing(64 * MIB, 100_000)
    sizing.begin(8_192.0)
    for _ in range(100):
        sizing.learn(10, 1_000)
    assert not sizing.relimit


def test_a_source_that_counts_bytes_needs_no_other_limit() -> None:
    sizing = BatchSizing(64 * MIB, 100_000, exact=True)
    assert sizing.begin(None) == 100_000
    sizing.learn(10_000, 10_000 * 6_000)
    assert not sizing.relimit and sizing.begin(None) == 100_000


def test_only_what_may_be_too_large_is_suspected() -> None:
    sizing = BatchSizing(64 * MIB, 100_000)
    assert not sizing.suspects(2 * 64 * MIB // LARGEST)
    assert sizing.suspects(2 * 64 * MIB // LARGEST + 1)
    sizing.begin(200.0)
    assert not sizing.suspects(100_000)
    assert sizing.suspects(1_000_000)
    sizing.learn(10, 10 * MIB)
    assert sizing.suspects(1_000)


def test_parts_are_about_as_large_as_the_bound() -> None:
    sizing = BatchSizing(64 * MIB, 100_000)
    assert sizing.pieces(0) == sizing.pieces(128 * MIB) == 1
    assert sizing.pieces(128 * MIB + 1) == 3
    assert sizing.pieces(640 * MIB) == 10


def generation(path: Path, *batches: object, starting: str = "") -> Generation:
    """Return a generation whose checkpoint has these offsets."""
    (path / "offsets").mkdir(parents=True)
    for number, offsets in enumerate(batches):
        (path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    return Generation(path, "g", ("a",), starting)


def test_planned_offsets_are_those_between_two_batches(tmp_path: Path) -> None:
    first, second = {"a": {"0": 10, "1": 5}}, {"a": {"0": 30, "1": 5}}
    begun = generation(tmp_path, first, second, starting=json.dumps({"a": {"0": 4, "1": 0}}))
    spans = planned(begun, 0)
    assert spans == {"a": {0: (4, 10), 1: (0, 5)}} and records_in(spans) == 11
    assert planned(begun, 1) == {"a": {0: (10, 30), 1: (5, 5)}}


def test_offsets_that_are_not_all_known_are_none(tmp_path: Path) -> None:
    added = generation(tmp_path / "added", {"a": {"0": 10}}, {"a": {"0": 30, "1": 5}})
    assert planned(added, 1) is None
    earliest = generation(tmp_path / "earliest", {"a": {"0": 10}}, starting=json.dumps({"a": {"0": -2}}))
    assert planned(earliest, 0) is None
    inbox = generation(tmp_path / "inbox", {"version": 1, "inbox": "x", "partitions": {"0": {"segment": 0, "row": 3}}})
    assert planned(inbox, 0) is None
    assert planned(generation(tmp_path / "none"), 0) is None
