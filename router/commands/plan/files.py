"""Files of records: lines as ``emit`` writes and ``match`` takes them, or cases of ``xrouter test``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from catalog.documents.fetching import CASES
from catalog.errors import RecordError
from catalog.parsing.regular import open_input
from router.commands.plan.chunks import BYTES, ROWS, Place
from router.commands.test.cases import read_cases
from router.commands.test.judging import letter_of_entry
from router.errors import RouterError
from router.judging.chunk import Chunk
from router.judging.judging import INBOX_COLUMNS
from router.letters.letter import Letter
from router.matching.records import entry_of
from router.replay.rows import rows_of

MAX_LINE: Final = 64 * 1024 * 1024
_HINT: Final = "records are lines as `xrouter emit` writes them and `xrouter match` takes them, or cases"


def file_of(path: Path, most: int, since: datetime | None) -> Place:
    """Return a file of records as a place; of cases (``*.cases.yaml``) their records are taken.

    Reading it raises:
        RouterError: it cannot be read, or a line is no record; names the line.
    """
    return Place(f"file {path}", partial(_chunks, path, most, since))


def _chunks(path: Path, most: int, since: datetime | None, place: Place) -> Iterator[Chunk]:
    letters = _letters(path, _last(path, most, place))
    if since is not None:
        letters = (each for each in letters if each.received is not None and each.received >= since)
    while some := list(islice(letters, ROWS)):
        yield from (Chunk("letters", batch) for batch in rows_of(some).select(list(INBOX_COLUMNS)).to_batches())


def _last(path: Path, most: int, place: Place) -> Iterable[tuple[str, bytes]]:
    """Return the last records of a file, each with its position."""
    kept: deque[tuple[str, bytes]] = deque()
    there = size = 0
    for position, line in _records(path):
        there += 1
        kept.append((position, line))
        size += len(line)
        while len(kept) > most or (size > BYTES and len(kept) > 1):
            size -= len(kept.popleft()[1])
    if there > len(kept):
        place.notes.append(f"the last {len(kept)} of its {there} records were read")
    elif there < most:
        place.notes.append(f"it has no more than {there}" if there else "it is empty")
    return kept


def _records(path: Path) -> Iterator[tuple[str, bytes]]:
    if CASES in path.suffixes:
        for case in (case for file in read_cases([path]) for case in file.cases):
            yield f"{path}: {case.name}", case.record
        return
    try:
        with open_input(path) as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise RouterError(f"{path}:{number}: a line of more than {MAX_LINE} bytes is no record", hint=_HINT)
                if line.strip():
                    yield f"{path}:{number}", line
    except OSError as error:
        raise RouterError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error


def _letters(path: Path, records: Iterable[tuple[str, bytes]]) -> Iterator[Letter]:
    for number, (position, line) in enumerate(records):
        try:
            yield replace(letter_of_entry(entry_of(number, line)[0]), position=position)
        except RecordError as error:
            raise RouterError(f"{position}: {error}", hint=_HINT) from error
