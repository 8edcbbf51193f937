"""What came of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.commands.demo.traffic import Step

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """What came of the demo: what was ``sent``, the rows of both tables, some metrics, and the router's exit code."""

    sent: tuple[Step, ...]
    events: tuple[Row, ...]
    letters: tuple[Row, ...]
    metrics: tuple[tuple[str, Mapping[str, str], float], ...]
    metrics_address: str
    exit_code: int

    @property
    def records(self) -> int:
        """Records that the gateway acknowledged."""
        return sum(step.records for step in self.sent)

    @property
    def adds_up(self) -> bool:
        """Whether every record has exactly one outcome, and the router ended in order."""
        return self.records == len(self.events) + len(self.letters) and self.exit_code == 0
