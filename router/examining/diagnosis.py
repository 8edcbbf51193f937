"""Checks and their findings: all checks run at once, and none for longer than its limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal

from router.errors import RouterError, SinkError

State = Literal["ok", "warn", "fail"]
"""``fail``: a start ends with it. ``warn``: a router starts, and waits for it or does less."""
SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing looked at: what was observed, and the remedy when it is not ``ok``. Holds no secret.

    ``error`` is what a start ends with when it is ``fail``.
    """

    name: str
    state: State
    observation: str
    remedy: str = ""
    error: type[RouterError] = RouterError

    def refusal(self) -> RouterError:
        """Return the error that a start ends with because of it."""
        if issubclass(self.error, SinkError):
            return SinkError(self.name.removeprefix("sink "), self.observation, hint=self.remedy)
        return self.error(f"{self.name}: {self.observation}", hint=self.remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """One look, which changes nothing. ``seconds`` is the longest that anybody waits for it."""

    name: str
    look: Callable[[], Iterable[Diagnosis]]
    seconds: float = SECONDS


def diagnoses(checks: Sequence[Check]) -> Iterator[Diagnosis]:
    """Yield the findings, in the order of the checks, which all run at once.

    A check that takes longer than its limit is left behind: a missing answer does not prevent a start.
    """
    began = time.monotonic()
    pending = [(check, _begun(check)) for check in checks]
    for check, future in pending:
        try:
            yield from future.result(max(0.0, began + check.seconds - time.monotonic()))
        except TimeoutError:
            remedy = "see whether its host answers, and whether its name can be resolved"
            yield Diagnosis(check.name, "warn", f"nothing is known of it after {check.seconds:g} s", remedy)


def refusal(findings: Iterable[Diagnosis]) -> RouterError | None:
    """Return the error that a start ends with, for all that would stop it; None when nothing does."""
    errors = [each.refusal() for each in findings if each.state == "fail"]
    if not errors:
        return None
    first, *others = errors
    first.others = tuple(others)
    return first


def _begun(check: Check) -> Future[list[Diagnosis]]:
    """Begin a check in a thread that nobody has to wait for."""
    future: Future[list[Diagnosis]] = Future()

    def look() -> None:
        try:
            future.set_result(list(check.look()))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=look, name=f"check {check.name}", daemon=True).start()
    return future
