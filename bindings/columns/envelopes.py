"""Read the CloudEvents envelopes of many records as columns: the column form of ``AttributeRule``.

:func:`bindings.envelope.read_envelope` reads one record; this module reads the parts of many. It decides binary mode
and its absence, for usual names and values, and events in JSON. A *fallback* row is one that
columns cannot decide: events in other modes, anything that makes an event invalid, and encoded values. A fallback row
costs time and changes nothing else, so a row may be one needlessly, never the reverse; a property test compares both.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import (
    Bool,
    Int,
    PartEntries,
    decode_utf8,
    find_containing,
    find_invalid_strings,
    first_byte_of_each,
    is_not_null,
    is_valid_string,
    number_distinct,
    raw_buffers,
)
from bindings.envelope import (
    ATTRIBUTE_NAME,
    DATA,
    EVENT_MEDIA,
    NON_FINITE_TEXTS,
    REQUIRED,
    STRUCTURED,
    AttributeRule,
    attribute_of_key,
)
from bindings.events import DEFAULT_CONTENT_TYPE, STRING_ATTRIBUTES
from bindings.parts import BINARY_KIND, JSON_KIND
from catalog.schemas.contract import is_json_data
from catalog.values import media_type_of

# CloudEvents in JSON as columns: the column form of :func:`bindings.events.decode_event`.
#
# Fallback rows here: values with escapes or of types that no attribute has, and events that break a rule.
#
# A plain loop over msgspec's ``dict[str, Raw]`` is not faster once it rejects an object with a repeated key at any
# depth, which msgspec does not: 5.0 to 6.0 us against 4.0 to 4.9 for 435 bytes, 29 to 46 against 29 to 35 for 2.6 kB of
# nested objects, 16 against 20 to 22 for 2.3 kB of flat ones (the least of 9 rounds of 10,000, at ``fa8a3cb``).

# The members of many JSON objects as columns: offsets of names and values, without parsing each object.
#
# A validator in C checks every text first. So the arrays below see valid JSON only: quotes, brackets and colons outside
# strings are its whole structure.

MAX_LEVELS: Final = 64
"""Maximum nesting read here; the codec reads more."""
_CHECK: Final = msgspec.json.Decoder(msgspec.Raw)
_MEMBER_QUOTE, _ESCAPE, _COLON, _OBJECT = (ord(mark) for mark in '"\\:{')
_SHARED, _MARK = np.uint8(0x26), np.uint8(0x7F)
"""With these bits set every bracket is this mark, and few other characters are."""
_BLANK: Final = np.zeros(256, bool)
_BLANK[list(b" \t\r\n")] = True
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_MAX_BLANKS: Final = 32
"""Maximum blanks in a row read here."""
_MAX_BIT_NAMES: Final = 32
"""Maximum distinct names that are checked as bits of one number; more are sorted to find repeats, which is slower."""


@dataclass(frozen=True, slots=True)
class JsonMembers:
    """The top-level members of JSON objects, in ascending order.

    ``odd`` marks texts that are not JSON objects or that the codec must read: repeated names, names with an escape,
    and anything beyond the limits here. They have no members. The value of member *i* is ``data[begins[i]:ends[i]]`` as
    written; ``owners`` are the indexes of the texts.
    """

    odd: Bool
    owners: Int
    names: list[str]
    codes: Int
    data: npt.NDArray[np.uint8]
    begins: Int
    ends: Int


def read_members(texts: pa.BinaryArray) -> JsonMembers:
    """Return the members of the JSON objects in these texts."""
    odd = ~is_not_null(decode_utf8(texts))
    data, offsets = raw_buffers(texts)
    low, high = int(offsets[0]), int(offsets[-1])
    chars, bounds = data[low:high], offsets.astype(np.int64) - low
    _mark_invalid_json(chars, bounds, odd)
    quotes = _find_quotes(chars, bounds, odd)
    brackets, owners = _find_brackets(chars, bounds, odd, quotes)
    levels = np.cumsum(_STEPS[chars[brackets]], dtype=np.int64)
    odd[owners[levels > MAX_LEVELS]] = True
    _mark_non_objects(odd, chars, brackets, owners)
    return _MemberNames(chars, bounds, odd, quotes).build_members(brackets, owners, levels)


def _mark_invalid_json(chars: npt.NDArray[np.uint8], bounds: Int, odd: Bool) -> None:
    """Mark texts that are not JSON as fallback."""
    view, places, decode = chars.data, bounds.tolist(), _CHECK.decode
    for at in np.flatnonzero(~odd).tolist():
        try:
            decode(view[places[at] : places[at + 1]])
        except (msgspec.DecodeError, RecursionError):
            odd[at] = True


def _find_quotes(chars: npt.NDArray[np.uint8], bounds: Int, odd: Bool) -> Int:
    """Return the first and last quote of each string of the texts that are not fallback."""
    quotes = np.flatnonzero(chars == _MEMBER_QUOTE)
    escapes = np.flatnonzero(chars == _ESCAPE)
    if len(escapes):
        # In a run of backslashes every second one is itself escaped; a run never leaves its text, which is JSON.
        begins = np.flatnonzero(np.diff(escapes, prepend=-2) != 1)
        places = np.arange(len(escapes)) - np.repeat(begins, np.diff(begins, append=len(escapes)))
        escaped = np.zeros(len(chars) + 1, bool)
        escaped[escapes[places % 2 == 0] + 1] = True
        quotes = quotes[~escaped[quotes]]
    return quotes[~odd[_find_owners(quotes, bounds)]] if odd.any() else quotes


def _find_brackets(chars: npt.NDArray[np.uint8], bounds: Int, odd: Bool, quotes: Int) -> tuple[Int, Int]:
    """Return the brackets outside strings of the texts that are not fallback, and the text of each."""
    brackets = np.flatnonzero((chars | _SHARED) == _MARK)
    brackets = brackets[_STEPS[chars[brackets]] != 0]
    brackets = brackets[np.searchsorted(quotes, brackets) % 2 == 0]
    owners = _find_owners(brackets, bounds)
    sound = ~odd[owners]
    return brackets[sound], owners[sound]


def _find_owners(places: Int, bounds: Int) -> Int:
    """Return the index of the text of each of these ascending positions."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(np.searchsorted(places, bounds)))


def _mark_non_objects(odd: Bool, chars: npt.NDArray[np.uint8], brackets: Int, owners: Int) -> None:
    """Mark texts as fallback whose first bracket does not begin an object: lists, and other values."""
    objects = np.zeros(len(odd), bool)
    leads = np.diff(owners, prepend=-1) != 0
    objects[owners[leads]] = chars[brackets[leads]] == _OBJECT
    odd |= ~objects


class _MemberNames:
    """The names in the texts: strings that a colon follows."""

    def __init__(self, chars: npt.NDArray[np.uint8], bounds: Int, odd: Bool, quotes: Int) -> None:
        self._chars, self._odd = chars, odd
        strings, ends = quotes[::2], quotes[1::2]
        colons = _skip_blanks(chars, ends + 1)
        owners = _find_owners(strings, bounds)
        odd[owners[colons < 0]] = True
        named = np.flatnonzero(~odd[owners])
        named = named[chars[colons[named]] == _COLON]
        self._begins, self._ends, self._colons = strings[named], ends[named], colons[named]
        self._owners = owners[named]

    def build_members(self, brackets: Int, owners: Int, levels: Int) -> JsonMembers:
        """Return the members of the objects, from all brackets, their texts, and the nesting level after each."""
        chars, odd = self._chars, self._odd
        # Both are ascending, and there are more names than brackets.
        behind = np.diff(np.searchsorted(self._begins, brackets), append=len(self._begins))
        before = np.repeat(np.arange(len(brackets)), behind)
        at = levels[before]
        encoded = cut_ranges(chars, self._begins + 1, self._ends).view(pa.string()).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        escaped = pc.match_substring(encoded.dictionary, "\\").to_numpy(zero_copy_only=False)
        odd[self._owners[escaped[codes]]] = True
        self._mark_repeated_names(brackets, levels, before, codes, len(encoded.dictionary))
        own = np.flatnonzero((at == 1) & ~odd[self._owners])
        closing = np.full(len(odd), -1, np.int64)
        closing[owners] = brackets  # The last bracket of a text stays.
        mine, begins = self._owners[own], _skip_blanks(chars, self._colons[own] + 1)
        follows = np.empty(len(own), np.int64)
        last = np.diff(mine, append=-1) != 0
        follows[last] = closing[mine[last]]
        # A comma is between a value and the next name.
        follows[~last] = _skip_blanks_before(chars, self._begins[own[1:]][~last[:-1]]) - 1
        stops = _skip_blanks_before(chars, follows)
        odd[mine[(begins < 0) | (stops < 0)]] = True
        kept = ~odd[mine]
        used, places = number_distinct(codes[own[kept]])
        names = encoded.dictionary.take(pa.array(used)).to_pylist()
        return JsonMembers(odd, mine[kept], names, places, chars, begins[kept], stops[kept])

    def _mark_repeated_names(self, brackets: Int, levels: Int, before: Int, codes: Int, distinct: int) -> None:
        """Mark texts as fallback in which an object, at any depth, repeats a name."""
        at = levels[before]
        opening = _STEPS[self._chars[brackets]] > 0
        for level in np.flatnonzero(np.bincount(at)).tolist():
            mine = np.flatnonzero(at == level)
            openings = np.flatnonzero(opening & (levels == level))
            opened = openings[np.searchsorted(openings, before[mine], "right") - 1]
            find = _find_repeats_by_bits if distinct <= _MAX_BIT_NAMES else _find_repeats_by_sort
            self._odd[self._owners[mine[find(opened, codes[mine])]]] = True


def _find_repeats_by_bits(opened: Int, codes: Int) -> Int:
    """Return one name of each object that repeats one; an object's names are adjacent."""
    begins = np.flatnonzero(np.diff(opened, prepend=-1))
    bits = np.left_shift(1, codes)
    # Distinct bits have the same sum as union. No text has so many names that the sum would overflow.
    twice: Int = begins[np.add.reduceat(bits, begins) != np.bitwise_or.reduceat(bits, begins)]
    return twice


def _find_repeats_by_sort(opened: Int, codes: Int) -> Int:
    """Return one name of each object that repeats one, for any number of distinct names."""
    order = np.lexsort((codes, opened))
    same = (np.diff(opened[order]) == 0) & (np.diff(codes[order]) == 0)
    twice: Int = order[1:][same]
    return twice


def cut_ranges(data: npt.NDArray[np.uint8], begins: Int, ends: Int) -> pa.BinaryArray:
    """Return the bytes between each begin and end; these are ascending and do not overlap."""
    bounds = np.empty(2 * len(begins) + 1, np.int32)
    bounds[0:-1:2], bounds[1::2] = begins, ends
    bounds[-1] = bounds[-2] if len(begins) else 0
    # Every second value is what lies between two others.
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(begins), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(0, 2 * len(begins), 2)))


def _skip_blanks(chars: npt.NDArray[np.uint8], places: Int) -> Int:
    """Return the first non-blank position at or after each position; -1 after too many blanks."""
    past = places.copy()
    for _ in range(_MAX_BLANKS):
        past[past >= len(chars)] = -1
        blank = np.flatnonzero((past >= 0) & _BLANK[chars[past]])
        if not len(blank):
            return past
        past[blank] += 1
    past[blank] = -1
    return past


def _skip_blanks_before(chars: npt.NDArray[np.uint8], places: Int) -> Int:
    """Return the start of the blanks before each position; -1 for too many blanks."""
    before = places.copy()
    for _ in range(_MAX_BLANKS):
        blank = np.flatnonzero((before > 0) & _BLANK[chars[before - 1]])
        if not len(blank):
            return before
        before[blank] -= 1
    before[blank] = -1
    return before


VERSION_NAME: Final = "specversion"
CONTENT_TYPE_NAME: Final = "datacontenttype"
_ENCODED: Final = "data_base64"
_QUOTE, _NULL = (ord(mark) for mark in '"n')
_NESTED: Final = np.frombuffer(b"{[", np.uint8)
_DIGITS: Final = np.frombuffer(b"-0123456789", np.uint8)
_WHOLE: Final = r"^-?[0-9]{1,9}$"
"""Integers that fit in 32 bits; the codec checks those that may not."""


class JsonEvents:
    """Structured-mode events in bodies. No body is null.

    ``odd`` marks the bodies that the exact codec must read; all else here is undefined for them. Of the others,
    ``events`` marks events: they have a version that is a string; the rest are other JSON objects. ``owners``,
    ``codes`` and ``values`` are the attributes except the content type, in text order: the body of each, the index of
    its name in ``names``, and its text; ``typed`` marks integers and booleans. ``types`` are the content types of the
    data, and ``data`` the data; both are null for none.
    """

    def __init__(self, bodies: pa.BinaryArray) -> None:
        self._rows = len(bodies)
        members = read_members(bodies)
        self.odd, self.names = members.odd, members.names
        firsts = members.data[members.begins]
        there = firsts != _NULL
        self._owners, self._codes, self._first_bytes = members.owners[there], members.codes[there], firsts[there]
        quoted = self._first_bytes == _QUOTE
        begins, ends = members.begins[there], members.ends[there]
        special = np.isin(self._codes, [self.names.index(name) for name in (DATA, _ENCODED) if name in self.names])
        # Data is long, so it is extracted separately.
        self._inner = cut_ranges(members.data, begins + quoted, np.where(special, begins + quoted, ends - quoted))
        versions = self._find_member(VERSION_NAME)
        self.events = _flags_at(quoted, versions) & ~self.odd
        mine = self.events[self._owners]
        self._mark_invalid_events(mine & ~special, quoted)
        self._extract_data(members.data, begins, ends, quoted)
        contents = self._codes == self._number_of_name(CONTENT_TYPE_NAME)
        kept = np.flatnonzero(mine & ~special & ~contents & ~self.odd[self._owners])
        self.owners, self.codes, self.typed = self._owners[kept], self._codes[kept], ~quoted[kept]
        self.values = self._inner.take(pa.array(kept))

    def attribute_column(self, name: str) -> pa.StringArray | None:
        """Return an attribute as a column, null for a body without it; None if no body has it.

        The content type is not such an attribute; see above.
        """
        mine = np.flatnonzero(self.codes == self._number_of_name(name))
        return _values_at(self.values, self._scatter(self.owners[mine], mine)).view(pa.string()) if len(mine) else None

    def _number_of_name(self, name: str) -> int:
        return self.names.index(name) if name in self.names else -1

    def _find_member(self, name: str) -> Int:
        """Return the member with that name in every body, -1 for none; names do not repeat."""
        mine = np.flatnonzero(self._codes == self._number_of_name(name))
        return self._scatter(self._owners[mine], mine)

    def _scatter(self, owners: Int, entries: Int) -> Int:
        """Return the entry of each body, -1 for none; *owners* are the bodies of the entries."""
        places = np.full(self._rows, -1, np.int64)
        places[owners] = entries
        return places

    def _mark_invalid_events(self, mine: Bool, quoted: Bool) -> None:
        """Mark events as fallback that have an invalid attribute value or lack a required attribute."""
        wrong = np.array([not ATTRIBUTE_NAME.fullmatch(name) for name in self.names], bool)
        texts = np.array([name in STRING_ATTRIBUTES for name in self.names], bool)
        bad = wrong[self._codes] | (texts[self._codes] & ~quoted) | np.isin(self._first_bytes, _NESTED)
        bad |= _contains_escape(self._inner, quoted)
        bad[find_invalid_strings(self._inner, np.flatnonzero(mine))] = True
        numbers = np.flatnonzero(mine & np.isin(self._first_bytes, _DIGITS))
        if len(numbers):
            whole = pc.match_substring_regex(self._inner.take(pa.array(numbers)).view(pa.string()), _WHOLE)
            bad[numbers] |= ~whole.to_numpy(zero_copy_only=False)
        self.odd[self._owners[bad & mine]] = True
        filled = pc.binary_length(self._inner).to_numpy(zero_copy_only=False) > 0
        for name in REQUIRED:
            self.odd |= self.events & ~_flags_at(filled, self._find_member(name))
        versions = pc.equal(_values_at(self._inner, self._find_member(VERSION_NAME)), b"1.0")
        self.odd |= self.events & ~pc.fill_null(versions, False).to_numpy(zero_copy_only=False)

    def _extract_data(self, text: npt.NDArray[np.uint8], begins: Int, ends: Int, quoted: Bool) -> None:
        """Extract the data, and set their content types."""
        places = np.where(self.events, self._find_member(DATA), -1)
        given = _values_at(self._inner, self._find_member(CONTENT_TYPE_NAME)).view(pa.string())
        self.types = pc.if_else(pa.array(places >= 0), pc.fill_null(given, DEFAULT_CONTENT_TYPE), given)
        self.types = pc.if_else(pa.array(self.events), self.types, None)
        encoded = pc.dictionary_encode(given, null_encoding="encode")
        json = np.array([is_json_data(name) for name in encoded.dictionary.to_pylist()], bool)
        inner = _flags_at(quoted, places) & ~json[encoded.indices.to_numpy()]
        rows = np.flatnonzero(places >= 0)
        own, bare = places[rows], inner[rows]
        data = cut_ranges(text, begins[own] + bare, ends[own] - bare)
        self.odd[rows[_contains_escape(data, bare)]] = True
        self.data = self._decode_base64(_values_at(data, self._scatter(rows, np.arange(len(rows)))), text, begins, ends)

    def _decode_base64(
        self, data: pa.BinaryArray, text: npt.NDArray[np.uint8], begins: Int, ends: Int
    ) -> pa.BinaryArray:
        """Return the data column with the decoded ``data_base64`` added."""
        places = np.where(self.events & ~self.odd, self._find_member(_ENCODED), -1)
        rows = np.flatnonzero(places >= 0)
        if not len(rows):
            return data
        decoded: list[bytes] = []
        for row, place in zip(rows.tolist(), places[rows].tolist(), strict=True):
            try:
                value = text[begins[place] : ends[place]].tobytes()
                if value[:1] != b'"' or data[row].is_valid:
                    raise ValueError("not a string, or not the only data")
                decoded.append(base64.b64decode(value[1:-1], validate=True))
            except ValueError:
                self.odd[row] = True
                decoded.append(b"")
        mask = np.zeros(self._rows, bool)
        mask[rows] = True
        return pc.replace_with_mask(data, pa.array(mask), pa.array(decoded, pa.binary()))


def _flags_at(flags: Bool, places: Int) -> Bool:
    """Return the flags at these indexes; False for -1."""
    return np.append(flags, False)[places]


def _values_at(values: pa.BinaryArray, places: Int) -> pa.BinaryArray:
    return values.take(pa.array(places, mask=places < 0))


def _contains_escape(values: pa.BinaryArray, asked: Bool) -> Bool:
    """Return which of the *asked* values contain an escape."""
    escaped = np.zeros(len(values), bool)
    escaped[find_containing(values, "\\")] = True
    return escaped & asked


# Which bodies may be events in JSON; :func:`bindings.events.looks_like_event` gives the exact answer.

_OPENING: Final = np.frombuffer(b"{ \t\r\n", np.uint8)
"""The first characters of an object, and of blanks before it."""
EVENT_MARKS: Final = (b"specversion", b"\\u")
"""Every event in JSON contains one of these: the name ``specversion``, or an escape that may spell it."""


def may_be_events(bodies: pa.BinaryArray) -> Bool:
    """Return which bodies may be a JSON object with the member ``specversion``; never False for one that is."""
    mentions = np.zeros(len(bodies), bool)
    objects = np.isin(first_byte_of_each(bodies), _OPENING)
    if objects.any():
        chosen = bodies.filter(pa.array(objects))
        data, offsets = raw_buffers(chosen)
        text = data[offsets[0] : offsets[-1]].tobytes()
        places = np.flatnonzero(objects)
        for sought in EVENT_MARKS:
            at = text.find(sought)
            while at >= 0:
                row = int(np.searchsorted(offsets, at + offsets[0], "right")) - 1
                mentions[places[row]] = True
                at = text.find(sought, int(offsets[row + 1] - offsets[0]))
    return mentions


_NO_NUMBERS: Final = pa.array([text.decode() for text in NON_FINITE_TEXTS])
_INITIALS: Final = np.frombuffer(b"".join(text[:1] for text in NON_FINITE_TEXTS), np.uint8)
_MAX_ONE_BY_ONE: Final = 64
"""Maximum attributes that are checked for repeats one by one; for more, sorting all entries is faster."""
_TYPED: Final = r"^(?:true|false|-?[0-9]{1,9})$"
"""The JSON texts of values that are not strings in CloudEvents; the codec checks integers that may exceed 32 bits."""


@dataclass(slots=True)
class _NameRoles:
    """The meaning of names, by number.

    ``attributes`` is the index of the attribute in ``places``, -1 for none; ``prefixed`` marks names with the attribute
    prefix, well-formed or not, ``malformed`` those that make an event invalid. ``encoded`` and ``typed`` are as in the
    rule; ``texts`` marks attributes that are always strings; ``contents`` are the names of the content type.
    """

    attributes: Int
    prefixed: Bool
    malformed: Bool
    encoded: Bool
    typed: Bool
    texts: Bool
    places: dict[str, int] = field(default_factory=dict)
    contents: list[int] = field(default_factory=list)


class Envelopes:
    """The envelopes of the rows of *entries*.

    ``rules`` are the attribute rules of the groups of rows, by number; the argument ``binary`` marks groups that allow
    binary mode. ``odd`` marks the rows that the exact codec must read; all else here is undefined for them. Of the
    others, ``events`` marks the CloudEvents, and ``binary`` those in binary mode. ``types`` are the content types: an
    event's data content type, else the native one; ``contents`` the entry it comes from, -1 for none. ``structured``
    marks rows whose body is an event in JSON, ``sniffable`` rows whose body may be one where a channel allows it:
    :meth:`add_json_events` gets the rows of both kinds that are events.
    """

    def __init__(self, entries: PartEntries, rules: Sequence[AttributeRule], binary: Sequence[bool]) -> None:
        self.entries = entries
        self._roles = _assign_roles(entries, rules, binary)
        self._texts: dict[str, pa.StringArray] = {}
        self.odd = entries.broken_rows.copy()
        self.contents, _ = entries.first_and_repeats(entries.entries_of_pairs(self._roles.contents))
        self.types = self._read_content_types()
        self.json: JsonEvents | None = None
        self.json_rows: Int = np.zeros(0, np.int64)
        """The rows of :attr:`json`, ascending."""
        plain, self.structured = self._classify_media_types()
        self.binary = self._find_binary_events()
        self.events = self.binary
        self.sniffable = plain & ~self.events
        self.attributes = self._find_attributes()
        """The entries that are attributes of events, except the content type; ascending."""
        self._mark_doubtful_rows()
        self._apply_content_type()

    def add_json_events(self, rows: Int, json: JsonEvents) -> None:
        """Add the events in JSON of these rows; rows that are not events stay unchanged."""
        mine = np.flatnonzero(json.events & ~json.odd)
        self.json, self.json_rows = json, rows
        self.odd[rows[json.odd]] = True
        self.odd[rows[self.structured[rows] & ~json.events]] = True
        self.events = self.binary.copy()
        self.events[rows[mine]] = True
        self.contents[rows[mine]] = -1
        self.types = self._fill_json_rows(self.types, json.types)
        self._texts.clear()

    def attribute_column(self, name: str) -> pa.StringArray:
        """Return an attribute of all events as text; null for events without it, and for native rows."""
        if name == CONTENT_TYPE_NAME:
            return pc.if_else(pa.array(self.events), self.types, pa.scalar(None, pa.string()))
        known = self._texts.get(name)
        if known is None:
            known = decode_utf8(self.entries.values_at(self.attribute_entries(name)))
            if self.json is not None and (own := self.json.attribute_column(name)) is not None:
                known = self._fill_json_rows(known, own)
            self._texts[name] = known
        return known

    def attribute_entries(self, name: str) -> Int:
        """Return the entry of every binary-mode event with this attribute, -1 for none."""
        places, _ = self.entries.first_and_repeats(self._find_entries(name))
        return np.where(self.binary, places, -1)

    @property
    def is_json_event(self) -> Bool:
        """Whether each row is an event in JSON."""
        return self.events & ~self.binary

    def event_data_or(self, bodies: pa.BinaryArray) -> pa.BinaryArray:
        """Return the bodies, those of events in JSON replaced by the event's data."""
        return bodies if self.json is None else self._fill_json_rows(bodies, self.json.data)

    def _fill_json_rows(self, values: pa.Array, own: pa.Array) -> pa.Array:
        """Return a column, with the values of the events in JSON put in their rows."""
        assert self.json is not None
        mask = np.zeros(self.entries.rows, bool)
        mask[self.json_rows] = self.json.events
        return pc.replace_with_mask(values, pa.array(mask), own.filter(pa.array(self.json.events)))

    @property
    def is_prefixed(self) -> Bool:
        """Which names, by number, have the attribute prefix; in events they are attributes only."""
        return self._roles.prefixed

    @property
    def is_typed(self) -> Bool:
        """Which names, by number, have typed values."""
        return self._roles.typed

    @property
    def attribute_names(self) -> list[str]:
        """The attribute of each name, by number; empty for none."""
        names = [*self._roles.places, ""]
        return [names[place] for place in self._roles.attributes.tolist()]

    def _find_entries(self, name: str) -> Int:
        place = self._roles.places.get(name)
        numbers = np.flatnonzero(self._roles.attributes == place) if place is not None else np.zeros(0, np.int64)
        return self.entries.entries_of_pairs(numbers.tolist())

    def _read_content_types(self) -> pa.StringArray:
        types = decode_utf8(self.entries.values_at(self.contents))
        self.odd |= (self.contents >= 0) & ~is_not_null(types)
        return types

    def _classify_media_types(self) -> tuple[Bool, Bool]:
        """Mark rows as fallback whose media type is one of events, other than a single event in JSON.

        Returns the rows without a media type or with that of JSON, and those with that of an event in JSON.
        """
        encoded = pc.dictionary_encode(self.types, null_encoding="encode")
        media = [media_type_of(text) for text in encoded.dictionary.to_pylist()]
        places = encoded.indices.to_numpy()
        self.odd |= np.array([each.startswith(EVENT_MEDIA) and each != STRUCTURED for each in media], bool)[places]
        # It may not be an attribute, if the row is not an event; the codec decides that.
        self.odd |= ~pc.fill_null(is_valid_string(encoded.dictionary), True).to_numpy(zero_copy_only=False)[places]
        plain: Bool = np.array([each in ("", "application/json") for each in media], bool)[places]
        structured: Bool = np.array([each == STRUCTURED for each in media], bool)[places]
        return plain, structured

    def _find_binary_events(self) -> Bool:
        """Return which rows are events in binary mode: those with a version."""
        places, _ = self.entries.first_and_repeats(self._find_entries(VERSION_NAME))
        versions = self._texts[VERSION_NAME] = decode_utf8(self.entries.values_at(places))
        events = is_not_null(versions)
        self.odd |= (places >= 0) & (~events | self.structured)
        return events & ~self.structured

    def _find_attributes(self) -> Int:
        roles, entries = self._roles, self.entries
        mine = (roles.attributes >= 0)[entries.numbers] & self.events[entries.owners]
        if entries.has_value is not None:
            mine &= entries.has_value
        if roles.malformed.any():
            bad = roles.malformed[entries.numbers] & self.events[entries.owners]
            self.odd[entries.owners[bad]] = True
        return np.flatnonzero(mine)

    def _mark_doubtful_rows(self) -> None:
        """Mark events as fallback that lack a required attribute, repeat one, or have a value that needs decoding."""
        entries, mine = self.entries, self.attributes
        numbers = entries.numbers[mine]
        chars = entries.values.take(pa.array(mine))
        bad = entries.is_kind(BINARY_KIND)[mine] | self._is_doubtful(decode_utf8(chars), mine, numbers)
        bad[find_invalid_strings(chars)] = True
        self.odd[entries.owners[mine[bad]]] = True
        self.odd |= self._rows_with_repeats(numbers)
        sound = pc.equal(self._texts[VERSION_NAME], "1.0")
        for name in REQUIRED:
            sound = pc.and_(sound, pc.greater(pc.binary_length(self.attribute_column(name)), 0))
        self.odd |= self.events & ~pc.fill_null(sound, False).to_numpy(zero_copy_only=False)

    def _rows_with_repeats(self, numbers: Int) -> Bool:
        """Return which rows have two entries for one attribute."""
        owners, places = self.entries.owners[self.attributes], self._roles.attributes[numbers]
        repeated = np.zeros(self.entries.rows, bool)
        count = len(self._roles.places)
        if count <= _MAX_ONE_BY_ONE:
            for place in range(count):
                mine = owners[places == place]
                repeated[mine[1:][mine[1:] == mine[:-1]]] = True
        else:
            pairs = np.sort(owners * count + places)
            repeated[pairs[1:][pairs[1:] == pairs[:-1]] // count] = True
        return repeated

    def _is_doubtful(self, texts: pa.StringArray, mine: Int, numbers: Int) -> Bool:
        """Return which values are not text, need decoding (HTTP, NATS), or may be of a type that events cannot have."""
        bad = ~is_not_null(texts)
        if texts.null_count:
            texts = pc.fill_null(texts, "")
        encoded, typed = self._roles.encoded[numbers], self._roles.typed[numbers]
        firsts = first_byte_of_each(texts)
        if encoded.any():
            percent = find_containing(texts, "%")
            bad[percent] |= encoded[percent]
            bad |= encoded & (firsts == ord('"'))
        if typed.any():
            near = np.flatnonzero(typed & np.isin(firsts, _INITIALS))
            bad[near] |= pc.is_in(texts.take(pa.array(near)), _NO_NUMBERS).to_numpy(zero_copy_only=False)
            json = np.flatnonzero(typed & self.entries.is_kind(JSON_KIND)[mine])
            known = pc.match_substring_regex(texts.take(pa.array(json)), _TYPED)
            bad[json] = ~known.to_numpy(zero_copy_only=False) | self._roles.texts[numbers[json]]
        return bad

    def _apply_content_type(self) -> None:
        """Use the attribute ``datacontenttype`` of events that have one in place of the native content type."""
        own = self.attribute_entries(CONTENT_TYPE_NAME)
        named = own >= 0
        if named.any():
            self.contents = np.where(named, own, self.contents)
            self.types = decode_utf8(self.entries.values_at(self.contents))
            place = self._roles.places[CONTENT_TYPE_NAME]
            numbers = self.entries.numbers[self.attributes]
            self.attributes = self.attributes[self._roles.attributes[numbers] != place]


def _assign_roles(entries: PartEntries, rules: Sequence[AttributeRule], binary: Sequence[bool]) -> _NameRoles:
    size = len(entries.pairs)
    flags = [np.zeros(size, bool) for _ in range(5)]
    roles = _NameRoles(np.full(size, -1, np.int64), flags[0], flags[1], flags[2], flags[3], flags[4])
    for number, (group, key) in enumerate(entries.pairs):
        rule = rules[group]
        if key == rule.content_type or (rule.content_type == "headers.content-type" == key.lower()):
            roles.contents.append(number)
        name = attribute_of_key(key, rule)
        if name is None:
            continue
        roles.prefixed[number] = True
        if not binary[group]:
            continue
        roles.encoded[number], roles.typed[number], roles.texts[number] = (
            rule.encoded,
            rule.typed,
            name in STRING_ATTRIBUTES,
        )
        if name == DATA or not ATTRIBUTE_NAME.fullmatch(name):
            roles.malformed[number] = rule.strict
        elif name != CONTENT_TYPE_NAME or rule.own_datacontenttype:
            roles.attributes[number] = roles.places.setdefault(name, len(roles.places))
    return roles
