"""What relates a record to another one: the values that relations of definitions name, and the context attribute
``correlation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import valid
from catalog.definitions.targets import Target
from router.matching.index.columns import Bool, Int
from router.matching.leaving import attribute_of

if TYPE_CHECKING:
    from router.matching.matcher import Outcomes

CORRELATION: Final = "correlation"
"""The context attribute of a record that relates it to another."""


RELATED: Final[tuple[str, ...]] = ("relation", "relatedto")
"""What the lineage says of an event whose definition is related to another: what the relation is, and to which."""


class Correlations:
    """What the relations of a plan's targets look at.

    ``keys`` are the properties that facts must have for it; without relations there are none.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        relations = [target.definition.relation for target in targets]
        self._vias = [relation.via if relation is not None else "" for relation in relations]
        of = (relation.of for relation in relations if relation is not None)
        named = tuple(key for key in (*self._vias, *of) if key)
        self.keys = tuple(dict.fromkeys(("e.id", *named))) if named else ()
        numbers = {via: number for number, via in enumerate(dict.fromkeys(via for via in self._vias if via))}
        self._numbers = np.array([*(numbers.get(via, -1) for via in self._vias), -1], np.int64)
        self._distinct = tuple(numbers)

    def has(self, target: int) -> bool:
        """Tell whether records of a target may have a context attribute ``correlation``."""
        return bool(self._vias[target])

    def values(self, outcomes: Outcomes, winners: Int) -> pa.StringArray:
        """Return of every row what relates it to another; null where nothing does."""
        rows = outcomes.facts.columns.rows
        numbers = self._numbers[np.where(winners >= 0, winners, -1)]
        pools = [value_of(outcomes, via) for via in self._distinct]
        indices = np.where(numbers >= 0, numbers * rows + np.arange(rows), -1)
        pool = pa.concat_arrays(pools) if pools else pa.nulls(0, pa.string())
        return pool.take(pa.array(indices, mask=indices < 0))

    def added(self, contexts: pa.MapArray, outcomes: Outcomes, winners: Int, own: Sequence[bool]) -> pa.MapArray:
        """Return contexts with ``correlation`` behind the others, where the row has such a value.

        *own* says for each target, as a native record and as an event in turn, whether a placeholder of its own has
        that name.
        """
        values = self.values(outcomes, winners)
        taken = np.array((*own, False), bool)[np.where(winners >= 0, 2 * winners + outcomes.facts.events, -1)]
        return _with_entry(contexts, CORRELATION, values, valid(values) & ~taken)


def value_of(outcomes: Outcomes, key: str) -> pa.StringArray:
    """Return a property (``e.NAME``, ``p.PATH``) of every row: an attribute as the event leaves with it.

    What is there several times counts as its first; what is empty is null.
    """
    if key.startswith("e."):
        texts = attribute_of(outcomes, key.removeprefix("e."))
    else:
        columns = outcomes.facts.columns
        column = columns.by_key.get(key)
        texts = pa.nulls(columns.rows, pa.string()) if column is None else column.values
        first = {row: values[0] for (row, name), values in columns.repeats.items() if name == key and values}
        if first:
            listed = texts.to_pylist()
            for row, text in first.items():
                listed[row] = text
            texts = pa.array(listed, pa.string())
    filled = pc.fill_null(pc.not_equal(texts, ""), False)
    return pc.if_else(filled, texts, pa.scalar(None, pa.string()))


def _with_entry(contexts: pa.MapArray, name: str, values: pa.StringArray, there: Bool) -> pa.MapArray:
    """Return maps with one more entry, behind the others, in the rows where it is *there*."""
    rows = np.flatnonzero(there)
    if not len(rows):
        return contexts
    old = len(contexts.keys)
    offsets = contexts.offsets.to_numpy().astype(np.int64)
    offsets[1:] += np.cumsum(there)
    places = np.full(old + len(rows), -1, np.int64)
    places[offsets[rows + 1] - 1] = old + np.arange(len(rows))
    places[places < 0] = np.arange(old)
    at = pa.array(places)
    keys = pa.concat_arrays([contexts.keys, pa.repeat(pa.scalar(name, pa.string()), len(rows))]).take(at)
    items = pa.concat_arrays([contexts.items, values.take(pa.array(rows))]).take(at)
    return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), keys, items)
