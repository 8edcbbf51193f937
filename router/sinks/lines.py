"""JSON lines of whole batches: what :mod:`router.sinks.forms` writes of each row, written of all rows at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import base64_of, valid
from bindings.entries import Bool, Entries
from router.rendering.embedding import data_members, sound_json
from router.rendering.exact import TEXT_MAP, TIME_TEXT, TYPED
from router.rendering.instants import INSTANT, instant_texts
from router.rendering.members import Pieces, entry_texts, string_member, string_member_if_any
from router.rendering.texts import data_of, escaped, or_empty, or_null, owners_of, replaced, together
from router.sinks.forms import (
    ATTRIBUTES,
    DEAD_LETTER,
    RARE,
    JsonForm,
    dead_letter_to_json_line,
    wide_to_json_line,
)

Lines = Callable[[pa.RecordBatch], pa.StringArray]
"""Makes the line of each row, with the line break at its end."""
_PAIRS: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.string())]))
_OURS: Final = frozenset((*ATTRIBUTES, "specversion", "time", "data", "data_base64"))


def event_lines(rows: pa.RecordBatch) -> pa.StringArray:
    """Return the lines of rows of ``WIDE``, each as :func:`~router.sinks.forms.wide_to_json_line` has it.

    The columns ``TIME_TEXT``, ``TYPED`` and those of ``RARE`` may stand beside; instants are of the years 1 to 9999.
    """
    extensions, context = _entries(rows, "extensions"), _entries(rows, "context")
    data = _column(rows, "data", pa.binary())
    lines = together(
        '{"cloudevent":{',
        *_attributes(rows),
        *_pairs(extensions, leading=True),
        # JSON of several lines becomes base64: a line must stay a line, and the bytes what they were.
        *data_members(data, _text(rows, "datacontenttype"), barred=_has_line_breaks(data)),
        "},",
        *string_member("message", _text(rows, "message")),
        ",",
        *string_member("endpoint", _text(rows, "endpoint")),
        ',"context":{',
        *_pairs(context),
        "},",
        *string_member("epoch", _text(rows, "epoch")),
        ",",
        *string_member("position", _text(rows, "position")),
        ",",
        *string_member("received", _instants(rows, "received"), plain=True),
        *chain(*(string_member_if_any(name, _text(rows, name)) for name in RARE)),
        "}\n",
    )
    odd = _unusual(extensions, _OURS) | _unusual(context, frozenset()) | valid(_text(rows, TYPED))
    return _with_exact(lines, rows, odd, wide_to_json_line)


def letter_lines(rows: pa.RecordBatch) -> pa.StringArray:
    """Return the lines of rows of ``DEAD_LETTER``, as :func:`~router.sinks.forms.dead_letter_to_json_line` has each.

    Instants are of the years 1 to 9999.
    """
    members: list[Pieces] = []
    odd = np.zeros(rows.num_rows, bool)
    for name in DEAD_LETTER.names:
        if name in ("nearest", "native"):
            texts = or_null(_text(rows, name))
            odd |= ~sound_json(texts) | _has_line_breaks(texts)
            members.append([f'"{name}":', texts])
        elif name in ("received", "failed"):
            members.append(string_member(name, _instants(rows, name), plain=True))
        elif name == "body":
            members.append(string_member(name, base64_of(_column(rows, name, pa.binary())), plain=True))
        elif name == "attempts":
            members.append([f'"{name}":', or_null(_column(rows, name, pa.int32()).cast(pa.string()))])
        else:
            members.append(string_member(name, _text(rows, name)))
    pieces = [piece for member in members for piece in (*member, ",")][:-1]
    return _with_exact(together("{", *pieces, "}\n"), rows, odd, dead_letter_to_json_line)


def _with_exact(lines: pa.StringArray, rows: pa.RecordBatch, odd: Bool, form: JsonForm) -> pa.StringArray:
    at = np.flatnonzero(odd)
    if not len(at):
        return lines
    exact = [form(row).decode() + "\n" for row in rows.take(pa.array(at)).to_pylist()]
    return replaced(lines, at, pa.array(exact, pa.string()))


def _attributes(rows: pa.RecordBatch) -> Pieces:
    """Return the attributes with a column as members, ``specversion`` first and ``time`` last."""
    version, time = _text(rows, "specversion"), _text(rows, TIME_TEXT)
    version = _where_empty(version, pa.scalar("1.0"))
    time = _where_empty(time, _instants(rows, "time"))
    others = (string_member_if_any(name, _text(rows, name)) for name in ATTRIBUTES)
    return [*string_member("specversion", version), *chain(*others), *string_member_if_any("time", time)]


def _where_empty(texts: pa.StringArray, other: pa.StringArray | pa.StringScalar) -> pa.StringArray:
    """Return the texts, with those of *other* for nulls and empty ones."""
    empty = pc.fill_null(pc.equal(texts, ""), True)
    return pc.if_else(empty, other, texts) if pc.any(empty).as_py() else texts


def _pairs(entries: Entries, *, leading: bool = False) -> Pieces:
    if not len(entries.codes):
        return []
    values = escaped(or_empty(entries.values))
    return [entry_texts(entries.names, entries.codes, entries.offsets, '"{}":"'.format, values, '"', leading=leading)]


def _entries(rows: pa.RecordBatch, name: str) -> Entries:
    return Entries(_column(rows, name, TEXT_MAP).cast(_PAIRS))


def _unusual(entries: Entries, names: frozenset[str]) -> Bool:
    """Return which rows have an entry without a value, one of these names, or a name twice."""
    valueless = np.flatnonzero(entries.values.is_null())
    return (
        entries.repeated(lambda _: True)
        | entries.rows_of(entries.named(lambda name: name in names))
        | entries.rows_of(valueless)
    )


def _has_line_breaks(texts: pa.Array) -> Bool:
    data, places = data_of(texts)
    rows = np.zeros(len(texts), bool)
    breaks = (data == ord("\n")) | (data == ord("\r"))
    if breaks.any():
        rows[owners_of(places, np.flatnonzero(breaks))] = True
    return rows


def _instants(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    return instant_texts(_column(rows, name, INSTANT))


def _text(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    return _column(rows, name, pa.string())


def _column(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, kind)
    column = rows.column(name)
    return column if column.type == kind else column.cast(kind)
