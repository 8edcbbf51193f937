"""The state database: atomic at every step, found out when damaged, lost or of another folder, and never in the way."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from bindings.private_files import take_lock
from router.batches.splitting import PartsNote
from router.errors import DiskError, StateError
from router.reading.generations import Positions
from router.request_reply import Exchanges
from router.sinks.contract import Commit
from router.state import database as module
from router.state.database import TABLES, StateDatabase, connect
from router.state.ledger import DefinitionAtEndpoint, LetterLedger, Outcome, PendingReplay, Sighting, write_sightings
from router.state.state import Accounts, BlockedKeys, Hold, Park, StateFolder
from router.state.upgrade import upgrade_folder
from tests.support.cases import filled, read_cases
from tests.support.format_1 import as_format_1, content_of
from tests.support.ledger import replayed
from tests.unit.router.state.conftest import (
    DOCUMENTS,
    ONE,
    QUERY,
    THREE,
    TWO,
    WHEN,
    asking,
    dies_at,
    exchanges_in,
    mangle,
    note_parts,
)

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "state.yaml"
TIMES: Final = {"pins": {3}, "replays": {3, 4}}
"""Columns that say when something was written."""


def letters(work: Callable[[LetterLedger], object]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        with LetterLedger.open(root) as ledger:
            work(ledger)

    return run


def batches(work: Callable[[StateFolder], object]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        state = StateFolder(root)
        with state.database:
            work(state)

    return run


def pairs(work: Callable[[Exchanges], object]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        work(exchanges_in(root))

    return run


def count(state: StateFolder) -> None:
    with Accounts(state.database).changing(QUERY) as account:
        account.batch, account.taken = 7, 99


def deliver(exchanges: Exchanges) -> None:
    delivery = exchanges.delivery()
    assert delivery is not None
    exchanges.delivered(delivery)


PLACE: Final = DefinitionAtEndpoint("/endpoints/b")
WORK: Final[dict[str, Callable[[Path], None]]] = {
    "pin": batches(lambda state: state.batches.pin(QUERY, 8, ONE, DOCUMENTS[ONE])),
    "pin to a new plan": batches(lambda state: state.batches.pin(QUERY, 9, THREE, DOCUMENTS[THREE])),
    "unpin": batches(lambda state: state.batches.unpin_all(QUERY)),
    "hold": batches(lambda state: state.batches.note(QUERY, 8, Hold("g", "t", "why"))),
    "release": batches(lambda state: state.batches.release(QUERY, 7)),
    "park": batches(lambda state: state.batches.note(QUERY, 8, Park("g", "t"))),
    "block": batches(lambda state: state.batches.note(QUERY, 8, BlockedKeys("g", {"k": "l"}))),
    "parts": batches(lambda state: note_parts(state, 8)),
    "positions": batches(lambda state: Positions(state).keep("1", {"t": {"0": 9}, "u": {"0": 1, "1": 2}})),
    "counts": batches(count),
    "sightings": batches(lambda state: write_sightings(state.database, {PLACE: Sighting("e", 1)}, [PLACE])),
    "park letters": letters(lambda ledger: ledger.park(["b", "z"], WHEN)),
    "forget": letters(lambda ledger: ledger.forget(["a", "b"])),
    "arrived": letters(lambda ledger: ledger.order.append_letters([("key", "b"), ("key", "z")])),
    "catch up": letters(lambda ledger: ledger.order.note_keys_to_free(["x", "y"])),
    "gone": letters(lambda ledger: ledger.order.remove_gone({"b": 2, "c": 3})),
    "let go": letters(lambda ledger: ledger.order.release(["b", "c"])),
    "finish": letters(lambda ledger: ledger.finish(3, [Outcome("b"), Outcome("c", "no-match", "why")], WHEN)),
    "pair": pairs(lambda exchanges: exchanges.take(Commit("g-relations", 1, ()), QUERY, [asking(7), asking(8)])),
    "deliver": pairs(deliver),
}


def seen(root: Path) -> dict[str, Any]:
    """Return the content of a database, without what differs from one run to the next."""
    tables: dict[str, Any] = content_of(root)
    for table, columns in TIMES.items():
        tables[table] = [tuple(value for at, value in enumerate(row) if at not in columns) for row in tables[table]]
    tables["facts"] = [row for row in tables["facts"] if row[0] not in ("relations.id", "relations.changed")]
    return tables


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", WORK)
def test_a_process_that_dies_at_any_statement_leaves_all_or_nothing(
    root: Path, tmp_path: Path, name: str, every: int
) -> None:
    before, done = seen(root), tmp_path / "done"
    shutil.copytree(root, done)
    WORK[name](done)
    after = seen(done)
    assert after != before
    step, found = 1, []
    while True:
        copy = tmp_path / str(step)
        shutil.copytree(root, copy)
        dead = dies_at(step, lambda copy=copy: WORK[name](copy))  # type: ignore[misc]
        with StateDatabase(copy) as opened:
            opened.check()
        found.append(seen(copy))
        if not dead:
            break
        shutil.rmtree(copy)
        step += every
    assert found[0] == before and found[-1] == after
    assert step > 2
    if name != "deliver":  # It is two transactions.
        assert all(each in (before, after) for each in found)


def columns() -> list[tuple[str, str, str]]:
    listed = [(table, *each.split()) for table, text in TABLES.items() for each in text.partition("; ")[0].split(", ")]
    return [(table, column, kind) for table, column, kind in listed if table != "facts" and kind != "serial"]


@pytest.mark.parametrize(("table", "column", "kind"), columns())
def test_a_value_of_another_type_is_found_in_any_column(root: Path, table: str, column: str, kind: str) -> None:
    with StateDatabase(root) as opened:
        opened.check()
        assert opened.read(f"SELECT count(*) FROM {table}") != [(0,)], "there is nothing to damage"
    wrong = "x'00'" if kind.startswith("text") else "'wrong'"
    mangle(root / "state.db", f"UPDATE OR REPLACE {table} SET {column} = {wrong}")
    with pytest.raises(StateError, match=r"state\.db is damaged: .*CHECK") as caught, StateDatabase(root) as opened:
        opened.check()
    assert table in str(caught.value) and "backup" in caught.value.hint


def swapped(root: Path) -> None:
    with StateFolder.open(root.parent / "other"):
        pass
    shutil.copy(root.parent / "other" / "state.db", root / "state.db")


def halved(root: Path) -> None:
    content = (root / "state.db").read_bytes()
    (root / "state.db").write_bytes(content[: len(content) // 2])


DAMAGES: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "emptied": (lambda root: (root / "state.db").write_bytes(b""), "is missing: the folder had one"),
    "removed": (lambda root: (root / "state.db").unlink(), "is missing: the folder had one"),
    "halved": (halved, "state.db"),
    "no database": (lambda root: (root / "state.db").write_bytes(b"no database" * 500), "is damaged"),
    "of another folder": (swapped, "belongs to another state folder"),
    "of a later router": (lambda root: mangle(root / "state.db", "PRAGMA user_version = 99"), "has format 99"),
    "a table gone": (lambda root: mangle(root / "state.db", "DROP TABLE pins"), "no such table: pins"),
    "no id": (lambda root: mangle(root / "state.db", "DELETE FROM facts"), "its id is unknown"),
    "a later folder": (lambda root: (root / "format.json").write_text('{"format": 3}'), "has format 3"),
    "no format file": (lambda root: (root / "format.json").unlink(), "format.json is missing"),
    "an old format file": (lambda root: (root / "format.json").write_text('{"format": 1}'), "is in use"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_with_its_remedy(root: Path, name: str) -> None:
    harm, says = DAMAGES[name]
    for left in root.glob("state.db-*"):
        left.unlink()
    harm(root)
    with pytest.raises(StateError) as caught, StateFolder.open(root) as state:
        state.database.check()
        state.batches.pinned(QUERY, 7)
    assert says in str(caught.value) and caught.value.hint and "\n" not in str(caught.value)


def test_what_is_another_database_is_left_alone(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "state.db")
    database.execute("CREATE TABLE other (a)")
    database.close()
    with pytest.raises(StateError, match="not a state database"), StateFolder.open(tmp_path):
        pass


@pytest.mark.parametrize(("table", "statement", "says"), read_cases(CASES)["rows"])
def test_what_says_something_else_is_named_with_its_row(root: Path, table: str, statement: str, says: str) -> None:
    mangle(root / "state.db", statement)
    with StateFolder.open(root) as state:
        state.database.check()
        ((generation,),) = state.database.read("SELECT DISTINCT generation FROM notes")
        store = state.batches
        with pytest.raises(StateError) as caught:
            store.pinned(QUERY, 7)
            for kind in (Hold, Park, BlockedKeys, PartsNote):
                store.noted(kind, QUERY, 7, generation)
    assert (
        says in str(caught.value) and f"DELETE FROM {table} WHERE query = 'kafka-1' AND batch = 7" in caught.value.hint
    )


def test_a_full_disk_changes_nothing_and_is_told_as_one(root: Path) -> None:
    state = StateFolder(root)
    with state.database:
        ((pages,),) = state.database.read("PRAGMA page_count")
        state.database.read(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(DiskError, match=r"state\.db cannot be written: .*full"):
            state.batches.pin(QUERY, 8, THREE, b"x" * 100_000)
        assert (state.batches.pinned(QUERY, 8), state.batches.plan(THREE)) == (None, None)
        state.database.read(f"PRAGMA max_page_count = {pages + 1000}")
        state.batches.pin(QUERY, 8, THREE, b"x" * 100_000)
        assert state.batches.pinned(QUERY, 8) == THREE


def test_readers_never_wait_and_writers_wait_a_bounded_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StateFolder.open(root) as state, state.database.transaction() as connection:
        connection.execute("DELETE FROM pins")
        with StateFolder.beside(root) as beside:
            assert beside.batches.pinned(QUERY, 7) == ONE
        monkeypatch.setattr(module, "BUSY_SECONDS", 0.1)
        with LetterLedger.open(root) as ledger:
            assert ledger.pending() is not None
            with pytest.raises(DiskError, match="locked"):
                ledger.park(["b"], WHEN)


def test_many_who_open_it_first_find_one(tmp_path: Path) -> None:
    ids: list[str] = []
    together = threading.Barrier(8)

    def open_it() -> None:
        together.wait()
        with StateDatabase(tmp_path) as opened:
            ids.append(opened.id)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8 and len(set(ids)) == 1


def test_a_replay_before_any_router_keeps_what_it_wrote(tmp_path: Path) -> None:
    with LetterLedger.open(tmp_path) as ledger:
        replayed(ledger, ["a"], WHEN)
    with StateFolder.open(tmp_path), LetterLedger.open(tmp_path) as ledger:
        assert ledger.standing(["a"]) == {"a": "replayed"}


def test_what_is_closed_says_so(root: Path) -> None:
    with StateFolder.open(root) as state:
        pass
    with pytest.raises(StateError, match="closed database"):
        state.batches.pinned(QUERY, 7)


def test_a_new_database_is_whole(tmp_path: Path) -> None:
    connection = connect(tmp_path / "state.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_batch_that_was_begun_twice_has_one_pending_replay(root: Path) -> None:
    with LetterLedger.open(root) as ledger, pytest.raises(StateError, match="not finished"):
        ledger.begin(PendingReplay(4, THREE, ("c",)), DOCUMENTS[THREE])
    with StateDatabase(root) as opened:
        assert opened.read("SELECT 1 FROM plans WHERE id = ?", (THREE,)) == []


# A state folder of an earlier router: imported once, whatever dies meanwhile, and refused where it is damaged.


OLD_CASES: Final = Path(__file__).resolve().parents[3] / "cases"
SINCE: Final = 3
"""The column of ``pins`` that is the time of a file in format 1."""
LEFT: Final = {"format.json", "state.db", "checkpoints", "lock", "ledger"}


def old_content(root: Path) -> dict[str, Any]:
    tables: dict[str, Any] = content_of(root)
    tables["pins"] = [row[:SINCE] for row in tables["pins"]]
    return tables


def test_all_of_it_is_imported_and_the_files_are_gone(root: Path) -> None:
    before = old_content(root)
    noted = json.loads((root / "format.json").read_text())
    as_format_1(root)
    assert json.loads((root / "format.json").read_text())["format"] == 1
    for _ in range(2):
        with StateFolder.open(root) as state:
            state.database.check()
            assert state.batches.plan(ONE) == b"one"
            since = state.batches.since(QUERY, 7)
            assert since is not None and since.year >= 2026
        assert old_content(root) == before
        assert json.loads((root / "format.json").read_text()) == noted
        assert {path.name.partition("-")[0] for path in root.iterdir()} == LEFT
        assert {path.name for path in (root / "ledger").iterdir()} == {"letters.id", "replay.lock"}
    with LetterLedger.open(root) as ledger:
        pending = ledger.pending()
        assert pending is not None and (pending.letters, ledger.database.plan(TWO)) == (("b", "c"), b"two")


def converted(root: Path) -> None:
    with StateFolder.open(root):
        pass


@pytest.mark.slow
def test_an_import_that_dies_at_any_statement_is_begun_again(root: Path, tmp_path: Path) -> None:
    before = old_content(root)
    as_format_1(root)
    step = 1
    while True:
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        dead = dies_at(step, partial(converted, copy))
        converted(copy)
        assert old_content(copy) == before
        if not dead:
            break
        shutil.rmtree(copy)
        step += 3
    assert step > 40


class PowerCut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("steps", range(30))
def test_an_import_that_dies_at_any_change_of_a_file_is_begun_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    before = old_content(root)
    as_format_1(root)
    left = steps

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise PowerCut
            left -= 1
            return function(*given, **named)

        return step

    with monkeypatch.context() as patched:
        for name in ("replace", "fsync", "unlink", "rmdir", "open"):
            patched.setattr(os, name, dying(getattr(os, name)))
        try:
            upgrade_folder(root)
        except PowerCut:
            pass
        else:
            assert steps > 10
    converted(root)
    assert old_content(root) == before
    assert {path.name.partition("-")[0] for path in root.iterdir()} == LEFT


OLD_DAMAGES: Final = filled(read_cases(OLD_CASES / "state.yaml")["first format"], {"$ONE": ONE, "$TWO": TWO})


@pytest.mark.parametrize(("file", "old_content", "times", "says"), OLD_DAMAGES)
def test_damage_of_an_earlier_folder_is_named_and_nothing_is_changed(
    root: Path, file: str, old_content: str | None, times: int, says: str
) -> None:
    as_format_1(root)
    for path in root.glob(f"{file}-wal"):
        path.unlink()
    (root / file).unlink()
    if old_content is not None:
        (root / file).write_text(old_content * times)
    with pytest.raises(StateError) as caught, StateFolder.open(root):
        pass
    assert says in str(caught.value) and str(root / file) in str(caught.value) and caught.value.hint
    left = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    assert {"batches/kafka-1/6", "ledger/sightings.db", "relations/exchanges.db"} <= left
    assert not (root / "format.json").exists() or '"format": 2' not in (root / "format.json").read_text()


def test_damaged_coverage_is_given_up(root: Path) -> None:
    as_format_1(root)
    for path in root.glob("ledger/sightings.db*"):
        path.unlink()
    (root / "ledger" / "sightings.db").write_bytes(b"no database" * 500)
    with StateFolder.open(root) as state:
        assert state.database.read("SELECT * FROM sightings") == []


def test_pins_that_are_gone_altogether_are_missed(root: Path) -> None:
    commits = root / "checkpoints" / QUERY / "1" / "commits"
    commits.mkdir()
    (commits / "6").write_text("v1\n{}")
    as_format_1(root)
    shutil.rmtree(root / "batches")
    with pytest.raises(StateError, match="batches/kafka-1 is missing"), StateFolder.open(root):
        pass


def test_it_waits_for_no_replay_of_the_earlier_router(root: Path) -> None:
    as_format_1(root)
    with (
        take_lock(root / "ledger" / "replay.lock"),
        pytest.raises(StateError, match="another replay"),
        StateFolder.open(root),
    ):
        pass
    assert (root / "ledger" / "letters.db").exists() and not (root / "state.db").exists()


@pytest.mark.parametrize("look", [StateFolder.beside, LetterLedger.open])
def test_what_looks_beside_an_earlier_router_says_what_to_do(root: Path, look: Callable[[Path], Any]) -> None:
    as_format_1(root)
    with pytest.raises(StateError, match="earlier router") as caught, look(root):
        pass
    assert "start the router once" in caught.value.hint
    assert not (root / "state.db").exists()


def test_an_earlier_router_refuses_it(root: Path) -> None:
    """It reads the format first, and its replays look for the ledger that the marker beside it names."""
    as_format_1(root)
    converted(root)
    assert json.loads((root / "format.json").read_text())["format"] > 1
    assert (root / "ledger" / "letters.id").exists() and not (root / "ledger" / "letters.db").exists()
