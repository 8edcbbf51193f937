"""Context attributes: taking the values of placeholders out of whole columns.

Where a placeholder's value lies is settled when the plan is compiled: it is a whole value, or one segment of it, or
(mixed templates) something only the template itself can find. The first two are one ``take`` for any number of rows
and definitions. A name that occurs more than once gives pairs of slots whose values must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.templates import Placeholder
from catalog.values import percent_decode
from router.matching.constraints import Constraint
from router.matching.segments import Int, SplitColumn, segments_of
from router.matching.targets import Keyed

_WHOLE: Final = -1
_MIXED: Final = -2


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one placeholder's value lies: ``place`` is a segment number, or the whole value, or mixed."""

    name: str
    key: str
    constraint: Constraint
    place: int


@dataclass(slots=True)
class Columns:
    """The columns of one batch, by property key, and the properties that occur more than once in a row.

    ``repeats`` maps row and key to all values in order (None: no text), for rows where a constrained name repeats.
    """

    rows: int
    by_key: Mapping[str, SplitColumn]
    repeats: Mapping[tuple[int, str], Sequence[str | None]] = field(default_factory=dict)


def slots_of(constraints: Sequence[Keyed]) -> tuple[list[Slot], list[tuple[Slot, Slot]]]:
    """Return the first slot of each name, and the pairs of slots that must be equal."""
    first: dict[str, Slot] = {}
    equal: list[tuple[Slot, Slot]] = []
    for key, constraint in constraints:
        if constraint.kind != "template":
            continue
        for slot in _template_slots(key, constraint):
            known = first.setdefault(slot.name, slot)
            if known != slot:
                equal.append((known, slot))
    return list(first.values()), equal


def _template_slots(key: str, constraint: Constraint) -> list[Slot]:
    template = constraint.template
    if template.is_bare:
        return [Slot(template.names[0], key, constraint, _WHOLE)]
    segments = None if constraint.dots else segments_of(template)
    if segments is None:
        return [Slot(name, key, constraint, _MIXED) for name in dict.fromkeys(template.names)]
    names = iter(part.name for part in template.parts if isinstance(part, Placeholder))
    return [Slot(next(names), key, constraint, number) for number, text in enumerate(segments) if text is None]


class SlotTable:
    """All slots of a plan, numbered, so that rows and slots can be paired by arrays."""

    def __init__(self) -> None:
        self._numbers: dict[Slot, int] = {}
        self.slots: list[Slot] = []
        self._arrays: tuple[Int, Int, Int] | None = None

    def number(self, slot: Slot) -> int:
        """Return the number of a slot, giving it one when it is new."""
        known = self._numbers.get(slot)
        if known is None:
            known = self._numbers[slot] = len(self.slots)
            self.slots.append(slot)
            self._arrays = None
        return known

    def values(self, columns: Columns, rows: Int, slots: Int) -> pa.StringArray:
        """Return the value of ``slots[i]`` in ``rows[i]``, percent-decoded where its type says so.

        The rows are known to match: a mixed template that does not fit gives null.
        """
        keys, places, decodes = self._tables()
        pools, whole, parted = _pools(columns, sorted({self.slots[s].key for s in np.unique(slots).tolist()}))
        key_of, place = keys[slots], places[slots]
        indices = np.full(len(rows), -1, np.int64)
        for key, number in self._keys.items():
            if key not in whole:
                continue
            mine = np.flatnonzero((key_of == number) & (place == _WHOLE))
            indices[mine] = whole[key] + rows[mine]
            mine = np.flatnonzero((key_of == number) & (place >= 0))
            if len(mine):
                start, offsets = parted[key]
                indices[mine] = start + offsets[rows[mine]] + place[mine]
        extra: list[str | None] = []
        self._one_by_one(columns, rows, slots, place, indices, extra, sum(len(pool) for pool in pools))
        pool = pa.concat_arrays([*pools, pa.array(extra, pa.string())])
        return _decoded(pool.take(pa.array(indices)), decodes[slots])

    def _tables(self) -> tuple[Int, Int, Int]:
        if self._arrays is None:
            self._keys: dict[str, int] = {}
            for slot in self.slots:
                self._keys.setdefault(slot.key, len(self._keys))
            self._arrays = (
                np.array([self._keys[slot.key] for slot in self.slots], np.int64),
                np.array([slot.place for slot in self.slots], np.int64),
                np.array([slot.constraint.decodes for slot in self.slots], np.int64),
            )
        return self._arrays

    def _one_by_one(
        self, columns: Columns, rows: Int, slots: Int, place: Int, indices: Int, extra: list[str | None], start: int
    ) -> None:
        """Fill in what no take can: mixed templates, and rows in which the property repeats."""
        alone = place == _MIXED
        if columns.repeats:
            repeated = {row for row, _ in columns.repeats}
            alone = alone | np.isin(rows, np.fromiter(repeated, np.int64, len(repeated)))
        for at in np.flatnonzero(alone).tolist():
            slot, row = self.slots[int(slots[at])], int(rows[at])
            found = columns.repeats.get((row, slot.key))
            texts = found if found is not None else [columns.by_key[slot.key].values[row].as_py()]
            indices[at] = start + len(extra)
            extra.append(raw_value(slot, texts))


def raw_value(slot: Slot, texts: Sequence[str | None]) -> str | None:
    """Return the undecoded value of a slot, from the first of the texts that satisfies its constraint."""
    for text in texts:
        if text is not None and slot.constraint.satisfied(text, present=True):
            if slot.place >= 0:
                return text.split("/")[slot.place]
            matched = slot.constraint.template.match(text, decode=slot.constraint.decodes)
            return matched[slot.name] if matched is not None else None
    return None


def _pools(
    columns: Columns, keys: Sequence[str]
) -> tuple[list[pa.StringArray], dict[str, int], dict[str, tuple[int, Int]]]:
    pools: list[pa.StringArray] = []
    whole: dict[str, int] = {}
    parted: dict[str, tuple[int, Int]] = {}
    size = 0
    for key in keys:
        column = columns.by_key[key]
        whole[key] = size
        segments, offsets = column.split
        pools += [column.values, segments]
        parted[key] = (size + len(column.values), offsets)
        size += len(column.values) + len(segments)
    return pools, whole, parted


def _decoded(values: pa.StringArray, decodes: Int) -> pa.StringArray:
    encoded = pc.fill_null(pc.match_substring(values, "%"), False).to_numpy(zero_copy_only=False)
    where = encoded & decodes.astype(bool)
    if not where.any():
        return values
    replacement = [percent_decode(values[int(at)].as_py()) for at in np.flatnonzero(where)]
    return pc.replace_with_mask(values, pa.array(where), pa.array(replacement, pa.string()))
