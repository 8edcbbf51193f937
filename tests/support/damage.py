"""Kinds of damage to the state folder of a router that was killed in the middle of a batch, each done by a function."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Harm = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to which file of the state folder, and how a start then ends; ``says`` is in its error line."""

    name: str
    file: str
    harm: Harm
    says: str = ""
    code: int = 6


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def altered(path: Path) -> None:
    """Change one digit: the form is as before."""
    content = path.read_bytes()
    at = max(content.rfind(digit) for digit in (b"0", b"1", b"2", b"3"))
    path.write_bytes(content[:at] + b"7" + content[at + 1 :])


def without_last_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().rstrip(b"\n").rpartition(b"\n")[0] + b"\n")


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a folder")


def unreadable(path: Path) -> None:
    """Let nobody read it, not even the superuser: a link to itself."""
    path.unlink()
    path.symlink_to(path.name)


def containing(text: str) -> Harm:
    return lambda path: path.write_text(text)


def with_member(name: str, value: Any) -> Harm:
    """Change one member of a JSON object."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def changed(statement: str) -> Harm:
    """Change the state database as no router would."""

    def change(path: Path) -> None:
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(statement)
        database.close()

    return change


def with_note(kind: str, note: str) -> Harm:
    """Give the unfinished batch a note with that content."""

    def harm(path: Path) -> None:
        generation = json.loads((path.parent / INBOX / "generation.json").read_text())["id"]
        of_batch = f"SELECT query, max(batch), '{kind}', '{generation}', '{note}' FROM pins WHERE query = 'inbox'"
        changed(f"INSERT INTO notes {of_batch}")(path)

    return harm


INBOX: Final = "checkpoints/inbox/1"
"""In this folder and the next, ``pending`` stands for the unfinished batch, ``before`` for the one before it."""
KAFKA: Final = "checkpoints/kafka/1"
"""Stands for the folder of the only query that reads from Kafka."""
DATABASE: Final = "state.db"
SEGMENT: Final = "inbox/first/000000000000.log"
"""Stands for the segment that has rows."""

DAMAGES: Final = (
    Damage("offsets emptied", f"{INBOX}/offsets/pending", emptied),
    Damage("offsets halved", f"{INBOX}/offsets/pending", halved),
    Damage("offsets cut after a line", f"{INBOX}/offsets/pending", without_last_line),
    Damage("offsets altered", f"{INBOX}/offsets/pending", altered, "its content does not match"),
    Damage("offsets removed", f"{INBOX}/offsets/pending", removed),
    Damage("offsets unreadable", f"{INBOX}/offsets/pending", unreadable),
    Damage("offsets before emptied", f"{INBOX}/offsets/before", emptied),
    Damage("offsets before removed", f"{INBOX}/offsets/before", removed),
    Damage("all offsets removed", f"{INBOX}/offsets", removed),
    Damage("commit emptied", f"{INBOX}/commits/before", emptied),
    Damage("commit halved", f"{INBOX}/commits/before", halved),
    Damage("all commits removed", f"{INBOX}/commits", removed),
    Damage("commits a file", f"{INBOX}/commits", a_file),
    Damage("metadata emptied", f"{INBOX}/metadata", emptied),
    Damage("metadata removed", f"{INBOX}/metadata", removed),
    Damage("first offsets emptied", f"{KAFKA}/sources/0/0", emptied),
    Damage("first offsets halved", f"{KAFKA}/sources/0/0", halved),
    Damage("offsets of Kafka halved", f"{KAFKA}/offsets/0", halved),
    Damage("generation emptied", f"{INBOX}/generation.json", emptied),
    Damage("generation halved", f"{INBOX}/generation.json", halved),
    Damage("generation removed", f"{INBOX}/generation.json", removed),
    Damage("generation of another router", f"{INBOX}/generation.json", with_member("id", "f" * 32), "another state"),
    Damage("generation without its topics", f"{KAFKA}/generation.json", containing('{"id": "x"}')),
    Damage("checkpoint removed", INBOX, removed),
    Damage("checkpoints of a query removed", "checkpoints/inbox", removed, "checkpoints/inbox/1"),
    Damage("checkpoints removed", "checkpoints", removed),
    Damage("checkpoints a file", "checkpoints", a_file),
    Damage("database emptied", DATABASE, emptied),
    Damage("database halved", DATABASE, halved),
    Damage("database removed", DATABASE, removed),
    Damage("database unreadable", DATABASE, unreadable),
    Damage("database of a later router", DATABASE, changed("PRAGMA user_version = 99"), "has format 99"),
    Damage(
        "database of another router",
        DATABASE,
        changed("UPDATE facts SET value = 'x' WHERE name = 'id'"),
        "another state",
    ),
    Damage("pin of another form", DATABASE, changed("UPDATE pins SET plan = ''"), "it names no plan"),
    Damage("pin of a batch to come", DATABASE, changed("UPDATE pins SET batch = batch + 7"), "offsets"),
    Damage("pin of another type", DATABASE, changed("UPDATE pins SET since = 'x'"), "pins"),
    Damage("held note halved", DATABASE, with_note("held", '{"gen'), "'held' is not a valid note"),
    Damage("park note without its members", DATABASE, with_note("park", "{}"), "'park' is not a valid note"),
    Damage("order note a list", DATABASE, with_note("order", "[]"), "'order' is not a valid note"),
    Damage("parts note without its members", DATABASE, with_note("parts", "{}"), "'parts' is not a valid note"),
    Damage("plan emptied", DATABASE, changed("UPDATE plans SET document = x''"), "is not the document"),
    Damage("plan of another type", DATABASE, changed("UPDATE plans SET document = 7"), "plans"),
    Damage("plans removed", DATABASE, changed("DELETE FROM plans"), "has no plan", code=9),
    Damage("position of another type", DATABASE, changed("UPDATE positions SET position = 'x'"), "positions"),
    Damage("letter of another type", DATABASE, changed("UPDATE letters SET attempts = 'x'"), "letters"),
    Damage("format emptied", "format.json", emptied),
    Damage("format halved", "format.json", halved),
    Damage("format removed", "format.json", removed),
    Damage("format a folder", "format.json", a_folder),
    Damage("format of a later router", "format.json", with_member("format", 99), "state folder"),
    Damage("inbox removed", "inbox", removed),
    Damage("inbox layout emptied", "inbox/format.json", emptied),
    Damage("inbox layout removed", "inbox/format.json", removed),
    Damage("inbox of another router", "inbox/format.json", with_member("inbox", "f" * 32)),
    Damage("inbox partition removed", "inbox/1", removed),
    Damage("inbox segment removed", SEGMENT, removed),
    Damage("inbox segment emptied", SEGMENT, emptied),
    Damage("inbox segment halved", SEGMENT, halved),
    Damage("lock of the JVM a folder", "lock.jvm", a_folder),
)


def harmless(state: Path, pending: int) -> None:
    """Leave what crashes and copies leave, all at once: a start is to go on as if it were not there."""
    crc = state / INBOX / "offsets" / f".{pending}.crc"
    crc.write_bytes(crc.read_bytes()[:9])
    emptied(state / INBOX / "commits" / f".{pending - 1}.crc")
    removed(state / INBOX / ".metadata.crc")
    (state / INBOX / "offsets" / f".{pending + 1}.2f6c.tmp").write_bytes(b"v1\n{")
    (state / "checkpoints" / "inbox" / "2").mkdir()
    (state / ".format.json.4711").write_bytes(b"{")
    (state / ".state.db.4711").write_bytes(b"")
    for partition in (state / "inbox").glob("[0-9]*"):
        emptied(partition / "durable")
    (state / "lost+found").mkdir()
