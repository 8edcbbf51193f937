"""Routed events in structured mode: JSON with their data in it."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import Bool, Int, base64_of, valid
from bindings.events import DEFAULT_CONTENT_TYPE, data_member, encode_event, with_types
from catalog.record import MAX_DEPTH
from catalog.schemas.contract import is_json
from router.rendering.events import CONTENT_TYPE, attributes_of_rows, column_of
from router.rendering.texts import (
    NONE_OF_THEM,
    Bytes,
    Pieces,
    Source,
    as_text,
    attributes_of,
    data_of,
    entry_texts,
    escaped,
    owners_of,
    parts_of_raw,
    placed,
    replaced,
    rows_of,
    together,
)

# The data of JSON events: which bodies are JSON that may stand there as they are, decided for many at once.
#
# msgspec reads the bodies as the items of one array, which shows each to be JSON. That no object in them has a key
# twice, which ``bindings.events`` refuses as well, is seen from the places of quotes and braces. The exact reading
# decides what neither settles.

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_QUOTE, _BACKSLASH, _COLON, _OPEN, _CLOSE, _LIST = (ord(each) for each in '"\\:{}[')
_BLANK: Final = 0x20
_BLANKS: Final = np.frombuffer(b" \t\r\n", np.uint8)
_WORD: Final = 8
"""Bytes at the begin and at the end of a key that are looked at."""
_MASKS: Final = np.array([(1 << 8 * length) - 1 for length in range(_WORD + 1)], np.uint64)
_FACTORS: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
Words = npt.NDArray[np.uint64]


def data_members(data: pa.BinaryArray, types: pa.StringArray, barred: Bool | None = None) -> Pieces:
    """Return the member ``data`` or ``data_base64`` of events, with a comma before it; nothing where there are no data.

    *types* are the content types. It is what :func:`bindings.events.data_member` has for each, but for *barred* data,
    which are base64 where they are JSON.
    """
    kinds = types.dictionary_encode()
    are_json = np.array([*map(is_json, kinds.dictionary.to_pylist()), False])
    json = are_json[pc.fill_null(kinds.indices, -1).to_numpy(zero_copy_only=False)]
    there = data.is_valid().to_numpy(zero_copy_only=False)
    whole = np.flatnonzero(json & there if barred is None else json & there & ~barred)
    whole = whole[embeddable(rows_of(data, whole))]
    if len(whole) == len(data):
        return [',"data":', data.view(pa.string())]
    text = np.flatnonzero(~json & there & valid(types))
    texts, broken = as_text(rows_of(data, text))
    text, texts = np.delete(text, broken), texts.drop_null()
    there[whole] = there[text] = False
    rest = np.flatnonzero(there)
    parts = (
        (whole, together(',"data":', rows_of(data, whole).view(pa.string()))),
        (text, together(',"data":"', escaped(texts), '"')),
        (rest, together(',"data_base64":"', base64_of(rows_of(data, rest)), '"')),
    )
    return [placed(len(data), *parts)]


def embeddable(bodies: pa.BinaryArray) -> Bool:
    """Return which of these JSON bodies :func:`bindings.events.data_member` takes as ``data``; a null is none."""
    texts, _ = as_text(bodies)
    taken = np.zeros(len(bodies), bool)
    rows = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    rows = rows[_without_blanks_around(rows_of(texts, rows))]
    asked = rows_of(texts, rows)
    settled = sound_json(asked) & ~_escapes_twice(asked)
    sound = np.flatnonzero(settled)
    settled[sound[_doubtful(rows_of(asked, sound))]] = False
    taken[rows[settled]] = True
    for row in rows[~settled].tolist():
        taken[row] = "data" in data_member(DEFAULT_CONTENT_TYPE, bodies[row].as_py())
    return taken


def sound_json(texts: pa.StringArray) -> Bool:
    """Return which of these texts, of which none is null, are JSON without blanks around it.

    Some that are JSON may be left out, such as those with the escape of a lone surrogate.
    """
    sizes = np.diff(data_of(texts)[1])
    # With a comma behind each they are the items of one array.
    data, places = data_of(together(texts, ","))
    sound = np.zeros(len(texts), bool)
    waiting = [(0, len(texts))]
    while waiting:
        begin, end = waiting.pop()
        if begin == end:
            continue
        items = _items(b"".join((b"[", data[places[begin] : places[end] - 1].data, b"]")))
        # Texts that are JSON only together, such as "[1" and "2]", are items of other lengths.
        if len(items) == end - begin and (np.array([*map(len, items)]) == sizes[begin:end]).all():
            sound[begin:end] = True
        elif end - begin > 1:
            middle = (begin + end) // 2
            waiting += [(begin, middle), (middle, end)]
    return sound


def _items(array: bytes) -> list[msgspec.Raw]:
    try:
        return _ARRAY.decode(array)
    except (msgspec.DecodeError, RecursionError):
        return []


def _without_blanks_around(texts: pa.StringArray) -> Bool:
    """Return which texts are not empty and begin and end with something that is no blank."""
    data, places = data_of(texts)
    some = np.diff(places) > 0
    edges = np.stack((places[:-1][some], places[1:][some] - 1))
    some[some] = ~np.isin(data[edges], _BLANKS).any(axis=0)
    return some


def _escapes_twice(texts: pa.StringArray) -> Bool:
    """Return which texts have two backslashes side by side: there only counting shows whether a quote ends a string."""
    data, places = data_of(texts)
    doubled = np.zeros(len(texts), bool)
    escapes = _escapes(data)
    doubled[owners_of(places, escapes[1:][np.diff(escapes) == 1])] = True
    return doubled


def _doubtful(texts: pa.StringArray) -> Int:
    """Return which of these JSON texts may not be taken after all: those that are null, nest deeply or repeat a key."""
    data, places = data_of(texts)
    levels = np.diff(np.searchsorted(np.flatnonzero((data == _OPEN) | (data == _LIST)), places))
    null = (np.diff(places) == len("null")) & (data[places[:-1]] == ord("n"))
    strings = _Strings(data)
    keys = strings.keys
    rows = np.repeat(np.arange(len(texts)), np.diff(np.searchsorted(keys[0], places)))
    repeated = _repeated(_marks(data, *keys, rows))
    if len(repeated):
        # The same key may be in several objects of a text. Which object it is in takes longer to say.
        again = np.zeros(len(texts), bool)
        again[rows[repeated]] = True
        at = np.flatnonzero(again[rows])
        begins, ends = keys[0][at], keys[1][at]
        repeated = at[_repeated(_marks(data, begins, ends, strings.objects(begins)))]
    doubts = np.concatenate((strings.doubts, keys[0][repeated]))
    return np.union1d(owners_of(places, doubts), np.flatnonzero((levels >= MAX_DEPTH) | null))


def _escapes(data: Bytes) -> Int:
    marks = data == _BACKSLASH
    return np.flatnonzero(marks) if marks.any() else NONE_OF_THEM


class _Strings:
    """Where the strings of JSON texts, which follow each other in *data*, open and close; no backslash is escaped.

    ``keys`` are the begins and ends of those that are keys, ``doubts`` places in texts that may have other keys.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        escapes = _escapes(data)
        quotes = np.flatnonzero(data == _QUOTE)
        if len(escapes):
            quotes = quotes[data[quotes - 1] != _BACKSLASH]
        self._opened, self._closed = quotes[::2], quotes[1::2]
        # What ends with a quote, a whole text that is a string, has no colon behind it: the next text begins otherwise.
        behind = data[np.minimum(self._closed + 1, len(data) - 1)]
        are_keys = behind == _COLON
        self.keys = self._opened[are_keys] + 1, self._closed[are_keys]
        self.doubts = np.concatenate((self._closed[behind <= _BLANK], self._in_keys(escapes)))

    def _in_keys(self, places: Int) -> Int:
        begins, ends = self.keys
        if not len(begins) or not len(places):
            return places[:0]
        within = np.searchsorted(begins, places, "right") - 1
        inside: Int = places[(within >= 0) & (places < ends[within])]
        return inside

    def objects(self, keys: Int) -> Int:
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


def _marks(data: Bytes, begins: Int, ends: Int, groups: Int) -> Words:
    """Return numbers that are the same for keys that are the same in one group; seldom for others."""
    padded = np.concatenate((data, np.zeros(_WORD, np.uint8)))
    words = np.ndarray(len(padded) - _WORD + 1, "<u8", padded, strides=(1,))
    lengths = ends - begins
    marks = words[begins]
    marks &= _MASKS[np.minimum(lengths, _WORD)]
    marks *= _FACTORS[0]
    long = np.flatnonzero(lengths > _WORD)
    marks[long] += words[ends[long] - _WORD] * _FACTORS[1]
    lengths += groups << 32
    marks += lengths.view(np.uint64) * _FACTORS[2]
    return marks


def _repeated(marks: Words) -> Int:
    """Return which numbers are there more than once."""
    ordered = np.sort(marks)
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeats):
        return NONE_OF_THEM
    nearest = repeats[np.minimum(np.searchsorted(repeats, marks), len(repeats) - 1)]
    return np.flatnonzero(nearest == marks)


_DATA: Final = ("data", "data_base64")


def structured_events(
    kind: Source,
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
    resolved = attributes_of_rows(kind, raw, attributes, place)
    offsets = np.searchsorted(resolved.owners, np.arange(resolved.rows + 1))
    members = entry_texts(resolved.names, resolved.codes, offsets, '"{}":"'.format, escaped(resolved.texts), '"')
    texts = together("{", members, *data_members(body, column_of(resolved, CONTENT_TYPE)), "}").cast(pa.binary())
    odd = resolved.odd | (np.diff(offsets) == 0) | valid(typed)
    for name in _DATA:
        odd[resolved.owners[resolved.of(name)]] = True
    rows = np.flatnonzero(odd)
    if not len(rows):
        return texts
    some = pa.array(rows)
    each = zip(*(array.take(some).to_pylist() for array in (raw, attributes, place, body, typed)), strict=True)
    exact = [
        encode_event(with_types(attributes_of(*parts_of_raw(row, kind, at), given), names), data)
        for row, given, at, data, names in each
    ]
    return replaced(texts, rows, pa.array(exact, pa.binary()))
