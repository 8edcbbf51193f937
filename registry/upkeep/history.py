"""The history of a registry kept within its limits, by a thread beside the service, a few entries at a time."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from registry.model.moments import written
from registry.store import history
from registry.store.engine import Database

_logger = logging.getLogger(__name__)
COUNTED = 12
_BREATH = 0.01
"""Seconds between two transactions, for writers that wait."""


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How much history is kept: ``keep`` is for how many seconds, None for ever, ``entries`` how many of the newest.

    Beyond both each entity that is there has its newest entry. ``every`` so many seconds it is looked at.
    """

    keep: float | None = None
    entries: int = 10_000_000
    every: float = 300.0


class HistoryKeeper:
    """Prunes history until it is stopped; any number of processes over one database may do so.

    ``entries`` is how many there were at the end of the last look, ``pruned`` how many this process took away. To
    count them takes long where there are many; so that is done at each COUNTED-th look, and between by their numbers.
    """

    def __init__(self, database: Database, limits: HistoryLimits) -> None:
        self.entries = 0
        self.pruned = 0
        self._looks = 0
        self._newest = 0
        self._database = database
        self._limits = limits
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Have it end after the transaction that is under way."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Wait so many seconds for its end."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                self._look()
                failing = False
            except SQLAlchemyError as error:
                level = logging.DEBUG if failing else logging.WARNING
                _logger.log(level, "the store does not answer upkeep of history: %s", type(error).__name__)
                failing = True
            except Exception:  # nobody waits for this thread, so its end would go unnoticed
                _logger.exception("upkeep of history failed and goes on")
            self._stopping.wait(self._limits.every)

    def _look(self) -> None:
        """Go through all that may be beyond the limits."""
        with self._database.reading() as connection:
            upto = history.newest(connection) - self._limits.entries
        before = None
        if self._limits.keep is not None:
            before = written(datetime.fromtimestamp(max(time.time() - self._limits.keep, 0.0), UTC))
        gone, at, more = 0, 0, upto > 0 or before is not None
        while more and not self._stopping.is_set():
            with self._database.reading() as connection:
                numbers, at = history.beyond(connection, at, upto, before)
            if numbers:  # or writers would wait for nothing
                with self._database.noting() as connection:
                    gone += history.remove(connection, numbers)
            more = at > 0
            self._stopping.wait(_BREATH)
        self.pruned += gone
        self._count(gone)

    def _count(self, gone: int) -> None:
        with self._database.reading() as connection:
            last = history.newest(connection)
            if self._looks % COUNTED:
                self.entries += last - self._newest - gone
            else:
                self.entries = history.count(connection)
        self._looks, self._newest = self._looks + 1, last
