"""Native records (JUDGING.md#records) of many rows as JSON, without bodies, as the exact codec writes them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import base64_of
from bindings.entries import Bool, Entries
from router.rendering.exact import Source, native_json, parts_of_raw
from router.rendering.members import entry_texts
from router.rendering.native_parts import parts_texts
from router.rendering.texts import as_text, escaped, or_empty, replaced, together

_NUMBERS: Final = ("partition", "offset", "timestamp")


def native_texts(kind: Source, raw: pa.StructArray, place: pa.Int32Array) -> pa.StringArray:
    """Return the native record of each row as JSON, without the body.

    ``raw`` has the columns that a source of that *kind* gives (``RAW_COLUMNS`` in :mod:`router.judging.stages`; a body
    is not looked at). ``place`` is that of an event in its batch, null outside of one.
    """
    if kind == "kafka":
        texts, odd = _of_kafka(raw)
    else:
        texts, odd = parts_texts(raw)
    odd |= place.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(odd | texts.is_null().to_numpy(zero_copy_only=False))
    if not len(rows):
        return texts
    some = pa.array(rows)
    given = zip(raw.take(some).to_pylist(), place.take(some).to_pylist(), strict=True)
    exact = [native_json(*parts_of_raw(row, kind, at)) for row, at in given]
    return replaced(texts, rows, pa.array(exact, pa.string()))


def _of_kafka(raw: pa.StructArray) -> tuple[pa.StringArray, Bool]:
    """Return the texts of rows of Kafka, null where a member is null that records of Kafka have; and odd rows."""
    lists = pc.struct_field(raw, "headers")
    headers = Entries(lists)
    numbers = [pc.struct_field(raw, name).cast(pa.string()) for name in _NUMBERS]
    some = pa.array(np.diff(headers.offsets) > 0)
    listed = entry_texts(
        headers.names, headers.codes, headers.offsets, lambda name: f'{{"name":"{name}",', _values(headers.values), "}"
    )
    texts = together(
        '{"topic":"',
        escaped(pc.struct_field(raw, "topic")),
        '","partition":',
        numbers[0],
        ',"offset":',
        numbers[1],
        ',"timestamp":',
        numbers[2],
        pc.if_else(some, together(',"headers":[', listed, "]"), ""),
        or_empty(_member("key", pc.struct_field(raw, "key"))),
        "}",
    )
    return texts, headers.rows_of(np.flatnonzero(lists.flatten().field("key").is_null()))


def _member(name: str, values: pa.BinaryArray) -> pa.StringArray:
    """Return a member that is text or base64, with a comma before it; null for null."""
    texts, broken = as_text(values)
    members = together(f',"{name}":"', escaped(texts), '"')
    encoded = base64_of(values.take(pa.array(broken)))
    return replaced(members, broken, together(f',"{name}_base64":"', encoded, '"'))


def _values(values: pa.BinaryArray) -> pa.StringArray:
    """Return the member with an entry's value: text, base64 or null."""
    texts, broken = as_text(values)
    members = together('"value":"', escaped(texts), '"')
    if members.null_count:
        members = pc.fill_null(members, '"value":null')
        coded = base64_of(values.take(pa.array(broken)))
        members = replaced(members, broken, together('"value_base64":"', coded, '"'))
    return members
