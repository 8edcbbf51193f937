"""The state database, ``state.db``, and ``format.json``, which says what else a state folder must hold.

One SQLite file has what is durable about batches, positions, counts and dead letters. Write-ahead log with
``synchronous=FULL``: each transaction is atomic and durable when it returns, and readers never wait for a writer. A
router has one connection for all its threads; commands beside it open their own. ``format.json`` has the id of the
database, since SQLite would begin a new one in the place of a file that was removed or emptied.

| table | a row is |
|---|---|
| ``pins``, ``plans`` | the plan of a recent batch; its document, kept while a batch or a replay names it |
| ``notes`` | that a batch is blocked, parked, waits for dead letters or is split (:mod:`router.state.state`) |
| ``positions``, ``topic_ids`` | where a topic is read from, by partition (-1: the topic itself); the id it had then |
| ``accounts``, ``sightings`` | the counts of a query; when a definition occurred at an endpoint |
| ``letters``, ``history``, ``replays`` | the status of a dead letter; what happened to it; a batch of a replay |
| ``waiting``, ``catching`` | a dead letter that holds up its key; a key that a replay is about to free |
| ``halves``, ``keys``, ``outbox``, ``commits`` | messages to be paired (:mod:`router.request_reply`) |
| ``facts`` | the id of the database, and single values |

Every column has a type that SQLite checks, also when the file is checked at a start.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from bindings.private_files import create_private_folder, open_private_file, sync_path
from router.errors import DiskError, StateError
from router.state.durable import RESTORE, damaged, missing, read_object, write_durably

FORMAT: Final = 2
NAME: Final = "format.json"
FILE: Final = "state.db"
OLD_LETTERS: Final = Path("ledger", "letters.db")
"""A file of format 1, which replays may have made before any router ran."""
BUSY_SECONDS: Final = 60.0
"""Longest wait for another process that writes."""
_TRACES: Final = ("checkpoints/*/*/generation.json", "batches/*/*", "plans/*.json")
"""Only a router that had written its format file writes these; inbox and database may be there before."""


@dataclass(frozen=True, slots=True)
class NotedGeneration:
    """The newest generation of a query that was noted."""

    number: int
    id: str


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a state folder must hold. ``inbox`` and ``database`` are their ids, '' before there is one."""

    generations: dict[str, NotedGeneration] = field(default_factory=dict)
    inbox: str = ""
    database: str = ""


class Inventory:
    """The ``format.json`` of one state folder; whoever writes it has the folder's lock.

    A lost checkpoint would repeat every record, a lost inbox loses messages that were acknowledged, a lost database
    the pins of batches; none leaves a trace where it was. So what exists is noted here once it is durable. After a
    crash in between, the next start notes it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / NAME

    def create(self, database: StateDatabase) -> None:
        """Write the file of a new folder, or check it, and record the id of the database.

        Raises:
            StateError: as :meth:`holdings`, or the file is missing from a folder that was in use.
        """
        self.require_file(database.path if database.fact("noted") else None)
        known = self.holdings() if self.path.exists() else Holdings()
        if known.database != database.id:
            self.write(replace(known, database=database.id))
        with database.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO facts VALUES ('noted', 1)")

    def require_file(self, trace: Path | None = None) -> None:
        """Raise if the file is missing from a folder that was in use, as *trace* or other files show.

        Raises:
            StateError: it is missing.
        """
        used = next((trace for pattern in _TRACES for trace in self._root.glob(pattern)), trace)
        if used is not None and not self.path.exists():
            hint = f"restore it from a backup of the state folder, or choose another `state` folder than {self._root}"
            raise missing(self.path, f"the folder was in use, it has {used.relative_to(self._root)}", hint=hint)

    def holdings(self) -> Holdings:
        """Return what the folder must hold.

        Raises:
            StateError: the format is another one, or the file is damaged.
        """
        form = read_object(self.path) or {}
        if "format" not in form:
            raise damaged(self.path, "it has no format")
        if form["format"] == 1:
            raise _old_format_error(self._root)
        if form["format"] != FORMAT:
            text = f"state folder {self._root} has format {form['format']}; this router knows {FORMAT}"
            raise StateError(text, hint="start the router version that wrote it, or choose another `state` folder")
        return self.parse(form)

    def parse(self, form: dict[str, Any]) -> Holdings:
        """Return what the content of the file says, whatever its format.

        Raises:
            StateError: it is damaged.
        """
        try:
            return msgspec.convert(form, Holdings)
        except msgspec.ValidationError as error:
            raise damaged(self.path, f"its content cannot be read ({error})") from error

    def note_generation(self, query: str, number: int, id: str) -> None:
        """Note that a query has a generation; what is noted already is not written again.

        Raises:
            StateError: the file is damaged.
            OSError: the disk refuses; the next start notes it.
        """
        known, noted = self.holdings(), NotedGeneration(number, id)
        if known.generations.get(query) != noted:
            self.write(replace(known, generations={**known.generations, query: noted}))

    def note_inbox(self, identity: str) -> None:
        """Note which inbox the folder has; raises as :meth:`note_generation`."""
        known = self.holdings()
        if known.inbox != identity:
            self.write(replace(known, inbox=identity))

    def write(self, holdings: Holdings) -> None:
        """Write what the folder must hold, durably."""
        content = {"format": FORMAT, **asdict(holdings)}
        write_durably(self.path, json.dumps(content, sort_keys=True).encode())


def _old_format_error(root: Path) -> StateError:
    hint = "start the router once with these settings: it converts the folder"
    return StateError(f"state folder {root} was written by an earlier router", hint=hint)


# The database: its tables, opening it, and its errors as ours.

_SCHEMA: Final = """
facts: name text, value any; PRIMARY KEY (name)
pins: query text, batch integer, plan text, since real; PRIMARY KEY (query, batch)
plans: id text, document blob; UNIQUE (id)
notes: query text, batch integer, kind text, generation text, note text; PRIMARY KEY (query, batch, kind)
positions: cluster text, topic text, partition integer, position integer; PRIMARY KEY (cluster, topic, partition)
topic_ids: cluster text, topic text, id text; PRIMARY KEY (cluster, topic)
accounts: query text, account text; PRIMARY KEY (query)
sightings: endpoint text, message text, epoch text, since integer, first integer?, last integer?; PRIMARY KEY (endpoint, message)
letters: letter text, standing text, attempts integer, reason text, detail text, changed text; PRIMARY KEY (letter)
history: letter text, at text, what text, replay integer?, reason text, detail text
replays: number serial, plan text, content text, began text, ended text?
waiting: sequence serial, key text, letter text; UNIQUE (letter)
catching: key text; PRIMARY KEY (key)
halves: number serial, asked integer, paired integer, due real, told text
keys: key text, asked integer, number integer; PRIMARY KEY (key, asked, number)
outbox: number serial, told text
commits: app text, query text, whole text, version integer; PRIMARY KEY (app)
"""  # noqa: E501
TABLES: Final = dict(line.split(": ") for line in _SCHEMA.strip().split("\n"))
"""The columns of each table with their types, and its key; ``?`` is a column that may be NULL."""
_INDEXES: Final = (
    "history_by_letter ON history (letter)",
    "waiting_by_key ON waiting (key, sequence)",
    "halves_by_due ON halves (due)",
    "keys_by_number ON keys (number)",
)


def _table_statement(name: str, text: str) -> str:
    columns, _, key = text.partition("; ")
    parts = [_column_definition(*column.split()) for column in columns.split(", ")] + [key] * bool(key)
    return f"CREATE TABLE {name} ({', '.join(parts)}) {'WITHOUT ROWID' * key.startswith('PRIMARY')}"


def _column_definition(name: str, kind: str) -> str:
    if kind == "serial":
        return f"{name} INTEGER PRIMARY KEY AUTOINCREMENT"
    required, kind = "" if kind.endswith("?") else "NOT NULL", kind.removesuffix("?")
    typed = "" if kind == "any" else f"CHECK (typeof({name}) IN ('{kind}', 'null'))"
    return f"{name} {kind.removeprefix('any')} {required} {typed}"


_opening: Final = threading.Lock()
"""One at a time: when a plain file is closed, the process loses the locks that SQLite has of it."""


class StateDatabase:
    """The ``state.db`` of a state folder, opened at its first use; for any thread, one at a time.

    Methods raise :class:`StateError`, or :class:`DiskError` for a full or failing disk or a writer that does not end.
    """

    def __init__(self, root: Path, *, create: bool = True) -> None:
        """Prepare to open it; without *create*, a missing one is empty and in memory."""
        self.path = root / FILE
        self._inventory = Inventory(root)
        self._create = create
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        with self._lock, translate_errors(self.path):
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; after that, methods raise."""
        with self._lock, translate_errors(self.path):
            if self._connection is not None:
                self._connection.close()

    def read(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._lock, translate_errors(self.path):
            return self._open().execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: durable at the end of the block, undone by any error in it."""
        with self._lock, translate_errors(self.path):
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def plan(self, plan: str) -> bytes | None:
        """Return a plan's document; None if it is not stored."""
        return next((row[0] for row in self.read("SELECT document FROM plans WHERE id = ?", (plan,))), None)

    def fact(self, name: str) -> Any:
        """Return a single value; None if it was never set."""
        return next((row[0] for row in self.read("SELECT value FROM facts WHERE name = ?", (name,))), None)

    @property
    def id(self) -> str:
        """The database's own id, made with it: part of the names that replays commit under."""
        return str(self.fact("id"))

    def check(self) -> None:
        """Make sure that the whole file can be read, and that every value has its type."""
        faults = self.read("PRAGMA quick_check(1)")
        if faults != [("ok",)]:
            raise damaged(self.path, str(faults[0][0]))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            with _opening:
                self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        path, folder = self.path, self.path.parent
        if not self._inventory.path.exists() and (folder / OLD_LETTERS).exists() and not path.exists():
            raise _old_format_error(folder)
        noted = self._inventory.holdings().database if self._inventory.path.exists() else ""
        there = path.exists()
        if noted and not (there and path.stat().st_size):
            hint = (
                f'{RESTORE}; to go on without it, remove "database" from {folder / NAME}: unfinished batches are then '
                "evaluated anew, added topics begin at `start`, and dead letters count as never replayed"
            )
            raise missing(path, "the folder had one; it is gone or empty", hint=hint)
        if self._create and not there:
            create_private_folder(folder)
            open_private_file(path, "ab").close()
        connection = connect(path if there or self._create else None)
        try:
            (id,) = connection.execute("SELECT value FROM facts WHERE name = 'id'").fetchone() or ("unknown",)
            if noted not in ("", id):
                hint = "restore the parts of this state folder; parts of two folders cannot be mixed"
                raise StateError(f"{path} belongs to another state folder: its id is {id}, not {noted}", hint=hint)
        except BaseException:
            connection.close()
            raise
        if self._create and not there:
            sync_path(folder)
        return connection


def connect(path: Path | None) -> sqlite3.Connection:
    """Open a database, with its tables if it is new; None is one in memory.

    Raises:
        StateError: it is not ours, or of another format.
    """
    text = ":memory:" if path is None else str(path)
    connection = sqlite3.connect(text, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        version = _version(connection) or _create_tables(connection, text)
        if version != FORMAT:
            hint = "start the router version that wrote it"
            raise StateError(f"{text} has format {version}; this router knows {FORMAT}", hint=hint)
    except BaseException:
        connection.close()
        raise
    return connection


def _create_tables(connection: sqlite3.Connection, name: str) -> int:
    """Create the tables of a new database, unless another process was first, and return the format."""
    connection.execute("BEGIN IMMEDIATE")
    version = _version(connection)
    if version == 0:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StateError(f"{name} is not a state database of this router", hint="move it away")
        for table, text in TABLES.items():
            connection.execute(_table_statement(table, text))
        for index in _INDEXES:
            connection.execute(f"CREATE INDEX {index}")
        connection.execute("INSERT INTO facts VALUES ('id', ?)", (uuid.uuid4().hex,))
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        version = FORMAT
    connection.execute("COMMIT")
    return version


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


_PASSING: Final = frozenset({"SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC"})
"""A query that meets one of these errors is tried again."""


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the file system into :class:`StateError`, or :class:`DiskError` if a retry may help."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname in _PASSING:
            hint = "free space on its disk or fix it; if another process holds the file, wait until it ends"
            raise DiskError(f"{path} cannot be written: {error}", hint=hint) from error
        hint = f"check its rights and the free disk space, or {RESTORE}; nothing was changed by what failed"
        raise StateError(f"{path} cannot be used: {error}", hint=hint) from error
    except sqlite3.ProgrammingError as error:
        hint = "none is needed where it is closed: a batch comes again after a start"
        raise StateError(f"{path} cannot be used: {error}", hint=hint) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error
    except OSError as error:
        hint = "choose a writable folder under `state`"
        raise StateError(f"{path} cannot be used: {error.strerror}", hint=hint) from error


def store_plan(connection: sqlite3.Connection, plan: str, document: bytes) -> None:
    """Store a plan inside a transaction, and remove those that nothing names any more; name it before this call."""
    if connection.execute("SELECT 1 FROM plans WHERE id = ?", (plan,)).fetchone() is None:
        connection.execute("INSERT INTO plans VALUES (?, ?)", (plan, document))
        named = "SELECT plan FROM pins UNION SELECT plan FROM replays WHERE ended IS NULL"
        connection.execute(f"DELETE FROM plans WHERE id NOT IN ({named})")
