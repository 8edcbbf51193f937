"""Whose fault an error is, and which faults are alike."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from catalog.schemas.ids.client import RegistryUnavailableError
from router.errors import SinkError, StateError, find_batch_fault, find_lost_registry
from tests.support.cases import read_cases

CASES: Final = read_cases(Path(__file__).resolve().parents[2] / "cases" / "faults.yaml")
PYTHON: Final = {"SinkError": SinkError, "StateError": StateError, "ArrowInvalid": pa.ArrowInvalid, **vars(builtins)}
SPARK: Final = "org.apache.spark.SparkException"


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
    python = "org.apache.spark.api.python.PythonException"
    return JavaError((SPARK, "Job aborted due to stage failure"), (python, f"{trace} SQLSTATE: 38000"))


def error_of(form: dict[str, Any]) -> BaseException:
    ((name, given),) = form.items()
    error: BaseException = (
        worker(given) if name == "worker" else JavaError(*given) if name == "jvm" else PYTHON[name](*given)
    )
    return error


@pytest.mark.parametrize("form", CASES["world"], ids=repr)
def test_faults_of_the_world(form: dict[str, Any]) -> None:
    assert find_batch_fault(error_of(form)) is None


@pytest.mark.parametrize("case", CASES["record"], ids=lambda case: case["text"])
def test_faults_of_a_record(case: dict[str, Any]) -> None:
    fault = find_batch_fault(error_of(case["of"]))
    assert fault is not None
    assert (fault.kind, fault.text) == (case["kind"], case["text"])


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
