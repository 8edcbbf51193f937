"""The cap on distinct destinations of a sink (JUDGING.md#what-comes-out).

Templates make topics, nodes, subjects and URLs out of values that come from outside, and a broker may create each one.
So a sink has at most a set number of them; past it a record is ``sink-rejected``. The known ones are in memory: a new
plan of the same process goes on with them, and a restart begins to count anew.
"""

from __future__ import annotations

import threading
from typing import Final

_spreads: dict[str, Spread] = {}
_lock: Final = threading.Lock()


class Spread:
    """The destinations that one sink has been sent to; safe for use by several threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def fault(self, address: str) -> str | None:
        """Count a destination, and return None; one past the cap is not counted, and the text says so."""
        if address in self._known:
            return None
        with self._lock:
            if len(self._known) < self.most:
                self._known.add(address)
                return None
        return (
            f"it would be destination {self.most + 1} of the sink, whose max_destinations is {self.most}; "
            f"let the template have fewer values, or raise the cap"
        )


def kept_spread(key: str, most: int) -> Spread:
    """Return the destinations that the sink of that key has had in this process; *most* counts from now on."""
    with _lock:
        spread = _spreads.setdefault(key, Spread(most))
        spread.most = most
        return spread
