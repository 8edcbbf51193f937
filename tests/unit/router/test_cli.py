"""The command line in this process: outputs, exit codes, and one clear line for each error."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from router import cli
from router.cli import run_command_line
from router.errors import SinkError

ROOT = Path(__file__).resolve().parents[3]
MARKET = str(ROOT / "catalog" / "samples" / "market.xreg.json")
SALE = "/messagegroups/Market.Tills/messages/Market.Tills.Sale"
COMMANDS = ("run", "check", "match", "emit", "doctor", "demo", "catalog")
CONTEXT = ["--context", "store=7", "--context", "till=2", "--context", "receipt=R{n}"]
BROKEN: dict[str, Any] = {
    "messagegroups": {"G": {"messages": {"A": {"basemessage": "#/messagegroups/G/messages/A", "protocol": "KAFKA"}}}}
}


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """``xrouter(*arguments, stdin=b"")`` gives exit code, standard output and standard error."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = run_command_line(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


def test_version_and_help(xrouter: Any) -> None:
    status, out, _ = xrouter("--version")
    assert (status, out.split()[0]) == (0, "xrouter")
    for arguments in ((), ("--help",), ("catalog", "list", "--help"), *((name, "--help") for name in COMMANDS)):
        status, out, err = xrouter(*arguments)
        assert (status, err) == (0, "") and "Usage" in out


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["nonsense"], 2, "nonsense"),
        (["match"], 2, "--catalog"),
        (["match", "--catalog", MARKET, "--endpoint", "/a", "--group", "/b"], 2, "exclude each other"),
        (["match", "--catalog", MARKET, "--endpoint", "/endpoints/till"], 1, "did you mean /endpoints/tills?"),
        (["match", "--catalog", "nowhere.json"], 4, "nowhere.json does not exist"),
        (["check", "nowhere.json"], 2, "nowhere.json does not exist"),
        (["catalog", "list", "nowhere.json"], 4, "nowhere.json does not exist"),
        (["run", "nowhere.yaml"], 3, "nowhere.yaml"),
        (["emit", "--catalog", MARKET, "--message", SALE], 1, "store, till, receipt"),
        (["emit", "--catalog", MARKET, "--message", SALE, "--context", "store"], 1, "NAME=VALUE"),
        (["emit", "--catalog", MARKET, "--message", SALE, *CONTEXT, "--to", "ftp://x"], 1, "ftp://x"),
        (["emit", "--catalog", MARKET, "--message", SALE, *CONTEXT, "--to", "kafka://x/t"], 1, "target of KAFKA"),
        (["demo", "--keep", str(ROOT)], 1, "is not empty"),
    ],
)
def test_an_error_is_one_line_and_mostly_a_hint(xrouter: Any, arguments: list[str], status: int, told: str) -> None:
    found, _, err = xrouter(*arguments)
    lines = err.splitlines()
    assert found == status
    assert lines[0].startswith("xrouter: error: ") and told in err
    assert all(line.startswith("hint: ") for line in lines[1:]) and len(lines) <= 2


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


def test_check_is_clean_for_the_samples(xrouter: Any) -> None:
    status, out, _ = xrouter("check", str(ROOT / "catalog" / "samples"))
    assert (status, out.splitlines()[-1]) == (0, "0 errors, 0 warnings, 7 infos")
    assert out.count("[deprecated-dialect]") == 5
    assert xrouter("check", MARKET, "--format", "json")[1].strip() == "[]"


def test_check_tells_findings_as_text_and_json(xrouter: Any, tmp_path: Path) -> None:
    path = tmp_path / "broken.xreg.json"
    path.write_text(json.dumps(BROKEN))
    status, out, _ = xrouter("check", str(path), "--format", "json")
    findings = json.loads(out)
    assert status == 1
    assert list(findings[0]) == ["file", "pointer", "severity", "rule", "message", "hint"]
    status, out, _ = xrouter("check", str(path))
    assert status == 1
    assert out.splitlines()[0] == str(path)
    assert f"error {findings[0]['pointer']} [{findings[0]['rule']}]" in out
    assert out.splitlines()[-1].startswith("1 error,")


def test_check_unreadable_as_json(xrouter: Any) -> None:
    status, out, err = xrouter("check", "nowhere.json", "--format", "json")
    assert (status, err) == (2, "")
    assert json.loads(out)[0]["severity"] == "error"


def test_check_looks_at_settings_too(xrouter: Any, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    config.write_text("sources: [{endpoint: /endpoints/nowhere}]\n")
    status, out, _ = xrouter("check", MARKET, "--config", str(config), "--format", "json")
    assert status == 0
    assert [each["rule"] for each in json.loads(out)] == ["no-source", "unknown-endpoint"]
    config.write_text("trigggger: 1s\n")
    status, out, _ = xrouter("check", MARKET, "--config", str(config), "--format", "json")
    assert status == 1
    assert (json.loads(out)[0]["pointer"], json.loads(out)[0]["file"]) == ("/trigggger", str(config))


def test_catalog_list_gives_one_object_a_line(xrouter: Any) -> None:
    status, out, _ = xrouter("catalog", "list", MARKET, "--format", "json")
    listed = {each["xid"]: each for each in map(json.loads, out.splitlines())}
    assert status == 0 and len(listed) == 9
    assert listed[SALE]["endpoints"] == ["/endpoints/tills"]
    assert listed[SALE]["protocoloptions"]["headers"][0]["name"].lower() == "x-receipt"
    assert len(xrouter("catalog", "list", MARKET)[1].splitlines()) == 9


def test_what_emit_writes_match_reads(xrouter: Any) -> None:
    emit = ("emit", "--catalog", MARKET, "--message", SALE, *CONTEXT, "--mode", "native", "--count", "3", "--seed", "1")
    status, records, _ = xrouter(*emit)
    assert status == 0 and len(records.splitlines()) == 3
    lines = records.encode() + b"not a record\n" + records.encode()
    status, out, _ = xrouter("match", "--catalog", MARKET, "--group", "/messagegroups/Market.Tills", stdin=lines)
    outcomes = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [each["outcome"] for each in outcomes] == ["routed"] * 3 + ["dead-letter"] + ["routed"] * 3
    assert outcomes[3]["reason"] == "undecodable"
    assert outcomes[2]["cloudevent"]["id"] == "7-R3"


def test_several_paths_groups_and_values_as_the_contract_writes_them(xrouter: Any) -> None:
    greenhouse = str(ROOT / "catalog" / "samples" / "greenhouse.xreg.yaml")
    emit = ("emit", "--catalog", greenhouse, MARKET, "--message", SALE, "--context", "store=7", "till=2", "receipt=R1")
    status, record, err = xrouter(*emit)
    assert (status, err) == (0, "")
    both = ("--group", "/messagegroups/Greenhouse", "--group", "/messagegroups/Market.Tills")
    _, out, _ = xrouter("match", "--catalog", greenhouse, MARKET, *both, stdin=record.encode())
    assert json.loads(out)["message"] == SALE
    _, out, _ = xrouter("match", "--catalog", greenhouse, MARKET, *both[:2], stdin=record.encode())
    assert json.loads(out)["reason"] == "no-match"


def test_doctor_finds_java_and_reads_settings(xrouter: Any, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    config.write_text(f"catalog: {{source: {MARKET}}}\nsources: [{{endpoint: /endpoints/tills}}]\n")
    status, out, _ = xrouter("doctor", str(config))
    states = {line.split()[1].rstrip(":"): line.split()[0] for line in out.splitlines()}
    assert status == 0
    assert states["java"] == states["pyspark"] == states["settings"] == states["catalog"] == "ok"
    config.write_text("catalog: {source: ./nowhere.json}\n")
    status, out, _ = xrouter("doctor", str(config))
    assert status == 1 and "fail catalog" in out and "remedy" in out


def test_doctor_looks_at_the_shadow(xrouter: Any, tmp_path: Path) -> None:
    config, shadow = tmp_path / "router.yaml", tmp_path / "next.json"
    sources = "sources: [{endpoint: /endpoints/tills}]"
    config.write_text(f"catalog: {{source: {MARKET}, shadow: {shadow}}}\n{sources}\n")
    good = json.loads(Path(MARKET).read_text())
    wrong = json.loads(json.dumps(good))
    wrong["messagegroups"]["Market.Tills"]["envelope"] = []
    wants = ((None, "warn"), (json.dumps(good), "ok"), (json.dumps(wrong), "warn"), ("{}", "warn"))
    for document, state in wants:
        if document is not None:
            shadow.write_text(document)
        status, out, _ = xrouter("doctor", str(config))
        told = next(line for line in out.splitlines() if line.split()[1] == "shadow:")
        assert (status, told.split()[0]) == (0, state), told
        assert state == "ok" or "remedy: " in told


def test_doctor_says_that_few_files_may_be_opened(xrouter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.preflight.get_descriptor_limit", lambda: 1024)
    assert "up to 1024; this limits concurrent connections" in " ".join(xrouter("doctor")[1].split())


def test_doctor_finds_a_java_that_is_missing(xrouter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    status, out, _ = xrouter("doctor")
    assert status == 1 and "fail java: java command not found (remedy: install Java 17 or 21" in out


RECORDS = b"""\
{"protocol": "HTTP", "endpoint": "/endpoints/tills", "native": {"method": "POST", "path": "/stores/7/tills/2/refunds"}}
{"protocol": "HTTP", "endpoint": "/endpoints/none", "native": {"path": "/"}}
"""
REASONS = "[{outcome: dead-letter, reason: no-match}, {reason: no-candidates, message: null}]"


@pytest.mark.parametrize(
    ("expected", "status", "told"),
    [
        ("{outcome: dead-letter}", 0, ["2 of 2 records as expected"]),
        (
            '{"reason": "no-match"}',
            1,
            ["record 2: /reason: expected 'no-match', found 'no-candidates'", "1 of 2 records"],
        ),
        (REASONS, 0, ["2 of 2 records as expected"]),
        ("[{reason: no-match}]", 1, ["record 2: /: expected nothing, found", "1 of 2 records"]),
        ("[{reason: no-match}, {reason: no-candidates}, {}]", 2, ["/2/ expects nothing"]),
        (f"{REASONS[:-1]}, {{outcome: routed}}]", 1, ["2 of 2 records as expected; 1 record missing"]),
        (
            "{outcome: routed, context: {store: '7'}}",
            1,
            ["/outcome: expected 'routed'", "/context/store: expected '7'"],
        ),
        ("{reasn: no-match}", 2, ["/reasn is unknown; did you mean reason?"]),
        ("{sinks: [lake]}", 2, ["/sinks requires a router's settings"]),
        ("[]", 2, ["is an empty list"]),
        ("nowhere.json", 2, ["nowhere.json cannot be read"]),
        ("{outcome: routed", 2, ["--expect"]),
    ],
)
def test_match_says_what_is_not_as_expected(xrouter: Any, expected: str, status: int, told: list[str]) -> None:
    found, out, err = xrouter("match", "--catalog", MARKET, "--expect", expected, stdin=RECORDS)
    text = " ".join(err.replace("│", " ").split())
    assert found == status and all(each in text for each in told), err
    assert len(out.splitlines()) == (0 if status == 2 else 2), "outcomes are written as ever"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e.yaml", "- reason: no-match\n- reason: no-candidates\n"),
        ("e.json", '{"outcome": "dead-letter"}'),
        ("e.jsonl", '{"reason": "no-match"}\n\n{"reason": "no-candidates"}\n'),
    ],
)
def test_match_expects_what_a_file_says(xrouter: Any, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    arguments = ("match", "--catalog", MARKET, "--expect", str(tmp_path / name))
    assert xrouter(*arguments, stdin=RECORDS)[0] == 0
    assert xrouter(*arguments, stdin=RECORDS.splitlines()[1])[0] == int(name != "e.json")
    status, _, err = xrouter(*arguments, stdin=b"")
    assert status == 1 and err.startswith("0 of 0 records as expected"), "no record is no success"


def test_what_match_finds_is_what_match_may_expect(xrouter: Any, tmp_path: Path) -> None:
    emit = ("emit", "--catalog", MARKET, "--message", SALE, *CONTEXT, "--mode", "native", "--count", "3", "--seed", "1")
    records = xrouter(*emit)[1].encode() + RECORDS
    outcomes = [json.loads(line) for line in xrouter("match", "--catalog", MARKET, stdin=records)[1].splitlines()]
    decided = ("outcome", "reason", "message", "context", "cloudevent")
    forms = [{name: each[name] for name in decided if name in each} for each in outcomes]
    (tmp_path / "e.json").write_text(json.dumps(forms))
    status, _, err = xrouter("match", "--catalog", MARKET, "--expect", str(tmp_path / "e.json"), stdin=records)
    assert (status, err) == (0, "5 of 5 records as expected\n")
