"""What signals ask of a process with a JVM under it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from router.spark.session import Stopping, handle_signals


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


def test_a_hangup_in_the_middle_of_a_drain_changes_nothing(hangup: None) -> None:
    stop = threading.Event()
    with handle_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.wait(5)


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
