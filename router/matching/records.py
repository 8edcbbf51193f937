"""``xrouter match``: native records in, one outcome a line out, through the matcher that ``run`` uses."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa

from bindings.envelope import Envelope
from bindings.events import to_json_members
from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.record_columns import SOURCE_SCHEMA, KafkaColumnReader
from bindings.parts import JSON_KIND, Part, first_part
from bindings.protocols import BINDINGS, Binding, binding_of
from catalog.findings import RecordError
from catalog.load import pause_gc
from catalog.model import Catalog, Relation
from catalog.record import Record, parse_record
from catalog.schemas.ids.deciding import FrameSettings
from catalog.schemas.validation import PayloadValidation
from catalog.values import is_timestamp
from router.matching.channels import ChannelBuilder
from router.matching.context import Slot, slot_value
from router.matching.inbox_columns import kafka_time, read_kafka_rows
from router.matching.index.classes import BatchColumns
from router.matching.mapping import Defaults
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.record_columns import (
    ExactReading,
    RawRow,
    RecordColumns,
    RecordColumnsBuilder,
    RowReader,
    protocol_number,
)
from router.matching.schema_ids import KEY as SCHEMA_ID_KEY
from router.matching.schema_validation import Validation
from router.matching.tie_breaker import Ambiguous

# Match one record without columns: whatever routes a record, from the same index, constraints, templates and mapping.
#
# The third way to evaluate a record, beside columns and the exact codec, and for its speed alone: with 1,500
# definitions a record takes 43 to 63 us, through columns of one row 1,100 and more (``make bench-library``). It gives
# routed records only. Dead letters, batches of events, ties and relations are left to the columns, and so are their
# explanations. The conformance cases hold it equal to them.


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


CHUNK: Final = 5_000
FEW: Final = 30
"""Up to this number, records are matched one by one: columns take 1,000 us, and beyond it less for each record."""
EVERYTHING: Final = "*"
_HEADER: Final = "headers."
_FRAMES: Final = FrameSettings()


@dataclass(frozen=True, slots=True)
class NumberedRecord:
    """One line that is a record, and its line number."""

    number: int
    record: Record
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class MatchedRecords:
    """Outcomes of records that were matched together; the sources of their columns are indexes of the entries."""

    outcomes: MatchOutcomes
    entries: list[NumberedRecord]


class RecordMatcher:
    """Matches native records against a catalog without Spark.

    ``endpoint`` or ``group`` determine the candidates of all records; with neither, a record's own endpoint decides,
    and a record without one has every definition as candidate.
    """

    @pause_gc()
    def __init__(
        self,
        catalog: Catalog,
        *,
        endpoint: str | None = None,
        group: str | None = None,
        hop_by_hop: bool = False,
        validation: Validation = "ambiguous",
        frames: FrameSettings = _FRAMES,
        ambiguous: Ambiguous = "dead-letter",
    ) -> None:
        builder = ChannelBuilder(catalog, hop_by_hop=hop_by_hop, ambiguous=ambiguous)
        self._channels: dict[str, int] = {}
        for xid in catalog.endpoints:
            self._channels[xid] = len(builder.channels)
            builder.add_endpoints(xid, [xid], frames=frames)
        self._fixed: int | None = None
        if group is not None:
            builder.add_definitions(group, catalog.groups.get(group, ()), frames)
            self._fixed = len(builder.channels) - 1
        elif endpoint is not None:
            self._fixed = self._channels.get(endpoint, -1)
        else:
            self._channels[EVERYTHING] = len(builder.channels)
            builder.add_definitions(EVERYTHING, catalog.definitions, frames)
        payloads, ties = PayloadValidation(catalog), builder.tie_breaker()
        self.matcher: Final = Matcher(builder.targets, builder.channels, payloads, validation, ties)
        sniffs = any(self.matcher.sniffs(number, KAFKA) for number in range(len(builder.channels)))
        self._reader = KafkaColumnReader(self.matcher.keys, sniffs=sniffs or self._fixed == -1)
        self._single = SingleMatcher(self.matcher)

    def outcomes(self, lines: Iterable[bytes | str]) -> Iterator[dict[str, Any]]:
        """Yield one outcome per line, in order; a line that is not a record is ``undecodable``."""
        numbered = (line for line in lines if line.strip())
        while chunk := list(itertools.islice(numbered, CHUNK)):
            yield from self.decide(chunk)

    def decide(self, lines: Sequence[bytes | str]) -> list[dict[str, Any]]:
        """Return the outcomes of these lines."""
        return self.decide_records([read_line(line) for line in lines])

    def decide_records(self, records: Sequence[Record | RecordError]) -> list[dict[str, Any]]:
        """Return the outcomes of these records, and of what is none."""
        outcomes, rows = self._to_rows(records)
        if len(rows) <= FEW:
            left: list[tuple[NumberedRecord, RawRow]] = []
            for entry, row in rows:
                routed = self._single.match(row)
                if routed is None:
                    left.append((entry, row))
                else:
                    outcomes[entry.number] = self._routed_outcome(routed.target, routed.context, routed.attributes)
            rows = left
        for decided in self._match_rows(rows):
            outcomes.update(self.numbered_outcomes(decided))
        return [outcomes[number] for number in range(len(records))]

    def judge(self, lines: Sequence[bytes | str]) -> tuple[dict[int, dict[str, Any]], list[MatchedRecords]]:
        """Match these lines; return the outcomes of those that are not records by number, and the matched others."""
        failed, rows = self._to_rows([read_line(line) for line in lines])
        return failed, self._match_rows(rows)

    def _to_rows(
        self, records: Sequence[Record | RecordError]
    ) -> tuple[dict[int, dict[str, Any]], list[tuple[NumberedRecord, RawRow]]]:
        """Return the outcomes of what are not records by number, and the others with their rows."""
        failed: dict[int, dict[str, Any]] = {}
        rows: list[tuple[NumberedRecord, RawRow]] = []
        others = 0
        for number, record in enumerate(records):
            try:
                if isinstance(record, RecordError):
                    raise record
                binding = _require_binding(record)
                entry = NumberedRecord(number, record, binding.split(record.native))
            except RecordError as error:
                failed[number] = dead_letter_outcome("undecodable", str(error))
                continue
            rows.append((entry, self._to_raw_row(others, binding, entry)))
            others += binding.protocol != KAFKA
        return failed, rows

    def _match_rows(self, rows: Sequence[tuple[NumberedRecord, RawRow]]) -> list[MatchedRecords]:
        """Match rows as columns."""
        kafka = [entry for entry, row in rows if row.binding.protocol == KAFKA]
        others = [(entry, row) for entry, row in rows if row.binding.protocol != KAFKA]
        together = [MatchedRecords(self.matcher.match(self._read_kafka(kafka)), kafka)] if kafka else []
        if others:
            raw = RecordColumnsBuilder(self.matcher.keys)
            for source, (_, row) in enumerate(others):
                raw.add(replace(row, source=source))
            together.append(MatchedRecords(self.matcher.match(raw.build()), [entry for entry, _ in others]))
        return together

    def _channel_of(self, record: Record) -> int:
        if self._fixed is not None:
            return self._fixed
        return self._channels.get(record.endpoint if record.endpoint is not None else EVERYTHING, -1)

    def _to_raw_row(self, number: int, binding: Binding, entry: NumberedRecord) -> RawRow:
        record, channel = entry.record, self._channel_of(entry.record)
        parts, identity, time = entry.parts, record.position or f"{number}", record.time
        if binding.protocol == KAFKA:
            # As a row of Spark's source, which always has partition and offset.
            place = {name: record.native.get(name) or 0 for name in ("partition", "offset")}
            parts = [*parts, *(Part(name, b"0", JSON_KIND) for name in place if record.native.get(name) is None)]
            identity = "-".join((record.native.get("topic") or "", *map(str, place.values())))
            time = kafka_time(record.native.get("timestamp")) or time
        return RawRow(
            number,
            binding,
            parts,
            record.body,
            channel,
            lambda: self.matcher.sniffs(channel, binding.protocol),
            identity,
            time,
        )

    def _read_kafka(self, entries: list[NumberedRecord]) -> RecordColumns:
        rows = [_to_kafka_row(entry) for entry in entries]
        batch = pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)
        channels = np.array([self._channel_of(entry.record) for entry in entries], np.int64)
        times = pa.array([_valid_timestamp(entry.record.time) for entry in entries], pa.string())
        return read_kafka_rows(batch, self.matcher, self._reader, channels, times=times)

    def numbered_outcomes(self, decided: MatchedRecords) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what :meth:`outcomes` gives for each entry, with its number."""
        facts = decided.outcomes.facts
        batches: dict[int, list[dict[str, Any]]] = {source: [] for source in facts.batches}
        for row, source in enumerate(facts.sources.tolist()):
            if source < 0:
                continue
            outcome = self._to_outcome(decided.outcomes, row, decided.entries[source])
            if source in batches:
                batches[source].append(outcome)
            else:
                yield decided.entries[source].number, outcome
        for source, events in batches.items():
            yield decided.entries[source].number, {"outcome": "batch", "events": events}

    def _to_outcome(self, outcomes: MatchOutcomes, row: int, entry: NumberedRecord) -> dict[str, Any]:
        winner = int(outcomes.winners[row])
        if winner < 0:
            return dead_letter_outcome(outcomes.reasons[row], outcomes.details[row], outcomes.nearest.get(row, []))
        event = self._event_attributes(outcomes, row, entry)
        return self._routed_outcome(winner, dict(outcomes.contexts[row].as_py()), event, outcomes.ties.get(row))

    def _routed_outcome(
        self, target: int, context: Mapping[str, Any], event: Mapping[str, Any], tie: str | None = None
    ) -> dict[str, Any]:
        outcome: dict[str, Any] = {
            "outcome": "routed",
            "message": self.matcher.targets[target].xid,
            "context": context,
            "cloudevent": event,
        }
        if tie is not None:
            outcome["ambiguous"] = tie
        return outcome | _relation_fields(self.matcher.targets[target].definition.relation)

    def _event_attributes(self, outcomes: MatchOutcomes, row: int, entry: NumberedRecord) -> dict[str, Any]:
        if not outcomes.facts.events[row]:
            entries = outcomes.attributes[int(np.searchsorted(outcomes.mapped, row))].as_py()
            return {each["key"]: each["value"].decode("utf-8") for each in entries}
        return to_json_members(envelope_of_row(outcomes.facts, row, entry).attributes)


def envelope_of_row(facts: RecordColumns, row: int, entry: NumberedRecord) -> Envelope:
    """Return the envelope of a row; Kafka rows that have only columns are read by the exact codec."""
    reading = facts.readings.get(row)
    if reading is not None:
        return reading.envelope
    return BINDINGS[KAFKA].read_envelope(entry.parts, entry.record.body, lambda: False)


def _relation_fields(relation: Relation | None) -> dict[str, str]:
    """Return what the lineage says of a relation."""
    if relation is None:
        return {}
    return {**({"relation": relation.kind} if relation.kind else {}), "relatedto": relation.to}


def encode_outcome(outcome: Mapping[str, Any]) -> bytes:
    """Write one outcome as a line of JSON."""
    return msgspec.json.encode(outcome) + b"\n"


def read_line(line: bytes | str) -> Record | RecordError:
    """Read a line as a record, or return why it is none."""
    try:
        return parse_record(line)
    except RecordError as error:
        return error


def parse_entry(number: int, line: bytes | str) -> tuple[NumberedRecord, Binding]:
    """Read one line as a record of a supported protocol.

    Raises:
        RecordError: it is not one.
    """
    record = parse_record(line)
    binding = _require_binding(record)
    return NumberedRecord(number, record, binding.split(record.native)), binding


def dead_letter_outcome(reason: str, detail: str, nearest: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the outcome of a record that becomes a dead letter."""
    return {"outcome": "dead-letter", "reason": reason, "detail": detail, "nearest": nearest or []}


def _require_binding(record: Record) -> Binding:
    binding = binding_of(record.protocol)
    if binding is None:
        raise RecordError(f"protocol {record.protocol[:40]!r} is not one of {', '.join(BINDINGS)}")
    return binding


def _valid_timestamp(text: str | None) -> str | None:
    return text if text is not None and is_timestamp(text) else None


def _to_kafka_row(entry: NumberedRecord) -> dict[str, Any]:
    record, parts = entry.record, entry.parts
    key = first_part(parts, "key")
    return {
        "key": key.value if key else None,
        "value": record.body,
        "topic": record.native.get("topic"),
        "partition": record.native.get("partition") or 0,
        "offset": record.native.get("offset") or 0,
        "timestamp": record.native.get("timestamp"),
        "headers": [
            {"key": part.key.removeprefix(_HEADER), "value": part.value}
            for part in parts
            if part.key.startswith(_HEADER)
        ],
    }
