"""Rows of one kind of source, as judging takes them, and what a record among them is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bindings.kafka.codec import PROTOCOL as KAFKA
from bindings.kafka.codec import parts_of_row
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from router.judging.kinds import Kind
from router.matching.inbox_facts import UNKNOWN, inbox_parts


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are judged together."""

    kind: Kind
    rows: pa.RecordBatch

    @property
    def pushed(self) -> bool:
        """Whether the rows are those of an inbox, which say when they were received."""
        return self.kind != "kafka"

    def position(self, row: int) -> str:
        """Return where a record lies."""
        if self.pushed:
            return str(self.rows.column("position")[row].as_py())
        place = (self.rows.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
        return "-".join(map(str, place))

    def positions(self) -> Iterator[str]:
        """Yield where the records lie, in order."""
        if self.pushed:
            yield from self.rows.column("position").to_pylist()
            return
        places = self.rows.select(["topic", "partition", "offset"]).to_pylist()
        yield from (f"{each['topic']}-{each['partition']}-{each['offset']}" for each in places)

    def taken_apart(self, row: int) -> tuple[Binding, list[Part], bytes | None]:
        """Return the binding, the parts and the body of a record."""
        given: dict[str, Any] = self.rows.slice(row, 1).to_pylist()[0]
        if self.kind == "kafka":
            return BINDINGS[KAFKA], parts_of_row(given), given["value"]
        binding = binding_of(given["protocol"] or "") or BINDINGS[UNKNOWN]
        return binding, inbox_parts(given["properties"]), given["body"]
