"""Stores that cannot be opened or fail as serving begins: commands of the registry end with one line and a remedy."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from registry.http.server import RegistryServer
from registry.store.engine import store_error
from router.cli import run_command_line
from router.commands.registry import serve
from router.errors import StateError

NOBODY = 65534
STATE = 6
"""The exit code of a store that cannot be used."""


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user to whom a folder's permissions matter, as they do not to root."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(mine)


def command_of(name: str, folder: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    config = folder / "registry.yaml"
    config.write_text(f"open: true\nauthority: urn:us\nstore: {store}\nreplication: [{{url: http://127.0.0.1:1/mc}}]\n")
    monkeypatch.chdir(folder)
    document = folder / "empty.xreg.json"
    document.write_text('{"specversion": "1.0-rc4", "messagegroups": {}}')
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(serve, "configure_logs", lambda _: None)
    return ["registry", name, str(config), *([str(document)] if name == "import" else [])]


def told(command: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run_command_line(command) == STATE
    output, errors = capsys.readouterr()
    assert output == ""
    lines = errors.splitlines()
    assert len(lines) == 2 and lines[0].startswith("xrouter: error: ") and lines[1].startswith("hint: "), errors
    return lines


def test_a_store_is_named_without_what_may_be_a_secret() -> None:
    url = "postgresql+psycopg://u@/r?host=/run/postgresql&password=sesame&options=-c%20x%3Dsesame"
    told = str(store_error(url, OSError("no answer")))
    assert "u@/r" in told and "postgresql" in told and "no answer" in told and "sesame" not in told


@pytest.mark.parametrize("made", [True, False], ids=["with a store", "without"])
def test_a_folder_that_only_others_may_write_to(
    made: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="readonly-"))
    try:
        command = command_of("init", folder, "{path: registry.db}", monkeypatch)
        if made:
            assert run_command_line(command) == 0
            capsys.readouterr()
        for each in (*folder.iterdir(), folder):
            each.chmod(0o555 if each.is_dir() else 0o444)
        with nobody():
            message, hint = told(command, capsys)
        assert f"{folder}/registry.db" in message and "this user write access" in hint
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


# ``xrouter registry serve``: what ends it before it serves.


def test_a_store_that_fails_as_serving_begins_ends_it_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: RegistryServer) -> None:
        raise OperationalError("SELECT 1", {}, Exception("the disk is gone"))

    config = tmp_path / "registry.yaml"
    config.write_text("open: true\n")
    monkeypatch.setattr(RegistryServer, "start", failing)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(serve, "configure_logs", lambda _: None)
    with pytest.raises(StateError, match=r"registry\.db does not answer: the disk is gone"):
        serve.serve(config)
