"""CloudEvents in JSON by columns: the second evaluation of :func:`bindings.events.decode_event`.

Rows are *odd* where columns may not settle them, as in :mod:`bindings.columns.envelopes`: values with escapes or of
types that no attribute has, events that break a rule. Being odd costs time, and changes nothing else.

A plain loop over msgspec's ``dict[str, Raw]`` is no quicker once it refuses an object with a key twice at any depth,
which msgspec does not: 5.0 to 6.0 us against 4.0 to 4.9 for 435 bytes, 29 to 46 against 29 to 35 for 2.6 kB of nested
objects, 16 against 20 to 22 for 2.3 kB of flat ones (the least of 9 rounds of 10,000, at ``fa8a3cb``).
"""

from __future__ import annotations

import base64
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.members import cut, members_of
from bindings.columns.texts import forbidden, holding
from bindings.entries import Bool, Int
from bindings.envelope import ATTRIBUTE_NAME, DATA, REQUIRED
from bindings.events import DEFAULT_CONTENT_TYPE, TEXTS
from catalog.schemas.bodies import holds_json

VERSION: Final = "specversion"
CONTENT: Final = "datacontenttype"
_ENCODED: Final = "data_base64"
_QUOTE, _NULL = (ord(mark) for mark in '"n')
_NESTED: Final = np.frombuffer(b"{[", np.uint8)
_DIGITS: Final = np.frombuffer(b"-0123456789", np.uint8)
_WHOLE: Final = r"^-?[0-9]{1,9}$"
"""Integers of 32 bits; the codec looks at those that may be beyond."""


class JsonEvents:
    """The events that bodies hold, in structured mode. No body is null.

    ``odd`` marks the bodies to be read by the exact codec; nothing else here means anything for them. Of the others
    ``events`` marks those that are an event: they have a version that is a text; the rest are JSON objects
    of another kind. ``owners``, ``codes`` and ``values`` are of the attributes, but for the content type, in the order
    of the text: the body of each, the place of its name in ``names``, and its text; ``typed`` marks those that are no
    text but an integer or a boolean. ``types`` are the content types of the data, and ``data`` the data, both null for
    none.
    """

    def __init__(self, bodies: pa.BinaryArray) -> None:
        self._rows = len(bodies)
        members = members_of(bodies)
        self.odd, self.names = members.odd, members.names
        firsts = members.data[members.begins]
        there = firsts != _NULL
        self._owners, self._codes, self._firsts = members.owners[there], members.codes[there], firsts[there]
        quoted = self._firsts == _QUOTE
        begins, ends = members.begins[there], members.ends[there]
        special = np.isin(self._codes, [self.names.index(name) for name in (DATA, _ENCODED) if name in self.names])
        # Data are long: they are cut out by themselves.
        self._inner = cut(members.data, begins + quoted, np.where(special, begins + quoted, ends - quoted))
        versions = self._place(VERSION)
        self.events = _at(quoted, versions) & ~self.odd
        mine = self.events[self._owners]
        self._hold(mine & ~special, quoted)
        self._set_data(members.data, begins, ends, quoted)
        contents = self._codes == self._number(CONTENT)
        kept = np.flatnonzero(mine & ~special & ~contents & ~self.odd[self._owners])
        self.owners, self.codes, self.typed = self._owners[kept], self._codes[kept], ~quoted[kept]
        self.values = self._inner.take(pa.array(kept))

    def text(self, name: str) -> pa.StringArray | None:
        """Return an attribute as a column, null for a body that has none; None where no body has it.

        The content type is no such attribute, as above.
        """
        mine = np.flatnonzero(self.codes == self._number(name))
        return _taken(self.values, self._places(self.owners[mine], mine)).view(pa.string()) if len(mine) else None

    def _number(self, name: str) -> int:
        return self.names.index(name) if name in self.names else -1

    def _place(self, name: str) -> Int:
        """Return the member of that name in every body, -1 for none; no name repeats."""
        mine = np.flatnonzero(self._codes == self._number(name))
        return self._places(self._owners[mine], mine)

    def _places(self, owners: Int, entries: Int) -> Int:
        """Return the entry of each body, given the owners of some; -1 for none."""
        places = np.full(self._rows, -1, np.int64)
        places[owners] = entries
        return places

    def _hold(self, mine: Bool, quoted: Bool) -> None:
        """Mark events as odd whose attributes have no valid value, or that lack a required attribute."""
        wrong = np.array([not ATTRIBUTE_NAME.fullmatch(name) for name in self.names], bool)
        texts = np.array([name in TEXTS for name in self.names], bool)
        bad = wrong[self._codes] | (texts[self._codes] & ~quoted) | np.isin(self._firsts, _NESTED)
        bad |= _escaped(self._inner, quoted)
        bad[forbidden(self._inner, np.flatnonzero(mine))] = True
        numbers = np.flatnonzero(mine & np.isin(self._firsts, _DIGITS))
        if len(numbers):
            whole = pc.match_substring_regex(self._inner.take(pa.array(numbers)).view(pa.string()), _WHOLE)
            bad[numbers] |= ~whole.to_numpy(zero_copy_only=False)
        self.odd[self._owners[bad & mine]] = True
        filled = pc.binary_length(self._inner).to_numpy(zero_copy_only=False) > 0
        for name in REQUIRED:
            self.odd |= self.events & ~_at(filled, self._place(name))
        versions = pc.equal(_taken(self._inner, self._place(VERSION)), b"1.0")
        self.odd |= self.events & ~pc.fill_null(versions, False).to_numpy(zero_copy_only=False)

    def _set_data(self, text: npt.NDArray[np.uint8], begins: Int, ends: Int, quoted: Bool) -> None:
        """Take the data out, and set their content types."""
        places = np.where(self.events, self._place(DATA), -1)
        given = _taken(self._inner, self._place(CONTENT)).view(pa.string())
        self.types = pc.if_else(pa.array(places >= 0), pc.fill_null(given, DEFAULT_CONTENT_TYPE), given)
        self.types = pc.if_else(pa.array(self.events), self.types, None)
        encoded = pc.dictionary_encode(given, null_encoding="encode")
        json = np.array([holds_json(name) for name in encoded.dictionary.to_pylist()], bool)
        inner = _at(quoted, places) & ~json[encoded.indices.to_numpy()]
        rows = np.flatnonzero(places >= 0)
        own, bare = places[rows], inner[rows]
        data = cut(text, begins[own] + bare, ends[own] - bare)
        self.odd[rows[_escaped(data, bare)]] = True
        self.data = self._with_encoded(_taken(data, self._places(rows, np.arange(len(rows)))), text, begins, ends)

    def _with_encoded(
        self, data: pa.BinaryArray, text: npt.NDArray[np.uint8], begins: Int, ends: Int
    ) -> pa.BinaryArray:
        """Return the data with those of events that have them in base64, whose content type is what they say."""
        places = np.where(self.events & ~self.odd, self._place(_ENCODED), -1)
        rows = np.flatnonzero(places >= 0)
        if not len(rows):
            return data
        decoded: list[bytes] = []
        for row, place in zip(rows.tolist(), places[rows].tolist(), strict=True):
            try:
                value = text[begins[place] : ends[place]].tobytes()
                if value[:1] != b'"' or data[row].is_valid:
                    raise ValueError("it is no text, or not the only data")
                decoded.append(base64.b64decode(value[1:-1], validate=True))
            except ValueError:
                self.odd[row] = True
                decoded.append(b"")
        mask = np.zeros(self._rows, bool)
        mask[rows] = True
        return pc.replace_with_mask(data, pa.array(mask), pa.array(decoded, pa.binary()))


def _at(flags: Bool, places: Int) -> Bool:
    """Return the flags at these places; False for -1."""
    return np.append(flags, False)[places]


def _taken(values: pa.BinaryArray, places: Int) -> pa.BinaryArray:
    return values.take(pa.array(places, mask=places < 0))


def _escaped(values: pa.BinaryArray, asked: Bool) -> Bool:
    """Mark those of the *asked* values that hold an escape."""
    escaped = np.zeros(len(values), bool)
    escaped[holding(values, "\\")] = True
    return escaped & asked
