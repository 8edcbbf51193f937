"""Attributes and context attributes of routed rows as columns, for what looks at values: routes and topics.

Attributes are those that the event leaves with. They lie in three places: in the selected columns of a record that
those settled, in the reading of the exact codec, or in what a native record was mapped to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.matching.index.columns import Int
from router.matching.matcher import Outcomes
from router.settings.names import ATTRIBUTE_PREFIX, CONTEXT_PREFIX


@dataclass(frozen=True, slots=True)
class Combinations:
    """Rows told apart by a code of their own and by some values.

    ``inverse`` gives the number of each row's combination, ``first`` a row (by its place) of each combination, and
    ``values`` its values by name; a value that a code does not ask for, or that is not there, is left out.
    """

    inverse: Int
    first: Int
    values: Sequence[dict[str, str]]


def combinations(outcomes: Outcomes, rows: Int, codes: Int, wanted: Sequence[Iterable[str]]) -> Combinations:
    """Return the combinations among *rows*; ``wanted[codes[i]]`` are the values that count for ``rows[i]``."""
    names = sorted({name for names in wanted for name in names})
    combined = codes
    columns: dict[str, tuple[Int, list[str]]] = {}
    for name in names:
        encoded = pc.dictionary_encode(column_of(outcomes, rows, name))
        places = pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False) + 1
        asks = np.array([name in each for each in wanted], bool)
        places = np.where(asks[codes], places, 0)
        texts = encoded.dictionary.to_pylist()
        columns[name] = places, texts
        # Numbered anew each time, so that any number of values fits into one integer.
        _, combined = np.unique(combined * (len(texts) + 1) + places, return_inverse=True)
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    values = [
        {name: texts[at - 1] for name, (places, texts) in columns.items() if (at := int(places[row]))}
        for row in first.tolist()
    ]
    return Combinations(inverse, first, values)


def column_of(outcomes: Outcomes, rows: Int, name: str) -> pa.StringArray:
    """Return a value (``context.NAME``, ``attributes.NAME``) of these routed rows; null where it is not there."""
    at = pa.array(rows)
    if name.startswith(CONTEXT_PREFIX):
        contexts = outcomes.contexts.take(at)
        return pc.map_lookup(contexts, name.removeprefix(CONTEXT_PREFIX), "first").cast(pa.string())
    return _attribute(outcomes, name.removeprefix(ATTRIBUTE_PREFIX)).take(at)


def _attribute(outcomes: Outcomes, name: str) -> pa.StringArray:
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
