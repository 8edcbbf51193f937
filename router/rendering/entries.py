"""The named values of many rows side by side: headers, properties, and attributes that outcomes give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.rendering.texts import Bool, Int


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of *rows* rows, in their order: those of row *i* stand from ``offsets[i]`` to ``offsets[i + 1]``.

    ``codes`` are the names' places in ``names``, -1 for an entry without a name. ``values`` are bytes, of maps texts;
    ``kinds`` say what parts of a native record are (:mod:`bindings.parts`), None where all are texts.
    """

    rows: int
    offsets: Int
    names: tuple[str, ...]
    codes: Int
    values: pa.BinaryArray
    kinds: pa.StringArray | None = None

    @property
    def owners(self) -> Int:
        """The row of each entry."""
        return np.repeat(np.arange(self.rows), np.diff(self.offsets))

    def repeating(self) -> Bool:
        """Return which rows have a name more than once."""
        width = len(self.names) + 1
        ordered = np.sort(self.owners * width + self.codes + 1)
        rows = np.zeros(self.rows, bool)
        rows[ordered[1:][ordered[1:] == ordered[:-1]] // width] = True
        return rows

    def nameless(self) -> Bool:
        """Return which rows have an entry without a name."""
        rows = np.zeros(self.rows, bool)
        if (self.codes < 0).any():
            rows[self.owners[self.codes < 0]] = True
        return rows


def entries_of(lists: pa.ListArray | pa.MapArray) -> Entries:
    """Return the entries of maps, or of lists of structs of ``key``, ``value`` and perhaps ``type``; null has none."""
    if pa.types.is_map(lists.type):
        entry = pa.struct([pa.field("key", lists.type.key_type, nullable=False), ("value", lists.type.item_type)])
        lists = lists.cast(pa.list_(entry))
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    flat = lists.flatten()
    # Fields of a struct may hold values where the struct is null: those entries have no name either.
    names = pc.struct_field(flat, "key").dictionary_encode()
    kinds = pc.struct_field(flat, "type") if flat.type.get_field_index("type") >= 0 else None
    return Entries(
        len(lists),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        tuple(names.dictionary.to_pylist()),
        pc.fill_null(names.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64),
        pc.struct_field(flat, "value"),
        None if kinds is None or kinds.null_count == len(kinds) else kinds,
    )
