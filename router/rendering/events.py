"""Render routed events as the columns of tables and as structured events, and native records as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Entries, Int, encode_base64, is_not_null, replace_rows
from bindings.events import DEFAULT_CONTENT_TYPE, build_data_member, encode_event, restore_types
from bindings.parts import BINARY_KIND, JSON_KIND, NativeForm, Part, native_of
from bindings.protocols import BINDINGS, binding_of
from catalog.record import MAX_DEPTH
from catalog.schemas.contract import is_json
from router.rendering.texts import (
    ATTRIBUTE_COLUMNS,
    EVENT_TYPE,
    TEXT_MAP,
    SourceKind,
    TextPieces,
    attribute_of_header,
    bytes_and_offsets,
    concat_texts,
    decode_texts,
    escape_json,
    join_entries,
    join_runs,
    merge_texts,
    native_json,
    nulls_to_empty,
    nulls_to_json,
    parse_instants,
    parts_of_raw,
    take_rows,
)

# Native records (MATCHING.md#records) as JSON without bodies, as the exact codec encodes them.
#
# Rows of the inbox and of dead letters have a list of parts. The key of a part says whether it is an item of a list, an
# entry of a map, or a member of the record. A *fallback row* is left to the exact codec: its members repeat or are
# not adjacent, or its protocol has another form of records.

_SCALAR, _LIST, _MAP = range(3)
_BEGINS, _FOLLOWS, _CONTINUES = range(3)
"""An entry begins its row, begins another member, or continues the member before."""
_LABELS: Final = pa.array(["", '"value":', '"value_base64":'])
_ENDS: Final = pa.array(["", "", "}", "}]", "", "}"])
"""The text after an entry, by its role and whether it is the last of its member."""
_CANONICAL_JSON: Final = r"^(?:0|-?[1-9][0-9]{0,17}|true|false|null)$"
"""JSON that decoding and encoding would not change."""
_NO_LISTS: Final = NativeForm()


def inbox_native_texts(raw: pa.StructArray) -> tuple[pa.StringArray, Bool]:
    """Render the native records of rows with ``protocol`` and ``properties``; return also the fallback rows."""
    protocols = pc.fill_null(pc.struct_field(raw, "protocol"), "").dictionary_encode()
    bindings = [binding_of(name) or BINDINGS["HTTP"] for name in protocols.dictionary.to_pylist()]
    numbers = protocols.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    lists = pc.struct_field(raw, "properties")
    entries, kinds = Entries(lists), lists.flatten().field("type")
    layout = _layout_entries(entries, [binding.form or _NO_LISTS for binding in bindings], numbers)
    labels, values = _encode_values(entries, kinds, layout)
    ends = _ENDS.take(pa.array(layout.roles * 2 + layout.is_last))
    texts = concat_texts(layout.prefixes, _LABELS.take(pa.array(labels)), values, ends)
    fallback = np.array([binding.form is None for binding in bindings], bool)[numbers]
    texts = concat_texts("{", join_runs(texts, entries.offsets), "}")
    return texts, fallback | _find_fallback_rows(entries, layout)


@dataclass(frozen=True, slots=True)
class _EntryLayout:
    """Per entry: its role, the number of its member, the text before its value, and its position in row and member."""

    roles: Int
    member_numbers: Int
    prefixes: pa.StringArray
    positions: Int
    is_last: Bool


def _layout_entries(entries: Entries, forms: Sequence[NativeForm], numbers: Int) -> _EntryLayout:
    pairs, pair_numbers = entries.distinct_pairs(numbers)
    meanings = [_role_of_key(key, forms[number]) for number, key in pairs]
    known = {member: number for number, member in enumerate(dict.fromkeys(member for _, member, _ in meanings))}
    roles = np.array([role for role, _, _ in meanings], np.int64)[pair_numbers]
    members = np.array([known[member] for _, member, _ in meanings], np.int64)[pair_numbers]
    same = np.zeros(len(roles) + 1, bool)
    same[1:-1] = (entries.owners[1:] == entries.owners[:-1]) & (members[1:] == members[:-1]) & (roles[1:] != _SCALAR)
    positions = np.where(same[:-1], _CONTINUES, _FOLLOWS)
    offsets = entries.offsets
    positions[offsets[:-1][np.diff(offsets) > 0]] = _BEGINS
    pieces = [piece for meaning in meanings for piece in _entry_prefixes(*meaning)]
    begins = pa.array(pieces, pa.string()).take(pa.array(pair_numbers * 3 + positions))
    return _EntryLayout(roles, members, begins, positions, ~same[1:])


def _role_of_key(key: str, form: NativeForm) -> tuple[int, str, str]:
    """Return the role of a part by its key, with the names of the member and of the entry in it, or ""."""
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
    """Encode the value of each entry as JSON, as :func:`bindings.parts.native_of` does; return also its label."""
    listed = layout.roles == _LIST
    labels = listed.astype(np.int64)
    texts, broken = decode_texts(entries.values)
    values = nulls_to_json(concat_texts('"', escape_json(texts), '"'))
    if len(broken):
        # Invalid UTF-8 is base64 in a list; elsewhere it is text with replacement characters.
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
    present = entries.values.is_valid().to_numpy(zero_copy_only=False)
    binary = np.flatnonzero(_is_kind(kinds, BINARY_KIND) & present & ~listed)
    coded_texts = encode_base64(take_rows(entries.values, binary))
    dotted = np.array(["." in name for name in entries.names], bool)[entries.codes[binary]]
    strings = concat_texts('"', coded_texts, '"')
    objects = pc.if_else(pa.array(dotted), concat_texts('{"base64":', strings, "}"), strings)
    values = replace_rows(values, binary, objects)
    json = np.flatnonzero(_is_kind(kinds, JSON_KIND) & present)
    labels[json] = listed[json]
    return labels, replace_rows(values, json, _normalize_json(take_rows(entries.values, json)))


def _normalize_json(values: pa.BinaryArray) -> pa.StringArray:
    """Return JSON texts as decoding and encoding would."""
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
    """Find the rows where a member or a name in a member is repeated: only the last one would count."""
    begun = np.flatnonzero(layout.positions != _CONTINUES)
    fallback = entries.rows_with_repeats(begun, layout.member_numbers)
    named = np.flatnonzero(layout.roles == _MAP)
    fallback |= entries.rows_with_repeats(named, entries.codes)
    bare = np.array(["." not in name for name in entries.names], bool)[entries.codes[named]]
    return fallback | entries.rows_with(named[bare])


_NUMBERS: Final = ("partition", "offset", "timestamp")


def native_texts(kind: SourceKind, raw: pa.StructArray, place: pa.Int32Array) -> pa.StringArray:
    """Render the native record of each row as JSON, without the body.

    ``raw`` has the columns of the source without the body (``RAW_COLUMNS`` in :mod:`router.evaluation.outcome_rows`).
    ``place`` is the number of an event in its batch, null outside of a batch.
    """
    if kind == "kafka":
        texts, fallback = _kafka_native_texts(raw)
    else:
        texts, fallback = inbox_native_texts(raw)
    fallback |= place.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(fallback | texts.is_null().to_numpy(zero_copy_only=False))
    if not len(rows):
        return texts
    at = pa.array(rows)
    records = zip(raw.take(at).to_pylist(), place.take(at).to_pylist(), strict=True)
    exact = [native_json(*parts_of_raw(row, kind, number)) for row, number in records]
    return replace_rows(texts, rows, pa.array(exact, pa.string()))


def _kafka_native_texts(raw: pa.StructArray) -> tuple[pa.StringArray, Bool]:
    """Render rows of Kafka, null if a required member is null; return also the fallback rows."""
    lists = pc.struct_field(raw, "headers")
    headers = Entries(lists)
    numbers = [pc.struct_field(raw, name).cast(pa.string()) for name in _NUMBERS]
    has_headers = pa.array(np.diff(headers.offsets) > 0)
    names, codes, values = headers.names, headers.codes, _header_values(headers.values)
    listed = join_entries(names, codes, headers.offsets, lambda name: f'{{"name":"{name}",', values, "}")
    texts = concat_texts(
        '{"topic":"',
        escape_json(pc.struct_field(raw, "topic")),
        '","partition":',
        numbers[0],
        ',"offset":',
        numbers[1],
        ',"timestamp":',
        numbers[2],
        pc.if_else(has_headers, concat_texts(',"headers":[', listed, "]"), ""),
        nulls_to_empty(_key_member(pc.struct_field(raw, "key"))),
        "}",
    )
    return texts, headers.rows_with(np.flatnonzero(lists.flatten().field("key").is_null()))


def _key_member(values: pa.BinaryArray) -> pa.StringArray:
    """Render the member with the key, text or base64, after a comma; null for null."""
    texts, broken = decode_texts(values)
    members = concat_texts(',"key":"', escape_json(texts), '"')
    encoded = encode_base64(values.take(pa.array(broken)))
    return replace_rows(members, broken, concat_texts(',"key_base64":"', encoded, '"'))


def _header_values(values: pa.BinaryArray) -> pa.StringArray:
    """Render the member with a header's value: text, base64 or null."""
    texts, broken = decode_texts(values)
    members = concat_texts('"value":"', escape_json(texts), '"')
    if members.null_count:
        members = pc.fill_null(members, '"value":null')
        coded = encode_base64(values.take(pa.array(broken)))
        members = replace_rows(members, broken, concat_texts('"value_base64":"', coded, '"'))
    return members


# Routed events as the columns of tables.
#
# The attributes of an event are those of the outcome, or else those in the headers of its Kafka record. The latter only
# if matching read the record by columns (:mod:`bindings.kafka.record_columns`): names are valid and do not repeat,
# and values are valid texts.

CONTENT_TYPE: Final = "datacontenttype"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of *rows* events, in the order of the rows and within a row as the event has them.

    ``codes`` are indices in ``names``.
    """

    rows: int
    owners: Int
    names: tuple[str, ...]
    codes: Int
    texts: pa.StringArray

    def entries_of(self, name: str) -> Bool:
        """Return which entries have that attribute."""
        entries: Bool = self.codes == (self.names.index(name) if name in self.names else -1)
        return entries


def read_attributes(raw: pa.StructArray, given: pa.ListArray) -> Attributes:
    """Return the attributes of routed rows, the content type last; for the arguments see :func:`event_columns`."""
    if given.null_count and "headers" in raw.type.names:
        given = pc.coalesce(given, pc.struct_field(raw, "headers").cast(given.type))
    entries = Entries(given)
    numbers: dict[str, int] = {}
    attributes = [_attribute_in_event(name) for name in entries.names]
    codes = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in attributes]
    entry_codes = np.array(codes, np.int64)[entries.codes]
    # A header without a value counts as absent.
    kept = np.flatnonzero((entry_codes >= 0) & is_not_null(entries.values))
    last = entry_codes[kept] == numbers.get(CONTENT_TYPE, -1)
    kept = kept[np.argsort(entries.owners[kept] * 2 + last, kind="stable")]
    texts, _ = decode_texts(entries.values.take(pa.array(kept)))
    return Attributes(entries.rows, entries.owners[kept], tuple(numbers), entry_codes[kept], texts)


def _attribute_in_event(header: str) -> str | None:
    """Return the attribute that a header of Kafka's binary mode has; None for other headers."""
    name = attribute_of_header(header)
    return name if header == "content-type" or name not in (header, CONTENT_TYPE, "") else None


def event_columns(kind: SourceKind, raw: pa.StructArray, given: pa.ListArray, place: pa.Int32Array) -> pa.StructArray:
    """Return the columns of routed events, of type ``EVENT_TYPE``.

    ``raw`` has the columns of the source without the body (``RAW_COLUMNS`` in :mod:`router.evaluation.outcome_rows`).
    ``given`` are attributes as headers of Kafka's binary mode, null if those of the record serve. ``place`` is the
    number of an event in its batch, null outside of a batch. The arrays may be slices.
    """
    attributes = read_attributes(raw, given)
    standard = {name: attribute_values(attributes, name) for name in (*ATTRIBUTE_COLUMNS, "time")}
    times = standard["time"]
    columns = [
        *(standard[name] for name in ATTRIBUTE_COLUMNS),
        parse_instants(times),
        times,
        _extension_maps(attributes),
        native_texts(kind, raw, place),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(EVENT_TYPE))


def attribute_values(attributes: Attributes, name: str) -> pa.StringArray:
    """Return an attribute of each row; null if missing."""
    entries = np.flatnonzero(attributes.entries_of(name))
    if not len(entries):
        return pa.nulls(attributes.rows, pa.string())
    indices = np.full(attributes.rows, -1, np.int64)
    indices[attributes.owners[entries]] = entries
    return attributes.texts.take(pa.array(indices, mask=indices < 0))


def _extension_maps(attributes: Attributes) -> pa.MapArray:
    """Return the attributes without a separate column, in order."""
    columns = {*ATTRIBUTE_COLUMNS, "time"}
    other = np.array([name not in columns for name in attributes.names], bool)
    entries = np.flatnonzero(other[attributes.codes])
    counts = np.bincount(attributes.owners[entries], minlength=attributes.rows)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    names = pa.array(attributes.names, pa.string()).take(pa.array(attributes.codes[entries]))
    texts = attributes.texts.take(pa.array(entries))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, texts).cast(TEXT_MAP)


# Routed events in structured mode: JSON that includes the data.
#
# Bodies that are JSON are embedded unchanged. ``bindings.events`` rejects objects with a repeated key, which msgspec
# accepts: a body that decoding and encoding leave as it is has none. The exact codec decides the rest. A body of 200
# bytes takes 1.6 us (1.1 with arrays of quotes and braces), one of 2 kB 12 us (31), one with escaped letters 8 us (4).

_ARRAY_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_DECODER: Final = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))
_ENCODER: Final = msgspec.json.Encoder()
_WHITESPACE: Final = (b" ", b"\t", b"\r", b"\n")
_SPACED: Final = re.compile(rb'": |[,\[{\]}][ \n\r\t]')


def data_members(data: pa.BinaryArray, types: pa.StringArray, barred: Bool | None = None) -> TextPieces:
    """Render the member ``data`` or ``data_base64`` of events after a comma; nothing without data.

    *types* are the content types. The result is that of :func:`bindings.events.build_data_member`, except that JSON of
    *barred* rows is base64.
    """
    kinds = types.dictionary_encode()
    are_json = np.array([*map(is_json, kinds.dictionary.to_pylist()), False])
    json = are_json[pc.fill_null(kinds.indices, -1).to_numpy(zero_copy_only=False)]
    left = data.is_valid().to_numpy(zero_copy_only=False)
    whole = np.flatnonzero(json & left if barred is None else json & left & ~barred)
    whole = whole[can_embed(take_rows(data, whole))]
    if len(whole) == len(data):
        return [',"data":', data.view(pa.string())]
    text = np.flatnonzero(~json & left & is_not_null(types))
    texts, broken = decode_texts(take_rows(data, text))
    text, texts = np.delete(text, broken), texts.drop_null()
    left[whole] = left[text] = False
    rest = np.flatnonzero(left)
    parts = (
        (whole, concat_texts(',"data":', take_rows(data, whole).view(pa.string()))),
        (text, concat_texts(',"data":"', escape_json(texts), '"')),
        (rest, concat_texts(',"data_base64":"', encode_base64(take_rows(data, rest)), '"')),
    )
    return [merge_texts(len(data), *parts)]


def can_embed(bodies: pa.BinaryArray) -> Bool:
    """Return which bodies :func:`bindings.events.build_data_member` would embed as ``data``; false for null."""
    return np.fromiter((body is not None and _can_embed(body) for body in bodies.to_pylist()), bool, len(bodies))


def _can_embed(body: bytes) -> bool:
    try:
        compact = msgspec.json.format(body, indent=-1) if _SPACED.search(body) else body
        if _ENCODER.encode(_DECODER.decode(compact)) == compact and compact != b"null":
            trimmed = body[:1] not in _WHITESPACE and body[-1:] not in _WHITESPACE
            if trimmed and compact.count(b"{") + compact.count(b"[") < MAX_DEPTH:
                return True
    except (ValueError, RecursionError, OverflowError):
        pass
    return "data" in build_data_member(DEFAULT_CONTENT_TYPE, body)


def is_plain_json(texts: pa.StringArray) -> Bool:
    """Return which texts are JSON without surrounding whitespace. No text may be null.

    It may be false for valid JSON, such as the escape of a lone surrogate.
    """
    sizes = np.diff(bytes_and_offsets(texts)[1])
    # With a comma after each they are the items of one array.
    data, places = bytes_and_offsets(concat_texts(texts, ","))
    plain = np.zeros(len(texts), bool)
    ranges = [(0, len(texts))]
    while ranges:
        begin, end = ranges.pop()
        if begin == end:
            continue
        items = _split_array(b"".join((b"[", data[places[begin] : places[end] - 1].data, b"]")))
        # Texts that are JSON only together, such as "[1" and "2]", are items of other lengths.
        if len(items) == end - begin and (np.array([*map(len, items)]) == sizes[begin:end]).all():
            plain[begin:end] = True
        elif end - begin > 1:
            middle = (begin + end) // 2
            ranges += [(begin, middle), (middle, end)]
    return plain


def _split_array(array: bytes) -> list[msgspec.Raw]:
    try:
        return _ARRAY_DECODER.decode(array)
    except (msgspec.DecodeError, RecursionError):
        return []


def encode_structured_events(attributes: Attributes, body: pa.BinaryArray, typed: pa.StringArray) -> pa.BinaryArray:
    """Encode each routed row as a structured event, as :func:`bindings.events.encode_event` does.

    ``body`` has the data of the events, ``typed`` the names of attributes that are not strings.
    """
    names, codes, values = attributes.names, attributes.codes, attributes.texts
    offsets = np.searchsorted(attributes.owners, np.arange(attributes.rows + 1))
    members = join_entries(names, codes, offsets, '"{}":"'.format, escape_json(values), '"')
    data_pieces = data_members(body, attribute_values(attributes, CONTENT_TYPE))
    texts = concat_texts("{", members, *data_pieces, "}").cast(pa.binary())
    rows = np.flatnonzero(is_not_null(typed))
    if not len(rows):
        return texts
    exact = []
    for row in rows.tolist():
        own = range(offsets[row], offsets[row + 1])
        named = {names[codes[at]]: values[at].as_py() for at in own}
        exact.append(encode_event(restore_types(named, typed[row].as_py()), body[row].as_py()))
    return replace_rows(texts, rows, pa.array(exact, pa.binary()))
