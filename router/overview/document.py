"""``/status.json``: the figures of one router, as the status page shows them. deploy/STATUS.md says what they mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from router.judging.plan import VERSION, Plan
from router.overview.access import Doorkeeper
from router.overview.epochs import history
from router.overview.figures import INBOX_BYTES, INBOX_OLDEST, INBOX_RECORDS, REST, Figures, Reading
from router.overview.occurrences import Occurred
from router.overview.picture import Ways, picture
from router.watching.coverage import Coverage
from router.watching.status import Status

FORMAT: Final = 1
"""Grows when a member changes its meaning or goes; new members may come at any time."""
KEPT_SECONDS: Final = 0.9
"""Seconds for which one answer serves all clients, so that many cost as much as one."""

RecentReplays = Callable[[], list[dict[str, Any]]]
"""Returns how the last replays went."""


class StatusDocument:
    """Makes the document. Any thread may call it; one at a time makes it."""

    def __init__(
        self,
        status: Status,
        figures: Figures,
        coverage: Coverage,
        door: Doorkeeper,
        replays: RecentReplays,
        shadow: Callable[[], dict[str, Any] | None],
    ) -> None:
        self._status = status
        self._coverage = coverage
        self._figures = figures
        self._door = door
        self._replays = replays
        self._shadow = shadow
        self._started = datetime.now(UTC)
        self._making = threading.Lock()
        self._plan: Plan | None = None
        self._ways: tuple[Plan, Ways] | None = None
        self._kept: tuple[float, dict[str, Any]] | None = None

    def follow(self, plan: Plan) -> None:
        """Show this plan from now on."""
        self._plan = plan

    def current(self) -> dict[str, Any]:
        """Return the document, not older than a second."""
        with self._making:
            now = time.monotonic()
            if self._kept is None or now - self._kept[0] >= KEPT_SECONDS:
                self._kept = (now, self._document())
            return self._kept[1]

    def _document(self) -> dict[str, Any]:
        alive, life = self._status.healthy()
        _, ready = self._status.ready()
        reading = self._figures.reading()
        plan = self._plan
        occurred = Occurred(self._coverage.known())
        now = datetime.now(UTC)
        return {
            "format": FORMAT,
            "at": now.isoformat(timespec="milliseconds"),
            "router": {
                "version": VERSION,
                "started": self._started.isoformat(timespec="milliseconds"),
                "seconds": round((now - self._started).total_seconds()),
            },
            "access": {"records": self._door.records_for, "replay": self._door.may_replay},
            "healthy": alive,
            **ready,
            "reasons": [*life["reasons"], *ready["reasons"]],
            "queries": self._queries(ready["queries"], reading),
            "flow": None if plan is None else picture(plan, self._ways_of(plan), reading, occurred),
            "coverage": occurred.never(),
            "inbox": {
                **ready["inbox"],
                "records": _whole(reading, INBOX_RECORDS),
                "bytes": _whole(reading, INBOX_BYTES),
                "oldest_seconds": reading.value(INBOX_OLDEST),
            },
            "rest_records": _whole(reading, REST),
            "replays": self._replays(),
            "shadow": self._shadow(),
            "epochs": history(self._status.catalogs, self._status.differences),
        }

    def _queries(self, queries: dict[str, Any], reading: Reading) -> dict[str, Any]:
        times, holds = self._status.steps.to_json(), reading.held()
        return {
            name: {
                **query,
                "held_by": [sink for held, sink in holds if held == name],
                "time": times.get(name),
            }
            for name, query in queries.items()
        }

    def _ways_of(self, plan: Plan) -> Ways:
        if self._ways is None or self._ways[0] is not plan:
            self._ways = (plan, Ways.of(plan))
        return self._ways[1]


def _whole(reading: Reading, metric: str) -> int | None:
    value = reading.value(metric)
    return None if value is None else int(value)
