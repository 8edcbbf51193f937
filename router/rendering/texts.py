"""Arrays of texts and bytes, worked on through their buffers; instants, members of JSON, and rows read exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Int, decode_utf8, raw_buffers
from bindings.kafka.binding import split_row
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from catalog.values import YEAR_1, YEAR_10000, parse_timestamp
from router.matching.inbox_columns import inbox_parts
from router.matching.record_columns import parts_of_one_event

# Arrays of texts and bytes, worked on through their buffers: joined, and escaped for JSON.

Bytes = npt.NDArray[np.uint8]
NO_ROWS: Final = np.zeros(0, np.int64)
_BACKSLASH: Final = 0x5C
_QUOTE: Final = 0x22


def bytes_and_offsets(texts: pa.Array) -> tuple[Bytes, Int]:
    """Return the bytes that an array of texts or bytes shares, and where each begins, then where the last ends.

    The texts lie one behind another; a null has as a rule no bytes, yet may have some.
    """
    data, offsets = raw_buffers(texts)
    return data[offsets[0] : offsets[-1]], (offsets - offsets[0]).astype(np.int64)


def find_owners(places: Int, at: Int) -> Int:
    """Return for each place in the shared bytes the text that it lies in; *places* as :func:`bytes_and_offsets` gives them."""
    return np.searchsorted(places, at, "right") - 1


def join_runs(texts: pa.StringArray, offsets: Int) -> pa.StringArray:
    """Return the texts of runs: each is what stands from one offset to the next, put together. No text may be null."""
    data, places = bytes_and_offsets(texts)
    ends = np.ascontiguousarray(places[offsets], np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data)))


def concat_texts(*texts: pa.Array | str) -> pa.StringArray:
    """Return the texts of several arrays side by side; null where one of them is null. A ``str`` stands in each."""
    return pc.binary_join_element_wise(*texts, "")


def nulls_to_empty(texts: pa.StringArray) -> pa.StringArray:
    """Return the texts with empty ones for nulls."""
    return pc.fill_null(texts, "") if texts.null_count else texts


def nulls_to_json(values: pa.StringArray) -> pa.StringArray:
    """Return JSON values with ``null`` for those that are not there."""
    return pc.fill_null(values, "null") if values.null_count else values


def take_rows(values: pa.Array, rows: Int) -> pa.Array:
    """Return the values of these rows, which are in order and each there once; all of them without a copy."""
    return values if len(rows) == len(values) else values.take(pa.array(rows))


def replace_rows(texts: pa.Array, rows: Int, some: pa.Array) -> pa.Array:
    """Return the array with *some* in these rows, which are in order."""
    if not len(rows):
        return texts
    indices = np.arange(len(texts))
    indices[rows] = len(texts) + np.arange(len(rows))
    return pa.concat_arrays([texts, some]).take(pa.array(indices))


def placed(rows: int, *parts: tuple[Int, pa.StringArray]) -> pa.StringArray:
    """Return a text for each of so many rows: of each part its texts in its rows, which are in order; empty elsewhere.

    No row is in two parts.
    """
    for places, texts in parts:
        if len(places) == rows:
            return texts
    indices = np.zeros(rows, np.int64)
    begin = 1
    for places, texts in parts:
        indices[places] = begin + np.arange(len(places))
        begin += len(texts)
    return pa.concat_arrays([pa.array([""]), *(texts for _, texts in parts)]).take(pa.array(indices))


def decode_texts(values: pa.BinaryArray) -> tuple[pa.StringArray, Int]:
    """Return bytes as text, and the places of those that are no UTF-8, which are null."""
    texts = decode_utf8(values)
    if texts.null_count == values.null_count:
        return texts, NO_ROWS
    return texts, np.flatnonzero(pc.and_(values.is_valid(), texts.is_null()))


def escape_json(texts: pa.StringArray) -> pa.StringArray:
    """Return texts as they stand between the quotes of a JSON string, just as ``msgspec.json`` writes them."""
    data, places = bytes_and_offsets(texts)
    marks = (data < 0x20) | (data == _QUOTE) | (data == _BACKSLASH)
    if not marks.any():
        return texts
    at = np.flatnonzero(marks)
    rows = np.unique(find_owners(places, at))
    some = texts.take(pa.array(rows))
    # The backslash first: the escapes of all others begin with one.
    for byte in sorted(np.unique(data[at]).tolist(), key=lambda byte: byte != _BACKSLASH):
        some = pc.replace_substring(some, chr(byte), _json_escape(byte))
    return replace_rows(texts, rows, some)


@cache
def _json_escape(byte: int) -> str:
    return msgspec.json.encode(chr(byte)).decode()[1:-1]


# Instants of a whole array: read from RFC 3339, with the exact reading for what is written unusually.

INSTANT: Final = pa.timestamp("us", tz="UTC")
_SHORTEST: Final = len("2026-01-02T03:04:05Z")
_LONGEST: Final = len("2026-01-02T03:04:05.123456789+00:00")
_ZONE: Final = len("+00:00")
_SEPARATORS: Final = ((4, "--"), (7, "--"), (10, "Tt"), (13, "::"), (16, "::"))
_DIGITS: Final = [at for at in range(19) if at not in (4, 7, 10, 13, 16)]
_SECOND: Final = 1_000_000
_MONTHS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def parse_instant(text: str | None) -> int | None:
    """Return an event's time in microseconds since 1970; None for one outside of the years 1 to 9999.

    RFC 3339 has a year 0, and offsets and leap seconds reach past 9999; readers of tables know neither.
    """
    nanoseconds = parse_timestamp(text) if text is not None else None
    if nanoseconds is None:
        return None
    return nanoseconds // 1000 if YEAR_1 <= nanoseconds // 1_000_000 < YEAR_10000 else None


def parse_instants(texts: pa.StringArray) -> pa.TimestampArray:
    """Return what :func:`parse_instant` says of each text, as instants."""
    data, places = bytes_and_offsets(texts)
    lengths = np.diff(places)
    known = texts.is_valid().to_numpy(zero_copy_only=False)
    micros = np.zeros(len(texts), np.int64)
    read = np.zeros(len(texts), bool)
    for length in np.unique(lengths[known]).tolist():
        if _SHORTEST <= length <= _LONGEST:
            rows = np.flatnonzero((lengths == length) & known)
            read[rows], micros[rows] = _parse_plain_instants(data[places[rows][:, None] + np.arange(length)])
    rest = np.flatnonzero(known & ~read)
    for row in rest.tolist():
        exact = parse_instant(texts[row].as_py())
        read[row] = exact is not None
        micros[row] = exact or 0
    return pa.array(micros, pa.int64(), mask=~read).view(INSTANT)


def format_instants(instants: pa.TimestampArray) -> pa.StringArray:
    """Write instants of the years 1 to 9999 as RFC 3339 in UTC, with as few digits as hold them; null stays null."""
    # Without its zone, Arrow writes an instant with a blank for the "T" and always six digits.
    texts = instants.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.binary_join_element_wise(pc.binary_replace_slice(trimmed, 10, 11, "T"), "Z", "")


def _parse_plain_instants(letters: Bytes) -> tuple[Bool, Int]:
    """Return which of these texts, of one length, are ordinary instants of the calendar, and their microseconds."""
    zulu = (letters[:, -1] | 0x20) == ord("z")
    if zulu.all():
        return _parse_fields(letters[:, :-1], None)
    read, micros = np.zeros(len(letters), bool), np.zeros(len(letters), np.int64)
    read[zulu], micros[zulu] = _parse_fields(letters[zulu, :-1], None)
    if letters.shape[1] >= _SHORTEST - 1 + _ZONE:
        read[~zulu], micros[~zulu] = _parse_fields(letters[~zulu, :-_ZONE], letters[~zulu, -_ZONE:])
    return read, micros


def _parse_fields(letters: Bytes, zone: Bytes | None) -> tuple[Bool, Int]:
    width = letters.shape[1]
    # Letters below "0" become large numbers, which are no digits.
    digits = (letters - np.uint8(ord("0"))).astype(np.int64)
    good = (digits[:, _DIGITS] <= 9).all(axis=1)
    for at, either in _SEPARATORS:
        good &= (letters[:, at] == ord(either[0])) | (letters[:, at] == ord(either[1]))
    fraction = np.zeros(len(letters), np.int64)
    if width > 19:
        good &= (letters[:, 19] == ord(".")) & (digits[:, 20:] <= 9).all(axis=1) & (width > 20)
        for place, at in enumerate(range(20, min(width, 26))):
            fraction += digits[:, at] * 10 ** (5 - place)
    year, month, day = _parse_number(digits, 0, 4), _parse_number(digits, 5, 7), _parse_number(digits, 8, 10)
    hour, minute, second = (_parse_number(digits, at, at + 2) for at in (11, 14, 17))
    leap = (month == 2) & (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    good &= (month >= 1) & (month <= 12) & (hour <= 23) & (minute <= 59) & (second <= 59)
    good &= (day >= 1) & (day <= _MONTHS[np.where(good, month, 0)] + leap)
    seconds = _days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    if zone is not None:
        fits, shift = _parse_offset(zone)
        good, seconds = good & fits, seconds - shift
    good &= (seconds >= YEAR_1 // 1000) & (seconds < YEAR_10000 // 1000)
    return good, seconds * _SECOND + fraction


def _parse_offset(zone: Bytes) -> tuple[Bool, Int]:
    """Return which of these texts are an offset such as ``+01:00``, and its seconds."""
    digits = (zone - np.uint8(ord("0"))).astype(np.int64)
    hour, minute = _parse_number(digits, 1, 3), _parse_number(digits, 4, 6)
    minus = zone[:, 0] == ord("-")
    fits = (minus | (zone[:, 0] == ord("+"))) & (zone[:, 3] == ord(":"))
    fits &= (digits[:, [1, 2, 4, 5]] <= 9).all(axis=1) & (hour <= 23) & (minute <= 59)
    return fits, np.where(minus, -1, 1) * (hour * 3600 + minute * 60)


def _parse_number(digits: Int, begin: int, end: int) -> Int:
    number = digits[:, begin]
    for at in range(begin + 1, end):
        number = number * 10 + digits[:, at]
    return number


def _days_since_1970(year: Int, month: Int, day: Int) -> Int:
    """Return days since 1970-01-01 in the Gregorian calendar, as ``catalog.values`` counts them."""
    year, month = np.where(month <= 2, year - 1, year), np.where(month <= 2, month + 12, month)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469


# The exact reading of one row for tables and dead letters. Reading whole arrays gives the same for ordinary rows.

SourceKind = Literal["kafka", "inbox", "letters"]
"""Where rows come from, which says how their raw columns are read (:mod:`router.evaluation.outcome_rows`)."""
ATTRIBUTE_COLUMNS: Final = ("id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema")
TIME_TEXT: Final = "time_text"
"""``time`` as the event wrote it, which cannot be restored from an instant."""
TYPED: Final = "typed"
"""The names of the attributes that are no texts (:func:`bindings.events.typed_names`), which columns do not tell."""
TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
EVENT_TYPE: Final = pa.struct(
    [
        *((name, pa.string()) for name in ATTRIBUTE_COLUMNS),
        ("time", INSTANT),
        (TIME_TEXT, pa.string()),
        ("extensions", TEXT_MAP),
        ("native", pa.string()),
    ]
)
"""The columns of a routed event. ``extensions`` are its other attributes; ``native`` is the record without its body."""


def render_event(parts: list[Part], binding: Binding, attributes: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the columns of one routed event; ``attributes`` are given where the record's own do not serve."""
    named = event_attributes(parts, binding, attributes)
    row: dict[str, Any] = {name: named.pop(name, None) for name in ATTRIBUTE_COLUMNS}
    row[TIME_TEXT] = named.pop("time", None)
    row["time"] = parse_instant(row[TIME_TEXT])
    row["extensions"] = list(named.items())
    row["native"] = native_json(parts, binding)
    return row


def event_attributes(parts: list[Part], binding: Binding, given: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return the attributes of an event: those given as headers of Kafka's binary mode, else the record's own."""
    if given is None:
        return dict(binding.read_envelope(parts, None, lambda: False).attributes)
    return {attribute_of_header(entry["key"]): entry["value"].decode() for entry in given}


def attribute_of_header(header: str) -> str:
    """Return the attribute that a Kafka header of binary mode carries."""
    return "datacontenttype" if header == "content-type" else header.removeprefix("ce_")


def native_json(parts: list[Part], binding: Binding) -> str:
    """Return the native record as JSON, without the body."""
    return msgspec.json.encode(binding.build(parts)).decode("utf-8")


def parts_of_raw(raw: Mapping[str, Any], kind: SourceKind, place: int | None) -> tuple[list[Part], Binding]:
    """Return the parts of a raw row; for an event out of a batch, those of that event alone."""
    if kind == "kafka":
        binding, parts = BINDINGS["KAFKA"], split_row(raw)
    else:
        binding = binding_of(raw["protocol"] or "") or BINDINGS["HTTP"]
        parts = inbox_parts(raw["properties"])
    return (parts if place is None else parts_of_one_event(parts, binding.rule.content_type)), binding


# Members of JSON objects, as texts of a whole array.

TextPieces = list[pa.Array | str]
"""Texts that stand side by side; a ``str`` is the same in all rows. Few joins of many pieces take the least time."""


def string_member(name: str, texts: pa.StringArray, *, plain: bool = False) -> TextPieces:
    """Return the member of that name, ``null`` where there is no text; *plain* texts have nothing to escape."""
    if texts.null_count == len(texts):
        return [f'"{name}":null']
    texts = texts if plain else escape_json(texts)
    if texts.null_count == 0:
        return [f'"{name}":"', texts, '"']
    return [f'"{name}":', nulls_to_json(concat_texts('"', texts, '"'))]


def optional_string_member(name: str, texts: pa.StringArray) -> TextPieces:
    """Return the member of that name with a comma before it; nothing where there is no text."""
    if texts.null_count == len(texts):
        return []
    if texts.null_count == 0:
        return [f',"{name}":"', escape_json(texts), '"']
    return [pc.fill_null(concat_texts(f',"{name}":"', escape_json(texts), '"'), "")]


def join_entries(
    names: Sequence[str],
    codes: npt.NDArray[np.integer[Any]],
    offsets: Int,
    opened: Callable[[str], str],
    values: pa.StringArray,
    end: str,
    *,
    leading: bool = False,
) -> pa.StringArray:
    """Return the entries of each row as one text: what *opened* gives of the escaped name, then value and *end*.

    *codes* are places in *names*; the entries of row *i* stand from ``offsets[i]`` to ``offsets[i + 1]``.
    There is a comma between entries, and with *leading* before the first as well. No value may be null.
    """
    known = escape_json(pa.array(names, pa.string())).to_pylist()
    pieces = [f"{comma}{opened(name)}" for name in known for comma in ("", ",")]
    follows = np.ones(len(codes), np.int64)
    if not leading:
        follows[offsets[:-1][np.diff(offsets) > 0]] = 0
    begins = pa.array(pieces, pa.string()).take(pa.array(codes.astype(np.int64) * 2 + follows))
    return join_runs(concat_texts(begins, values, end), offsets)
