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

from bindings.columns.entries import Int, decode_utf8, raw_buffers, replace_rows
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
_YEAR: Final = r"(?:000[2-9]|00[1-9]\d|0[1-9]\d\d|[1-8]\d{3}|9[0-8]\d\d|99[0-8]\d|999[0-8])"
_DAY: Final = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_LEAP_YEAR: Final = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_TIME: Final = r"[Tt](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?"
_PLAIN_INSTANT: Final = (
    rf"^(?:(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29){_TIME}(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
    rf"|(?:0001|9999)-{_DAY}{_TIME}[Zz])$"
)
"""Instants in the years 1 to 9999 that Arrow reads alike in capitals, except for digits beyond microseconds."""


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
    plain = pc.fill_null(pc.match_substring_regex(texts, _PLAIN_INSTANT), False)
    known = pc.ascii_upper(pc.if_else(plain, texts, pa.scalar(None, pa.string())))
    if (pc.max(pc.binary_length(known)).as_py() or 0) > len("2026-01-02T03:04:05.123456Z"):
        known = pc.replace_substring_regex(known, r"(\.\d{6})\d+", r"\1")
    rest = np.flatnonzero(pc.and_not(texts.is_valid(), plain).to_numpy(zero_copy_only=False))
    exact = [parse_instant(text) for text in take_rows(texts, rest).to_pylist()]
    return replace_rows(known.cast(INSTANT), rest, pa.array(exact, INSTANT))


def format_instants(instants: pa.TimestampArray) -> pa.StringArray:
    """Format instants as RFC 3339 in UTC with as few digits as possible; null stays null."""
    # Arrow writes an instant without a zone with a space for the "T" and always six digits.
    texts = instants.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.binary_join_element_wise(pc.binary_replace_slice(trimmed, 10, 11, "T"), "Z", "")


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
