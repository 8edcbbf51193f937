"""Removing old letters from a Delta table: by one delete; writers beside it go on, and readers see all or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from router.errors import SinkError
from router.letters.folder_retention import OldFiles, old_files
from router.letters.table_reading import FAILED, PARQUET
from router.rendering.instants import INSTANT
from router.settings import TableSink
from router.sinks.tables.datasets import dataset_of
from router.sinks.tables.files import sole_rewriter

_ATTEMPTS: Final = 5
_TICK: Final = timedelta(milliseconds=1)
"""Resolution of the times in a table's statistics."""
_HINT: Final = "check the path and its permissions; nothing is lost, and the next purge tries again"


@dataclass(frozen=True, slots=True)
class OldRows:
    """The letters of a table that were written before ``before``; ``keep`` is how long replaced files stay."""

    sink: str
    uri: str
    before: datetime
    keep: timedelta
    letters: int
    size: int

    def ids(self) -> Iterator[str]:
        """Yield their ids."""
        try:
            rows = dataset_of(DeltaTable(self.uri)).scanner(columns=["letter"], filter=_older(self.before))
            for batch in rows.to_batches():
                yield from batch.column("letter").to_pylist()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise _refused(self.sink, self.uri, error) from error

    def remove(self) -> None:
        """Remove them, and files that were replaced long enough ago for nobody to read them any more.

        Raises:
            SinkError: the table cannot be changed now; nothing of it was.
        """
        try:
            with sole_rewriter(self.uri):
                self._remove()
        except OSError as error:
            raise _refused(self.sink, self.uri, error) from error

    def _remove(self) -> None:
        last: DeltaError | None = None
        for _ in range(_ATTEMPTS):
            try:
                table = DeltaTable(self.uri)
                table.delete(f"{FAILED} < '{self.before.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'")
                hours = int(self.keep.total_seconds() // 3600)
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
                return
            except CommitFailedError as error:
                last = error  # A batch or a compaction committed first.
            except (DeltaError, OSError) as error:
                raise _refused(self.sink, self.uri, error) from error
        assert last is not None
        raise _refused(self.sink, self.uri, last) from last


def old_in_table(name: str, sink: TableSink, *, before: datetime | None, most: int) -> OldRows | OldFiles | None:
    """Return what may go of the letters in the table of a sink; see :func:`old_rows` and :func:`old_files`."""
    if sink.format == "parquet":
        return old_files(name, Path(sink.path), PARQUET, before=before, most=most)
    return old_rows(name, sink.path, sink.keep_replaced, before=before, most=most)


def old_rows(sink: str, uri: str, keep: timedelta, *, before: datetime | None, most: int) -> OldRows | None:
    """Return the letters written before a time, and the oldest until the rest takes at most *most* bytes (0: any).

    None when there are none. What is too much is counted in whole files, as the table has them now.

    Raises:
        SinkError: the table cannot be read.
    """
    try:
        if not DeltaTable.is_deltatable(uri):
            return None
        table = DeltaTable(uri)
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        bounds = [bound for bound in (before, _beyond(files, most)) if bound is not None]
        if not bounds:
            return None
        bound = max(bounds)
        letters = dataset_of(table).count_rows(filter=_older(bound))
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise _refused(sink, uri, error) from error
    size = sum(file["size_bytes"] for file in files if _newest(file) is not None and _newest(file) < bound)
    return OldRows(sink, uri, bound, keep, letters, size) if letters else None


def _beyond(files: list[dict[str, Any]], most: int) -> datetime | None:
    """Return the time before which letters must go so that the others fit; None when all fit."""
    total = sum(file["size_bytes"] for file in files)
    bound: datetime | None = None
    if not most:
        return None
    for file in sorted((file for file in files if _newest(file) is not None), key=lambda file: str(_newest(file))):
        if total <= most:
            break
        total -= file["size_bytes"]
        bound = _newest(file) + _TICK
    return bound


def _newest(file: dict[str, Any]) -> Any:
    """Return when the last letter of a file was written, by the table's statistics."""
    return file.get(f"max.{FAILED}")


def _older(before: datetime) -> Any:
    return pc.field(FAILED) < pa.scalar(before, INSTANT)


def _refused(sink: str, uri: str, error: Exception) -> SinkError:
    lines = str(error).split("\n") if str(error) else [type(error).__name__]
    return SinkError(sink, f"{uri}: old letters cannot be removed: {lines[0]}", hint=_HINT)
