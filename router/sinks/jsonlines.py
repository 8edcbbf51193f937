"""JSON lines: one file for each batch in a folder (exactly once), or standard output (at least once)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.escaping import escaped_json
from router.rendering.instants import INSTANT
from router.rendering.texts import data_of, owners_of, replaced
from router.settings.sinks.jsonlines import JsonLinesSink as JsonLinesSettings
from router.sinks.batch_files import BatchFiles
from router.sinks.contract import ArrowSink, Commit, WriteResult
from router.sinks.lines import Lines, event_lines, letter_lines
from router.sinks.tables.files import refused

_SLICE: Final = 2000
_BYTES: Final = 32 * 1024 * 1024
"""Rows written at a time, and the bytes that several may take: a large batch need not fit into memory twice."""
_DELETE: Final = 0x7F
"""The first byte of characters that may control a terminal; JSON itself escapes the control characters before it."""
_FIRST: Final = -62_135_596_800_000_000
_LAST: Final = 253_402_300_799_999_999
"""Microseconds of the first and last instant that a ``datetime`` can be."""


def open_lines(name: str, settings: JsonLinesSettings, kind: str, catalog: object, framings: object) -> ArrowSink:
    """Make the sink of lines for events or dead letters."""
    lines = event_lines if kind == "events" else letter_lines
    if settings.is_stdout:
        return StandardOutputSink(name, lines)
    return JsonLinesSink(name, Path(settings.path), lines)


class JsonLinesSink(BatchFiles):
    """Writes each batch as ``APP-VERSION.jsonl``.

    ``lines`` makes them: :func:`~router.sinks.lines.event_lines` of events, :func:`~router.sinks.lines.letter_lines` of
    dead letters.
    """

    suffix = ".jsonl"

    def __init__(self, name: str, folder: Path, lines: Lines) -> None:
        super().__init__(name, folder)
        self._lines = lines

    def fill(self, file: BinaryIO, rows: pa.Table) -> None:
        """Write the lines of the rows."""
        file.writelines(_written(rows, self._lines))


class StandardOutputSink(ArrowSink):
    """Writes lines to standard output: at least once, since nothing can tell what a reader took.

    Since the output may be a terminal, characters that would control it are JSON escapes. After a crash in mid-batch
    only the last line may be cut off, and the batch comes again.
    """

    def __init__(self, name: str, lines: Lines, stream: BinaryIO | None = None) -> None:
        self._name = name
        self._lines = lines
        self._stream = stream

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch, repeated or not, and flush it."""
        stream = self._stream or sys.stdout.buffer
        try:
            stream.writelines(_written(rows, self._escaped))
            stream.flush()
        except OSError as error:
            raise refused(self._name, "standard output", error) from error
        return WriteResult(rows.num_rows)

    def already(self, commit: Commit) -> bool:
        """Always False."""
        return False

    def _escaped(self, rows: pa.RecordBatch) -> pa.StringArray:
        lines = self._lines(rows)
        data, places = data_of(lines)
        at = np.unique(owners_of(places, np.flatnonzero(data >= _DELETE)))
        texts = (escaped_json(line.encode()).decode() for line in lines.take(pa.array(at)).to_pylist())
        return replaced(lines, at, pa.array(texts, pa.string()))


def _written(rows: pa.Table, lines: Lines) -> Iterator[memoryview]:
    """Yield the bytes of all lines, some lines at a time."""
    waiting = _within_calendar(rows).to_batches(max_chunksize=_SLICE)[::-1]
    while waiting:
        batch = waiting.pop()
        if batch.nbytes > _BYTES and batch.num_rows > 1:
            middle = batch.num_rows // 2
            waiting += [batch[middle:], batch[:middle]]
        else:
            yield data_of(lines(batch))[0].data


def _within_calendar(rows: pa.Table) -> pa.Table:
    """Make instants null that Python's calendar lacks (years below 1 or above 9999): one must not stop the stream.

    The event's own ``time`` is not lost by it: its text stands in the column ``TIME_TEXT``.
    """
    for index, field in enumerate(rows.schema):
        if field.type == INSTANT:
            column = rows.column(index)
            micros = column.cast(pa.int64())
            inside = pc.and_(pc.greater_equal(micros, _FIRST), pc.less_equal(micros, _LAST))
            rows = rows.set_column(index, field, pc.if_else(inside, column, pa.scalar(None, INSTANT)))
    return rows
