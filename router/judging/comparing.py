"""Two judgements of the same records, held against each other: what a new catalog changes, and for which.

Whole columns are compared. What a column cannot settle, as attributes in another order, is looked at row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.facts import ATTRIBUTE, CONTENT_TYPE
from router.judging.chunk import Chunk
from router.judging.outputs import Decided
from router.routing.routes import DEAD, letter_number
from router.settings import Settings

if TYPE_CHECKING:
    from router.judging.plan import Plan

DifferenceKind = Literal["matched", "dead-letter", "definition", "route", "event", "reason"]
KINDS: Final[Mapping[DifferenceKind, str]] = {
    "dead-letter": "newly dead-lettered",
    "definition": "matched by another definition",
    "route": "differently routed",
    "event": "changed in their event",
    "reason": "dead letters for another reason",
    "matched": "newly matched",
}
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Pairs = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a record by one catalog: a definition, or a reason for none."""

    message: str | None
    reason: str | None
    detail: str
    nearest: Sequence[Mapping[str, Any]]
    sinks: tuple[str, ...]
    topics: Mapping[str, str]
    context: Mapping[str, str]
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ways:
    """The sinks of each route, and those of dead letters that have none: what settings say, without secrets."""

    routes: tuple[tuple[str, ...], ...]
    letters: tuple[str, ...]

    @classmethod
    def of(cls, settings: Settings) -> Ways:
        """Return those of some settings."""
        return cls(tuple(tuple(route.to) for route in settings.routes), tuple(settings.dead_letters.sinks))

    def sinks(self, route: int) -> tuple[str, ...]:
        """Return the sinks of a route, by its number in outcomes."""
        if route == DEAD:
            return self.letters
        return self.routes[route if route >= 0 else letter_number(route)]


@dataclass(frozen=True, slots=True)
class Changed:
    """A record, or an event of a batch, that the catalogs disagree on. ``verdicts`` makes both verdicts."""

    row: int
    endpoint: str
    kinds: tuple[DifferenceKind, ...]
    before: str
    after: str
    verdicts: Callable[[], tuple[Verdict, Verdict]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a chunk: how many outcomes there are, by endpoint, and those that differ."""

    endpoints: Mapping[str, int]
    changed: Sequence[Changed]

    @property
    def outcomes(self) -> int:
        """How many there are in all."""
        return sum(self.endpoints.values())


def compare_outcomes(
    chunk: Chunk, before: Decided, after: Decided, ways: Ways, chosen: Ints | None = None
) -> Comparison:
    """Hold two judgements of the rows of a chunk against each other.

    *after* may be of some rows alone: *chosen* are their places, in order. The endpoint of an outcome is that of
    *before*, '' for none.
    """
    places = np.arange(chunk.rows.num_rows) if chosen is None else chosen
    pairs = _pairs(before, after, places)
    old = _Side(chunk, before, pairs[:, 1], ways, None)
    new = _Side(chunk, after, pairs[:, 2], ways, places)
    flags = _flags(old, new)
    wanted = np.flatnonzero(np.logical_or.reduce(list(flags.values()))).tolist()
    labels = zip(old.labels(wanted), new.labels(wanted), strict=True)
    endpoints = pc.fill_null(old.column("endpoint").cast(pa.string()), "")
    of_changed = endpoints.take(pa.array(wanted, pa.int64())).to_pylist()
    changed = [
        Changed(
            int(pairs[at, 0]),
            endpoint,
            tuple(kind for kind, flag in flags.items() if flag[at]),
            label,
            other,
            lambda at=at: (old.verdict(at), new.verdict(at)),  # type: ignore[misc]
        )
        for at, endpoint, (label, other) in zip(wanted, of_changed, labels, strict=True)
    ]
    counts = endpoints.value_counts()
    numbers = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
    return Comparison(numbers, changed)


def _pairs(before: Decided, after: Decided, chosen: Ints) -> Ints:
    """Return for each outcome its record, and the rows of facts that stand for it on both sides.

    A record that is a batch of events has several. Where one side sees a batch and the other does not, the last
    outcome that there is stands for those that there are not; a record that gives nothing on one side has no pair.
    """
    if np.array_equal(before.offsets, after.offsets):
        return np.stack([before.sources[before.order], before.order, after.order], axis=1)
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


class _Side:
    """One judgement, its columns in the order of pairs; *places* are those of its records in the chunk."""

    def __init__(self, chunk: Chunk, decided: Decided, rows: Ints, ways: Ways, places: Ints | None) -> None:
        self._chunk, self._decided, self._rows, self._ways, self._places = chunk, decided, rows, ways, places
        self._take = pa.array(rows)
        self.messages = self.column("message").cast(pa.string())
        self.reasons = self.column("reason").cast(pa.string())
        self.routed: Bools = self.messages.is_valid().to_numpy(zero_copy_only=False)
        self.ways = pa.array(
            [",".join(self._ways.sinks(route)) for route in self.column("route").to_pylist()], pa.string()
        )

    @property
    def topics(self) -> list[str]:
        """The names of the columns of topics."""
        return [name for name in self._decided.columns if name.startswith(("topic_", "letters_"))]

    def column(self, name: str) -> pa.Array:
        return self._decided.column(name).take(self._take)

    def labels(self, wanted: Sequence[int]) -> list[str]:
        """Return the definition or the reason of some outcomes."""
        labels: list[str] = pc.coalesce(self.messages, self.reasons, "").take(pa.array(wanted, pa.int64())).to_pylist()
        return labels

    def attributes(self, at: int, given: Pairs | None) -> dict[str, str]:
        """Return the attributes that an event leaves with: those that are *given*, else those that it came with."""
        if given is None:
            row = int(self._rows[at])
            reading = self._decided.outcomes.facts.readings.get(row)
            if reading is not None:
                return dict(reading.envelope.attributes)
            source = int(self._decided.sources[row])
            binding, parts, body = self._chunk.taken_apart(
                source if self._places is None else int(self._places[source])
            )
            return dict(binding.envelope(parts, body, lambda: False).attributes)
        return {_name(each["key"]): (each["value"] or b"").decode("utf-8", "backslashreplace") for each in given}

    def verdict(self, at: int) -> Verdict:
        row = int(self._rows[at])
        outcomes, columns = self._decided.outcomes, self._decided.columns
        routed = bool(self.routed[at])
        prefix = "topic_" if routed else "letters_"
        topics = {name.removeprefix(prefix): columns[name][row].as_py() for name in columns if name.startswith(prefix)}
        return Verdict(
            self.messages[at].as_py(),
            outcomes.reasons.get(row),
            outcomes.details.get(row, ""),
            outcomes.nearest.get(row, ()),
            self._ways.sinks(int(columns["route"][row].as_py())),
            {name: topic for name, topic in topics.items() if topic is not None},
            dict(outcomes.contexts[row].as_py() or ()) if routed else {},
            self.attributes(at, columns["attributes"][row].as_py()) if routed else {},
        )


def _flags(old: _Side, new: _Side) -> dict[DifferenceKind, Bools]:
    """Return for each kind of difference the pairs that have it, worst kind first."""
    both, none = old.routed & new.routed, ~old.routed & ~new.routed
    moved = _differ(old.ways, new.ways)
    for name in sorted({*old.topics, *new.topics}):
        moved |= _differ(*(side.column(name).cast(pa.string()) for side in (old, new)))
    return {
        "dead-letter": old.routed & ~new.routed,
        "definition": both & _differ(old.messages, new.messages),
        "route": (both | none) & moved,
        "event": both & (_contexts_differ(old, new) | _attributes_differ(old, new, both)),
        "reason": none & _differ(old.reasons, new.reasons),
        "matched": ~old.routed & new.routed,
    }


def _differ(one: pa.Array, other: pa.Array) -> Bools:
    """Tell which values differ; nothing differs from something."""
    unequal = pc.fill_null(pc.not_equal(one, other), False).to_numpy(zero_copy_only=False)
    known = (side.is_valid().to_numpy(zero_copy_only=False) for side in (one, other))
    differing: Bools = unequal | np.not_equal(*known)
    return differing


def _contexts_differ(old: _Side, new: _Side) -> Bools:
    one, other = (side.column("context") for side in (old, new))
    pairs = zip(_entries(one.keys, one.items, one), _entries(other.keys, other.items, other), strict=True)
    return np.fromiter((a != b for a, b in pairs), bool, len(one))


def _entries(names: pa.Array, values: pa.Array, lists: pa.Array) -> Iterator[dict[str, str]]:
    keys, texts, offsets = names.to_pylist(), values.to_pylist(), lists.offsets.to_pylist()
    for start, end in pairwise(offsets):
        yield dict(zip(keys[start:end], texts[start:end], strict=True))


def _attributes_differ(old: _Side, new: _Side, both: Bools) -> Bools:
    differing = np.zeros(len(both), bool)
    columns = [side.column("attributes") for side in (old, new)]
    given = [column.is_valid().to_numpy(zero_copy_only=False) for column in columns]
    # Columns that neither side gives leave as they came.
    at = np.flatnonzero(both & (given[0] | given[1]))
    one, other = (column.take(pa.array(at)).to_pylist() for column in columns)
    for place, a, b in zip(at.tolist(), one, other, strict=True):
        differing[place] = a != b and old.attributes(place, a) != new.attributes(place, b)
    return differing


def _name(key: str) -> str:
    return "datacontenttype" if key == CONTENT_TYPE else key.removeprefix(ATTRIBUTE)


def count_groups(changed: Sequence[Changed]) -> Counter[tuple[DifferenceKind, str, str]]:
    """Count the differences of a chunk by kind, and by what became of the records before and after."""
    return Counter((kind, each.before, each.after) for each in changed for kind in each.kinds)


def notes_of(before: Plan, after: Plan) -> Iterator[str]:
    """Yield what else an operator should know of a new catalog, which no record shows."""
    errors = sum(finding.severity == "error" for finding in after.catalog.findings)
    if errors:
        yield f"the new catalog has {errors} error{'s' * (errors > 1)}; `xrouter check` lists them"
    known, coming = ({source.endpoint for source in each.sources} for each in (before, after))
    if gone := sorted(known - coming):
        yield f"no longer read with the new catalog: {', '.join(gone)}"
    if come := sorted(coming - known):
        yield f"read only with the new catalog, and so not looked at: {', '.join(come)}"
