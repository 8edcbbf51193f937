"""Pins and plans in the state folder: whatever a pin names is there, whenever the process ends, whoever else pins."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.state.state import StateFolder

QUERIES = ("inbox", "kafka-1", "kafka-2")
A, B, C, D = (letter * 32 for letter in "abcd")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder of its own."""
    with StateFolder.open(tmp_path / "state") as opened:
        yield opened


def whole(state: StateFolder, plans: dict[str, bytes]) -> None:
    """Check that every pin names a plan whose document is there, and as it was written."""
    for pin in state.batches.glob("*/*"):
        if pin.name.isdigit():
            named = pin.read_text()
            assert state.plan(named) == plans[named]


def test_a_plan_is_there_for_as_long_as_a_batch_names_it(state: StateFolder) -> None:
    state.pin("kafka-1", 0, A, b"plan a")
    state.pin("inbox", 0, B, b"plan b")
    state.pin("inbox", 1, C, b"plan c")
    state.pin("inbox", 2, D, b"plan d")
    assert [state.plan(each) for each in (A, B, C, D)] == [b"plan a", None, b"plan c", b"plan d"]
    state.unpin_all("kafka-1")
    # The first batch of a new generation may still be judged by the plan that nothing names any more.
    state.pin("kafka-1", 0, A, b"plan a")
    assert state.plan(A) == b"plan a"


def test_a_plan_that_a_dead_process_left_is_written_again(state: StateFolder) -> None:
    state.pin("inbox", 0, A, b"plan a")
    (state.root / "plans" / f"{A}.json").write_bytes(b"")
    with_none = StateFolder(state.root)
    with_none.pin("kafka-1", 0, A, b"plan a")
    assert state.plan(A) == b"plan a"


def test_plans_do_not_pile_up(state: StateFolder) -> None:
    """What the last pins of a plan leave unnamed stays until the first pin of the next."""
    for reload in range(30):
        plan = f"{reload:032}"
        for query in QUERIES:
            state.pin(query, reload, plan, b"plan")
            if query == QUERIES[0]:
                named = {pin.read_text() for pin in state.batches.glob("*/*")}
                assert {path.stem for path in (state.root / "plans").iterdir()} == named
    assert len(list((state.root / "plans").iterdir())) == 3


def test_a_plan_is_kept_again_though_an_old_pin_names_it_that_outlived_it(state: StateFolder) -> None:
    state.pin("inbox", 0, A, b"plan a")
    (state.root / "plans" / f"{A}.json").unlink()
    again = StateFolder(state.root)
    again.pin("kafka-1", 0, B, b"plan b")
    again.pin("kafka-1", 1, A, b"plan a")
    assert again.plan(A) == b"plan a"


def test_a_plan_is_kept_again_though_a_disk_failed_while_others_were_removed(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for query, plan in (("kafka-1", A), ("kafka-2", B)):
        state.pin(query, 0, plan, b"plan")
    for query in ("kafka-1", "kafka-2"):
        state.unpin_all(query)
    unlink = Path.unlink

    def one_only(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "plans" and len(list(path.parent.iterdir())) < 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched, pytest.raises(OSError, match=os.strerror(errno.EIO)):
        patched.setattr(Path, "unlink", one_only)
        state.pin("inbox", 0, C, b"plan")
    for query, plan in (("kafka-1", A), ("kafka-2", B)):
        state.pin(query, 0, plan, b"plan")
        assert state.plan(plan) == b"plan"


def test_what_dead_writers_left_of_plans_is_removed(state: StateFolder) -> None:
    state.pin("inbox", 0, A, b"plan a")
    left = state.root / "plans" / f".{B}.json.99"
    left.write_bytes(b"plan")
    state.pin("inbox", 1, C, b"plan c")
    assert sorted(path.stem for path in (state.root / "plans").iterdir()) == [A, C]


class PowerCut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("steps", range(40))
def test_the_end_at_any_step_leaves_no_pin_without_its_plan(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    plans = {name * 32: f"plan {name}".encode() for name in "abcdef"}
    left = steps

    def dying(function: object) -> object:
        def step(*arguments: object, **named: object) -> object:
            nonlocal left
            if left <= 0:
                raise PowerCut
            left -= 1
            return function(*arguments, **named)  # type: ignore[operator]

        return step

    with monkeypatch.context() as patched, pytest.raises(PowerCut):
        for name in ("replace", "fsync"):
            patched.setattr(os, name, dying(getattr(os, name)))
        for name in ("unlink", "mkdir"):
            patched.setattr(Path, name, dying(getattr(Path, name)))
        while True:
            for number, plan in enumerate(plans):
                for query in QUERIES:
                    state.pin(query, number, plan, plans[plan])
                    if number == 3:
                        state.unpin_all(query)
    whole(state, plans)
    again = StateFolder(state.root)
    for query in QUERIES:
        again.pin(query, 9, "f" * 32, plans["f" * 32])
    whole(again, plans)


def test_queries_that_pin_at_once_keep_what_the_others_named(state: StateFolder) -> None:
    plans = {f"{number:032}": b"plan %d" % number for number in range(40)}
    failures: list[str] = []
    together = threading.Barrier(len(QUERIES))

    def query(name: str, offset: int) -> None:
        together.wait()
        try:
            for number in range(len(plans)):
                plan = f"{(number + offset) % len(plans):032}"
                state.pin(name, number, plan, plans[plan])
                if state.plan(plan) != plans[plan]:
                    failures.append(f"{name} {number}")
                if number % 10 == 9:
                    state.unpin_all(name)
        except OSError as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=query, args=(name, at * 3)) for at, name in enumerate(QUERIES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    whole(state, plans)
