"""Read the CloudEvents envelopes of many records as columns: the column form of ``AttributeRule``.

:func:`bindings.envelope.read_envelope` reads one record; this module reads the parts of many. It decides binary mode
and its absence, for usual names and values, and events in JSON. A *fallback* row is one that
columns cannot decide: events in other modes, anything that makes an event invalid, and encoded values. A fallback row
costs time and changes nothing else, so a row may be one needlessly, never the reverse; a property test compares both.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
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
from bindings.events import (
    DEFAULT_CONTENT_TYPE,
    STRING_ATTRIBUTES,
    NotAnEvent,
    check_depth,
    number_fault,
)
from bindings.parts import BINARY_KIND, JSON_KIND
from catalog.record import MAX_DEPTH
from catalog.schemas.contract import is_json_data
from catalog.values import media_type_of

# CloudEvents in JSON as columns: the column form of :func:`bindings.events.decode_event`, one event at a time.
#
# Fallback rows here: escapes of characters by number, and events that break a rule. A reader of all bodies at once by
# numpy took 3.7, 43 and 17 us where this takes 4.9, 28 and 11 us (373 bytes, 2.5 kB of nested objects, 2.2 kB flat).

VERSION_NAME: Final = "specversion"
CONTENT_TYPE_NAME: Final = "datacontenttype"
_ENCODED: Final = "data_base64"
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_ENCODER: Final = msgspec.json.Encoder()
_NO_ATTRIBUTES: Final = frozenset((DATA, _ENCODED, CONTENT_TYPE_NAME))
_UNDECIDED: Final = (None, None, None, 0)


class JsonEvents:
    """Structured-mode events in bodies. No body is null.

    ``odd`` marks the bodies that the exact codec must read; all else here is undefined for them. Of the others,
    ``events`` marks events: they have a version that is a string; the rest are other JSON objects. ``owners``,
    ``codes`` and ``values`` are the attributes except the content type, in text order: the body of each, the index of
    its name in ``names``, and its text; ``typed`` marks integers and booleans. ``types`` are the content types of the
    data, and ``data`` the data; both are null for none.
    """

    def __init__(self, bodies: pa.BinaryArray) -> None:
        self._numbers: dict[str, int] = {}
        self._codes: list[int] = []
        self._texts: list[str] = []
        typed: list[int] = []
        rows = [self._read_body(body, typed) for body in bodies.to_pylist()]
        found, types, data, counts = zip(*rows, strict=True) if rows else ((), (), (), ())
        self.odd = np.array([each is None for each in found], bool)
        self.types, self.data = pa.array(types, pa.string()), pa.array(data, pa.binary())
        self.names = list(self._numbers)
        self.owners: Int = np.repeat(np.arange(len(rows)), np.array(counts, np.int64))
        self.codes: Int = np.array(self._codes, np.int64)
        self.values = pa.array(self._texts, pa.string()).view(pa.binary())
        self.typed = np.zeros(len(self.codes), bool)
        self.typed[typed] = True
        self.odd[self.owners[find_invalid_strings(self.values)]] = True
        self.odd[find_invalid_strings(self.types)] = True
        self.events = np.array(found, bool) & ~self.odd

    def attribute_column(self, name: str) -> pa.StringArray | None:
        """Return an attribute as a column, null for a body without it; None if no body has it.

        The content type is not such an attribute; see above.
        """
        mine = np.flatnonzero(self.codes == self._numbers.get(name, -1))
        places = np.full(len(self.odd), -1, np.int64)
        places[self.owners[mine]] = mine
        return self.values.take(pa.array(places, mask=places < 0)).view(pa.string()) if len(mine) else None

    def _read_body(self, body: bytes, typed: list[int]) -> tuple[bool | None, str | None, bytes | None, int]:
        """Return whether a body is an event, its content type, its data, and the number of attributes added.

        None in place of a bool: the exact codec must read it. *typed* gets the attributes that are no strings.
        """
        codes, texts, numbers = self._codes, self._texts, self._numbers
        before = len(codes)
        try:
            event = _decode_object(body)
            version = event.get(VERSION_NAME)
            if type(version) is not str:
                return False, None, None, 0
            if version != "1.0" or not (event.get("id") and event.get("source") and event.get("type")):
                return _UNDECIDED
            members = _MEMBERS.decode(body)
            content_type, data = _read_plain_data(event, members)
            for name, value in event.items():
                if value is None or name in _NO_ATTRIBUTES:
                    continue
                codes.append(numbers[name] if name in numbers else self._number_name(name))
                if type(value) is not str:
                    value = bytes(members[name]).decode()
                    if name in STRING_ATTRIBUTES or (value not in ("true", "false") and number_fault(value)):
                        raise ValueError
                    typed.append(len(texts))
                texts.append(value)
            return True, content_type, data, len(codes) - before
        except (ValueError, RecursionError, OverflowError, NotAnEvent):
            del codes[before:], texts[before:]
            while typed and typed[-1] >= before:
                typed.pop()
            return _UNDECIDED

    def _number_name(self, name: str) -> int:
        if not ATTRIBUTE_NAME.fullmatch(name):
            raise ValueError(name)
        return self._numbers.setdefault(name, len(self._numbers))


def _decode_object(body: bytes) -> dict[str, Any]:
    """Decode a JSON object without repeated names.

    Raises:
        ValueError, RecursionError, OverflowError, NotAnEvent: it is none, or may be none.
    """
    if b"\\u" in body:
        raise ValueError
    if len(body) > 2 * MAX_DEPTH and body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        check_depth(body.decode("utf-8"), MAX_DEPTH)
    event: dict[str, Any] = _OBJECT.decode(body)
    # msgspec keeps the last of two members with one name; then fewer colons are left.
    if _ENCODER.encode(event).count(b":") != body.count(b":"):
        raise ValueError
    return event


def _read_plain_data(event: Mapping[str, Any], members: Mapping[str, msgspec.Raw]) -> tuple[str | None, bytes | None]:
    """Return the content type and the data of an event.

    Raises:
        ValueError: one of them breaks a rule.
    """
    content_type, data, encoded = event.get(CONTENT_TYPE_NAME), event.get(DATA), event.get(_ENCODED)
    if content_type is not None and type(content_type) is not str:
        raise ValueError
    if encoded is not None:
        if data is not None or type(encoded) is not str:
            raise ValueError
        return content_type, base64.b64decode(encoded, validate=True)
    if data is None:
        return content_type, None
    raw = data.encode() if type(data) is str and not is_json_data(content_type) else bytes(members[DATA])
    return DEFAULT_CONTENT_TYPE if content_type is None else content_type, raw


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
        self.odd |= entries.rows_with_repeats(mine, self._roles.attributes[entries.numbers])
        sound = pc.equal(self._texts[VERSION_NAME], "1.0")
        for name in REQUIRED:
            sound = pc.and_(sound, pc.greater(pc.binary_length(self.attribute_column(name)), 0))
        self.odd |= self.events & ~pc.fill_null(sound, False).to_numpy(zero_copy_only=False)

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
