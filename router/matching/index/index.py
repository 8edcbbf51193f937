"""The compiled index of all candidates, which finds the matching candidates of each row of a batch.

Sets of candidates are Python integers used as bit sets, one bit per target. Each class of each property accepts a set,
and a row matches the intersection over its properties. Rows with the same classes share the result, so a batch costs a
few array operations and one lookup per distinct combination, at 10,000 definitions hardly more than at ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from catalog.definitions.constraints import Constraint, MatchCandidate
from router.matching.index.classes import ABSENT, BatchColumns, IntArray, KeyTable, PropertyClasses

COMBINATIONS_LIMIT: Final = 500_000
"""Maximum number of cached combinations per plan; beyond it, the cache is cleared."""
_CODE_BITS: Final = 62
_NUMBER_BITS: Final = 31


@dataclass(frozen=True, slots=True)
class MatchSet:
    """The matching targets of one combination of classes, before a winner is chosen."""

    bits: int
    event: bool
    targets: tuple[int, ...]


class _AcceptedTargets:
    """For one property and one kind of record, the set of targets that each class does not exclude."""

    def __init__(self, everyone: int, constrained: Mapping[int, list[int]]) -> None:
        """*constrained* maps targets to the numbers of their constraints on this property."""
        self._free = everyone
        self._single: dict[int, int] = {}
        self._several: list[tuple[int, int]] = []
        for target, numbers in constrained.items():
            self._free &= ~(1 << target)
            if len(numbers) == 1:
                self._single[numbers[0]] = self._single.get(numbers[0], 0) | 1 << target
            else:
                self._several.append((1 << target, sum(1 << number for number in set(numbers))))
        self._by_class: dict[int, int] = {}

    def accepted_by(self, number: int, satisfied: int) -> int:
        """Return the set of targets for class *number*, whose values satisfy the constraints in *satisfied*."""
        known = self._by_class.get(number)
        if known is None:
            known = self._free
            rest = satisfied
            while rest:
                low = rest & -rest
                known |= self._single.get(low.bit_length() - 1, 0)
                rest ^= low
            for bit, needed in self._several:
                if satisfied & needed == needed:
                    known |= bit
            self._by_class[number] = known
        return known


class MatchIndex:
    """All targets of a plan, indexed by property.

    ``channels`` maps a channel's number to its candidates (target numbers); ``protocols`` are the canonical
    names, in the numbering of batches. The index caches results, but the result of a batch depends only on the batch.
    """

    def __init__(
        self, targets: Sequence[MatchCandidate], channels: Sequence[Sequence[int]], protocols: Sequence[str]
    ) -> None:
        self.targets = tuple(targets)
        self._channels = [sum(1 << target for target in set(numbers)) for numbers in channels]
        self._everyone = (1 << len(self.targets)) - 1
        self.classes: dict[str, PropertyClasses] = {}
        self._accept: dict[tuple[bool, str], _AcceptedTargets] = {}
        self._applies = {
            (number, event): self._applicable_targets(name, event=event)
            for number, name in enumerate(protocols)
            for event in (False, True)
        }
        self._compile_properties()
        self.keys = tuple(self.classes)
        self.sets: list[MatchSet] = []
        self._set_numbers: dict[tuple[int, bool], int] = {}
        self._singles: dict[tuple[int, ...], int] = {}
        self._protocols = tuple(protocols)
        self._bits = [0] * (3 + len(self.keys))
        self._clear_tables()

    def _applicable_targets(self, protocol: str, *, event: bool) -> int:
        return sum(
            1 << number
            for number, target in enumerate(self.targets)
            if target.protocol in (None, protocol) and target.constraints(event=event) is not None
        )

    def _compile_properties(self) -> None:
        constrained: dict[tuple[bool, str], dict[int, list[int]]] = {}
        numbers: dict[str, dict[Constraint, int]] = {}
        for number, target in enumerate(self.targets):
            for event in (False, True):
                for key, constraint in target.constraints(event=event) or ():
                    mine = numbers.setdefault(key, {})
                    place = mine.setdefault(constraint, len(mine))
                    constrained.setdefault((event, key), {}).setdefault(number, []).append(place)
        everyone = self._everyone
        self.classes = {key: PropertyClasses(list(constraints)) for key, constraints in numbers.items()}
        self._accept = {place: _AcceptedTargets(everyone, mine) for place, mine in constrained.items()}

    def match(self, classes: Sequence[IntArray], channels: IntArray, protocols: IntArray, events: IntArray) -> IntArray:
        """Return per row the number of its :class:`MatchSet` in :attr:`sets`.

        ``classes`` are those of :meth:`classify`. ``channels`` and ``protocols`` hold numbers (-1: unknown),
        ``events`` 1 for a CloudEvent and 0 for a native record, whose envelope constraints are not looked at.
        """
        matrix = [channels, protocols, events, *classes]

        def match_combination(_: int, row: int) -> int:
            return self._intersect_classes([int(line[row]) for line in matrix])

        return self._known.look_up(self._combination_codes(matrix), match_combination)

    def match_record(
        self, texts: Mapping[str, Sequence[str | None]], channel: int, protocol: int, *, event: bool
    ) -> int:
        """Return what :meth:`match` does, for one record with these texts by property."""
        fact = [channel, protocol, int(event)]
        fact += [each.class_of(texts[key]) if key in texts else ABSENT for key, each in self.classes.items()]
        combination = tuple(fact)
        known = self._singles.get(combination)
        if known is None:
            if len(self._singles) >= COMBINATIONS_LIMIT:
                self._singles.clear()
            known = self._singles[combination] = self._intersect_classes(fact)
        return known

    def _combination_codes(self, matrix: Sequence[IntArray]) -> IntArray:
        """Return one number per row that identifies its combination of classes, the same in every batch.

        Class numbers are packed into one integer; if they do not fit, the packed part is replaced by a number.
        """
        self._widen_fields()
        codes = np.zeros(len(matrix[0]), np.int64)
        used = 0
        for line, bits, numbers in zip(matrix, self._bits, self._numbers, strict=True):
            if used + bits > _CODE_BITS:
                codes, used = numbers.look_up(codes, self._next_number), _NUMBER_BITS
            # In place, because these passes are over all rows and properties. Plus one, since -1 is a valid number.
            codes <<= bits
            codes += line
            codes += 1
            used += bits
        return codes

    def _widen_fields(self) -> None:
        """Widen the bit fields if new classes do not fit any more; this clears all tables."""
        sizes = [len(self._channels), len(self._protocols), 2, *(len(self.classes[key].bits) for key in self.keys)]
        if any(size + 1 >= 1 << bits for size, bits in zip(sizes, self._bits, strict=True)) or (
            self._next >= 1 << (_NUMBER_BITS - 1)
        ):
            self._bits = [(size + 1).bit_length() + 2 for size in sizes]
            self._clear_tables()

    def _clear_tables(self) -> None:
        self._next = 0
        self._numbers = [KeyTable(COMBINATIONS_LIMIT) for _ in self._bits]
        self._known = KeyTable(COMBINATIONS_LIMIT)

    def _next_number(self, _: int, __: int) -> int:
        self._next += 1
        return self._next

    def classify(self, columns: BatchColumns) -> list[IntArray]:
        """Return the class of every row, for each property of :attr:`keys`."""
        absent = np.zeros(columns.rows, np.int64)
        by_key = {key: absent for key in self.keys}
        for key in self.keys:
            column = columns.by_key.get(key)
            if column is not None:
                by_key[key] = self.classes[key].classify(column)
        for (row, key), texts in columns.repeats.items():
            if key in by_key:
                if by_key[key] is absent:
                    by_key[key] = absent.copy()
                by_key[key][row] = self.classes[key].class_of(texts)
        return list(by_key.values())

    def _intersect_classes(self, fact: list[int]) -> int:
        channel, protocol, event, *classes = fact
        bits = self.candidates(channel, protocol, event=bool(event))
        for key, number in zip(self.keys, classes, strict=True):
            if not bits:
                break
            acceptance = self._accept.get((bool(event), key))
            if acceptance is not None:
                bits &= acceptance.accepted_by(number, self.classes[key].bits[number])
        return self.set_number(bits, event=bool(event))

    def candidates(self, channel: int, protocol: int, *, event: bool) -> int:
        """Return the set of targets that are candidates on that channel and apply to that kind of record."""
        if channel < 0 or protocol < 0:
            return 0
        return self._channels[channel] & self._applies[(protocol, event)]

    def channel_size(self, channel: int) -> int:
        """Return the number of candidates of a channel, whatever their protocol; 0 for an unknown one."""
        return self._channels[channel].bit_count() if channel >= 0 else 0

    def set_number(self, bits: int, *, event: bool) -> int:
        """Return the number of the match set with these targets."""
        known = self._set_numbers.get((bits, event))
        if known is None:
            known = self._set_numbers[(bits, event)] = len(self.sets)
            self.sets.append(MatchSet(bits, event, tuple(bit_numbers(bits))))
        return known


def bit_numbers(bits: int) -> list[int]:
    """Return the numbers of the bits that are set, ascending."""
    numbers: list[int] = []
    while bits:
        low = bits & -bits
        numbers.append(low.bit_length() - 1)
        bits ^= low
    return numbers
