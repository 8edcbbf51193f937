"""Routed events in structured mode: JSON with their data in it."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from bindings.columns.texts import valid
from bindings.events import encode_event, with_types
from router.rendering.attributes import CONTENT_TYPE, attributes_of_rows
from router.rendering.embedding import data_members
from router.rendering.events import column_of
from router.rendering.exact import Source, attributes_of, parts_of_raw
from router.rendering.members import entry_texts
from router.rendering.texts import escaped, replaced, together

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
