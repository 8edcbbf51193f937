"""Envelopes of many records by columns: the second evaluation of :class:`bindings.envelope.AttributeRule`.

:func:`bindings.envelope.envelope_of` reads one record, this reads the parts of many. What is settled here is binary
mode and its absence, for names and values as clients write them; events in JSON are read by
:mod:`bindings.columns.json_events` and then stand here as well. A row is *odd* where columns may not settle it: events
in other modes, whatever makes an event invalid, and values that mean something else than what is written. Being odd
costs time and changes nothing else, so the condition may err on that side only; a property test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.json_events import CONTENT, VERSION, JsonEvents
from bindings.columns.texts import Bool, Int, PartEntries, beginnings, forbidden, holding, printable, texts_of, valid
from bindings.envelope import (
    ATTRIBUTE_NAME,
    DATA,
    EVENT_MEDIA,
    NO_NUMBERS,
    REQUIRED,
    STRUCTURED,
    AttributeRule,
    attribute_name,
)
from bindings.events import TEXTS
from bindings.parts import BINARY_KIND, JSON_KIND
from catalog.values import media_type_of

_NO_NUMBERS: Final = pa.array([text.decode() for text in NO_NUMBERS])
_INITIALS: Final = np.frombuffer(b"".join(text[:1] for text in NO_NUMBERS), np.uint8)
_FEW: Final = 64
"""Attributes that are looked at one by one for repeats, which is quicker than sorting all entries."""
_TYPED: Final = r"^(?:true|false|-?[0-9]{1,9})$"
"""The JSON texts of values that CloudEvents has types for; the codec looks at integers that may be beyond 32 bits."""


@dataclass(slots=True)
class _Roles:
    """What names mean, by their number.

    ``attributes`` is the place of the attribute in ``places``, -1 for none; ``prefixed`` marks names below the prefix
    of attributes, well-formed or not, ``malformed`` those of them that make an event invalid. ``encoded`` and ``typed``
    are as in the rule, ``texts`` marks attributes that are nothing but texts; ``contents`` are the names of the
    content type.
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

    ``rules`` are those of the groups of rows, by number, and ``binary`` marks which of them have binary mode.

    ``odd`` marks the rows to be read by the exact codec; nothing else here means anything for them. Of the others
    ``events`` marks the CloudEvents, and ``binary`` those of them in binary mode. ``types`` are the content types: of
    an event that of its data, else the native one; ``contents`` the entry that says it, -1 for none. ``structured``
    marks the rows whose body is an event in JSON, ``sniffable`` those whose body may be one where a channel lets it:
    :meth:`hold` gets the rows of both kinds that are events.
    """

    def __init__(self, entries: PartEntries, rules: Sequence[AttributeRule], binary: Sequence[bool]) -> None:
        self.entries = entries
        self._roles = _roles(entries, rules, binary)
        self._texts: dict[str, pa.StringArray] = {}
        self.odd = entries.broken.copy()
        self.contents, _ = entries.leading(entries.called(self._roles.contents))
        self.types = self._content_types()
        self.json: JsonEvents | None = None
        self.json_rows: Int = np.zeros(0, np.int64)
        """The rows of :attr:`json`, ascending."""
        plain, self.structured = self._media()
        self.binary = self._events()
        self.events = self.binary
        self.sniffable = plain & ~self.events
        self.attributes = self._attributes()
        """The entries that are attributes of events, but for the content type; ascending."""
        self._hold_values()
        self._own_content()

    def hold(self, rows: Int, json: JsonEvents) -> None:
        """Take the events in JSON that these rows are; rows that are none of them stay as they are."""
        mine = np.flatnonzero(json.events & ~json.odd)
        self.json, self.json_rows = json, rows
        self.odd[rows[json.odd]] = True
        self.odd[rows[self.structured[rows] & ~json.events]] = True
        self.events = self.binary.copy()
        self.events[rows[mine]] = True
        self.contents[rows[mine]] = -1
        self.types = self._with_json(self.types, json.types)
        self._texts.clear()

    def attribute(self, name: str) -> pa.StringArray:
        """Return an attribute of all events as text; null where an event has none, and for native rows."""
        if name == CONTENT:
            return pc.if_else(pa.array(self.events), self.types, pa.scalar(None, pa.string()))
        known = self._texts.get(name)
        if known is None:
            known = texts_of(self.entries.bytes_of(self.entry_of(name)))
            if self.json is not None and (own := self.json.text(name)) is not None:
                known = self._with_json(known, own)
            self._texts[name] = known
        return known

    def entry_of(self, name: str) -> Int:
        """Return the entry of every event in binary mode that carries this attribute, -1 for none."""
        places, _ = self.entries.leading(self._called(name))
        return np.where(self.binary, places, -1)

    @property
    def from_json(self) -> Bool:
        """Mark the events in JSON."""
        return self.events & ~self.binary

    def data_or(self, bodies: pa.BinaryArray) -> pa.BinaryArray:
        """Return bodies with the data of events in JSON in the place of those."""
        return bodies if self.json is None else self._with_json(bodies, self.json.data)

    def _with_json(self, values: pa.Array, own: pa.Array) -> pa.Array:
        """Return a column with the values of the events in JSON in their rows."""
        assert self.json is not None
        mask = np.zeros(self.entries.rows, bool)
        mask[self.json_rows] = self.json.events
        return pc.replace_with_mask(values, pa.array(mask), own.filter(pa.array(self.json.events)))

    @property
    def prefixed(self) -> Bool:
        """By the numbers of names, which are below the prefix of attributes; in events such names mean nothing else."""
        return self._roles.prefixed

    @property
    def typed(self) -> Bool:
        """By the numbers of names, whether values have types of their own."""
        return self._roles.typed

    @property
    def attribute_names(self) -> list[str]:
        """By the numbers of names, the attribute that each stands for; empty for none."""
        names = [*self._roles.places, ""]
        return [names[place] for place in self._roles.attributes.tolist()]

    def _called(self, name: str) -> Int:
        place = self._roles.places.get(name)
        numbers = np.flatnonzero(self._roles.attributes == place) if place is not None else np.zeros(0, np.int64)
        return self.entries.called(numbers.tolist())

    def _content_types(self) -> pa.StringArray:
        types = texts_of(self.entries.bytes_of(self.contents))
        self.odd |= (self.contents >= 0) & ~valid(types)
        return types

    def _media(self) -> tuple[Bool, Bool]:
        """Mark rows as odd whose media type is one of events, other than that of one event in JSON.

        Returns the rows with no media type, or that of JSON; and those with that of an event in JSON.
        """
        encoded = pc.dictionary_encode(self.types, null_encoding="encode")
        media = [media_type_of(text) for text in encoded.dictionary.to_pylist()]
        places = encoded.indices.to_numpy()
        self.odd |= np.array([each.startswith(EVENT_MEDIA) and each != STRUCTURED for each in media], bool)[places]
        # It may be no attribute, if the row is no event; that is for the codec to find out.
        self.odd |= ~pc.fill_null(printable(encoded.dictionary), True).to_numpy(zero_copy_only=False)[places]
        plain: Bool = np.array([each in ("", "application/json") for each in media], bool)[places]
        structured: Bool = np.array([each == STRUCTURED for each in media], bool)[places]
        return plain, structured

    def _events(self) -> Bool:
        """Mark the events in binary mode: those with a version."""
        places, _ = self.entries.leading(self._called(VERSION))
        versions = self._texts[VERSION] = texts_of(self.entries.bytes_of(places))
        events = valid(versions)
        self.odd |= (places >= 0) & (~events | self.structured)
        return events & ~self.structured

    def _attributes(self) -> Int:
        roles, entries = self._roles, self.entries
        mine = (roles.attributes >= 0)[entries.numbers] & self.events[entries.owners]
        if entries.filled is not None:
            mine &= entries.filled
        if roles.malformed.any():
            bad = roles.malformed[entries.numbers] & self.events[entries.owners]
            self.odd[entries.owners[bad]] = True
        return np.flatnonzero(mine)

    def _hold_values(self) -> None:
        """Mark events as odd that lack a required attribute, repeat one, or have a value that needs decoding."""
        entries, mine = self.entries, self.attributes
        numbers = entries.numbers[mine]
        held = entries.values.take(pa.array(mine))
        bad = entries.are(BINARY_KIND)[mine] | self._doubtful(texts_of(held), mine, numbers)
        bad[forbidden(held)] = True
        self.odd[entries.owners[mine[bad]]] = True
        self.odd |= self._repeated(numbers)
        sound = pc.equal(self._texts[VERSION], "1.0")
        for name in REQUIRED:
            sound = pc.and_(sound, pc.greater(pc.binary_length(self.attribute(name)), 0))
        self.odd |= self.events & ~pc.fill_null(sound, False).to_numpy(zero_copy_only=False)

    def _repeated(self, numbers: Int) -> Bool:
        """Mark rows that have two entries for one attribute."""
        owners, places = self.entries.owners[self.attributes], self._roles.attributes[numbers]
        repeated = np.zeros(self.entries.rows, bool)
        count = len(self._roles.places)
        if count <= _FEW:
            for place in range(count):
                mine = owners[places == place]
                repeated[mine[1:][mine[1:] == mine[:-1]]] = True
        else:
            pairs = np.sort(owners * count + places)
            repeated[pairs[1:][pairs[1:] == pairs[:-1]] // count] = True
        return repeated

    def _doubtful(self, texts: pa.StringArray, mine: Int, numbers: Int) -> Bool:
        """Mark values that are no text, that HTTP or NATS would decode, or whose type CloudEvents may lack."""
        bad = ~valid(texts)
        if texts.null_count:
            texts = pc.fill_null(texts, "")
        encoded, typed = self._roles.encoded[numbers], self._roles.typed[numbers]
        firsts = beginnings(texts)
        if encoded.any():
            percent = holding(texts, "%")
            bad[percent] |= encoded[percent]
            bad |= encoded & (firsts == ord('"'))
        if typed.any():
            near = np.flatnonzero(typed & np.isin(firsts, _INITIALS))
            bad[near] |= pc.is_in(texts.take(pa.array(near)), _NO_NUMBERS).to_numpy(zero_copy_only=False)
            json = np.flatnonzero(typed & self.entries.are(JSON_KIND)[mine])
            known = pc.match_substring_regex(texts.take(pa.array(json)), _TYPED)
            bad[json] = ~known.to_numpy(zero_copy_only=False) | self._roles.texts[numbers[json]]
        return bad

    def _own_content(self) -> None:
        """Put an attribute ``datacontenttype`` in the place of the native content type, where events have one."""
        own = self.entry_of(CONTENT)
        named = own >= 0
        if named.any():
            self.contents = np.where(named, own, self.contents)
            self.types = texts_of(self.entries.bytes_of(self.contents))
            place = self._roles.places[CONTENT]
            numbers = self.entries.numbers[self.attributes]
            self.attributes = self.attributes[self._roles.attributes[numbers] != place]


def _roles(entries: PartEntries, rules: Sequence[AttributeRule], binary: Sequence[bool]) -> _Roles:
    size = len(entries.pairs)
    flags = [np.zeros(size, bool) for _ in range(5)]
    roles = _Roles(np.full(size, -1, np.int64), flags[0], flags[1], flags[2], flags[3], flags[4])
    for number, (group, key) in enumerate(entries.pairs):
        rule = rules[group]
        if key == rule.content_type or (rule.content_type == "headers.content-type" == key.lower()):
            roles.contents.append(number)
        name = attribute_name(key, rule)
        if name is None:
            continue
        roles.prefixed[number] = True
        if not binary[group]:
            continue
        roles.encoded[number], roles.typed[number], roles.texts[number] = rule.encoded, rule.typed, name in TEXTS
        if name == DATA or not ATTRIBUTE_NAME.fullmatch(name):
            roles.malformed[number] = rule.strict
        elif name != CONTENT or rule.own_datacontenttype:
            roles.attributes[number] = roles.places.setdefault(name, len(roles.places))
    return roles
