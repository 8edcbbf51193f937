"""No text of a catalog, a record or a setting acts on the terminal that shows it, whichever command writes it."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.findings import escape_controls, escape_json_controls, to_one_line
from router.cli import run_command_line
from router.logs import configure_logs, get_logger
from router.settings import LogSettings
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
ENDPOINT = f"/endpoints/e{HOSTILE}"
COMMANDS: list[list[str]] = [
    ["check", "CATALOG"],
    ["check", "CATALOG", "--all"],
    ["check", "CATALOG", "--format", "json"],
    ["check", "CATALOG", "--format", "sarif"],
    ["check", "CATALOG", "--config", "CONFIG"],
    ["check", f"missing{HOSTILE}".replace("\0", "")],
    ["check", "--explain", f"no{HOSTILE}"],
    ["catalog", "list", "CATALOG"],
    ["catalog", "list", "CATALOG", "--format", "json"],
    ["catalog", "show", NAME, "CATALOG"],
    ["catalog", "show", NAME, "CATALOG", "--format", "json"],
    ["catalog", "show", ENDPOINT, "CATALOG"],
    ["catalog", "show", f"/nothing{HOSTILE}", "CATALOG"],
    ["catalog", "diff", "CATALOG", "OTHER"],
    ["catalog", "diff", "CATALOG", "OTHER", "--format", "json"],
    ["catalog", "convert", "CATALOG"],
    ["catalog", "convert", "CATALOG", "--to", "yaml"],
    ["routes", "CONFIG"],
    ["routes", "CONFIG", "--format", "json"],
    ["match", "--catalog", "CATALOG"],
    ["match", "--catalog", "CATALOG", "--explain", "--all"],
    ["match", "--catalog", "CATALOG", "--endpoint", f"/endpoints/x{HOSTILE}"],
    ["emit", "--catalog", "CATALOG", "--message", NAME, "--context", "x=1"],
    ["emit", "--catalog", "CATALOG", "--message", f"/m{HOSTILE}"],
    ["doctor", "CONFIG"],
    ["dead-letters", "list", "CONFIG"],
    ["dead-letters", "list", "CONFIG", "--format", "json"],
    ["dead-letters", "show", "CONFIG", letter_id(1)],
    ["dead-letters", "show", "CONFIG", letter_id(1), "--format", "json"],
    ["dead-letters", "show", "CONFIG", f"ab{HOSTILE}"],
    ["dead-letters", "suggest", "CONFIG", "--min", "1"],
    ["dead-letters", "purge", "CONFIG", "--older", f"1d{HOSTILE}"],
    ["dead-letters", "release", "CONFIG", f"ab{HOSTILE}"],
    ["batches", "show", "CONFIG"],
    ["batches", "park", "CONFIG", f"q{HOSTILE}"],
    ["routes", f"no{HOSTILE}".replace("\0", "")],
    [f"no-command{HOSTILE}"],
]


def catalog(literal: str) -> dict[str, Any]:
    message = {
        "envelope": "CloudEvents/1.0",
        "protocol": "KAFKA",
        "description": HOSTILE,
        "envelopemetadata": {
            "type": {"value": literal},
            "subject": {"value": f"{{x}}{HOSTILE}", "type": "uritemplate"},
            f"ext{HOSTILE}": {"value": HOSTILE, "type": f"t{HOSTILE}"},
        },
        "protocoloptions": {"headers": [{"name": f"h{HOSTILE}", "value": HOSTILE}]},
        f"odd{HOSTILE}": HOSTILE,
        "base": f"/messagegroups/none{HOSTILE}/messages/x",
    }
    sound = {key: message[key] for key in ("envelope", "protocol", "description", "envelopemetadata")}
    sound["envelopemetadata"] = {"type": {"value": literal}, "subject": {"value": "{x}", "type": "uritemplate"}}
    endpoint = {
        "usage": ["consumer"],
        "protocol": "HTTP",
        "protocoloptions": {"endpoints": [{"uri": "http://127.0.0.1/e"}]},
        "messagegroups": [f"/messagegroups/G{HOSTILE}", f"/messagegroups/none{HOSTILE}"],
    }
    own = {
        "messages": {f"M{HOSTILE}": sound, f"Bad{HOSTILE}": message, f"W{HOSTILE}": {**message, "protocol": HOSTILE}}
    }
    return {"endpoints": {f"e{HOSTILE}": endpoint}, "messagegroups": {f"G{HOSTILE}": own}}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two hostile catalogs, settings beside them, and a hostile dead letter."""
    folder = tmp_path_factory.mktemp("hostile")
    one, other = folder / "catalog.xreg.json", folder / "other.json"
    config = settings_file(folder, ["lines"])
    one.write_text(json.dumps(catalog(f"t{HOSTILE}")))
    other.write_text(json.dumps(catalog(f"u{HOSTILE}")))
    told = yaml.safe_load(config.read_text())
    told["catalog"] = {"source": str(one)}
    told["sources"] = [{"endpoint": ENDPOINT}, {"endpoint": f"/endpoints/lacking{HOSTILE}"}]
    told["sinks"][f"sink{HOSTILE}"] = {"type": "jsonl", "path": "./more"}
    told["routes"] = [{"to": [f"sink{HOSTILE}"]}]
    config.write_text(yaml.safe_dump(told))
    native = {
        "protocol": "HTTP",
        "method": "POST",
        "path": f"/e{HOSTILE}",
        "headers": [{"name": "h", "value": HOSTILE}],
    }
    letter = row(
        1,
        failed=datetime.now(UTC),
        detail=HOSTILE,
        endpoint=ENDPOINT,
        native=json.dumps(native),
        nearest=json.dumps(
            [{"message": NAME, "mismatches": [{"property": HOSTILE, "expected": HOSTILE, "found": HOSTILE}]}]
        ),
    )
    write_letters(config, [letter], 1)
    return {"CATALOG": str(one), "OTHER": str(other), "CONFIG": str(config)}


def record() -> bytes:
    headers = [{"name": "ce_type", "value": f"t{HOSTILE}"}, {"name": f"h{HOSTILE}", "value": HOSTILE}]
    good = [
        {"name": "ce_specversion", "value": "1.0"},
        {"name": "ce_id", "value": "1"},
        {"name": "ce_source", "value": "s"},
    ]
    return b"\n".join(
        json.dumps({"protocol": "KAFKA", "topic": f"t{HOSTILE}", "headers": each}).encode()
        for each in (headers, [*good, *headers])
    )


class _Input:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["piped", "terminal"])
@pytest.mark.parametrize(
    "arguments", COMMANDS, ids=lambda each: escape_controls(" ".join(each[:2]))[:40] + f"-{len(each)}"
)
def test_no_command_writes_what_a_terminal_acts_upon(
    arguments: list[str],
    shown: str,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr(sys, "stdin", _Input(record()))
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
        lines = [out] if arguments[0] == "check" or arguments[1] in ("show", "diff") else out.splitlines()
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


def test_only_one_module_writes_to_people() -> None:
    allowed = {"terminal.py", "connectors.py"}
    root = Path(__file__).resolve().parents[3]
    for path in (
        *(root / "router" / "commands").glob("*.py"),
        *(root / "router" / "demo").glob("*.py"),
        root / "router/cli.py",
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert path.name in allowed or called not in {"print", "typer.echo", "Console", "sys.stdout.write"}, path
