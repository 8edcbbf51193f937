"""Kinds of damage to the state folder of a router that was killed in the middle of a batch, each done by a function."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from tests.support.cases import filled, read_cases

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
"""Stands for the folder of the only query that reads from Kafka, ``inbox/first`` for the segment that has rows."""
_CASES: Final = Path(__file__).resolve().parents[1] / "cases/hostile/damage.yaml"


def _harm(told: Any) -> Harm:
    """Return the function of a name, or what one makes of values."""
    if isinstance(told, str):
        return cast(Harm, globals()[told])
    ((name, values),) = told.items()
    return cast(Harm, globals()[name](*values))


DAMAGES: Final = [
    Damage(**{**each, "harm": _harm(each["harm"])})
    for each in filled(read_cases(_CASES), {"$INBOX": INBOX, "$KAFKA": KAFKA})
]


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
