"""What sinks have, and whether that is all that was taken: counts that go on where they were when a router starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from router.state.accounts import Account

FADE_SECONDS: Final = 600.0
"""How long the error of a sink is shown that works again."""
MAX_PROBLEM: Final = 500
"""Characters of an error's text that are kept."""
SECONDS_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class SinkProblem:
    """The last error of a sink: when it was (seconds since 1970), its text, and whether the sink has worked since."""

    at: float
    text: str
    over: bool = False


class Deliveries:
    """The metrics of sinks, and the account of each query; *label* gives what stands for an endpoint there."""

    def __init__(
        self, registry: CollectorRegistry, label: Callable[[str], str], now: Callable[[], float] = time.time
    ) -> None:
        self._label = label
        self._now = now
        self._problems: dict[str, SinkProblem] = {}
        self._records = Counter(
            "xrouter_sink_records",
            "Events and dead letters that a sink has, by the endpoint that they came by.",
            ("sink", "endpoint"),
            registry=registry,
        )
        self._bytes = Counter(
            "xrouter_sink_bytes",
            "Bytes of keys and bodies of the records that a sink was given.",
            ("sink", "endpoint"),
            registry=registry,
        )
        self._seconds = Histogram(
            "xrouter_sink_write_seconds",
            "Time that a sink took for its share of a batch.",
            ("sink",),
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._taken = Counter(
            "xrouter_taken_records", "Records taken, by the offsets of their source.", ("query",), registry=registry
        )
        self._empty = Counter(
            "xrouter_empty_offsets", "Offsets that were taken and held no record.", ("query",), registry=registry
        )
        self._gap = Gauge(
            "xrouter_conservation_gap",
            "Records taken, less those that all their sinks have as events or dead letters; 0 unless some were lost.",
            ("query",),
            registry=registry,
        )

    def expect(self, sinks: Iterable[str]) -> None:
        """Begin the series of sinks at 0."""
        for sink in sinks:
            self._seconds.labels(sink)

    def took(self, sink: str, seconds: float) -> None:
        """Note how long a sink took for what it accepted."""
        self._seconds.labels(sink).observe(seconds)

    def wrote(self, sink: str, problem: str) -> None:
        """Note that a sink took what it was given, or what it said (*problem*)."""
        if problem:
            self._problems[sink] = SinkProblem(self._now(), problem[:MAX_PROBLEM])
        elif (known := self._problems.get(sink)) is not None and not known.over:
            self._problems[sink] = replace(known, over=True)

    def problem(self, sink: str) -> SinkProblem | None:
        """Return the last error of a sink; None when it has worked for :data:`FADE_SECONDS` since."""
        known = self._problems.get(sink)
        if known is not None and known.over and self._now() - known.at > FADE_SECONDS:
            return None
        return known

    def delivered(self, counts: Mapping[tuple[str, str], int], sizes: Mapping[tuple[str, str], int]) -> None:
        """Add what sinks have, by sink and endpoint."""
        for (sink, endpoint), count in counts.items():
            label = self._label(endpoint)
            self._records.labels(sink, label).inc(max(0, count))
            self._bytes.labels(sink, label).inc(max(0, sizes.get((sink, endpoint), 0)))

    def account(self, query: str, taken: int, empty: int, gap: int) -> None:
        """Add what a batch took, and set what is missing of all batches."""
        self._taken.labels(query).inc(taken)
        self._empty.labels(query).inc(empty)
        self._gap.labels(query).set(gap)

    def resume(self, query: str, account: Account) -> None:
        """Go on from the account of a query, once for each query of a process."""
        self.delivered(account.delivered, account.delivered_bytes)
        self.account(query, account.taken, account.empty, account.gap)
