"""Routed events as the columns of tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from router.rendering.attributes import Attributes, attributes_of_rows
from router.rendering.exact import COLUMNS, EVENT, TEXT_MAP, Source, parts_of_raw, render_event
from router.rendering.instants import moments
from router.rendering.native import native_texts
from router.rendering.texts import replaced


def event_columns(kind: Source, raw: pa.StructArray, attributes: pa.ListArray, place: pa.Int32Array) -> pa.StructArray:
    """Return the struct ``EVENT`` of each routed row.

    ``raw`` has the columns that a source of that *kind* gives (``RAW_COLUMNS`` in :mod:`router.judging.stages`; a body
    is not looked at). ``attributes`` are an outcome's, as headers of Kafka's binary mode, null where the record's own
    serve; ``place`` is that of an event in its batch, null outside of one. The arrays are of one length, and may be
    slices. Every row comes out as :func:`router.rendering.exact.render_event` has it.
    """
    resolved = attributes_of_rows(kind, raw, attributes, place)
    named = _named(resolved)
    times = named["time"]
    columns = [
        *(named[name] for name in COLUMNS),
        moments(times),
        times,
        _extensions(resolved),
        native_texts(kind, raw, place),
    ]
    events = pa.StructArray.from_arrays(columns, fields=list(EVENT))
    odd = np.flatnonzero(resolved.odd)
    if not len(odd):
        return events
    some = pa.array(odd)
    rows = zip(raw.take(some).to_pylist(), attributes.take(some).to_pylist(), place.take(some).to_pylist(), strict=True)
    exact = [render_event(*parts_of_raw(row, kind, at), given) for row, given, at in rows]
    return replaced(events, odd, pa.array(exact, EVENT))


def _named(attributes: Attributes) -> dict[str, pa.StringArray]:
    """Return the attributes that have a column of their own, by name."""
    return {name: column_of(attributes, name) for name in (*COLUMNS, "time")}


def column_of(attributes: Attributes, name: str) -> pa.StringArray:
    """Return the attribute of that name for each row, null where an event has none."""
    entries = np.flatnonzero(attributes.of(name))
    if not len(entries):
        return pa.nulls(attributes.rows, pa.string())
    indices = np.full(attributes.rows, -1, np.int64)
    indices[attributes.owners[entries]] = entries
    return attributes.texts.take(pa.array(indices, mask=indices < 0))


def _extensions(attributes: Attributes) -> pa.MapArray:
    """Return the attributes without a column, in their order."""
    columns = {*COLUMNS, "time"}
    other = np.array([name not in columns for name in attributes.names], bool)
    entries = np.flatnonzero(other[attributes.codes])
    counts = np.bincount(attributes.owners[entries], minlength=attributes.rows)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    names = pa.array(attributes.names, pa.string()).take(pa.array(attributes.codes[entries]))
    texts = attributes.texts.take(pa.array(entries))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, texts).cast(TEXT_MAP)
