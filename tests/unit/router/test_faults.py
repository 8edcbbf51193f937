"""Whose fault an error is, and which faults are alike."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from catalog.schemas.ids.client import RegistryUnavailableError
from router.errors import SinkError, StateError, find_batch_fault, find_lost_registry

ABORTED = "Job aborted due to stage failure: Task 1 in stage 5.0 failed 1 times, most recent failure: Lost task 1.0"
SPARK = "org.apache.spark.SparkException"
PYTHON = "org.apache.spark.api.python.PythonException"


class JavaError(Exception):
    """An error as the bridge to the JVM raises it: each class and message, then what caused it."""

    def __init__(self, *chain: tuple[str, str | None]) -> None:
        super().__init__("An error occurred while calling o1.x")
        self.java_exception = _Java(list(chain))


class _Java:
    def __init__(self, chain: list[tuple[str, str | None]]) -> None:
        self._chain = chain

    def getClass(self) -> Any:
        return self

    def getName(self) -> str:
        return self._chain[0][0]

    def getMessage(self) -> str | None:
        return self._chain[0][1]

    def getCause(self) -> Any:
        return _Java(self._chain[1:]) if self._chain[1:] else None


def worker(last: str) -> JavaError:
    trace = f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback\n  File x, line 3\n{last}\n"
    return JavaError((SPARK, ABORTED), (PYTHON, f"{trace} SQLSTATE: 38000"))


@pytest.mark.parametrize(
    "error",
    [
        SinkError("lake", "no space"),
        StateError("locked"),
        OSError(28, "No space left on device"),
        ModuleNotFoundError("no module"),
        worker("OSError: [Errno 28] No space left on device"),
        worker("bindings.inbox.space.InboxFormatError: frame 3"),
        worker(
            "catalog.schemas.ids.client.RegistryUnavailableError: schema registry lake at https://r cannot be asked"
        ),
        worker("ModuleNotFoundError: No module named 'router'"),
        JavaError((SPARK, ABORTED), ("org.apache.kafka.common.errors.TimeoutException", "Topic x not present")),
        JavaError((SPARK, ABORTED), ("java.io.IOException", "No space left on device")),
        JavaError((SPARK, ABORTED), ("org.apache.spark.shuffle.FetchFailedException", "")),
        JavaError(
            (SPARK, "Python worker failed to connect back."),
            ("java.net.SocketTimeoutException", "Timed out while waiting for the Python worker to connect back"),
        ),
        JavaError((SPARK, ABORTED), ("org.apache.spark.sql.kafka010.KafkaIllegalStateException", "Reason: gone")),
        JavaError(("java.lang.IllegalStateException", "Cannot call methods on a stopped SparkContext.")),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_faults_of_the_world(error: BaseException) -> None:
    assert find_batch_fault(error) is None


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("bad"), "error", "ValueError: bad"),
        (pa.ArrowInvalid("overflow"), "error", "ArrowInvalid: overflow"),
        (MemoryError(), "error", "MemoryError"),
        (OSError(36, "File name too long"), "error", "OSError: [Errno 36] File name too long"),
        (worker("ValueError: bad 'OSError: [Errno 28]'"), "error", "ValueError: bad 'OSError: [Errno 28]'"),
        (worker("MemoryError"), "error", "MemoryError"),
        (
            JavaError(
                (SPARK, ABORTED), (SPARK, "Python worker exited unexpectedly (crashed)"), ("java.io.EOFException", None)
            ),
            "worker",
            "a Python worker died (signal or out of memory)",
        ),
        (
            JavaError(
                (
                    SPARK,
                    f"{ABORTED.replace(' 1 times', ' 4 times')} in stage 5.0 (TID 9) (10.0.0.7 executor 12): "
                    "ExecutorLostFailure (executor 12 exited caused by one of the running tasks) Reason: killed",
                )
            ),
            "worker",
            "executors died repeatedly while running a task",
        ),
        (
            JavaError(("org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero.")),
            "error",
            "SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.",
        ),
        (
            JavaError((SPARK, ABORTED), ("java.lang.OutOfMemoryError", "Java heap space")),
            "error",
            "OutOfMemoryError: Java heap space",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_faults_of_a_record(error: Exception, kind: str, text: str) -> None:
    fault = find_batch_fault(error)
    assert fault is not None
    assert (fault.kind, fault.text) == (kind, text)


def test_faults_are_alike_but_for_numbers_and_quoted_values() -> None:
    first, second, other = (
        find_batch_fault(ValueError(text)) for text in ("row 3 of 'a'", "row 17 of 'bc'", "column 3 of 'a'")
    )
    assert first and second and other
    assert first.digest == second.digest
    assert first.digest != other.digest


def test_a_registry_that_is_away_is_told_from_other_errors() -> None:
    """By the class alone: a record's text must not hold a batch."""
    kind = "catalog.schemas.ids.client.RegistryUnavailableError"
    away = worker(f"{kind}: schema registry lake at https://r answers 503")
    assert find_lost_registry(away) == "schema registry lake at https://r answers 503"
    assert find_lost_registry(RegistryUnavailableError("schema registry lake")) == "schema registry lake"
    assert not find_lost_registry(worker(f"ValueError: {kind}: schema registry lake"))
    assert not find_lost_registry(OSError(28, "No space left on device"))
    assert not find_lost_registry(JavaError((SPARK, f"{kind}: schema registry lake")))
