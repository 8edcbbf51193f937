"""Classify the values of one property by the constraints that they satisfy.

Values that satisfy the same constraints are in the same class, so matching depends only on classes. Class 0 is the
absent value. Columns are classified with array operations: literals with one hash index, templates of whole segments
with one automaton, and the rest (typed literals, mixed templates, validity) once per distinct value. The meaning of a
class number never changes during the lifetime of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import raw_buffers
from catalog.definitions.constraints import Constraint
from catalog.templates import Template
from catalog.values import is_timestamp

# Columns for the matcher: string arrays, split at a separator without copying.

IntArray = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a column's values, without a copy of its bytes.

    ``entries`` holds segments and the separators between them, in turn, so that its offsets cover the data without
    a gap: segment *k* of row *r* is ``entries[starts[r] + 2 * k]``. ``counts`` are segments per row, 0 for a null.
    """

    entries: pa.StringArray
    starts: IntArray
    counts: IntArray
    lengths: Int32
    """The length of every entry in bytes."""
    has_empty: bool
    """Whether a segment may be empty."""


class SplitColumn:
    """A string column with its segments, which are found on first use."""

    def __init__(self, values: pa.StringArray) -> None:
        self.values = values
        self._segments: dict[str, Segments] = {}

    @cached_property
    def valid(self) -> BoolArray | None:
        """Which rows have a value; None when all have."""
        return self.values.is_valid().to_numpy(zero_copy_only=False) if self.values.null_count else None

    @cached_property
    def lengths(self) -> Int32:
        """The length of every value in bytes; undefined for nulls."""
        return np.diff(raw_buffers(self.values)[1])

    @cached_property
    def has_percent(self) -> bool:
        """Whether any value may contain a percent sign, so that decoding may change it."""
        return self.has("%")

    def has(self, character: str) -> bool:
        """Whether any value may contain this ASCII character."""
        data, offsets = raw_buffers(self.values)
        return bool((data[offsets[0] : offsets[-1]] == ord(character)).any())

    def segments(self, separator: str) -> Segments:
        """Return the column's segments between an ASCII separator; cached."""
        known = self._segments.get(separator)
        if known is None:
            known = self._segments[separator] = self._split_segments(separator)
        return known

    def _split_segments(self, separator: str) -> Segments:
        data, offsets = raw_buffers(self.values)
        marks = np.flatnonzero(data[offsets[0] : offsets[-1]] == ord(separator))
        marks += offsets[0]
        filled = self.lengths > 0
        rows = np.flatnonzero(filled)
        begins = offsets[rows]
        marked = _count_marks(marks, begins)
        first, bounds = _entry_bounds(marks, marked, begins, int(offsets[-1]))
        lengths = np.diff(bounds)
        entries = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(bounds), self.values.buffers()[2])
        # An empty value has one segment; all empty values share the last entry.
        blank = int(np.count_nonzero(~filled if self.valid is None else self.valid & ~filled))
        empty = blank > 0 or int(np.count_nonzero(lengths)) < len(lengths) - 1
        if len(rows) == len(filled):
            starts, counts = first, marked + 1
        else:
            starts, counts = np.full(len(filled), len(lengths) - 1, np.int64), np.ones(len(filled), np.int64)
            starts[rows], counts[rows] = first, marked + 1
        if self.valid is not None:
            counts *= self.valid
        return Segments(entries, starts, counts, lengths, empty)


@dataclass(slots=True)
class BatchColumns:
    """The columns of one batch, by property key, and the properties that occur more than once in a row.

    ``repeats`` maps row and key to all values in order (None: no text), for rows where a constrained name repeats.
    """

    rows: int
    by_key: Mapping[str, SplitColumn]
    repeats: Mapping[tuple[int, str], Sequence[str | None]] = field(default_factory=dict)
    matched: dict[tuple[int, str], Mapping[str, str] | None] = field(default_factory=dict)
    """Placeholder values that only a template can find, by constraint and value."""


def _count_marks(marks: IntArray, begins: Int32) -> IntArray:
    """Count the separators in each row, given the begin of each row.

    Usually all rows have the same number, which can be checked without a search.
    """
    rows = len(begins)
    each, rest = divmod(len(marks), rows) if rows else (0, 0)
    if not rest and each:
        # Separators are sorted, so it is enough to check the first and the last of each group.
        firsts, lasts = marks[::each], marks[each - 1 :: each]
        if (firsts >= begins).all() and (lasts[:-1] < begins[1:]).all():
            return np.full(rows, each)
    return np.diff(np.searchsorted(marks, begins), append=len(marks))


def _entry_bounds(marks: IntArray, marked: IntArray, begins: Int32, end: int) -> tuple[IntArray, Int32]:
    """Return the first entry of every row, and the offsets of all entries with an empty one at the end."""
    rows, size = len(begins), len(begins) + 2 * len(marks)
    bounds = np.full(size + 2, end, np.int32)
    if rows and (marked == marked[0]).all():
        grid = bounds[:size].reshape(rows, -1)
        grid[:, 0] = begins
        grid[:, 1::2] = marks.reshape(rows, -1)
        grid[:, 2::2] = grid[:, 1::2] + 1
        return np.arange(rows) * grid.shape[1], bounds
    first = np.arange(rows) + 2 * (np.cumsum(marked) - marked)
    places = 2 * np.arange(len(marks)) + np.repeat(np.arange(1, rows + 1), marked)
    bounds[first] = begins
    bounds[places] = marks
    bounds[places + 1] = marks + 1
    return first, bounds


# A lookup table of integers for whole columns, without Python code per row.
#
# It calls a function once for each new key; the value of a key never changes.

_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1
_EMPTY: Final = np.iinfo(np.int64).min
Fill = Callable[[int, int], int]
"""Returns the value of a key; the second argument is a row of the batch with that key."""


class KeyTable:
    """A hash table of int64 to int64, except the lowest: open addressing, linear probing, load up to a quarter."""

    def __init__(self, limit: int) -> None:
        """*limit* is the maximum number of keys; beyond it, the table is cleared."""
        self._limit = limit
        self._clear(10)

    def look_up(self, keys: IntArray, fill: Fill) -> IntArray:
        """Return the value of every key; *fill* is called for each new key, with its first row."""
        values, known = self.probe(keys)
        if not known.all():
            rows = np.flatnonzero(~known)
            fresh, first, inverse = np.unique(keys[rows], return_index=True, return_inverse=True)
            new = [fill(key, row) for key, row in zip(fresh.tolist(), rows[first].tolist(), strict=True)]
            for key, value in zip(fresh.tolist(), new, strict=True):
                self._insert(key, value)
            values[rows] = np.array(new, np.int64)[inverse]
        return values

    def _clear(self, bits: int) -> None:
        self._shift = 64 - bits
        self._mask = (1 << bits) - 1
        self._keys = np.full(1 << bits, _EMPTY, np.int64)
        self._values = np.zeros(1 << bits, np.int64)
        self._size = 0

    def probe(self, keys: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Return the values of the keys, and which keys are known."""
        # After a shift of at least one, there is no sign bit, so the places can be viewed as signed.
        places = (keys.view(np.uint64) * np.uint64(_MULTIPLIER) >> np.uint64(self._shift)).view(np.int64)
        values, known = self._values[places], np.ones(len(keys), np.bool_)
        searching = np.flatnonzero(self._keys[places] != keys)
        places, keys = places[searching], keys[searching]
        while len(searching):
            going = self._keys[places] != _EMPTY
            if not going.all():
                known[searching[~going]] = False
                searching, places, keys = searching[going], places[going], keys[going]
            places = (places + 1) & self._mask
            hits = self._keys[places] == keys
            values[searching[hits]] = self._values[places[hits]]
            searching, places, keys = searching[~hits], places[~hits], keys[~hits]
        return values, known

    def to_dict(self) -> dict[int, int]:
        """Return the values by key."""
        used = self._keys != _EMPTY
        return dict(zip(self._keys[used].tolist(), self._values[used].tolist(), strict=True))

    def put(self, keys: Iterable[int], values: Iterable[int]) -> None:
        """Insert new keys with their values."""
        for key, value in zip(keys, values, strict=True):
            self._insert(key, value)

    def _insert(self, key: int, value: int) -> None:
        if 4 * (self._size + 1) > len(self._keys):
            self._grow()
        place = (key * _MULTIPLIER & _WORD) >> self._shift
        while self._keys[place] != _EMPTY:
            place = (place + 1) & self._mask
        self._keys[place], self._values[place] = key, value
        self._size += 1

    def _grow(self) -> None:
        if self._size >= self._limit:
            self._clear(10)
            return
        used = self._keys != _EMPTY
        keys, values = self._keys[used], self._values[used]
        self._clear(len(self._keys).bit_length())
        self.put(keys.tolist(), values.tolist())


# Lists of different lengths as flat arrays, without Python code per row.


class Ragged:
    """A list of numbers per item, as flat arrays: item *i* has ``values[starts[i]:starts[i] + counts[i]]``."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.counts = np.array([len(entry) for entry in lists], np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))[:-1] if len(lists) else np.zeros(0, np.int64)
        self.values = np.array([number for entry in lists for number in entry], np.int64)

    def expand(self, items: IntArray) -> tuple[IntArray, IntArray]:
        """Return all values of these items in order, each with the position of its item in *items*."""
        owners, places = expand_ranges(self.starts[items], self.counts[items])
        return owners, self.values[places] if len(owners) else owners


def expand_ranges(starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return *i* and the number for all numbers ``starts[i]``, ``starts[i] + 1``, … of every range *i*, in order.

    Ranges of equal length, as for rows of similar definitions, are twice as fast.
    """
    owners = np.repeat(np.arange(len(counts)), counts)
    if len(counts) and (counts == counts[0]).all():
        return owners, (starts[:, None] + np.arange(int(counts[0]))).ravel()
    return owners, np.arange(len(owners)) + (starts - (np.cumsum(counts) - counts))[owners]


# Matching templates whose placeholders are whole segments with one automaton.
#
# Topics and paths mostly have the form ``a/{x}/b/{y}``. All such templates of one property are compiled to one
# automaton over segments: a state is the set of templates that still match, and each step looks up one segment. The
# cost of a value is the number of its segments, whatever the number of templates (as in quamina, but for columns).
#
# The automaton is made deterministic when the plan is compiled. Above ``MAX_STATES`` it raises :class:`TooManyStates`,
# and the templates are evaluated one by one, which is slower but gives the same result.

MAX_STATES: Final = 50_000
_DEAD: Final = 0
_CLASSES_EMPTY: Final = 0
_OTHER: Final = 1
_WORDS: Final = 2
"""Symbols: 0 for an empty segment in no template, 1 for any other segment in no template, then the words."""


def separator_of(template: Template) -> str:
    """Return the separator of a template's segments: a dot if dots end placeholders, else a slash."""
    return "." if template.dots else "/"


def template_segments(template: Template) -> list[str | None] | None:
    """Return the segments of a template, None for a placeholder.

    Return None if a placeholder is only part of a segment, or if the template has both slashes and dots as separators.
    """
    parted = any(each.names and not each.is_gap for each in template.segments)
    if parted or (template.dots and "/" in template.separators):
        return None
    return [None if each.names else each.literals[0] for each in template.segments]


class TooManyStates(Exception):
    """The templates overlap so much that the automaton would exceed ``MAX_STATES``."""


class SegmentAutomaton:
    """Finds the segment templates that match each value of a column."""

    def __init__(self, patterns: Sequence[tuple[int, Sequence[str | None]]], separator: str = "/") -> None:
        """Build from (bit, segments) pairs; equal segments may occur under several bits.

        Raises:
            TooManyStates: it would have more than ``MAX_STATES`` states.
        """
        self._separator = separator
        self._trie: list[dict[str | None, int]] = [{}]
        self._bits: list[int] = [0]
        for bit, segments in patterns:
            self._insert(bit, segments)
        words = sorted({word for edges in self._trie for word in edges if word is not None})
        numbers = {word: number + _WORDS for number, word in enumerate(words)}
        self._vocabularies = self._words_by_depth(numbers)
        self._determinise(numbers)
        self._fits = np.zeros(max(len(segments) for _, segments in patterns) + 2, bool)
        self._fits[[len(segments) for _, segments in patterns]] = True
        self._by_count = self._codes_by_count() if not words else None
        del self._trie

    def find_codes(self, column: SplitColumn) -> IntArray:
        """Return a code per row, which is an index of :attr:`code_bits`."""
        codes = self._run(column.segments(self._separator))
        if self._separator != "/" and column.has("/"):
            # Slashes separate segments as well, and no template of this automaton contains one.
            codes[pc.fill_null(pc.match_substring(column.values, "/"), False).to_numpy(zero_copy_only=False)] = 0
        return codes

    def bits_of(self, text: str) -> int:
        """Return the bits of the templates that match one value, as :meth:`find_codes` does for columns."""
        if self._separator != "/" and "/" in text:
            return 0
        symbols, spelled, other, bits = self._tables
        state = 1
        for segment in text.split(self._separator):
            symbol = symbols.get(segment, _OTHER if segment else self._empty_word)
            state = spelled.get(state * self._width + symbol, other[state] if segment else _DEAD)
        return bits[state]

    @cached_property
    def _tables(self) -> tuple[dict[str, int], dict[int, int], list[int], list[int]]:
        """Symbols by word, next states by state and symbol, next states for other words, and bits by state."""
        known = [each for each in self._vocabularies if each is not None]
        symbols = {
            word: symbol
            for words, numbers in known
            for word, symbol in zip(words.to_pylist(), numbers[1:].tolist(), strict=True)
        }
        bits = [self.code_bits[code] for code in self._codes.tolist()]
        return symbols, self._spelled.to_dict(), self._other.tolist(), bits

    def _run(self, segments: Segments) -> IntArray:
        counts = np.minimum(segments.counts, len(self._fits) - 1)
        if self._by_count is not None and not segments.has_empty:
            return self._by_count[counts]
        states = np.zeros(len(counts), np.int64)
        rows = np.flatnonzero(self._fits[counts])
        current = np.ones(len(rows), np.int64)
        left, entries = counts[rows], segments.starts[rows]
        depth = 0
        while len(rows):
            current = self._advance(current, depth, segments, entries)
            depth += 1
            going = (left > depth) & (current != _DEAD)
            if not going.all():
                states[rows] = np.where(going, _DEAD, current)
                rows, current, left, entries = rows[going], current[going], left[going], entries[going]
            entries = entries + 2
        return self._codes[states]

    def _codes_by_count(self) -> IntArray:
        """Return the code per number of segments, for templates that consist only of placeholders."""
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

    def _words_by_depth(self, numbers: dict[str, int]) -> list[tuple[pa.StringArray, IntArray] | None]:
        """Return per depth the words in templates and their symbols; None if there are none at that depth."""
        vocabularies: list[tuple[pa.StringArray, IntArray] | None] = []
        level = [0]
        while level:
            words = sorted({word for node in level for word in self._trie[node] if word})
            symbols = np.array([_OTHER, *(numbers[word] for word in words)], np.int64)
            vocabularies.append((pa.array(words, pa.string()), symbols) if words else None)
            level = [following for node in level for following in self._trie[node].values()]
        return vocabularies

    def _determinise(self, numbers: dict[str, int]) -> None:
        """Make the automaton deterministic by subset construction over the symbols."""
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
            other[number] = self._state_number(wild, states, queue, other)
            for word in {word for node in nodes for word in self._trie[node] if word is not None}:
                literal = {self._trie[node][word] for node in nodes if word in self._trie[node]}
                following = frozenset(literal) if word == "" else frozenset(literal | wild)
                keys.append(number * self._width + numbers[word])
                targets.append(self._state_number(following, states, queue, other))
        self._spelled = KeyTable(len(keys) + 1)
        self._spelled.put(keys, targets)
        self._other = np.array(other, np.int64)
        self._empty_word = numbers.get("", _CLASSES_EMPTY)
        self._assign_codes(states)

    def _state_number(
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

    def _assign_codes(self, states: dict[frozenset[int], int]) -> None:
        codes: dict[int, int] = {0: 0}
        self._codes = np.zeros(len(states), np.int64)
        for nodes, number in states.items():
            bits = 0
            for node in nodes:
                bits |= self._bits[node]
            self._codes[number] = codes.setdefault(bits, len(codes))
        self.code_bits = list(codes)
        """Per code, the bits of the matching templates; none for code 0."""

    def _advance(self, states: IntArray, depth: int, segments: Segments, entries: IntArray) -> IntArray:
        """Return the next states after the segments at one depth."""
        following: IntArray = self._other[states]
        vocabulary = self._vocabularies[depth]
        if vocabulary is not None:
            words, numbers = vocabulary
            places = pc.index_in(segments.entries.take(pa.array(entries)), value_set=words)
            symbols = numbers[pc.fill_null(places, -1).to_numpy(zero_copy_only=False) + 1]
            # Segments in no template have no entry, so one probe is enough.
            spelled, known = self._spelled.probe(states * self._width + symbols)
            following = np.where(known, spelled, following)
        if segments.has_empty:
            empty = np.flatnonzero(segments.lengths[entries] == 0)
            spelled, known = self._spelled.probe(states[empty] * self._width + self._empty_word)
            following[empty] = np.where(known, spelled, _DEAD)
        return following


ABSENT: Final = 0
MEMO_LIMIT: Final = 200_000
_TIMESTAMP: Final = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])"
    r"[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$"
)
"""Matches only valid timestamps; others (days 29 to 31, leap seconds) are checked one by one."""


class PropertyClasses:
    """The classes of one property; classifies columns."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        """Number the constraints: bit *i* of a class is set when its values satisfy ``constraints[i]``."""
        self.constraints = tuple(constraints)
        self._literals: dict[str, int] = {}
        self._nonempty = self._text = self._timestamp = 0
        self._slow: list[tuple[int, Constraint]] = []
        patterns: dict[str, list[tuple[int, list[str | None]]]] = {}
        for number, constraint in enumerate(self.constraints):
            self._sort_constraint(number, constraint, patterns)
        self._automata = [
            automaton for separator, mine in patterns.items() if (automaton := self._build_automaton(mine, separator))
        ]
        self._literal_set = pa.array(list(self._literals), pa.string())
        self._literal_bits = [0, *self._literals.values()]
        absent = sum(1 << i for i, c in enumerate(self.constraints) if c.satisfied(None, present=False))
        self.bits: list[int] = [absent]
        self._by_bits: dict[int, int] = {}
        self._classes = KeyTable(MEMO_LIMIT)
        self._memo: dict[str, int] = {}
        self._slow_bits: list[int] = [0]
        self._slow_codes: dict[int, int] = {0: 0}

    def _sort_constraint(
        self, number: int, constraint: Constraint, patterns: dict[str, list[tuple[int, list[str | None]]]]
    ) -> None:
        bit = 1 << number
        if constraint.kind == "literal" and constraint.is_exact:
            self._literals[constraint.value or ""] = self._literals.get(constraint.value or "", 0) | bit
        elif constraint.kind == "template" and constraint.type != "timestamp" and constraint.template.is_bare:
            self._nonempty |= bit
        elif constraint.kind == "template" and constraint.type != "timestamp":
            segments = template_segments(constraint.template)
            if segments is None:
                self._slow.append((bit, constraint))
            else:
                patterns.setdefault(separator_of(constraint.template), []).append((number, segments))
        elif constraint.kind in ("present", "optional") and constraint.accepts_any_text:
            self._text |= bit
        elif constraint.kind in ("present", "optional") and constraint.type == "timestamp":
            self._timestamp |= bit
        else:
            self._slow.append((bit, constraint))

    def _build_automaton(self, patterns: list[tuple[int, list[str | None]]], separator: str) -> SegmentAutomaton | None:
        try:
            return SegmentAutomaton(patterns, separator)
        except TooManyStates:
            self._slow.extend((1 << number, self.constraints[number]) for number, _ in patterns)
            return None

    def classify(self, column: SplitColumn) -> IntArray:
        """Return the class of every row; null counts as absent."""
        values = column.values
        codes = self._literal_codes(values)
        for automaton in self._automata:
            codes *= len(automaton.code_bits)
            codes += automaton.find_codes(column)
        codes *= 4
        if self._nonempty:
            codes += column.lengths > 0
        if self._timestamp:
            codes += 2 * _are_timestamps(values)
        if self._slow:
            # Last, in a wide field, because the number of these codes grows.
            codes = codes * (1 << 24) + self._classify_slowly(values)
        codes += 1
        if column.valid is not None:
            codes *= column.valid
        return self._classes.look_up(codes, lambda code, _: self._class_of_code(code))

    def class_of(self, values: Sequence[str | None]) -> int:
        """Return the class of a property of one record; of several values, any may satisfy a constraint.

        None is a value that is present but not a text.
        """
        if not values:
            return ABSENT
        bits = 0
        for text in values:
            bits |= self._bits_without_text if text is None else self._bits_of(text)
        return self._class_number(bits)

    @cached_property
    def _bits_without_text(self) -> int:
        return sum(1 << i for i, each in enumerate(self.constraints) if each.satisfied(None, present=True))

    def _bits_of(self, text: str) -> int:
        bits = self._text | self._literals.get(text, 0)
        if text:
            bits |= self._nonempty
        if self._timestamp and is_timestamp(text):
            bits |= self._timestamp
        for automaton in self._automata:
            bits |= automaton.bits_of(text)
        return bits | self._slow_bits[self._slow_code(text)] if self._slow else bits

    def _literal_codes(self, values: pa.StringArray) -> IntArray:
        if not self._literals:
            return np.zeros(len(values), np.int64)
        places = pc.fill_null(pc.index_in(values, value_set=self._literal_set), -1)
        codes: IntArray = np.add(places.to_numpy(zero_copy_only=False), 1, dtype=np.int64)
        return codes

    def _classify_slowly(self, values: pa.StringArray) -> IntArray:
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

    def _class_of_code(self, code: int) -> int:
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
        return self._class_number(bits)

    def _class_number(self, bits: int) -> int:
        known = self._by_bits.get(bits)
        if known is None:
            known = self._by_bits[bits] = len(self.bits)
            self.bits.append(bits)
        return known


def _are_timestamps(values: pa.StringArray) -> BoolArray:
    """Return which values are timestamps."""
    sure: BoolArray = pc.fill_null(pc.match_substring_regex(values, _TIMESTAMP), False).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(~sure & pc.is_valid(values).to_numpy(zero_copy_only=False)):
        sure[row] = is_timestamp(values[row].as_py())
    return sure
