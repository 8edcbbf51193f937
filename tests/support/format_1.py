"""State folders as routers wrote them before there was ``state.db``: a file for each thing, and three SQLite files."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from router.state.database import TABLES

_SQL: Final = re.split(r"^-- (\S+\.db)$", Path(__file__).with_suffix(".sql").read_text(), flags=re.MULTILINE)
STATEMENTS: Final = {
    path: [each.strip() for each in text.split(";") if each.strip()]
    for path, text in zip(_SQL[1::2], _SQL[2::2], strict=True)
}
"""What makes the tables of each SQLite file."""
NUMBERED: Final = {"waiting": "letters", "halves": "exchanges", "outbox": "exchanges"}
Rows = list[tuple[Any, ...]]


def content_of(root: Path) -> dict[str, Rows]:
    """Return all rows of the state database, but for what tells how it came to be."""
    with closing(sqlite3.connect(root / "state.db")) as database:
        tables = {table: sorted(database.execute(f"SELECT * FROM {table}").fetchall(), key=repr) for table in TABLES}
        tables["sqlite_sequence"] = sorted(database.execute("SELECT * FROM sqlite_sequence WHERE seq").fetchall())
    tables["sqlite_sequence"] = [row for row in tables["sqlite_sequence"] if row[0] in NUMBERED]
    tables["facts"] = [row for row in tables["facts"] if row[0] not in ("noted", "imported")]
    return tables


def as_format_1(root: Path) -> None:
    """Write a closed state folder as an earlier router would have it."""
    content = content_of(root)
    for path in root.glob("state.db*"):
        path.unlink()
    put(root / "batches" / "inbox" / ".7.4711", "left by a crash")
    for commits in root.glob("checkpoints/*"):
        (root / "batches" / commits.name).mkdir(parents=True, exist_ok=True)
    for query, batch, plan, _ in content["pins"]:
        put(root / "batches" / query / str(batch), plan)
    for query, batch, kind, _, note in content["notes"]:
        put(root / "batches" / query / f"{batch}.{kind}", json.dumps({"format": 1, **json.loads(note)}))
    pinned = {row[2] for row in content["pins"]}
    for plan, document in content["plans"]:
        put(root / ("plans" if plan in pinned else "ledger/plans") / f"{plan}.json", document.decode())
    put(root / "plans" / f"{'e' * 32}.json", "left by a crash")
    offsets: dict[str, dict[str, dict[str, int]]] = {}
    for cluster, topic, number, position in content["positions"]:
        partitions = offsets.setdefault(cluster, {}).setdefault(topic, {})
        if number >= 0:
            partitions[str(number)] = position
    ids: dict[str, dict[str, str]] = {}
    for cluster, topic, id in content["topic_ids"]:
        ids.setdefault(cluster, {})[topic] = id
    for name, form in (("offsets", offsets), ("topics", ids)):
        if form:
            put(root / "ledger" / f"{name}.json", json.dumps(form))
    for query, account in content["accounts"]:
        put(root / "ledger" / "accounts" / f"{query}.json", account)
    facts: dict[str, Any] = dict(content["facts"])
    relations = {name.removeprefix("relations."): facts.pop(name) for name in list(facts) if name[:10] == "relations."}
    put(root / "ledger" / "letters.id", facts["id"])
    for name, own in (("ledger/letters.db", facts), ("ledger/sightings.db", {}), ("relations/exchanges.db", relations)):
        if own is not relations or relations:
            database(root, name, content, own)
    noted = json.loads((root / "format.json").read_text()) if (root / "format.json").exists() else {}
    noted.pop("database", None)
    put(root / "format.json", json.dumps({**noted, "format": 1, "offsets": bool(offsets)}))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def database(root: Path, name: str, content: dict[str, Rows], facts: dict[str, Any]) -> None:
    """Write an SQLite file with its tables, as after a crash: what was written last is in its log."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    closed = path.with_suffix(".closed")
    with closing(sqlite3.connect(closed, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        for statement in STATEMENTS[name]:
            made.execute(statement)
            table = statement.split()[2]
            rows = list(facts.items()) if table == "facts" else content[table]
            for row in rows:
                made.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        for table, number in content["sqlite_sequence"]:
            if NUMBERED[table] == path.stem:
                made.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
                made.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, number))
        made.execute("PRAGMA user_version = 1")
        for suffix in ("", "-wal"):
            shutil.copy(f"{closed}{suffix}", f"{path}{suffix}")
    closed.unlink()
