"""Places that records are read from, some at a time, in the columns of the source they came by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from router.judging.chunk import Chunk
from router.judging.judging import INBOX_COLUMNS, SIZE
from router.letters.letter import Letter

ROWS: Final = 5_000
"""Records that are judged together."""
BYTES: Final = 256 << 20
"""Bytes of records that are read at one place."""


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


def inbox_chunk(batch: pa.RecordBatch) -> Chunk:
    """Return rows as they come from an inbox."""
    return Chunk("inbox", batch.select(list(INBOX_COLUMNS)))


def letter_of(chunk: Chunk, row: int, reason: str) -> Letter:
    """Return a record in the form in which what is sensitive in it is hidden."""
    binding, parts, body = chunk.taken_apart(row)
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
        position=chunk.position(row),
        received=None,
        failed=None,
        attempts=0,
    )
