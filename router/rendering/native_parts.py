"""Native records of rows that hold parts, as inbox and dead letters do, as JSON without bodies.

Entries become text by what their keys mean in the protocol's layout: items of a list, members of a map, members of the
record. A row is *odd* where that is not all: members that repeat or come apart, and protocols with a form of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import base64_of
from bindings.entries import Bool, Entries, Int
from bindings.parts import BINARY_KIND, JSON_KIND, NativeForm, Part, native_of
from bindings.protocols import BINDINGS, binding_of
from router.rendering.texts import as_text, escaped, or_null, replaced, rows_of, runs, together

_SCALAR, _LIST, _MAP = range(3)
_BEGINS, _FOLLOWS, _GOES_ON = range(3)
"""An entry begins its row, begins another member of it, or is one more item of the member before."""
_LABELS: Final = pa.array(["", '"value":', '"value_base64":'])
_ENDS: Final = pa.array(["", "", "}", "}]", "", "}"])
"""What follows an entry, by its role and whether it is the last of its member."""
_SAME_JSON: Final = r"^(?:0|-?[1-9][0-9]{0,17}|true|false|null)$"
"""JSON that decoding and encoding do not change."""
_NO_LISTS: Final = NativeForm()


def parts_texts(raw: pa.StructArray) -> tuple[pa.StringArray, Bool]:
    """Return the native records of rows with ``protocol`` and ``properties``, and which rows are odd."""
    protocols = pc.fill_null(pc.struct_field(raw, "protocol"), "").dictionary_encode()
    bindings = [binding_of(name) or BINDINGS["HTTP"] for name in protocols.dictionary.to_pylist()]
    numbers = protocols.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    lists = pc.struct_field(raw, "properties")
    entries, kinds = Entries(lists), lists.flatten().field("type")
    layout = _layout(entries, [binding.form or _NO_LISTS for binding in bindings], numbers)
    labels, values = _values(entries, kinds, layout)
    ends = _ENDS.take(pa.array(layout.roles * 2 + layout.last))
    texts = together(layout.begins, _LABELS.take(pa.array(labels)), values, ends)
    odd = np.array([binding.form is None for binding in bindings], bool)[numbers] | _odd(entries, layout)
    return together("{", runs(texts, entries.offsets), "}"), odd


@dataclass(frozen=True, slots=True)
class _Layout:
    """Per entry: its role, its member's number, what is written before its value, where it stands among others."""

    roles: Int
    members: Int
    begins: pa.StringArray
    places: Int
    last: Bool


def _layout(entries: Entries, forms: Sequence[NativeForm], numbers: Int) -> _Layout:
    pairs, meant = entries.meanings(numbers)
    meanings = [_meaning(key, forms[number]) for number, key in pairs]
    known = {member: number for number, member in enumerate(dict.fromkeys(member for _, member, _ in meanings))}
    roles = np.array([role for role, _, _ in meanings], np.int64)[meant]
    members = np.array([known[member] for _, member, _ in meanings], np.int64)[meant]
    same = np.zeros(len(roles) + 1, bool)
    same[1:-1] = (entries.owners[1:] == entries.owners[:-1]) & (members[1:] == members[:-1]) & (roles[1:] != _SCALAR)
    places = np.where(same[:-1], _GOES_ON, _FOLLOWS)
    offsets = entries.offsets
    places[offsets[:-1][np.diff(offsets) > 0]] = _BEGINS
    pieces = [piece for meaning in meanings for piece in _begins(*meaning)]
    begins = pa.array(pieces, pa.string()).take(pa.array(meant * 3 + places))
    return _Layout(roles, members, begins, places, ~same[1:])


def _meaning(key: str, form: NativeForm) -> tuple[int, str, str]:
    """Return role, member and name of parts of that key; the name of a member without parts is empty."""
    member, _, name = key.partition(".")
    if member in form.lists:
        return _LIST, member, name
    return (_MAP, member, name) if member in form.maps else (_SCALAR, key, "")


def _begins(role: int, member: str, name: str) -> tuple[str, str, str]:
    opened, named = _quoted(member), _quoted(name)
    if role == _SCALAR:
        return f"{opened}:", f",{opened}:", ""
    begin = f'{opened}:[{{"name":{named},' if role == _LIST else f"{opened}:{{{named}:"
    return begin, f",{begin}", f',{{"name":{named},' if role == _LIST else f",{named}:"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _values(entries: Entries, kinds: pa.StringArray, layout: _Layout) -> tuple[Int, pa.StringArray]:
    """Return the label and the JSON of each entry's value, as :func:`bindings.parts.native_of` has it."""
    listed = layout.roles == _LIST
    labels = listed.astype(np.int64)
    texts, broken = as_text(entries.values)
    values = or_null(together('"', escaped(texts), '"'))
    if len(broken):
        # A list has an item that is no text as base64; elsewhere it is text with marks for what is none.
        labels[broken] *= 2
        coded = np.flatnonzero(labels == 2)
        values = replaced(values, coded, together('"', base64_of(rows_of(entries.values, coded)), '"'))
        shown = broken[~listed[broken]]
        texts_shown = [
            _quoted(value.decode("utf-8", "replace")) for value in rows_of(entries.values, shown).to_pylist()
        ]
        values = replaced(values, shown, pa.array(texts_shown, pa.string()))
    if kinds.null_count == len(kinds):
        return labels, values
    there = entries.values.is_valid().to_numpy(zero_copy_only=False)
    binary = np.flatnonzero(_equal(kinds, BINARY_KIND) & there & ~listed)
    coded_texts = base64_of(rows_of(entries.values, binary))
    dotted = np.array(["." in name for name in entries.names], bool)[entries.codes[binary]]
    objects = pc.if_else(pa.array(dotted), together('{"base64":"', coded_texts, '"}'), together('"', coded_texts, '"'))
    values = replaced(values, binary, objects)
    json = np.flatnonzero(_equal(kinds, JSON_KIND) & there)
    labels[json] = listed[json]
    return labels, replaced(values, json, _json_values(rows_of(entries.values, json)))


def _json_values(values: pa.BinaryArray) -> pa.StringArray:
    """Return JSON texts as they come out of decoding and encoding."""
    texts, _ = as_text(values)
    same = pc.fill_null(pc.match_substring_regex(texts, _SAME_JSON), False).to_numpy(zero_copy_only=False)
    other = np.flatnonzero(~same)
    distinct = rows_of(values, other).dictionary_encode()
    read = (native_of([Part("value", value, JSON_KIND)], _NO_LISTS) for value in distinct.dictionary.to_pylist())
    written = pa.array([msgspec.json.encode(native["value"]).decode() for native in read], pa.string())
    return replaced(texts, other, written.take(distinct.indices))


def _equal(kinds: pa.StringArray, kind: str) -> Bool:
    equal: Bool = pc.fill_null(pc.equal(kinds, kind), False).to_numpy(zero_copy_only=False)
    return equal


def _odd(entries: Entries, layout: _Layout) -> Bool:
    """Return the rows where a member stands twice, or has one name twice: the last would count."""
    begun = np.flatnonzero(layout.places != _GOES_ON)
    odd = _repeated(entries, begun, layout.members)
    named = np.flatnonzero(layout.roles == _MAP)
    odd |= _repeated(entries, named, entries.codes.astype(np.int64))
    bare = np.array(["." not in name for name in entries.names], bool)[entries.codes[named]]
    return odd | entries.rows_of(named[bare])


def _repeated(entries: Entries, at: Int, numbers: Int) -> Bool:
    """Return the rows where two of the entries *at* have the same number."""
    width = int(numbers.max(initial=0)) + 1
    pairs = np.sort(entries.owners[at] * width + numbers[at])
    rows = np.zeros(entries.rows, bool)
    rows[pairs[1:][pairs[1:] == pairs[:-1]] // width] = True
    return rows
