"""Every error has its own exit code, and is one clear line at the command line."""

from __future__ import annotations

import pytest
import typer

import router.errors as errors
from router import cli
from router.cli import run_command_line
from router.errors import EXIT_CODES, ConfigError, RouterError, SinkError


def test_table_is_complete_and_distinct() -> None:
    declared = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RouterError)}
    assert declared == set(EXIT_CODES)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert not {0, 2} & set(EXIT_CODES.values())


def test_codes_and_text() -> None:
    error = SinkError("lake", "cannot write\nhere", hint="free space")
    assert (error.exit_code, error.message, error.hint) == (8, "sink lake: cannot write here", "free space")
    assert str(error) == "sink lake: cannot write here (free space)"
    assert ConfigError("x").exit_code == 3


def test_an_unexpected_error_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()

    @app.command()
    def fail(kind: str) -> None:
        raise {"zero": ZeroDivisionError("by\nzero"), "sink": SinkError("lake", "full", hint="free it")}[kind]

    monkeypatch.setattr(cli, "app", app)
    assert run_command_line(["zero"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "xrouter: error: unexpected ZeroDivisionError: by zero"
    assert run_command_line(["sink"]) == 8
    assert capsys.readouterr().err == "xrouter: error: sink lake: full\nhint: free it\n"
    monkeypatch.setenv("XROUTER_DEBUG", "1")
    assert run_command_line(["zero"]) == 1
    assert "Traceback" in capsys.readouterr().err
