"""Attributes and context attributes of routed rows as columns, for what looks at values: routes and topics.

Attributes are those that the event leaves with (:mod:`router.matching.leaving`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.matching.index.columns import Int
from router.matching.leaving import attribute_of
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
    return attribute_of(outcomes, name.removeprefix(ATTRIBUTE_PREFIX)).take(at)
