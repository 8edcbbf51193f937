"""A command of our own is one entry in the list of commands, and nothing else is edited."""

from __future__ import annotations

import pytest
import typer

from router import cli


def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"good morning, {name}")


def test_a_command_is_one_entry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "greet", f"{__name__}:greet")
    assert cli.run_command_line(["greet", "Ada"]) == 0
    assert cli.run_command_line(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "good morning, Ada" in shown
    assert "Greet somebody." in shown


def test_without_the_entry_there_is_no_such_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["greet", "Ada"]) == 2
    assert "No such command" in capsys.readouterr().err
