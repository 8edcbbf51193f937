"""What is no regular file where one has to be: refused in a line that names it, at once, by whatever reads it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import catalog.parsing.regular
from bindings.private_files import is_locked
from router.cli import run_command_line
from router.errors import StateError
from router.state.durable import pinned_addresses
from router.state.ledger import LetterLedger
from router.state.state import StateFolder

LIMIT = 20.0
"""Seconds; what waits for a pipe waits for ever."""


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")
    (path.parent / "elsewhere").write_text("")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def opened(root: Path) -> str:
    """Open a state folder that cannot be used, and return what is said."""
    began = time.monotonic()
    with pytest.raises(StateError) as caught, StateFolder.open(root):
        pass
    assert time.monotonic() - began < LIMIT
    text = f"{caught.value.message}"
    assert "\n" not in text and caught.value.hint
    return text


@pytest.mark.parametrize("made", [a_pipe, a_folder, a_link, a_link_to_nothing, a_socket])
def test_a_lock_that_is_no_file(tmp_path: Path, made: Callable[[Path], None]) -> None:
    root = tmp_path / "state"
    root.mkdir()
    made(root / "lock")
    _, _, why = opened(root).partition(f"{root / 'lock'} cannot be used: ")
    assert why.startswith(("it is a ", "Is a directory"))
    assert not is_locked(root / "lock")


@pytest.mark.parametrize("name", ["format.json", "inbox/format.json", "addresses.json", "ledger/kafka/7", "state.db"])
@pytest.mark.parametrize("made", [a_pipe, a_socket])
def test_a_file_of_the_state_that_is_none(tmp_path: Path, made: Callable[[Path], None], name: str) -> None:
    root = tmp_path / "state"
    with StateFolder.open(root):
        pass
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    made(path)
    said = opened(root)
    assert str(path) in said and "it is a " in said


def test_what_looks_beside_a_router_does_not_wait_either(tmp_path: Path) -> None:
    with StateFolder.open(tmp_path):
        pass
    (tmp_path / "format.json").unlink()
    os.mkfifo(tmp_path / "format.json")
    with pytest.raises(StateError, match="it is a pipe"):
        StateFolder.beside(tmp_path).__enter__()
    os.mkfifo(tmp_path / "addresses.json")
    with pytest.raises(StateError, match=r"addresses\.json"):
        pinned_addresses(tmp_path)
    (tmp_path / "state.db").unlink()
    (tmp_path / "format.json").unlink()
    os.mkfifo(tmp_path / "state.db")
    with pytest.raises(StateError), LetterLedger.open(tmp_path, create=False):
        pass


DEVICE = "/dev/zero"


@pytest.mark.parametrize("what", ["a pipe", "a folder", "a device"])
@pytest.mark.parametrize("role", ["settings", "secret", "catalog", "cases", "records"])
def test_files_that_commands_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str, role: str
) -> None:
    monkeypatch.setattr(catalog.parsing.regular, "PIPE_SECONDS", 0.2)
    good = tmp_path / "catalog.json"
    good.write_text('{"messagegroups": {"g": {"messages": {"m": {"envelope": "CloudEvents/1.0"}}}}}')
    path = tmp_path / "x.cases.yaml"
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a folder":
        path.mkdir()
    else:
        path.symlink_to(DEVICE)
    settings = tmp_path / "router.yaml"
    settings.write_text(f"sources: [{{endpoint: /endpoints/e, username: u, password: 'file:{path}'}}]\n")
    told = {
        "settings": ["check", str(good), "--config", str(path)],
        "secret": ["check", str(good), "--config", str(settings)],
        "catalog": ["check", str(path)],
        "cases": ["test", str(path), "--catalog", str(good)],
        "records": ["match", "--catalog", str(good), "--expect", str(path)],
    }
    began = time.monotonic()
    assert run_command_line(told[role]) != 0
    assert time.monotonic() - began < LIMIT
    said = capsys.readouterr()
    text = said.out + said.err
    if (role, what) == ("cases", "a folder"):  # it may hold some
        assert "there are no cases" in text
        return
    assert (path.name in text or DEVICE in text) and "Traceback" not in text


def test_a_pipe_that_somebody_writes_to_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"messagegroups": {"g": {"messages": {"m": {"envelope": "CloudEvents/1.0"}}}}}')
    os.close(writing)
    try:
        assert run_command_line(["check", f"/dev/fd/{reading}"]) == 0
    finally:
        os.close(reading)
    assert "0 errors" in capsys.readouterr().out
