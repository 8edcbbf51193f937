"""Dead letters out of a folder of JSON lines, one line in memory at a time."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from router.errors import SinkError
from router.letters.letter import Letter, parse_native, parse_nearest
from router.letters.table_reading import ordered_files
from router.logs import get_logger
from router.settings import JsonLinesSink
from router.state.instants import parse_instant

SUFFIX: Final = ".jsonl"
_HINT: Final = "check the path and its permissions"
_NULL: Final = msgspec.Raw(b"null")
_log = get_logger()


class _Line(msgspec.Struct):
    """The members of a line (JUDGING.md#what-comes-out); only the id is required."""

    letter: str
    reason: str | None = None
    detail: str | None = None
    nearest: msgspec.Raw = _NULL
    endpoint: str | None = None
    protocol: str | None = None
    native: msgspec.Raw = _NULL
    body: str | None = None
    epoch: str | None = None
    position: str | None = None
    received: str | None = None
    failed: str | None = None
    attempts: int | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


def read_lines(sink: str, folder: Path) -> Iterator[Letter]:
    """Yield the letters of a folder, oldest file first; none when there is no folder yet.

    A line that is no dead letter is left out and logged with its place.

    Raises:
        SinkError: the folder or a file of it cannot be read.
    """
    try:
        for path in ordered_files(folder, SUFFIX, first_failed):
            yield from _file(sink, path)
    except OSError as error:
        raise SinkError(sink, f"{folder} cannot be read: {error.strerror}", hint=_HINT) from error


def read_lines_of(name: str, sink: JsonLinesSink, spill: Path, *, bodies: bool = True) -> Iterator[Letter]:
    """Yield the letters in the files of a sink; see :func:`read_lines`."""
    return read_lines(name, Path(sink.path))


def first_failed(path: Path) -> datetime | None:
    """Return when the first letter of a file was written; None when it does not say."""
    try:
        with path.open("rb") as file:
            line = file.readline()
        form = msgspec.json.decode(line)
        return parse_instant(form.get("failed")) if isinstance(form, dict) else None
    except (FileNotFoundError, msgspec.DecodeError):
        return None  # Gone, or damaged; reading says so line by line.


def letter_of_line(line: bytes, sink: str) -> Letter:
    """Return the letter that a line holds.

    Raises:
        ValueError: it holds none.
    """
    try:
        form = _LINE.decode(line)
        body = None if form.body is None else base64.b64decode(form.body, validate=True)
    except (msgspec.DecodeError, binascii.Error) as error:
        raise ValueError(f"no dead letter: {error}") from error
    return Letter(
        id=form.letter,
        reason=form.reason or "",
        detail=form.detail or "",
        nearest=parse_nearest(_embedded(form.nearest)),
        endpoint=form.endpoint,
        protocol=form.protocol or "",
        native=parse_native(_embedded(form.native)),
        body=body,
        epoch=form.epoch or "",
        position=form.position or "",
        received=parse_instant(form.received),
        failed=parse_instant(form.failed),
        attempts=form.attempts or 1,
        sink=sink,
    )


def letters_of(lines: Iterable[tuple[int | None, bytes]], sink: str, path: Path) -> Iterator[Letter]:
    """Yield the letters of these lines of a file, with their numbers if known; one without is left out and logged."""
    for number, line in lines:
        try:
            yield letter_of_line(line, sink)
        except ValueError as error:
            _log.warning("line left out", sink=sink, file=str(path), line=number, problem=str(error))


def _file(sink: str, path: Path) -> Iterator[Letter]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return  # Retention removed it meanwhile.
    with file:
        yield from letters_of(enumerate(file, 1), sink, path)


def _embedded(raw: msgspec.Raw) -> str | None:
    """Return the JSON text of a member: as it stands, or what a string holds that could not be embedded."""
    text = bytes(raw).decode("utf-8").strip()
    if text.startswith('"'):
        return msgspec.json.decode(text, type=str)
    return None if text == "null" else text
