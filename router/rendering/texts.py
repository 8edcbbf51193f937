"""Fast operations on Arrow arrays of texts, the parsing of instants, JSON members, and the exact rendering of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Int, decode_utf8, raw_buffers, replace_rows
from bindings.kafka.binding import split_row
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from catalog.values import YEAR_1, YEAR_10000, parse_timestamp
from router.matching.inbox_columns import inbox_parts
from router.matching.record_columns import parts_of_one_event

# Operations on arrays of texts and bytes through their buffers.

Bytes = npt.NDArray[np.uint8]
NO_ROWS: Final = np.zeros(0, np.int64)
_BACKSLASH: Final = 0x5C
_QUOTE: Final = 0x22


def bytes_and_offsets(texts: pa.Array) -> tuple[Bytes, Int]:
    """Return the buffer of an array of texts or bytes, and the offsets of its texts in it, with the end of the last.

    The texts are adjacent. A null usually has no bytes, but may have some.
    """
    data, offsets = raw_buffers(texts)
    return data[offsets[0] : offsets[-1]], (offsets - offsets[0]).astype(np.int64)


def find_owners(offsets: Int, at: Int) -> Int:
    """Return the number of the text that each byte belongs to; *offsets* are those of :func:`bytes_and_offsets`."""
    return np.searchsorted(offsets, at, "right") - 1


def join_runs(texts: pa.StringArray, offsets: Int) -> pa.StringArray:
    """Concatenate each run of texts from one offset to the next. No text may be null."""
    data, bounds = bytes_and_offsets(texts)
    ends = np.ascontiguousarray(bounds[offsets], np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data)))


def concat_texts(*texts: pa.Array | str) -> pa.StringArray:
    """Concatenate the texts of each row; null if one of them is null. A ``str`` is the same in all rows."""
    return pc.binary_join_element_wise(*texts, "")


def nulls_to_empty(texts: pa.StringArray) -> pa.StringArray:
    """Replace nulls by empty texts."""
    return pc.fill_null(texts, "") if texts.null_count else texts


def nulls_to_json(values: pa.StringArray) -> pa.StringArray:
    """Replace nulls by the JSON text ``null``."""
    return pc.fill_null(values, "null") if values.null_count else values


def take_rows(values: pa.Array, rows: Int) -> pa.Array:
    """Return the values of these rows, which are ascending; no copy if they are all rows."""
    return values if len(rows) == len(values) else values.take(pa.array(rows))


def merge_texts(rows: int, *parts: tuple[Int, pa.StringArray]) -> pa.StringArray:
    """Return *rows* texts: those of each part in its rows, empty elsewhere. Parts do not overlap."""
    indices = np.zeros(rows, np.int64)
    begin = 1
    for numbers, texts in parts:
        indices[numbers] = begin + np.arange(len(numbers))
        begin += len(texts)
    return pa.concat_arrays([pa.array([""]), *(texts for _, texts in parts)]).take(pa.array(indices))


def decode_texts(values: pa.BinaryArray) -> tuple[pa.StringArray, Int]:
    """Decode bytes as UTF-8; return the texts, and the rows of invalid bytes, which are null."""
    texts = decode_utf8(values)
    if texts.null_count == values.null_count:
        return texts, NO_ROWS
    return texts, np.flatnonzero(pc.and_(values.is_valid(), texts.is_null()))


def escape_json(texts: pa.StringArray) -> pa.StringArray:
    """Escape texts for JSON strings as ``msgspec.json`` does."""
    data, offsets = bytes_and_offsets(texts)
    marks = (data < 0x20) | (data == _QUOTE) | (data == _BACKSLASH)
    if not marks.any():
        return texts
    at = np.flatnonzero(marks)
    rows = np.unique(find_owners(offsets, at))
    changed = texts.take(pa.array(rows))
    # The backslash first: all other escapes begin with one.
    for byte in sorted(np.unique(data[at]).tolist(), key=lambda byte: byte != _BACKSLASH):
        changed = pc.replace_substring(changed, chr(byte), _json_escape(byte))
    return replace_rows(texts, rows, changed)


@cache
def _json_escape(byte: int) -> str:
    return msgspec.json.encode(chr(byte)).decode()[1:-1]


# Instants in RFC 3339: whole arrays are parsed at once, and unusual texts by the exact parser.

INSTANT: Final = pa.timestamp("us", tz="UTC")
_SHORTEST: Final = len("2026-01-02T03:04:05Z")
_LONGEST: Final = len("2026-01-02T03:04:05.123456789+00:00")
_ZONE: Final = len("+00:00")
_SEPARATORS: Final = ((4, "--"), (7, "--"), (10, "Tt"), (13, "::"), (16, "::"))
_DIGITS: Final = [at for at in range(19) if at not in (4, 7, 10, 13, 16)]
_SECOND: Final = 1_000_000
_MONTHS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def parse_instant(text: str | None) -> int | None:
    """Return an event's time in microseconds since 1970; None outside of the years 1 to 9999.

    RFC 3339 has a year 0, and offsets and leap seconds can reach past 9999; readers of tables support neither.
    """
    nanoseconds = parse_timestamp(text) if text is not None else None
    if nanoseconds is None:
        return None
    return nanoseconds // 1000 if YEAR_1 <= nanoseconds // 1_000_000 < YEAR_10000 else None


def parse_instants(texts: pa.StringArray) -> pa.TimestampArray:
    """Parse each text as :func:`parse_instant` does."""
    data, offsets = bytes_and_offsets(texts)
    lengths = np.diff(offsets)
    known = texts.is_valid().to_numpy(zero_copy_only=False)
    micros = np.zeros(len(texts), np.int64)
    read = np.zeros(len(texts), bool)
    for length in np.unique(lengths[known]).tolist():
        if _SHORTEST <= length <= _LONGEST:
            rows = np.flatnonzero((lengths == length) & known)
            read[rows], micros[rows] = _parse_plain_instants(data[offsets[rows][:, None] + np.arange(length)])
    rest = np.flatnonzero(known & ~read)
    for row in rest.tolist():
        exact = parse_instant(texts[row].as_py())
        read[row] = exact is not None
        micros[row] = exact or 0
    return pa.array(micros, pa.int64(), mask=~read).view(INSTANT)


def format_instants(instants: pa.TimestampArray) -> pa.StringArray:
    """Format instants as RFC 3339 in UTC with as few digits as possible; null stays null."""
    # Arrow writes an instant without a zone with a space for the "T" and always six digits.
    texts = instants.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.binary_join_element_wise(pc.binary_replace_slice(trimmed, 10, 11, "T"), "Z", "")


def _parse_plain_instants(letters: Bytes) -> tuple[Bool, Int]:
    """Parse texts of one length; return which are ordinary instants, and their microseconds."""
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
    """Parse texts such as ``+01:00``; return which are valid, and their seconds."""
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
    """Return the days since 1970-01-01 in the Gregorian calendar, as ``catalog.values`` counts them."""
    year, month = np.where(month <= 2, year - 1, year), np.where(month <= 2, month + 12, month)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469


# The exact rendering of one row for tables and dead letters; rendering whole arrays must give the same.

SourceKind = Literal["kafka", "inbox", "letters"]
"""The kind of source, which decides the raw columns of rows (:mod:`router.evaluation.outcome_rows`)."""
ATTRIBUTE_COLUMNS: Final = ("id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema")
TIME_TEXT: Final = "time_text"
"""The column with the original text of ``time``, which cannot be restored from an instant."""
TYPED: Final = "typed"
"""The column with the names of attributes that are not strings (:func:`bindings.events.typed_names`)."""
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
"""The columns of a routed event. ``extensions`` has its other attributes, ``native`` the record without its body."""


def render_event(parts: list[Part], binding: Binding, attributes: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Render the columns of one routed event; ``attributes`` are None if the record has them."""
    named = event_attributes(parts, binding, attributes)
    row: dict[str, Any] = {name: named.pop(name, None) for name in ATTRIBUTE_COLUMNS}
    row[TIME_TEXT] = named.pop("time", None)
    row["time"] = parse_instant(row[TIME_TEXT])
    row["extensions"] = list(named.items())
    row["native"] = native_json(parts, binding)
    return row


def event_attributes(parts: list[Part], binding: Binding, given: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return the attributes of an event: *given* as headers of Kafka's binary mode, else those of the record."""
    if given is None:
        return dict(binding.read_envelope(parts, None, lambda: False).attributes)
    return {attribute_of_header(entry["key"]): entry["value"].decode() for entry in given}


def attribute_of_header(header: str) -> str:
    """Return the attribute name of a Kafka header in binary mode."""
    return "datacontenttype" if header == "content-type" else header.removeprefix("ce_")


def native_json(parts: list[Part], binding: Binding) -> str:
    """Render the native record as JSON, without the body."""
    return msgspec.json.encode(binding.build(parts)).decode("utf-8")


def parts_of_raw(raw: Mapping[str, Any], kind: SourceKind, place: int | None) -> tuple[list[Part], Binding]:
    """Return the parts of a raw row and its binding; for event number *place* of a batch, the parts of that event."""
    if kind == "kafka":
        binding, parts = BINDINGS["KAFKA"], split_row(raw)
    else:
        binding = binding_of(raw["protocol"] or "") or BINDINGS["HTTP"]
        parts = inbox_parts(raw["properties"])
    return (parts if place is None else parts_of_one_event(parts, binding.rule.content_type)), binding


# Members of JSON objects as texts.

TextPieces = list[pa.Array | str]
"""Texts to concatenate; a ``str`` is the same in all rows. Few joins of many pieces are fastest."""


def string_member(name: str, texts: pa.StringArray, *, plain: bool = False) -> TextPieces:
    """Render a member, ``null`` without a text; *plain* texts have nothing to escape."""
    if texts.null_count == len(texts):
        return [f'"{name}":null']
    texts = texts if plain else escape_json(texts)
    if texts.null_count == 0:
        return [f'"{name}":"', texts, '"']
    return [f'"{name}":', nulls_to_json(concat_texts('"', texts, '"'))]


def optional_string_member(name: str, texts: pa.StringArray) -> TextPieces:
    """Render a member after a comma; nothing without a text."""
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
    """Render the entries of each row as one text: *opened* of the escaped name, the value, and *end*.

    *codes* are indices in *names*; row *i* has the entries from ``offsets[i]`` to ``offsets[i + 1]``. There is a comma
    between entries, and with *leading* also before the first. No value may be null.
    """
    known = escape_json(pa.array(names, pa.string())).to_pylist()
    pieces = [f"{comma}{opened(name)}" for name in known for comma in ("", ",")]
    follows = np.ones(len(codes), np.int64)
    if not leading:
        follows[offsets[:-1][np.diff(offsets) > 0]] = 0
    begins = pa.array(pieces, pa.string()).take(pa.array(codes.astype(np.int64) * 2 + follows))
    return join_runs(concat_texts(begins, values, end), offsets)
