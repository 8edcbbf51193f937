"""How many records a batch may have follows from their size, as far as it is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.machine import DEFAULT_RECORD_BYTES, MIN_RECORDS, TARGET_SECONDS, BatchSizing
from router.reading.generations import Generation, planned, records_in
from router.settings import settings_from_dict

MIB = 2**20
BARE: dict[str, Any] = {
    "sinks": {"out": {"type": "jsonl"}},
    "routes": [{"to": ["out"]}],
    "dead_letters": {"sinks": ["out"]},
}


def settled(sizing: BatchSizing, overhead: float, pace: float, batches: int = 12) -> list[int]:
    """Work on a backlog, each batch *overhead* seconds and so many records a second; return the limits in turn."""
    limits = [sizing.begin(200.0)]
    for _ in range(batches):
        sizing.worked(sizing.limit, overhead + sizing.limit / pace)
        if sizing.relimit:
            limits.append(sizing.begin(None))
    return limits


@pytest.mark.parametrize(
    ("overhead", "pace", "expected"),
    [
        (0.5, 50_000.0, [262_144]),
        (0.5, 14_000.0, [262_144]),
        (0.5, 1_000.0, [262_144, 19_961]),
        (0.0, 10.0, [262_144, 200]),
        (0.0, 0.01, [262_144, MIN_RECORDS]),
    ],
)
def test_full_batches_take_a_bounded_time(overhead: float, pace: float, expected: list[int]) -> None:
    assert settled(BatchSizing(128 * MIB, 262_144), overhead, pace) == expected


def test_batches_grow_again_once_the_pace_allows_for_it_and_never_swing() -> None:
    sizing = BatchSizing(128 * MIB, 262_144)
    assert settled(sizing, 0.5, 100.0)[-1] < 100 * TARGET_SECONDS
    grown = settled(sizing, 0.5, 40_000.0)
    assert grown == sorted(grown) and grown[-1] == 262_144
    assert settled(sizing, 0.5, 40_000.0) == [262_144]


@pytest.mark.parametrize("factors", [(1.0, 1.6), (1.3, 0.7, 1.0), (0.6, 0.6, 1.2)])
def test_a_pace_that_varies_changes_the_limit_once(factors: tuple[float, ...]) -> None:
    sizing = BatchSizing(128 * MIB, 262_144)
    first = settled(sizing, 0.5, 1_000.0)[-1]
    for number in range(60):
        sizing.worked(sizing.limit, sizing.limit / (1_000.0 * factors[number % len(factors)]))
    assert not sizing.relimit and sizing.limit == first


def test_batches_that_are_not_full_tell_nothing_of_the_pace() -> None:
    sizing = BatchSizing(128 * MIB, 262_144)
    sizing.begin(200.0)
    for records in (1, 1_000, 131_071):
        sizing.worked(records, 100.0)
    assert sizing.pace is None and not sizing.relimit


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, TARGET_SECONDS),
        ({"trigger": "1m"}, 60.0),
        ({"batch_limit": "10s"}, 5.0),
        ({"trigger": "1h", "batch_limit": "0s"}, 3600.0),
    ],
)
def test_settings_say_how_long_full_batches_may_take(told: dict[str, str], expected: float) -> None:
    assert BatchSizing.of(settings_from_dict({**BARE, **told}, {}, Path("/"))).aim == expected


def test_a_sample_bounds_the_first_batch() -> None:
    assert BatchSizing(64 * MIB, 100_000).begin(200.0) == 100_000
    assert BatchSizing(64 * MIB, 100_000).begin(8_192.0) == 8_192
    assert BatchSizing(64 * MIB, 100_000).begin(None) == 100_000
    assert BatchSizing(MIB, 100_000).begin(50.0 * MIB) == MIN_RECORDS
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
    assert not sizing.suspects(2 * 64 * MIB // DEFAULT_RECORD_BYTES)
    assert sizing.suspects(2 * 64 * MIB // DEFAULT_RECORD_BYTES + 1)
    sizing.begin(200.0)
    assert not sizing.suspects(100_000)
    assert sizing.suspects(1_000_000)
    sizing.learn(10, 10 * MIB)
    assert sizing.suspects(1_000)


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
