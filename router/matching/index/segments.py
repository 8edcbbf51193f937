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
from router.matching.index.columns import Int, Segments, SplitColumn
from router.matching.index.tables import KeyTable

MAX_STATES: Final = 50_000
_DEAD: Final = 0
_EMPTY: Final = 0
_OTHER: Final = 1
_WORDS: Final = 2
"""Symbols: an empty segment that no template spells, a segment that no template spells there, then the words."""


def separator_of(template: Template) -> str:
    """Return the character that parts the segments of a template: a dot where dots end placeholders, else a slash."""
    return "." if template.dots else "/"


def segments_of(template: Template) -> list[str | None] | None:
    """Return the segments of a template, None for a placeholder.

    None when a placeholder is only part of one, or when both slashes and dots part them.
    """
    separator = separator_of(template)
    if template.dots and "/" in template.text:
        return None
    parted: list[list[str | Placeholder]] = [[]]
    for part in template.parts:
        if isinstance(part, Placeholder):
            parted[-1].append(part)
            continue
        head, *rest = part.split(separator)
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

    def __init__(self, patterns: Sequence[tuple[int, Sequence[str | None]]], separator: str = "/") -> None:
        """Build from (bit, segments) pairs; equal segments may occur under several bits.

        Raises:
            TooManyStates: the table would pass ``MAX_STATES`` states.
        """
        self._separator = separator
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
        self._by_count = self._counted() if not words else None
        del self._trie

    def accepts(self, column: SplitColumn) -> Int:
        """Return a code per row, to be looked up in :attr:`code_bits`."""
        codes = self._walk(column.segments(self._separator))
        if self._separator != "/" and column.has("/"):
            # Where dots part segments slashes do as well, and no template of the automaton has one.
            codes[pc.fill_null(pc.match_substring(column.values, "/"), False).to_numpy(zero_copy_only=False)] = 0
        return codes

    def _walk(self, segments: Segments) -> Int:
        counts = np.minimum(segments.counts, len(self._fits) - 1)
        if self._by_count is not None and not segments.has_empty:
            return self._by_count[counts]
        states = np.zeros(len(counts), np.int64)
        rows = np.flatnonzero(self._fits[counts])
        current = np.ones(len(rows), np.int64)
        left, entries = counts[rows], segments.starts[rows]
        depth = 0
        while len(rows):
            current = self._step(current, depth, segments, entries)
            depth += 1
            going = (left > depth) & (current != _DEAD)
            if not going.all():
                states[rows] = np.where(going, _DEAD, current)
                rows, current, left, entries = rows[going], current[going], left[going], entries[going]
            entries = entries + 2
        return self._codes[states]

    def _counted(self) -> Int:
        """Return the code per number of segments, which is all that counts for templates without words."""
        state, codes = 1, [0]
        for _ in self._fits[1:]:
            state = int(self._other[state])
            codes.append(int(self._codes[state]))
        return np.array(codes, np.int64)

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
        self.code_bits = list(codes)
        """Per code the bits of the templates that fit; code 0 fits none."""

    def _step(self, states: Int, depth: int, segments: Segments, entries: Int) -> Int:
        """Take the segments of one depth: the states that follow."""
        following: Int = self._other[states]
        vocabulary = self._vocabularies[depth]
        if vocabulary is not None:
            words, numbers = vocabulary
            places = pc.index_in(segments.entries.take(pa.array(entries)), value_set=words)
            symbols = numbers[pc.fill_null(places, -1).to_numpy(zero_copy_only=False) + 1]
            # A segment that no template spells has no entry either, so one probe serves both kinds.
            spelled, known = self._spelled.probe(states * self._width + symbols)
            following = np.where(known, spelled, following)
        if segments.has_empty:
            empty = np.flatnonzero(segments.lengths[entries] == 0)
            spelled, known = self._spelled.probe(states[empty] * self._width + self._empty_word)
            following[empty] = np.where(known, spelled, _DEAD)
        return following
