"""The machine's memory is divided by what there is, also inside of a container, and a worker keeps to its share."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.evaluation.evaluator import load_evaluator, private_memory_bytes, run_within_memory_limit
from router.machine import (
    GIB,
    MIB,
    BatchSizing,
    divide_memory,
    measure_memory,
)
from router.settings import Settings, settings_from_dict
from router.spark.session import memory_conf
from tests.support.cases import read_cases

CASES: dict[str, Any] = read_cases(Path(__file__).resolve().parents[3] / "cases" / "machine.yaml")
BARE: dict[str, Any] = {
    "sinks": {"out": {"type": "jsonl"}},
    "routes": [{"to": ["out"]}],
    "dead_letters": {"sinks": ["out"]},
}


def given(**more: Any) -> Settings:
    """Return settings with some keys."""
    return settings_from_dict({**BARE, **more}, {}, Path("/"))


def test_remedies_name_settings_with_their_present_values() -> None:
    division = divide_memory(given(max_bytes_per_batch="3MiB"), 16 * GIB, 2)
    assert "memory.heap, now 2048 MiB" in division.heap_remedy
    assert "max_bytes_per_batch, now 3 MiB" in division.heap_remedy
    assert "memory.worker, now 1024 MiB" in division.worker_remedy
    assert division.remedy("OutOfMemoryError: Java heap space") == division.heap_remedy
    assert division.remedy("MemoryError: evaluating 3 records") == division.worker_remedy
    assert division.remedy("a Python worker died", worker=True) == division.worker_remedy
    assert not division.remedy("ValueError: 'MemoryError' is a word")


def test_spark_is_given_its_heap_in_a_unit() -> None:
    assert memory_conf(given(memory={"heap": "600MiB"}))["spark.driver.memory"] == "600m"


@pytest.mark.parametrize(("groups", "files", "limit"), CASES["groups"])
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


@pytest.mark.parametrize(("told", "expected"), CASES["aims"])
def test_settings_say_how_long_full_batches_may_take(told: dict[str, str], expected: float) -> None:
    assert BatchSizing.of(given(**told)).aim == expected
