"""Facts of one batch that come in two ways, put together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from router.matching.facts import Facts, FoundIds, Settled
from router.matching.index.columns import Bool, Columns, SplitColumn
from router.matching.mapping import Defaults


def join(one: Facts, other: Facts, keys: Sequence[str]) -> Facts:
    """Append the rows of *other* to those of *one*, with the columns of *keys* and all attributes."""
    shift = one.columns.rows
    attributes = (key for key in (*one.columns.by_key, *other.columns.by_key) if key.startswith("e."))
    columns = {
        key: SplitColumn(pa.concat_arrays([_column(one, key), _column(other, key)]))
        for key in dict.fromkeys((*keys, *attributes))
        if key in one.columns.by_key or key in other.columns.by_key
    }
    repeats = {(row + shift, key): texts for (row, key), texts in other.columns.repeats.items()}
    defaults = [
        pa.concat_arrays([getattr(one.defaults, name), getattr(other.defaults, name)])
        for name in ("id", "time", "datacontenttype", "partitionkey")
    ]
    return Facts(
        Columns(shift + other.columns.rows, columns, {**one.columns.repeats, **repeats}),
        np.concatenate((one.channels, other.channels)),
        np.concatenate((one.protocols, other.protocols)),
        np.concatenate((one.events, other.events)),
        np.concatenate((one.sources, other.sources)),
        Defaults(*defaults),
        {**one.faults, **{row + shift: fault for row, fault in other.faults.items()}},
        {**one.readings, **{row + shift: reading for row, reading in other.readings.items()}},
        one.batches | other.batches,
        (*one.empty, *other.empty),
        _joined(one.bodies, other.bodies, shift, other.columns.rows, pa.binary()),
        _joined(one.codings, other.codings, shift, other.columns.rows, pa.string()),
        _inner(one, other),
        (*one.settled, *(Settled(each.start + shift, each.envelopes) for each in other.settled)),
        _ids(one, other),
    )


def _joined(one: pa.Array | None, other: pa.Array | None, rows: int, more: int, kind: pa.DataType) -> pa.Array | None:
    """Return the values of *rows* and of *more* behind them; None when neither side has any."""
    if other is None:
        return one
    first = pa.nulls(rows, kind) if one is None else pa.concat_arrays([one, pa.nulls(rows - len(one), kind)])
    return pa.concat_arrays([first, other])


def _inner(one: Facts, other: Facts) -> Bool | None:
    """Return which bodies are the data of an event in JSON; None when none is."""
    if one.inner is None and other.inner is None:
        return None
    both = (np.zeros(each.columns.rows, bool) if each.inner is None else each.inner for each in (one, other))
    return np.concatenate(tuple(both))


def _ids(one: Facts, other: Facts) -> FoundIds | None:
    """Return the ids that bodies begin with; None when none was looked for."""
    if one.ids is None and other.ids is None:
        return None
    shift = len(one.ids.names) if one.ids is not None else 0
    ours, theirs = (np.full(f.columns.rows, -1, np.int64) if f.ids is None else f.ids.codes for f in (one, other))
    names = [name for facts in (one, other) if facts.ids is not None for name in facts.ids.names]
    return FoundIds(np.concatenate((ours, np.where(theirs >= 0, theirs + shift, -1))), names)


def _column(facts: Facts, key: str) -> pa.StringArray:
    column = facts.columns.by_key.get(key)
    return column.values if column is not None else pa.nulls(facts.columns.rows, pa.string())
