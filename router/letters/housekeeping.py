"""Retention of dead letters in a running router: a thread of its own, beside the batches and never inside one."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self

from bindings.background import Background
from router.errors import RouterError
from router.letters.retention import RetentionLimits, purge
from router.logs import get_logger
from router.settings import Settings

INTERVAL_SECONDS: Final = 600.0
_STOP_SECONDS: Final = 5.0
_log = get_logger()


class Housekeeping:
    """Removes what is beyond ``dead_letters.retention``: when entered, and every ten minutes until it is left.

    Without limits there is no thread. What goes wrong is logged and tried again; the router goes on. A removal that is
    cut off by the end of the process leaves each table whole, and is made good by the next.
    """

    def __init__(self, settings: Settings, *, interval: float = INTERVAL_SECONDS) -> None:
        self._settings = settings
        self._interval = interval
        self._stop = threading.Event()
        self._thread = Background("dead-letter-retention", self._run)

    def __enter__(self) -> Self:
        if self._settings.dead_letters.retention.on:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.ask_to_end()
        # A purge of a large table must not hold up the end of the router.
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        retention = self._settings.dead_letters.retention
        limits = RetentionLimits(retention.age, retention.size)
        while not self._stop.is_set():
            try:
                for removed in purge(self._settings, limits):
                    _log.info("dead letters removed", sink=removed.sink, letters=removed.letters, bytes=removed.bytes)
            except (RouterError, OSError) as error:
                _log.warning("dead letters were not removed, will try again", problem=str(error))
            self._stop.wait(self._interval)
