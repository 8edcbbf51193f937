"""The command line in this process: one clear line for each error, and what commands say of each other's output."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import typer
import yaml

from catalog.load import load
from router import cli
from router.cli import run_command_line
from router.errors import SinkError
from tests.support.cases import FOLDER

MARKET = str(FOLDER / "market.xreg.json")
SOURCES = [str(FOLDER / "greenhouse.xreg.yaml"), MARKET, str(FOLDER / "harbour.cereg.yaml")]


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


def test_what_match_finds_is_what_match_may_expect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = ["--context", "store=7", "till=2", "receipt=R{n}"]
    assert run_command_line(["emit", "--catalog", MARKET, "--message", "Tills.Sale", "--count", "3", *context]) == 0
    records = capsys.readouterr().out.encode() + b'{"protocol": "HTTP", "native": {"path": "/"}}\n'

    def match(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(records)))
        return run_command_line(["match", "--catalog", MARKET, *options]), *capsys.readouterr()

    decided = ("outcome", "reason", "message", "context", "cloudevent")
    outcomes = [json.loads(line) for line in match()[1].splitlines()]
    forms = [{name: each[name] for name in decided if name in each} for each in outcomes]
    (tmp_path / "e.json").write_text(json.dumps(forms))
    status, _, err = match("--expect", str(tmp_path / "e.json"))
    assert (status, err) == (0, "4 of 4 records as expected\n")


@pytest.mark.parametrize("flatten", [[], ["--flatten"]])
def test_convert_writes_one_document_that_means_the_same(tmp_path: Path, flatten: list[str]) -> None:
    target = tmp_path / "all.yaml"
    assert run_command_line(["catalog", "convert", *SOURCES, "--output", str(target), *flatten]) == 0
    assert yaml.safe_load(target.read_text("utf-8"))["specversion"] == "1.0-rc4"
    old, new = load(SOURCES), load([target])
    assert old.endpoints == new.endpoints and old.definitions.keys() == new.definitions.keys()
    assert flatten or old.definitions == new.definitions
    assert not [each for each in new.findings if each.severity == "error"]
    assert [path.name for path in tmp_path.iterdir()] == ["all.yaml"]
