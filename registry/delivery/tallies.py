"""What is counted of each subscriber, and what its last state was."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

State = Literal["delivering", "holding", "away", "ended"]


@dataclass(slots=True)
class Tally:
    """The counts and state of one subscriber.

    ``delivered`` and ``dropped`` are events, ``failed`` tries; ``pending`` are events that are not delivered yet,
    including those that may turn out not to be wanted. ``oldest`` is when the oldest of the others was written, in
    seconds since 1970, 0 for none.
    """

    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    pending: int = 0
    oldest: float = 0.0
    state: State = "delivering"


@dataclass(slots=True)
class Tallies:
    """Those of all subscribers that there are, by id; any thread may read."""

    _kept: dict[str, Tally] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, name: str) -> Tally:
        """Return the tally of one subscriber; one that comes back goes on with its old tally."""
        with self._lock:
            return self._kept.setdefault(name, Tally())

    def keep(self, names: set[str]) -> None:
        """Forget all others."""
        with self._lock:
            for name in set(self._kept) - names:
                del self._kept[name]

    def all(self) -> dict[str, Tally]:
        """Return all."""
        with self._lock:
            return dict(self._kept)
