"""``/status.json``: the figures of one router, as the status page shows them. deploy/STATUS.md says what they mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.errors import RouterError
from router.judging.plan import VERSION, Plan
from router.overview.picture import (
    INBOX_BYTES,
    INBOX_OLDEST,
    INBOX_RECORDS,
    POINT_SECONDS,
    REST,
    FigureReading,
    Figures,
    Occurred,
    Point,
    RoutesByEndpoint,
    picture,
)
from router.overview.records import Doorkeeper
from router.state.ledger import LetterLedger
from router.watching.status import CatalogDifference, CatalogEvent, RouterStatus

if TYPE_CHECKING:
    from router.watching.metrics import Metrics

# The last catalogs: which took effect, what changed with each, which were refused, and why.

VALUE: Final = 500
"""Characters of a value before or after a change."""


def history(events: Sequence[CatalogEvent], differences: Mapping[str, CatalogDifference]) -> list[dict[str, Any]]:
    """Return what became of catalogs, newest first; the difference is that of the newest change to an epoch."""
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for event in reversed(events):
        difference = None if event.epoch is None or event.epoch in seen else differences.get(event.epoch)
        entries.append(
            {
                "at": event.at,
                "result": "refused" if event.epoch is None else "active",
                "epoch": event.epoch,
                "definitions": None if event.epoch is None else event.definitions,
                "difference": None if difference is None else _difference(difference),
                "findings": [asdict(finding) for finding in event.findings],
                "findings_total": event.total,
                "times": event.times,
            }
        )
        if event.epoch is not None:
            seen.add(event.epoch)
    return entries


def _difference(difference: CatalogDifference) -> dict[str, Any]:
    changes = [each.to_json() for each in difference.changes]
    return {
        "before": difference.before,
        "compatible": not difference.incompatible,
        "incompatible": difference.incompatible,
        "total": difference.total,
        "changes": [change | {side: _short(change[side]) for side in ("before", "after")} for change in changes],
    }


def _short(value: Any) -> Any:
    """Return a value as it may be shown: one that is long is cut, as text or as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "backslashreplace")
    return value if len(text) <= VALUE else text[:VALUE] + "…"


FORMAT: Final = 1
"""Grows when a member changes its meaning or goes; new members may come at any time."""
KEPT_SECONDS: Final = 0.9
"""Seconds for which one answer serves all clients, so that many cost as much as one."""

LEDGER_SECONDS: Final = 5.0
"""Time between two looks at how many dead letters were replayed."""

RecentReplays = Callable[[], list[dict[str, Any]]]
"""Returns how the last replays went."""


class StatusDocument:
    """Makes the document. Any thread may call it; one at a time makes it."""

    def __init__(
        self,
        status: RouterStatus,
        figures: Figures,
        metrics: Metrics,
        door: Doorkeeper,
        replays: RecentReplays,
        state: Path | None,
    ) -> None:
        """*state* is the folder with the ledger of dead letters; None where there is none."""
        self._status = status
        self._coverage = metrics.coverage
        self._sinks = metrics.sinks
        self._backlogs = metrics.backlogs
        self._state = state
        self._settled: tuple[float, int | None] | None = None
        self._figures = figures
        self._door = door
        self._replays = replays
        self._shadow = metrics.shadow.to_json
        self._started = datetime.now(UTC)
        self._making = threading.Lock()
        self._plan: Plan | None = None
        self._ways: tuple[Plan, RoutesByEndpoint] | None = None
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
            "flow": None if plan is None else self._flow(plan, reading, occurred),
            "latency": {"p50_seconds": _ms(reading.latency(0.5)), "p95_seconds": _ms(reading.latency(0.95))},
            "history": self._history(),
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

    def _queries(self, queries: dict[str, Any], reading: FigureReading) -> dict[str, Any]:
        times, holds = self._status.steps.to_json(), reading.held()
        return {
            name: {
                **query,
                "held_by": [sink for held, sink in holds if held == name],
                "time": times.get(name),
            }
            for name, query in queries.items()
        }

    def _flow(self, plan: Plan, reading: FigureReading, occurred: Occurred) -> dict[str, Any]:
        flow = picture(plan, self._ways_of(plan), reading, occurred, self._sinks.problem)
        self._work_off(flow["endpoints"])
        dead, settled = flow["totals"]["dead_letters"], self._letters_settled()
        dead["open"] = None if settled is None else max(0, dead["records"] - settled)
        return flow

    def _work_off(self, endpoints: list[dict[str, Any]]) -> None:
        """Add how much of the lag of each endpoint is at its sinks already.

        Lag falls when a whole batch is at all its sinks, and its sources are asked after that. What was written until
        then is known of a query as a whole: each of its endpoints gets its share.
        """
        by_query: dict[str, int] = {}
        for each in endpoints:
            by_query[each["query"]] = by_query.get(each["query"], 0) + (each["lag"] or 0)
        for each in endpoints:
            query, lag = each["query"], each["lag"]
            asked = None if query is None else self._backlogs.answered_at(query)
            worked = 0 if asked is None else self._status.steps.worked(query, asked)
            whole = by_query[query]
            each["worked"] = None if lag is None else lag * min(worked, whole) // whole if whole else 0

    def _letters_settled(self) -> int | None:
        """Return how many dead letters were replayed or removed, not older than five seconds; None if unknown."""
        if self._state is None:
            return None
        now = time.monotonic()
        if self._settled is None or now - self._settled[0] >= LEDGER_SECONDS:
            try:
                with LetterLedger.open(self._state, create=False) as ledger:
                    self._settled = (now, ledger.settled())
            except (RouterError, OSError):
                self._settled = (now, None)
        return self._settled[1]

    def _history(self) -> dict[str, Any]:
        points = self._figures.history.points()
        return {
            "every_seconds": POINT_SECONDS,
            **{name: [getattr(point, name) for point in points] for name in Point._fields},
        }

    def _ways_of(self, plan: Plan) -> RoutesByEndpoint:
        if self._ways is None or self._ways[0] is not plan:
            self._ways = (plan, RoutesByEndpoint.of(plan))
        return self._ways[1]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _whole(reading: FigureReading, metric: str) -> int | None:
    value = reading.value(metric)
    return None if value is None else int(value)
