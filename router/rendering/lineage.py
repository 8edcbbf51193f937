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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import is_not_null, replace_rows
from bindings.kafka.record_columns import LINEAGE
from router.settings.values import LineageForm

if TYPE_CHECKING:
    from pyspark.sql import Column

MEMBERS: Final = ("endpoint", "epoch", "position")
_JSON: Final = f"{LINEAGE}lineage"


def lineage_headers(message: str, context: str, members: Mapping[str, str], form: LineageForm) -> dict[str, str]:
    """Return the headers of one event, by name; *context* is JSON, *members* has ``MEMBERS`` and optional members."""
    if not form:
        return {}
    if form == "separate":
        return {
            f"{LINEAGE}message": message,
            **{f"{LINEAGE}{name}": members[name] for name in MEMBERS},
            f"{LINEAGE}context": context,
            **{f"{LINEAGE}{name}": text for name, text in members.items() if name not in MEMBERS},
        }
    return {f"{LINEAGE}message": message, f"{LINEAGE}context": context, _JSON: _encode_members(members)}


def lineage_header_columns(
    message: pa.StringArray, context: pa.StringArray, members: Mapping[str, pa.StringArray], form: LineageForm
) -> dict[str, pa.StringArray]:
    """Return the headers of many events as columns, by name, as :func:`lineage_headers` does for one.

    A null optional member is left out.
    """
    if form == "separate":
        required = {f"{LINEAGE}{name}": members[name] for name in MEMBERS}
        optional = {f"{LINEAGE}{name}": texts for name, texts in members.items() if name not in MEMBERS}
        return {f"{LINEAGE}message": message, **required, f"{LINEAGE}context": context, **optional}
    return {f"{LINEAGE}message": message, f"{LINEAGE}context": context, _JSON: _encode_member_columns(members)}


def lineage_spark_columns(
    message: Column, context: Column, members: Mapping[str, Column], form: LineageForm
) -> dict[str, Column]:
    """Return the headers of one event as Spark columns, by name; *members* has ``MEMBERS`` only, in this order."""
    from pyspark.sql import functions as F

    if form == "separate":
        own = {f"{LINEAGE}{name}": members[name] for name in MEMBERS}
        return {f"{LINEAGE}message": message, **own, f"{LINEAGE}context": context}
    pieces: list[Column] = []
    for index, name in enumerate(MEMBERS):
        pieces += [F.lit(f'{"{,"[index > 0]}"{name}":"'), members[name], F.lit('"')]
    return {f"{LINEAGE}message": message, f"{LINEAGE}context": context, _JSON: F.concat(*pieces, F.lit("}"))}


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


def encode_lineage_form(form: LineageForm) -> str:
    """Encode a form as text for a column of a Spark table; '' for no headers."""
    return form if form == "separate" else "one" * bool(form)
