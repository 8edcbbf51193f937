"""From match sets to winners: equal placeholders, specificity, ambiguity (semantics.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.matching.context import Columns, Slot, SlotTable, slots_of
from router.matching.index import MatchIndex, MatchSet, members
from router.matching.ragged import Ragged
from router.matching.segments import Int
from router.matching.targets import Target

NO_MATCH: Final = -1
AMBIGUOUS: Final = -2


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Per row: the winning target's number or a code above, and the number of the set that it was chosen from."""

    winners: Int
    sets: Int


class Resolver:
    """Chooses winners and takes their context out, for the targets of one index."""

    def __init__(self, index: MatchIndex) -> None:
        self._index = index
        self._table = SlotTable()
        targets = range(len(index.targets))
        laid = {(t, event): self._lay(index.targets[t], event=event) for t in targets for event in (False, True)}
        self._slots = {event: Ragged([laid[t, event][0] for t in targets]) for event in (False, True)}
        self._equal = {place: pairs for place, (_, pairs) in laid.items() if pairs}
        self._names = pa.array([slot.name for slot in self._table.slots], pa.string())
        self._winners: dict[int, int] = {}
        self._pairs: dict[int, list[tuple[int, int, int]]] = {}

    def _lay(self, target: Target, *, event: bool) -> tuple[list[int], list[tuple[int, int]]]:
        slots, equal = slots_of(target.constraints(event=event) or ())
        number = self._table.number
        return [number(slot) for slot in slots], [(number(one), number(other)) for one, other in equal]

    def slots(self, target: int, *, event: bool) -> list[Slot]:
        """Return the slots whose values are the context of that target."""
        ragged = self._slots[event]
        start, count = int(ragged.starts[target]), int(ragged.counts[target])
        return [self._table.slots[int(n)] for n in ragged.values[start : start + count]]

    def slot_number(self, slot: Slot) -> int:
        """Return the number under which :meth:`slot_values` knows a slot."""
        return self._table.number(slot)

    def slot_values(self, columns: Columns, rows: Int, slots: Int) -> pa.StringArray:
        """Return the decoded value of ``slots[i]`` in ``rows[i]``."""
        return self._table.values(columns, rows, slots)

    def resolve(self, columns: Columns, sets: Int) -> Verdicts:
        """Choose a winner per row from the set it matched, after dropping targets with unequal placeholders."""
        sets = self._drop_unequal(columns, sets)
        codes, inverse = np.unique(sets, return_inverse=True)
        winners = np.array([self._winner(number) for number in codes.tolist()], np.int64)
        return Verdicts(winners[inverse] if len(codes) else sets, sets)

    def contexts(self, columns: Columns, winners: Int, events: Int) -> pa.MapArray:
        """Return the context attributes of every row, an empty map where nothing won."""
        rows_all: list[Int] = []
        slots_all: list[Int] = []
        for event in (False, True):
            rows = np.flatnonzero((winners >= 0) & (events == int(event)))
            owners, slots = self._slots[event].expand(winners[rows])
            rows_all.append(rows[owners])
            slots_all.append(slots)
        rows, slots = np.concatenate(rows_all), np.concatenate(slots_all)
        order = np.argsort(rows, kind="stable")
        rows, slots = rows[order], slots[order]
        values = self._table.values(columns, rows, slots) if len(rows) else pa.array([], pa.string())
        offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=columns.rows))))
        names = self._names.take(pa.array(slots))
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), names, values)

    def _drop_unequal(self, columns: Columns, sets: Int) -> Int:
        """Remove targets whose repeated placeholders differ; the sets of most rows stay as they are."""
        checks = {number: self._checks(number) for number in np.unique(sets).tolist()}
        checked = [number for number, pairs in checks.items() if pairs]
        if not checked:
            return sets
        rows = np.flatnonzero(np.isin(sets, checked))
        places = {number: at for at, number in enumerate(checked)}
        ragged = Ragged([range(len(checks[number])) for number in checked])
        items = np.array([places[number] for number in sets[rows].tolist()], np.int64)
        owners, which = ragged.expand(items)
        flat = np.array([pair for number in checked for pair in checks[number]], np.int64)
        pairs = flat[ragged.starts[items][owners] + which]
        values = self._table.values(columns, np.tile(rows[owners], 2), np.concatenate((pairs[:, 1], pairs[:, 2])))
        half = len(owners)
        same = pc.fill_null(pc.equal(values.slice(0, half), values.slice(half)), False).to_numpy(zero_copy_only=False)
        if same.all():
            return sets
        sets = sets.copy()
        for at in np.flatnonzero(~same).tolist():
            row, target = int(rows[owners[at]]), int(pairs[at, 0])
            current = self._index.sets[int(sets[row])]
            sets[row] = self._index.set_number(current.bits & ~(1 << target), event=current.event)
        return sets

    def _checks(self, number: int) -> list[tuple[int, int, int]]:
        known = self._pairs.get(number)
        if known is None:
            matched = self._index.sets[number]
            known = self._pairs[number] = [
                (target, *pair) for target in matched.targets for pair in self._equal.get((target, matched.event), ())
            ]
        return known

    def _winner(self, number: int) -> int:
        known = self._winners.get(number)
        if known is None:
            known = self._winners[number] = self._choose(self._index.sets[number])
        return known

    def _choose(self, matched: MatchSet) -> int:
        best = self.most_specific(matched)
        if not best:
            return NO_MATCH
        return best[0] if len(best) == 1 else AMBIGUOUS

    def most_specific(self, matched: MatchSet) -> list[int]:
        """Return the targets of a set that specificity leaves, in order (section 5, rule b)."""
        targets = self._index.targets
        ranks = {
            number: targets[number].event_rank if matched.event else targets[number].native_rank
            for number in members(matched.bits)
        }
        if not ranks:
            return []
        top = max(ranks.values())
        best = [number for number, rank in ranks.items() if rank == top]
        bases = {xid for number in best for xid in targets[number].definition.base}
        best = [number for number in best if targets[number].xid not in bases] or best
        # Endpoints that share a channel may each see the same definition; it is one candidate, the first one's.
        return list({targets[number].xid: number for number in reversed(best)}.values())[::-1]
