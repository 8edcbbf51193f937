"""Dead letters out of tables: Delta and Parquet, a few hundred rows in memory at a time.

A Delta table is read at the version it has when reading begins: later commits, compaction among them, do not disturb.
Its files, like those of a Parquet folder, hold a batch each and are read by the time that their letters were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from router.errors import SinkError
from router.letters.letter import Letter, parse_native, parse_nearest
from router.logs import get_logger
from router.settings import TableSink
from router.sinks.forms import DEAD_LETTER
from router.sinks.tables.datasets import dataset_of

ROWS: Final = 256
"""Rows in memory at a time; each may have a body of megabytes."""
FAILED: Final = "failed"
PARQUET: Final = ".parquet"
BODY: Final = "body"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HINT: Final = "check the path and its permissions, and that the table was written by this router"
_log = get_logger()


def read_table(name: str, sink: TableSink, spill: Path, *, bodies: bool = True) -> Iterator[Letter]:
    """Yield the letters in the table of a sink, which is no URL where it is one of Parquet files."""
    if sink.format == "parquet":
        return read_parquet(name, Path(sink.path), bodies=bodies)
    return read_delta(name, sink.path, bodies=bodies)


def read_delta(sink: str, uri: str, *, bodies: bool = True) -> Iterator[Letter]:
    """Yield the letters of a Delta table, oldest file first; none when there is no table yet.

    Raises:
        SinkError: the table cannot be read, or is not one of dead letters.
    """
    try:
        if not DeltaTable.is_deltatable(uri):
            return
        whole = dataset_of(DeltaTable(uri))
        check_columns(sink, uri, whole.schema)
        yield from _in_order(sink, list(whole.get_fragments()), whole.schema, bodies)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise SinkError(sink, f"{uri} cannot be read: {error}", hint=_HINT) from error


def read_parquet(sink: str, folder: Path, *, bodies: bool = True) -> Iterator[Letter]:
    """Yield the letters of a folder of Parquet files, oldest file first; none when there is no folder yet.

    Raises:
        SinkError: a file cannot be read, or does not hold dead letters.
    """
    try:
        for path in ordered_files(folder, PARQUET, first_failed):
            try:
                whole = pads.dataset(str(path), format="parquet")
            except FileNotFoundError:
                continue  # Retention removed it meanwhile.
            check_columns(sink, str(path), whole.schema)
            yield from _letters(sink, whole, bodies)
    except (OSError, pa.ArrowException) as error:
        raise SinkError(sink, f"{folder} cannot be read: {error}", hint=_HINT) from error


def ordered_files(folder: Path, suffix: str, first: Callable[[Path], datetime | None]) -> list[Path]:
    """Return the batch files of a folder by the time that *first* says, then by name; hidden ones are half written."""
    if not folder.is_dir():
        return []
    files = [path for path in folder.glob(f"*{suffix}") if not path.name.startswith(".")]
    return sorted(files, key=lambda path: (first(path) or _EPOCH, path.name))


def first_failed(path: Path) -> datetime | None:
    """Return when the first letters of a Parquet file were written, by its statistics; None when they do not say."""
    try:
        return _least(pq.read_metadata(path))
    except FileNotFoundError:
        return None


def moment(microseconds: int | None) -> datetime | None:
    """Return an instant; None for one that no ``datetime`` can hold."""
    if microseconds is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def letter_of(row: Mapping[str, Any], sink: str) -> Letter:
    """Return the letter of a row whose instants are microseconds.

    Raises:
        ValueError: its native record is no JSON object.
    """
    return Letter(
        id=row["letter"] or "",
        reason=row["reason"] or "",
        detail=row["detail"] or "",
        nearest=parse_nearest(row["nearest"]),
        endpoint=row["endpoint"],
        protocol=row["protocol"] or "",
        native=parse_native(row["native"]),
        body=row.get(BODY),
        epoch=row["epoch"] or "",
        position=row["position"] or "",
        received=moment(row["received"]),
        failed=moment(row["failed"]),
        attempts=row["attempts"] or 1,
        sink=sink,
    )


def _in_order(sink: str, fragments: list[Any], schema: pa.Schema, bodies: bool) -> Iterator[Letter]:
    """Read a table's files by the time of their first letters."""
    dated = [(_least(fragment.metadata) or _EPOCH, fragment.path, fragment) for fragment in fragments]
    for _, _, fragment in sorted(dated, key=lambda each: each[:2]):
        yield from _letters(sink, fragment, bodies, schema)


def _letters(sink: str, rows: Any, bodies: bool, schema: pa.Schema | None = None) -> Iterator[Letter]:
    columns = [name for name in DEAD_LETTER.names if bodies or name != BODY]
    options = {"columns": columns, "batch_size": ROWS, "batch_readahead": 1, "fragment_readahead": 1}
    scanner = rows.scanner(**options) if schema is None else rows.scanner(schema=schema, **options)
    for batch in scanner.to_batches():
        yield from letters_of(batch, sink)


def letters_of(batch: pa.RecordBatch, sink: str) -> Iterator[Letter]:
    """Yield the letters of these rows; a damaged one is left out and logged."""
    for row in _plain(batch).to_pylist():
        try:
            yield letter_of(row, sink)
        except ValueError as error:
            _log.warning("dead letter left out: it is damaged", sink=sink, letter=row["letter"], problem=str(error))


def _plain(batch: pa.RecordBatch) -> pa.Table:
    """Turn instants into microseconds: some that a table can hold are beyond Python's calendar."""
    table = pa.Table.from_batches([batch])
    for name in ("received", FAILED):
        at = table.schema.get_field_index(name)
        micros = table.column(at).cast(DEAD_LETTER.field(name).type).cast(pa.int64())
        table = table.set_column(at, name, micros)
    return table


def _least(metadata: pq.FileMetaData) -> datetime | None:
    """Return the least time of the column ``failed`` by the statistics of its row groups."""
    at = metadata.schema.to_arrow_schema().get_field_index(FAILED)
    minima: list[datetime] = []
    for group in range(metadata.num_row_groups if at >= 0 else 0):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            if chunk.path_in_schema == FAILED and chunk.statistics is not None and chunk.statistics.has_min_max:
                minima.append(chunk.statistics.min)
    return min((each if each.tzinfo else each.replace(tzinfo=UTC) for each in minima), default=None)


def check_columns(sink: str, place: str, schema: pa.Schema) -> None:
    """Make sure that a table is one of dead letters.

    Raises:
        SinkError: it lacks columns.
    """
    missing = [name for name in DEAD_LETTER.names if name not in schema.names]
    if missing:
        hint = "name the sink that dead letters go to, or move the table away"
        raise SinkError(sink, f"{place} is no table of dead letters: it lacks {', '.join(missing)}", hint=hint)
