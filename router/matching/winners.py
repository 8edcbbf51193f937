"""Choose winners among matching definitions: specificity, ambiguity, repeated placeholders (MATCHING.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from catalog.definitions.constraints import MatchCandidate
from router.matching.context import Slot, SlotTable, find_slots, slot_value
from router.matching.index.classes import BatchColumns, IntArray, KeyTable, Ragged, expand_ranges
from router.matching.index.index import COMBINATIONS_LIMIT, MatchIndex, MatchSet, bit_numbers
from router.matching.tie_breaker import TieBreaker

NO_MATCH: Final = -1
AMBIGUOUS: Final = -2
_TIE: Final = 1 << 40
"""Added to the number of a winner that was chosen among tied targets."""
_COUNT_BITS: Final = 24
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1


@dataclass(frozen=True, slots=True)
class Winners:
    """The winner of each row, or ``NO_MATCH`` or ``AMBIGUOUS``, and the number of the set that it was chosen from.

    ``ties`` are the rows whose winner was chosen among equally specific targets.
    """

    winners: IntArray
    sets: IntArray
    ties: IntArray


class WinnerChooser:
    """Chooses winners and extracts their context attributes, for the targets of one index."""

    def __init__(self, index: MatchIndex, ties: TieBreaker | None = None) -> None:
        self._index = index
        self.ties = ties if ties is not None else TieBreaker()
        self._table = SlotTable()
        targets = range(len(index.targets))
        found = {(t, event): self._slots_of(index.targets[t], event=event) for t in targets for event in (False, True)}
        # Many definitions share their list of slots: few lists stay in the processor's cache.
        lists: dict[tuple[int, ...], int] = {(): 0}
        numbers = [lists.setdefault(tuple(slots), len(lists)) for slots, _ in found.values()]
        self._lists = np.array([*numbers, 0], np.int64)
        self._slots = Ragged(list(lists))
        self._equal = {place: pairs for place, (_, pairs) in found.items() if pairs}
        self._names = pa.array([slot.name for slot in self._table.slots], pa.string())
        self._winners, self._checks = KeyTable(COMBINATIONS_LIMIT), KeyTable(COMBINATIONS_LIMIT)
        self._pairs: list[tuple[int, int, int]] = []
        self._flat = np.zeros((3, 0), np.int64)

    def _slots_of(self, target: MatchCandidate, *, event: bool) -> tuple[list[int], list[tuple[int, int]]]:
        slots, equal = find_slots(target.constraints(event=event) or ())
        number = self._table.number
        return [number(slot) for slot in slots], [(number(one), number(other)) for one, other in equal]

    def slots(self, target: int, *, event: bool) -> list[Slot]:
        """Return the slots whose values are the target's context attributes."""
        _, numbers = self._slots.expand(self._lists[[2 * target + int(event)]])
        return [self._table.slots[number] for number in numbers.tolist()]

    def slot_number(self, slot: Slot) -> int:
        """Return the number of a slot for :meth:`slot_values`."""
        return self._table.number(slot)

    def slot_values(self, columns: BatchColumns, rows: IntArray, slots: IntArray) -> pa.StringArray:
        """Return the decoded value of ``slots[i]`` in ``rows[i]``."""
        return self._table.values(columns, rows, slots)

    def choose_winners(self, sets: IntArray) -> Winners:
        """Choose a winner per row from its remaining set."""
        chosen = self._winners.look_up(sets, self._choose_winner)
        if self.ties.mode == "dead-letter":
            return Winners(chosen, sets, np.zeros(0, np.int64))
        tied = chosen >= _TIE
        return Winners(np.where(tied, chosen - _TIE, chosen), sets, np.flatnonzero(tied))

    def contexts(self, columns: BatchColumns, winners: IntArray, events: IntArray) -> pa.MapArray:
        """Return the context attributes of every row, an empty map for rows without winner."""
        # A row without a winner gets the last list, which is empty.
        lists = self._lists[np.where(winners >= 0, 2 * winners + events, -1)]
        rows, slots = self._slots.expand(lists)
        values = self._table.values(columns, rows, slots) if len(slots) else pa.array([], pa.string())
        offsets = np.zeros(columns.rows + 1, np.int32)
        np.cumsum(self._slots.counts[lists], out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), self._names.take(pa.array(slots)), values)

    def drop_unequal(self, columns: BatchColumns, sets: IntArray) -> IntArray:
        """Return the sets without targets whose repeated placeholders differ; most rows' sets stay as they are."""
        packed = self._checks.look_up(sets, self._pairs_to_compare)
        rows = np.flatnonzero(packed != 0)
        if not len(rows):
            return sets
        packed = packed[rows]
        owners, places = expand_ranges(packed >> _COUNT_BITS, packed & _COUNT_MASK)
        targets, ones, others = self._pair_array()
        same = self._table.are_equal(columns, rows[owners], ones[places], others[places])
        if same.all():
            return sets
        sets = sets.copy()
        for at in np.flatnonzero(~same).tolist():
            row, target = int(rows[owners[at]]), int(targets[places[at]])
            current = self._index.sets[int(sets[row])]
            sets[row] = self._index.set_number(current.bits & ~(1 << target), event=current.event)
        return sets

    def drop_unequal_of_record(self, texts: Mapping[str, Sequence[str | None]], number: int) -> int:
        """Return what :meth:`drop_unequal` does, for the set of one record with these texts by property."""
        matched = self._index.sets[number]
        bits, slots = matched.bits, self._table.slots
        for target in matched.targets if self._equal else ():
            for pair in self._equal.get((target, matched.event), ()):
                one, other = (slot_value(slots[each], texts.get(slots[each].key, ())) for each in pair)
                if one is None or one != other:
                    bits &= ~(1 << target)
        return number if bits == matched.bits else self._index.set_number(bits, event=matched.event)

    def choose_winner(self, number: int) -> int:
        """Return the winner of a set, negative if it has none without breaking a tie."""
        winner = self._choose_winner(number, 0)
        return winner if winner < _TIE else AMBIGUOUS

    def _pair_array(self) -> IntArray:
        if len(self._pairs) != self._flat.shape[1]:
            self._flat = np.array(self._pairs, np.int64).reshape(-1, 3).T.copy()
        return self._flat

    def _pairs_to_compare(self, number: int, _: int) -> int:
        """Return the position and number of the pairs to compare for a set, in one number; 0 if there are none."""
        matched = self._index.sets[number]
        start = len(self._pairs)
        for target in matched.targets:
            self._pairs.extend((target, *pair) for pair in self._equal.get((target, matched.event), ()))
        count = len(self._pairs) - start
        return start << _COUNT_BITS | count if count else 0

    def _choose_winner(self, number: int, _: int) -> int:
        matched = self._index.sets[number]
        best = self.most_specific(matched)
        if not best:
            return NO_MATCH
        if len(best) == 1:
            return best[0]
        winner = self.break_tie(matched, best)
        return AMBIGUOUS if winner is None else winner + _TIE

    def break_tie(self, matched: MatchSet, best: Sequence[int]) -> int | None:
        """Return the target that wins although several are most specific; None if there is none."""
        return self.ties.decide(self._index.targets, best, matched.bits, event=matched.event)

    def most_specific(self, matched: MatchSet) -> list[int]:
        """Return the most specific targets of a set, in order."""
        targets = self._index.targets
        ranks = {
            number: targets[number].event_rank if matched.event else targets[number].native_rank
            for number in bit_numbers(matched.bits)
        }
        if not ranks:
            return []
        top = max(ranks.values())
        best = [number for number, rank in ranks.items() if rank == top]
        bases = {xid for number in best for xid in targets[number].definition.base}
        best = [number for number in best if targets[number].xid not in bases] or best
        # Endpoints that share a channel may have the same definition; it is one candidate, the first one's.
        return list({targets[number].xid: number for number in reversed(best)}.values())[::-1]
