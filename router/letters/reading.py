"""Reading dead letters back from the sinks that took them, as a stream.

Every sink gives the same letter for the same record, but for its name (and for texts that a header's cap cut off).
Reading gives the letters that were there when it began, and perhaps later ones; sinks may be written to meanwhile.
Letters that retention removes meanwhile are left out.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import LocalFileSystem

from router.errors import ConfigError, SinkError
from router.letters import stores
from router.letters.letter import Letter
from router.settings import JsonLinesSink, KafkaSink, Settings, TableSink, letter_sinks
from router.sinks.jsonlines import DEAD_LETTER
from router.sinks.tables.head import dataset_of

_ID: Final = re.compile(r"[0-9a-f]{32}")


def read_letters(settings: Settings, *, sinks: Sequence[str] = (), bodies: bool = True) -> Iterator[Letter]:
    """Yield the dead letters of these sinks (none: all that can be read back), each id once, oldest first per sink.

    Without *bodies*, tables are not asked for them, which is much faster; letters may then have none.

    Raises:
        ConfigError: a sink is not one of dead letters, or cannot be read back; raised at once, before the first letter.
        SinkError: a sink cannot be read now.
    """
    return _once(settings, readable_sinks(settings, sinks), bodies)


def readable_sinks(settings: Settings, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the sinks to read dead letters from.

    Raises:
        ConfigError: one of *wanted* takes no dead letters or cannot be read back, or no sink at all can.
    """
    takers = letter_sinks(settings)
    readable = tuple(name for name in takers if settings.sinks[name].readable)
    others = (
        f"read {', '.join(readable)} instead" if readable else "add a table, a folder or a topic to dead_letters.sinks"
    )
    for name in wanted:
        if name not in takers:
            raise ConfigError(f"sink {name} takes no dead letters", key="dead_letters.sinks", hint=others)
        if name not in readable:
            raise ConfigError(f"dead letters in sink {name} cannot be read back", key=f"sinks.{name}", hint=others)
    if not readable:
        names = ", ".join(takers)
        raise ConfigError(f"dead letters in {names} cannot be read back", key="dead_letters.sinks", hint=others)
    return tuple(dict.fromkeys(wanted)) or readable


def _once(settings: Settings, names: Iterable[str], bodies: bool) -> Iterator[Letter]:
    # Ids are 32 hexadecimal digits; as integers they take a third of the room.
    seen: set[int | str] = set()
    for name in names:
        for letter in _read(name, settings, bodies):
            key = _compact(letter.id)
            if key not in seen:
                seen.add(key)
                yield letter


def _read(name: str, settings: Settings, bodies: bool) -> Iterator[Letter]:
    sink = settings.sinks[name]
    read = resolve_name(sink.reader)
    return cast(Iterator[Letter], read(name, sink, Path(settings.state) / "spill", bodies=bodies))


def _compact(letter: str) -> int | str:
    return int(letter, 16) if _ID.fullmatch(letter) else letter


# The newest dead letters, without reading all there are: what a page shows that is looked at again and again.
#
# Of a table the files with the newest letters are looked at, by what its log says of them; of a folder the newest
# files; of topics the ends of their partitions. How much is looked at is bounded, so that of very many letters written
# at the same time any may be shown.

LOOK_ROWS: Final = 50_000
"""Rows of a table whose times are looked at."""
LOOK_FILES: Final = 20
"""Files of a table or folder that are opened."""
LOOK_BYTES: Final = 4 * 2**20
"""Bytes at the end of a file of lines that are read."""
LOOK_OFFSETS: Final = 200
"""Records at the end of a partition that are read."""
_ROWS: Final = 16
"""Rows with bodies in memory at a time."""
_UNKNOWN: Final = (2**63, 0)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_KEY_COLUMNS: Final = ["letter", "failed"]
_HINT: Final = "`xrouter dead-letters show` looks through all there are"
Wanted = Callable[[list[tuple[datetime, str]]], set[str]]
"""Chooses ids of the letters that were looked at, each with the time it was written."""


def latest_letters(settings: Settings, most: int) -> list[Letter]:
    """Return the newest letters, newest first, whole; at most *most*.

    Raises:
        RouterError: no sink of dead letters can be read back, or one cannot be read now.
    """
    return _looked_at(settings, lambda looked: {letter for _, letter in heapq.nlargest(most, looked)})[:most]


def recent_letter(settings: Settings, letter: str) -> Letter:
    """Return a letter by its id, if it is among those that are looked at.

    Raises:
        LookupError: it is not.
        RouterError: as :func:`latest_letters`.
    """
    letters = _looked_at(settings, lambda looked: {letter} & {each for _, each in looked})
    if not letters:
        raise LookupError(f"this dead letter is not among the newest; {_HINT}")
    return letters[0]


def _looked_at(settings: Settings, wanted: Wanted) -> list[Letter]:
    letters: dict[str, Letter] = {}
    for name in readable_sinks(settings):
        sink = settings.sinks[name]
        if not sink.latest:
            continue
        for letter in resolve_name(sink.latest)(name, sink, Path(settings.state) / "spill", wanted):
            letters.setdefault(letter.id, letter)
    return sorted(letters.values(), key=lambda each: (each.failed or _BEGINNING, each.id), reverse=True)


def in_table(name: str, sink: TableSink, spill: Path, wanted: Wanted) -> list[Letter]:
    """Return the wanted ones of the newest letters in a table.

    Raises:
        SinkError: it cannot be read.
    """
    try:
        parquet = sink.format == "parquet"
        fragments, schema = _of_folder(Path(sink.path)) if parquet else _of_delta(name, sink.path)
        return _rows(name, fragments, schema, wanted)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise SinkError(name, f"{sink.path} cannot be read: {error}", hint="check the path and its rights") from error


def _of_delta(name: str, uri: str) -> tuple[Iterable[Any], pa.Schema]:
    if not DeltaTable.is_deltatable(uri):
        return (), DEAD_LETTER
    table = DeltaTable(uri)
    whole = dataset_of(table)
    stores.check_columns(name, uri, whole.schema)
    # The log knows the newest time in each file, and when it was added: only the newest files are opened.
    files = pa.table(table.get_add_actions(flatten=True))
    failed = files.column("max.failed").to_pylist() if "max.failed" in files.schema.names else [None] * files.num_rows
    added = files.column("modification_time").to_pylist()
    paths = files.column("path").to_pylist()
    newest = {path: (_micros(at), since) for path, at, since in zip(paths, failed, added, strict=True)}
    fragments = whole.get_fragments()
    return heapq.nlargest(LOOK_FILES, fragments, key=lambda each: newest.get(each.path, _UNKNOWN)), whole.schema


def _micros(at: datetime | None) -> int:
    """Return an instant as microseconds; a file for which the log has none is looked at first."""
    if at is None:
        return _UNKNOWN[0]
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _of_folder(folder: Path) -> tuple[Iterable[Any], pa.Schema]:
    files = _newest_files(folder, stores.PARQUET)
    form = pads.ParquetFileFormat()
    return [form.make_fragment(str(path), LocalFileSystem()) for path in files], DEAD_LETTER


def _rows(name: str, fragments: Iterable[Any], schema: pa.Schema, wanted: Wanted) -> list[Letter]:
    looked: list[tuple[datetime, str]] = []
    groups: list[Any] = []
    for fragment in fragments:
        for group in reversed(fragment.split_by_row_group()):
            if len(looked) >= LOOK_ROWS:
                break
            groups.append(group)
            for batch in group.to_batches(schema=schema, columns=_KEY_COLUMNS):
                times = batch.column("failed").cast(DEAD_LETTER.field("failed").type).cast(pa.int64()).to_pylist()
                ids = batch.column("letter").to_pylist()
                looked += ((stores.moment(at) or _BEGINNING, letter) for at, letter in zip(times, ids, strict=True))
    chosen = wanted(looked)
    return list(_whole(name, groups, schema, chosen)) if chosen else []


def _whole(name: str, groups: Iterable[Any], schema: pa.Schema, chosen: set[str]) -> Iterator[Letter]:
    only = pads.field("letter").isin(pa.array(sorted(chosen), pa.string()))
    for group in groups:
        for batch in group.to_batches(schema=schema, columns=DEAD_LETTER.names, filter=only, batch_size=_ROWS):
            yield from stores.letters_of(batch, name)


def in_files(name: str, sink: JsonLinesSink, spill: Path, wanted: Wanted) -> list[Letter]:
    """Return the wanted ones of the letters at the ends of the newest files of lines.

    Raises:
        SinkError: the folder cannot be read.
    """
    letters: list[Letter] = []
    try:
        for path in _newest_files(Path(sink.path), stores.SUFFIX):
            with path.open("rb") as file:
                start = max(0, path.stat().st_size - LOOK_BYTES)
                file.seek(start)
                lines = file.read(LOOK_BYTES).split(b"\n")[1 if start else 0 :]
            whole = ((None, line) for line in lines if line.strip())
            letters += stores.letters_of_lines(whole, name, path)
            if len(letters) >= LOOK_OFFSETS:
                break
    except OSError as error:
        raise SinkError(name, f"{sink.path} cannot be read: {error.strerror}", hint="check its rights") from error
    return _chosen(letters, wanted)


def in_topics(name: str, sink: KafkaSink, spill: Path, wanted: Wanted) -> list[Letter]:
    """Return the wanted ones of the letters at the ends of the partitions of a sink's topics.

    Raises:
        BrokerUnreachable: no broker answers.
    """

    def letters() -> Iterator[Letter]:
        return stores.read_topics(name, sink, spill, last=LOOK_OFFSETS)

    # They are read twice: whole, all of them together may be larger than memory.
    chosen = wanted([(each.failed or _BEGINNING, each.id) for each in letters()])
    return [each for each in letters() if each.id in chosen] if chosen else []


def _chosen(letters: Sequence[Letter], wanted: Wanted) -> list[Letter]:
    chosen = wanted([(each.failed or _BEGINNING, each.id) for each in letters])
    return [each for each in letters if each.id in chosen]


def _newest_files(folder: Path, suffix: str) -> list[Path]:
    """Return the newest files of a folder, newest first; hidden ones are half written."""
    if not folder.is_dir():
        return []
    dated: list[tuple[float, str, Path]] = []
    for path in folder.glob(f"*{suffix}"):
        if not path.name.startswith("."):
            try:
                dated.append((path.stat().st_mtime, path.name, path))
            except FileNotFoundError:
                continue  # Retention removed it meanwhile.
    return [path for _, _, path in heapq.nlargest(LOOK_FILES, dated)]
