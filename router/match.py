"""``xrouter match``: native records in, one outcome a line out, through the matcher that ``run`` uses."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from bindings.kafka.codec import PROTOCOL as KAFKA
from bindings.parts import Part, first
from bindings.protocols import BINDINGS, Binding, binding_of
from catalog.errors import RecordError
from catalog.model import Catalog
from catalog.record import Record, parse_record
from catalog.schemas.validation import PayloadValidation
from router.channels import ChannelBuilder
from router.conformance import Validation
from router.facts import Facts, RawFacts, RawRow
from router.kafka_facts import SOURCE_SCHEMA, KafkaSelection, facts_of_selected
from router.matcher import Matcher, Outcomes

CHUNK: Final = 5_000
EVERYTHING: Final = "*"
_HEADER: Final = "headers."


class RecordMatcher:
    """Matches native records against a catalog without Spark.

    ``endpoint`` or ``group`` fix the candidates for all records; with neither, a record's own endpoint decides,
    and a record without one has every definition as candidate.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        endpoint: str | None = None,
        group: str | None = None,
        hop_by_hop: bool = False,
        validation: Validation = "ambiguous",
    ) -> None:
        builder = ChannelBuilder(catalog, hop_by_hop=hop_by_hop)
        self._channels: dict[str, int] = {}
        for xid in catalog.endpoints:
            self._channels[xid] = len(builder.channels)
            builder.endpoints(xid, [xid])
        self._fixed: int | None = None
        if group is not None:
            builder.definitions(group, catalog.groups.get(group, ()))
            self._fixed = len(builder.channels) - 1
        elif endpoint is not None:
            self._fixed = self._channels.get(endpoint, -1)
        else:
            self._channels[EVERYTHING] = len(builder.channels)
            builder.definitions(EVERYTHING, catalog.definitions)
        self._matcher = Matcher(builder.targets, builder.channels, PayloadValidation(catalog), validation)
        sniffs = any(self._matcher.sniffs(number, KAFKA) for number in range(len(builder.channels)))
        self._selection = KafkaSelection(self._matcher.index.keys, sniffs=sniffs or self._fixed == -1, bodies=None)

    def outcomes(self, lines: Iterable[bytes | str]) -> Iterator[dict[str, Any]]:
        """Yield one outcome per line, in order; a line that is no record is ``undecodable``, and the next goes on."""
        numbered = (line for line in lines if line.strip())
        while chunk := list(itertools.islice(numbered, CHUNK)):
            yield from self.decide(chunk)

    def decide(self, lines: list[bytes | str]) -> list[dict[str, Any]]:
        """Return the outcomes of these lines."""
        told: dict[int, dict[str, Any]] = {}
        kafka: list[tuple[int, Record, list[Part]]] = []
        raw = RawFacts(self._matcher.index.keys)
        taken: list[tuple[int, Record, list[Part]]] = []
        for number, line in enumerate(lines):
            try:
                record = parse_record(line)
                binding = _binding(record)
                parts = binding.parts(record.native)
            except RecordError as error:
                told[number] = _dead("undecodable", str(error))
                continue
            if binding.protocol == KAFKA:
                kafka.append((number, record, parts))
            else:
                raw.add(self._raw(len(taken), record, binding, parts))
                taken.append((number, record, parts))
        if kafka:
            told.update(self._told(self._kafka(kafka), kafka))
        if taken:
            told.update(self._told(raw.build(), taken))
        return [told[number] for number in range(len(lines))]

    def _channel(self, record: Record) -> int:
        if self._fixed is not None:
            return self._fixed
        return self._channels.get(record.endpoint if record.endpoint is not None else EVERYTHING, -1)

    def _raw(self, source: int, record: Record, binding: Binding, parts: list[Part]) -> RawRow:
        channel = self._channel(record)
        return RawRow(
            source,
            binding,
            parts,
            record.body,
            channel,
            lambda: self._matcher.sniffs(channel, binding.protocol),
            record.position or f"{source}",
            _text(parts, binding.time_key) or record.time,
        )

    def _kafka(self, entries: list[tuple[int, Record, list[Part]]]) -> Facts:
        rows = [_kafka_row(record, parts) for _, record, parts in entries]
        batch = pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)
        channels = np.array([self._channel(record) for _, record, _ in entries], np.int64)
        times = pa.array([record.time for _, record, _ in entries], pa.string())
        return facts_of_selected(self._selection.arrow(batch), self._matcher, channels, times)

    def _told(
        self, facts: Facts, entries: list[tuple[int, Record, list[Part]]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        outcomes = self._matcher.match(facts)
        mapped = {int(row): at for at, row in enumerate(outcomes.mapped)}
        batches: dict[int, list[dict[str, Any]]] = {source: [] for source in facts.batches}
        for row, source in enumerate(facts.sources.tolist()):
            if source < 0:
                continue
            number, record, parts = entries[source]
            told = self._outcome(outcomes, row, record, parts, mapped)
            if source in batches:
                batches[source].append(told)
            else:
                yield number, told
        for source, events in batches.items():
            yield entries[source][0], {"outcome": "batch", "events": events}

    def _outcome(
        self, outcomes: Outcomes, row: int, record: Record, parts: list[Part], mapped: Mapping[int, int]
    ) -> dict[str, Any]:
        winner = int(outcomes.winners[row])
        if winner < 0:
            return _dead(outcomes.reasons[row], outcomes.details[row], outcomes.nearest.get(row, []))
        return {
            "outcome": "routed",
            "message": self._matcher.targets[winner].xid,
            "context": dict(outcomes.contexts[row].as_py()),
            "cloudevent": self._attributes(outcomes, row, record, parts, mapped),
        }

    def _attributes(
        self, outcomes: Outcomes, row: int, record: Record, parts: list[Part], mapped: Mapping[int, int]
    ) -> dict[str, str]:
        if row in mapped:
            entries = outcomes.attributes[mapped[row]].as_py()
            return {entry["key"]: entry["value"].decode("utf-8") for entry in entries}
        reading = outcomes.facts.readings.get(row)
        if reading is not None:
            return dict(reading.envelope.attributes)
        return dict(BINDINGS[KAFKA].envelope(parts, record.body, lambda: False).attributes)


def to_line(outcome: Mapping[str, Any]) -> bytes:
    """Write one outcome as a line of JSON."""
    return msgspec.json.encode(outcome) + b"\n"


def _dead(reason: str, detail: str, nearest: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"outcome": "dead-letter", "reason": reason, "detail": detail, "nearest": nearest or []}


def _binding(record: Record) -> Binding:
    binding = binding_of(record.protocol)
    if binding is None:
        raise RecordError(f"protocol {record.protocol[:40]!r} is none of {', '.join(BINDINGS)}")
    return binding


def _text(parts: list[Part], key: str) -> str | None:
    part = first(parts, key) if key else None
    return part.text if part else None


def _kafka_row(record: Record, parts: list[Part]) -> dict[str, Any]:
    key = first(parts, "key")
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
