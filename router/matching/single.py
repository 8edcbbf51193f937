"""Match one record without columns: whatever routes a record, from the same index, constraints, templates and mapping.

The third way to evaluate a record, beside columns and the exact codec, and for its speed alone: with 1,500 definitions
a record takes 43 to 63 us, through columns of one row 1,100 and more (``make bench-library``). It gives routed records
only. Dead letters, batches of events, ties and relations are left to the columns, and so are their explanations. The
conformance cases hold it equal to them.
"""

# Small: the order of the steps; each step stands beside its twin for columns.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from bindings.events import to_json_members
from router.matching.context import Slot, slot_value
from router.matching.index.classes import BatchColumns
from router.matching.mapping import Defaults
from router.matching.matcher import Matcher
from router.matching.record_columns import ExactReading, RawRow, RecordColumns, RowReader, protocol_number
from router.matching.schema_ids import KEY as SCHEMA_ID_KEY


@dataclass(frozen=True, slots=True)
class RoutedRecord:
    """A record that matches: its target, the values of placeholders, and the members of its event."""

    target: int
    context: Mapping[str, str | None]
    attributes: Mapping[str, object]


class SingleMatcher:
    """Matches records one by one, by what a matcher has compiled."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher: Final = matcher
        self._reader = RowReader(matcher.keys)
        self._slots: dict[tuple[int, bool], list[Slot]] = {}
        self._winners: dict[int, int] = {}

    def match(self, raw: RawRow) -> RoutedRecord | None:
        """Return how a record is routed; None where the columns decide."""
        if raw.channel < 0:
            return None
        envelope = raw.binding.read_envelope(raw.parts, raw.body, raw.sniff)
        if envelope.mode == "batch":
            return None
        reading = ExactReading(raw.parts, raw.body, envelope)
        read = self._reader.read(raw, reading)
        if read.fault is not None:
            return None
        winner = self._find_winner(raw, reading, read.texts)
        if winner < 0 or self._matcher.correlations.has(winner):
            return None
        context = {slot.name: slot_value(slot, read.texts[slot.key]) for slot in self._slots_of(winner, reading)}
        if envelope.is_event:
            return RoutedRecord(winner, context, to_json_members(envelope.attributes))
        attributes = self._matcher.mapper.map_record(winner, raw.channel, context, read.defaults)
        return None if attributes is None else RoutedRecord(winner, context, attributes)

    def _find_winner(self, raw: RawRow, reading: ExactReading, texts: dict[str, list[str | None]]) -> int:
        matcher, event = self._matcher, reading.envelope.is_event
        protocol = protocol_number(raw.binding.protocol)
        facts: RecordColumns | None = None
        if matcher.ids.finds(raw.channel):
            facts = _one_row(raw, protocol, reading)
            matcher.ids.find(facts)
            if facts.ids is not None and matcher.ids.constrains and facts.ids.codes[0] >= 0:
                texts[SCHEMA_ID_KEY] = [facts.ids.names[facts.ids.codes[0]]]
        number = matcher.index.match_record(texts, raw.channel, protocol, event=event)
        number = matcher.chooser.drop_unequal_of_record(texts, number)
        if facts is not None:
            facts.identified = matcher.ids.drop(facts, np.array([number]))
            number = int(facts.identified.sets[0])
        if matcher.checks.checks(number):
            facts = facts or _one_row(raw, protocol, reading)
            number = int(matcher.checks.check(facts, np.array([number])).sets[0])
        if number not in self._winners:
            self._winners[number] = matcher.chooser.choose_winner(number)
        return self._winners[number]

    def _slots_of(self, target: int, reading: ExactReading) -> list[Slot]:
        place = (target, reading.envelope.is_event)
        if place not in self._slots:
            self._slots[place] = self._matcher.chooser.slots(target, event=place[1])
        return self._slots[place]


def _one_row(raw: RawRow, protocol: int, reading: ExactReading) -> RecordColumns:
    """Return what the decisions by schemas use of a record: its reading, without columns."""
    channels, protocols, events, sources = np.array([[raw.channel], [protocol], [reading.envelope.is_event], [0]])
    none = cast(Defaults, None)
    return RecordColumns(BatchColumns(1, {}), channels, protocols, events, sources, none, readings={0: reading})
