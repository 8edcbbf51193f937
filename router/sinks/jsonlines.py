"""JSON lines: their columns and texts, and one file per batch in a folder (exactly once)."""

from __future__ import annotations

import base64
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Entries, encode_base64, is_not_null, replace_rows
from bindings.events import encode_event, restore_types, to_json_members
from bindings.private_files import sync_path, write_atomically
from catalog.findings import escape_json_controls
from router.matching.context import RELATED
from router.matching.record_columns import SCHEMA_ID
from router.rendering.events import data_members, is_plain_json
from router.rendering.texts import (
    INSTANT,
    TEXT_MAP,
    TIME_TEXT,
    TYPED,
    TextPieces,
    bytes_and_offsets,
    concat_texts,
    escape_json,
    find_owners,
    format_instants,
    join_entries,
    nulls_to_empty,
    nulls_to_json,
    optional_string_member,
    string_member,
)
from router.settings.routes import escape_value
from router.settings.sinks.messages import JsonLinesSink as JsonLinesSettings
from router.sinks.contract import ArrowSink, Commit, WriteResult, to_sink_error

# Columns of the router's output (MATCHING.md#what-comes-out), wide table and dead letters, and their JSON lines.


def _make_columns(texts: str, *others: tuple[str, pa.DataType]) -> dict[str, pa.DataType]:
    return {**dict.fromkeys(texts.split(), pa.string()), **dict(others)}


WIDE: Final = pa.schema(
    {
        **_make_columns("id source specversion type subject datacontenttype dataschema", ("time", INSTANT)),
        **_make_columns("", ("extensions", TEXT_MAP), ("data", pa.binary())),
        **_make_columns("message endpoint epoch position protocol", ("context", TEXT_MAP)),
        **_make_columns("native", ("received", INSTANT)),
    }.items()
)
"""One routed event. ``extensions`` are the attributes without a column; ``native`` the record's JSON without body.

Rows for JSON lines also have the columns ``TIME_TEXT`` and ``TYPED``.
"""

DEAD_LETTER: Final = pa.schema(
    {
        **_make_columns("letter reason detail nearest endpoint protocol native", ("body", pa.binary())),
        **_make_columns("epoch position", ("received", INSTANT), ("failed", INSTANT), ("attempts", pa.int32())),
    }.items()
)
"""One dead letter. ``nearest`` is a JSON list, ``native`` the record's JSON without body, ``body`` its bytes."""

AMBIGUOUS: Final = "ambiguous"
"""An optional column: how ``match.ambiguous`` resolved a tie, null if there was none."""
# The columns RELATED and SCHEMA_ID are optional as well: for catalogs with relations, and for bodies with schema ids.
WIDE_WITH_AMBIGUOUS: Final = WIDE.append(pa.field(AMBIGUOUS, pa.string()))
"""The columns of a table after a tie was resolved."""
RARE: Final = (AMBIGUOUS, *RELATED, SCHEMA_ID)
"""Optional columns with lineage that only some events have."""
ATTRIBUTES: Final = ("id", "source", "type", "subject", "datacontenttype", "dataschema")
"""Attributes with a column of their own, and members of a line in this order if present."""
_LINE_BREAKS: Final = (b"\n", b"\r")


def wide_to_json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row of :data:`WIDE` as a line of JSON, without the line break at the end.

    ``data`` of a JSON content type is embedded unchanged, unless it has line breaks: then it is ``data_base64``, so
    that line and bytes both survive. Other data is text if it is UTF-8, else base64.
    """
    lineage = {name: row.get(name) for name in ("message", "endpoint")}
    return msgspec.json.encode(
        {
            "cloudevent": msgspec.Raw(_encode_event(read_attributes(row), row.get("data"))),
            **lineage,
            "context": map_to_dict(row.get("context")),
            "epoch": row.get("epoch"),
            "position": row.get("position"),
            "received": format_instant(row.get("received")),
            **{name: row[name] for name in RARE if row.get(name) is not None},
        }
    )


def read_attributes(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of a row of :data:`WIDE`, ``specversion`` first."""
    attributes = {"specversion": row.get("specversion") or "1.0"}
    attributes.update((name, row[name]) for name in ATTRIBUTES if row.get(name) is not None)
    time = row.get(TIME_TEXT) or format_instant(row.get("time"))
    if time is not None:
        attributes["time"] = time
    attributes.update(map_to_dict(row.get("extensions")))
    return restore_types(attributes, row.get(TYPED))


def format_instant(value: datetime | None) -> str | None:
    """Return an instant as RFC 3339 in UTC, with as few digits as possible; None stays None."""
    if value is None:
        return None
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{text.rstrip('0').rstrip('.')}Z" if text.endswith("0") else f"{text}Z"


def map_to_dict(value: Any) -> dict[str, str]:
    """Return a map column's value (pairs or a dict) as a dict; empty for None."""
    return dict(value or ())


def _encode_event(attributes: Mapping[str, str], data: bytes | None) -> bytes:
    text = encode_event(attributes, data)
    if data is not None and any(mark in text for mark in _LINE_BREAKS):
        encoded = base64.b64encode(data).decode("ascii")
        return msgspec.json.encode({**to_json_members(attributes), "data_base64": encoded})
    return text


def _embed_json(text: str) -> str:
    """Return text to embed as JSON: text that is not JSON, or has line breaks, becomes a string."""
    with suppress(msgspec.DecodeError, RecursionError):
        if not any(mark in text for mark in "\n\r"):
            # As Raw only the syntax is checked: a number too large for a float is still JSON.
            msgspec.json.decode(text, type=msgspec.Raw)
            return text
    return msgspec.json.encode(text).decode()


# JSON lines of batches: the columnar version of the row functions above.

Lines = Callable[[pa.RecordBatch], pa.StringArray]
"""Returns the line of each row, with the line break at its end."""
_PAIRS: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.string())]))
_OURS: Final = frozenset((*ATTRIBUTES, "specversion", "time", "data", "data_base64"))


def render_event_lines(rows: pa.RecordBatch) -> pa.StringArray:
    """Return the lines of rows of ``WIDE``, the same as :func:`~router.sinks.jsonlines.wide_to_json_line` of each row.

    The columns ``TIME_TEXT``, ``TYPED`` and ``RARE`` are optional; times must be in the years 1 to 9999.
    """
    extensions, context = _get_entries(rows, "extensions"), _get_entries(rows, "context")
    data = _get_column(rows, "data", pa.binary())
    lines = concat_texts(
        '{"cloudevent":{',
        *_render_attributes(rows),
        *_render_pairs(extensions, leading=True),
        # JSON with line breaks becomes base64, which preserves both the line and the bytes.
        *data_members(data, _get_texts(rows, "datacontenttype"), barred=_has_line_breaks(data)),
        "},",
        *string_member("message", _get_texts(rows, "message")),
        ",",
        *string_member("endpoint", _get_texts(rows, "endpoint")),
        ',"context":{',
        *_render_pairs(context),
        "},",
        *string_member("epoch", _get_texts(rows, "epoch")),
        ",",
        *string_member("position", _get_texts(rows, "position")),
        ",",
        *string_member("received", _get_instant_texts(rows, "received"), plain=True),
        *chain(*(optional_string_member(name, _get_texts(rows, name)) for name in RARE)),
        "}\n",
    )
    fallback = _is_unusual(extensions, _OURS) | _is_unusual(context, frozenset()) | is_not_null(_get_texts(rows, TYPED))
    at = np.flatnonzero(fallback)
    exact = [wide_to_json_line(row).decode() + "\n" for row in rows.take(pa.array(at)).to_pylist()]
    return replace_rows(lines, at, pa.array(exact, pa.string()))


def render_letter_lines(rows: pa.RecordBatch) -> pa.StringArray:
    """Return the lines of rows of ``DEAD_LETTER``; times must be in the years 1 to 9999.

    ``body`` is base64 text, null for none; ``nearest`` and ``native`` are embedded as JSON.
    """
    members: list[TextPieces] = []
    for name in DEAD_LETTER.names:
        if name in ("nearest", "native"):
            texts = nulls_to_json(_get_texts(rows, name))
            at = np.flatnonzero(~is_plain_json(texts) | _has_line_breaks(texts))
            exact = [_embed_json(text) for text in texts.take(pa.array(at)).to_pylist()]
            members.append([f'"{name}":', replace_rows(texts, at, pa.array(exact, pa.string()))])
        elif name in ("received", "failed"):
            members.append(string_member(name, _get_instant_texts(rows, name), plain=True))
        elif name == "body":
            members.append(string_member(name, encode_base64(_get_column(rows, name, pa.binary())), plain=True))
        elif name == "attempts":
            members.append([f'"{name}":', nulls_to_json(_get_column(rows, name, pa.int32()).cast(pa.string()))])
        else:
            members.append(string_member(name, _get_texts(rows, name)))
    return concat_texts("{", *[piece for member in members for piece in (*member, ",")][:-1], "}\n")


def _render_attributes(rows: pa.RecordBatch) -> TextPieces:
    """Render the attributes that have a column as JSON members, ``specversion`` first and ``time`` last."""
    version, time = _get_texts(rows, "specversion"), _get_texts(rows, TIME_TEXT)
    version = _replace_empty(version, pa.scalar("1.0"))
    time = _replace_empty(time, _get_instant_texts(rows, "time"))
    others = (optional_string_member(name, _get_texts(rows, name)) for name in ATTRIBUTES)
    return [*string_member("specversion", version), *chain(*others), *optional_string_member("time", time)]


def _replace_empty(texts: pa.StringArray, other: pa.StringArray | pa.StringScalar) -> pa.StringArray:
    """Return the texts, with null and empty ones replaced by *other*."""
    empty = pc.fill_null(pc.equal(texts, ""), True)
    return pc.if_else(empty, other, texts) if pc.any(empty).as_py() else texts


def _render_pairs(entries: Entries, *, leading: bool = False) -> TextPieces:
    if not len(entries.codes):
        return []
    values = escape_json(nulls_to_empty(entries.values))
    return [join_entries(entries.names, entries.codes, entries.offsets, '"{}":"'.format, values, '"', leading=leading)]


def _get_entries(rows: pa.RecordBatch, name: str) -> Entries:
    return Entries(_get_column(rows, name, TEXT_MAP).cast(_PAIRS))


def _is_unusual(entries: Entries, names: frozenset[str]) -> Bool:
    """Return which rows have an entry without a value, an entry with one of these names, or a repeated name."""
    valueless = np.flatnonzero(entries.values.is_null())
    return (
        entries.rows_with_repeats(slice(None), entries.codes)
        | entries.rows_with(entries.find_entries(lambda name: name in names))
        | entries.rows_with(valueless)
    )


def _has_line_breaks(texts: pa.Array) -> Bool:
    data, places = bytes_and_offsets(texts)
    rows = np.zeros(len(texts), bool)
    breaks = (data == ord("\n")) | (data == ord("\r"))
    if breaks.any():
        rows[find_owners(places, np.flatnonzero(breaks))] = True
    return rows


def _get_instant_texts(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    return format_instants(_get_column(rows, name, INSTANT))


def _get_texts(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    return _get_column(rows, name, pa.string())


def _get_column(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, kind)
    column = rows.column(name)
    return column if column.type == kind else column.cast(kind)


# Sinks of JSON lines: one file for each batch in a folder (exactly once), or standard output (at least once).


@dataclass(eq=False)
class BatchFileSink(ArrowSink):
    """Writes each batch as ``APP-VERSION`` and the ``suffix`` of its kind; names sort by app, then version.

    The file appears by a rename after its bytes are on disk, so a batch survives power loss once ``write`` returned,
    and no reader sees a partial one. The file name identifies a repeated batch, so files must stay in the folder until
    the next batch is written.
    """

    suffix: ClassVar[str]

    name: str
    folder: Path

    @abstractmethod
    def write_rows(self, file: BinaryIO, rows: pa.Table) -> None:
        """Write the rows of a non-empty batch."""

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once; see :class:`~router.sinks.contract.ArrowSink`."""
        if rows.num_rows == 0:
            return WriteResult(0)
        target = self._file_path(commit.app, commit.version)
        if self.has_commit(commit):
            return WriteResult(0, repeated=True, before=rows.num_rows)
        try:
            write_atomically(target, lambda file: self.write_rows(file, rows))
        except OSError as error:
            raise to_sink_error(self.name, str(target), error) from error
        return WriteResult(rows.num_rows)

    def has_commit(self, commit: Commit) -> bool:
        """Return whether the batch, or a batch that includes it, has a file; if so, make the file's name durable."""
        try:
            exists = any(self._file_path(app, commit.version).exists() for app in commit.apps)
            if exists:
                sync_path(self.folder)
        except OSError as error:
            raise to_sink_error(self.name, str(self.folder), error) from error
        return exists

    def _file_path(self, app: str, version: int) -> Path:
        return self.folder / f"{escape_value(app, '%')}-{version:012d}{self.suffix}"


_SLICE: Final = 2000
_BYTES: Final = 32 * 1024 * 1024
"""Rows written at a time, and their maximum bytes: a large batch need not fit into memory twice."""
_DELETE: Final = 0x7F
"""The first byte of control characters that JSON does not escape."""
_FIRST: Final = -62_135_596_800_000_000
_LAST: Final = 253_402_300_799_999_999
"""Microseconds of the first and last time that ``datetime`` can represent."""


def open_json_lines(name: str, settings: JsonLinesSettings, kind: str, catalog: object, framings: object) -> ArrowSink:
    """Create the sink of JSON lines for events or dead letters."""
    lines = render_event_lines if kind == "events" else render_letter_lines
    if settings.is_stdout:
        return StandardOutputSink(name, lines)
    return JsonLinesFolder(name, Path(settings.path), lines)


@dataclass(eq=False)
class JsonLinesFolder(BatchFileSink):
    """Writes each batch as ``APP-VERSION.jsonl``.

    ``lines`` renders them: :func:`~router.sinks.jsonlines.render_event_lines` for events,
    :func:`~router.sinks.jsonlines.render_letter_lines` for dead letters.
    """

    suffix: ClassVar[str] = ".jsonl"

    lines: Lines

    def write_rows(self, file: BinaryIO, rows: pa.Table) -> None:
        """Write the lines of the rows."""
        file.writelines(_iter_line_bytes(rows, self.lines))


@dataclass(eq=False)
class StandardOutputSink(ArrowSink):
    """Writes lines to standard output: at least once, since nothing shows what a reader consumed.

    Since the output may be a terminal, its control characters are escaped. After a crash within a batch, the last line
    may be incomplete, and the batch is written again.
    """

    name: str
    lines: Lines
    stream: BinaryIO | None = None

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch, repeated or not, and flush it."""
        stream = self.stream or sys.stdout.buffer
        try:
            stream.writelines(_iter_line_bytes(rows, self._render_escaped_lines))
            stream.flush()
        except OSError as error:
            raise to_sink_error(self.name, "standard output", error) from error
        return WriteResult(rows.num_rows)

    def has_commit(self, commit: Commit) -> bool:
        """Always False."""
        return False

    def _render_escaped_lines(self, rows: pa.RecordBatch) -> pa.StringArray:
        lines = self.lines(rows)
        data, places = bytes_and_offsets(lines)
        at = np.unique(find_owners(places, np.flatnonzero(data >= _DELETE)))
        texts = (escape_json_controls(line.encode()).decode() for line in lines.take(pa.array(at)).to_pylist())
        return replace_rows(lines, at, pa.array(texts, pa.string()))


def _iter_line_bytes(rows: pa.Table, lines: Lines) -> Iterator[memoryview]:
    """Yield the bytes of the rendered lines, a group of rows at a time."""
    waiting = _null_unusual_instants(rows).to_batches(max_chunksize=_SLICE)[::-1]
    while waiting:
        batch = waiting.pop()
        if batch.nbytes > _BYTES and batch.num_rows > 1:
            middle = batch.num_rows // 2
            waiting += [batch[middle:], batch[:middle]]
        else:
            yield bytes_and_offsets(lines(batch))[0].data


def _null_unusual_instants(rows: pa.Table) -> pa.Table:
    """Replace times outside the years 1 to 9999 by null, so that they do not block the stream.

    The event's ``time`` is not lost: its text is in the column ``TIME_TEXT``.
    """
    for index, field in enumerate(rows.schema):
        if field.type == INSTANT:
            column = rows.column(index)
            micros = column.cast(pa.int64())
            inside = pc.and_(pc.greater_equal(micros, _FIRST), pc.less_equal(micros, _LAST))
            rows = rows.set_column(index, field, pc.if_else(inside, column, pa.scalar(None, INSTANT)))
    return rows
