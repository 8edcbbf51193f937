"""What the shadow catalog would change: metrics count since the start, the status shows the current catalogs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple

from catalog.model import Finding
from router.evaluation.comparing import CHANGED, DIFFERENCE_LABELS, FAILED, MAX_GROUPS, OTHERS, SAME
from router.evaluation.outputs import Tally
from router.watching.status import SHOWN_FINDINGS, format_now

LEFT_OUT: Final = "left-out"
"""The result of records that only the active catalog evaluated."""
RESULTS: Final = (SAME, CHANGED, LEFT_OUT, FAILED)
SHOWN: Final = 50
"""Maximum pairs of outcomes that are shown, those with the most records."""

ShadowState = Literal["loading", "judging", "active", "set-aside"]
"""``active``: it equals the active catalog, so nothing differs. ``set-aside``: a batch failed only with it."""


class EpochPair(NamedTuple):
    """The epochs of the active and the shadow catalog."""

    before: str
    after: str


@dataclass(slots=True)
class _ShadowCounts:
    """Counts for one pair of catalogs, by endpoint and result, by endpoint and kind, and by pair of outcomes."""

    pair: EpochPair | None = None
    at: str = ""
    definitions: int = 0
    notes: tuple[str, ...] = ()
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    groups: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class ShadowMetrics:
    """The metrics of ``catalog.shadow``; without one, nothing is counted. Thread-safe."""

    def __init__(self, metrics: Mapping[str, Any], label: Callable[[str], str]) -> None:
        """*metrics* has those of the shadow by name; *label* returns the label of an endpoint."""
        self._label = label
        self._lock = threading.Lock()
        self._sources: tuple[str, ...] = ()
        self._state: ShadowState = "loading"
        self._reason = ""
        self._findings: tuple[Finding, ...] = ()
        self._since = _ShadowCounts()
        self._metrics = metrics

    def init_series(self, sources: Sequence[str], endpoints: Sequence[str]) -> None:
        """Set the *sources* of the shadow catalog, and initialize the series of endpoints with 0."""
        with self._lock:
            self._sources = tuple(sources)
        for endpoint in map(self._label, endpoints):
            for result in RESULTS:
                self._metrics["shadow_outcomes"].labels(endpoint, result)
            for kind in DIFFERENCE_LABELS:
                self._metrics["shadow_records"].labels(endpoint, kind)

    @property
    def is_broken(self) -> bool:
        """Whether the configured shadow catalog cannot be used."""
        return bool(self._reason)

    def judging(self, pair: EpochPair, definitions: int, notes: Sequence[str] = ()) -> None:
        """Start counting for this pair of catalogs, from 0 if it is new; equal catalogs are not compared."""
        with self._lock:
            if self._since.pair != pair and pair.before != pair.after:
                self._since = _ShadowCounts(pair, format_now(), definitions, tuple(notes))
            self._state = "active" if pair.before == pair.after else "judging"
        self._set_info(pair.after if pair.before != pair.after else None)

    def broken(self, reason: str, findings: Sequence[Finding] = ()) -> None:
        """Set why the shadow catalog cannot be used, '' if it can; the last valid one stays in use."""
        with self._lock:
            self._reason, self._findings = reason, tuple(findings)
        self._metrics["shadow_broken"].set(bool(reason))

    def set_aside(self, reason: str) -> None:
        """Note that the shadow does not judge any more, until there is another one."""
        with self._lock:
            self._state, self._reason = "set-aside", reason
        self._metrics["shadow_broken"].set(1)
        self._set_info(None)

    def count_batch(self, tally: Tally) -> None:
        """Count the compared and the other records of a written batch."""
        if not self._sources or self._state == "active":
            return
        results: Counter[tuple[str, str]] = Counter()
        with self._lock:
            since = self._since
            for (before, after, endpoint, what, was, now), number in tally.shadow.items():
                mine = (before, after) == since.pair
                if what in DIFFERENCE_LABELS:
                    self._metrics["shadow_records"].labels(self._label(endpoint), what).inc(number)
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
            for endpoint, left in _count_left_out(tally, results).items():
                results[endpoint, LEFT_OUT] = left
                since.results[endpoint, LEFT_OUT] += left
        for (endpoint, what), number in results.items():
            self._metrics["shadow_outcomes"].labels(self._label(endpoint), what).inc(number)

    def to_json(self) -> dict[str, Any] | None:
        """Return the figures in the JSON form of ``xrouter plan``; None without a shadow catalog."""
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
                "findings": [asdict(finding) for finding in self._findings[:SHOWN_FINDINGS]],
                "before": None if known is None else known.before,
                "after": None if known is None else known.after,
                "definitions": since.definitions,
                "since": since.at or None,
                "notes": list(since.notes),
                **_sum_counts(since, endpoints),
                "errors": dict(since.errors),
                "endpoints": [{"endpoint": endpoint, **_sum_counts(since, [endpoint])} for endpoint in endpoints],
                "groups": [
                    {"kind": kind, "before": before, "after": after, "outcomes": number}
                    for (kind, before, after), number in groups[:SHOWN]
                ],
            }

    def _set_info(self, epoch: str | None) -> None:
        self._metrics["shadow_info"].clear()
        if epoch is not None:
            self._metrics["shadow_info"].labels(epoch).set(1)


def _count_left_out(tally: Tally, results: Counter[tuple[str, str]]) -> Counter[str]:
    """Return by endpoint the number of outcomes that were not compared."""
    left: Counter[str] = Counter()
    for (endpoint, _, _), number in tally.records.items():
        left[endpoint] += number
    for (endpoint, _), number in results.items():
        left[endpoint] -= number
    return +left


def _sum_counts(since: _ShadowCounts, endpoints: Sequence[str]) -> dict[str, Any]:
    same, changed, left, failed = (sum(since.results[each, result] for each in endpoints) for result in RESULTS)
    return {
        "outcomes": same + changed,
        "unchanged": same,
        "changed": {kind: sum(since.kinds[each, kind] for each in endpoints) for kind in DIFFERENCE_LABELS},
        "left_out": left,
        "failed": failed,
    }
