"""The lineage headers of outgoing events: ``xrouter-*`` (MATCHING.md#what-comes-out).

| header | value |
|---|---|
| ``xrouter-message`` | the xid of the message definition |
| ``xrouter-context`` | the context attributes, a JSON object |
| ``xrouter-lineage`` | a JSON object: ``endpoint``, ``epoch``, ``position``, and optional members |

With ``lineage: separate`` each member of ``xrouter-lineage`` is a separate header. This module has
three renderings: one event (message sinks), columns (Kafka sinks), and Spark columns (real-time mode).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import is_not_null, raw_buffers, replace_rows
from bindings.kafka.record_columns import LINEAGE
from router.settings.values import LineageForm

if TYPE_CHECKING:
    from pyspark.sql import Column

MEMBERS: Final = ("endpoint", "epoch", "position")
T = TypeVar("T")


def lineage_headers(message: str, context: str, members: Mapping[str, str], form: LineageForm) -> dict[str, str]:
    """Return the headers of one event, by name; *context* is JSON, *members* has ``MEMBERS`` and optional members."""
    return _headers_by_name(message, context, members, form, _encode_members) if form else {}


def lineage_header_columns(
    message: pa.StringArray, context: pa.StringArray, members: Mapping[str, pa.StringArray], form: LineageForm
) -> dict[str, pa.StringArray]:
    """Return the headers of many events as columns, by name, as :func:`lineage_headers` does for one.

    A null optional member is left out.
    """
    return _headers_by_name(message, context, members, form, _encode_member_columns)


def lineage_spark_columns(
    message: Column, context: Column, members: Mapping[str, Column], form: LineageForm
) -> dict[str, Column]:
    """Return the headers of one event as Spark columns, by name; *members* has ``MEMBERS`` only."""
    return _headers_by_name(message, context, members, form, _concat_members)


def _headers_by_name(
    message: T, context: T, members: Mapping[str, T], form: LineageForm, encode: Callable[[Mapping[str, T]], T]
) -> dict[str, T]:
    """Return the headers in their order; *encode* makes one value of the members."""
    if form != "separate":
        return {f"{LINEAGE}message": message, f"{LINEAGE}context": context, f"{LINEAGE}lineage": encode(members)}
    required = {f"{LINEAGE}{name}": members[name] for name in MEMBERS}
    optional = {f"{LINEAGE}{name}": value for name, value in members.items() if name not in MEMBERS}
    return {f"{LINEAGE}message": message, **required, f"{LINEAGE}context": context, **optional}


def _concat_members(members: Mapping[str, Column]) -> Column:
    from pyspark.sql import functions as F

    pieces: list[Column] = []
    for index, name in enumerate(MEMBERS):
        pieces += [F.lit(f'{"{,"[index > 0]}"{name}":"'), members[name], F.lit('"')]
    return F.concat(*pieces, F.lit("}"))


def _encode_members(members: Mapping[str, str]) -> str:
    return msgspec.json.encode(members).decode()


def _encode_member_columns(members: Mapping[str, pa.StringArray]) -> pa.StringArray:
    # Ids of endpoints, epochs and positions have no character that JSON escapes.
    pieces: list[pa.StringArray | str] = []
    for index, name in enumerate(MEMBERS):
        pieces += [f'{"{,"[index > 0]}"{name}":"', members[name], '"']
    texts = pc.binary_join_element_wise(*pieces, "}", "")
    optional = {name: values for name, values in members.items() if name not in MEMBERS}
    rows = np.flatnonzero(np.logical_or.reduce([np.zeros(len(texts), bool), *map(is_not_null, optional.values())]))
    if not len(rows):
        return texts
    at = pa.array(rows)
    columns = {name: values.take(at).to_pylist() for name, values in members.items()}
    exact = [
        _encode_members({name: text for name, text in zip(columns, row, strict=True) if text is not None})
        for row in zip(*columns.values(), strict=True)
    ]
    return replace_rows(texts, rows, pa.array(exact, pa.string()))


def encode_context(context: Mapping[str, str]) -> str:
    """Encode the context attributes of one event as JSON."""
    return json.dumps(dict(context), ensure_ascii=False, separators=(",", ":"))


# Context attributes as JSON.

_ESCAPED_CHARS: Final = re.compile(r'[\x00-\x1f"\\]')
_SHORT_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def context_json(contexts: pa.MapArray) -> pa.StringArray:
    """Return context attributes as JSON objects in Spark's format."""
    if contexts.items.null_count:
        return pa.array([_encode_context(dict(each or ())) for each in contexts.to_pylist()], pa.string())
    bounds = contexts.offsets.to_numpy().astype(np.int64)
    counts, entries = np.diff(bounds), int(bounds[-1] - bounds[0])
    names = contexts.keys.slice(bounds[0], entries).dictionary_encode()
    heads = [pc.binary_join_element_wise(start, _escape_texts(names.dictionary), '":"', "") for start in ('{"', '","')]
    pool = pa.concat_arrays([*heads, pa.array(['"}', "{}"]), _escape_texts(contexts.items.slice(bounds[0], entries))])
    several, ends = len(heads[0]), 2 * len(heads[0])
    # The pieces of a row are a name and a value for each attribute, and an end. They are adjacent in the pool's order,
    # so the text of a row is the range of its pieces.
    starts = 2 * (bounds - bounds[0]) + np.arange(len(bounds))
    owners = np.repeat(np.arange(len(counts)), counts)
    heads_at = 2 * np.arange(entries) + owners
    pieces = np.empty(int(starts[-1]), np.int64)
    pieces[heads_at] = names.indices.to_numpy() + several
    pieces[heads_at + 1] = ends + 2 + np.arange(entries)
    pieces[starts[:-1][counts > 0]] -= several
    pieces[starts[1:] - 1] = np.where(counts > 0, ends, ends + 1)
    texts = pool.take(pa.array(pieces))
    return pa.StringArray.from_buffers(len(counts), pa.py_buffer(raw_buffers(texts)[1][starts]), texts.buffers()[2])


def _escape_texts(texts: pa.StringArray) -> pa.StringArray:
    """Return texts, without nulls, escaped for JSON strings."""
    data, bounds = raw_buffers(texts)
    used = data[bounds[0] : bounds[-1]]
    if not ((used < ord(" ")) | (used == ord('"')) | (used == ord("\\"))).any():
        return texts
    special = pc.match_substring_regex(texts, _ESCAPED_CHARS.pattern)
    changed = [_escape_text(text) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(texts, special, pa.array(changed, pa.string()))


def _escape_text(text: str) -> str:
    return _ESCAPED_CHARS.sub(lambda match: _SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}", text)


def _encode_context(members: Mapping[str, str | None]) -> str:
    texts = ((name, "null" if text is None else f'"{_escape_text(text)}"') for name, text in members.items())
    return "{" + ",".join(f'"{_escape_text(name)}":{text}' for name, text in texts) + "}"


def encode_lineage_form(form: LineageForm) -> str:
    """Encode a form as text for a column of a Spark table; '' for no headers."""
    return form if form == "separate" else "one" * bool(form)
