"""Removing old letters from a folder of batch files, Parquet or JSON lines: whole files.

A repeated batch is known by the name of its file. So the last file of each app is not removed but emptied, its name
kept; a crash in between leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pyarrow.parquet as pq

from bindings.private import sync_path
from router.errors import SinkError
from router.letters.jsonlines_reading import SUFFIX as JSON_LINES
from router.letters.jsonlines_reading import first_failed as first_of_lines
from router.letters.jsonlines_reading import letter_of_line
from router.letters.table_reading import PARQUET, first_failed, ordered_files
from router.settings import JsonLinesSink
from router.sinks.forms import DEAD_LETTER
from router.sinks.tables.files import refused, write_atomically


@dataclass(frozen=True, slots=True)
class OldFiles:
    """Files of a sink that are to go; ``last`` are those of them whose names must stay."""

    sink: str
    folder: Path
    files: tuple[Path, ...]
    last: frozenset[Path]
    letters: int
    size: int

    def ids(self) -> Iterator[str]:
        """Yield the ids of the letters in them."""
        for path in self.files:
            yield from _ids(path)

    def remove(self) -> None:
        """Remove the files, or empty those whose names must stay.

        Raises:
            SinkError: the file system refuses; what is gone then stays gone, and the next purge goes on.
        """
        try:
            for path in self.files:
                if path in self.last:
                    write_atomically(path, _fill(path))
                else:
                    path.unlink(missing_ok=True)
            sync_path(self.folder)
        except OSError as error:
            raise refused(self.sink, str(self.folder), error) from error


def old_lines(name: str, sink: JsonLinesSink, *, before: datetime | None, most: int) -> OldFiles | None:
    """Return what may go of the letters in the JSON lines of a sink; see :func:`old_files`."""
    return old_files(name, Path(sink.path), JSON_LINES, before=before, most=most)


def old_files(sink: str, folder: Path, suffix: str, *, before: datetime | None, most: int) -> OldFiles | None:
    """Return the files with letters written before a time, and the oldest until the rest takes *most* bytes (0: any).

    None when there are none.

    Raises:
        SinkError: the folder cannot be read.
    """
    written = first_failed if suffix == PARQUET else first_of_lines
    try:
        files = ordered_files(folder, suffix, written)
        sizes = {path: path.stat().st_size for path in files}
        total = sum(sizes.values())
        chosen: list[Path] = []
        for path in files:
            if (before is not None and _age(path, written) < before) or (most and total > most):
                total -= sizes[path]
                chosen.append(path)
        last = frozenset(_last_of_each_app(files))
        counts = {path: _count(path) for path in chosen}
    except OSError as error:
        raise SinkError(
            sink, f"{folder} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error
    doomed = tuple(path for path in chosen if counts[path] or path not in last)
    if not doomed:
        return None
    return OldFiles(sink, folder, doomed, last, sum(counts.values()), sum(sizes[path] for path in doomed))


def _age(path: Path, written: Callable[[Path], datetime | None]) -> datetime:
    """Return when the letters of a file were written; the file's own time where they do not say."""
    return written(path) or datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _last_of_each_app(files: list[Path]) -> list[Path]:
    last: dict[str, Path] = {}
    for path in sorted(files, key=lambda each: each.name):
        last[path.stem.rpartition("-")[0]] = path
    return list(last.values())


def _count(path: Path) -> int:
    if path.suffix == PARQUET:
        return int(pq.read_metadata(path).num_rows)
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _ids(path: Path) -> Iterator[str]:
    if path.suffix == PARQUET:
        for batch in pq.ParquetFile(path).iter_batches(columns=["letter"]):
            yield from batch.column("letter").to_pylist()
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield letter_of_line(line, "").id
            except ValueError:
                continue  # No letter, hence nothing that the ledger knows.


def _fill(path: Path) -> Callable[[BinaryIO], None]:
    """Return what makes a file of that kind without letters."""

    def fill(file: BinaryIO) -> None:
        if path.suffix != JSON_LINES:
            pq.write_table(DEAD_LETTER.empty_table(), file)

    return fill
