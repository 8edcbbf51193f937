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
import pyarrow as pa
import pyarrow.compute as pc

from catalog.templates import Placeholder, Template
from router.matching.columns import Int, Segments, SplitColumn
from router.matching.tables import KeyTable

MAX_STATES: Final = 50_000
_DEAD: Final = 0
_EMPTY: Final = 0
_OTHER: Final = 1
_WORDS: Final = 2
"""Symbols: an empty segment that no template spells, a segment that no template spells there, then the words."""


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
        numbers = {word: number + _WORDS for number, word in enumerate(words)}
        self._vocabularies = self._by_depth(numbers)
        self._determinise(numbers)
        self._fits = np.zeros(max(len(segments) for _, segments in patterns) + 2, bool)
        self._fits[[len(segments) for _, segments in patterns]] = True
        del self._trie

    def accepts(self, column: SplitColumn) -> tuple[Int, list[int]]:
        """Return a code per row and, per code, the bits of the templates that fit; code 0 fits none."""
        segments = column.segments
        states = np.zeros(len(segments.counts), np.int64)
        rows = np.flatnonzero(self._fits[np.minimum(segments.counts, len(self._fits) - 1)])
        current = np.ones(len(rows), np.int64)
        left = segments.counts[rows]
        depth = 0
        while len(rows):
            current = self._step(current, depth, segments, segments.starts[rows] + 2 * depth)
            depth += 1
            going = (left > depth) & (current != _DEAD)
            if not going.all():
                ended = ~going
                states[rows[ended]] = current[ended]
                rows, current, left = rows[going], current[going], left[going]
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

    def _by_depth(self, numbers: dict[str, int]) -> list[tuple[pa.StringArray, Int] | None]:
        """Return per depth the words that templates spell there, and their symbols; None where they spell none."""
        vocabularies: list[tuple[pa.StringArray, Int] | None] = []
        level = [0]
        while level:
            words = sorted({word for node in level for word in self._trie[node] if word})
            symbols = np.array([_OTHER, *(numbers[word] for word in words)], np.int64)
            vocabularies.append((pa.array(words, pa.string()), symbols) if words else None)
            level = [following for node in level for following in self._trie[node].values()]
        return vocabularies

    def _determinise(self, numbers: dict[str, int]) -> None:
        """Subset construction over the symbols."""
        states: dict[frozenset[int], int] = {frozenset(): _DEAD, frozenset((0,)): 1}
        queue = [frozenset((0,))]
        self._width = len(numbers) + _WORDS
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
        self._spelled = KeyTable(len(keys) + 1)
        self._spelled.put(keys, targets)
        self._other = np.array(other, np.int64)
        self._empty_word = numbers.get("", _EMPTY)
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

    def _step(self, states: Int, depth: int, segments: Segments, entries: Int) -> Int:
        """Take the segments of one depth: the states that follow."""
        empty = segments.lengths[entries] == 0
        following: Int = self._other[states]
        vocabulary = self._vocabularies[depth]
        if vocabulary is not None:
            words, numbers = vocabulary
            places = pc.index_in(segments.entries.take(pa.array(entries)), value_set=words)
            symbols = numbers[pc.fill_null(places, -1).to_numpy(zero_copy_only=False) + 1]
            spelled = np.flatnonzero(symbols != _OTHER)
            self._follow(following, states, spelled, symbols[spelled])
        if empty.any():
            following[empty] = _DEAD
            if self._empty_word != _EMPTY:
                rows = np.flatnonzero(empty)
                self._follow(following, states, rows, np.full(len(rows), self._empty_word))
        return following

    def _follow(self, following: Int, states: Int, rows: Int, symbols: Int) -> None:
        """Put in the states that spelled segments lead to; those of which nothing is spelled keep theirs."""
        found, known = self._spelled.probe(states[rows] * self._width + symbols)
        following[rows[known]] = found[known]
