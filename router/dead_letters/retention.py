"""Remove dead letters by age or total size, from sinks that support it.

Letters are removed from tables and folders; for Kafka topics, the broker's retention applies. Nothing is removed while
a replay is running or unfinished, since it must find its letters again. Ledger entries are deleted after the letters: a
crash in between leaves entries without letters, but never reopens a letter that was replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from bindings.background import Background
from bindings.private_files import sync_path
from router.dead_letters.reading import read_dead_letters, readable_sinks
from router.dead_letters.stores import FAILED, PARQUET, find_line_time, find_row_time, list_files, parse_line
from router.dead_letters.stores import SUFFIX as JSON_LINES
from router.errors import RouterError, SinkError, StateError
from router.logs import get_logger
from router.rendering.texts import INSTANT
from router.settings import JsonLinesSink, Settings, TableSink, dead_letter_sinks
from router.sinks.jsonlines import DEAD_LETTER
from router.sinks.tables.head import hold_rewrite_lock, open_dataset, to_sink_error, write_atomically
from router.state.ledger import LetterLedger

# Removing old letters from a folder of batch files, Parquet or JSON lines: whole files.
#
# The name of a file identifies a repeated batch. So the last file of each app is emptied, not removed; a crash in
# between leaves it unchanged.


@dataclass(frozen=True, slots=True)
class OldFiles:
    """Files of a sink to remove; ``last`` are the last file of each app, which are emptied instead."""

    sink: str
    folder: Path
    files: tuple[Path, ...]
    last: frozenset[Path]
    letters: int
    size: int

    def iter_ids(self) -> Iterator[str]:
        """Yield the ids of the dead letters in these files."""
        for path in self.files:
            yield from _iter_file_ids(path)

    def remove(self) -> None:
        """Remove the files, or empty the last of each app.

        Raises:
            SinkError: a file cannot be removed; the next purge continues.
        """
        try:
            for path in self.files:
                if path in self.last:
                    write_atomically(path, _make_empty_writer(path))
                else:
                    path.unlink(missing_ok=True)
            sync_path(self.folder)
        except OSError as error:
            raise to_sink_error(self.sink, str(self.folder), error) from error


def find_old_lines(name: str, sink: JsonLinesSink, *, before: datetime | None, limit: int) -> OldFiles | None:
    """Return the dead letters to remove from the JSON lines of a sink; see :func:`find_old_files`."""
    return find_old_files(name, Path(sink.path), JSON_LINES, before=before, limit=limit)


def find_old_files(sink: str, folder: Path, suffix: str, *, before: datetime | None, limit: int) -> OldFiles | None:
    """Return the files written before a time, and the oldest until the rest has *limit* bytes (0: no limit).

    None if there are none.

    Raises:
        SinkError: the folder cannot be read.
    """
    written = find_row_time if suffix == PARQUET else find_line_time
    try:
        files = list_files(folder, suffix, written)
        sizes = {path: path.stat().st_size for path in files}
        total = sum(sizes.values())
        chosen: list[Path] = []
        for path in files:
            if (before is not None and _find_time_written(path, written) < before) or (limit and total > limit):
                total -= sizes[path]
                chosen.append(path)
        last = frozenset(_find_last_of_each_app(files))
        counts = {path: _count_letters(path) for path in chosen}
    except OSError as error:
        raise SinkError(sink, f"{folder} cannot be read: {error.strerror}", hint="check the permissions") from error
    old = tuple(path for path in chosen if counts[path] or path not in last)
    if not old:
        return None
    return OldFiles(sink, folder, old, last, sum(counts.values()), sum(sizes[path] for path in old))


def _find_time_written(path: Path, written: Callable[[Path], datetime | None]) -> datetime:
    """Return when the dead letters of a file were written; if unknown, the file's modification time."""
    return written(path) or datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _find_last_of_each_app(files: list[Path]) -> list[Path]:
    last: dict[str, Path] = {}
    for path in sorted(files, key=lambda each: each.name):
        last[path.stem.rpartition("-")[0]] = path
    return list(last.values())


def _count_letters(path: Path) -> int:
    if path.suffix == PARQUET:
        return int(pq.read_metadata(path).num_rows)
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _iter_file_ids(path: Path) -> Iterator[str]:
    if path.suffix == PARQUET:
        for batch in pq.ParquetFile(path).iter_batches(columns=["letter"]):
            yield from batch.column("letter").to_pylist()
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield parse_line(line, "").id
            except ValueError:
                continue  # Not a dead letter, so it has no ledger entry.


def _make_empty_writer(path: Path) -> Callable[[BinaryIO], None]:
    """Return a function that writes an empty file of the same kind."""

    def write_empty(file: BinaryIO) -> None:
        if path.suffix != JSON_LINES:
            pq.write_table(DEAD_LETTER.empty_table(), file)

    return write_empty


# Removing old letters from a Delta table in one atomic delete, concurrently with other writers.

_ATTEMPTS: Final = 5
_TICK: Final = timedelta(milliseconds=1)
"""Resolution of the times in a table's statistics."""
_HINT: Final = "check the permissions; nothing is lost, and the next purge retries"


@dataclass(frozen=True, slots=True)
class OldRows:
    """The dead letters of a table written before ``before``; ``keep`` is how long replaced files stay."""

    sink: str
    uri: str
    before: datetime
    keep: timedelta
    letters: int
    size: int

    def iter_ids(self) -> Iterator[str]:
        """Yield the ids of these dead letters."""
        try:
            rows = open_dataset(DeltaTable(self.uri)).scanner(columns=["letter"], filter=_build_age_filter(self.before))
            for batch in rows.to_batches():
                yield from batch.column("letter").to_pylist()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise _removal_error(self.sink, self.uri, error) from error

    def remove(self) -> None:
        """Delete the dead letters, and remove replaced files that are older than ``keep``.

        Raises:
            SinkError: the table cannot be changed now; it is unchanged.
        """
        try:
            with hold_rewrite_lock(self.uri):
                self._delete_and_vacuum()
        except OSError as error:
            raise _removal_error(self.sink, self.uri, error) from error

    def _delete_and_vacuum(self) -> None:
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
                raise _removal_error(self.sink, self.uri, error) from error
        assert last is not None
        raise _removal_error(self.sink, self.uri, last) from last


def find_in_table(name: str, sink: TableSink, *, before: datetime | None, limit: int) -> OldRows | OldFiles | None:
    """Return what to remove from the table of a sink; see :func:`find_old_rows` and :func:`find_old_files`."""
    if sink.format == "parquet":
        return find_old_files(name, Path(sink.path), PARQUET, before=before, limit=limit)
    return find_old_rows(name, sink.path, sink.keep_replaced, before=before, limit=limit)


def find_old_rows(sink: str, uri: str, keep: timedelta, *, before: datetime | None, limit: int) -> OldRows | None:
    """Return the dead letters written before a time, and the oldest until the rest has *limit* bytes (0: no limit).

    None if there are none. Sizes are those of whole files of the table.

    Raises:
        SinkError: the table cannot be read.
    """
    try:
        if not DeltaTable.is_deltatable(uri):
            return None
        table = DeltaTable(uri)
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        bounds = [bound for bound in (before, _find_size_cutoff(files, limit)) if bound is not None]
        if not bounds:
            return None
        bound = max(bounds)
        letters = open_dataset(table).count_rows(filter=_build_age_filter(bound))
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise _removal_error(sink, uri, error) from error
    size = sum(file["size_bytes"] for file in files if _max_time(file) is not None and _max_time(file) < bound)
    return OldRows(sink, uri, bound, keep, letters, size) if letters else None


def _find_size_cutoff(files: list[dict[str, Any]], limit: int) -> datetime | None:
    """Return the time before which dead letters must be removed to get below the size limit; None if all fit."""
    total = sum(file["size_bytes"] for file in files)
    bound: datetime | None = None
    if not limit:
        return None
    for file in sorted((file for file in files if _max_time(file) is not None), key=lambda file: str(_max_time(file))):
        if total <= limit:
            break
        total -= file["size_bytes"]
        bound = _max_time(file) + _TICK
    return bound


def _max_time(file: dict[str, Any]) -> Any:
    """Return the time of the newest dead letter of a file from the table's statistics."""
    return file.get(f"max.{FAILED}")


def _build_age_filter(before: datetime) -> Any:
    return pc.field(FAILED) < pa.scalar(before, INSTANT)


def _removal_error(sink: str, uri: str, error: Exception) -> SinkError:
    lines = str(error).split("\n") if str(error) else [type(error).__name__]
    return SinkError(sink, f"{uri}: old dead letters cannot be removed: {lines[0]}", hint=_HINT)


SPILL: Final = "spill"
_CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Limits of retention; 0 means no limit. See :mod:`router.settings.model`."""

    age: timedelta = timedelta(0)
    size: int = 0


@dataclass(frozen=True, slots=True)
class RemovalCount:
    """How many dead letters were (or would be) removed from a sink; for spill files, ``sink`` is ``spill``."""

    sink: str
    letters: int
    bytes: int


def purge(
    settings: Settings, limits: RetentionLimits, *, now: datetime | None = None, dry_run: bool = False
) -> list[RemovalCount]:
    """Remove dead letters beyond the limits, and return the counts of each sink that had any.

    With *dry_run* nothing is removed.

    Raises:
        StateError: a replay is running or unfinished, or the ledger cannot be used.
        SinkError: a sink cannot be read or changed now; others may have been.
    """
    before = None if not limits.age else (now or datetime.now(UTC)) - limits.age
    root = Path(settings.state)
    if dry_run:
        return [*_to_counts(_find_old(settings, before, limits.size)), *_remove_spills(root, before, remove=False)]
    with LetterLedger.open(root) as ledger, ledger.exclusive():
        if ledger.pending() is not None:
            raise StateError(
                "a replay is unfinished, so no dead letter can be removed",
                hint="run `xrouter dead-letters replay` again to finish it",
            )
        removed: list[RemovalCount] = []
        known: set[str] = set()
        for old in _find_old(settings, before, limits.size):
            known.update(_iter_known_ids(old.iter_ids(), ledger))
            old.remove()
            removed += _to_counts([old])
        _forget_removed(settings, ledger, known)
        if removed or _has_topics(settings):
            _unblock_keys(settings, ledger)
    return [*removed, *_remove_spills(root, before, remove=True)]


def _find_old(settings: Settings, before: datetime | None, limit: int) -> Iterator[OldRows | OldFiles]:
    """Yield the dead letters beyond the limits, per sink."""
    for name in dead_letter_sinks(settings):
        sink = settings.sinks[name]
        if sink.retention and sink.readable:
            excess: OldRows | OldFiles | None = resolve_name(sink.retention)(name, sink, before=before, limit=limit)
            if excess is not None:
                yield excess


def _to_counts(old: Iterable[OldRows | OldFiles]) -> list[RemovalCount]:
    return [RemovalCount(each.sink, each.letters, each.size) for each in old]


def _iter_known_ids(ids: Iterator[str], ledger: LetterLedger) -> Iterator[str]:
    """Yield the ids that have a ledger entry."""
    while some := list(islice(ids, _CHUNK)):
        yield from ledger.entries(some)


def _forget_removed(settings: Settings, ledger: LetterLedger, ids: set[str]) -> None:
    """Delete the ledger entries of removed dead letters, unless a topic or another sink may still have them."""
    if not ids or _has_topics(settings):
        return
    readable = readable_sinks(settings)
    if len(readable) > 1:
        ids = ids - {
            letter.id for letter in read_dead_letters(settings, sinks=readable, bodies=False) if letter.id in ids
        }
    ledger.forget(ids)


def _unblock_keys(settings: Settings, ledger: LetterLedger) -> None:
    """Unblock keys of dead letters that no sink has, including letters that a broker removed.

    A letter that is not written yet may be among them; its key is blocked again when it is written.
    """
    left = ledger.order.positions()
    if left:
        for letter in read_dead_letters(settings, bodies=False):
            left.pop(letter.id, None)
        ledger.order.remove_gone(left)


def _has_topics(settings: Settings) -> bool:
    return any(settings.sinks[name].topics is not None for name in dead_letter_sinks(settings))


def _remove_spills(root: Path, before: datetime | None, *, remove: bool) -> list[RemovalCount]:
    """Remove old spill files of dead letters in topics; the broker's retention should have the same age."""
    if before is None:
        return []
    files = [path for path in (root / SPILL).glob("*.json") if path.stat().st_mtime < before.timestamp()]
    size = sum(path.stat().st_size for path in files)
    if remove:
        for path in files:
            path.unlink(missing_ok=True)
    return [RemovalCount(SPILL, len(files), size)] if files else []


# Retention of dead letters in a running router, in a separate thread.

INTERVAL_SECONDS: Final = 600.0
_STOP_SECONDS: Final = 5.0
_log = get_logger()


class RetentionThread:
    """Removes dead letters beyond ``dead_letters.retention``: on entry, then every ten minutes until exit.

    Without limits there is no thread. Errors are logged and retried; the router continues. A removal interrupted
    by the end of the process leaves each table consistent, and the next one completes it.
    """

    def __init__(self, settings: Settings, *, interval: float = INTERVAL_SECONDS) -> None:
        self._settings = settings
        self._interval = interval
        self._stop = threading.Event()
        self._thread = Background("dead-letter-retention", self._purge_periodically)

    def __enter__(self) -> Self:
        if self._settings.dead_letters.retention.on:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.ask_to_end()
        # A purge of a large table must not delay shutdown.
        self._thread.join(_STOP_SECONDS)

    def _purge_periodically(self) -> None:
        retention = self._settings.dead_letters.retention
        limits = RetentionLimits(retention.age, retention.size)
        while not self._stop.is_set():
            try:
                for removed in purge(self._settings, limits):
                    _log.info("dead letters removed", sink=removed.sink, letters=removed.letters, bytes=removed.bytes)
            except (RouterError, OSError) as error:
                _log.warning("dead letters could not be removed; will retry", problem=str(error))
            self._stop.wait(self._interval)
