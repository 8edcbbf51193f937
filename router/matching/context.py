"""Context attributes: the values of placeholders, and what relates records to others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import is_not_null
from catalog.definitions.constraints import Constraint, KeyedConstraint, MatchCandidate
from catalog.templates import Placeholder, Template
from catalog.values import percent_decode
from router.matching.index.classes import BatchColumns, BoolArray, IntArray, separator_of, template_segments

if TYPE_CHECKING:
    from router.matching.matcher import MatchOutcomes

# Context attributes: extract the values of placeholders from whole columns.
#
# Where a placeholder's value is found is determined when the plan is compiled: it is a whole value, one segment, or
# (mixed templates) something only the template itself can find. The first two are one ``take`` for any number of rows
# and definitions. A name that occurs more than once gives pairs of slots whose values must be equal.

# Placeholders that are only part of a segment, extracted from many values of one template at once.
#
# RE2 does it in linear time. Like :meth:`catalog.templates.Template.match` it gives each placeholder as few characters
# as let the rest match; a property test compares the two. An event with two such templates takes 6 to 8 us to match so,
# and 12 to 17 us with :meth:`Template.match` for each value.

FEW: Final = 16
"""Number of values for which compiling a pattern takes longer than matching each."""


def extract_placeholder(template: Template, name: str, values: pa.StringArray) -> pa.StringArray | None:
    """Return the raw value of that placeholder in each value; null where the template does not match.

    None for a template that must be matched value by value, since a name occurs in it again.
    """
    pattern = _to_regex(template)
    if pattern is None:
        return None
    return pc.struct_field(pc.extract_regex(values, pattern), f"p{template.names.index(name)}")


@lru_cache(maxsize=4096)
def _to_regex(template: Template) -> str | None:
    if len(set(template.names)) < len(template.names):
        return None
    ends = "/." if template.dots else "/"
    pieces: list[str] = []
    number = 0
    for part in template.parts:
        if isinstance(part, Placeholder):
            pieces.append(f"(?P<p{number}>[^{ends}]+?)")
            number += 1
        else:
            pieces.append(re.escape(part))
    return rf"\A{''.join(pieces)}\z"


_WHOLE: Final = -1
_MIXED: Final = -2


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one placeholder's value is found: ``place`` is a segment number, or the whole value, or mixed."""

    name: str
    key: str
    constraint: Constraint
    place: int

    @property
    def location(self) -> tuple[str, str]:
        """The property and the separator of its values; none if the slot is a whole value."""
        return self.key, separator_of(self.constraint.template) if self.place >= 0 else ""


def find_slots(constraints: Sequence[KeyedConstraint]) -> tuple[list[Slot], list[tuple[Slot, Slot]]]:
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


@lru_cache(maxsize=65536)
def _template_slots(key: str, constraint: Constraint) -> tuple[Slot, ...]:
    template = constraint.template
    if template.is_bare:
        return (Slot(template.names[0], key, constraint, _WHOLE),)
    segments = template_segments(template)
    if segments is None:
        return tuple(Slot(name, key, constraint, _MIXED) for name in dict.fromkeys(template.names))
    names = iter(part.name for part in template.parts if isinstance(part, Placeholder))
    return tuple(Slot(next(names), key, constraint, number) for number, text in enumerate(segments) if text is None)


@dataclass(frozen=True, slots=True)
class _SlotArrays:
    """Slots as arrays. Slots of many definitions share few *spots*: a location and an offset from its first entry.

    A location is a property and the separator of its segments ("": none). A slot that only its template can find has
    the last location. Rows only access the short arrays of spots, so thousands of definitions fit into the cache.
    """

    places: tuple[tuple[str, str], ...]
    spots: IntArray
    """Per slot its spot."""
    locations: IntArray
    """Per spot its location."""
    shifts: IntArray
    """Per spot the entries between the first one of a value and that of the spot."""
    groups: IntArray
    """Per slot the number of its property, template and name, if only its template can find it; else -1."""
    examples: tuple[Slot, ...]
    """Per such number, one of its slots."""
    decodes: BoolArray
    """Per slot, whether its value is percent-decoded."""


class _ValuePool:
    """One array of values for each needed location, and the position of each row's value in them."""

    def __init__(self, tables: _SlotArrays, columns: BatchColumns, needed: BoolArray) -> None:
        """``needed`` marks the spots whose value is needed."""
        self.pools: list[pa.StringArray] = []
        self.size = 0
        self.percent = self.parted = False
        places: list[IntArray] = []
        self.bases = np.zeros(len(tables.places) + 1, np.int64)
        """Per location, where the positions of its rows begin in :attr:`origins`."""
        for location in np.unique(tables.locations[needed]).tolist():
            key, separator = tables.places[location] if location < len(tables.places) else ("", "")
            column = columns.by_key.get(key)
            self.bases[location] = columns.rows * len(places)
            if column is None:
                # Not extracted here: rows that repeat the property, and mixed templates.
                places.append(np.full(columns.rows, -1, np.int64))
                continue
            if separator:
                segments = column.segments(separator)
                places.append(segments.starts + self.size)
                self.pools.append(segments.entries)
                self.parted = True
            else:
                places.append(np.arange(self.size, self.size + columns.rows))
                self.pools.append(column.values)
            self.size += len(self.pools[-1])
            self.percent = self.percent or column.has_percent
        self.origins = np.concatenate(places) if places else np.zeros(0, np.int64)


class SlotTable:
    """All slots of a plan, numbered, so that rows and slots can be paired by arrays."""

    def __init__(self) -> None:
        self._numbers: dict[Slot, int] = {}
        self._keys: dict[str, int] = {}
        self.slots: list[Slot] = []
        self._arrays: _SlotArrays | None = None

    def number(self, slot: Slot) -> int:
        """Return the number of a slot; a new slot gets a new one."""
        known = self._numbers.get(slot)
        if known is None:
            known = self._numbers[slot] = len(self.slots)
            self.slots.append(slot)
            self._keys.setdefault(slot.key, len(self._keys))
            self._arrays = None
        return known

    def values(self, columns: BatchColumns, rows: IntArray, slots: IntArray) -> pa.StringArray:
        """Return the value of ``slots[i]`` in ``rows[i]``, percent-decoded if its type requires it.

        The rows are known to match: a mixed template that does not match gives null.
        """
        tables = self._slot_arrays()
        spots = tables.spots[slots]
        needed = np.zeros(len(tables.locations), bool)
        needed[spots] = True
        gathered = _ValuePool(tables, columns, needed)
        indices = gathered.origins[gathered.bases[tables.locations][spots] + rows]
        if gathered.parted:
            indices += tables.shifts[spots]
        alone = self._unpooled_indexes(columns, rows, slots)
        if len(alone):
            indices[alone] = gathered.size + np.arange(len(alone))
            gathered.pools.append(self._unpooled_values(columns, rows[alone], slots[alone]))
        if not gathered.pools:
            return pa.nulls(len(rows), pa.string())
        pool = gathered.pools[0] if len(gathered.pools) == 1 else pa.concat_arrays(gathered.pools)
        values = pool.take(pa.array(indices))
        return _decode_percent(values, tables.decodes[slots]) if gathered.percent or len(alone) else values

    def are_equal(self, columns: BatchColumns, rows: IntArray, ones: IntArray, others: IntArray) -> BoolArray:
        """Return for each row whether two of its placeholders have equal values; a missing value equals nothing."""
        sides = [self.values(columns, rows, slots) for slots in (ones, others)]
        same: BoolArray = pc.fill_null(pc.equal(*sides), False).to_numpy(zero_copy_only=False)
        return same

    def _slot_arrays(self) -> _SlotArrays:
        if self._arrays is None:
            mixed = [slot.place == _MIXED for slot in self.slots]
            examples = {_template_key(slot): slot for slot in self.slots if slot.place == _MIXED}
            groups = {group: number for number, group in enumerate(examples)}
            places = dict.fromkeys(slot.location for slot, alone in zip(self.slots, mixed, strict=True) if not alone)
            numbers = {place: number for number, place in enumerate(places)}
            where = [
                (len(places), 0) if alone else (numbers[slot.location], 2 * max(slot.place, 0))
                for slot, alone in zip(self.slots, mixed, strict=True)
            ]
            spots = {spot: number for number, spot in enumerate(dict.fromkeys(where))}
            self._arrays = _SlotArrays(
                tuple(places),
                np.array([spots[spot] for spot in where], np.int64),
                np.array([location for location, _ in spots], np.int64),
                np.array([shift for _, shift in spots], np.int64),
                np.array([groups.get(_template_key(slot), -1) for slot in self.slots], np.int64),
                tuple(examples.values()),
                np.array([slot.constraint.decodes for slot in self.slots], bool),
            )
        return self._arrays

    def _unpooled_indexes(self, columns: BatchColumns, rows: IntArray, slots: IntArray) -> IntArray:
        """Return the indexes of values that are not in a pool: mixed templates, and rows that repeat the property."""
        tables = self._slot_arrays()
        if not columns.repeats and not tables.examples:
            return np.zeros(0, np.int64)
        alone = tables.groups[slots] >= 0
        return np.flatnonzero(alone | _find_repeating(columns, rows) if columns.repeats else alone)

    def _unpooled_values(self, columns: BatchColumns, rows: IntArray, slots: IntArray) -> pa.StringArray:
        """Return the values that are not in a pool: those of one template together, if there are many."""
        taken = list(self._extract_by_template(columns, rows, slots))
        rest = np.ones(len(rows), bool)
        for places, _ in taken:
            rest[places] = False
        alone = np.flatnonzero(rest)
        taken.append((alone, pa.array(self._extract_singly(columns, rows[alone], slots[alone]), pa.string())))
        back = np.empty(len(rows), np.int64)
        back[np.concatenate([places for places, _ in taken])] = np.arange(len(rows))
        return pa.concat_arrays([values for _, values in taken]).take(pa.array(back))

    def _extract_by_template(
        self, columns: BatchColumns, rows: IntArray, slots: IntArray
    ) -> Iterator[tuple[IntArray, pa.StringArray]]:
        """Yield indexes and values of placeholders of mixed templates that occur in many rows."""
        tables = self._slot_arrays()
        groups = tables.groups[slots]
        if columns.repeats:
            groups[_find_repeating(columns, rows)] = -1
        for number in np.flatnonzero(np.bincount(groups + 1)[1:] >= FEW).tolist():
            slot, places = tables.examples[number], np.flatnonzero(groups == number)
            column = columns.by_key.get(slot.key)
            if column is None:
                continue
            taken = extract_placeholder(slot.constraint.template, slot.name, column.values.take(pa.array(rows[places])))
            if taken is not None:
                yield places, taken

    def _extract_singly(self, columns: BatchColumns, rows: IntArray, slots: IntArray) -> list[str | None]:
        taken: list[str | None] = []
        texts = self._property_texts(columns, rows, slots)
        # The names of one template are extracted from a value together.
        matched = columns.matched
        for row, number, text in zip(rows.tolist(), slots.tolist(), texts, strict=True):
            slot = self.slots[number]
            repeats = columns.repeats.get((row, slot.key)) if columns.repeats else None
            if repeats is not None or slot.place != _MIXED:
                taken.append(raw_value(slot, repeats if repeats is not None else [text]))
                continue
            key = (id(slot.constraint), text)
            if key not in matched:
                matched[key] = slot.constraint.template.match(text, decode=slot.constraint.decodes)
            values = matched[key]
            taken.append(values[slot.name] if values is not None else None)
        return taken

    def _property_texts(self, columns: BatchColumns, rows: IntArray, slots: IntArray) -> list[str]:
        """Return the value of each slot's property in its row; empty if the property is absent."""
        texts = [""] * len(rows)
        properties = np.array([self._keys[slot.key] for slot in self.slots], np.int64)[slots]
        for key, number in self._keys.items():
            at = np.flatnonzero(properties == number)
            if len(at) and key in columns.by_key:
                values = columns.by_key[key].values.take(pa.array(rows[at])).to_pylist()
                for place, value in zip(at.tolist(), values, strict=True):
                    texts[place] = value or ""
        return texts


def _template_key(slot: Slot) -> tuple[str, Template, str]:
    return slot.key, slot.constraint.template, slot.name


def _find_repeating(columns: BatchColumns, rows: IntArray) -> BoolArray:
    """Return which of these rows repeat some property."""
    repeated = {row for row, _ in columns.repeats}
    return np.isin(rows, np.fromiter(repeated, np.int64, len(repeated)))


def raw_value(slot: Slot, texts: Sequence[str | None]) -> str | None:
    """Return the undecoded value of a slot, from the first of the texts that satisfies its constraint."""
    for text in texts:
        if text is not None and slot.constraint.satisfied(text, present=True):
            if slot.place >= 0:
                return text.split(slot.location[1])[slot.place]
            matched = slot.constraint.template.match(text, decode=slot.constraint.decodes)
            return matched[slot.name] if matched is not None else None
    return None


def slot_value(slot: Slot, texts: Sequence[str | None]) -> str | None:
    """Return the decoded value of a slot of one record that matches, from the texts of its property."""
    text = texts[0] if len(texts) == 1 else None
    if text is None or slot.place == _MIXED:
        value = raw_value(slot, texts)
    else:
        value = text.split(slot.location[1])[slot.place] if slot.place >= 0 else text
    return percent_decode(value) if value is not None and slot.constraint.decodes else value


def _decode_percent(values: pa.StringArray, decodes: BoolArray) -> pa.StringArray:
    encoded = pc.fill_null(pc.match_substring(values, "%"), False).to_numpy(zero_copy_only=False)
    where = encoded & decodes
    if not where.any():
        return values
    replacement = [percent_decode(values[int(at)].as_py()) for at in np.flatnonzero(where)]
    return pc.replace_with_mask(values, pa.array(where), pa.array(replacement, pa.string()))


# Relations between records: the values that relations of definitions name, and the context attribute
# ``correlation``.
#
# The attributes of outgoing events come as columns over all rows from three places: the record columns, the exact
# codec, or the mapping of a native record.


def attribute_column(outcomes: MatchOutcomes, name: str) -> pa.StringArray:
    """Return an attribute of all rows; null if the event does not have it, or the row is not an event."""
    facts = outcomes.facts
    column = facts.columns.by_key.get(f"e.{name}")
    pools = [pa.nulls(facts.columns.rows, pa.string()) if column is None else column.values]
    own = facts.events.astype(bool)
    own[list(facts.readings)] = False
    indices = np.where(own, np.arange(len(own)), -1)
    mapped, values = _mapped_values(outcomes, name)
    indices[mapped] = len(own) + np.arange(len(mapped))
    pools.append(values)
    read = {row: each.envelope.attributes for row, each in facts.readings.items() if each.envelope.is_event}
    indices[list(read)] = len(own) + len(mapped) + np.arange(len(read))
    pools.append(pa.array([attributes.get(name) for attributes in read.values()], pa.string()))
    return pa.concat_arrays(pools).take(pa.array(indices, mask=indices < 0))


def _mapped_values(outcomes: MatchOutcomes, name: str) -> tuple[IntArray, pa.StringArray]:
    """Return the rows whose mapping gave an attribute, and its values."""
    attributes = outcomes.attributes
    if not len(attributes):
        return np.zeros(0, np.int64), pa.array([], pa.string())
    places = np.flatnonzero(pc.equal(attributes.values.field("key"), name).to_numpy(zero_copy_only=False))
    owners = np.searchsorted(attributes.offsets.to_numpy(), places, "right") - 1
    return outcomes.mapped[owners], attributes.values.field("value").take(pa.array(places)).cast(pa.string())


CORRELATION: Final = "correlation"
"""The context attribute of a record that relates it to another."""


RELATED: Final[tuple[str, ...]] = ("relation", "relatedto")
"""What lineage says of an event whose definition has a relation: its kind, and to which definition."""


class Correlations:
    """Reads the values that relate records to each other, by the relations of a plan's targets.

    ``keys`` are the properties that record columns must have for it; without relations there are none.
    """

    def __init__(self, targets: Sequence[MatchCandidate]) -> None:
        relations = [target.definition.relation for target in targets]
        self._vias = [relation.via if relation is not None else "" for relation in relations]
        of = (relation.of for relation in relations if relation is not None)
        named = tuple(key for key in (*self._vias, *of) if key)
        self.keys = tuple(dict.fromkeys(("e.id", *named))) if named else ()
        numbers = {via: number for number, via in enumerate(dict.fromkeys(via for via in self._vias if via))}
        self._numbers = np.array([*(numbers.get(via, -1) for via in self._vias), -1], np.int64)
        self._distinct = tuple(numbers)

    def has(self, target: int) -> bool:
        """Whether records of a target may have a context attribute ``correlation``."""
        return bool(self._vias[target])

    def values(self, outcomes: MatchOutcomes, winners: IntArray) -> pa.StringArray:
        """Return the value that relates each row to another record; null if there is none."""
        rows = outcomes.facts.columns.rows
        numbers = self._numbers[np.where(winners >= 0, winners, -1)]
        pools = [property_column(outcomes, via) for via in self._distinct]
        indices = np.where(numbers >= 0, numbers * rows + np.arange(rows), -1)
        pool = pa.concat_arrays(pools) if pools else pa.nulls(0, pa.string())
        return pool.take(pa.array(indices, mask=indices < 0))

    def add_to(
        self, contexts: pa.MapArray, outcomes: MatchOutcomes, winners: IntArray, own: Sequence[bool]
    ) -> pa.MapArray:
        """Return contexts with ``correlation`` added at the end, for rows that have such a value.

        *own* says for each target, as a native record and as an event in turn, whether it has a placeholder of
        that name.
        """
        values = self.values(outcomes, winners)
        taken = np.array((*own, False), bool)[np.where(winners >= 0, 2 * winners + outcomes.facts.events, -1)]
        return _append_entry(contexts, CORRELATION, values, is_not_null(values) & ~taken)


def property_column(outcomes: MatchOutcomes, key: str) -> pa.StringArray:
    """Return a property (``e.NAME``, ``p.PATH``) of every row, as the outgoing event has it.

    The first of several values counts; an empty one is null.
    """
    if key.startswith("e."):
        texts = attribute_column(outcomes, key.removeprefix("e."))
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


def _append_entry(contexts: pa.MapArray, name: str, values: pa.StringArray, there: BoolArray) -> pa.MapArray:
    """Return maps with one more entry at the end, in the rows marked in *there*."""
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
