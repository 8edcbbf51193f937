"""Commands as data: files, command lines, and what comes of them; each case is a part of a file of YAML.

A file has ``sets``, files by name that cases ``use``, and ``cases``. A case is a step, or has ``steps``; its ``patch``
replaces limits of the code. A step writes ``files`` (maps become JSON or YAML), makes ``edits`` (old and new text by
file), sets ``env`` (null removes), and does ``run`` with ``stdin`` (``$OUT`` is what the step before wrote). Then it
must hold: ``exit`` (0 if not given); ``out``, ``err`` have these texts, and ``no`` is in neither; ``errs`` are parts of
the lines on standard error, one of each; ``is`` is all of the output and ``lines`` the number of its lines; ``json``,
or each of the objects ``has`` on some line, fit (:func:`fits`); ``rows`` begin some rows, and no line is wider than
``widest``. ``ids`` are those of the letters on the lines.
Files that are ``written`` have these texts, those that ``hold`` fit these values, and those that are ``gone`` are not
there. ``definitions`` are the xids of catalogs, by their places. ``sql`` has a statement for a database, by file, and
``occurred`` are pairs of endpoint and message, of which a router had records.
``$SAMPLES`` and ``$HERE`` are folders, ``$TAKEN`` is a port that somebody listens at, ``$FREE`` one that nobody does.
Servers that a case asks are in :mod:`tests.support.case_peers`.

A case with ``letters`` has settings and a catalog of :mod:`tests.support.letters` whose ``dead_letters`` go to lines of
JSON, and these letters: each has a number ``n``, changes, and the ``hours`` that it is old; its id is ``$L`` and the
number in hexadecimal. Of the ``ledger``, ``failed``, ``replayed``, ``parked`` and ``pending`` are numbers, and
``order`` has keys and numbers.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line
from router.evaluation.outputs import ROUTED, Tally
from router.evaluation.plan import Plan
from router.settings import load_settings
from router.state.database import StateDatabase
from router.state.ledger import LetterLedger, PendingReplay
from router.watching.coverage import Coverage
from tests.support.case_peers import Peers
from tests.support.cases import FOLDER, filled, read_cases
from tests.support.ledger import attempted, replayed
from tests.support.letters import letter_id, row, settings_file, write_letters
from tests.support.ports import LOOPBACK, free_ports

CASES: Final = Path(__file__).resolve().parents[1] / "cases" / "commands"
NO: Final[Any] = False
"""The key ``no`` of a case, as YAML 1.1 reads it."""


def command_cases() -> Iterator[Any]:
    """Yield all cases as parameters, each with the files that it uses."""
    for path in sorted(CASES.glob("*.yaml")):
        document = read_cases(path)
        for case in document["cases"]:
            files: dict[str, Any] = {}
            for name in case.get("use", "").split():
                files |= document["sets"][name]
            marks = [getattr(pytest.mark, mark) for mark in case.get("marks", "").split()]
            yield pytest.param(case, files, id=f"{path.stem}: {case['case']}", marks=marks)


def write_set(name: str, chosen: str, folder: Path, words: Mapping[str, str] = MappingProxyType({"$": "$"})) -> None:
    """Write a set of files of a file of cases to a folder."""
    _write(filled(read_cases(CASES / f"{name}.yaml")["sets"][chosen], words), folder)


def fits(expected: Any, found: Any) -> bool:
    """Whether a JSON value is as expected: maps by their given members, where null is absent, and lists as a whole.

    A map with one of these instead: ``$has`` and ``$lacks`` are values that some or no item of a list fits, ``$text``
    is part of a text, ``$count`` the number of items, ``$first`` the first of them; a number is ``$between`` two.
    """
    match expected:
        case {"$has": wanted}:
            return all(any(fits(each, item) for item in found) for each in wanted)
        case {"$lacks": unwanted}:
            return not any(fits(each, item) for item in found for each in unwanted)
        case {"$text": text}:
            return text in str(found)
        case {"$first": wanted}:
            return bool(found) and fits(wanted, found[0])
        case {"$between": [low, high]}:
            return bool(low < found < high)
        case {"$count": number}:
            return bool(len(found) == number)
        case Mapping():
            return isinstance(found, Mapping) and all(fits(each, found.get(key)) for key, each in expected.items())
        case list():
            return isinstance(found, list) and len(found) == len(expected) and all(map(fits, expected, found))
    return bool(expected == found)


def run_case(
    case: Mapping[str, Any],
    files: Mapping[str, Any],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Do all steps of a case in a folder, and hold what they give against what they are to give."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    for name, value in case.get("patch", {}).items():
        monkeypatch.setattr(
            name, (lambda found: lambda *_: found)(value["returns"]) if isinstance(value, dict) else value
        )
    with socket.create_server((LOOPBACK, 0)) as taken, ExitStack() as stack:
        peers = Peers(case, folder, stack)
        words = {"$SAMPLES": os.fspath(FOLDER), "$HERE": os.fspath(folder), "$TAKEN": str(taken.getsockname()[1])}
        words |= {**peers.words, "$FREE": str(free_ports(1)[0])} if "$FREE" in str(case) else peers.words
        peers.change(filled(case.get("web", {}), words))
        _run_steps(case, files, folder, words, peers, capsys, monkeypatch)


def _run_steps(
    case: Mapping[str, Any],
    files: Mapping[str, Any],
    folder: Path,
    words: Mapping[str, str],
    peers: Peers,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _write(filled({**files, **case.get("files", {})}, words), folder)
    if "letters" in case:
        words = {**words, **{f"$L{each['n']:x}": letter_id(each["n"]) for each in reversed(case["letters"])}}
        _write_letters(case, folder)
    out = ""
    for written in case.get("steps") or [case]:
        step = filled(written, words)
        _write(step.get("files", {}), folder)
        for name, (old, new) in step.get("edits", {}).items():
            text = (folder / name).read_text()
            assert old in text, old
            (folder / name).write_text(text.replace(old, new))
        for name, statement in step.get("sql", {}).items():
            with closing(sqlite3.connect(folder / name, isolation_level=None)) as database:
                database.execute(statement)
        peers.change(step.get("web", {}))
        for name, value in step.get("env", {}).items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        if "occurred" in step:
            _have_occurred(folder, step["occurred"])
        stdin = out if step.get("stdin") == "$OUT" else step.get("stdin", "")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status = run_command_line(step["run"] if isinstance(step["run"], list) else shlex.split(step["run"]))
        out, err = capsys.readouterr()
        assert status == step.get("exit", 0) and "Traceback" not in err, (status, step["run"], out, err)
        if err.startswith("xrouter: error: "):
            assert all(line.startswith(("xrouter: error: ", "hint: ")) for line in err.splitlines()), err
        _hold(step, out, err)
        for name, texts in step.get("written", {}).items():
            assert all(text in (folder / name).read_text() for text in _listed(texts)), (folder / name).read_text()
        for name, expected in step.get("hold", {}).items():
            assert fits(expected, yaml.safe_load((folder / name).read_text())), (folder / name).read_text()
        assert not [name for name in step.get("gone", ()) if (folder / name).exists()]
        for place, xids in step.get("definitions", {}).items():
            assert sorted(load([place], network=True).definitions) == xids
        peers.check(step)


def _have_occurred(folder: Path, pairs: list[list[str]]) -> None:
    """Let a router start by the settings in ``router.yaml`` and have a record of each message at its endpoint."""
    settings, coverage = load_settings(folder / "router.yaml"), Coverage()
    with StateDatabase(Path(settings.state)) as database:
        coverage.keep_in(database)
        coverage.follow(Plan(load(settings.catalog.source), settings))
        places = [(endpoint, message) for endpoint, message in pairs]
        coverage.add_batch(Tally(Counter((endpoint, ROUTED, "") for endpoint, _ in places), Counter(places)))
        coverage.close()


def _hold(step: Mapping[str, Any], out: str, err: str) -> None:
    for text in _listed(step.get("out")):
        assert text in out, (text, out)
    shown = " ".join(err.replace("│", " ").split())
    for text in _listed(step.get("err")):
        assert text in err or text in shown, (text, err)
    if "errs" in step:
        assert all(part in line for part, line in zip(step["errs"], err.splitlines(), strict=True)), err
    for text in _listed(step.get(NO)):
        assert str(text) not in out + err, (text, out, err)
    assert out == step.get("is", out)
    assert len(out.splitlines()) == step.get("lines", len(out.splitlines()))
    if "json" in step:
        assert fits(step["json"], json.loads(out)), out
    if "has" in step:
        assert fits({"$has": step["has"]}, [json.loads(line) for line in out.splitlines()]), out
    if "ids" in step:
        assert [each["letter"] for each in map(json.loads, out.splitlines()) if "letter" in each] == step["ids"], out
    assert all(len(line) <= step.get("widest", len(line)) for line in out.splitlines()), out
    rows = [line.split("\t") for line in out.splitlines()]
    for wanted in step.get("rows", ()):
        assert any(each[: len(wanted)] == wanted for each in rows), (wanted, out)


def _write_letters(case: Mapping[str, Any], folder: Path) -> None:
    file = settings_file(folder, ["lines"], **case.get("dead_letters", {}))
    now = datetime.now(UTC)
    for version, letter in enumerate(case["letters"], 1):
        changes = {name: each for name, each in letter.items() if name not in ("n", "hours")}
        native = changes.get("native")
        changes |= {"native": json.dumps(native)} if isinstance(native, dict) else {}
        write_letters(
            file, [row(letter["n"], failed=now - timedelta(hours=letter.get("hours", 1)), **changes)], version
        )
    told = case.get("ledger", {})
    with LetterLedger.open(folder / "state") as ledger:
        attempted(ledger, [(letter_id(number), *why) for number, *why in told.get("failed", ())], now)
        replayed(ledger, list(map(letter_id, told.get("replayed", ()))), now)
        ledger.park(map(letter_id, told.get("parked", ())))
        ledger.order.append_letters([(key, letter_id(number)) for key, number in told.get("order", ())])
        if "pending" in told:
            ledger.begin(PendingReplay(ledger.next_number(), "plan", tuple(map(letter_id, told["pending"]))))


def _write(files: Mapping[str, Any], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str):
            content = json.dumps(content, indent=1) if path.suffix == ".json" else yaml.safe_dump(content)
        path.write_text(content, encoding="utf-8")


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [] if value is None else [value]
