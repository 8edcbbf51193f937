"""Records that are judged together, in the columns of the source they came by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.codec import PROTOCOL as KAFKA
from bindings.kafka.codec import parts_of_row
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from router.judging.judging import SIZE
from router.judging.kinds import Kind
from router.letters.letter import Letter
from router.matching.inbox_facts import UNKNOWN, inbox_parts

ROWS: Final = 5_000
"""Records that are judged together."""
BYTES: Final = 256 << 20
"""Bytes of records that are read at one place."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one kind of source, as judging takes them."""

    kind: Kind
    rows: pa.RecordBatch

    def position(self, row: int) -> str:
        """Return where a record lies."""
        if self.kind != "kafka":
            return str(self.rows.column("position")[row].as_py())
        place = (self.rows.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
        return "-".join(map(str, place))

    def positions(self) -> Iterator[str]:
        """Yield where the records lie, in order."""
        if self.kind != "kafka":
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

    def letter(self, row: int, reason: str) -> Letter:
        """Return a record in the form in which what is sensitive in it is hidden."""
        binding, parts, body = self.taken_apart(row)
        return Letter(
            id="",
            reason=reason,
            detail="",
            nearest=(),
            endpoint=None,
            protocol=binding.protocol,
            native=binding.native(parts),
            body=body,
            epoch="",
            position=self.position(row),
            received=None,
            failed=None,
            attempts=0,
        )


@dataclass(slots=True)
class Place:
    """A place that records are read from; ``notes`` and ``records`` are known once it was read."""

    name: str
    read: Callable[[Place], Iterator[Chunk]]
    records: int = 0
    notes: list[str] = field(default_factory=list)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the records, at most :data:`ROWS` at a time, and not many more bytes than :data:`BYTES` in all."""
        size = 0
        for chunk in self.read(self):
            for start in range(0, chunk.rows.num_rows, ROWS):
                some = chunk.rows.slice(start, ROWS)
                self.records += some.num_rows
                yield Chunk(chunk.kind, some)
            size += chunk.rows.nbytes
            if size > BYTES:
                self.notes.append(f"no more was read, since these have {size >> 20} MiB")
                return


def kafka_chunk(batch: pa.RecordBatch) -> Chunk:
    """Return rows as they come from topics, with the sizes that judging asks for."""
    sizes = (pc.fill_null(pc.binary_length(batch.column(name)), 0).cast(pa.int64()) for name in ("key", "value"))
    return Chunk("kafka", batch.append_column(SIZE, pc.add(*sizes)))
