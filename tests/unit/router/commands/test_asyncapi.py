"""AsyncAPI documents as catalogs of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line

MARKET = str(Path(__file__).resolve().parents[4] / "catalog" / "samples" / "market.xreg.json")


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs ``xrouter`` and returns its exit code, standard output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = run_command_line(list(arguments))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_asyncapi_is_written_and_read_by_every_command(xrouter: Any, tmp_path: Path) -> None:
    written = tmp_path / "market.yaml"
    status, out, err = xrouter("catalog", "convert", MARKET, "--to", "asyncapi-3.0", "--output", str(written))
    assert (status, out) == (0, "") and yaml.safe_load(written.read_text("utf-8"))["asyncapi"] == "3.0.0"
    assert "xrouter: note: AsyncAPI has no place for envelopemetadata.source of " in err and "x-xregistry has it" in err
    assert load([written]).definitions.keys() == load([MARKET]).definitions.keys()
    assert xrouter("check", str(written))[0] == 0
    again = tmp_path / "again.json"
    assert xrouter("catalog", "convert", str(written), "--output", str(again)) == (0, "", "")
    assert xrouter("catalog", "diff", MARKET, str(again))[0] == 0
    settings = {
        "catalog": {"source": str(written)},
        "sinks": {
            "out": {"type": "jsonl", "path": str(tmp_path / "out")},
            "dead": {"type": "jsonl", "path": str(tmp_path / "dead")},
        },
        "routes": [{"to": ["out"]}],
        "dead_letters": {"sinks": ["dead"]},
        "sources": [{"endpoint": next(iter(load([written]).endpoints))}],
        "state": str(tmp_path / "state"),
    }
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    status, out, err = xrouter("check", str(written), "--config", str(tmp_path / "router.yaml"))
    assert status == 0, out + err


def test_what_of_asyncapi_has_no_place_is_named(xrouter: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "asyncapi: 3.0.0\ninfo: {title: T, version: '1', tags: []}\n"
        "channels: {c: {address: t, bindings: {kafka: {}}, messages: {M: {}}}}\n"
    )
    status, out, err = xrouter("catalog", "convert", str(tmp_path / "a.yaml"), "--to", "yaml")
    assert status == 0 and yaml.safe_load(out)["messagegroups"]["T.c"]["messages"]["M"]["protocol"] == "KAFKA"
    assert err == f"xrouter: note: {tmp_path / 'a.yaml'}/info/tags: xRegistry has no place for tags of this info\n"
