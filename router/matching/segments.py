"""Templates whose placeholders are whole segments, decided by one table for all of them.

Topics and paths are mostly of the form ``a/{x}/b/{y}``. All such templates of one property become one automaton
over segments: a state is the set of templates still possible, a step looks one segment up. The cost of a value
is the number of its segments, whatever the number of templates (quamina's idea, for columns).

The automaton is determinised when the plan is compiled. Templates that would push it past ``MAX_STATES`` raise
:class:`TooManyStates`; their property then decides them one by one, which is slower and as right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from catalog.templates import Placeholder, Template

MAX_STATES: Final = 50_000
_DEAD: Final = 0
Int = npt.NDArray[np.int64]


class SplitColumn:
    """One string column, and lazily its values split at ``/``; shared by matching and by extraction."""

    def __init__(self, values: pa.StringArray) -> None:
        self.values = values
        self._split: tuple[pa.StringArray, Int] | None = None

    @property
    def split(self) -> tuple[pa.StringArray, Int]:
        """All segments in one array, and per row the offsets into it (one more than rows)."""
        if self._split is None:
            parted = pc.split_pattern(self.values, "/")
            lengths = pc.fill_null(pc.list_value_length(parted), 0).to_numpy(zero_copy_only=False)
            self._split = (parted.flatten(), np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
        return self._split


def segments_of(template: Template) -> list[str | None] | None:
    """Return the segments of a template, None for a placeholder; None when a placeholder is only part of one."""
    parted: list[list[str | Placeholder]] = [[]]
    for part in template.parts:
        if isinstance(part, Placeholder):
            parted[-1].append(part)
            continue
        head, *rest = part.split("/")
        parted[-1].append(head)
        parted.extend([text] for text in rest)
    segments: list[str | None] = []
    for tokens in parted:
        tokens = [token for token in tokens if token != ""]
        if tokens and isinstance(tokens[0], Placeholder):
            if len(tokens) > 1:
                return None
            segments.append(None)
        elif any(isinstance(token, Placeholder) for token in tokens):
            return None
        else:
            segments.append("".join(str(token) for token in tokens))
    return segments


class TooManyStates(Exception):
    """The templates overlap so much that their table would not stay small."""


class SegmentAutomaton:
    """Which of many segment templates does each value of a column fit? See the module for the idea."""

    def __init__(self, patterns: Sequence[tuple[int, Sequence[str | None]]]) -> None:
        """Build from (bit, segments) pairs; equal segments may occur under several bits.

        Raises:
            TooManyStates: the table would pass ``MAX_STATES`` states.
        """
        self._trie: list[dict[str | None, int]] = [{}]
        self._bits: list[int] = [0]
        for bit, segments in patterns:
            self._insert(bit, segments)
        words = sorted({word for edges in self._trie for word in edges if word is not None})
        self._words = pa.array(words, pa.string())
        self._determinise({word: number + 2 for number, word in enumerate(words)})
        del self._trie

    def accepts(self, column: SplitColumn) -> tuple[Int, list[int]]:
        """Return a code per row and, per code, the bits of the templates that fit; code 0 fits none."""
        segments, offsets = column.split
        symbols = self._symbols(segments)
        lengths = np.diff(offsets)
        states = np.ones(len(lengths), np.int64)
        rows = np.flatnonzero(lengths)
        states[lengths == 0] = _DEAD
        depth = 0
        while len(rows):
            states[rows] = self._step(states[rows], symbols[offsets[rows] + depth])
            depth += 1
            rows = rows[(lengths[rows] > depth) & (states[rows] != _DEAD)]
        codes: Int = self._codes[states]
        return codes, self._code_bits

    def _insert(self, bit: int, segments: Sequence[str | None]) -> None:
        node = 0
        for segment in segments:
            following = self._trie[node].get(segment)
            if following is None:
                following = self._trie[node][segment] = len(self._trie)
                self._trie.append({})
                self._bits.append(0)
            node = following
        self._bits[node] |= 1 << bit

    def _determinise(self, numbers: dict[str, int]) -> None:
        """Subset construction. Symbols: 0 an empty segment, 1 a segment no template spells, 2.. the words."""
        states: dict[frozenset[int], int] = {frozenset(): _DEAD, frozenset((0,)): 1}
        queue = [frozenset((0,))]
        self._width = len(numbers) + 2
        keys: list[int] = []
        targets: list[int] = []
        other: list[int] = [_DEAD, _DEAD]
        while queue:
            nodes = queue.pop()
            number = states[nodes]
            wild = frozenset(n for n in (self._trie[node].get(None) for node in nodes) if n is not None)
            other[number] = self._state(wild, states, queue, other)
            for word in {word for node in nodes for word in self._trie[node] if word is not None}:
                literal = {self._trie[node][word] for node in nodes if word in self._trie[node]}
                following = frozenset(literal) if word == "" else frozenset(literal | wild)
                keys.append(number * self._width + numbers[word])
                targets.append(self._state(following, states, queue, other))
        order = np.argsort(np.array(keys, np.int64), kind="stable")
        self._keys = np.array(keys, np.int64)[order]
        self._targets = np.array(targets, np.int64)[order]
        self._other = np.array(other, np.int64)
        self._empty_word = numbers.get("", 0)
        self._accepting(states)

    def _state(
        self, nodes: frozenset[int], states: dict[frozenset[int], int], queue: list[frozenset[int]], other: list[int]
    ) -> int:
        known = states.get(nodes)
        if known is None:
            if len(states) >= MAX_STATES:
                raise TooManyStates(f"more than {MAX_STATES} states")
            known = states[nodes] = len(states)
            other.append(_DEAD)
            queue.append(nodes)
        return known

    def _accepting(self, states: dict[frozenset[int], int]) -> None:
        codes: dict[int, int] = {0: 0}
        self._codes = np.zeros(len(states), np.int64)
        for nodes, number in states.items():
            bits = 0
            for node in nodes:
                bits |= self._bits[node]
            self._codes[number] = codes.setdefault(bits, len(codes))
        self._code_bits = list(codes)

    def _symbols(self, segments: pa.StringArray) -> Int:
        found = pc.fill_null(pc.index_in(segments, value_set=self._words), -1).to_numpy(zero_copy_only=False)
        symbols: Int = found.astype(np.int64) + 2
        empty = pc.equal(pc.binary_length(segments), 0).to_numpy(zero_copy_only=False)
        symbols[empty] = self._empty_word
        return symbols

    def _step(self, states: Int, symbols: Int) -> Int:
        following: Int = np.where(symbols == 0, _DEAD, self._other[states])
        if len(self._keys):
            keys = states * self._width + symbols
            places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            exact = self._keys[places] == keys
            following[exact] = self._targets[places[exact]]
            empty = (symbols == self._empty_word) & ~exact
            following[empty] = _DEAD
        return following
