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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import is_not_null, replace_rows
from bindings.kafka.record_columns import LINEAGE
from router.rendering.texts import concat_texts, escape_json, join_entries, nulls_to_json
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


def context_json(contexts: pa.MapArray) -> pa.StringArray:
    """Return context attributes as JSON objects."""
    names, texts, quote = contexts.keys.dictionary_encode(), escape_json(contexts.items), '"'
    if texts.null_count:
        texts, quote = nulls_to_json(concat_texts('"', texts, '"')), ""
    offsets = contexts.offsets.to_numpy().astype(np.int64)
    opened = f'"{{}}":{quote}'.format
    members = join_entries(names.dictionary.to_pylist(), names.indices.to_numpy(), offsets, opened, texts, quote)
    return concat_texts("{", members, "}")


def encode_lineage_form(form: LineageForm) -> str:
    """Encode a form as text for a column of a Spark table; '' for no headers."""
    return form if form == "separate" else "one" * bool(form)
