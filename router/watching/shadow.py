"""What the shadow catalog would change: metrics count since the start, the status shows the current catalogs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as CounterMetric

from catalog.model import Finding
from router.evaluation.comparing import CHANGED, FAILED, KINDS, MAX_GROUPS, OTHERS, SAME

if TYPE_CHECKING:
    from router.evaluation.outputs import Tally

LEFT_OUT: Final = "left-out"
"""The result of records that only the active catalog judged."""
RESULTS: Final = (SAME, CHANGED, LEFT_OUT, FAILED)
SHOWN: Final = 50
"""Differences that are shown, by what becomes of records before and after: those of the most records."""
FINDINGS: Final = 20

ShadowState = Literal["loading", "judging", "active", "set-aside"]
"""``active``: it equals the active catalog, so nothing differs. ``set-aside``: a batch failed only with it."""


class EpochPair(NamedTuple):
    """The epochs of the active and the shadow catalog."""

    before: str
    after: str


@dataclass(slots=True)
class _Since:
    """What was counted of two catalogs, by endpoint and result, and by endpoint, kind, and both sides."""

    pair: EpochPair | None = None
    at: str = ""
    definitions: int = 0
    notes: tuple[str, ...] = ()
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    groups: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class ShadowFigures:
    """The figures of a router with ``catalog.shadow``; any thread may call it. Without one, nothing is counted."""

    def __init__(self, registry: CollectorRegistry, label: Callable[[str], str]) -> None:
        """*label* gives what stands for an endpoint in metrics."""
        self._label = label
        self._lock = threading.Lock()
        self._sources: tuple[str, ...] = ()
        self._state: ShadowState = "loading"
        self._reason = ""
        self._findings: tuple[Finding, ...] = ()
        self._since = _Since()
        self._outcomes = CounterMetric(
            "xrouter_shadow_outcomes",
            "Records by result of the shadow catalog: unchanged, changed, left-out (evaluated only by the active "
            "one) or failed.",
            ("endpoint", "result"),
            registry=registry,
        )
        self._records = CounterMetric(
            "xrouter_shadow_records",
            "Records that the shadow catalog would change, by difference; one may differ in several ways.",
            ("endpoint", "difference"),
            registry=registry,
        )
        self._info = Gauge("xrouter_shadow_info", "The shadow catalog in use, always 1.", ("epoch",), registry=registry)
        self._broken = Gauge(
            "xrouter_shadow_broken", "Whether the shadow catalog cannot be used or was disabled.", registry=registry
        )

    def expect(self, sources: Sequence[str], endpoints: Sequence[str]) -> None:
        """Note the *sources* of the shadow catalog, and begin the series of endpoints at 0."""
        with self._lock:
            self._sources = tuple(sources)
        for endpoint in map(self._label, endpoints):
            for result in RESULTS:
                self._outcomes.labels(endpoint, result)
            for kind in KINDS:
                self._records.labels(endpoint, kind)

    @property
    def is_broken(self) -> bool:
        """Whether something is wrong with what the settings name."""
        return bool(self._reason)

    def judging(self, pair: EpochPair, definitions: int, notes: Sequence[str] = ()) -> None:
        """Count for these two catalogs from now on, from 0 if they are new; equal ones have no differences."""
        with self._lock:
            if self._since.pair != pair and pair.before != pair.after:
                self._since = _Since(pair, _now(), definitions, tuple(notes))
            self._state = "active" if pair.before == pair.after else "judging"
        self._show(pair.after if pair.before != pair.after else None)

    def broken(self, reason: str, findings: Sequence[Finding] = ()) -> None:
        """Note why the shadow catalog cannot be used, '' if it can; the last good one goes on."""
        with self._lock:
            self._reason, self._findings = reason, tuple(findings)
        self._broken.set(bool(reason))

    def set_aside(self, reason: str) -> None:
        """Note that the shadow does not judge any more, until there is another one."""
        with self._lock:
            self._state, self._reason = "set-aside", reason
        self._broken.set(1)
        self._show(None)

    def add(self, tally: Tally) -> None:
        """Count a batch that was written: what was compared, and what was not."""
        if not self._sources or self._state == "active":
            return
        results: Counter[tuple[str, str]] = Counter()
        with self._lock:
            since = self._since
            for (before, after, endpoint, what, was, now), number in tally.shadow.items():
                mine = (before, after) == since.pair
                if what in KINDS:
                    self._records.labels(self._label(endpoint), what).inc(number)
                    if mine:
                        since.kinds[endpoint, what] += number
                        known = (what, was, now) in since.groups or len(since.groups) < MAX_GROUPS
                        since.groups[(what, was, now) if known else (what, OTHERS, OTHERS)] += number
                    continue
                results[endpoint, what] += number
                if mine:
                    since.results[endpoint, what] += number
                    if what == FAILED:
                        since.errors[was] += number
            for endpoint, left in _left(tally, results).items():
                results[endpoint, LEFT_OUT] = left
                since.results[endpoint, LEFT_OUT] += left
        for (endpoint, what), number in results.items():
            self._outcomes.labels(self._label(endpoint), what).inc(number)

    def to_json(self) -> dict[str, Any] | None:
        """Return all of it as JSON, in the words of ``xrouter plan``; None without a shadow."""
        with self._lock:
            if not self._sources:
                return None
            since, known = self._since, self._since.pair
            endpoints = sorted({endpoint for endpoint, _ in since.results})
            groups = sorted(since.groups.items(), key=lambda each: (-each[1], each[0]))
            return {
                "source": list(self._sources),
                "state": self._state,
                "reason": self._reason,
                "findings": [asdict(finding) for finding in self._findings[:FINDINGS]],
                "before": None if known is None else known.before,
                "after": None if known is None else known.after,
                "definitions": since.definitions,
                "since": since.at or None,
                "notes": list(since.notes),
                **_sums(since, endpoints),
                "errors": dict(since.errors),
                "endpoints": [{"endpoint": endpoint, **_sums(since, [endpoint])} for endpoint in endpoints],
                "groups": [
                    {"kind": kind, "before": before, "after": after, "outcomes": number}
                    for (kind, before, after), number in groups[:SHOWN]
                ],
            }

    def _show(self, epoch: str | None) -> None:
        self._info.clear()
        if epoch is not None:
            self._info.labels(epoch).set(1)


def _left(tally: Tally, results: Counter[tuple[str, str]]) -> Counter[str]:
    """Return by endpoint the outcomes of a batch that were not looked at."""
    left: Counter[str] = Counter()
    for (endpoint, _, _), number in tally.records.items():
        left[endpoint] += number
    for (endpoint, _), number in results.items():
        left[endpoint] -= number
    return +left


def _sums(since: _Since, endpoints: Sequence[str]) -> dict[str, Any]:
    same, changed, left, failed = (sum(since.results[each, result] for each in endpoints) for result in RESULTS)
    return {
        "outcomes": same + changed,
        "unchanged": same,
        "changed": {kind: sum(since.kinds[each, kind] for each in endpoints) for kind in KINDS},
        "left_out": left,
        "failed": failed,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
