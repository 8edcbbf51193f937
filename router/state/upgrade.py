"""The one-time import of a state folder of format 1, which had a file for each thing that ``state.db`` holds.

``format.json`` is replaced once the import is committed, and decides: while it says 1, the files count and
``state.db`` is discarded; afterwards ``state.db`` counts and the files are removed. So a death at any point repeats
the import, or the removal. An earlier router refuses the folder then, by ``format.json``, and its replays do, by
``ledger/letters.id``, which stays.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bindings.private_files import open_private_file, sync_path
from catalog.values import parse_whole_number
from router.errors import StateError
from router.logs import get_logger
from router.state.database import FILE, FORMAT, NAME, OLD_LETTERS, Inventory, StateDatabase, connect, translate_errors
from router.state.durable import RESTORE, damaged, missing, read, read_object
from router.state.ledger import LetterLedger

_PIN: Final = re.compile(r"[0-9a-f]{32}")
_MARKER: Final = OLD_LETTERS.with_suffix(".id")
_SIGHTINGS: Final = Path("ledger", "sightings.db")
_TABLES: Final = {
    OLD_LETTERS: ("letters", "history", "replays", "waiting", "catching"),
    _SIGHTINGS: ("sightings",),
    Path("relations", "exchanges.db"): ("halves", "keys", "outbox", "commits"),
}
_FOLDERS: Final = ("batches", "plans", "relations", "ledger/accounts", "ledger/plans")
_FILES: Final = ("ledger/offsets.json", "ledger/topics.json", "ledger/letters.db*", "ledger/sightings.db*")
_log = get_logger()
Row = tuple[Any, ...]


def upgrade_folder(root: Path) -> None:
    """Convert a state folder of format 1; whoever calls it has the folder's lock.

    Raises:
        StateError: a file is damaged, missing or unreadable; names it and the remedy, and nothing was changed.
    """
    form = read_object(root / NAME)
    Inventory(root).require_file()
    if form is None and (root / OLD_LETTERS).exists():
        form = {"format": 1}
    version = (form or {}).get("format")
    if version == 1 and form is not None:
        # A replay of the earlier router would go on writing to a file that is removed.
        with translate_errors(root / FILE), LetterLedger(root, StateDatabase(root)).exclusive():
            _import_files(root, form)
    if version in (1, FORMAT):
        for folder in _FOLDERS:
            shutil.rmtree(root / folder, ignore_errors=not (root / folder).exists())
        for path in (path for pattern in _FILES for path in root.glob(pattern)):
            path.unlink()


def _import_files(root: Path, form: dict[str, Any]) -> None:
    path = root / FILE
    _discard_partial_import(path)
    inventory = Inventory(root)
    holdings = inventory.parse(form)
    topics = _read_topics(root, noted=bool(form.get("offsets")))
    rows = [*_read_batches(root), *_read_plans(root), *topics, *_read_accounts(root)]
    databases = [name for name in _TABLES if _is_importable(root, name)]
    open_private_file(path, "ab").close()
    with closing(connect(path)) as connection:
        for name in databases:
            connection.execute(f"ATTACH DATABASE ? AS {name.stem}", (str(root / name),))
        connection.execute("BEGIN IMMEDIATE")
        for table, row in rows:
            connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        for name in databases:
            with translate_errors(root / name):
                _copy_tables(connection, name)
        (id,) = connection.execute("SELECT value FROM facts WHERE name = 'id'").fetchone()
        connection.execute("COMMIT")
    sync_path(root)
    inventory.write(replace(holdings, database=id))
    _log.info("state folder converted", folder=str(root), format=FORMAT)


def _discard_partial_import(path: Path) -> None:
    """Remove what an import left that did not end.

    Raises:
        StateError: the database is in use, so that ``format.json`` is an old one.
    """
    used = None
    if path.exists():
        with closing(connect(path)) as connection:
            used = connection.execute("SELECT 1 FROM facts WHERE name = 'noted'").fetchone()
    if used:
        hint = f"restore the {NAME} that belongs to {path}"
        raise StateError(f"{path.parent / NAME} has format 1, and {path} is in use", hint=hint)
    for suffix in ("", "-wal", "-shm"):
        path.with_name(FILE + suffix).unlink(missing_ok=True)


def _read_batches(root: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of pins and notes, from their files."""
    for path in sorted(root.glob("batches/*/*")):
        number, _, kind = path.name.partition(".")
        batch, query = parse_whole_number(number), path.parent.name
        if batch is None:
            continue
        if kind:
            lost = "tables may double" if kind == "parts" else "the batch is tried again"
            note = read_object(path, hint=f"{RESTORE}, or remove it: {lost}") or {}
            if not isinstance(note.get("generation"), str):
                raise damaged(path, "it is not a valid note", hint=f"{RESTORE}, or remove it: {lost}")
            note.pop("format", None)
            yield "notes", (query, batch, kind, note["generation"], json.dumps(note, separators=(",", ":")))
        else:
            content = read(path) or b""
            plan = content.decode("ascii", "replace").strip()
            if _PIN.fullmatch(plan) is None:
                hint = f"{RESTORE}, or remove it: the batch is then evaluated by the active catalog and settings"
                raise damaged(path, "it names no plan" if content else "it is empty", hint=hint)
            yield "pins", (query, batch, plan, path.stat().st_mtime)
    for commit in root.glob("checkpoints/*/*/commits/[0-9]*"):
        folder = root / "batches" / commit.parents[2].name
        if not folder.exists():
            raise missing(folder, f"query {folder.name} has committed batches")


def _read_plans(root: Path) -> Iterator[tuple[str, Row]]:
    """Yield the plans of batches and of a replay; one that is missing is noticed when it is needed."""
    for path in (*root.glob("plans/[0-9a-f]*.json"), *root.glob("ledger/plans/[0-9a-f]*.json")):
        document = read(path) or b""
        if hashlib.sha256(document).hexdigest().startswith(path.stem):
            yield "plans", (path.stem, document)
        elif path.parent.parent != root or any(read(pin) == path.stem.encode() for pin in root.glob("batches/*/*")):
            raise damaged(path, "it is not the document that its name is the hash of")


def _read_topics(root: Path, *, noted: bool) -> Iterator[tuple[str, Row]]:
    """Yield the rows of positions and ids of topics."""
    path = root / "ledger" / "offsets.json"
    form = read_object(path)
    if form is None and noted:
        hint = f'{RESTORE}, or set "offsets" to false in {root / NAME}: topics that are added again begin at `start`'
        raise missing(path, "positions of topics were kept in it", hint=hint)
    try:
        for cluster, topics in (form or {}).items():
            for topic, partitions in topics.items():
                for number, position in {"-1": 0, **partitions}.items():
                    if type(position) is not int:
                        raise TypeError(f"{position!r} is no offset")
                    yield "positions", (cluster, topic, int(number), position)
        path = root / "ledger" / "topics.json"
        for cluster, ids in (read_object(path) or {}).items():
            for topic, id in ids.items():
                yield "topic_ids", (cluster, topic, str(id))
    except (AttributeError, TypeError, ValueError) as error:
        raise damaged(path, f"it has something else than what was kept of topics ({error})") from error


def _read_accounts(root: Path) -> Iterator[tuple[str, Row]]:
    for path in root.glob("ledger/accounts/*.json"):
        try:
            yield "accounts", (path.stem, json.dumps(read_object(path)))
        except StateError as error:
            _log.warning("counts of a query cannot be read; starting from zero", problem=str(error))


def _is_importable(root: Path, name: Path) -> bool:
    """Whether there is a database of that name to import; what occurred is given up where it is damaged.

    Raises:
        StateError: another one is damaged or gone.
    """
    path = root / name
    if name == OLD_LETTERS and (root / _MARKER).exists() and not (path.exists() and path.stat().st_size):
        hint = f"restore it from a backup, or remove {root / _MARKER} too: dead letters then count as never replayed"
        raise missing(path, "there was one; it is gone or empty", hint=hint)
    if not path.exists():
        return False
    try:
        with translate_errors(path), closing(sqlite3.connect(path)) as connection:
            ((fault,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
            if fault != "ok":
                raise damaged(path, fault)
            return bool(connection.execute("PRAGMA user_version").fetchone()[0])
    except StateError as error:
        if name != _SIGHTINGS:
            raise
        _log.warning("coverage cannot be read; starting anew", problem=str(error))
        return False


def _copy_tables(connection: sqlite3.Connection, name: Path) -> None:
    """Copy the tables of an attached database, with the next number of each."""
    source = name.stem
    for table in _TABLES[name]:
        connection.execute(f"INSERT INTO main.{table} SELECT * FROM {source}.{table}")
    if name != _SIGHTINGS:
        prefix = "" if name == OLD_LETTERS else "relations."
        connection.execute(f"INSERT OR REPLACE INTO facts SELECT '{prefix}' || name, value FROM {source}.facts")
        numbers = f"SELECT name, seq FROM {source}.sqlite_sequence"
        connection.execute(f"DELETE FROM main.sqlite_sequence WHERE name IN (SELECT name FROM ({numbers}))")
        connection.execute(f"INSERT INTO main.sqlite_sequence {numbers}")
