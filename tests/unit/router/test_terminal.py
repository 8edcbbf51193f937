"""No text of a catalog, a record or a setting acts on the terminal that shows it, whichever command writes it."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
import yaml

from catalog.findings import escape_controls, escape_json_controls, to_one_line
from router.cli import run_command_line
from router.logs import configure_logs, get_logger
from router.settings import LogSettings
from tests.support.cases import filled, read_cases
from tests.support.letters import letter_id, row, settings_file, write_letters

MARKUP = "[red][link=x]l[blink]:boom:"
HOSTILE = f"\x1b]0;owned\x07\x1b[2J\r\x00\x08\x7f\x9b1m\u202egpj\u2066\u200b\u2028\u2029\ufeff\U000e0041{MARKUP}"
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
COLOURS = re.compile("\x1b\\[[0-9;]*m")
"""What rich itself writes to a terminal: styles, and nothing that moves or names anything."""
NAME = f"/messagegroups/G{HOSTILE}/messages/M{HOSTILE}"
CASES: Final = filled(
    read_cases(Path(__file__).resolve().parents[2] / "cases" / "terminal.yaml"),
    {"$HOSTILE": HOSTILE, "$ARGUMENT": HOSTILE.replace("\0", ""), "$LETTER": letter_id(1)},
)


RECORDS: Final = "\n".join(map(json.dumps, CASES["records"])).encode()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two hostile catalogs, settings beside them, and a hostile dead letter."""
    folder = tmp_path_factory.mktemp("hostile")
    one, other = folder / "catalog.xreg.json", folder / "other.json"
    config = settings_file(folder, ["lines"])
    text = json.dumps(CASES["catalog"])
    one.write_text(text)
    other.write_text(text.replace(json.dumps(f"t{HOSTILE}"), json.dumps(f"u{HOSTILE}")))
    told = yaml.safe_load(config.read_text())
    told["catalog"] = {"source": str(one)}
    told["sinks"] |= CASES["settings"]["sinks"]
    config.write_text(yaml.safe_dump({**told, **CASES["settings"], "sinks": told["sinks"]}))
    letter = {name: each if isinstance(each, str) else json.dumps(each) for name, each in CASES["letter"].items()}
    write_letters(config, [row(1, failed=datetime.now(UTC), **letter)], 1)
    (folder / "records.jsonl").write_bytes(RECORDS)
    return {"RECORDS": str(folder / "records.jsonl"), "CATALOG": str(one), "OTHER": str(other), "CONFIG": str(config)}


class _Input:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["piped", "terminal"])
@pytest.mark.parametrize(
    "arguments", CASES["commands"], ids=lambda each: escape_controls(" ".join(each[:2]))[:40] + f"-{len(each)}"
)
def test_no_command_writes_what_a_terminal_acts_upon(
    arguments: list[str],
    shown: str,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr(sys, "stdin", _Input(RECORDS))
    if shown == "terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "400")
    run_command_line([places.get(each, each) for each in arguments])
    out, err = capfdbinary.readouterr()
    for written in (out, err):
        text = written.decode("utf-8")
        assert "Traceback" not in text
        harmful = UNSAFE.findall(COLOURS.sub("", text) if shown == "terminal" else text)
        assert not harmful, (harmful, text)
    assert out or err
    if "json" in arguments or "sarif" in arguments:
        lines = [out] if arguments[0] in ("check", "plan") or arguments[1] in ("show", "diff") else out.splitlines()
        assert all(json.loads(line) is not None for line in lines)


def test_markup_in_names_is_text(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    run_command_line(["check", places["CATALOG"]])
    out = capsys.readouterr().out
    assert MARKUP in out
    run_command_line(["catalog", "list", places["CATALOG"], "--format", "json"])
    listed = [json.loads(line)["xid"] for line in capsys.readouterr().out.split("\n") if line]
    assert NAME in listed, "JSON means the same as the catalog"


def test_documents_written_to_a_terminal_mean_the_same(
    places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        run_command_line(["catalog", "convert", places["CATALOG"], "--to", form])
        document = read(capsys.readouterr().out)
        assert f"M{HOSTILE}" in document["messagegroups"][f"G{HOSTILE}"]["messages"]


def test_a_cell_cannot_forge_another_row(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    from router.terminal import print_row as say_row

    say_row(["a\nforged\trow", "b"])
    assert capsys.readouterr().out == "a\\nforged\\trow\tb\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_log_line_acts_on_a_terminal(form: str) -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format=form), stream)
    log = get_logger("router")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("it failed", name=HOSTILE, many=[HOSTILE], some={HOSTILE: HOSTILE})
    log.warning(f"event {HOSTILE}\nforged")
    assert not UNSAFE.findall(stream.getvalue())
    assert "\nforged" not in stream.getvalue()


def test_escapes_are_exact() -> None:
    assert escape_controls("plain é 漢\n\tß") == "plain é 漢\n\tß"
    assert to_one_line("a\tb\n") == "a\\tb\\n"
    assert escape_controls("\x1b\u202e\U000e0041\ud800") == "\\x1b\\u202e\\U000e0041\\ud800"
    document = json.dumps({"k\u202e": "\U000e0041\x7f\x9b漢"}, ensure_ascii=False).encode()
    assert json.loads(escape_json_controls(document)) == json.loads(document)
    assert not UNSAFE.findall(escape_json_controls(document).decode())
