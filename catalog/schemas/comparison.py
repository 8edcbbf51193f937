"""Verdicts on two schemas, for the families that compare theirs (:mod:`catalog.comparing.schemas`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

Verdict = Literal["same", "compatible", "incompatible", "unknown"]
Comparison = tuple[Verdict, str]
"""A verdict and the place that decides it, in words."""
MAX_DEPTH: Final = 64
"""Levels of a document that are compared; what lies deeper is only compared for being equal."""
_RANK: Final[Mapping[Verdict, int]] = {"same": 0, "compatible": 1, "unknown": 2, "incompatible": 3}


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the comparison that decides: the first of those that are worst, ``same`` when there is none."""
    return max(comparisons, key=lambda each: _RANK[each[0]], default=("same", ""))
