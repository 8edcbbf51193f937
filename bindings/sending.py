"""What every client that sends says of its messages: taken, refused for good, or to be sent again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Refused(Protocol):
    """Why a message will never be taken, however often it is sent."""

    @property
    def reason(self) -> str:
        """The reason in one line, without secrets of ours."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that will never be taken, and why, in one line without secrets of ours."""

    reason: str


class Unsettled(Exception):
    """Not every message was settled, for a reason that may pass: send again what is not in ``settled``, which has what
    became of the others by place; None is taken.
    """

    def __init__(self, message: str, settled: Mapping[int, Refused | None] | None = None) -> None:
        super().__init__(message)
        self.settled = dict(settled or {})
