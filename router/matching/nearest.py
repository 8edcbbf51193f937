"""Explain why nothing matched: the nearest definitions, each with what failed (MATCHING.md#nearest-definitions).

Equivalence classes already say which constraints a row satisfies, so the number of failed properties per candidate is a
sum over a few short arrays, and the same for all rows with the same classes. The sum does not count placeholders that
must be equal, so it is a lower bound: candidates are examined in its order until no other can be nearer. Ties are
decided by spelling, which has a lower bound too. All misspellings of a value are in the same class, so each costs an
examination of the leading ties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from catalog.definitions.constraints import Constraint, KeyedConstraint, MatchCandidate
from catalog.model import CLOUDEVENTS
from catalog.values import percent_decode
from router.matching.context import find_slots, raw_value
from router.matching.index.classes import IntArray
from router.matching.index.index import MatchIndex

# The distance of a value from a constraint, in characters that would have to change.
#
# It separates definitions that are otherwise equally near: a typo is a character or two away from the intended value.
# Placeholders of a template match whatever is in their place. Texts come from outside, so the work is bounded: texts
# longer than ``LONGEST`` are *far*, and so are those that are ``FAR`` or more changes away.

FAR: Final = 8
"""The distance of a value that is farther, absent or not a text, and of a constraint without a text."""
LONGEST: Final = 200
_BUCKETS: Final = 16
_TEXTUAL: Final = ("literal", "media", "template")


def distance(constraint: Constraint, texts: Sequence[str | None]) -> int:
    """Return how many characters of the first value must change before it can satisfy a constraint, 1 to ``FAR``.

    The values are known not to satisfy the constraint.
    """
    text = texts[0] if texts else None
    if text is None or not has_text(constraint) or len(text) > LONGEST:
        return FAR
    expected: str | None = constraint.value or ""
    if constraint.kind == "template":
        expected = constraint.template.fill_from_value(text)
    return FAR if expected is None else max(1, Levenshtein.distance(expected, text, score_cutoff=FAR - 1))


def has_text(constraint: Constraint) -> bool:
    """Whether a constraint has a text that values can be similar to."""
    return constraint.kind in _TEXTUAL and constraint.type != "binary" and len(constraint.value or "") <= LONGEST


class Spellings:
    """The texts of the constraints on one property, to find those that are similar to a value.

    One changed character changes the counts of two characters by one, so differences in character counts are a lower
    bound of the distance, for all constraints at once.
    """

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self._textual = np.array([has_text(each) for each in constraints], np.bool_)
        self._counts = np.zeros((_BUCKETS, len(constraints)), np.uint8)
        self._lengths, self._slashes, self._dots = (np.zeros(len(constraints), np.int64) for _ in range(3))
        self._templates = np.array([each.kind == "template" for each in constraints], np.bool_)
        for place in np.flatnonzero(self._textual).tolist():
            constraint, value = constraints[place], constraints[place].value or ""
            if constraint.kind == "template":
                value = constraint.template.fixed_text
                self._slashes[place] = value.count("/")
                self._dots[place] = value.count(".") if constraint.dots else -1
            self._counts[:, place] = _count_characters(value)
            self._lengths[place] = len(value)

    def min_distances(self, text: str, numbers: IntArray) -> IntArray:
        """Return for each of these constraints a lower bound of the distance of a value that fails it.

        It is ``FAR`` for those without a text.
        """
        occurrences = _count_characters(text)[:, None]
        missing = (np.maximum(self._counts[:, numbers], occurrences) - occurrences).sum(axis=0, dtype=np.int64)
        beyond = missing + len(text) - self._lengths[numbers]
        templates, slashes, dots = self._templates[numbers], self._slashes[numbers], self._dots[numbers]
        bound = np.where(templates, missing, np.maximum(missing, beyond))
        parted = (slashes != text.count("/")) | ((dots >= 0) & (dots != text.count(".")))
        bound[~self._textual[numbers] | (templates & parted)] = FAR
        bounded: IntArray = np.clip(bound, 1, FAR)
        return bounded


def _count_characters(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the number of characters in each bucket."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.bincount(points % _BUCKETS, minlength=_BUCKETS).astype(np.uint8)


# The constraints of one candidate, property by property, with the record's values.

FOUND_LIMIT: Final = 200
NOT_TEXT: Final = "(bytes that are not UTF-8 text)"
Values = Callable[[str], Sequence[str | None]]
"""Returns all values of a property by key, in order; None is a value that is not a text."""


@dataclass(frozen=True, slots=True)
class ConstraintResult:
    """One constraint of a candidate: ``actual`` is None if absent, ``holds`` is the result.

    ``distance`` is how far the value is from the expected one, for a property that fails on its own.
    """

    property: str
    expected: str | None
    actual: str | None
    holds: bool
    constraint: Constraint | None = None
    distance: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the form used in dead letters and ``match``."""
        return {"property": self.property, "expected": self.expected, "found": self.actual}


@dataclass(frozen=True, slots=True)
class NearestRow:
    """One record's channel, protocol and kind, the class of each property, and the values."""

    channel: int
    protocol: int
    event: bool
    classes: tuple[int, ...]
    values: Values


def check_constraints(target: MatchCandidate, row: NearestRow, protocols: Sequence[str]) -> list[ConstraintResult]:
    """Return all constraints of a candidate for a record, in its own order; it matches if all of them hold.

    *protocols* are those that rows refer to by number.
    """
    checks = check_kind(target, row.protocol, protocols, event=row.event)
    holding: list[KeyedConstraint] = []
    for key, constraint in constraints_to_report(target, event=row.event):
        texts = row.values(key)
        holds = any(constraint.satisfied(text, present=True) for text in texts)
        if not texts:
            holds = constraint.satisfied(None, present=False)
        if holds:
            holding.append((key, constraint))
        unlike = 0 if holds else distance(constraint, texts)
        checks.append(
            ConstraintResult(property_name(key), constraint.expected, _describe(texts), holds, constraint, unlike)
        )
    return checks + _check_placeholders(holding, row.values)


def check_kind(
    target: MatchCandidate, protocol: int, protocols: Sequence[str], *, event: bool
) -> list[ConstraintResult]:
    """Return a candidate's constraints on the kind of record: its protocol, and whether it is an event."""
    checks: list[ConstraintResult] = []
    name = protocols[protocol] if protocol >= 0 else None
    if target.protocol is not None:
        checks.append(ConstraintResult("protocol", target.protocol, name, target.protocol == name))
    if target.constraints(event=event) is None:
        checks.append(ConstraintResult("envelope", CLOUDEVENTS, None, False))
    elif target.envelope and event:
        checks.append(ConstraintResult("envelope", CLOUDEVENTS, CLOUDEVENTS, True))
    return checks


def constraints_to_report(target: MatchCandidate, *, event: bool) -> Sequence[KeyedConstraint]:
    """Return the constraints to report: all of them for a native record and a target that needs an event."""
    constraints = target.constraints(event=event)
    return constraints if constraints is not None else target.event or ()


def property_name(key: str) -> str:
    """Return the path in the definition that a property key means."""
    if key == "d":
        return "datacontenttype"
    member = "envelopemetadata" if key.startswith("e.") else "protocoloptions"
    return f"{member}.{key[2:]}"


def _check_placeholders(holding: Sequence[KeyedConstraint], values: Values) -> list[ConstraintResult]:
    """Return one failed check for each property whose placeholders differ from those of earlier properties."""
    failed: dict[tuple[str, Constraint], ConstraintResult] = {}
    for one, other in find_slots(holding)[1]:
        texts = []
        for slot in (one, other):
            text = raw_value(slot, values(slot.key))
            texts.append(percent_decode(text) if text is not None and slot.constraint.decodes else text)
        if texts[0] != texts[1]:
            place = f"{property_name(other.key)} {{{other.name}}}"
            check = ConstraintResult(place, f"{texts[0]} as in {property_name(one.key)}", texts[1], False)
            failed.setdefault((other.key, other.constraint), check)
    return list(failed.values())


def _describe(texts: Sequence[str | None]) -> str | None:
    if not texts:
        return None
    shown = ", ".join(NOT_TEXT if text is None else text for text in texts)
    return shown if len(shown) <= FOUND_LIMIT else shown[:FOUND_LIMIT] + "…"


MOST: Final = 3
LOOKS: Final = 256
"""Most candidates examined for one record. More exist only where hundreds differ just in placeholders."""
SPELLED: Final = 8
"""Most candidates examined that fail as little as their bound says. Beyond, only spelling could favour another."""
_KEPT: Final = 256
"""Orders that are cached, each with a number per candidate."""
_FAILED: Final = 1 << 48
_LITERALS: Final = 1 << 32
_DISTANCE: Final = 1 << 26
_FARTHEST: Final = _LITERALS // _DISTANCE - 1
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _ConstraintTable:
    """The constraints on one property: their targets, ascending, their numbers, and 1 for a literal that counts.

    The constraints of a target begin at its entry in ``starts`` and end where the next target's begin.
    """

    targets: IntArray
    numbers: IntArray
    literals: IntArray
    starts: IntArray

    def sum_over(self, wanted: IntArray, of: Callable[[IntArray], IntArray]) -> IntArray:
        """Return for each of the *wanted* targets the sum of *of* applied to the numbers of its constraints."""
        starts, ends = self.starts[wanted], self.starts[wanted + 1]
        counts = ends - starts
        places = np.repeat(np.arange(len(wanted)), counts)
        rows = np.arange(len(places)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return np.bincount(places, of(self.numbers[rows]), len(wanted)).astype(np.int64)


class NearestFinder:
    """Explains records that matched nothing; built once per plan, used only for dead letters."""

    def __init__(self, index: MatchIndex, protocols: Sequence[str], channels: Sequence[Sequence[int]]) -> None:
        """``channels`` are the candidates of each channel, as the index has them."""
        self._index = index
        self._protocols = tuple(protocols)
        self._candidates = [np.unique(np.array(numbers, np.int64)) for numbers in channels]
        order = sorted(range(len(index.targets)), key=lambda number: index.targets[number].xid)
        self._by_order = np.array(order, np.int64)
        self._order = np.argsort(self._by_order)
        self._tables = {event: self._build_tables(event=event) for event in (False, True)}
        # Dicts and not functions with a cache, which cannot be sent to workers.
        self._kinds: dict[tuple[int, bool], IntArray] = {}
        self._orders: dict[tuple[int, int, bool, tuple[int, ...]], IntArray] = {}
        self._spellings: dict[str, Spellings] = {}

    def explain(self, row: NearestRow) -> list[dict[str, Any]]:
        """Return up to three nearest candidates, as the JSON form of MATCHING.md#nearest-definitions."""
        mismatches: dict[str, list[dict[str, Any]]] = {}
        for number, checks in self.iter_ranked(row, looks=LOOKS):
            # Endpoints that share a channel may have the same definition; the nearer counts.
            failed = [check.to_json() for check in checks if not check.holds]
            mismatches.setdefault(self._index.targets[number].xid, failed)
            if len(mismatches) == MOST:
                break
        return [{"message": xid, "mismatches": failed} for xid, failed in mismatches.items()]

    def iter_ranked(self, row: NearestRow, looks: int | None = None) -> Iterator[tuple[int, list[ConstraintResult]]]:
        """Yield candidates with their checks, nearest first.

        Fewest failed come first, then most literals matched, then the fewest characters that differ, then the xid.
        With ``looks``, at most so many of them, and no more than ``SPELLED`` for their spelling.
        """
        waiting: list[tuple[int, int, list[ConstraintResult]]] = []
        looked = spelled = 0
        for bound, number in self._iter_by_bound(row):
            while waiting and waiting[0][0] <= bound:
                _, nearest, checks = heappop(waiting)
                yield nearest, checks
            if number is None:
                continue
            if looked == looks or (looks is not None and spelled == SPELLED):
                break
            looked += 1
            checks = self.checks(number, row)
            failed = sum(not check.holds for check in checks)
            spelled += failed == bound // _FAILED
            unlike = min(sum(check.distance for check in checks), _FARTHEST)
            literals = bound % _FAILED // _LITERALS
            actual = failed * _FAILED + literals * _LITERALS + unlike * _DISTANCE + bound % _DISTANCE
            heappush(waiting, (actual, number, checks))
        while waiting:
            _, nearest, checks = heappop(waiting)
            yield nearest, checks

    def checks(self, number: int, row: NearestRow) -> list[ConstraintResult]:
        """Return the results of all constraints of one candidate for a record; see :func:`check_constraints`."""
        return check_constraints(self._index.targets[number], row, self._protocols)

    def _iter_by_bound(self, row: NearestRow) -> Iterator[tuple[int, int | None]]:
        """Yield (bound, target) of all candidates, ascending; a bound encodes failures, literals, distance and order.

        Before ties, their bound is yielded without a target, so that the caller can stop.
        """
        place = row.channel, row.protocol, row.event, row.classes
        if place not in self._orders:
            if len(self._orders) == _KEPT:
                self._orders.clear()
            self._orders[place] = self._candidate_bounds(*place)
        order = self._orders[place]
        start = 0
        while start < len(order):
            least = int(order[start]) // _LITERALS * _LITERALS
            yield least, None
            end = int(np.searchsorted(order, least + _LITERALS))
            ties = order[start:end]
            bounds = ties if len(ties) == 1 else np.sort(self._spelling_bounds(row, ties))
            yield from zip(bounds.tolist(), self._by_order[bounds % _DISTANCE].tolist(), strict=True)
            start = end

    def _spelling_bounds(self, row: NearestRow, ties: IntArray) -> IntArray:
        """Return the bounds of candidates that tie, each with how many characters differ at least."""
        targets = self._by_order[ties % _DISTANCE]
        failed = ties[0] // _FAILED - self._count_kind_failures(row.protocol, row.event)[targets]
        unlike = failed * FAR
        for key, number in zip(self._index.keys, row.classes, strict=True):
            text, table = next(iter(row.values(key)), None), self._tables[row.event].get(key)
            if text is not None and len(text) <= LONGEST and table is not None:
                satisfied = self._satisfied_bits(key, number)
                unlike -= table.sum_over(targets, partial(self._distance_saved, key, text, satisfied))
        farther = np.minimum(unlike, _FARTHEST) * _DISTANCE
        bounds: IntArray = ties - ties % _LITERALS + farther + ties % _DISTANCE
        return bounds

    def _distance_saved(self, key: str, text: str, satisfied: Bool, chosen: IntArray) -> IntArray:
        """Return how much less than ``FAR`` a value may be away from each constraint on its property."""
        if key not in self._spellings:
            self._spellings[key] = Spellings(self._index.classes[key].constraints)
        return np.where(satisfied[chosen], 0, FAR - self._spellings[key].min_distances(text, chosen))

    def _candidate_bounds(self, channel: int, protocol: int, event: bool, classes: tuple[int, ...]) -> IntArray:
        """Return the bounds of all candidates, ascending, with maximum distance for everything that fails."""
        failed, literals = np.zeros((2, len(self._index.targets)), np.int64)
        for key, number in zip(self._index.keys, classes, strict=True):
            if (table := self._tables[event].get(key)) is not None:
                satisfied = self._satisfied_bits(key, number)[table.numbers]
                np.add.at(failed, table.targets[~satisfied], 1)
                np.add.at(literals, table.targets[satisfied], table.literals[satisfied])
        unlike = np.minimum(failed * FAR, _FARTHEST) * _DISTANCE
        failed += self._count_kind_failures(protocol, event)
        few = _FAILED // _LITERALS - 1
        scores: IntArray = failed * _FAILED + (few - np.minimum(literals, few)) * _LITERALS + self._order + unlike
        return np.sort(scores[self._candidates[channel]])

    def _build_tables(self, *, event: bool) -> dict[str, _ConstraintTable]:
        numbers = {
            key: {constraint: number for number, constraint in enumerate(classes.constraints)}
            for key, classes in self._index.classes.items()
        }
        rows: dict[str, list[tuple[int, int, int]]] = {}
        for target, candidate in enumerate(self._index.targets):
            for key, constraint in constraints_to_report(candidate, event=event):
                literal = int(constraint.kind in ("literal", "media") and constraint.counts)
                rows.setdefault(key, []).append((target, numbers[key][constraint], literal))
        arrays = {key: np.array(entries, np.int64).T.copy() for key, entries in rows.items()}
        places = np.arange(len(self._index.targets) + 1)
        return {key: _ConstraintTable(a[0], a[1], a[2], np.searchsorted(a[0], places)) for key, a in arrays.items()}

    def _satisfied_bits(self, key: str, number: int) -> Bool:
        classes = self._index.classes[key]
        return _unpack_bits(classes.bits[number], len(classes.constraints))

    def _count_kind_failures(self, protocol: int, event: bool) -> IntArray:
        kind = protocol, event
        if kind not in self._kinds:
            checks = (check_kind(target, protocol, self._protocols, event=event) for target in self._index.targets)
            self._kinds[kind] = np.array([sum(not check.holds for check in each) for each in checks], np.int64)
        return self._kinds[kind]


def _unpack_bits(bits: int, width: int) -> Bool:
    packed = np.frombuffer(bits.to_bytes((width + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little")[:width].astype(bool)
