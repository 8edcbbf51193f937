"""How work grows with its input, measured so that the load of the machine hardly matters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FACTOR: Final = 8
LINEAR: Final = 24.0
"""A growth that linear work on eight times the input stays well below, and quadratic work (64) well above."""
_TRIES: Final = 5


def growth(work: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return how many times longer *work* takes for eight times the *size*, in processor time of this process.

    ``work(size)`` prepares, outside of the measurement, what is then measured. The best of several tries counts.
    """
    small, large = work(size), work(size * FACTOR)
    return _best(large) / max(_best(small), 1e-6)


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_TRIES):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)
