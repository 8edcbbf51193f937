"""A state folder of an earlier router: imported once, whatever dies meanwhile, and refused where it is damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from bindings.private_files import take_lock
from router.errors import StateError
from router.state.ledger import LetterLedger
from router.state.state import StateFolder
from router.state.upgrade import upgrade_folder
from tests.support.cases import filled, read_cases
from tests.support.format_1 import as_format_1, content_of
from tests.unit.router.state.conftest import ONE, QUERY, TWO, dies_at

CASES: Final = Path(__file__).resolve().parents[3] / "cases"
SINCE: Final = 3
"""The column of ``pins`` that is the time of a file in format 1."""
LEFT: Final = {"format.json", "state.db", "checkpoints", "lock", "ledger"}


def content(root: Path) -> dict[str, Any]:
    tables: dict[str, Any] = content_of(root)
    tables["pins"] = [row[:SINCE] for row in tables["pins"]]
    return tables


def test_all_of_it_is_imported_and_the_files_are_gone(root: Path) -> None:
    before = content(root)
    noted = json.loads((root / "format.json").read_text())
    as_format_1(root)
    assert json.loads((root / "format.json").read_text())["format"] == 1
    for _ in range(2):
        with StateFolder.open(root) as state:
            state.database.check()
            assert state.batches.plan(ONE) == b"one"
            since = state.batches.since(QUERY, 7)
            assert since is not None and since.year >= 2026
        assert content(root) == before
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
    before = content(root)
    as_format_1(root)
    step = 1
    while True:
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        dead = dies_at(step, partial(converted, copy))
        converted(copy)
        assert content(copy) == before
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
    before = content(root)
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
    assert content(root) == before
    assert {path.name.partition("-")[0] for path in root.iterdir()} == LEFT


DAMAGES: Final = filled(read_cases(CASES / "state.yaml")["first format"], {"$ONE": ONE, "$TWO": TWO})


@pytest.mark.parametrize(("file", "content", "times", "says"), DAMAGES)
def test_damage_is_named_and_nothing_is_changed(
    root: Path, file: str, content: str | None, times: int, says: str
) -> None:
    as_format_1(root)
    for path in root.glob(f"{file}-wal"):
        path.unlink()
    (root / file).unlink()
    if content is not None:
        (root / file).write_text(content * times)
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
