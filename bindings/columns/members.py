"""The members of many JSON objects by columns: where names and values lie, without a look at each object.

A validator in C reads every text; what arrays of numbers then look at is known to be JSON, so that quotes, brackets and
colons outside of strings are all there is to its structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import raw, texts_of, valid
from bindings.entries import Bool, Int, numbered

MAX_LEVELS: Final = 64
"""Levels of nesting that are looked at here; the codec takes more."""
_CHECK: Final = msgspec.json.Decoder(msgspec.Raw)
_QUOTE, _ESCAPE, _COLON, _OBJECT = (ord(mark) for mark in '"\\:{')
_SHARED, _MARK = np.uint8(0x26), np.uint8(0x7F)
"""With these bits every bracket is this mark, and few other characters are."""
_BLANK: Final = np.zeros(256, bool)
_BLANK[list(b" \t\r\n")] = True
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_MOST_BLANKS: Final = 32
"""Blanks in a row that are passed over here."""
_FEW: Final = 32
"""Distinct names that are the bits of one number; more are sorted to find repeats, which takes longer."""


@dataclass(frozen=True, slots=True)
class Members:
    """The members of the objects themselves, not of what they hold; ascending.

    ``odd`` marks texts that are no JSON object, or one that the codec has to look at: names that repeat or hold an
    escape, and what is beyond the limits here. They have no members. The value of member *i*, as it is written, is
    ``data[begins[i]:ends[i]]``; ``owners`` are the places of its text.
    """

    odd: Bool
    owners: Int
    names: list[str]
    codes: Int
    data: npt.NDArray[np.uint8]
    begins: Int
    ends: Int


def members_of(texts: pa.BinaryArray) -> Members:
    """Return the members of the JSON objects that these bytes are."""
    odd = ~valid(texts_of(texts))
    data, offsets = raw(texts)
    low, high = int(offsets[0]), int(offsets[-1])
    held, bounds = data[low:high], offsets.astype(np.int64) - low
    _check(held, bounds, odd)
    quotes = _quotes(held, bounds, odd)
    brackets, owners = _brackets(held, bounds, odd, quotes)
    levels = np.cumsum(_STEPS[held[brackets]], dtype=np.int64)
    odd[owners[levels > MAX_LEVELS]] = True
    _find_no_objects(odd, held, brackets, owners)
    return _Names(held, bounds, odd, quotes).members(brackets, owners, levels)


def _check(held: npt.NDArray[np.uint8], bounds: Int, odd: Bool) -> None:
    """Mark texts that are no JSON as odd."""
    view, places, decode = held.data, bounds.tolist(), _CHECK.decode
    for at in np.flatnonzero(~odd).tolist():
        try:
            decode(view[places[at] : places[at + 1]])
        except (msgspec.DecodeError, RecursionError):
            odd[at] = True


def _quotes(held: npt.NDArray[np.uint8], bounds: Int, odd: Bool) -> Int:
    """Return the first and the last quote of each string of the texts that are not odd."""
    quotes = np.flatnonzero(held == _QUOTE)
    escapes = np.flatnonzero(held == _ESCAPE)
    if len(escapes):
        # In a run of them every second one is itself escaped; a run never leaves its text, which is JSON.
        begins = np.flatnonzero(np.diff(escapes, prepend=-2) != 1)
        places = np.arange(len(escapes)) - np.repeat(begins, np.diff(begins, append=len(escapes)))
        escaped = np.zeros(len(held) + 1, bool)
        escaped[escapes[places % 2 == 0] + 1] = True
        quotes = quotes[~escaped[quotes]]
    return quotes[~odd[_owners(quotes, bounds)]] if odd.any() else quotes


def _brackets(held: npt.NDArray[np.uint8], bounds: Int, odd: Bool, quotes: Int) -> tuple[Int, Int]:
    """Return the brackets outside of strings of the texts that are not odd, and whose they are."""
    brackets = np.flatnonzero((held | _SHARED) == _MARK)
    brackets = brackets[_STEPS[held[brackets]] != 0]
    brackets = brackets[np.searchsorted(quotes, brackets) % 2 == 0]
    owners = _owners(brackets, bounds)
    sound = ~odd[owners]
    return brackets[sound], owners[sound]


def _owners(places: Int, bounds: Int) -> Int:
    """Return the texts in which these ascending places are."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(np.searchsorted(places, bounds)))


def _find_no_objects(odd: Bool, held: npt.NDArray[np.uint8], brackets: Int, owners: Int) -> None:
    """Mark texts as odd whose first bracket begins no object: lists, and values of other kinds."""
    objects = np.zeros(len(odd), bool)
    leads = np.diff(owners, prepend=-1) != 0
    objects[owners[leads]] = held[brackets[leads]] == _OBJECT
    odd |= ~objects


class _Names:
    """The names in the texts, which are the strings with a colon behind them."""

    def __init__(self, held: npt.NDArray[np.uint8], bounds: Int, odd: Bool, quotes: Int) -> None:
        self._held, self._odd = held, odd
        strings, ends = quotes[::2], quotes[1::2]
        colons = _past_blanks(held, ends + 1)
        owners = _owners(strings, bounds)
        odd[owners[colons < 0]] = True
        named = np.flatnonzero(~odd[owners])
        named = named[held[colons[named]] == _COLON]
        self._begins, self._ends, self._colons = strings[named], ends[named], colons[named]
        self._owners = owners[named]

    def members(self, brackets: Int, owners: Int, levels: Int) -> Members:
        """Return the members of the objects, given all brackets, whose they are, and the levels behind them."""
        held, odd = self._held, self._odd
        # Both are ascending, and there are more names than brackets.
        behind = np.diff(np.searchsorted(self._begins, brackets), append=len(self._begins))
        before = np.repeat(np.arange(len(brackets)), behind)
        at = levels[before]
        encoded = cut(held, self._begins + 1, self._ends).view(pa.string()).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        escaped = pc.match_substring(encoded.dictionary, "\\").to_numpy(zero_copy_only=False)
        odd[self._owners[escaped[codes]]] = True
        self._find_repeated(brackets, levels, before, codes, len(encoded.dictionary))
        own = np.flatnonzero((at == 1) & ~odd[self._owners])
        closing = np.full(len(odd), -1, np.int64)
        closing[owners] = brackets  # The last bracket of a text stays.
        mine, begins = self._owners[own], _past_blanks(held, self._colons[own] + 1)
        follows = np.empty(len(own), np.int64)
        last = np.diff(mine, append=-1) != 0
        follows[last] = closing[mine[last]]
        # Between a value and the name behind it there is a comma.
        follows[~last] = _before_blanks(held, self._begins[own[1:]][~last[:-1]]) - 1
        stops = _before_blanks(held, follows)
        odd[mine[(begins < 0) | (stops < 0)]] = True
        kept = ~odd[mine]
        used, places = numbered(codes[own[kept]])
        names = encoded.dictionary.take(pa.array(used)).to_pylist()
        return Members(odd, mine[kept], names, places, held, begins[kept], stops[kept])

    def _find_repeated(self, brackets: Int, levels: Int, before: Int, codes: Int, distinct: int) -> None:
        """Mark texts as odd in which an object, at any depth, has a name twice."""
        at = levels[before]
        opening = _STEPS[self._held[brackets]] > 0
        for level in np.flatnonzero(np.bincount(at)).tolist():
            mine = np.flatnonzero(at == level)
            openings = np.flatnonzero(opening & (levels == level))
            opened = openings[np.searchsorted(openings, before[mine], "right") - 1]
            repeated = _repeated_bits(opened, codes[mine]) if distinct <= _FEW else _repeated(opened, codes[mine])
            self._odd[self._owners[mine[repeated]]] = True


def _repeated_bits(opened: Int, codes: Int) -> Int:
    """Return a name of each object that has one twice; the names of an object are next to each other."""
    begins = np.flatnonzero(np.diff(opened, prepend=-1))
    bits = np.left_shift(1, codes)
    # Bits that all differ have the same sum as union. No text has so many names that the sum would overflow.
    twice: Int = begins[np.add.reduceat(bits, begins) != np.bitwise_or.reduceat(bits, begins)]
    return twice


def _repeated(opened: Int, codes: Int) -> Int:
    """Do so for any number of distinct names."""
    order = np.lexsort((codes, opened))
    same = (np.diff(opened[order]) == 0) & (np.diff(codes[order]) == 0)
    twice: Int = order[1:][same]
    return twice


def cut(data: npt.NDArray[np.uint8], begins: Int, ends: Int) -> pa.BinaryArray:
    """Return the bytes from each beginning to its end; these are ascending and do not overlap."""
    bounds = np.empty(2 * len(begins) + 1, np.int32)
    bounds[0:-1:2], bounds[1::2] = begins, ends
    bounds[-1] = bounds[-2] if len(begins) else 0
    # Every second value is what lies between two others.
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(begins), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(0, 2 * len(begins), 2)))


def _past_blanks(held: npt.NDArray[np.uint8], places: Int) -> Int:
    """Return the first places from these on that are no blanks; -1 for one that has too many of them."""
    past = places.copy()
    for _ in range(_MOST_BLANKS):
        past[past >= len(held)] = -1
        blank = np.flatnonzero((past >= 0) & _BLANK[held[past]])
        if not len(blank):
            return past
        past[blank] += 1
    past[blank] = -1
    return past


def _before_blanks(held: npt.NDArray[np.uint8], places: Int) -> Int:
    """Return these places less the blanks before them; -1 for one that has too many of them."""
    before = places.copy()
    for _ in range(_MOST_BLANKS):
        blank = np.flatnonzero((before > 0) & _BLANK[held[before - 1]])
        if not len(blank):
            return before
        before[blank] -= 1
    before[blank] = -1
    return before
