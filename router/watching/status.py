"""The status of the router: ``/healthz`` (does the process work) and ``/readyz`` (does it accept records).

Everything here is thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from catalog.comparing import CatalogDiff
from catalog.model import Finding
from router.watching.batches import BatchSteps

Reason = str | Callable[[], str]
"""A reason; a function if the text changes with time."""
QueryState = Literal["starting", "running", "held", "overdue", "stopped", "failed"]
STALE_SECONDS: Final = 120.0
"""Time without a heartbeat after which the supervisor counts as stuck; even slow reloads are shorter."""
SHOWN_FINDINGS: Final = 20
"""Maximum findings of a rejected catalog, and references of a pending one, that are shown; the log has all."""
AWAY_SECONDS: Final = 15.0
"""Time after which an unresponsive source makes the router not ready."""
MAX_EPOCHS: Final = 30
"""Maximum active and rejected catalogs that are remembered."""
MAX_CHANGES: Final = 100
"""Maximum changes of one catalog that are remembered; the rest is counted."""
MAX_TEXT: Final = 500
"""Maximum characters of an error, and of a value before or after a change."""


@dataclass(frozen=True, slots=True)
class _QueryStatus:
    state: QueryState
    since: str
    batch: int | None = None
    reason: Reason = ""

    def to_json(self) -> dict[str, Any]:
        """Return the current status of the query."""
        reason = self.reason if isinstance(self.reason, str) else self.reason()
        return {"state": self.state, "since": self.since, "batch": self.batch, "reason": reason}


@dataclass(frozen=True, slots=True)
class _GatewayStatus:
    up: bool
    since: str
    reason: str = ""

    @classmethod
    def after(cls, before: _GatewayStatus | None, up: bool, reason: str) -> _GatewayStatus:
        """Return the current status; its state began with the one *before*, if that was the same."""
        return cls(up, before.since if before is not None and before.up == up else format_now(), reason)


def _make_history_entry(epoch: str | None, definitions: int | None, refused: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return a catalog that became active as *epoch*, or that was rejected for its findings, as JSON."""
    return {
        "at": format_now(),
        "result": "refused" if epoch is None else "active",
        "epoch": epoch,
        "definitions": definitions,
        "difference": None,
        "findings": [asdict(finding) for finding in refused[:SHOWN_FINDINGS]],
        "findings_total": len(refused),
        "times": 1,
    }


def _difference_to_json(difference: CatalogDiff) -> dict[str, Any]:
    """Return the changes of a catalog against the previous one: counts, and the first changes."""
    wrong = sum(not each.compatible for each in difference.changes)
    changes = [each.to_json() for each in difference.changes[:MAX_CHANGES]]
    return {
        "before": difference.before,
        "compatible": not wrong,
        "incompatible": wrong,
        "total": len(difference.changes),
        "changes": [change | {side: _cut_value(change[side]) for side in ("before", "after")} for change in changes],
    }


def _cut_value(value: Any) -> Any:
    """Return a value, truncated as text or JSON if it is too long."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "backslashreplace")
    return value if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


class RouterStatus:
    """The status of one router, as its parts report it. ``clock`` returns monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, routes: bool = True) -> None:
        """``routes`` is False for a process that runs only gateways, without queries."""
        self._clock = clock
        self._routes = routes
        self._lock = threading.Lock()
        self._queries: dict[str, _QueryStatus] = {}
        self._gateways: dict[str, _GatewayStatus] = {}
        self._away: dict[str, tuple[float, str]] = {}
        self._catalog: dict[str, Any] | None = None
        self._refused: tuple[Finding, ...] = ()
        self._refused_since = ""
        self._inbox: _GatewayStatus | None = None
        self.stale = ""
        """Why the router started with a saved catalog; reading a catalog clears it."""
        self.awaited: tuple[str, ...] = ()
        """Unreachable references of a pending catalog. The router stays ready with the active one, if there is one."""
        self.doubts: tuple[str, ...] = ()
        """Why a catalog change needs confirmation. The router stays ready."""
        self.pending_reason = ""
        """Why a changed catalog cannot become active yet."""
        self.warming = False
        """Whether Spark is still warming up; the router is not ready until then."""
        self.opening_gateways = False
        """Whether the gateways are not open yet; the router is not ready until then."""
        self.draining = False
        """Whether the router is stopping: it is no longer ready, but healthy."""
        self._beaten: float | None = None
        self._history: deque[dict[str, Any]] = deque(maxlen=MAX_EPOCHS)
        self._differences: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.steps = BatchSteps()
        """The times of the queries' batches."""

    def query(self, name: str, state: QueryState, *, batch: int | None = None, reason: Reason = "") -> None:
        """Set the state of a query; ``batch`` None keeps the last one."""
        with self._lock:
            before = self._queries.get(name)
            since = before.since if before is not None and before.state == state else format_now()
            number = batch if batch is not None or before is None else before.batch
            self._queries[name] = _QueryStatus(state, since, number, reason)

    def forget_query(self, name: str) -> None:
        """Remove a query that no longer runs."""
        with self._lock:
            self._queries.pop(name, None)
            self._away.pop(name, None)
        self.steps.forget(name)

    def set_source(self, query: str, trouble: str) -> None:
        """Set why the source of a query does not respond; '' if it does."""
        with self._lock:
            if trouble:
                self._away[query] = (self._away.get(query, (self._clock(), ""))[0], trouble)
            else:
                self._away.pop(query, None)

    def gateway(self, name: str, up: bool, reason: str = "") -> None:
        """Set whether a gateway accepts messages."""
        with self._lock:
            self._gateways[name] = _GatewayStatus.after(self._gateways.get(name), up, reason)

    def remove_gateway(self, name: str) -> None:
        """Remove a gateway that no longer runs."""
        with self._lock:
            self._gateways.pop(name, None)

    def inbox(self, trouble: str) -> None:
        """Set why the inbox does not accept messages; '' if it does."""
        with self._lock:
            self._inbox = _GatewayStatus.after(self._inbox, not trouble, trouble)

    def set_catalog(self, epoch: str, definitions: int) -> None:
        """Set the active catalog, and clear the findings of rejected ones."""
        with self._lock:
            if self._catalog is None or self._catalog["epoch"] != epoch:
                self._history.append(_make_history_entry(epoch, definitions))
            self._catalog = {"epoch": epoch, "definitions": definitions, "since": format_now()}
            self._refused, self._refused_since = (), ""
            self.stale = ""

    def add_refused(self, findings: Sequence[Finding]) -> None:
        """Add a rejected catalog; the router stays ready with the active one."""
        with self._lock:
            self._refused, self._refused_since = tuple(findings), format_now()
            self.stale = ""
            entry = _make_history_entry(None, None, self._refused)
            last = self._history[-1] if self._history else {}
            if last.get("result") == "refused" and last["findings"] == entry["findings"]:
                entry["times"] += self._history.pop()["times"]
            self._history.append(entry)

    def add_difference(self, difference: CatalogDiff) -> None:
        """Add the changes of a catalog, before or after it becomes active."""
        shown = _difference_to_json(difference)
        with self._lock:
            self._differences[difference.after] = shown
            self._differences.move_to_end(difference.after)
            while len(self._differences) > MAX_EPOCHS:
                self._differences.popitem(last=False)

    def history_to_json(self) -> list[dict[str, Any]]:
        """Return the last active and rejected catalogs, newest first; the newest entry of an epoch has its changes."""
        with self._lock:
            history, differences = list(self._history), dict(self._differences)
        return [entry | {"difference": differences.pop(entry["epoch"], None)} for entry in reversed(history)]

    def note_heartbeat(self) -> None:
        """Record a heartbeat of the queries' supervisor; call it every few seconds."""
        with self._lock:
            self._beaten = self._clock()

    def check_health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the process is healthy, and the response of ``/healthz``.

        It is healthy until the first heartbeat, however long the start takes, and while draining, which has a time
        limit.
        """
        with self._lock:
            silent = 0.0 if self._beaten is None or self.draining else self._clock() - self._beaten
        if silent <= STALE_SECONDS:
            return True, {"healthy": True, "reasons": []}
        reason = f"the supervisor of the queries has been silent for {silent:.0f} s; restart the router"
        return False, {"healthy": False, "reasons": [reason]}

    def check_readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the router accepts and writes records now, and the response of ``/readyz``.

        Ready means: a catalog is active and was read since the start; there are queries (unless only gateways run),
        none has a blocked batch, and their sources respond; Spark is warmed up; all gateways are up; the inbox accepts
        messages; and the router is not draining. ``reasons`` has one line for each unmet condition.
        """
        with self._lock:
            reasons = self._list_reasons()
            answer = {
                "ready": not reasons,
                "reasons": reasons,
                "catalog": self._catalog_to_json(),
                "queries": {name: query.to_json() for name, query in sorted(self._queries.items())},
                "gateways": {name: asdict(gateway) for name, gateway in sorted(self._gateways.items())},
                "inbox": self._inbox_to_json(),
            }
        return not reasons, answer

    def count_pending(self) -> dict[str, int]:
        """Return how much of what a pending or rejected catalog lacks, in full."""
        with self._lock:
            counts = {"awaited": len(self.awaited), "doubted": len(self.doubts), "refused": len(self._refused)}
            return {**counts, "held": bool(self.pending_reason)}

    def _list_reasons(self) -> list[str]:
        reasons = ["the router is draining"] if self.draining else []
        if self._catalog is None:
            waits = f"unreachable references: {', '.join(self.awaited[:SHOWN_FINDINGS])}"
            reasons.append(_append_reason("no catalog is active", waits if self.awaited else ""))
        if self.stale:
            reasons.append(self.stale)
        if self.warming:
            reasons.append("Spark workers are starting and loading the catalog")
        if self.opening_gateways:
            reasons.append("the gateways are not open yet")
        if not self._queries and self._routes:
            reasons.append("no query is running yet")
        for name, query in sorted(self._queries.items()):
            if query.state != "running":
                reasons.append(_append_reason(f"query {name} is {query.state}", query.to_json()["reason"]))
            elif name in self._away and self._clock() - self._away[name][0] >= AWAY_SECONDS:
                reasons.append(f"the source of query {name} does not answer: {self._away[name][1]}")
        for name, gateway in sorted(self._gateways.items()):
            if not gateway.up:
                reasons.append(_append_reason(f"gateway {name} is down", gateway.reason))
        if self._inbox is not None and not self._inbox.up:
            reasons.append(_append_reason("the inbox accepts no messages", self._inbox.reason))
        return reasons

    def _inbox_to_json(self) -> dict[str, Any]:
        """Return the status of the inbox; ``accepting`` is None if this process has none."""
        inbox = self._inbox or _GatewayStatus(False, "")
        return {"accepting": None if self._inbox is None else inbox.up, "since": inbox.since, "reason": inbox.reason}

    def _catalog_to_json(self) -> dict[str, Any]:
        answer = dict(self._catalog or {"epoch": None, "definitions": 0, "since": None})
        answer["refused"] = [asdict(finding) for finding in self._refused[:SHOWN_FINDINGS]]
        answer["refused_findings"] = len(self._refused)
        answer["refused_since"] = self._refused_since or None
        answer["held"] = self.pending_reason
        answer["awaited"] = list(self.awaited[:SHOWN_FINDINGS])
        answer["doubted"] = list(self.doubts)
        return answer


def _append_reason(fact: str, reason: str) -> str:
    return f"{fact}: {reason}" if reason else fact


def format_now() -> str:
    """Return the current time as ISO 8601 text in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
