"""Routed events as the columns of tables, and native records as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Entries, Int, encode_base64, is_not_null
from bindings.envelope import ATTRIBUTE_NAME, DATA, EVENT_MEDIA, AttributeRule, attribute_of_key, decode_header
from bindings.events import DEFAULT_CONTENT_TYPE, build_data_member, encode_event, restore_types
from bindings.kafka.binding import RULE
from bindings.parts import BINARY_KIND, JSON_KIND, NativeForm, Part, native_of
from bindings.protocols import BINDINGS, binding_of
from catalog.record import MAX_DEPTH
from catalog.schemas.contract import is_json
from catalog.values import media_type_of
from router.rendering.texts import (
    ATTRIBUTE_COLUMNS,
    EVENT_TYPE,
    NO_ROWS,
    TEXT_MAP,
    Bytes,
    SourceKind,
    TextPieces,
    attribute_of_header,
    bytes_and_offsets,
    concat_texts,
    decode_texts,
    escape_json,
    event_attributes,
    find_owners,
    join_entries,
    join_runs,
    native_json,
    nulls_to_empty,
    nulls_to_json,
    parse_instants,
    parts_of_raw,
    placed,
    render_event,
    replace_rows,
    take_rows,
)

# Native records (MATCHING.md#records) of many rows as JSON, without bodies, as the exact codec writes them.

# Native records of rows that hold parts, as inbox and dead letters do, as JSON without bodies.
#
# Entries become text by what their keys mean in the protocol's layout: items of a list, members of a map, members of
# the record. A row is *odd* where that is not all: members that repeat or come apart, and protocols with a form of
# their own.

_SCALAR, _LIST, _MAP = range(3)
_BEGINS, _FOLLOWS, _GOES_ON = range(3)
"""An entry begins its row, begins another member of it, or is one more item of the member before."""
_LABELS: Final = pa.array(["", '"value":', '"value_base64":'])
_ENDS: Final = pa.array(["", "", "}", "}]", "", "}"])
"""What follows an entry, by its role and whether it is the last of its member."""
_CANONICAL_JSON: Final = r"^(?:0|-?[1-9][0-9]{0,17}|true|false|null)$"
"""JSON that decoding and encoding do not change."""
_NO_LISTS: Final = NativeForm()


def inbox_native_texts(raw: pa.StructArray) -> tuple[pa.StringArray, Bool]:
    """Return the native records of rows with ``protocol`` and ``properties``, and which rows are odd."""
    protocols = pc.fill_null(pc.struct_field(raw, "protocol"), "").dictionary_encode()
    bindings = [binding_of(name) or BINDINGS["HTTP"] for name in protocols.dictionary.to_pylist()]
    numbers = protocols.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    lists = pc.struct_field(raw, "properties")
    entries, kinds = Entries(lists), lists.flatten().field("type")
    layout = _layout_entries(entries, [binding.form or _NO_LISTS for binding in bindings], numbers)
    labels, values = _encode_values(entries, kinds, layout)
    ends = _ENDS.take(pa.array(layout.roles * 2 + layout.is_last))
    texts = concat_texts(layout.prefixes, _LABELS.take(pa.array(labels)), values, ends)
    odd = np.array([binding.form is None for binding in bindings], bool)[numbers] | _find_fallback_rows(entries, layout)
    return concat_texts("{", join_runs(texts, entries.offsets), "}"), odd


@dataclass(frozen=True, slots=True)
class _EntryLayout:
    """Per entry: its role, its member's number, what is written before its value, where it stands among others."""

    roles: Int
    member_numbers: Int
    prefixes: pa.StringArray
    positions: Int
    is_last: Bool


def _layout_entries(entries: Entries, forms: Sequence[NativeForm], numbers: Int) -> _EntryLayout:
    pairs, meant = entries.distinct_pairs(numbers)
    meanings = [_role_of_key(key, forms[number]) for number, key in pairs]
    known = {member: number for number, member in enumerate(dict.fromkeys(member for _, member, _ in meanings))}
    roles = np.array([role for role, _, _ in meanings], np.int64)[meant]
    members = np.array([known[member] for _, member, _ in meanings], np.int64)[meant]
    same = np.zeros(len(roles) + 1, bool)
    same[1:-1] = (entries.owners[1:] == entries.owners[:-1]) & (members[1:] == members[:-1]) & (roles[1:] != _SCALAR)
    places = np.where(same[:-1], _GOES_ON, _FOLLOWS)
    offsets = entries.offsets
    places[offsets[:-1][np.diff(offsets) > 0]] = _BEGINS
    pieces = [piece for meaning in meanings for piece in _entry_prefixes(*meaning)]
    begins = pa.array(pieces, pa.string()).take(pa.array(meant * 3 + places))
    return _EntryLayout(roles, members, begins, places, ~same[1:])


def _role_of_key(key: str, form: NativeForm) -> tuple[int, str, str]:
    """Return role, member and name of parts of that key; the name of a member without parts is empty."""
    member, _, name = key.partition(".")
    if member in form.lists:
        return _LIST, member, name
    return (_MAP, member, name) if member in form.maps else (_SCALAR, key, "")


def _entry_prefixes(role: int, member: str, name: str) -> tuple[str, str, str]:
    opened, named = _to_json_string(member), _to_json_string(name)
    if role == _SCALAR:
        return f"{opened}:", f",{opened}:", ""
    begin = f'{opened}:[{{"name":{named},' if role == _LIST else f"{opened}:{{{named}:"
    return begin, f",{begin}", f',{{"name":{named},' if role == _LIST else f",{named}:"


def _to_json_string(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _encode_values(entries: Entries, kinds: pa.StringArray, layout: _EntryLayout) -> tuple[Int, pa.StringArray]:
    """Return the label and the JSON of each entry's value, as :func:`bindings.parts.native_of` has it."""
    listed = layout.roles == _LIST
    labels = listed.astype(np.int64)
    texts, broken = decode_texts(entries.values)
    values = nulls_to_json(concat_texts('"', escape_json(texts), '"'))
    if len(broken):
        # A list has an item that is no text as base64; elsewhere it is text with marks for what is none.
        labels[broken] *= 2
        coded = np.flatnonzero(labels == 2)
        values = replace_rows(values, coded, concat_texts('"', encode_base64(take_rows(entries.values, coded)), '"'))
        shown = broken[~listed[broken]]
        texts_shown = [
            _to_json_string(value.decode("utf-8", "replace")) for value in take_rows(entries.values, shown).to_pylist()
        ]
        values = replace_rows(values, shown, pa.array(texts_shown, pa.string()))
    if kinds.null_count == len(kinds):
        return labels, values
    there = entries.values.is_valid().to_numpy(zero_copy_only=False)
    binary = np.flatnonzero(_is_kind(kinds, BINARY_KIND) & there & ~listed)
    coded_texts = encode_base64(take_rows(entries.values, binary))
    dotted = np.array(["." in name for name in entries.names], bool)[entries.codes[binary]]
    objects = pc.if_else(
        pa.array(dotted), concat_texts('{"base64":"', coded_texts, '"}'), concat_texts('"', coded_texts, '"')
    )
    values = replace_rows(values, binary, objects)
    json = np.flatnonzero(_is_kind(kinds, JSON_KIND) & there)
    labels[json] = listed[json]
    return labels, replace_rows(values, json, _normalize_json(take_rows(entries.values, json)))


def _normalize_json(values: pa.BinaryArray) -> pa.StringArray:
    """Return JSON texts as they come out of decoding and encoding."""
    texts, _ = decode_texts(values)
    same = pc.fill_null(pc.match_substring_regex(texts, _CANONICAL_JSON), False).to_numpy(zero_copy_only=False)
    other = np.flatnonzero(~same)
    distinct = take_rows(values, other).dictionary_encode()
    read = (native_of([Part("value", value, JSON_KIND)], _NO_LISTS) for value in distinct.dictionary.to_pylist())
    written = pa.array([msgspec.json.encode(native["value"]).decode() for native in read], pa.string())
    return replace_rows(texts, other, written.take(distinct.indices))


def _is_kind(kinds: pa.StringArray, kind: str) -> Bool:
    equal: Bool = pc.fill_null(pc.equal(kinds, kind), False).to_numpy(zero_copy_only=False)
    return equal


def _find_fallback_rows(entries: Entries, layout: _EntryLayout) -> Bool:
    """Return the rows where a member stands twice, or has one name twice: the last would count."""
    begun = np.flatnonzero(layout.positions != _GOES_ON)
    odd = _rows_with_repeats(entries, begun, layout.member_numbers)
    named = np.flatnonzero(layout.roles == _MAP)
    odd |= _rows_with_repeats(entries, named, entries.codes.astype(np.int64))
    bare = np.array(["." not in name for name in entries.names], bool)[entries.codes[named]]
    return odd | entries.rows_with(named[bare])


def _rows_with_repeats(entries: Entries, at: Int, numbers: Int) -> Bool:
    """Return the rows where two of the entries *at* have the same number."""
    width = int(numbers.max(initial=0)) + 1
    pairs = np.sort(entries.owners[at] * width + numbers[at])
    rows = np.zeros(entries.rows, bool)
    rows[pairs[1:][pairs[1:] == pairs[:-1]] // width] = True
    return rows


_NUMBERS: Final = ("partition", "offset", "timestamp")


def native_texts(kind: SourceKind, raw: pa.StructArray, place: pa.Int32Array) -> pa.StringArray:
    """Return the native record of each row as JSON, without the body.

    ``raw`` has the columns of the source without the body (``RAW_COLUMNS`` in :mod:`router.evaluation.outcome_rows`).
    ``place`` is that of an event in its batch, null outside of one.
    """
    if kind == "kafka":
        texts, odd = _kafka_native_texts(raw)
    else:
        texts, odd = inbox_native_texts(raw)
    odd |= place.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(odd | texts.is_null().to_numpy(zero_copy_only=False))
    if not len(rows):
        return texts
    some = pa.array(rows)
    given = zip(raw.take(some).to_pylist(), place.take(some).to_pylist(), strict=True)
    exact = [native_json(*parts_of_raw(row, kind, at)) for row, at in given]
    return replace_rows(texts, rows, pa.array(exact, pa.string()))


def _kafka_native_texts(raw: pa.StructArray) -> tuple[pa.StringArray, Bool]:
    """Return the texts of rows of Kafka, null where a member is null that records of Kafka have; and odd rows."""
    lists = pc.struct_field(raw, "headers")
    headers = Entries(lists)
    numbers = [pc.struct_field(raw, name).cast(pa.string()) for name in _NUMBERS]
    some = pa.array(np.diff(headers.offsets) > 0)
    listed = join_entries(
        headers.names,
        headers.codes,
        headers.offsets,
        lambda name: f'{{"name":"{name}",',
        _header_values(headers.values),
        "}",
    )
    texts = concat_texts(
        '{"topic":"',
        escape_json(pc.struct_field(raw, "topic")),
        '","partition":',
        numbers[0],
        ',"offset":',
        numbers[1],
        ',"timestamp":',
        numbers[2],
        pc.if_else(some, concat_texts(',"headers":[', listed, "]"), ""),
        nulls_to_empty(_bytes_member("key", pc.struct_field(raw, "key"))),
        "}",
    )
    return texts, headers.rows_with(np.flatnonzero(lists.flatten().field("key").is_null()))


def _bytes_member(name: str, values: pa.BinaryArray) -> pa.StringArray:
    """Return a member that is text or base64, with a comma before it; null for null."""
    texts, broken = decode_texts(values)
    members = concat_texts(f',"{name}":"', escape_json(texts), '"')
    encoded = encode_base64(values.take(pa.array(broken)))
    return replace_rows(members, broken, concat_texts(f',"{name}_base64":"', encoded, '"'))


def _header_values(values: pa.BinaryArray) -> pa.StringArray:
    """Return the member with an entry's value: text, base64 or null."""
    texts, broken = decode_texts(values)
    members = concat_texts('"value":"', escape_json(texts), '"')
    if members.null_count:
        members = pc.fill_null(members, '"value":null')
        coded = encode_base64(values.take(pa.array(broken)))
        members = replace_rows(members, broken, concat_texts('"value_base64":"', coded, '"'))
    return members


# Routed events as the columns of tables.

# The attributes of many events at once: those that outcomes give, else what the records themselves carry.
#
# Columns settle ordinary rows. A row is *odd* where they may not: repeated or malformed names, values that are no
# UTF-8, media types of whole events. Being odd costs time and changes nothing else.

CONTENT_TYPE: Final = "datacontenttype"
_VERSION: Final = "specversion"
_NONE: Final = -1
"""The code of what is no attribute."""
_FALLBACK: Final = -2
"""The code of what the exact reading has to look at."""
_NO_NUMBERS: Final = pa.array([b"NaN", b"Infinity", b"-Infinity"])


@dataclass(frozen=True, slots=True)
class EventAttributes:
    """Attributes of *rows* events, in the order of the rows and within a row as the event has them.

    ``codes`` are places in ``names``. ``fallback`` marks the rows that have none here: the exact reading decides.
    """

    rows: int
    owners: Int
    names: tuple[str, ...]
    codes: Int
    texts: pa.StringArray
    fallback: Bool

    def entries_of(self, name: str) -> Bool:
        """Return which entries are of that attribute."""
        entries: Bool = self.codes == (self.names.index(name) if name in self.names else _NONE)
        return entries


@dataclass(frozen=True, slots=True)
class _AttributeEntries:
    """Entries that may carry attributes: ``numbers`` name each row's rule, *prefix* stands before names in part keys.

    ``kinds`` are those of parts (:mod:`bindings.parts`), None where all values are texts.
    """

    entries: Entries
    rules: Sequence[AttributeRule]
    numbers: Int
    prefix: str
    kinds: pa.StringArray | None = None

    def find_unusual(self, kept: Int, values: pa.BinaryArray) -> Bool:
        """Return which of the entries *kept* are of a kind of their own, or may be: ``NaN`` where values are typed."""
        unusual = np.zeros(len(kept), bool)
        if self.kinds is not None and self.kinds.null_count < len(self.kinds):
            unusual |= self.kinds.is_valid().to_numpy(zero_copy_only=False)[kept]
        if any(rule.typed for rule in self.rules):
            unusual |= pc.is_in(values, _NO_NUMBERS).to_numpy(zero_copy_only=False)
        return unusual


def read_attributes(
    kind: SourceKind, raw: pa.StructArray, given: pa.ListArray, place: pa.Int32Array
) -> EventAttributes:
    """Return the attributes of routed rows; for what the arrays are see :func:`router.rendering.events.event_columns`.

    In rows that are not odd they are those of :func:`router.rendering.texts.event_attributes`, in the same order.
    """
    own = given.is_null().to_numpy(zero_copy_only=False)
    if not own.any():
        return _attributes_of_headers(given)
    alone = place.is_null().to_numpy(zero_copy_only=False)
    if kind == "kafka":
        entries = Entries(pc.struct_field(raw, "headers"))
        carried = _read_binary_attributes(
            _AttributeEntries(entries, [RULE], np.zeros(len(raw), np.int64), "headers."), own & alone
        )
    else:
        carried = _attributes_of_parts(raw, own & alone)
    carried.fallback[own & ~alone] = True
    return carried if own.all() else _merge_attributes(_attributes_of_headers(given), carried)


def _attributes_of_headers(lists: pa.ListArray) -> EventAttributes:
    """Return attributes that stand as headers of Kafka's binary mode."""
    entries = Entries(lists)
    names, codes = _number_names([attribute_of_header(name) for name in entries.names])
    texts, _ = decode_texts(entries.values)
    attributes = EventAttributes(
        entries.rows, entries.owners, names, codes[entries.codes], texts, np.zeros(entries.rows, bool)
    )
    return _drop_fallback_rows(attributes, texts.is_null().to_numpy(zero_copy_only=False))


def _attributes_of_parts(raw: pa.StructArray, mine: Bool) -> EventAttributes:
    protocols = pc.fill_null(pc.struct_field(raw, "protocol"), "").dictionary_encode()
    bindings = [binding_of(name) or BINDINGS["HTTP"] for name in protocols.dictionary.to_pylist()]
    numbers = protocols.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    has_headers = np.array([binding.binary for binding in bindings], bool)[numbers]
    lists = pc.struct_field(raw, "properties")
    rules, kinds = [binding.rule for binding in bindings], lists.flatten().field("type")
    return _read_binary_attributes(_AttributeEntries(Entries(lists), rules, numbers, "", kinds), mine & has_headers)


def _read_binary_attributes(carriers: _AttributeEntries, mine: Bool) -> EventAttributes:
    """Return the attributes of binary mode in rows that are *mine*, as ``Binding.read_envelope`` has them without a
    body.
    """
    entries, rules, numbers = carriers.entries, carriers.rules, carriers.numbers
    pairs, places = entries.distinct_pairs(numbers)
    asked = [(f"{carriers.prefix}{name}", rules[number]) for number, name in pairs]
    names, codes = _number_names([_attribute_of_part(key, rule) for key, rule in asked])
    entry_codes = codes[places]
    # A header without a value counts as absent.
    there = entries.values.is_valid().to_numpy(zero_copy_only=False)
    kept = np.flatnonzero((entry_codes != _NONE) & mine[entries.owners] & there)
    last = np.array([_is_content_type(key, rule) for key, rule in asked], bool)[places[kept]]
    order = np.argsort(entries.owners[kept] * 2 + last, kind="stable")
    kept, last = kept[order], last[order]
    values = entries.values.take(pa.array(kept))
    texts, _ = decode_texts(values)
    doubtful = texts.is_null().to_numpy(zero_copy_only=False) | carriers.find_unusual(kept, values)
    doubtful[last] |= _is_event_media(texts.filter(pa.array(last)))
    encoded = np.array([rule.encoded for rule in rules], bool)[numbers[entries.owners[kept]]] & ~last
    texts = _decode_headers(texts, encoded, doubtful)
    odd = np.zeros(entries.rows, bool)
    return _drop_non_events(
        _drop_fallback_rows(
            EventAttributes(entries.rows, entries.owners[kept], names, entry_codes[kept], texts, odd), doubtful
        )
    )


def _attribute_of_part(key: str, rule: AttributeRule) -> str | int:
    """Return the attribute that parts of that key give, or the code of none or of odd."""
    if _is_content_type(key, rule):
        return CONTENT_TYPE
    name = attribute_of_key(key, rule)
    if name is None or (name == CONTENT_TYPE and not rule.own_datacontenttype):
        return _NONE
    if name == DATA or not ATTRIBUTE_NAME.fullmatch(name):
        return _FALLBACK if rule.strict else _NONE
    return name


def _is_content_type(key: str, rule: AttributeRule) -> bool:
    return key == rule.content_type or key.lower() == rule.content_type == "headers.content-type"


def _number_names(attributes: Sequence[str | int]) -> tuple[tuple[str, ...], Int]:
    """Return the names among these, and for each its place there; codes stay what they are."""
    places: dict[str, int] = {}
    codes = [each if isinstance(each, int) else places.setdefault(each, len(places)) for each in attributes]
    return tuple(places), np.array(codes, np.int64)


def _is_event_media(texts: pa.StringArray) -> Bool:
    """Return which content types are of whole events, whose attributes are in the body."""
    distinct = texts.dictionary_encode()
    events = [
        text is not None and media_type_of(text).startswith(EVENT_MEDIA) for text in distinct.dictionary.to_pylist()
    ]
    whole: Bool = np.array([*events, False])[pc.fill_null(distinct.indices, -1).to_numpy(zero_copy_only=False)]
    return whole


def _decode_headers(texts: pa.StringArray, encoded: Bool, doubtful: Bool) -> pa.StringArray:
    """Return header values decoded, of which most have none of the marks of an encoding."""
    if not encoded.any():
        return texts
    marked = pc.or_(pc.match_substring(texts, "%"), pc.starts_with(texts, '"'))
    at = np.flatnonzero(encoded & pc.fill_null(marked, False).to_numpy(zero_copy_only=False))
    plain = [decode_header(text) for text in texts.take(pa.array(at)).to_pylist()]
    doubtful[at] |= np.array([text is None for text in plain], bool)
    return replace_rows(texts, at, pa.array(plain, pa.string()))


def _drop_fallback_rows(attributes: EventAttributes, doubtful: Bool) -> EventAttributes:
    """Return the attributes without those of rows that are odd: with a doubtful entry, or one name twice."""
    owners, codes, odd = attributes.owners, attributes.codes, attributes.fallback
    odd[owners[doubtful | (codes == _FALLBACK)]] = True
    width = len(attributes.names) - _FALLBACK
    ordered = np.sort(owners * width + codes - _FALLBACK)
    odd[ordered[1:][ordered[1:] == ordered[:-1]] // width] = True
    return _filter_attributes(attributes, ~odd[owners]) if odd.any() else attributes


def _drop_non_events(attributes: EventAttributes) -> EventAttributes:
    """Return the attributes without those of rows that are no events in binary mode."""
    events = np.zeros(attributes.rows, bool)
    events[attributes.owners[attributes.entries_of(_VERSION)]] = True
    kept = events[attributes.owners]
    return attributes if kept.all() else _filter_attributes(attributes, kept)


def _filter_attributes(attributes: EventAttributes, kept: Bool) -> EventAttributes:
    return EventAttributes(
        attributes.rows,
        attributes.owners[kept],
        attributes.names,
        attributes.codes[kept],
        attributes.texts.filter(pa.array(kept)),
        attributes.fallback,
    )


def _merge_attributes(one: EventAttributes, other: EventAttributes) -> EventAttributes:
    """Return the attributes of two groups of rows of one batch."""
    names, codes = _number_names((*one.names, *other.names))
    owners = np.concatenate((one.owners, other.owners))
    order = np.argsort(owners, kind="stable")
    mine, others = codes[: len(one.names)], codes[len(one.names) :]
    return EventAttributes(
        one.rows,
        owners[order],
        names,
        np.concatenate((mine[one.codes], others[other.codes]))[order],
        pa.concat_arrays([one.texts, other.texts]).take(pa.array(order)),
        one.fallback | other.fallback,
    )


def event_columns(
    kind: SourceKind, raw: pa.StructArray, attributes: pa.ListArray, place: pa.Int32Array
) -> pa.StructArray:
    """Return the struct ``EVENT`` of each routed row.

    ``raw`` has the columns of the source without the body (``RAW_COLUMNS`` in :mod:`router.evaluation.outcome_rows`).
    ``attributes`` are an outcome's, as headers of Kafka's binary mode, null where the record's
    own serve; ``place`` is that of an event in its batch, null outside of one. The arrays are of one length, and may be
    slices. Every row comes out as :func:`router.rendering.texts.render_event` has it.
    """
    resolved = read_attributes(kind, raw, attributes, place)
    named = _standard_columns(resolved)
    times = named["time"]
    columns = [
        *(named[name] for name in ATTRIBUTE_COLUMNS),
        parse_instants(times),
        times,
        _extension_maps(resolved),
        native_texts(kind, raw, place),
    ]
    events = pa.StructArray.from_arrays(columns, fields=list(EVENT_TYPE))
    odd = np.flatnonzero(resolved.fallback)
    if not len(odd):
        return events
    some = pa.array(odd)
    rows = zip(raw.take(some).to_pylist(), attributes.take(some).to_pylist(), place.take(some).to_pylist(), strict=True)
    exact = [render_event(*parts_of_raw(row, kind, at), given) for row, given, at in rows]
    return replace_rows(events, odd, pa.array(exact, EVENT_TYPE))


def _standard_columns(attributes: EventAttributes) -> dict[str, pa.StringArray]:
    """Return the attributes that have a column of their own, by name."""
    return {name: attribute_values(attributes, name) for name in (*ATTRIBUTE_COLUMNS, "time")}


def attribute_values(attributes: EventAttributes, name: str) -> pa.StringArray:
    """Return the attribute of that name for each row, null where an event has none."""
    entries = np.flatnonzero(attributes.entries_of(name))
    if not len(entries):
        return pa.nulls(attributes.rows, pa.string())
    indices = np.full(attributes.rows, -1, np.int64)
    indices[attributes.owners[entries]] = entries
    return attributes.texts.take(pa.array(indices, mask=indices < 0))


def _extension_maps(attributes: EventAttributes) -> pa.MapArray:
    """Return the attributes without a column, in their order."""
    columns = {*ATTRIBUTE_COLUMNS, "time"}
    other = np.array([name not in columns for name in attributes.names], bool)
    entries = np.flatnonzero(other[attributes.codes])
    counts = np.bincount(attributes.owners[entries], minlength=attributes.rows)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    names = pa.array(attributes.names, pa.string()).take(pa.array(attributes.codes[entries]))
    texts = attributes.texts.take(pa.array(entries))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, texts).cast(TEXT_MAP)


# Routed events in structured mode: JSON with their data in it.

# The data of JSON events: which bodies are JSON that may stand there as they are, decided for many at once.
#
# msgspec reads the bodies as the items of one array, which shows each to be JSON. That no object in them has a key
# twice, which ``bindings.events`` refuses as well, is seen from the places of quotes and braces. The exact reading
# decides what neither settles.

_ARRAY_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_QUOTE, _BACKSLASH, _COLON, _OPEN, _CLOSE, _BRACKET = (ord(each) for each in '"\\:{}[')
_SPACE: Final = 0x20
_BLANKS: Final = np.frombuffer(b" \t\r\n", np.uint8)
_WORD_BYTES: Final = 8
"""Bytes at the begin and at the end of a key that are looked at."""
_MASKS: Final = np.array([(1 << 8 * length) - 1 for length in range(_WORD_BYTES + 1)], np.uint64)
_FACTORS: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
UInt64s = npt.NDArray[np.uint64]


def data_members(data: pa.BinaryArray, types: pa.StringArray, barred: Bool | None = None) -> TextPieces:
    """Return the member ``data`` or ``data_base64`` of events, with a comma before it; nothing where there are no data.

    *types* are the content types. It is what :func:`bindings.events.build_data_member` has for each, but for *barred*
    data, which are base64 where they are JSON.
    """
    kinds = types.dictionary_encode()
    are_json = np.array([*map(is_json, kinds.dictionary.to_pylist()), False])
    json = are_json[pc.fill_null(kinds.indices, -1).to_numpy(zero_copy_only=False)]
    there = data.is_valid().to_numpy(zero_copy_only=False)
    whole = np.flatnonzero(json & there if barred is None else json & there & ~barred)
    whole = whole[can_embed(take_rows(data, whole))]
    if len(whole) == len(data):
        return [',"data":', data.view(pa.string())]
    text = np.flatnonzero(~json & there & is_not_null(types))
    texts, broken = decode_texts(take_rows(data, text))
    text, texts = np.delete(text, broken), texts.drop_null()
    there[whole] = there[text] = False
    rest = np.flatnonzero(there)
    parts = (
        (whole, concat_texts(',"data":', take_rows(data, whole).view(pa.string()))),
        (text, concat_texts(',"data":"', escape_json(texts), '"')),
        (rest, concat_texts(',"data_base64":"', encode_base64(take_rows(data, rest)), '"')),
    )
    return [placed(len(data), *parts)]


def can_embed(bodies: pa.BinaryArray) -> Bool:
    """Return which of these JSON bodies :func:`bindings.events.build_data_member` takes as ``data``; a null is none."""
    texts, _ = decode_texts(bodies)
    taken = np.zeros(len(bodies), bool)
    rows = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    rows = rows[_is_trimmed(take_rows(texts, rows))]
    asked = take_rows(texts, rows)
    settled = is_plain_json(asked) & ~_has_double_backslash(asked)
    sound = np.flatnonzero(settled)
    settled[sound[_find_doubtful(take_rows(asked, sound))]] = False
    taken[rows[settled]] = True
    for row in rows[~settled].tolist():
        taken[row] = "data" in build_data_member(DEFAULT_CONTENT_TYPE, bodies[row].as_py())
    return taken


def is_plain_json(texts: pa.StringArray) -> Bool:
    """Return which of these texts, of which none is null, are JSON without blanks around it.

    Some that are JSON may be left out, such as those with the escape of a lone surrogate.
    """
    sizes = np.diff(bytes_and_offsets(texts)[1])
    # With a comma behind each they are the items of one array.
    data, places = bytes_and_offsets(concat_texts(texts, ","))
    sound = np.zeros(len(texts), bool)
    waiting = [(0, len(texts))]
    while waiting:
        begin, end = waiting.pop()
        if begin == end:
            continue
        items = _split_array(b"".join((b"[", data[places[begin] : places[end] - 1].data, b"]")))
        # Texts that are JSON only together, such as "[1" and "2]", are items of other lengths.
        if len(items) == end - begin and (np.array([*map(len, items)]) == sizes[begin:end]).all():
            sound[begin:end] = True
        elif end - begin > 1:
            middle = (begin + end) // 2
            waiting += [(begin, middle), (middle, end)]
    return sound


def _split_array(array: bytes) -> list[msgspec.Raw]:
    try:
        return _ARRAY_DECODER.decode(array)
    except (msgspec.DecodeError, RecursionError):
        return []


def _is_trimmed(texts: pa.StringArray) -> Bool:
    """Return which texts are not empty and begin and end with something that is no blank."""
    data, places = bytes_and_offsets(texts)
    some = np.diff(places) > 0
    edges = np.stack((places[:-1][some], places[1:][some] - 1))
    some[some] = ~np.isin(data[edges], _BLANKS).any(axis=0)
    return some


def _has_double_backslash(texts: pa.StringArray) -> Bool:
    """Return which texts have two backslashes side by side: there only counting shows whether a quote ends a string."""
    data, places = bytes_and_offsets(texts)
    doubled = np.zeros(len(texts), bool)
    escapes = _find_backslashes(data)
    doubled[find_owners(places, escapes[1:][np.diff(escapes) == 1])] = True
    return doubled


def _find_doubtful(texts: pa.StringArray) -> Int:
    """Return which of these JSON texts may not be taken after all: those that are null, nest deeply or repeat a key."""
    data, places = bytes_and_offsets(texts)
    levels = np.diff(np.searchsorted(np.flatnonzero((data == _OPEN) | (data == _BRACKET)), places))
    null = (np.diff(places) == len("null")) & (data[places[:-1]] == ord("n"))
    strings = _JsonStrings(data)
    keys = strings.keys
    rows = np.repeat(np.arange(len(texts)), np.diff(np.searchsorted(keys[0], places)))
    repeated = _find_repeats(_hash_keys(data, *keys, rows))
    if len(repeated):
        # The same key may be in several objects of a text. Which object it is in takes longer to say.
        again = np.zeros(len(texts), bool)
        again[rows[repeated]] = True
        at = np.flatnonzero(again[rows])
        begins, ends = keys[0][at], keys[1][at]
        repeated = at[_find_repeats(_hash_keys(data, begins, ends, strings.object_numbers(begins)))]
    doubts = np.concatenate((strings.doubts, keys[0][repeated]))
    return np.union1d(find_owners(places, doubts), np.flatnonzero((levels >= MAX_DEPTH) | null))


def _find_backslashes(data: Bytes) -> Int:
    marks = data == _BACKSLASH
    return np.flatnonzero(marks) if marks.any() else NO_ROWS


class _JsonStrings:
    """Where the strings of JSON texts, which follow each other in *data*, open and close; no backslash is escaped.

    ``keys`` are the begins and ends of those that are keys, ``doubts`` places in texts that may have other keys.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        escapes = _find_backslashes(data)
        quotes = np.flatnonzero(data == _QUOTE)
        if len(escapes):
            quotes = quotes[data[quotes - 1] != _BACKSLASH]
        self._opened, self._closed = quotes[::2], quotes[1::2]
        # What ends with a quote, a whole text that is a string, has no colon behind it: the next text begins otherwise.
        behind = data[np.minimum(self._closed + 1, len(data) - 1)]
        are_keys = behind == _COLON
        self.keys = self._opened[are_keys] + 1, self._closed[are_keys]
        self.doubts = np.concatenate((self._closed[behind <= _SPACE], self._select_in_keys(escapes)))

    def _select_in_keys(self, places: Int) -> Int:
        begins, ends = self.keys
        if not len(begins) or not len(places):
            return places[:0]
        within = np.searchsorted(begins, places, "right") - 1
        inside: Int = places[(within >= 0) & (places < ends[within])]
        return inside

    def object_numbers(self, keys: Int) -> Int:
        """Return a number for the object that each of these keys is in."""
        data = self._data
        braces = np.flatnonzero((data == _OPEN) | (data == _CLOSE))
        braces = braces[np.searchsorted(self._opened, braces) == np.searchsorted(self._closed, braces)]
        opens = data[braces] == _OPEN
        depths = np.cumsum(np.where(opens, 1, -1))
        before = np.searchsorted(braces, keys) - 1
        # Behind a closing brace it is the object that opened last at the depth which is left.
        later = np.flatnonzero(~opens[before])
        if len(later):
            begins = np.flatnonzero(opens)
            order = begins[np.argsort(depths[begins], kind="stable")]
            ranks = depths[order] * len(data) + braces[order]
            wanted = depths[before[later]] * len(data) + keys[later]
            before[later] = order[np.searchsorted(ranks, wanted) - 1]
        return before


def _hash_keys(data: Bytes, begins: Int, ends: Int, groups: Int) -> UInt64s:
    """Return numbers that are the same for keys that are the same in one group; seldom for others."""
    padded = np.concatenate((data, np.zeros(_WORD_BYTES, np.uint8)))
    words = np.ndarray(len(padded) - _WORD_BYTES + 1, "<u8", padded, strides=(1,))
    lengths = ends - begins
    marks = words[begins]
    marks &= _MASKS[np.minimum(lengths, _WORD_BYTES)]
    marks *= _FACTORS[0]
    long = np.flatnonzero(lengths > _WORD_BYTES)
    marks[long] += words[ends[long] - _WORD_BYTES] * _FACTORS[1]
    lengths += groups << 32
    marks += lengths.view(np.uint64) * _FACTORS[2]
    return marks


def _find_repeats(marks: UInt64s) -> Int:
    """Return which numbers are there more than once."""
    ordered = np.sort(marks)
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeats):
        return NO_ROWS
    nearest = repeats[np.minimum(np.searchsorted(repeats, marks), len(repeats) - 1)]
    return np.flatnonzero(nearest == marks)


_DATA: Final = ("data", "data_base64")


def encode_structured_events(
    kind: SourceKind,
    raw: pa.StructArray,
    attributes: pa.ListArray,
    place: pa.Int32Array,
    body: pa.BinaryArray,
    typed: pa.StringArray,
) -> pa.BinaryArray:
    """Return each routed row as a structured event, as :func:`bindings.events.encode_event` writes it.

    ``body`` holds the data of the events, ``typed`` the names of attributes that are no texts; the other arrays are
    those of :func:`router.rendering.events.event_columns`.
    """
    resolved = read_attributes(kind, raw, attributes, place)
    offsets = np.searchsorted(resolved.owners, np.arange(resolved.rows + 1))
    members = join_entries(resolved.names, resolved.codes, offsets, '"{}":"'.format, escape_json(resolved.texts), '"')
    texts = concat_texts("{", members, *data_members(body, attribute_values(resolved, CONTENT_TYPE)), "}").cast(
        pa.binary()
    )
    odd = resolved.fallback | (np.diff(offsets) == 0) | is_not_null(typed)
    for name in _DATA:
        odd[resolved.owners[resolved.entries_of(name)]] = True
    rows = np.flatnonzero(odd)
    if not len(rows):
        return texts
    some = pa.array(rows)
    each = zip(*(array.take(some).to_pylist() for array in (raw, attributes, place, body, typed)), strict=True)
    exact = [
        encode_event(restore_types(event_attributes(*parts_of_raw(row, kind, at), given), names), data)
        for row, given, at, data, names in each
    ]
    return replace_rows(texts, rows, pa.array(exact, pa.binary()))
