"""What has occurred so far, and when last: a small SQLite database at ``state/ledger/sightings.db``.

It has a row for each endpoint that is read, and for each definition that one of them expects, and no others. Writing
to it is for the router that has the state folder; anybody may read it meanwhile. Without it no record is lost.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bindings.private import private_folder, sync_path
from router.errors import DiskError, StateError
from router.state import sqlite
from router.state.ledger import FOLDER

NAME: Final = "sightings.db"
FORMAT: Final = 1
BUSY_SECONDS: Final = 5.0
"""Longest wait for somebody who reads or copies the file."""
_TABLE: Final = (
    "CREATE TABLE sightings (endpoint TEXT NOT NULL, message TEXT NOT NULL, epoch TEXT NOT NULL, "
    "since INTEGER NOT NULL, first INTEGER, last INTEGER, PRIMARY KEY (endpoint, message)) WITHOUT ROWID"
)


class Place(NamedTuple):
    """A definition as an endpoint expects it; without ``message``, the endpoint itself."""

    endpoint: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known of a place: since when, and with which epoch first, it is expected; its first and last record.

    Times are seconds since 1970; None is never.
    """

    epoch: str
    since: int
    first: int | None = None
    last: int | None = None


class Sightings:
    """The open database. Not for concurrent use, but for any thread."""

    def __init__(self, root: Path) -> None:
        """Open it; what is there and cannot be read is replaced by an empty one, which *replaced* tells.

        Raises:
            StateError: it cannot be used at all.
            DiskError: the disk is full.
        """
        self.path = root / FOLDER / NAME
        self.replaced = ""
        try:
            self._database = _connect(self.path)
        except DiskError:
            raise
        except StateError as error:
            self.replaced = str(error)
            for suffix in ("", "-wal", "-shm"):
                with _translated(self.path):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            self._database = _connect(self.path)

    def all(self) -> dict[Place, Sighting]:
        """Return all that is noted."""
        with _translated(self.path):
            return _all(self._database)

    def keep(self, changed: Mapping[Place, Sighting], gone: Iterable[Place] = ()) -> None:
        """Note what has changed, and forget what is gone; all of it is on the disk when this returns, or nothing.

        Raises:
            StateError: the file cannot be used.
            DiskError: the disk is full.
        """
        rows = ((*place, each.epoch, each.since, each.first, each.last) for place, each in changed.items())
        with _translated(self.path), sqlite.transaction(self._database):
            self._database.executemany("DELETE FROM sightings WHERE endpoint = ? AND message = ?", gone)
            self._database.executemany("INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def sightings_in(root: Path) -> dict[Place, Sighting] | None:
    """Return what the router of a state folder has noted, at work or not; None when it never noted anything.

    Raises:
        StateError: the file is there and cannot be read.
    """
    path = root / FOLDER / NAME
    if not path.exists():
        return None
    with _translated(path), contextlib.closing(sqlite3.connect(str(path), timeout=BUSY_SECONDS)) as database:
        _check_format(database, path)
        return _all(database)


def _all(database: sqlite3.Connection) -> dict[Place, Sighting]:
    rows = database.execute("SELECT endpoint, message, epoch, since, first, last FROM sightings")
    return {Place(row[0], row[1]): Sighting(*row[2:]) for row in rows}


def _connect(path: Path) -> sqlite3.Connection:
    with _translated(path):
        private_folder(path.parent)
        if not path.exists():
            sqlite.new_file(path)
            sync_path(path.parent)
        database = sqlite3.connect(str(path), timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                with sqlite.transaction(database):
                    database.execute(_TABLE)
                    database.execute(f"PRAGMA user_version = {FORMAT}")
            _check_format(database, path)
        except BaseException:
            database.close()
            raise
    return database


def _check_format(database: sqlite3.Connection, path: Path) -> None:
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version != FORMAT:
        hint = "use the router version that wrote it"
        raise StateError(f"{path} has format {version}; this router knows {FORMAT}", hint=hint)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    hint = "remove it while no router is at work here: what has occurred is then noted anew"
    with sqlite.translated(str(path), hint):
        yield
