"""What signals ask of a process with a JVM under it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from router.spark.session import Stopped, Stopping, handle_signals


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_asks_for_a_drain(hangup: None, number: signal.Signals) -> None:
    stop = threading.Event()
    with handle_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(5)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_second_signal_while_the_first_is_answered_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads that it drains may send the next at that moment."""
    ended: list[int] = []
    told: list[str] = []

    def tell(event: str, **_: object) -> None:
        told.append(event)
        if len(told) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("router.spark.session._log", SimpleNamespace(info=tell, warning=tell))
    monkeypatch.setattr("router.spark.session.kill_jvm", lambda: None)
    monkeypatch.setattr("os._exit", ended.append)
    with handle_signals(threading.Event()):
        signal.raise_signal(signal.SIGINT)
    assert told[:2] == ["draining", "ended at once by a second signal; the current batch will be repeated"]
    assert ended == [128 + signal.SIGINT]


def test_who_was_started_to_ignore_hangups_does(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = threading.Event()
    with handle_signals(stop):
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()


def test_a_child_that_is_about_to_run_another_program_does_not_answer() -> None:
    """Ctrl-C goes to all of a terminal's processes, and so to a child that has the handlers still."""
    stop = Stopping()
    with handle_signals(stop), stop.interruptible():
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGINT)
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not stop.is_set()


# A signal ends a start that has nothing to drain at once, and asks a router that runs for a drain.


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What signals log."""
    lines: list[str] = []
    log = SimpleNamespace(info=lambda event, **_: lines.append(event))
    monkeypatch.setattr("router.spark.session._log", log)
    return lines


def sent(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_is_ended_where_it_is(number: int) -> None:
    stop = Stopping()
    passed: list[str] = []
    with handle_signals(stop), pytest.raises(Stopped), stop.interruptible():
        sent(number)
        passed.append("went on")
    assert stop.is_set() and not passed


def test_a_router_that_runs_is_asked_only(lines: list[str]) -> None:
    stop = Stopping()
    with handle_signals(stop):
        with stop.interruptible():
            pass
        stop.begin_work()
        sent(signal.SIGINT)
        assert stop.is_set()
    assert lines == ["draining"]


def test_a_start_between_two_steps_begins_no_work(lines: list[str]) -> None:
    stop = Stopping()
    with handle_signals(stop):
        sent(signal.SIGINT)
        with pytest.raises(Stopped):
            stop.begin_work()
    assert lines == ["stopping before startup has finished"]


def test_an_order_that_came_before_is_not_forgotten() -> None:
    stop = Stopping()
    with handle_signals(stop):
        sent(signal.SIGTERM)
        with pytest.raises(Stopped), stop.interruptible():
            pytest.fail("it began all the same")


def test_the_interrupt_that_spark_raises_is_the_same() -> None:
    stop = Stopping()
    with handle_signals(stop), pytest.raises(Stopped), stop.interruptible():
        raise KeyboardInterrupt
    assert stop.is_set() and not stop.interrupts


def test_a_signal_around_a_fork_is_neither_printed_nor_forgotten(lines: list[str]) -> None:
    """Python prints what functions raise that it calls around a fork, and goes on."""
    awaited = [signal.SIGINT]

    def sent_once() -> None:
        if awaited:
            sent(awaited.pop())

    os.register_at_fork(after_in_parent=sent_once)
    stop = Stopping()
    with handle_signals(stop), pytest.raises(Stopped), stop.interruptible():
        # Only with a function for the child does Python call those around a fork.
        subprocess.run(["true"], preexec_fn=os.getpid, check=True)
    assert lines == ["stopping before startup has finished"] and not awaited
