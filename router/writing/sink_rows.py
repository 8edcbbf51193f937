"""Outcomes as rows of sinks: whole Arrow batches as the columns of events or of dead letters, wherever they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from router.judging.kinds import Kind
from router.judging.plan import Plan
from router.judging.stages import MATCHED, letter_ids
from router.matching.correlation import RELATED
from router.matching.facts import SCHEMA_ID
from router.rendering.events import event_columns
from router.rendering.exact import TYPED
from router.rendering.native import native_texts
from router.sinks.forms import AMBIGUOUS, DEAD_LETTER
from router.writing.commits import Batch


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Makes the rows of one attempt. ``failed`` is when its letters were made, ``epoch`` that of what judged it."""

    kind: Kind
    query: str
    epoch: str
    failed: str

    @classmethod
    def of(cls, batch: Batch, plan: Plan) -> SinkRows:
        """Return that of a batch which a plan judges."""
        return cls(batch.kind, batch.first_query, plan.epoch, batch.failed)

    def events(self, outcomes: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
        """Return routed outcomes (``OUTCOME_COLUMNS``) as events with the columns of *schema*."""
        matched = outcomes.column(MATCHED)
        place = pc.struct_field(matched, "place")
        events = event_columns(self.kind, outcomes.column("raw"), pc.struct_field(matched, "attributes"), place)
        columns: dict[str, pa.Array] = dict(zip(events.type.names, events.flatten(), strict=True))
        fields = (
            "message",
            "endpoint",
            "context",
            TYPED,
            AMBIGUOUS,
            *(name for name in (*RELATED, SCHEMA_ID) if name in schema.names),
        )
        columns |= {name: pc.struct_field(matched, name) for name in fields}
        columns |= {name: outcomes.column(name) for name in ("position", "received", "protocol")}
        columns["data"] = outcomes.column("body")
        return _table(columns, schema, epoch=self.epoch)

    def letters(self, outcomes: pa.RecordBatch) -> pa.Table:
        """Return outcomes as dead letters; ids are made of positions where the outcomes have no column ``letter``."""
        matched = outcomes.column(MATCHED)
        columns = {name: pc.struct_field(matched, name) for name in ("reason", "detail", "nearest", "endpoint")}
        if self.kind != "kafka":
            came_by = pc.struct_field(outcomes.column("raw"), "endpoint")
            columns["endpoint"] = pc.coalesce(columns["endpoint"], came_by)
        columns |= {name: outcomes.column(name) for name in ("position", "received", "protocol", "body")}
        columns["native"] = native_texts(self.kind, outcomes.column("raw"), pc.struct_field(matched, "place"))
        if "letter" in outcomes.schema.names:
            columns["letter"] = outcomes.column("letter")
        else:
            columns["letter"] = pa.array(letter_ids(self.query, outcomes.column("position")), pa.string())
        failed = datetime.fromisoformat(self.failed)
        return _table(columns, DEAD_LETTER, epoch=self.epoch, failed=failed, attempts=1)


def _table(columns: dict[str, pa.Array], schema: pa.Schema, **same: Any) -> pa.Table:
    """Return the columns as a table; *same* are the values of those that are the same in every row."""
    rows = len(columns["position"])
    columns |= {name: pa.repeat(pa.scalar(value, schema.field(name).type), rows) for name, value in same.items()}
    return pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
