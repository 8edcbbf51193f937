"""Columns of bytes, texts and named entries: conversions and conditions for all rows at once."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Named entries of many records as columns, such as headers, read without a loop over rows.
#
# A record has a list of entries, each with a name and bytes. Names repeat between records, so what depends on a name
# alone is computed once per distinct name of a batch.

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]
_MAX_UNSORTED: Final = 1 << 20


class Entries:
    """The entries of a batch: a list column of structs whose first members are ``key`` (text) and ``value`` (bytes).

    A null list has no entries; a null name is empty.
    """

    def __init__(self, lists: pa.ListArray) -> None:
        self.rows = len(lists)
        entries = lists.flatten()
        self.owners: Int = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        """The row of each entry; ascending."""
        self.values: pa.BinaryArray = entries.field("value")
        names = entries.field("key")
        names = (pc.fill_null(names, "") if names.null_count else names).dictionary_encode()
        self.names: list[str] = names.dictionary.to_pylist()
        """The distinct names."""
        self.codes: npt.NDArray[np.int32] = names.indices.to_numpy(zero_copy_only=False)
        """The index of each entry's name among the distinct names."""
        self._numbers = {name: number for number, name in enumerate(self.names)}

    @property
    def offsets(self) -> Int:
        """The first entry of each row, then the end of the last row's entries."""
        return np.searchsorted(self.owners, np.arange(self.rows + 1))

    def distinct_pairs(self, numbers: Int) -> tuple[list[tuple[int, str]], Int]:
        """Return the distinct pairs of a row's number and a name in it, and the index of each entry's pair.

        If a name's meaning also depends on the row, such as its protocol, it can be evaluated once per pair.
        """
        pairs = numbers[self.owners] * len(self.names) + self.codes
        distinct, places = number_distinct(pairs)
        parted = (divmod(pair, len(self.names)) for pair in distinct.tolist())
        return [(number, self.names[code]) for number, code in parted], places

    def find_entries(self, condition: Callable[[str], object]) -> Int:
        """Return the entries whose names meet a condition, ascending."""
        flags = np.fromiter((bool(condition(name)) for name in self.names), bool, len(self.names))
        return np.flatnonzero(flags[self.codes]) if flags.any() else np.zeros(0, np.int64)

    def entries_named(self, name: str) -> Int:
        """Return the entries with that name, ascending."""
        number = self._numbers.get(name)
        return np.zeros(0, np.int64) if number is None else np.flatnonzero(self.codes == number)

    def first_entries(self, name: str) -> Int:
        """Return each row's first entry with that name, -1 for none."""
        places = np.full(self.rows, -1, np.int64)
        mine = self.entries_named(name)[::-1]
        places[self.owners[mine]] = mine
        return places

    def values_at(self, places: Int) -> pa.BinaryArray:
        """Return the values of these entries; null for -1 and for an entry without a value."""
        return self.values.take(pa.array(places, mask=places < 0))

    def rows_with(self, entries: Int) -> Bool:
        """Return which rows have one of these entries."""
        rows = np.zeros(self.rows, bool)
        rows[self.owners[entries]] = True
        return rows

    def rows_with_repeats(self, at: Int | slice, numbers: Int | Int32) -> Bool:
        """Return which rows have two of the entries *at* with one number; *numbers* has that of each entry."""
        width = int(numbers.max(initial=0)) + 1
        # In order of rows already; sorting takes what looking at number by number does.
        pairs = np.sort(self.owners[at] * width + numbers[at], kind="stable")
        rows = np.zeros(self.rows, bool)
        rows[pairs[1:][pairs[1:] == pairs[:-1]] // width] = True
        return rows


def number_distinct(codes: Int) -> tuple[Int, Int]:
    """Return the distinct numbers, ascending, and the index of each number among them.

    Small non-negative numbers need no sorting.
    """
    if not len(codes) or int(codes.min()) < 0 or int(codes.max()) >= _MAX_UNSORTED:
        return np.unique(codes, return_inverse=True)
    there = np.zeros(int(codes.max()) + 1, bool)
    there[codes] = True
    distinct = np.flatnonzero(there)
    places = np.zeros(len(there), np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[codes]


def which_meet(values: pa.StringArray, condition: Callable[[pa.StringArray], pa.BooleanArray]) -> Bool:
    """Return which values meet a condition, evaluated once per distinct value; a null meets none."""
    encoded = values.dictionary_encode()
    met = pc.fill_null(condition(encoded.dictionary), False).take(encoded.indices)
    answer: Bool = pc.fill_null(met, False).to_numpy(zero_copy_only=False)
    return answer


def any_true(conditions: Iterable[Bool], rows: int) -> Bool:
    """Return which rows meet one of the conditions."""
    met = np.zeros(rows, bool)
    for each in conditions:
        met |= each
    return met


_ASCII_END: Final = 0x80
_SPACE, _DELETE = 0x20, 0x7F
_FORBIDDEN: Final = (
    r"[\x00-\x1f\x7f-\x{9f}\x{fdd0}-\x{fdef}"
    + "".join(rf"\x{{{plane + 0xFFFE:x}}}-\x{{{plane + 0xFFFF:x}}}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
""":data:`bindings.events.FORBIDDEN_CHARS` as an RE2 pattern."""
_PADDING: Final = pa.array([b"", b"\0", b"\0\0"])


def raw_buffers(values: pa.BinaryArray | pa.StringArray) -> tuple[npt.NDArray[np.uint8], Int32]:
    """Return the data of an array and its offsets: value *i* is ``data[offsets[i]:offsets[i + 1]]``.

    Nothing is copied. The bytes of a null are undefined.
    """
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return np.zeros(0, np.uint8), np.zeros(len(values) + 1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), bounds


def is_not_null(values: pa.Array) -> Bool:
    """Return which values are not null."""
    return values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else np.ones(len(values), bool)


def find_containing(values: pa.BinaryArray | pa.StringArray, character: str) -> Int:
    """Return the indexes of the values, none of them null, that contain an ASCII character."""
    data, offsets = raw_buffers(values)
    marks = np.flatnonzero(data[offsets[0] : offsets[-1]] == ord(character)) + offsets[0]
    return np.unique(np.searchsorted(offsets, marks, "right") - 1)


def first_byte_of_each(values: pa.BinaryArray | pa.StringArray) -> npt.NDArray[np.uint8]:
    """Return the first byte of every value; 0 for an empty value or a null."""
    data, offsets = raw_buffers(values)
    firsts = np.zeros(len(values), np.uint8)
    filled = np.flatnonzero((np.diff(offsets) > 0) & is_not_null(values))
    firsts[filled] = data[offsets[filled]]
    return firsts


def decode_utf8(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text; null for bytes that are not UTF-8."""
    doubtful = find_non_ascii(values)
    if len(doubtful):
        wrong = doubtful[~_is_utf8(values.take(pa.array(doubtful)))]
        if len(wrong):
            there = np.ones(len(values), bool)
            there[wrong] = False
            values = pc.if_else(pa.array(there), values, pa.scalar(None, pa.binary()))
    return values.view(pa.string())


def find_non_ascii(values: pa.BinaryArray | pa.StringArray) -> Int:
    """Return the indexes of values that are not all ASCII; nulls may be among them."""
    return _find_outside(values, 0, _ASCII_END)


def find_unprintable(values: pa.BinaryArray | pa.StringArray) -> Int:
    """Return the indexes of values that are not all printable ASCII; nulls may be among them."""
    return _find_outside(values, _SPACE, _DELETE)


def _find_outside(values: pa.BinaryArray | pa.StringArray, low: int, end: int) -> Int:
    """Return the indexes of values with a byte below *low*, or not below *end*."""
    data, bounds = raw_buffers(values)
    held = data[bounds[0] : bounds[-1]]
    if not len(held) or (int(held.max()) < end and (not low or int(held.min()) >= low)):
        return np.zeros(0, np.int64)
    filled = np.flatnonzero(np.diff(bounds))
    # Subtracting the lowest makes bytes below it the largest.
    tops = np.maximum.reduceat(held - np.uint8(low), bounds[filled] - bounds[0])
    return filled[tops >= end - low]


def is_valid_string(values: pa.StringArray) -> pa.BooleanArray:
    """Return which texts are valid CloudEvents Strings; null for a null."""
    if not len(find_unprintable(values)):
        return pc.if_else(pc.is_valid(values), True, pa.scalar(None, pa.bool_()))
    return pc.invert(pc.match_substring_regex(values, _FORBIDDEN))


def find_invalid_strings(values: pa.BinaryArray | pa.StringArray, at: Int | None = None) -> Int:
    """Return the indexes of values that are not valid CloudEvents Strings, ascending; nulls are not included.

    They are not UTF-8, or contain control characters or noncharacters. With *at*, only values at these indexes are
    checked.
    """
    doubtful = find_unprintable(values)
    if at is not None and len(doubtful):
        doubtful = np.intersect1d(doubtful, at, assume_unique=True)
    if not len(doubtful):
        return doubtful
    texts = decode_utf8(values.take(pa.array(doubtful)))
    sound = pc.fill_null(is_valid_string(texts), False).to_numpy(zero_copy_only=False)
    wrong: Int = doubtful[~sound & is_not_null(values.take(pa.array(doubtful)))]
    return wrong


def _is_utf8(values: pa.BinaryArray) -> Bool:
    """Return which values are UTF-8; all are checked at once, and one by one only if some are not."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.fromiter((value is None or _can_decode(value) for value in values.to_pylist()), bool, len(values))
    return np.ones(len(values), bool)


def _can_decode(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def encode_base64(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as base64; null stays null."""
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    spare = -sizes % 3
    padded = pc.binary_join_element_wise(values, _PADDING.take(pa.array(spare)), b"")
    data, offsets = raw_buffers(padded)
    # Each begins a group of three bytes, so that all are encoded at once.
    shared = data[offsets[0] : offsets[-1]]
    coded = np.frombuffer(bytearray(binascii.b2a_base64(shared.data, newline=False)), np.uint8)
    ends = (offsets - offsets[0]) // 3 * 4
    coded[ends[1:][spare > 0] - 1] = ord("=")
    coded[ends[1:][spare == 2] - 2] = ord("=")
    buffers = (pa.py_buffer(ends), pa.py_buffer(coded))
    return pa.StringArray.from_buffers(len(values), *buffers, padded.buffers()[0], padded.null_count)


# The parts of many records as one column (:mod:`bindings.columns.entries`).
#
# A name's meaning depends on the protocol. So rows are in groups, each distinct pair of a group and a name has a
# number, and a pair's meaning is evaluated once.


class PartEntries(Entries):
    """The parts of a batch: ``key``, ``value`` and ``type`` as in :class:`bindings.parts.Part`.

    ``pairs`` are the distinct pairs of a row's group and a name; ``numbers`` is the index of each entry's pair.
    """

    def __init__(self, lists: pa.ListArray, groups: Int) -> None:
        super().__init__(lists)
        flat = lists.flatten()
        self._kinds: pa.StringArray = flat.field("type")
        self._cache: dict[str, Bool] = {}
        self.broken_rows = ~is_not_null(lists)
        """Rows that are not a list of named entries."""
        nameless = ~is_not_null(flat) | ~is_not_null(flat.field("key"))
        self.broken_rows[self.owners[nameless]] = True
        self.pairs, self.numbers = _number_pairs(self, groups)

    @cached_property
    def has_value(self) -> Bool | None:
        """Which entries have a value; None if all have one."""
        return is_not_null(self.values) if self.values.null_count else None

    def entries_of_pairs(self, numbers: Sequence[int], *, empty: bool = False) -> Int:
        """Return the entries of these pairs, ascending; with *empty*, also those without a value."""
        if not len(numbers):
            return np.zeros(0, np.int64)
        if len(numbers) == 1:
            entries = np.flatnonzero(self.numbers == numbers[0])
        else:
            wanted = np.zeros(len(self.pairs), bool)
            wanted[numbers] = True
            entries = np.flatnonzero(wanted[self.numbers])
        return entries if empty or self.has_value is None else entries[self.has_value[entries]]

    def first_and_repeats(self, entries: Int) -> tuple[Int, Int]:
        """Return the first of these ascending entries in every row (-1: none), and the rows that have more of them."""
        owners = self.owners[entries]
        places = np.full(self.rows, -1, np.int64)
        leads = np.diff(owners, prepend=-1) != 0
        if leads.all():
            places[owners] = entries
            return places, owners[:0]
        places[owners[leads]] = entries[leads]
        return places, owners[~leads]

    def is_kind(self, kind: str) -> Bool:
        """Return which entries are of a kind."""
        known = self._cache.get(kind)
        if known is None:
            known = self._cache[kind] = pc.fill_null(pc.equal(self._kinds, kind), False).to_numpy(zero_copy_only=False)
        return known


def _number_pairs(entries: Entries, groups: Int) -> tuple[list[tuple[int, str]], Int]:
    present = np.unique(groups).tolist()
    if len(present) > 1:
        return entries.distinct_pairs(groups)
    return [(group, name) for group in present for name in entries.names], entries.codes.astype(np.int64)


def replace_rows(texts: pa.Array, rows: Int, new: pa.Array) -> pa.Array:
    """Replace the values in these rows by *new*."""
    if not len(rows):
        return texts
    indices = np.arange(len(texts))
    indices[rows] = len(texts) + np.arange(len(rows))
    return pa.concat_arrays([texts, new]).take(pa.array(indices))
