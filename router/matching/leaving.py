"""Attributes that events leave with, as columns over all rows.

They lie in three places: in the selected columns of a record that those settled, in the reading of the exact codec, or
in what a native record was mapped to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.matching.index.columns import Int

if TYPE_CHECKING:
    from router.matching.matcher import Outcomes


def attribute_of(outcomes: Outcomes, name: str) -> pa.StringArray:
    """Return an attribute of all rows; null where the event has none, and for rows that are no event."""
    facts = outcomes.facts
    column = facts.columns.by_key.get(f"e.{name}")
    pools = [pa.nulls(facts.columns.rows, pa.string()) if column is None else column.values]
    own = facts.events.astype(bool)
    own[list(facts.readings)] = False
    indices = np.where(own, np.arange(len(own)), -1)
    mapped, values = _mapped(outcomes, name)
    indices[mapped] = len(own) + np.arange(len(mapped))
    pools.append(values)
    read = {row: each.envelope.attributes for row, each in facts.readings.items() if each.envelope.is_event}
    indices[list(read)] = len(own) + len(mapped) + np.arange(len(read))
    pools.append(pa.array([attributes.get(name) for attributes in read.values()], pa.string()))
    return pa.concat_arrays(pools).take(pa.array(indices, mask=indices < 0))


def _mapped(outcomes: Outcomes, name: str) -> tuple[Int, pa.StringArray]:
    """Return the rows whose mapping gave an attribute, and its values."""
    attributes = outcomes.attributes
    if not len(attributes):
        return np.zeros(0, np.int64), pa.array([], pa.string())
    places = np.flatnonzero(pc.equal(attributes.values.field("key"), name).to_numpy(zero_copy_only=False))
    owners = np.searchsorted(attributes.offsets.to_numpy(), places, "right") - 1
    return outcomes.mapped[owners], attributes.values.field("value").take(pa.array(places)).cast(pa.string())
