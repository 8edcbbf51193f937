"""The machine's memory is divided by what there is, also inside of a container, and a worker keeps to its share."""

from __future__ import annotations

import json
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.errors import ConfigError
from router.evaluation.evaluator import load_evaluator, private_memory_bytes, run_within_memory_limit
from router.machine import (
    DEFAULT_RECORD_BYTES,
    GIB,
    MIB,
    MIN_RECORDS,
    TARGET_SECONDS,
    BatchSizing,
    divide_memory,
    measure_memory,
)
from router.reading.generations import Generation, planned, records_in
from router.settings import Settings, settings_from_dict
from router.spark.session import memory_conf

BARE: dict[str, Any] = {
    "sinks": {"out": {"type": "jsonl"}},
    "routes": [{"to": ["out"]}],
    "dead_letters": {"sinks": ["out"]},
}


def given(**more: Any) -> Settings:
    """Return settings with some keys."""
    return settings_from_dict({**BARE, **more}, {}, Path("/"))


@pytest.mark.parametrize(
    ("machine", "cores", "heap", "worker", "batch"),
    [
        (1 * GIB, 2, 512 * MIB, 512 * MIB, 32 * MIB),
        (4 * GIB, 2, GIB, 512 * MIB, 64 * MIB),
        (16 * GIB, 2, 2 * GIB, GIB, 128 * MIB),
        (16 * GIB, 16, 2 * GIB, 512 * MIB, 128 * MIB),
        (512 * GIB, 64, 4 * GIB, GIB, 128 * MIB),
    ],
)
def test_shares_follow_the_machine(machine: int, cores: int, heap: int, worker: int, batch: int) -> None:
    division = divide_memory(given(), machine, cores)
    assert (division.heap, division.worker, division.batch) == (heap, worker, batch)


@pytest.mark.parametrize(
    ("machine", "cores", "more", "tasks"),
    [
        (24 * GIB, 2, {}, 4),
        (8 * GIB, 2, {}, 4),
        (2 * GIB, 2, {}, 2),
        (8 * GIB, 8, {}, 8),
        (24 * GIB, 2, {"memory": {"worker": "6GiB"}}, 2),
        (2 * GIB, 2, {"memory": {"worker": "128MiB"}}, 4),
        (24 * GIB, 2, {"spark": {"master": "local[*]"}}, 2),
        (24 * GIB, 2, {"spark": {"master": "local"}}, 1),
        (24 * GIB, 2, {"spark": {"master": "local[7, 3]"}}, 7),
    ],
)
def test_tasks_at_a_time_are_two_for_each_core_where_their_workers_have_room(
    machine: int, cores: int, more: dict[str, Any], tasks: int
) -> None:
    division = divide_memory(given(**more), machine, cores)
    assert (division.tasks, division.cores) == (tasks, cores)


def test_real_time_mode_has_one_task_for_each_core() -> None:
    topics = {"out": {"type": "kafka", "bootstrap_servers": "localhost:1", "topic": "out"}}
    mode: dict[str, Any] = {"trigger": "realtime", "realtime": {"rest": "rest"}}
    division = divide_memory(given(sinks=topics, dead_letters={"sinks": ["out"]}, **mode), 24 * GIB, 2)
    assert division.master == "local[2]"


def test_remedies_name_settings_with_their_present_values() -> None:
    division = divide_memory(given(max_bytes_per_batch="3MiB"), 16 * GIB, 2)
    assert "memory.heap, now 2048 MiB" in division.heap_remedy
    assert "max_bytes_per_batch, now 3 MiB" in division.heap_remedy
    assert "memory.worker, now 1024 MiB" in division.worker_remedy
    assert division.remedy("OutOfMemoryError: Java heap space") == division.heap_remedy
    assert division.remedy("MemoryError: evaluating 3 records") == division.worker_remedy
    assert division.remedy("a Python worker died", worker=True) == division.worker_remedy
    assert not division.remedy("ValueError: 'MemoryError' is a word")


def test_settings_go_before_the_machine() -> None:
    division = divide_memory(
        given(memory={"heap": "600MiB", "worker": "200MiB"}, max_bytes_per_batch="3MiB"), 64 * GIB, 4
    )
    assert (division.heap, division.worker, division.batch) == (600 * MIB, 200 * MIB, 3 * MIB)
    assert divide_memory(given(memory={"heap": "600MiB"}), 64 * GIB, 4).batch == 600 * MIB // 16


@pytest.mark.parametrize(("text", "heap"), [("2g", 2 * GIB), ("700m", 700 * MIB), ("900", 900 * MIB)])
def test_a_heap_given_to_spark_itself_counts(text: str, heap: int) -> None:
    assert divide_memory(given(spark={"conf": {"spark.driver.memory": text}}), 64 * GIB, 4).heap == heap


def test_a_heap_that_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory is 'much'"):
        divide_memory(given(spark={"conf": {"spark.driver.memory": "much"}}), 64 * GIB, 4)


def test_spark_is_given_its_heap_in_a_unit() -> None:
    assert memory_conf(given(memory={"heap": "600MiB"}))["spark.driver.memory"] == "600m"


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "1073741824\n"}, GIB),
        (
            "0::/a.slice/b.service\n",
            {"a.slice/memory.max": "2147483648", "a.slice/b.service/memory.max": "max"},
            2 * GIB,
        ),
        ("4:memory:/docker/x\n0::/\n", {"memory/docker/x/memory.limit_in_bytes": "536870912"}, 512 * MIB),
        # In a container the place is that of the host, and the files are at the top.
        ("4:cpu,memory:/docker/x\n", {"memory/memory.limit_in_bytes": "536870912"}, 512 * MIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_limit_of_a_control_group_is_the_machine(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    whole = measure_memory(tmp_path / "nothing")
    assert measure_memory(tmp_path) == (whole if limit is None else min(whole, limit))


def judge_too_much(told: Connection) -> None:
    """Ask for more than a plan allows, in a process of its own; tell what came of it."""
    plan: Any = SimpleNamespace(memory_limit=64 * MIB)
    held = load_evaluator(SimpleNamespace(value=plan))  # type: ignore[arg-type]
    before = private_memory_bytes()
    try:
        run_within_memory_limit(held, 7, lambda: [bytearray(MIB) for _ in range(512)])
        told.send("it got it")
    except MemoryError as error:
        told.send(str(error))
    told.send(private_memory_bytes() - before)
    told.send(len(run_within_memory_limit(held, 7, lambda: bytearray(32 * MIB))))
    told.send(len(bytearray(256 * MIB)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold this limit")
def test_a_worker_that_asks_for_too_much_is_told_so_and_goes_on() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=judge_too_much, args=(theirs,))
    process.start()
    try:
        assert ours.poll(60)
        told = ours.recv()
        assert "evaluating 7 records" in told and "memory.worker" in told and "64 MiB" in told
        assert ours.poll(60) and ours.recv() < 256 * MIB  # What it had taken is free again.
        assert ours.poll(60) and ours.recv() == 32 * MIB
        assert ours.poll(60) and ours.recv() == 256 * MIB  # Nobody else is limited.
    finally:
        process.join(60)


# How many records a batch may have follows from their size, as far as it is known.


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
