"""Compare two evaluations of the same records: what a new catalog changes, and for which records.

Whole columns are compared; row by row only where columns cannot decide, such as attributes in another order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.binding import split_row
from bindings.kafka.record_columns import ATTRIBUTE, CONTENT_TYPE
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from router.evaluation.evaluator import EVALUATORS, Kind
from router.evaluation.outputs import RoutedOutcomes
from router.matching.inbox_columns import UNKNOWN, inbox_parts
from router.routing import DEFAULT_DEAD_LETTER_ROUTE, to_dead_letter_route
from router.settings import Settings

if TYPE_CHECKING:
    from router.evaluation.plan import Evaluator, Plan

# Rows of one kind of source, and the parts of their records.


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are evaluated together."""

    kind: Kind
    rows: pa.RecordBatch

    @property
    def is_pushed(self) -> bool:
        """Whether the rows are from the inbox, and have the time of receipt."""
        return self.kind != "kafka"

    def position_of(self, row: int) -> str:
        """Return the position of a record."""
        if self.is_pushed:
            return str(self.rows.column("position")[row].as_py())
        place = (self.rows.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
        return "-".join(map(str, place))

    def iter_positions(self) -> Iterator[str]:
        """Yield the positions of the records, in order."""
        if self.is_pushed:
            yield from self.rows.column("position").to_pylist()
            return
        places = self.rows.select(["topic", "partition", "offset"]).to_pylist()
        yield from (f"{each['topic']}-{each['partition']}-{each['offset']}" for each in places)

    def split_record(self, row: int) -> tuple[Binding, list[Part], bytes | None]:
        """Return the binding, the parts and the body of a record."""
        given: dict[str, Any] = self.rows.slice(row, 1).to_pylist()[0]
        if self.kind == "kafka":
            return BINDINGS[KAFKA], split_row(given), given["value"]
        binding = binding_of(given["protocol"] or "") or BINDINGS[UNKNOWN]
        return binding, inbox_parts(given["properties"]), given["body"]


DifferenceKind = Literal["matched", "dead-letter", "definition", "route", "event", "reason"]
DIFFERENCE_LABELS: Final[Mapping[DifferenceKind, str]] = {
    "dead-letter": "newly dead-lettered",
    "definition": "matched by another definition",
    "route": "differently routed",
    "event": "routed with a changed event",
    "reason": "dead letters for another reason",
    "matched": "newly matched",
}
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Pairs = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CatalogOutcome:
    """The outcome of a record with one catalog: its definition, or its dead letter reason."""

    message: str | None
    reason: str | None
    detail: str
    nearest: Sequence[Mapping[str, Any]]
    sinks: tuple[str, ...]
    topics: Mapping[str, str]
    context: Mapping[str, str]
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SinksByRoute:
    """The sinks of each route, and of dead letters without a route; has no secrets."""

    routes: tuple[tuple[str, ...], ...]
    dead_letter_sinks: tuple[str, ...]

    @classmethod
    def from_settings(cls, settings: Settings) -> SinksByRoute:
        """Return the sinks in the settings."""
        return cls(tuple(tuple(route.to) for route in settings.routes), tuple(settings.dead_letters.sinks))

    def sinks_of(self, route: int) -> tuple[str, ...]:
        """Return the sinks of a route, by its number in outcomes."""
        if route == DEFAULT_DEAD_LETTER_ROUTE:
            return self.dead_letter_sinks
        return self.routes[route if route >= 0 else to_dead_letter_route(route)]


@dataclass(frozen=True, slots=True)
class ChangedRecord:
    """A record, or an event of a batch, with different outcomes. ``load_outcomes`` returns both."""

    row: int
    endpoint: str
    kinds: tuple[DifferenceKind, ...]
    before: str
    after: str
    load_outcomes: Callable[[], tuple[CatalogOutcome, CatalogOutcome]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a chunk: the number of outcomes by endpoint, and the changed ones."""

    endpoints: Mapping[str, int]
    changed: Sequence[ChangedRecord]

    @property
    def outcome_count(self) -> int:
        """Total number of outcomes."""
        return sum(self.endpoints.values())


def compare_outcomes(
    chunk: Chunk, before: RoutedOutcomes, after: RoutedOutcomes, ways: SinksByRoute, chosen: Ints | None = None
) -> Comparison:
    """Compare two evaluations of the rows of a chunk.

    *after* may have only the rows *chosen*, in order. Endpoints are counted as in *before*, '' for none.
    """
    places = np.arange(chunk.rows.num_rows) if chosen is None else chosen
    pairs = _pair_outcomes(before, after, places)
    old = _ComparedSide(chunk, before, pairs[:, 1], ways, None)
    new = _ComparedSide(chunk, after, pairs[:, 2], ways, places)
    flags = _find_differences(old, new)
    wanted = np.flatnonzero(np.logical_or.reduce(list(flags.values()))).tolist()
    labels = zip(old.labels_of(wanted), new.labels_of(wanted), strict=True)
    endpoints = pc.fill_null(old.column("endpoint").cast(pa.string()), "")
    of_changed = endpoints.take(pa.array(wanted, pa.int64())).to_pylist()
    changed = [
        ChangedRecord(
            int(pairs[at, 0]),
            endpoint,
            tuple(kind for kind, flag in flags.items() if flag[at]),
            label,
            other,
            lambda at=at: (old.outcome_at(at), new.outcome_at(at)),  # type: ignore[misc]
        )
        for at, endpoint, (label, other) in zip(wanted, of_changed, labels, strict=True)
    ]
    counts = endpoints.value_counts()
    numbers = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
    return Comparison(numbers, changed)


def _pair_outcomes(before: RoutedOutcomes, after: RoutedOutcomes, chosen: Ints) -> Ints:
    """Return for each outcome its record, and its row on both sides.

    A record that is a batch of events has several. If one side has fewer outcomes, its last one is compared with the
    rest of the other side; a record without outcomes on one side has no pair.
    """
    if np.array_equal(before.offsets, after.offsets):
        return np.stack([before.source_rows[before.order], before.order, after.order], axis=1)
    offsets, others = np.asarray(before.offsets), np.asarray(after.offsets)
    if (offsets[chosen + 1] - offsets[chosen] == 1).all() and (np.diff(others) == 1).all():
        return np.stack([chosen, before.order[offsets[chosen]], after.order], axis=1)
    starts = zip(offsets[chosen].tolist(), offsets[chosen + 1].tolist(), strict=True)
    pairs = [
        (row, before.order[min(start + at, end - 1)], after.order[min(first + at, last - 1)])
        for row, (start, end), (first, last) in zip(chosen.tolist(), starts, pairwise(others.tolist()), strict=True)
        if start < end and first < last
        for at in range(max(end - start, last - first))
    ]
    return np.array(pairs, np.int64).reshape(-1, 3)


class _ComparedSide:
    """One evaluation, its columns in the order of pairs; *places* are the rows of its records in the chunk."""

    def __init__(
        self, chunk: Chunk, decided: RoutedOutcomes, rows: Ints, ways: SinksByRoute, places: Ints | None
    ) -> None:
        self._chunk, self._decided, self._rows, self._ways, self._places = chunk, decided, rows, ways, places
        self._take = pa.array(rows)
        self.xids = self.column("message").cast(pa.string())
        self.reasons = self.column("reason").cast(pa.string())
        self.is_routed: Bools = self.xids.is_valid().to_numpy(zero_copy_only=False)
        self.sink_names = pa.array(
            [",".join(self._ways.sinks_of(route)) for route in self.column("route").to_pylist()], pa.string()
        )

    @property
    def topic_columns(self) -> list[str]:
        """The names of the topic columns."""
        return [name for name in self._decided.columns if name.startswith(("topic_", "letters_"))]

    def column(self, name: str) -> pa.Array:
        return self._decided.column(name).take(self._take)

    def labels_of(self, wanted: Sequence[int]) -> list[str]:
        """Return the definition or the reason of some outcomes."""
        labels: list[str] = pc.coalesce(self.xids, self.reasons, "").take(pa.array(wanted, pa.int64())).to_pylist()
        return labels

    def event_attributes(self, at: int, given: Pairs | None) -> dict[str, str]:
        """Return the attributes of the routed event: *given*, else the ones it arrived with."""
        if given is None:
            row = int(self._rows[at])
            reading = self._decided.outcomes.facts.readings.get(row)
            if reading is not None:
                return dict(reading.envelope.attributes)
            source = int(self._decided.source_rows[row])
            binding, parts, body = self._chunk.split_record(
                source if self._places is None else int(self._places[source])
            )
            return dict(binding.read_envelope(parts, body, lambda: False).attributes)
        return {_name(each["key"]): (each["value"] or b"").decode("utf-8", "backslashreplace") for each in given}

    def outcome_at(self, at: int) -> CatalogOutcome:
        row = int(self._rows[at])
        outcomes, columns = self._decided.outcomes, self._decided.columns
        routed = bool(self.is_routed[at])
        prefix = "topic_" if routed else "letters_"
        topics = {name.removeprefix(prefix): columns[name][row].as_py() for name in columns if name.startswith(prefix)}
        return CatalogOutcome(
            self.xids[at].as_py(),
            outcomes.reasons.get(row),
            outcomes.details.get(row, ""),
            outcomes.nearest.get(row, ()),
            self._ways.sinks_of(int(columns["route"][row].as_py())),
            {name: topic for name, topic in topics.items() if topic is not None},
            dict(outcomes.contexts[row].as_py() or ()) if routed else {},
            self.event_attributes(at, columns["attributes"][row].as_py()) if routed else {},
        )


def _find_differences(old: _ComparedSide, new: _ComparedSide) -> dict[DifferenceKind, Bools]:
    """Return for each kind of difference which pairs have it, worst kind first."""
    both, none = old.is_routed & new.is_routed, ~old.is_routed & ~new.is_routed
    moved = _are_different(old.sink_names, new.sink_names)
    for name in sorted({*old.topic_columns, *new.topic_columns}):
        moved |= _are_different(*(side.column(name).cast(pa.string()) for side in (old, new)))
    return {
        "dead-letter": old.is_routed & ~new.is_routed,
        "definition": both & _are_different(old.xids, new.xids),
        "route": (both | none) & moved,
        "event": both & (_contexts_differ(old, new) | _attributes_differ(old, new, both)),
        "reason": none & _are_different(old.reasons, new.reasons),
        "matched": ~old.is_routed & new.is_routed,
    }


def _are_different(one: pa.Array, other: pa.Array) -> Bools:
    """Return for each value whether it differs; null differs from any value."""
    unequal = pc.fill_null(pc.not_equal(one, other), False).to_numpy(zero_copy_only=False)
    known = (side.is_valid().to_numpy(zero_copy_only=False) for side in (one, other))
    differing: Bools = unequal | np.not_equal(*known)
    return differing


def _contexts_differ(old: _ComparedSide, new: _ComparedSide) -> Bools:
    one, other = (side.column("context") for side in (old, new))
    pairs = zip(_iter_contexts(one.keys, one.items, one), _iter_contexts(other.keys, other.items, other), strict=True)
    return np.fromiter((a != b for a, b in pairs), bool, len(one))


def _iter_contexts(names: pa.Array, values: pa.Array, lists: pa.Array) -> Iterator[dict[str, str]]:
    keys, texts, offsets = names.to_pylist(), values.to_pylist(), lists.offsets.to_pylist()
    for start, end in pairwise(offsets):
        yield dict(zip(keys[start:end], texts[start:end], strict=True))


def _attributes_differ(old: _ComparedSide, new: _ComparedSide, both: Bools) -> Bools:
    differing = np.zeros(len(both), bool)
    columns = [side.column("attributes") for side in (old, new)]
    given = [column.is_valid().to_numpy(zero_copy_only=False) for column in columns]
    # Columns that neither side sets are forwarded unchanged.
    at = np.flatnonzero(both & (given[0] | given[1]))
    one, other = (column.take(pa.array(at)).to_pylist() for column in columns)
    for place, a, b in zip(at.tolist(), one, other, strict=True):
        differing[place] = a != b and old.event_attributes(place, a) != new.event_attributes(place, b)
    return differing


def _name(key: str) -> str:
    return "datacontenttype" if key == CONTENT_TYPE else key.removeprefix(ATTRIBUTE)


def count_differences(changed: Sequence[ChangedRecord]) -> Counter[tuple[DifferenceKind, str, str]]:
    """Count the differences of a chunk by kind, and by both outcomes."""
    return Counter((kind, each.before, each.after) for each in changed for kind in each.kinds)


def catalog_notes(before: Plan, after: Plan) -> Iterator[str]:
    """Yield notes about a new catalog that comparing records cannot show."""
    errors = sum(finding.severity == "error" for finding in after.catalog.findings)
    if errors:
        yield f"the new catalog has {errors} error{'s' * (errors > 1)}; `xrouter check` lists them"
    known, coming = ({source.endpoint for source in each.sources} for each in (before, after))
    if gone := sorted(known - coming):
        yield f"endpoints no longer read with the new catalog: {', '.join(gone)}"
    if come := sorted(coming - known):
        yield f"endpoints read only with the new catalog, and not compared: {', '.join(come)}"


# The shadow catalog: evaluated in the workers beside the active one, only to count what it would change.
#
# It may use a share of the CPU time of the evaluation in a worker, and evaluates a random sample of rows that fits. If
# it used too much, it pauses until the share is met. Its failures are counted; the batch never depends on it.

SAME: Final = "unchanged"
CHANGED: Final = "changed"
FAILED: Final = "failed"
"""The result of records that the shadow catalog could not evaluate or compare; the error type is counted with it."""
MAX_GROUPS: Final = 1_000
"""Maximum number of different pairs of outcomes that one sample counts separately."""
OTHERS: Final = "others"
FIRST_SAMPLE_ROWS: Final = 100
"""Rows of the first sample, before its cost is known."""
MIN_SAMPLE_ROWS: Final = 50
"""Minimum rows of a sample, if there are as many."""
MAX_SAMPLE_ROWS: Final = 5_000
CountKey = tuple[str, str, str, str]
"""Endpoint, result or difference, and the outcomes of both catalogs."""
_RANDOM: Final = np.random.default_rng(0)
MAX_SAVED_SECONDS: Final = 1.0
"""Maximum CPU seconds to save up, besides what the current batch adds."""


class ShadowBudget:
    """The CPU budget of the shadow in a worker: a share of the evaluation time. Overdraft is paid back first."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._seconds = 0.0
        self._each: float | None = None

    def earn(self, seconds: float) -> None:
        """Add a share of the *seconds* of an evaluation."""
        self._seconds = min(self._seconds, MAX_SAVED_SECONDS) + seconds * self._share

    def allowed_rows(self, given: int) -> int:
        """Return how many of *given* rows the budget allows."""
        if self._seconds <= 0:
            return 0
        affordable = FIRST_SAMPLE_ROWS if self._each is None else int(self._seconds / self._each)
        rows = min(given, affordable, MAX_SAMPLE_ROWS)
        return rows if rows >= min(given, MIN_SAMPLE_ROWS) else 0

    def spend(self, seconds: float, rows: int) -> None:
        """Subtract the *seconds* of a sample of *rows* rows."""
        self._seconds -= seconds
        each = max(seconds / rows, 1e-9)
        self._each = each if self._each is None else (self._each + each) / 2


@dataclass(frozen=True, slots=True)
class Shadow:
    """The shadow catalog in a worker; ``active_epoch`` is the active epoch, ``shadow_epoch`` the shadow's."""

    evaluator: Evaluator
    sinks_by_route: SinksByRoute
    active_epoch: str
    shadow_epoch: str
    share: float

    @classmethod
    def of(cls, active: Plan, shadow: Plan) -> Shadow:
        """Return what compares two plans that have the same settings."""
        settings = active.settings
        ways, share = SinksByRoute.from_settings(settings), settings.catalog.shadow_share
        return cls(shadow.judge, ways, active.epoch, shadow.epoch, share)

    def evaluate_with_shadow(self, kind: Kind, judge: Evaluator, rows: pa.RecordBatch) -> RoutedOutcomes:
        """Evaluate an Arrow batch with the active plan's *judge*, and add the shadow's differences to its counts."""
        began = time.thread_time()
        decided = EVALUATORS[kind](judge, rows)
        allowance = _budget_of(self)
        allowance.earn(time.thread_time() - began)
        counts: Counter[CountKey] = Counter()
        left = _RANDOM.permutation(rows.num_rows)
        while number := allowance.allowed_rows(len(left)):
            began = time.thread_time()
            chosen, left = np.sort(left[:number]), left[number:]
            try:
                counts.update(self._compare_sample(kind, rows, decided, chosen))
            except Exception as error:  # Counted: a fault of the shadow catalog must not stop the stream.
                counts.update(self._count_failed(decided, chosen, type(error).__name__))
            allowance.spend(time.thread_time() - began, number)
        if not counts or decided.tally is None:
            return decided
        tally = msgspec.json.decode(decided.tally)
        tally["shadow"] = [[self.active_epoch, self.shadow_epoch, *key, count] for key, count in counts.items()]
        return replace(decided, tally=msgspec.json.encode(tally).decode())

    def _compare_sample(
        self, kind: Kind, rows: pa.RecordBatch, decided: RoutedOutcomes, chosen: Ints
    ) -> Counter[CountKey]:
        looked_at = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
        after = EVALUATORS[kind](self.evaluator, looked_at)
        return count_comparison(compare_outcomes(Chunk(kind, rows), decided, after, self.sinks_by_route, chosen))

    def _count_failed(self, decided: RoutedOutcomes, chosen: Ints, error: str) -> Counter[CountKey]:
        rows = decided.order[np.isin(decided.source_rows[decided.order], chosen)]
        endpoints = Counter(each or "" for each in decided.columns["endpoint"].take(pa.array(rows)).to_pylist())
        return Counter({(endpoint, FAILED, error, ""): count for endpoint, count in endpoints.items()})


def count_comparison(compared: Comparison) -> Counter[CountKey]:
    """Count outcomes by endpoint and result, and differences by endpoint, kind, and both outcomes."""
    counts: Counter[CountKey] = Counter()
    changed = Counter(each.endpoint for each in compared.changed)
    for endpoint, number in compared.endpoints.items():
        counts[endpoint, SAME, "", ""] = number - changed[endpoint]
        counts[endpoint, CHANGED, "", ""] = changed[endpoint]
    groups: Counter[CountKey] = Counter()
    for endpoint in changed:
        mine = [each for each in compared.changed if each.endpoint == endpoint]
        groups.update({(endpoint, *group): number for group, number in count_differences(mine).items()})
    for place, ((endpoint, kind, before, after), number) in enumerate(groups.most_common()):
        labels = (before, after) if place < MAX_GROUPS else (OTHERS, OTHERS)
        counts[endpoint, kind, *labels] += number
    return +counts


_budgets: dict[tuple[str, str], ShadowBudget] = {}


def _budget_of(shadow: Shadow) -> ShadowBudget:
    """Return the budget of this worker; a different catalog starts a new one."""
    key = (shadow.active_epoch, shadow.shadow_epoch)
    if key not in _budgets:
        _budgets.clear()
        _budgets[key] = ShadowBudget(shadow.share)
    return _budgets[key]
