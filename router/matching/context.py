"""Context attributes: taking the values of placeholders out of whole columns.

Where a placeholder's value lies is settled when the plan is compiled: it is a whole value, or one segment of it, or
(mixed templates) something only the template itself can find. The first two are one ``take`` for any number of rows
and definitions. A name that occurs more than once gives pairs of slots whose values must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from catalog.templates import Placeholder
from catalog.values import percent_decode
from router.matching.columns import Columns, Int
from router.matching.constraints import Constraint
from router.matching.segments import segments_of
from router.matching.targets import Keyed

_WHOLE: Final = -1
_MIXED: Final = -2
_NOWHERE: Final = -1
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one placeholder's value lies: ``place`` is a segment number, or the whole value, or mixed."""

    name: str
    key: str
    constraint: Constraint
    place: int


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


@dataclass(frozen=True, slots=True)
class _Tables:
    """Slots as arrays. A location is twice the number of the key, plus one where segments are meant."""

    keys: tuple[str, ...]
    locations: Int
    places: Int
    decodes: Bool


class SlotTable:
    """All slots of a plan, numbered, so that rows and slots can be paired by arrays."""

    def __init__(self) -> None:
        self._numbers: dict[Slot, int] = {}
        self.slots: list[Slot] = []
        self._laid: _Tables | None = None

    def number(self, slot: Slot) -> int:
        """Return the number of a slot, giving it one when it is new."""
        known = self._numbers.get(slot)
        if known is None:
            known = self._numbers[slot] = len(self.slots)
            self.slots.append(slot)
            self._laid = None
        return known

    def values(self, columns: Columns, rows: Int, slots: Int) -> pa.StringArray:
        """Return the value of ``slots[i]`` in ``rows[i]``, percent-decoded where its type says so.

        The rows are known to match: a mixed template that does not fit gives null.
        """
        tables = self._tables()
        where = tables.locations[slots]
        indices = np.full(len(rows), -1, np.int64)
        pools: list[pa.StringArray] = []
        size, percent = 0, False
        for location in np.flatnonzero(np.bincount(where[where != _NOWHERE])).tolist():
            number, parted = divmod(location, 2)
            column = columns.by_key.get(tables.keys[number])
            if column is None:
                continue
            mine = np.flatnonzero(where == location)
            indices[mine] = size + rows[mine]
            if parted:
                indices[mine] = size + column.segments.starts[rows[mine]] + 2 * tables.places[slots[mine]]
            pools.append(column.segments.entries if parted else column.values)
            size += len(pools[-1])
            percent = percent or column.has_percent
        extra: list[str | None] = []
        self._one_by_one(columns, rows, slots, tables.places[slots], indices, extra, size)
        if extra or not pools:
            pools.append(pa.array(extra, pa.string()))
        pool = pools[0] if len(pools) == 1 else pa.concat_arrays(pools)
        values = pool.take(pa.array(indices))
        return _decoded(values, tables.decodes[slots]) if percent or extra else values

    def equal(self, columns: Columns, rows: Int, ones: Int, others: Int) -> Bool:
        """Tell whether slots ``ones[i]`` and ``others[i]`` have the same value in ``rows[i]``; null equals nothing."""
        tables = self._tables()
        pairs = (tables.locations[ones] + 1) * (2 * len(tables.keys) + 1) + tables.locations[others] + 1
        same = np.zeros(len(rows), bool)
        for pair in np.flatnonzero(np.bincount(pairs)).tolist():
            mine = np.flatnonzero(pairs == pair)
            sides = [self._side(columns, rows[mine], slots[mine]) for slots in (ones, others)]
            same[mine] = pc.fill_null(pc.equal(*sides), False).to_numpy(zero_copy_only=False)
        return same

    def _side(self, columns: Columns, rows: Int, slots: Int) -> pa.StringArray:
        """Return the values of slots of one location."""
        tables = self._tables()
        location = int(tables.locations[slots[0]])
        column = columns.by_key.get(tables.keys[location // 2]) if location != _NOWHERE else None
        if column is None or columns.repeats or column.has_percent:
            return self.values(columns, rows, slots)
        if location % 2 == 0:
            return column.values.take(pa.array(rows))
        segments = column.segments
        return segments.entries.take(pa.array(segments.starts[rows] + 2 * tables.places[slots]))

    def _tables(self) -> _Tables:
        if self._laid is None:
            keys = {key: number for number, key in enumerate(dict.fromkeys(slot.key for slot in self.slots))}
            locations = [
                _NOWHERE if slot.place == _MIXED else 2 * keys[slot.key] + (slot.place != _WHOLE) for slot in self.slots
            ]
            self._laid = _Tables(
                tuple(keys),
                np.array(locations, np.int64),
                np.array([slot.place for slot in self.slots], np.int64),
                np.array([slot.constraint.decodes for slot in self.slots], bool),
            )
        return self._laid

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


def _decoded(values: pa.StringArray, decodes: Bool) -> pa.StringArray:
    encoded = pc.fill_null(pc.match_substring(values, "%"), False).to_numpy(zero_copy_only=False)
    where = encoded & decodes
    if not where.any():
        return values
    replacement = [percent_decode(values[int(at)].as_py()) for at in np.flatnonzero(where)]
    return pc.replace_with_mask(values, pa.array(where), pa.array(replacement, pa.string()))
