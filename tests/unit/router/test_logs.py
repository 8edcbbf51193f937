"""Logs: one line an event, secrets masked, libraries quiet; and what the JVM is told."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import tomllib
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import yaml

from catalog.findings import escape_controls, escape_json_controls, to_one_line
from router.cli import run_command_line
from router.logs import JAVA_OPTIONS, OURS, QUIET, configure_logs, get_logger, log4j2_file, make_jvm_log_conf
from router.settings import LogSettings
from router.spark.session import relay_lines
from tests.support.cases import filled, read_cases
from tests.support.letters import letter_id, row, settings_file, write_letters

ROOT = Path(__file__).resolve().parents[3]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, levels = list(root.handlers), {n: logging.getLogger(n).level for n in ("", *OURS, *QUIET)}
    yield
    logging.captureWarnings(False)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def configured(stream: io.StringIO | None = None, **settings: Any) -> io.StringIO:
    out = stream or io.StringIO()
    configure_logs(LogSettings(**settings), out)
    return out


def events(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_with_time_level_logger_and_fields() -> None:
    log = get_logger()
    out = configured(format="json")
    log.warning("batch blocked", query="kafka-1", batch=7)
    [event] = events(out)
    when = datetime.fromisoformat(event.pop("timestamp"))
    assert when.utcoffset() == timedelta(0)
    told = {"event": "batch blocked", "level": "warning", "logger": __name__}
    assert event == {**told, "query": "kafka-1", "batch": 7}


def test_text_is_coloured_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = configured()
    get_logger("router.x").info("started", port=9464)
    assert "\x1b" not in plain.getvalue() and "started" in plain.getvalue() and "port=9464" in plain.getvalue()
    terminal = configured(Terminal())
    get_logger("router.x").info("started")
    assert "\x1b[" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = configured(Terminal())
    get_logger("router.x").info("started")
    assert "\x1b" not in colourless.getvalue()


def test_levels_ours_by_the_settings_others_from_warning() -> None:
    out = configured(format="json", level="debug")
    get_logger("router.x").debug("ours")
    logging.getLogger("bindings.inbox").debug("ours too")
    logging.getLogger("somebody").info("not this")
    logging.getLogger("somebody").warning("this %s", "one")
    logging.getLogger("py4j.clientserver").error("closed connection")
    assert [event["event"] for event in events(out)] == ["ours", "ours too", "this one"]
    out = configured(format="json", level="error")
    get_logger("router.x").warning("not now")
    logging.getLogger("somebody").warning("nor this")
    assert not out.getvalue()


def test_secrets_are_masked_wherever_they_stand() -> None:
    out = configured(format="json")
    get_logger("router.x").info(
        "connecting",
        password="hush",
        options={"sasl.jaas.config": "hush", "linger.ms": "5", "nested": [{"api_key": "hush", "user": "u"}]},
        Authorization="hush",
        access_token="hush",
    )
    logging.getLogger("somebody").warning("other", extra={"client_secret": "hush"})
    assert "hush" not in out.getvalue()
    assert events(out)[0]["options"] == {
        "sasl.jaas.config": "***",
        "linger.ms": "5",
        "nested": [{"api_key": "***", "user": "u"}],
    }
    assert events(out)[1]["client_secret"] == "***"


@pytest.mark.parametrize("format", ["text", "json"])
def test_text_from_outside_cannot_forge_a_line_or_reach_the_terminal(format: str) -> None:
    out = configured(format=format)
    get_logger("router.x").error("bad\nname", detail="x\r\n\x1b[31mforged\u2028line")
    logging.getLogger("somebody").warning("two\nlines")
    assert len(out.getvalue().splitlines()) == 2 and "\x1b" not in out.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_tracebacks_do_not_show_local_variables(format: str) -> None:
    out = configured(format=format)
    hidden = "hush"
    try:
        raise ValueError("boom")
    except ValueError:
        get_logger("router.x").exception("failed")
    assert "ValueError: boom" in out.getvalue()
    assert hidden not in out.getvalue().replace('hidden = "hush"', "")


def test_warnings_of_python_become_log_lines() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        out = configured(format="json")
        warnings.warn("old option", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    [event] = events(out)
    assert event["logger"] == "py.warnings" and "old option" in event["event"]


def test_jvm_options_are_added_to_those_given_and_give_way_to_a_log4j_of_ones_own() -> None:
    ours = make_jvm_log_conf()[JAVA_OPTIONS]
    assert ours == f"-Dlog4j2.configurationFile={log4j2_file().as_uri()}" and " " not in ours
    assert make_jvm_log_conf({JAVA_OPTIONS: "-Xss4m"})[JAVA_OPTIONS] == f"-Xss4m {ours}"
    own = "-Dlog4j2.configurationFile=mine.xml"
    assert make_jvm_log_conf({JAVA_OPTIONS: own})[JAVA_OPTIONS] == own
    assert make_jvm_log_conf()["spark.ui.showConsoleProgress"] == "false"


def test_what_the_jvm_prints_is_json_where_our_lines_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_jvm_log_conf(json=True)[JAVA_OPTIONS].endswith(log4j2_file(json=True).as_uri())
    configure_logs(LogSettings(format="json"))
    printed = b'WARNING: some module\n\n{"event": "a", "level": "error"}\n{"event": "torn' + b"x" * 20_000
    relay_lines(io.BytesIO(printed)).join(10)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines[:2]] == ["printed by the JVM", "a"]
    assert lines[0]["line"] == "WARNING: some module"
    assert [line["event"] for line in lines[2:]] == ["printed by the JVM"] * 3


def test_of_a_trace_that_a_worker_prints_the_error_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings())
    ours = b"2026-01-02T03:04:05.000000Z [error    ] lost  [spark X]\n"
    trace = b'Traceback (most recent call last):\n  File "daemon.py", line 1\n    work()\nOSError: no memory\n'
    printed = b"WARNING: Using incubator modules: jdk.incubator.vector\n" + ours + trace + b"\tat java.lang.Thread\n"
    relay_lines(io.BytesIO(printed)).join(10)
    first, second = capsys.readouterr().err.splitlines()
    assert first == ours.decode().strip() and "OSError: no memory" in second and "printed by the JVM" in second
    relay_lines(io.BytesIO(printed), whole=True).join(10)
    assert len(capsys.readouterr().err.splitlines()) == 7


@pytest.mark.slow
@pytest.mark.parametrize("json", [False, True])
def test_the_jvm_configuration_is_shipped(json: bool) -> None:
    text = log4j2_file(json=json).read_text(encoding="utf-8")
    assert "rootLogger.level = error" in text
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = [pattern for listed in package_data.values() for pattern in listed]
    assert any(fnmatchcase("log4j2.properties", pattern) for pattern in patterns), (
        "an installed xrouter would lack router/log4j2.properties: add *.properties to package-data in pyproject.toml"
    )


# No text of a catalog, a record or a setting acts on the terminal that shows it, whichever command writes it.


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
