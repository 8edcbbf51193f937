"""Match columns of records: the evaluator of the service, with one row for each outcome and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.binding import topic_option
from bindings.kafka.record_columns import SOURCE_SCHEMA
from catalog.load import pause_gc
from catalog.model import Catalog
from catalog.schemas.validation import PayloadValidation
from router.evaluation.evaluator import Kind, evaluate
from router.evaluation.outcome_rows import OUTCOME, build_outcome_rows
from router.evaluation.outputs import OutputBuilder
from router.evaluation.plan import TOPIC_PREFIX, Evaluator
from router.matching.channels import ChannelBuilder
from router.matching.matcher import Matcher
from router.matching.records import EVERYTHING
from router.rendering.events import event_columns
from router.rendering.texts import EVENT_TYPE as RENDERED_EVENT
from router.rendering.texts import TEXT_MAP
from router.routing import Routes, SizeLimits
from router.settings import settings_from_dict

_EVENT_FIELDS: Final = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "extensions")
EVENT_TYPE: Final = pa.struct([RENDERED_EVENT.field(name) for name in _EVENT_FIELDS])
OUTCOMES: Final = pa.schema(
    [
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("nearest", pa.string()),
        ("message", pa.string()),
        ("endpoint", pa.string()),
        ("context", TEXT_MAP),
        ("event", EVENT_TYPE),
        ("data", pa.binary()),
        ("position", pa.string()),
        ("epoch", pa.string()),
    ]
)
"""One row for each outcome: ``outcome`` is ``routed`` or ``dead-letter``. A routed row has ``message`` (the xid of its
definition), ``context`` and ``event``; a dead letter ``reason``, ``detail`` and ``nearest`` (JSON). ``data`` is the
event's data, of a dead letter the whole body; ``position`` is ``topic-partition-offset``, with ``#`` and a number for
an event of a batch; ``epoch`` is that of the catalog."""
_SETTINGS: Final = {
    "catalog": {"source": "catalog"},
    "sources": [{"endpoint": "/endpoints/any"}],
    "sinks": {"rows": {"type": "jsonl", "path": "rows"}},
    "routes": [{"to": ["rows"]}],
    "dead_letters": {"sinks": ["rows"]},
}
"""Settings of a router with one sink that takes everything: the evaluator needs routes."""
_UNKNOWN: Final = {"topic": "", "partition": 0, "offset": 0, "timestamp": -1}
"""What stands in a column of Kafka's source where it is null, which it is in no record that Spark reads from Kafka."""
_MEMORY: Final = 2**40
_ROWS: Final = 20_000


class _Channels(dict[str, int]):
    """Numbers of channels by name; *others* is that of every other name."""

    others = -1

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, self.others)


@dataclass(frozen=True, slots=True)
class ColumnMatcher:
    """Matches Arrow batches of records against one catalog. It can be pickled."""

    evaluator: Evaluator
    epoch: str

    @classmethod
    @pause_gc()
    def compile(cls, catalog: Catalog, endpoint: str | None = None) -> ColumnMatcher:
        """Compile a catalog. The definitions of *endpoint* are the candidates of all records.

        Without it they are those of the endpoints that read a record's topic, and else all.
        """
        builder = ChannelBuilder(catalog)
        channels = _Channels()
        topics: dict[str, list[str]] = {}
        for xid, each in catalog.endpoints.items():
            if endpoint in (None, xid):
                channels[xid] = len(builder.channels)
                builder.add_endpoints(xid, [xid])
            if topic := topic_option(each.options) if each.protocol == KAFKA else "":
                topics.setdefault(f"{TOPIC_PREFIX}{topic}", []).append(xid)
        channels.others = len(builder.channels) if endpoint is None else channels[endpoint]
        if endpoint is None:
            builder.add_definitions(EVERYTHING, catalog.definitions)
            for topic, xids in topics.items():
                if len(xids) == 1:
                    channels[topic] = channels[xids[0]]
                else:
                    channels[topic] = len(builder.channels)
                    builder.add_endpoints(topic, xids)
        channels[TOPIC_PREFIX] = channels.others
        settings = settings_from_dict(_SETTINGS, {}, Path())
        routes = Routes(settings)
        matcher = Matcher(
            builder.targets, builder.channels, PayloadValidation(catalog), "ambiguous", builder.tie_breaker()
        )
        outputs = OutputBuilder(matcher, routes, SizeLimits(settings))
        return cls(Evaluator(matcher, outputs, channels, _MEMORY), catalog.epoch)

    def match_batch(self, kind: Kind, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the outcomes (:data:`OUTCOMES`) of a batch of Kafka or inbox rows."""
        if kind == "kafka":
            # Spark gives large types where spark.sql.execution.arrow.useLargeVarTypes is set.
            given = [rows.column(field.name).cast(field.type) for field in SOURCE_SCHEMA]
            known = [
                pc.fill_null(column, _UNKNOWN[field.name]) if field.name in _UNKNOWN else column
                for field, column in zip(SOURCE_SCHEMA, given, strict=True)
            ]
            rows = pa.RecordBatch.from_arrays(known, names=SOURCE_SCHEMA.names)
        outcomes = evaluate(kind, self.evaluator, rows)
        built = build_outcome_rows(kind, self.evaluator.outputs.outcome_type, rows, outcomes)
        matched = built.column(OUTCOME)
        columns = dict(zip((field.name for field in matched.type), matched.flatten(), strict=True))
        routed = pc.greater_equal(columns["route"], 0)
        result = {
            "outcome": pc.if_else(routed, "routed", "dead-letter"),
            **{name: columns[name] for name in ("reason", "detail", "nearest", "message", "endpoint", "context")},
            "event": self._build_events(kind, built, columns, routed),
            "data": built.column("body"),
            "position": built.column("position"),
            "epoch": pa.repeat(self.epoch, built.num_rows),
        }
        return pa.RecordBatch.from_arrays([result[each.name].cast(each.type) for each in OUTCOMES], schema=OUTCOMES)

    def match_table(self, table: pa.Table) -> pa.Table:
        """Return the outcomes of a table of Kafka records; see :meth:`xrouter.matching.LoadedCatalog.match_arrow`."""
        batches = to_kafka_rows(table).to_batches(max_chunksize=_ROWS)
        return pa.Table.from_batches((self.match_batch("kafka", each) for each in batches), OUTCOMES)

    @staticmethod
    def _build_events(kind: Kind, built: pa.RecordBatch, columns: dict[str, pa.Array], routed: pa.Array) -> pa.Array:
        """Return the events of routed rows; null in other rows."""
        at = np.flatnonzero(routed.to_numpy(zero_copy_only=False))
        given = (built.column("raw"), columns["attributes"], columns["position_in_batch"])
        events = event_columns(kind, *(each.take(pa.array(at)) for each in given))
        chosen = pa.StructArray.from_arrays(
            [pc.struct_field(events, field.name) for field in EVENT_TYPE], fields=list(EVENT_TYPE)
        )
        indices = np.full(built.num_rows, -1, np.int64)
        indices[at] = np.arange(len(at))
        return chosen.take(pa.array(indices, mask=indices < 0))


def to_kafka_rows(table: pa.Table) -> pa.Table:
    """Return a table with the columns that Kafka records are read from; those that it lacks are null.

    Raises:
        ValueError: there is no column ``value``, or a column has another type.
    """
    if "value" not in table.schema.names:
        raise ValueError(f"the column value is missing; there are {', '.join(table.schema.names) or 'none'}")
    return pa.Table.from_arrays([_to_column(table, field) for field in SOURCE_SCHEMA], schema=SOURCE_SCHEMA)


def _to_column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.schema.names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    try:
        if pa.types.is_timestamp(column.type) and field.name == "timestamp":
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"the column {field.name} is {column.type}, and must be {field.type}: {error}") from error
