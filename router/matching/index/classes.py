"""Classes: the values of one property, told apart only as far as some constraint tells them apart.

Two values that satisfy the same constraints are of one class, so a definition's verdict depends on classes only.
Class 0 is the absent value. A column is classified by array operations: literals through one hash index, templates
of whole segments through one automaton, and what is left (typed literals, mixed templates, validity) once per
distinct value. A class number never changes its meaning while the plan lives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.definitions.constraints import Constraint
from catalog.values import is_timestamp
from router.matching.index.columns import Bool, Int, SplitColumn
from router.matching.index.segments import SegmentAutomaton, TooManyStates, segments_of, separator_of
from router.matching.index.tables import KeyTable, NumberTable

ABSENT: Final = 0
_DENSE: Final = 1 << 18
"""Up to so many codes of a column are looked up in an array, not in a hash table."""
MEMO_LIMIT: Final = 200_000
_TIMESTAMP: Final = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])"
    r"[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$"
)
"""Timestamps that are valid beyond doubt; the rest (days 29 to 31, leap seconds) is asked one by one."""


class PropertyClasses:
    """The classes of one property, and a map from columns to them."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        """Number the constraints: bit *i* of a class is set when its values satisfy ``constraints[i]``."""
        self.constraints = tuple(constraints)
        self._literals: dict[str, int] = {}
        self._nonempty = self._text = self._timestamp = 0
        self._slow: list[tuple[int, Constraint]] = []
        patterns: dict[str, list[tuple[int, list[str | None]]]] = {}
        for number, constraint in enumerate(self.constraints):
            self._sort(number, constraint, patterns)
        self._automata = [
            automaton for separator, mine in patterns.items() if (automaton := self._build(mine, separator))
        ]
        self._literal_set = pa.array(list(self._literals), pa.string())
        self._literal_bits = [0, *self._literals.values()]
        absent = sum(1 << i for i, c in enumerate(self.constraints) if c.satisfied(None, present=False))
        self.bits: list[int] = [absent]
        self._by_bits: dict[int, int] = {}
        codes = 4 * len(self._literal_bits) * math.prod(len(each.code_bits) for each in self._automata)
        self._dense = NumberTable(self._class_of) if codes < _DENSE and not self._slow else None
        self._classes = KeyTable(MEMO_LIMIT)
        self._memo: dict[str, int] = {}
        self._slow_bits: list[int] = [0]
        self._slow_codes: dict[int, int] = {0: 0}

    def _sort(
        self, number: int, constraint: Constraint, patterns: dict[str, list[tuple[int, list[str | None]]]]
    ) -> None:
        bit = 1 << number
        if constraint.kind == "literal" and constraint.is_exact:
            self._literals[constraint.value or ""] = self._literals.get(constraint.value or "", 0) | bit
        elif constraint.kind == "template" and constraint.type != "timestamp" and constraint.template.is_bare:
            self._nonempty |= bit
        elif constraint.kind == "template" and constraint.type != "timestamp":
            segments = segments_of(constraint.template)
            if segments is None:
                self._slow.append((bit, constraint))
            else:
                patterns.setdefault(separator_of(constraint.template), []).append((number, segments))
        elif constraint.kind in ("present", "optional") and constraint.takes_any_text:
            self._text |= bit
        elif constraint.kind in ("present", "optional") and constraint.type == "timestamp":
            self._timestamp |= bit
        else:
            self._slow.append((bit, constraint))

    def _build(self, patterns: list[tuple[int, list[str | None]]], separator: str) -> SegmentAutomaton | None:
        try:
            return SegmentAutomaton(patterns, separator)
        except TooManyStates:
            self._slow.extend((1 << number, self.constraints[number]) for number, _ in patterns)
            return None

    def classify(self, column: SplitColumn) -> Int:
        """Return the class of every row; a null is absent."""
        values = column.values
        codes = self._literal_codes(values)
        for automaton in self._automata:
            codes *= len(automaton.code_bits)
            codes += automaton.accepts(column)
        codes *= 4
        if self._nonempty:
            codes += column.lengths > 0
        if self._timestamp:
            codes += 2 * _timestamps(values)
        if self._slow:
            # Last, in a fixed wide field: the codes of this stage grow while the plan lives.
            codes = codes * (1 << 24) + self._slow_column(values)
        codes += 1
        if column.valid is not None:
            codes *= column.valid
        if self._dense is not None:
            return self._dense.of(codes)
        return self._classes.look_up(codes, lambda code, _: self._class_of(code))

    def class_of(self, values: Sequence[str | None]) -> int:
        """Return the class of a property that occurs with these values: each constraint held by any of them.

        A None among the values stands for one that is present and no text.
        """
        if not values:
            return ABSENT
        bits = 0
        for number, constraint in enumerate(self.constraints):
            if any(constraint.satisfied(text, present=True) for text in values):
                bits |= 1 << number
        return self._number(bits)

    def _literal_codes(self, values: pa.StringArray) -> Int:
        if not self._literals:
            return np.zeros(len(values), np.int64)
        places = pc.fill_null(pc.index_in(values, value_set=self._literal_set), -1)
        codes: Int = np.add(places.to_numpy(zero_copy_only=False), 1, dtype=np.int64)
        return codes

    def _slow_column(self, values: pa.StringArray) -> Int:
        distinct = pc.dictionary_encode(values)
        codes = np.array([self._slow_code(text) for text in distinct.dictionary.to_pylist()], np.int64)
        indices = pc.fill_null(distinct.indices, 0).to_numpy(zero_copy_only=False)
        return codes[indices] if len(codes) else np.zeros(len(values), np.int64)

    def _slow_code(self, text: str) -> int:
        code = self._memo.get(text)
        if code is None:
            bits = 0
            for bit, constraint in self._slow:
                if constraint.satisfied(text, present=True):
                    bits |= bit
            code = self._slow_codes.get(bits)
            if code is None:
                code = self._slow_codes[bits] = len(self._slow_bits)
                self._slow_bits.append(bits)
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[text] = code
        return code

    def _class_of(self, code: int) -> int:
        if code == 0:
            return ABSENT
        rest = code - 1
        bits = self._text
        if self._slow:
            rest, slow = divmod(rest, 1 << 24)
            bits |= self._slow_bits[slow]
        rest, flags = divmod(rest, 4)
        bits |= (self._nonempty if flags & 1 else 0) | (self._timestamp if flags & 2 else 0)
        for automaton in reversed(self._automata):
            rest, segment = divmod(rest, len(automaton.code_bits))
            bits |= automaton.code_bits[segment]
        bits |= self._literal_bits[rest]
        return self._number(bits)

    def _number(self, bits: int) -> int:
        known = self._by_bits.get(bits)
        if known is None:
            known = self._by_bits[bits] = len(self.bits)
            self.bits.append(bits)
        return known


def _timestamps(values: pa.StringArray) -> Bool:
    """Tell which values are timestamps."""
    sure: Bool = pc.fill_null(pc.match_substring_regex(values, _TIMESTAMP), False).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(~sure & pc.is_valid(values).to_numpy(zero_copy_only=False)):
        sure[row] = is_timestamp(values[row].as_py())
    return sure
