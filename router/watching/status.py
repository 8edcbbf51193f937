"""What the router says of itself: ``/healthz`` (is the process worth keeping) and ``/readyz`` (does it take records).

Everything here may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from catalog.comparing import CatalogChange, CatalogDiff
from catalog.model import Finding
from router.watching.batches import Steps

Reason = str | Callable[[], str]
"""Why something is so; a function where the text changes as time passes."""
QueryState = Literal["starting", "running", "held", "overdue", "stopped", "failed"]
STALE_SECONDS: Final = 120.0
"""A supervisor without a round for this long is stuck; even a slow reload of a catalog is shorter."""
FINDINGS: Final = 20
"""Findings of a refused catalog, and references of one that waits, that are shown; the log has all."""
AWAY_SECONDS: Final = 15.0
"""A source that did not answer for this long is a reason not to be ready; one that is merely slow is not."""
EPOCHS: Final = 30
"""Epochs and refused catalogs that are remembered."""
CHANGES: Final = 100
"""Changes of one catalog that are remembered; the rest is counted."""


@dataclass(frozen=True, slots=True)
class _Query:
    state: QueryState
    since: str
    batch: int | None = None
    reason: Reason = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as it is at this moment."""
        reason = self.reason if isinstance(self.reason, str) else self.reason()
        return {"state": self.state, "since": self.since, "batch": self.batch, "reason": reason}


@dataclass(frozen=True, slots=True)
class _Gateway:
    up: bool
    since: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """What became of a catalog: it took effect as ``epoch``, or was refused ``times`` in a row for its findings."""

    at: str
    epoch: str | None = None
    definitions: int = 0
    findings: tuple[Finding, ...] = ()
    total: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True)
class CatalogDifference:
    """What a catalog changed when it took the place of that of epoch ``before``: counts, and the first changes."""

    before: str
    total: int
    incompatible: int
    changes: tuple[CatalogChange, ...]


class RouterStatus:
    """The state of one router, as its parts report it. ``clock`` gives seconds that never go back."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, stale_seconds: float = STALE_SECONDS, routes: bool = True
    ) -> None:
        """``routes`` False is for a process that only takes messages in, and has no query."""
        self._clock = clock
        self._routes = routes
        self._stale_seconds = stale_seconds
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._gateways: dict[str, _Gateway] = {}
        self._away: dict[str, tuple[float, str]] = {}
        self._catalog: dict[str, Any] | None = None
        self._refused: tuple[Finding, ...] = ()
        self._refused_since = ""
        self._awaited: tuple[str, ...] = ()
        self._doubts: tuple[str, ...] = ()
        self._held = ""
        self._stale = ""
        self._inbox: _Gateway | None = None
        self._draining = False
        self._warming = False
        self._beaten: float | None = None
        self._history: deque[CatalogEvent] = deque(maxlen=EPOCHS)
        self._differences: OrderedDict[str, CatalogDifference] = OrderedDict()
        self.steps = Steps()
        """Where the batches of the queries spend their time."""

    def query(self, name: str, state: QueryState, *, batch: int | None = None, reason: Reason = "") -> None:
        """Note the state of a query; ``batch`` None keeps the last one, and ``since`` is when the state was entered."""
        with self._lock:
            before = self._queries.get(name)
            since = before.since if before is not None and before.state == state else _now()
            number = batch if batch is not None or before is None else before.batch
            self._queries[name] = _Query(state, since, number, reason)

    def forget_query(self, name: str) -> None:
        """Leave out a query that has ended for good, because the catalog or the settings no longer ask for it."""
        with self._lock:
            self._queries.pop(name, None)
            self._away.pop(name, None)
        self.steps.forget(name)

    def source(self, query: str, trouble: str) -> None:
        """Note whether the source of a query answers: *trouble* is why not, '' when it does."""
        with self._lock:
            if trouble:
                self._away[query] = (self._away.get(query, (self._clock(), ""))[0], trouble)
            else:
                self._away.pop(query, None)

    def gateway(self, name: str, up: bool, reason: str = "") -> None:
        """Note whether a gateway takes messages."""
        with self._lock:
            before = self._gateways.get(name)
            since = before.since if before is not None and before.up == up else _now()
            self._gateways[name] = _Gateway(up, since, reason)

    def no_gateway(self, name: str) -> None:
        """Forget a gateway that does not run any more."""
        with self._lock:
            self._gateways.pop(name, None)

    def inbox(self, trouble: str) -> None:
        """Note whether the inbox accepts messages: *trouble* is why not, '' when it does."""
        with self._lock:
            before = self._inbox
            since = before.since if before is not None and before.up == (not trouble) else _now()
            self._inbox = _Gateway(not trouble, since, trouble)

    def catalog(self, epoch: str, definitions: int) -> None:
        """Note the active catalog; whatever was refused before is settled by it."""
        with self._lock:
            if self._catalog is None or self._catalog["epoch"] != epoch:
                self._history.append(CatalogEvent(_now(), epoch, definitions))
            self._catalog = {"epoch": epoch, "definitions": definitions, "since": _now()}
            self._refused, self._refused_since = (), ""
            self._stale = ""

    def stale(self, reason: str) -> None:
        """Note why the router began with the catalog that was in force last; once one is read, that is over."""
        with self._lock:
            self._stale = reason

    def refused(self, findings: Sequence[Finding]) -> None:
        """Note that a changed catalog was refused; as the active one goes on, the router stays ready."""
        with self._lock:
            self._refused, self._refused_since = tuple(findings), _now()
            self._stale = ""
            shown, times = self._refused[:FINDINGS], 1
            if self._history and self._history[-1].epoch is None and self._history[-1].findings == shown:
                times += self._history.pop().times
            self._history.append(CatalogEvent(_now(), None, 0, shown, len(self._refused), times))

    @property
    def catalogs(self) -> list[CatalogEvent]:
        """What became of the last catalogs, oldest first."""
        with self._lock:
            return list(self._history)

    def compared(self, difference: CatalogDiff) -> None:
        """Note what a catalog changes that takes effect. The comparison may end before or after it takes effect."""
        wrong = sum(not each.compatible for each in difference.changes)
        shown = CatalogDifference(difference.before, len(difference.changes), wrong, difference.changes[:CHANGES])
        with self._lock:
            self._differences[difference.after] = shown
            self._differences.move_to_end(difference.after)
            while len(self._differences) > EPOCHS:
                self._differences.popitem(last=False)

    @property
    def differences(self) -> dict[str, CatalogDifference]:
        """What the last catalogs changed, by their epochs."""
        with self._lock:
            return dict(self._differences)

    def awaiting(self, references: Sequence[str]) -> None:
        """Note what a catalog refers to and waits for, since it cannot be reached for now; nothing ends the wait.

        An active catalog goes on meanwhile, so that the router stays ready; without one it has not started yet.
        """
        with self._lock:
            self._awaited = tuple(references)

    def doubting(self, reasons: Sequence[str]) -> None:
        """Note why a catalog change needs confirmation; nothing ends the wait. The router stays ready."""
        with self._lock:
            self._doubts = tuple(reasons)

    def holding(self, reason: str) -> None:
        """Note why a changed catalog cannot take effect for now, '' when none does wait; the active one goes on."""
        with self._lock:
            self._held = reason

    def warming(self, begun: bool) -> None:
        """Note whether the first batch is still made quick: so long is the router not ready."""
        with self._lock:
            self._warming = begun

    def draining(self) -> None:
        """Note that the router is stopping: not ready from here on, alive until it ends."""
        with self._lock:
            self._draining = True

    def beat(self) -> None:
        """Note that the supervisor of the queries has been round; call it every few seconds."""
        with self._lock:
            self._beaten = self._clock()

    def healthy(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the process is worth keeping, and why.

        It is until the supervisor's first round, however long a start takes, and while it drains, which has a limit
        of its own.
        """
        with self._lock:
            silent = 0.0 if self._beaten is None or self._draining else self._clock() - self._beaten
        if silent <= self._stale_seconds:
            return True, {"healthy": True, "reasons": []}
        reason = f"the supervisor of the queries has been silent for {silent:.0f} s; restart the router"
        return False, {"healthy": False, "reasons": [reason]}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether records are taken and written right now, and the whole state as a JSON object.

        Ready means: a catalog is active and was read since the start, there are queries (but in a process of gateways
        alone) and all run with no batch held, their sources answer, the first batch is warmed, all gateways are up,
        the inbox accepts messages, and the router is not draining. ``reasons`` has one line for each thing that is
        not so.
        """
        with self._lock:
            reasons = self._reasons()
            answer = {
                "ready": not reasons,
                "reasons": reasons,
                "catalog": self._catalog_answer(),
                "queries": {name: query.to_json() for name, query in sorted(self._queries.items())},
                "gateways": {name: asdict(gateway) for name, gateway in sorted(self._gateways.items())},
                "inbox": self._inbox_answer(),
            }
        return not reasons, answer

    def _reasons(self) -> list[str]:
        reasons = ["the router is draining"] if self._draining else []
        if self._catalog is None:
            waits = f"unreachable references: {', '.join(self._awaited[:FINDINGS])}"
            reasons.append(_with_reason("no catalog is active", waits if self._awaited else ""))
        if self._stale:
            reasons.append(self._stale)
        if self._warming:
            reasons.append("Spark workers are starting and loading the catalog")
        if not self._queries and self._routes:
            reasons.append("no query is running yet")
        for name, query in sorted(self._queries.items()):
            if query.state != "running":
                reasons.append(_with_reason(f"query {name} is {query.state}", query.to_json()["reason"]))
            elif name in self._away and self._clock() - self._away[name][0] >= AWAY_SECONDS:
                reasons.append(f"the source of query {name} does not answer: {self._away[name][1]}")
        for name, gateway in sorted(self._gateways.items()):
            if not gateway.up:
                reasons.append(_with_reason(f"gateway {name} is down", gateway.reason))
        if self._inbox is not None and not self._inbox.up:
            reasons.append(_with_reason("the inbox accepts no messages", self._inbox.reason))
        return reasons

    def _inbox_answer(self) -> dict[str, Any]:
        """Return whether the inbox accepts messages; None where this process has none."""
        inbox = self._inbox or _Gateway(False, "")
        return {"accepting": None if self._inbox is None else inbox.up, "since": inbox.since, "reason": inbox.reason}

    def _catalog_answer(self) -> dict[str, Any]:
        answer = dict(self._catalog or {"epoch": None, "definitions": 0, "since": None})
        answer["refused"] = [asdict(finding) for finding in self._refused[:FINDINGS]]
        answer["refused_findings"] = len(self._refused)
        answer["refused_since"] = self._refused_since or None
        answer["held"] = self._held
        answer["awaited"] = list(self._awaited[:FINDINGS])
        answer["doubted"] = list(self._doubts)
        return answer


def _with_reason(fact: str, reason: str) -> str:
    return f"{fact}: {reason}" if reason else fact


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
