"""What the JVM prints while it starts, where lines are handed on: nothing waits for it, and nothing of it is lost."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from zipfile import ZipFile

import pyspark.util
import pytest
from pyspark.serializers import CloudPickleSerializer

from router.spark.executors import ROUTER, find_differences, find_versions, list_needed_packages, write_archive
from router.spark.session import Stopped, Stopping, handle_signals, silence_pyspark

SECONDS: Final = 60.0
LINES: Final = 3000
"""More of them than a pipe holds."""
SUBMIT: Final = f"""#!/bin/sh
i=0
while [ $i -lt {LINES} ]; do echo "line $i of those that say why it does not start" >&2; i=$((i+1)); done
exit 1
"""
START: Final = """
import sys
from pathlib import Path
from pyspark.errors import PySparkRuntimeError
from router.logs import configure_logs
from router.settings import LogSettings
from router.spark.session import launch_jvm
configure_logs(LogSettings(format="json"))
try:
    launch_jvm({}, Path(sys.argv[1]), relayed=True)
except PySparkRuntimeError:
    print("ended")
"""


@pytest.mark.slow
def test_a_start_that_prints_much_and_fails_is_told_whole(tmp_path: Path) -> None:
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(SUBMIT)
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, str(tmp_path / "state")],
        env={**os.environ, "SPARK_HOME": str(tmp_path / "spark")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr[-3000:]
    printed = [json.loads(line) for line in done.stderr.splitlines()]
    told = [event["line"] for event in printed if event["event"] == "printed by the JVM"]
    assert told == [f"line {number} of those that say why it does not start" for number in range(LINES)]


# What pyspark prints past the logs when the JVM has gone: nothing.


class OfTheJvm:
    """Asks a JVM that is gone for its number, as a broadcast does."""

    def __reduce__(self) -> str:
        raise ConnectionResetError("the JVM is gone")


def pickled(value: object) -> Any:
    serializer: Any = CloudPickleSerializer()
    return serializer.dumps(value)


def test_pickling_what_needs_the_jvm_raises_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pyspark.util, "print_exec", pyspark.util.print_exec)
    with pytest.raises(pickle.PicklingError):
        pickled(OfTheJvm())
    assert "Traceback" in capfd.readouterr().err

    silence_pyspark(SimpleNamespace(_accumulatorServer=SimpleNamespace()))
    with pytest.raises(pickle.PicklingError, match="the JVM is gone"):
        pickled(OfTheJvm())
    assert capfd.readouterr() == ("", "")


# The archive that executors get: whole, and enough for another Python to import the router from.


@pytest.mark.slow
def test_the_router_is_imported_out_of_the_archive_alone(tmp_path: Path) -> None:
    write_archive(tmp_path / "code.zip")
    with ZipFile(tmp_path / "code.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "code")
    assert not [name for name in names if "__pycache__" in name]
    script = (
        "import sys, router.evaluation.plan, catalog.protocols.properties as options\n"
        "assert options.channel_options('KAFKA')\n"
        "print(router.__file__, router.evaluation.plan.VERSION)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'code')!r})\n{script}"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    file, version = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path / "code")
    assert version == find_versions([ROUTER])[ROUTER]


def test_packages_are_compared_by_name() -> None:
    assert {"pyarrow", "deltalake", "pyspark"} <= set(list_needed_packages())
    assert not {"pytest", "ruff"} & set(list_needed_packages())
    here = find_versions(list_needed_packages())
    assert all(here.values())
    assert not find_differences(here, find_versions(list_needed_packages()))
    there = {**here, "pyarrow": "1.0", "msgspec": ""}
    said = find_differences(here, there)
    assert said == [f"no msgspec (here {here['msgspec']})", f"pyarrow 1.0 (here {here['pyarrow']})"]
    assert not find_differences(find_versions([]), find_versions(["no-such-package"]))


# What signals ask of a process with a JVM under it.


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
