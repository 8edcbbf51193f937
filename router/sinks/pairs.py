"""The sink of request-reply pairs: a Delta table (exactly once), or a topic (at least once, under one id)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pkgutil import resolve_name
from typing import Final, Protocol, cast

import msgspec
import pyarrow as pa

from bindings.parts import Part
from bindings.sending import Outbound, Publisher
from router.logs import get_logger
from router.rendering.texts import INSTANT
from router.settings import KafkaSink, Sink, TableSink
from router.sinks.contract import Commit
from router.sinks.messages.sink import send_messages
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.upkeep import Upkeep

PARTS_OF_A_SIDE: Final = ("message", "id", "position", "epoch", "received")
SOURCE: Final = "/xrouter/relations"
TYPE: Final = "io.xregistry.router.relation."
"""The prefix of the type of an event; the outcome follows."""
CHUNK: Final = 500
"""Events sent at a time. After an error of the client, only complete groups are known to be confirmed."""
_log = get_logger()


class PairRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pair, or a message without its counterpart, whose members are null; instants are RFC 3339.

    ``outcome`` is paired, unanswered or unasked; ``cause`` is the reason for the last two: time, room, or unnamed.
    ``settled`` is when the outcome was decided.
    """

    id: str | None = None
    outcome: str
    cause: str | None = None
    relation: str | None = None
    correlation: str | None = None
    question_message: str | None = None
    question_id: str | None = None
    question_position: str | None = None
    question_epoch: str | None = None
    question_received: str | None = None
    answer_message: str | None = None
    answer_id: str | None = None
    answer_position: str | None = None
    answer_epoch: str | None = None
    answer_received: str | None = None
    settled: str


_INSTANTS: Final = ("question_received", "answer_received", "settled")
PAIRS: Final = pa.schema([(name, INSTANT if name in _INSTANTS else pa.string()) for name in PairRow.__struct_fields__])
"""The columns of :class:`PairRow`."""


class PairSink(Protocol):
    """Writes request-reply pairs."""

    def write(self, rows: Sequence[PairRow], commit: Commit) -> None:
        """Write rows; called again with the same commit after an error or a crash.

        Raises:
            SinkError: the destination does not accept the rows now.
        """


def open_pairs(name: str, settings: Sink) -> PairSink:
    """Create the sink called *name* for pairs; uses neither disk nor network."""
    return cast(PairSink, resolve_name(settings.pairs)(name, settings))


def open_pair_table(name: str, settings: TableSink) -> PairSink:
    """Create the sink for a Delta table."""
    upkeep = Upkeep(name, settings.compact_after, settings.file_bytes, settings.keep_replaced)
    return _PairTable(DeltaSink(name, settings.path, PAIRS, upkeep=upkeep, rejects=False))


def open_pair_topic(name: str, settings: KafkaSink) -> PairSink:
    """Create the sink for a Kafka topic."""
    from bindings.protocols import binding_of

    binding = binding_of("KAFKA")
    assert binding is not None
    return _PairTopic(name, settings.topic, settings.publisher(name, binding, None))


@dataclass(eq=False)
class _PairTable(PairSink):
    table: DeltaSink

    def write(self, rows: Sequence[PairRow], commit: Commit) -> None:
        columns = {field.name: [_parse_value(getattr(row, field.name), field.type) for row in rows] for field in PAIRS}
        self.table.write(pa.table(columns, schema=PAIRS), commit)


@dataclass(eq=False)
class _PairTopic(PairSink):
    """Sends pairs to a topic; if a commit is repeated in this process, only those not delivered yet."""

    name: str
    topic: str
    publisher: Publisher
    _commit: Commit | None = field(default=None, init=False)
    _delivered: set[int] = field(default_factory=set, init=False)

    def write(self, rows: Sequence[PairRow], commit: Commit) -> None:
        if commit != self._commit:
            self._commit, self._delivered = commit, set()
        left = [index for index in range(len(rows)) if index not in self._delivered]
        for start in range(0, len(left), CHUNK):
            self._send_rows(rows, left[start : start + CHUNK])

    def _send_rows(self, rows: Sequence[PairRow], indexes: Sequence[int]) -> None:
        messages = [_to_event(rows[index], self.topic) for index in indexes]
        for at, refusal in send_messages(self.name, self.publisher, messages, "it is retried with growing pauses"):
            self._delivered.add(indexes[at])
            if refusal is not None:
                row = rows[indexes[at]]
                _log.error("pair rejected permanently", sink=self.name, pair=row.id, reason=refusal.reason)


def _to_event(row: PairRow, topic: str) -> Outbound:
    """Return a row as a CloudEvent with the row's members as data."""
    attributes = {"specversion": "1.0", "id": row.id or "", "source": SOURCE, "type": TYPE + row.outcome}
    parts = [Part(f"headers.ce_{name}", text.encode()) for name, text in attributes.items()]
    parts.append(Part("headers.content-type", b"application/json"))
    if row.correlation is not None:
        parts.append(Part("key", row.correlation.encode()))
    return Outbound(topic, tuple(parts), msgspec.json.encode(row), "", row.id or "")


def _parse_value(text: str | None, kind: pa.DataType) -> str | datetime | None:
    return datetime.fromisoformat(text) if text is not None and kind == INSTANT else text
