"""How many examples a test takes: a share in every run, all in the full one.

Of property tests the profile says which run it is (``tests/conftest.py``); where a test says nothing, the profile's own
number holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import hypothesis
import pytest

FULL: Final = 100
"""The number of a test that says nothing, in the full run."""
QUICK: Final = 15
"""The same in every other run."""


def examples(count: int) -> int:
    """Return how many of *count* examples, which are those of the full run, the profile in force asks for."""
    return max(1, count * hypothesis.settings().max_examples // FULL)


def seeds(count: int, *, quick: int) -> list[Any]:
    """Return *count* seeds as parameters, of which all but the first *quick* are for the full run."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(quick, count))]


def spread(values: Sequence[Any], *, quick: int) -> list[Any]:
    """Return *values* as parameters, of which all but *quick*, evenly spread, are for the full run."""
    kept = {number * len(values) // quick for number in range(quick)}
    return [each if place in kept else pytest.param(each, marks=pytest.mark.full) for place, each in enumerate(values)]
