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
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from router.evaluation.evaluator import EVALUATORS, Kind
from router.evaluation.outputs import RoutedOutcomes
from router.matching.inbox_columns import UNKNOWN, inbox_parts
from router.rendering.texts import attribute_of_header
from router.routing import DEFAULT_DEAD_LETTER_ROUTE, to_dead_letter_route
from router.settings import Settings

if TYPE_CHECKING:
    from router.evaluation.plan import Evaluator, Plan

# Source rows, and the parts of their records.


@dataclass(frozen=True, slots=True)
class Chunk:
    """Source rows that are evaluated together."""

    kind: Kind
    rows: pa.RecordBatch

    @property
    def is_pushed(self) -> bool:
        """Whether the rows have the columns of the inbox."""
        return self.kind != "kafka"

    def position_of(self, row: int) -> str:
        """Return the source position of a record."""
        return next(Chunk(self.kind, self.rows.slice(row, 1)).iter_positions())

    def iter_positions(self) -> Iterator[str]:
        """Yield the positions of the records, in order."""
        if self.is_pushed:
            yield from self.rows.column("position").to_pylist()
            return
        positions = self.rows.select(["topic", "partition", "offset"]).to_pylist()
        yield from (f"{each['topic']}-{each['partition']}-{each['offset']}" for each in positions)

    def split_record(self, row: int) -> tuple[Binding, list[Part], bytes | None]:
        """Return the binding, the parts and the body of a record."""
        record: dict[str, Any] = self.rows.slice(row, 1).to_pylist()[0]
        if self.kind == "kafka":
            return BINDINGS[KAFKA], split_row(record), record["value"]
        binding = binding_of(record["protocol"] or "") or BINDINGS[UNKNOWN]
        return binding, inbox_parts(record["properties"]), record["body"]


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
    """The sinks of each route, and of dead letters without a route. It has no secrets, so workers may have it."""

    routes: tuple[tuple[str, ...], ...]
    dead_letter_sinks: tuple[str, ...]

    @classmethod
    def from_settings(cls, settings: Settings) -> SinksByRoute:
        """Return the sinks of all routes in the settings."""
        return cls(tuple(tuple(route.to) for route in settings.routes), tuple(settings.dead_letters.sinks))

    def sinks_of(self, route: int) -> tuple[str, ...]:
        """Return the sinks of a route; *route* is its number in outcomes."""
        if route == DEFAULT_DEAD_LETTER_ROUTE:
            return self.dead_letter_sinks
        return self.routes[route if route >= 0 else to_dead_letter_route(route)]


@dataclass(frozen=True, slots=True)
class ChangedRecord:
    """A record, or an event of a batch, with different outcomes; ``load_outcomes`` returns both in full."""

    row: int
    endpoint: str
    kinds: tuple[DifferenceKind, ...]
    before: str
    after: str
    load_outcomes: Callable[[], tuple[CatalogOutcome, CatalogOutcome]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a chunk: the number of outcomes by endpoint, and the changed records."""

    endpoints: Mapping[str, int]
    changed: Sequence[ChangedRecord]

    @property
    def outcome_count(self) -> int:
        """Total number of outcomes."""
        return sum(self.endpoints.values())


def compare_outcomes(
    chunk: Chunk, before: RoutedOutcomes, after: RoutedOutcomes, sinks: SinksByRoute, sampled: Ints | None = None
) -> Comparison:
    """Compare two evaluations of the rows of a chunk.

    *after* may cover only the rows *sampled*, in order. Endpoints are those of *before*, '' for none.
    """
    rows = np.arange(chunk.rows.num_rows) if sampled is None else sampled
    pairs = _pair_outcomes(before, after, rows)
    old = _ComparedSide(chunk, before, pairs[:, 1], sinks, None)
    new = _ComparedSide(chunk, after, pairs[:, 2], sinks, rows)
    flags = _find_differences(old, new)
    changed_pairs = np.flatnonzero(np.logical_or.reduce(list(flags.values()))).tolist()
    labels = zip(old.labels_of(changed_pairs), new.labels_of(changed_pairs), strict=True)
    endpoints = pc.fill_null(old.column("endpoint").cast(pa.string()), "")
    changed_endpoints = endpoints.take(pa.array(changed_pairs, pa.int64())).to_pylist()
    changed = [
        ChangedRecord(
            int(pairs[at, 0]),
            endpoint,
            tuple(kind for kind, flag in flags.items() if flag[at]),
            label,
            other,
            lambda at=at: (old.outcome_at(at), new.outcome_at(at)),  # type: ignore[misc]
        )
        for at, endpoint, (label, other) in zip(changed_pairs, changed_endpoints, labels, strict=True)
    ]
    counts = endpoints.value_counts()
    totals = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
    return Comparison(totals, changed)


def _pair_outcomes(before: RoutedOutcomes, after: RoutedOutcomes, rows: Ints) -> Ints:
    """Pair the outcomes of each record: return its row, and the rows of both outcomes.

    A record that is a batch of events has several. If one side has fewer outcomes, its last one is compared with the
    rest of the other side; a record without outcomes on one side has no pair.
    """
    if np.array_equal(before.offsets, after.offsets):
        return np.stack([before.source_rows[before.order], before.order, after.order], axis=1)
    offsets, others = np.asarray(before.offsets), np.asarray(after.offsets)
    if (offsets[rows + 1] - offsets[rows] == 1).all() and (np.diff(others) == 1).all():
        return np.stack([rows, before.order[offsets[rows]], after.order], axis=1)
    starts = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
    pairs = [
        (row, before.order[min(start + at, end - 1)], after.order[min(first + at, last - 1)])
        for row, (start, end), (first, last) in zip(rows.tolist(), starts, pairwise(others.tolist()), strict=True)
        if start < end and first < last
        for at in range(max(end - start, last - first))
    ]
    return np.array(pairs, np.int64).reshape(-1, 3)


class _ComparedSide:
    """One of the two evaluations, with its columns in the order of the pairs.

    *rows* are its outcomes, *records* the rows of its records in the chunk, None for all.
    """

    def __init__(
        self, chunk: Chunk, outcomes: RoutedOutcomes, rows: Ints, sinks: SinksByRoute, records: Ints | None
    ) -> None:
        self._chunk, self._routed, self._rows, self._sinks, self._records = chunk, outcomes, rows, sinks, records
        self._take = pa.array(rows)
        self.xids = self.column("message").cast(pa.string())
        self.reasons = self.column("reason").cast(pa.string())
        self.is_routed: Bools = self.xids.is_valid().to_numpy(zero_copy_only=False)
        self.sink_names = pa.array(
            [",".join(self._sinks.sinks_of(route)) for route in self.column("route").to_pylist()], pa.string()
        )

    @property
    def topic_columns(self) -> list[str]:
        """The names of the topic columns."""
        return [name for name in self._routed.columns if name.startswith(("topic_", "letters_"))]

    def column(self, name: str) -> pa.Array:
        return self._routed.column(name).take(self._take)

    def labels_of(self, pairs: Sequence[int]) -> list[str]:
        """Return the definition, or else the dead letter reason, of these outcomes."""
        labels: list[str] = pc.coalesce(self.xids, self.reasons, "").take(pa.array(pairs, pa.int64())).to_pylist()
        return labels

    def event_attributes(self, at: int, mapped: Pairs | None) -> dict[str, str]:
        """Return the attributes of the routed event: *mapped*, else those that it arrived with."""
        return _event_attributes(self._chunk, self._routed, int(self._rows[at]), mapped, self._records)

    def outcome_at(self, at: int) -> CatalogOutcome:
        return read_outcome(self._chunk, self._routed, int(self._rows[at]), self._sinks, self._records)


def read_outcome(
    chunk: Chunk, routed: RoutedOutcomes, row: int, sinks: SinksByRoute, records: Ints | None = None
) -> CatalogOutcome:
    """Return an outcome in full; *records* are the rows of its records in the chunk, None for all."""
    outcomes, columns = routed.outcomes, routed.columns
    message = routed.column("message")[row].as_py()
    attributes: dict[str, str] = {}
    if message is not None:
        attributes = _event_attributes(chunk, routed, row, columns["attributes"][row].as_py(), records)
    return CatalogOutcome(
        message,
        outcomes.reasons.get(row),
        outcomes.details.get(row, ""),
        outcomes.nearest.get(row, ()),
        sinks.sinks_of(int(columns["route"][row].as_py())),
        topics_of_row(columns, row, routed=message is not None),
        {} if message is None else dict(outcomes.contexts[row].as_py() or ()),
        attributes,
    )


def topics_of_row(columns: Mapping[str, pa.Array], row: int, *, routed: bool) -> dict[str, str]:
    """Return the topics of an outcome, by sink."""
    prefix = "topic_" if routed else "letters_"
    topics = {name.removeprefix(prefix): columns[name][row].as_py() for name in columns if name.startswith(prefix)}
    return {name: topic for name, topic in topics.items() if topic is not None}


def _event_attributes(
    chunk: Chunk, routed: RoutedOutcomes, row: int, mapped: Pairs | None, records: Ints | None
) -> dict[str, str]:
    """Return the attributes of a routed event: *mapped*, else those that it arrived with."""
    if mapped is not None:
        return {
            attribute_of_header(each["key"]): (each["value"] or b"").decode("utf-8", "backslashreplace")
            for each in mapped
        }
    reading = routed.outcomes.facts.readings.get(row)
    if reading is not None:
        return dict(reading.envelope.attributes)
    source = int(routed.source_rows[row])
    binding, parts, body = chunk.split_record(source if records is None else int(records[source]))
    return dict(binding.read_envelope(parts, body, lambda: False).attributes)


def _find_differences(old: _ComparedSide, new: _ComparedSide) -> dict[DifferenceKind, Bools]:
    """Return the pairs that have each kind of difference, the worst kind first."""
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
    """Return which values differ; null differs from any value."""
    unequal = pc.fill_null(pc.not_equal(one, other), False).to_numpy(zero_copy_only=False)
    present = (side.is_valid().to_numpy(zero_copy_only=False) for side in (one, other))
    differing: Bools = unequal | np.not_equal(*present)
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
    are_set = [column.is_valid().to_numpy(zero_copy_only=False) for column in columns]
    # Columns that neither side sets are forwarded unchanged.
    at = np.flatnonzero(both & (are_set[0] | are_set[1]))
    one, other = (column.take(pa.array(at)).to_pylist() for column in columns)
    for pair, a, b in zip(at.tolist(), one, other, strict=True):
        differing[pair] = a != b and old.event_attributes(pair, a) != new.event_attributes(pair, b)
    return differing


def count_differences(changed: Sequence[ChangedRecord]) -> Counter[tuple[DifferenceKind, str, str]]:
    """Count the differences of a chunk by kind, and by both outcomes."""
    return Counter((kind, each.before, each.after) for each in changed for kind in each.kinds)


def iter_catalog_notes(before: Plan, after: Plan) -> Iterator[str]:
    """Yield notes about a new catalog that comparing records cannot show."""
    errors = sum(finding.severity == "error" for finding in after.catalog.findings)
    if errors:
        yield f"the new catalog has {errors} error{'s' * (errors > 1)}; `xrouter check` lists them"
    current, coming = ({source.endpoint for source in each.sources} for each in (before, after))
    if removed := sorted(current - coming):
        yield f"endpoints no longer read with the new catalog: {', '.join(removed)}"
    if added := sorted(coming - current):
        yield f"endpoints read only with the new catalog, and not compared: {', '.join(added)}"


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
CountKey = tuple[str, str, str, str]
"""Endpoint, result or difference, and the outcomes of both catalogs."""
_RANDOM: Final = np.random.default_rng(0)
MAX_SAVED_SECONDS: Final = 1.0
"""Maximum CPU seconds to save up, besides what the current batch adds."""


class ShadowBudget:
    """The CPU budget of the shadow in a worker: a share of the evaluation time. An overdraft is paid back first."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._seconds = 0.0
        self._row_seconds: float | None = None

    def earn(self, seconds: float) -> None:
        """Add a share of the *seconds* of an evaluation."""
        self._seconds = min(self._seconds, MAX_SAVED_SECONDS) + seconds * self._share

    def allowed_rows(self, remaining: int) -> int:
        """Return how many of the *remaining* rows the budget allows."""
        if self._seconds <= 0:
            return 0
        affordable = FIRST_SAMPLE_ROWS if self._row_seconds is None else int(self._seconds / self._row_seconds)
        rows = min(remaining, affordable)
        return rows if rows >= min(remaining, MIN_SAMPLE_ROWS) else 0

    def spend(self, seconds: float, rows: int) -> None:
        """Subtract the *seconds* of a sample of *rows* rows."""
        self._seconds -= seconds
        latest = max(seconds / rows, 1e-9)
        self._row_seconds = latest if self._row_seconds is None else (self._row_seconds + latest) / 2


@dataclass(frozen=True, slots=True)
class ShadowCatalog:
    """The shadow catalog in a worker, which evaluates samples of rows beside the active catalog."""

    evaluator: Evaluator
    sinks_by_route: SinksByRoute
    active_epoch: str
    shadow_epoch: str
    share: float

    @classmethod
    def from_plans(cls, active: Plan, shadow: Plan) -> ShadowCatalog:
        """Return the comparison of two plans with the same settings."""
        settings = active.settings
        sinks, share = SinksByRoute.from_settings(settings), settings.catalog.shadow_share
        return cls(shadow.evaluator, sinks, active.epoch, shadow.epoch, share)

    def evaluate_with_shadow(self, kind: Kind, active: Evaluator, rows: pa.RecordBatch) -> RoutedOutcomes:
        """Evaluate an Arrow batch with the *active* plan, and add the shadow's differences to its tally."""
        began = time.thread_time()
        outcomes = EVALUATORS[kind](active, rows)
        budget = _budget_of(self)
        budget.earn(time.thread_time() - began)
        counts: Counter[CountKey] = Counter()
        left = _RANDOM.permutation(rows.num_rows)
        while number := budget.allowed_rows(len(left)):
            began = time.thread_time()
            sample, left = np.sort(left[:number]), left[number:]
            try:
                counts.update(self._compare_sample(kind, rows, outcomes, sample))
            except Exception as error:  # Counted: a fault of the shadow catalog must not stop the stream.
                counts.update(self._count_failed(outcomes, sample, type(error).__name__))
            budget.spend(time.thread_time() - began, number)
        if not counts or outcomes.tally is None:
            return outcomes
        tally = msgspec.json.decode(outcomes.tally)
        tally["shadow"] = [[self.active_epoch, self.shadow_epoch, *key, count] for key, count in counts.items()]
        return replace(outcomes, tally=msgspec.json.encode(tally).decode())

    def _compare_sample(self, kind: Kind, rows: pa.RecordBatch, active: RoutedOutcomes, at: Ints) -> Counter[CountKey]:
        sample = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
        shadow = EVALUATORS[kind](self.evaluator, sample)
        return count_comparison(compare_outcomes(Chunk(kind, rows), active, shadow, self.sinks_by_route, at))

    def _count_failed(self, active: RoutedOutcomes, sample: Ints, error: str) -> Counter[CountKey]:
        rows = active.order[np.isin(active.source_rows[active.order], sample)]
        endpoints = Counter(each or "" for each in active.columns["endpoint"].take(pa.array(rows)).to_pylist())
        return Counter({(endpoint, FAILED, error, ""): count for endpoint, count in endpoints.items()})


def count_comparison(comparison: Comparison) -> Counter[CountKey]:
    """Count outcomes by endpoint and result, and differences by endpoint, kind, and both outcomes."""
    counts: Counter[CountKey] = Counter()
    changed = Counter(each.endpoint for each in comparison.changed)
    for endpoint, number in comparison.endpoints.items():
        counts[endpoint, SAME, "", ""] = number - changed[endpoint]
        counts[endpoint, CHANGED, "", ""] = changed[endpoint]
    groups: Counter[CountKey] = Counter()
    for endpoint in changed:
        own = [each for each in comparison.changed if each.endpoint == endpoint]
        groups.update({(endpoint, *group): number for group, number in count_differences(own).items()})
    for rank, ((endpoint, kind, before, after), number) in enumerate(groups.most_common()):
        labels = (before, after) if rank < MAX_GROUPS else (OTHERS, OTHERS)
        counts[endpoint, kind, *labels] += number
    return +counts


_budgets: dict[tuple[str, str], ShadowBudget] = {}


def _budget_of(shadow: ShadowCatalog) -> ShadowBudget:
    """Return the budget of this worker, a new one for another pair of catalogs."""
    key = (shadow.active_epoch, shadow.shadow_epoch)
    if key not in _budgets:
        _budgets.clear()
        _budgets[key] = ShadowBudget(shadow.share)
    return _budgets[key]
