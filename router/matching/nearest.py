"""Why did nothing match? The nearest definitions, each with what failed (JUDGING.md#nearest-definitions).

Classes already tell which constraints the values of a row satisfy, so how many properties of each candidate fail is a
sum over a few short arrays, and the same for all rows of one combination of classes. That sum misses only placeholders
that must be equal, so it is a lower bound: candidates are looked at in its order until no other can be nearer. Among
those that are equal in this, the spelling of what failed decides (``likeness``), which is bounded from below as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from catalog.definitions.constraints import Constraint
from catalog.definitions.targets import Keyed, Target
from catalog.model import CLOUDEVENTS
from catalog.values import percent_decode
from router.matching.context import raw_value, slots_of
from router.matching.index.columns import Int
from router.matching.index.index import MatchIndex
from router.matching.likeness import FAR, LONGEST, Spellings, distance, has_text

MOST: Final = 3
LOOKS: Final = 256
"""Candidates looked at one by one for one record; more only ever wait where hundreds differ in placeholders alone."""
SPELLED: Final = 8
"""Candidates looked at whose failures are as few as they seemed: past these only spelling could put another first."""
FOUND_LIMIT: Final = 200
NOT_TEXT: Final = "(bytes that are no UTF-8 text)"
_FIRST: Final = 64
_KEPT: Final = 4_096
_KEPT_TARGETS: Final = 2_000_000
_FAILED: Final = 1 << 48
_LITERALS: Final = 1 << 32
_DISTANCE: Final = 1 << 26
_FARTHEST: Final = _LITERALS // _DISTANCE - 1
Bool = npt.NDArray[np.bool_]
Values = Callable[[str], Sequence[str | None]]
"""Gives all values of a property of the record by key, in order; None stands for one that is no text."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a candidate asks of a record: ``found`` is None for what is absent, ``holds`` the verdict.

    ``distance`` is how far the value is from what was expected, for a property that fails by itself.
    """

    property: str
    expected: str | None
    found: str | None
    holds: bool
    constraint: Constraint | None = None
    distance: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the form that dead letters and ``match`` have."""
        return {"property": self.property, "expected": self.expected, "found": self.found}


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one record: its channel, protocol and kind, the class of each property, and the values."""

    channel: int
    protocol: int
    event: bool
    classes: tuple[int, ...]
    values: Values


@dataclass(frozen=True, slots=True)
class _Table:
    """The constraints on one property: whose they are, their numbers, and 1 where one is a literal that counts."""

    targets: Int
    numbers: Int
    literals: Int


@dataclass(frozen=True, slots=True)
class _Change:
    """How many failures and matched literals each of these targets has more, or less."""

    targets: Int
    failed: Int
    literals: Int


class Nearest:
    """Explains records that matched nothing; built once per plan, asked for dead letters only."""

    def __init__(self, index: MatchIndex, protocols: Sequence[str], channels: Sequence[Sequence[int]]) -> None:
        """``channels`` are the candidates of each channel, as the index has them."""
        self._index = index
        self._protocols = tuple(protocols)
        self._candidates = [np.unique(np.array(numbers, np.int64)) for numbers in channels]
        order = sorted(range(len(index.targets)), key=lambda number: index.targets[number].xid)
        self._by_order = np.array(order, np.int64)
        self._order = np.argsort(self._by_order)
        self._tables = {event: self._table(event=event) for event in (False, True)}
        self._absent = {event: self._of_absent(event=event) for event in (False, True)}
        self._kinds: dict[tuple[int, bool], Int] = {}
        self._changes: dict[tuple[bool, int, int], _Change] = {}
        self._changed_targets = 0
        self._bounds: dict[tuple[int, int, bool, tuple[int, ...], tuple[str | None, ...]], Int] = {}
        self._spellings: dict[str, Spellings] = {}
        self._misspelt: dict[tuple[int, int], bool] = {}

    def explain(self, row: Row) -> list[dict[str, Any]]:
        """Return up to three nearest candidates, as the JSON form of JUDGING.md#nearest-definitions."""
        mismatches: dict[str, list[dict[str, Any]]] = {}
        for number, checks in self.ranked(row, looks=LOOKS):
            # Endpoints that share a channel may each see the same definition; the nearer counts.
            failed = [check.to_json() for check in checks if not check.holds]
            mismatches.setdefault(self._index.targets[number].xid, failed)
            if len(mismatches) == MOST:
                break
        return [{"message": xid, "mismatches": failed} for xid, failed in mismatches.items()]

    def ranked(self, row: Row, looks: int | None = None) -> Iterator[tuple[int, list[Check]]]:
        """Yield candidates with their checks, nearest first.

        Fewest failed come first, then most literals matched, then the fewest characters that differ, then the xid.
        With ``looks``, at most so many of them, and no more than ``SPELLED`` for their spelling.
        """
        waiting: list[tuple[int, int, list[Check]]] = []
        spelled = 0
        for looked, (bound, number) in enumerate(self._in_order(row)):
            while waiting and waiting[0][0] <= bound:
                _, nearest, checks = heappop(waiting)
                yield nearest, checks
            if looked == looks or (looks is not None and spelled == SPELLED):
                break
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

    def checks(self, number: int, row: Row) -> list[Check]:
        """Return all that one candidate asks of a record, in its own order; it matches when everything holds."""
        target = self._index.targets[number]
        checks = self._kind_checks(target, row)
        holding: list[Keyed] = []
        for key, constraint in tested(target, event=row.event):
            texts = row.values(key)
            holds = any(constraint.satisfied(text, present=True) for text in texts)
            if not texts:
                holds = constraint.satisfied(None, present=False)
            if holds:
                holding.append((key, constraint))
            unlike = 0 if holds else distance(constraint, texts)
            checks.append(Check(property_name(key), constraint.expected, _shown(texts), holds, constraint, unlike))
        return checks + _unequal(holding, row.values)

    def _kind_checks(self, target: Target, row: Row) -> list[Check]:
        checks: list[Check] = []
        name = self._protocols[row.protocol] if row.protocol >= 0 else None
        if target.protocol is not None:
            checks.append(Check("protocol", target.protocol, name, target.protocol == name))
        if target.constraints(event=row.event) is None:
            checks.append(Check("envelope", CLOUDEVENTS, None, False))
        elif target.envelope and row.event:
            checks.append(Check("envelope", CLOUDEVENTS, CLOUDEVENTS, True))
        return checks

    def _in_order(self, row: Row) -> Iterator[tuple[int, int]]:
        """Yield (bound, target) of all candidates, ascending; it has failures, literals, distance and order in it."""
        texts = tuple(self._text(row, key) for key in range(len(row.classes)))
        place = (row.channel, row.protocol, row.event, row.classes, texts)
        bounds = self._bounds.get(place)
        if bounds is None:
            if len(self._bounds) >= _KEPT:
                self._bounds.clear()
            bounds = self._scores(row, texts)
            if len(bounds) > _FIRST:
                bounds = np.partition(bounds, _FIRST)[:_FIRST].copy()
            self._bounds[place] = bounds = np.sort(bounds)
        yield from self._numbered(bounds)
        if len(bounds) < len(self._candidates[row.channel]):
            yield from self._numbered(np.sort(self._scores(row, texts))[len(bounds) :])

    def _numbered(self, bounds: Int) -> Iterator[tuple[int, int]]:
        yield from zip(bounds.tolist(), self._by_order[bounds % _DISTANCE].tolist(), strict=True)

    def _text(self, row: Row, key: int) -> str | None:
        """Return the first value of a property when it is a text that fails a constraint it may be alike to."""
        number = row.classes[key]
        misspelt = self._misspelt.get((key, number))
        if misspelt is None:
            if len(self._misspelt) >= _KEPT:
                self._misspelt.clear()
            name = self._index.keys[key]
            constraints, satisfied = self._index.classes[name].constraints, self._satisfied(name, number)
            failing = (constraints[place] for place in np.flatnonzero(~satisfied).tolist())
            misspelt = self._misspelt[(key, number)] = number > 0 and any(map(has_text, failing))
        if not misspelt:
            return None
        text = next(iter(row.values(self._index.keys[key])), None)
        return text if text is not None and len(text) <= LONGEST else None

    def _likeness(self, event: bool, key: int, number: int, text: str) -> tuple[Int, Int]:
        """Return the targets that ask something else of a property, and how much nearer than ``FAR`` each may be."""
        name = self._index.keys[key]
        table = self._tables[event].get(name)
        if table is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        spellings = self._spellings.get(name)
        if spellings is None:
            spellings = self._spellings[name] = Spellings(self._index.classes[name].constraints)
        nearer = np.where(self._satisfied(name, number), 0, FAR - spellings.at_least(text))
        return table.targets, nearer[table.numbers]

    def _scores(self, row: Row, texts: Sequence[str | None]) -> Int:
        chosen = self._candidates[row.channel]
        failed, literals = (values.copy() for values in self._absent[row.event])
        for key, number in enumerate(row.classes):
            if number:
                change = self._change(row.event, key, number)
                failed[change.targets] += change.failed
                literals[change.targets] += change.literals
        unlike = failed * FAR
        for key, text in enumerate(texts):
            if text is not None:
                targets, nearer = self._likeness(row.event, key, row.classes[key], text)
                unlike -= np.bincount(targets, nearer, len(unlike)).astype(np.int64)
        failed += self._kind_failures(row.protocol, row.event)
        few = _FAILED // _LITERALS - 1
        scores: Int = failed * _FAILED + (few - np.minimum(literals, few)) * _LITERALS + self._order
        scores += np.minimum(unlike, _FARTHEST) * _DISTANCE
        return scores[chosen]

    def _table(self, *, event: bool) -> dict[str, _Table]:
        numbers = {
            key: {constraint: number for number, constraint in enumerate(classes.constraints)}
            for key, classes in self._index.classes.items()
        }
        rows: dict[str, list[tuple[int, int, int]]] = {}
        for target, candidate in enumerate(self._index.targets):
            for key, constraint in tested(candidate, event=event):
                literal = int(constraint.kind in ("literal", "media") and constraint.counts)
                rows.setdefault(key, []).append((target, numbers[key][constraint], literal))
        return {key: _Table(*np.array(entries, np.int64).T.copy()) for key, entries in rows.items()}

    def _of_absent(self, *, event: bool) -> tuple[Int, Int]:
        """Return how many properties fail and literals match, per target, when every property is absent."""
        failed, literals = (np.zeros(len(self._index.targets), np.int64) for _ in range(2))
        for key, table in self._tables[event].items():
            satisfied = self._satisfied(key, 0)[table.numbers]
            np.add.at(failed, table.targets[~satisfied], 1)
            np.add.at(literals, table.targets[satisfied], table.literals[satisfied])
        return failed, literals

    def _change(self, event: bool, key: int, number: int) -> _Change:
        """Return what a class changes per target, compared with the property's absence."""
        known = self._changes.get((event, key, number))
        if known is None:
            known = self._changed(event, self._index.keys[key], number)
            self._changed_targets += len(known.targets)
            if self._changed_targets > _KEPT_TARGETS or len(self._changes) >= _KEPT:
                self._changes.clear()
                self._changed_targets = len(known.targets)
            self._changes[(event, key, number)] = known
        return known

    def _changed(self, event: bool, key: str, number: int) -> _Change:
        table = self._tables[event].get(key)
        if table is None:
            return _Change(*(np.zeros(0, np.int64) for _ in range(3)))
        before, after = self._satisfied(key, 0)[table.numbers], self._satisfied(key, number)[table.numbers]
        changed = np.flatnonzero(before != after)
        gained = after[changed].astype(np.int64) - before[changed]
        targets, places = np.unique(table.targets[changed], return_inverse=True)
        failed, literals = np.zeros((2, len(targets)), np.int64)
        np.add.at(failed, places, -gained)
        np.add.at(literals, places, gained * table.literals[changed])
        return _Change(targets, failed, literals)

    def _satisfied(self, key: str, number: int) -> Bool:
        classes = self._index.classes[key]
        return _bools(classes.bits[number], len(classes.constraints))

    def _kind_failures(self, protocol: int, event: bool) -> Int:
        known = self._kinds.get((protocol, event))
        if known is None:
            row = Row(0, protocol, event, (), lambda key: ())
            failures = [sum(not check.holds for check in self._kind_checks(t, row)) for t in self._index.targets]
            known = self._kinds[(protocol, event)] = np.array(failures, np.int64)
        return known


def tested(target: Target, *, event: bool) -> Sequence[Keyed]:
    """Return the constraints to report on: for a native record and a target that needs an event, all of them."""
    constraints = target.constraints(event=event)
    return constraints if constraints is not None else target.event or ()


def property_name(key: str) -> str:
    """Return the place in the definition that a property key stands for."""
    if key == "d":
        return "datacontenttype"
    member = "envelopemetadata" if key.startswith("e.") else "protocoloptions"
    return f"{member}.{key[2:]}"


def _unequal(holding: Sequence[Keyed], values: Values) -> list[Check]:
    """Return one failed check for each property that holds alone and takes other values than those before it."""
    failed: dict[tuple[str, Constraint], Check] = {}
    for one, other in slots_of(holding)[1]:
        texts = []
        for slot in (one, other):
            text = raw_value(slot, values(slot.key))
            texts.append(percent_decode(text) if text is not None and slot.constraint.decodes else text)
        if texts[0] != texts[1]:
            place = f"{property_name(other.key)} {{{other.name}}}"
            check = Check(place, f"{texts[0]} as in {property_name(one.key)}", texts[1], False)
            failed.setdefault((other.key, other.constraint), check)
    return list(failed.values())


def _shown(texts: Sequence[str | None]) -> str | None:
    if not texts:
        return None
    shown = ", ".join(NOT_TEXT if text is None else text for text in texts)
    return shown if len(shown) <= FOUND_LIMIT else shown[:FOUND_LIMIT] + "…"


def _bools(bits: int, width: int) -> Bool:
    packed = np.frombuffer(bits.to_bytes((width + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little")[:width].astype(bool)
