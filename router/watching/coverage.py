"""Coverage over time: which expected definitions have occurred, and when the last record arrived.

A place (a source, or a definition at a source) is tracked while a plan expects it, and saved in
:mod:`router.state.ledger`. A first occurrence is saved before the source commits it; later ones once a minute, so that
a crash loses at most a minute of ``last``. There is a metric series per source, but none per definition, since there
may be tens of thousands.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.errors import RouterError
from router.evaluation.outputs import DEAD_LETTER, Tally
from router.evaluation.plan import Plan
from router.logs import get_logger
from router.state.database import StateDatabase
from router.state.ledger import DefinitionAtEndpoint, Sighting, instant_of, read_sightings, write_sightings
from router.watching.families import iter_families

EVERY_SECONDS: Final = 60.0
"""Interval at which repeated occurrences are saved."""
MAX_NAMED: Final = 100
"""Definitions that never occurred, and sources without a record, that are named; `xrouter routes` has all."""
_log = get_logger()


class CoverageView:
    """The coverage of sources and definitions at one time."""

    def __init__(self, known: Mapping[DefinitionAtEndpoint, Sighting]) -> None:
        self._known = known
        self._last: dict[str, int] = {}
        self._expected: dict[str, list[int]] = {}
        for place, each in known.items():
            if place.message:
                expected = self._expected.setdefault(place.endpoint, [0, 0])
                expected[0] += 1
                expected[1] += each.first is None
                if each.last is not None:
                    self._last[place.message] = max(each.last, self._last.get(place.message, 0))

    def count_definitions(self, endpoint: str) -> tuple[int, int]:
        """Return how many definitions a source expects, and how many of them never occurred there."""
        expected, unseen = self._expected.get(endpoint, (0, 0))
        return expected, unseen

    def source_to_json(self, endpoint: str) -> dict[str, Any]:
        """Return the last record of a source, and the numbers of expected and unseen definitions."""
        sighting = self._known.get(DefinitionAtEndpoint(endpoint))
        expected, unseen = self.count_definitions(endpoint)
        last = None if sighting is None else instant_of(sighting.last)
        return {"last_record": last, "definitions": expected, "unseen": unseen}

    def definition_to_json(self, message: str) -> dict[str, Any]:
        """Return the time of the last record of a definition, at any source."""
        return {"last_record": instant_of(self._last.get(message))}

    def unseen_to_json(self) -> dict[str, Any]:
        """Return the definitions and sources that never occurred, the longest expected first."""
        unseen = sorted((each.since, place, each.epoch) for place, each in self._known.items() if each.first is None)
        definitions = [
            {"endpoint": place.endpoint, "definition": place.message, "since": instant_of(since), "epoch": epoch}
            for since, place, epoch in unseen
            if place.message
        ]
        sources = [
            {"endpoint": place.endpoint, "since": instant_of(since), "epoch": epoch}
            for since, place, epoch in unseen
            if not place.message
        ]
        return {
            "expected": sum(expected for expected, _ in self._expected.values()),
            "unseen": len(definitions),
            "silent": len(sources),
            "unseen_definitions": definitions[:MAX_NAMED],
            "silent_endpoints": sources[:MAX_NAMED],
        }


@dataclass(eq=False)
class Coverage(Collector):
    """Tracks occurrences; *label* returns the label of an endpoint in metrics. Thread-safe."""

    label: Callable[[str], str] = str
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False)
    _known: dict[DefinitionAtEndpoint, Sighting] = field(default_factory=dict, init=False)
    _changed: set[DefinitionAtEndpoint] = field(default_factory=set, init=False)
    _gone: set[DefinitionAtEndpoint] = field(default_factory=set, init=False)
    _kept: StateDatabase | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._kept_at = self.clock()

    def keep_in(self, database: StateDatabase) -> None:
        """Go on from what is noted in a state database, and note there what changes; before any plan is followed."""
        known = read_sightings(database)
        with self._lock:
            self._kept, self._known = database, known

    def follow(self, plan: Plan) -> None:
        """Track the places that this plan expects, and no others, from now on."""
        expected = {DefinitionAtEndpoint(source.endpoint) for source in plan.sources}
        matcher = plan.evaluator.matcher
        for channel in matcher.channels:
            places = (
                DefinitionAtEndpoint(channel.endpoint_of(each) or "", matcher.targets[each].xid)
                for each in channel.candidates
            )
            expected.update(places)
        now = int(self.now())
        with self._lock:
            new = expected - self._known.keys()
            gone = self._known.keys() - expected
            self._gone = (self._gone | gone) - new
            self._changed = (self._changed - gone) | new
            self._known.update((place, Sighting(plan.epoch, now)) for place in new)
            for place in gone:
                del self._known[place]
        self._save_changes()

    def add_batch(self, tally: Tally) -> None:
        """Add the records of a written batch; adding it again changes nothing."""
        places = {DefinitionAtEndpoint(endpoint) for (endpoint, _, _), count in tally.records.items() if count}
        places.update(DefinitionAtEndpoint(*pair) for pair in tally.definitions)
        now, firsts = int(self.now()), set[DefinitionAtEndpoint]()
        with self._lock:
            for place in places & self._known.keys():
                sighting = self._known[place]
                if sighting.first is None:
                    firsts.add(place)
                    sighting = replace(sighting, first=now)
                self._known[place] = replace(sighting, last=max(now, sighting.last or 0))
                self._changed.add(place)
        if firsts:
            self._save_changes(firsts)

    def save_if_due(self) -> None:
        """Save repeated occurrences if it is time; call it regularly."""
        if self.clock() - self._kept_at >= EVERY_SECONDS:
            self._save_changes()

    def close(self) -> None:
        """Save the remaining changes, and close the store."""
        self._save_changes()
        with self._writing:
            self._kept = None

    def all_sightings(self) -> dict[DefinitionAtEndpoint, Sighting]:
        """Return the occurrences of each place."""
        with self._lock:
            return dict(self._known)

    def _save_changes(self, chosen: set[DefinitionAtEndpoint] | None = None) -> None:
        """Save all changes, or only those of *chosen* places. If the disk fails, they are saved later."""
        with self._writing:
            if chosen is None:
                self._kept_at = self.clock()
            if self._kept is None:
                return
            with self._lock:
                changed = {
                    place: self._known[place] for place in (self._changed if chosen is None else self._changed & chosen)
                }
                gone, self._gone = self._gone, set()
                self._changed -= changed.keys()
            if not changed and not gone:
                return
            try:
                write_sightings(self._kept, changed, gone)
                self._refused = False
            except RouterError as error:
                with self._lock:
                    self._changed |= changed.keys() & self._known.keys()
                    self._gone |= gone - self._known.keys()
                if not self._refused:
                    _log.warning("coverage cannot be saved; retrying", problem=str(error))
                self._refused = True

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures; endpoints that share a label are summed."""
        known = self.all_sightings()
        view = CoverageView(known)
        shared: dict[str, list[tuple[int, int, int]]] = {}
        for place, each in known.items():
            if not place.message:
                figures = (each.last or 0, *view.count_definitions(place.endpoint))
                shared.setdefault(self.label(place.endpoint), []).append(figures)
        names = ("source_last_record_timestamp_seconds", "source_definitions", "source_unseen_definitions")
        sums = ((label, zip(*some, strict=True)) for label, some in shared.items())
        rows = [([label], (max(lasts), sum(expected), sum(unseen))) for label, (lasts, expected, unseen) in sums]
        values = {name: [(labels, row[at]) for labels, row in rows] for at, name in enumerate(names)}
        yield from iter_families("coverage", values)


# The throughput log: a line per minute while there are records, with the counts of each endpoint.

SHOWN: Final = 20
"""Maximum endpoints that are named, those with the most records."""


class ThroughputLog:
    """Counts records between two log lines. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: Counter[tuple[str, str, str]] = Counter()
        self._since = clock()

    def add(self, records: Mapping[tuple[str, str, str], int]) -> None:
        """Count outcomes, by endpoint, outcome and reason."""
        with self._lock:
            self._records.update(records)

    def log_if_due(self, *, last: bool = False) -> None:
        """Log a line if it is time or the *last* call, and there were records; call it regularly."""
        now = self._clock()
        if now - self._since < EVERY_SECONDS and not last:
            return
        with self._lock:
            records, self._records = self._records, Counter()
            seconds, self._since = now - self._since, now
        if records.total():
            _log_throughput(records, seconds)


def count_by_endpoint(records: Mapping[tuple[str, str, str], int]) -> dict[str, dict[str, int]]:
    """Return counts of outcomes by endpoint, busiest first, with the sum of the rest as ``other``."""
    endpoints: dict[str, Counter[str]] = {}
    for (endpoint, outcome, reason), count in records.items():
        if count:
            endpoints.setdefault(endpoint or "none", Counter())[reason or outcome] += count
    busiest = sorted(endpoints, key=lambda name: (-endpoints[name].total(), name))
    counts = {name: dict(endpoints[name]) for name in busiest[:SHOWN]}
    if rest := busiest[SHOWN:]:
        counts["other"] = {"records": sum(endpoints[name].total() for name in rest)}
    return counts


def _log_throughput(records: Counter[tuple[str, str, str]], seconds: float) -> None:
    dead = sum(count for (_, outcome, _), count in records.items() if outcome == DEAD_LETTER)
    facts = {"records": records.total(), "dead_letters": dead, "seconds": round(seconds)}
    _log.info("throughput", **facts, endpoints=count_by_endpoint(records))
