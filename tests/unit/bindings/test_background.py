"""Background threads begin again after a fault, and the faults are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from bindings.background import Background, fault_counts
from router.watching.metrics import Metrics

SECONDS = 30.0


@pytest.fixture
def part() -> Iterator[str]:
    yield "a-part-of-the-tests"


def test_work_begins_again_after_faults_and_they_are_counted(part: str, caplog: pytest.LogCaptureFixture) -> None:
    before = fault_counts().get(part, 0)
    turns = iter((ValueError("one"), RecursionError("two"), None))
    done = threading.Event()

    def work() -> None:
        fault = next(turns)
        if fault is not None:
            raise fault
        done.set()

    thread = Background(part, work, name="work-1")
    thread.start()
    assert done.wait(SECONDS)
    assert thread.join(SECONDS)
    assert fault_counts()[part] == before + 2
    assert "work-1 failed; restarting in" in caplog.text
    text = generate_latest(Metrics().registry).decode()
    assert f'xrouter_background_faults_total{{part="{part}"}} {before + 2}.0' in text


def test_a_fault_while_ending_begins_nothing(part: str) -> None:
    ending = threading.Event()
    turns: list[int] = []

    def work() -> None:
        turns.append(1)
        ending.wait(SECONDS)
        raise OSError("the folder is gone")

    thread = Background(part, work)
    assert thread.join(0.0)  # One that was never started has nothing to wait for.
    thread.start()
    thread.ask_to_end()
    ending.set()
    assert thread.join(SECONDS)
    assert turns == [1]
