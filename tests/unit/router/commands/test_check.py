"""How ``check`` writes findings: as text with lines and folds, as SARIF, and what it says of a rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.linting.attributes import load_rules
from catalog.model import Finding
from router.cli import run_command_line
from router.commands.check.command import SARIF_VERSION, artifact_uri, make_sarif_log

LEVELS = {"error": "error", "warning": "warning", "info": "note"}


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalog with 25 findings of one rule and one of another, one thing a line; the working folder is beside it."""
    messages = {f"m{n:02}": {"format": "CloudEvents/1.0"} for n in range(25)}
    tree = {"messagegroups": {"g g": {"messages": messages}}, "endpoints": {"e": {"usage": "nobody"}}}
    (tmp_path / "below").mkdir()
    path = tmp_path / "below" / "many findings.json"
    path.write_text(json.dumps(tree, indent=1))
    monkeypatch.chdir(tmp_path)
    return path


def test_text_folds_what_is_many_and_shows_lines(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", str(many)]) == 0
    out = capsys.readouterr().out
    assert out.count("[unusual-name]") == 20 + 1
    assert "… and 5 more of [unusual-name] (--all shows all)" in out
    rows = many.read_text().splitlines()
    line = next(line for line in out.splitlines() if "/m07/format" in line)
    number = int(line.strip().split(":")[0])
    assert '"format"' in rows[number - 1] and '"m07"' in rows[number - 2]
    assert run_command_line(["check", str(many), "--all"]) == 0
    out = capsys.readouterr().out
    assert out.count("[unusual-name]") == 25 and "more of" not in out


def test_json_is_never_folded(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", str(many), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(each["rule"] == "unusual-name" for each in found) == 25
    assert {tuple(each) for each in found} == {("file", "pointer", "severity", "rule", "message", "hint")}


def test_sarif_has_rules_levels_lines_and_pointers(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", "below/many findings.json", "--format", "sarif"]) == 0
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == SARIF_VERSION
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert [rule["id"] for rule in driver["rules"]] == list(load_rules())
    assert len(run["results"]) >= 26
    for result in run["results"]:
        rule = driver["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"] and rule["help"]["text"] and rule["shortDescription"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"] == {"uri": "below/many%20findings.json"}
        assert location["physicalLocation"]["region"]["startLine"] > 1
        assert location["logicalLocations"][0]["fullyQualifiedName"].startswith("/")
    usage = next(each for each in run["results"] if each["ruleId"] == "unknown-usage")
    assert usage["level"] == "warning" and "nobody" in usage["message"]["text"]
    marks = [each["partialFingerprints"]["ruleAndPointer/v1"] for each in run["results"]]
    assert len(set(marks)) == len(marks)


def test_sarif_of_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", str(tmp_path / "gone.json"), "--format", "sarif"]) == 2
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 2}]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [("unreadable-document", "error")]


def test_sarif_levels_and_bare_findings(tmp_path: Path) -> None:
    found = [Finding("", "", severity, "no-definitions", "x", "y") for severity in ("error", "warning", "info")]
    results: list[dict[str, Any]] = make_sarif_log(found, {}, tmp_path, exit_code=1)["runs"][0]["results"]
    assert [each["level"] for each in results] == list(LEVELS.values())
    assert all(each["locations"] == [] and each["message"] == {"text": "x; y"} for each in results)


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("a b.json", "a%20b.json"),
        ("{folder}/x/ä.json", "x/%C3%A4.json"),
        ("https://example.com/c.json", "https://example.com/c.json"),
        ("../beside.json", "file://{parent}/beside.json"),
    ],
)
def test_artifact_uris(file: str, uri: str, tmp_path: Path) -> None:
    places = {"{folder}": str(tmp_path), "{parent}": str(tmp_path.resolve().parent)}
    for mark, place in places.items():
        file, uri = file.replace(mark, place), uri.replace(mark, place)
    assert artifact_uri(file, tmp_path) == uri


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", "--explain", "base-cycle"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("base-cycle (error)\n") and load_rules()["base-cycle"].doc in out
    assert run_command_line(["check", "--explain", "all"]) == 0
    assert capsys.readouterr().out.count("Basis: ") == len(load_rules())
    assert run_command_line(["check", "--explain", "base-cycel"]) == 1
    assert "did you mean base-cycle?" in capsys.readouterr().err


def test_strict_fails_for_warnings_and_not_for_infos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The findings are those of the plain call; only the end differs, in SARIF as well."""
    warned = tmp_path / "warned.json"
    group = {"messages": {"m": {"envelope": "CloudEvents/1.0", "basemessage": "/messagegroups/G/messages/none"}}}
    warned.write_text(json.dumps({"specversion": "1.0-rc2", "messagegroups": {"G": group}}))
    assert run_command_line(["check", str(warned), "--format", "json"]) == 0
    plain = capsys.readouterr().out
    assert {each["severity"] for each in json.loads(plain)} >= {"warning"}
    assert run_command_line(["check", str(warned), "--strict", "--format", "json"]) == 1
    assert capsys.readouterr().out == plain
    assert run_command_line(["check", str(warned), "--strict", "--format", "sarif"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["invocations"][0]["exitCode"] == 1
    informed = tmp_path / "informed"
    informed.mkdir()
    (informed / "other.json").write_text("{}")
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "t"}}}
    tree = {"specversion": "1.0-rc2", "messagegroups": {"G": {"messages": {"m": message}}}}
    (informed / "catalog.json").write_text(json.dumps(tree))
    assert run_command_line(["check", str(informed), "--strict", "--format", "json"]) == 0
    assert {each["severity"] for each in json.loads(capsys.readouterr().out)} == {"info"}


@pytest.mark.parametrize(
    ("context", "rules"),
    [
        pytest.param({}, ["falls-back", "unmappable"], id="nothing-supplies-them"),
        pytest.param({"plant": "p1"}, ["unmappable"], id="one-is-supplied"),
        pytest.param({"plant": "p1", "line": "l1"}, [], id="all-are"),
    ],
)
def test_context_of_sources_supplies_placeholders(
    context: dict[str, str], rules: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {
        "type": {"value": "reading"},
        "source": {"value": "/plants/{plant}", "type": "uritemplate"},
        "subject": {"value": "{line}", "type": "uritemplate"},
    }
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": metadata, "protocol": "HTTP/1.1"}
    message["protocoloptions"] = {"path": "/in", "method": "POST"}
    endpoint = {"usage": ["consumer"], "protocol": "HTTP/1.1", "protocoloptions": {"path": "/in"}}
    endpoint["messages"] = {"reading": message}
    (tmp_path / "catalog.json").write_text(json.dumps({"endpoints": {"in": endpoint}}))
    settings = {
        "catalog": {"source": str(tmp_path / "catalog.json")},
        "sources": [{"endpoint": "/endpoints/in", "context": context}],
        "sinks": {"lake": {"type": "table", "path": "lake"}, "dead": {"type": "table", "path": "dead"}},
        "routes": [{"to": ["lake"]}],
        "dead_letters": {"sinks": ["dead"]},
    }
    (tmp_path / "router.yaml").write_text(json.dumps(settings))
    arguments = [str(tmp_path / "catalog.json"), "--config", str(tmp_path / "router.yaml"), "--format", "json"]
    assert run_command_line(["check", *arguments]) == 0
    told = [each["rule"] for each in json.loads(capsys.readouterr().out)]
    assert [rule for rule in sorted(told) if rule in {"falls-back", "unmappable"}] == rules


@pytest.mark.parametrize(("protocol", "status"), [("MQTT/3.1.1", 1), ("MQTT/5.0", 0)])
def test_an_option_that_decides_which_messages_come_is_an_error_of_the_source(
    protocol: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"endpoints": [{"uri": "mqtt://h"}], "topicfilter": "a", "nolocal": True}
    message = {"protocol": protocol, "protocoloptions": {"topic_name": "a"}}
    endpoint = {"usage": ["consumer"], "protocol": protocol, "protocoloptions": options, "messages": {"m": message}}
    (tmp_path / "c.json").write_text(json.dumps({"specversion": "1.0-rc4", "endpoints": {"e": endpoint}}), "utf-8")
    settings = {
        "catalog": {"source": str(tmp_path / "c.json")},
        "sinks": {"o": {"type": "jsonl", "path": str(tmp_path / "out")}},
        "routes": [{"to": ["o"]}],
        "dead_letters": {"sinks": ["o"]},
    }
    (tmp_path / "r.yaml").write_text(json.dumps(settings), "utf-8")
    assert run_command_line(["check", str(tmp_path / "c.json"), "--config", str(tmp_path / "r.yaml")]) == status
    assert ("option nolocal decides which messages come" in capsys.readouterr().out) is (status == 1)


def _rides(folder: Path, settings: str = "") -> Path:
    """Write a sound catalog of one endpoint, and settings."""
    options = {"endpoints": [{"uri": "PLAINTEXT://localhost:9092"}], "options": {"topic": "rides"}}
    endpoint = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": options}
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "begun"}}}
    tree = {
        "specversion": "1.0-rc4",
        "endpoints": {"rides": {**endpoint, "messagegroups": ["/messagegroups/Rides"]}},
        "messagegroups": {"Rides": {"messages": {"begun": message}}},
    }
    path = folder / "catalog.xreg.json"
    path.write_text(json.dumps(tree))
    (folder / "router.yaml").write_text(settings)
    return path


_IDLE: dict[str, tuple[str, str, str]] = {
    "a protocol that nobody knows": ('"KAFKA"', '"KAFKAA"', "did you mean KAFKA?"),
    "a group that is not there": (
        '"/messagegroups/Rides"',
        '"/messagegroups/Ride"',
        "did you mean /messagegroups/Rides?",
    ),
    "an envelope that nobody knows": ('"CloudEvents/1.0"', '"CloudEvent/1.0"', "did you mean CloudEvents/1.0?"),
    "a topic that cannot be": ('"topic": "rides"', '"topic": "ri/des"', "write a valid topic"),
    "a usage that nobody knows": ('"consumer"', '"consumr"', "did you mean consumer?"),
    "a schema that is not there": (
        '"envelope":',
        '"dataschemaformat": "Avro/1.11", "dataschemaxid": "/schemagroups/S/schemas/R", "envelope":',
        "correct the reference",
    ),
    "a type that Avro does not know": (
        '"envelope":',
        '"dataschemaformat": "Avro/1.11", "dataschema": {"type": "array", "items": "integer"}, "envelope":',
        "did you mean int?",
    ),
}


@pytest.mark.parametrize("what", _IDLE)
def test_what_never_receives_matches_or_validates_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    path = _rides(tmp_path)
    assert run_command_line(["check", str(path)]) == 0
    old, new, hint = _IDLE[what]
    text = path.read_text()
    path.write_text(text.replace(old, new, 1) if old != '"KAFKA"' else text.replace(old, new))
    capsys.readouterr()
    assert run_command_line(["check", str(path)]) == 1
    assert hint in capsys.readouterr().out
    # The rest works: a definition that is sound is there all the same.
    assert run_command_line(["catalog", "list", str(path), "--format", "json"]) == 0
    assert "/messagegroups/Rides/messages/begun" in capsys.readouterr().out


def test_settings_that_name_an_endpoint_beside_the_one_of_the_catalog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _rides(tmp_path, "catalog: {source: ./catalog.xreg.json}\nsources: [{endpoint: /endpoints/ride}]\n")
    assert run_command_line(["check", str(path), "--config", str(tmp_path / "router.yaml")]) == 1
    out = capsys.readouterr().out
    assert "the catalog has no endpoint /endpoints/ride" in out and "did you mean /endpoints/rides?" in out
    (tmp_path / "router.yaml").write_text("catalog: {source: ./catalog.xreg.json}\nsources: [{endpoint: rides}]\n")
    assert run_command_line(["check", str(path), "--config", str(tmp_path / "router.yaml")]) == 1
    assert "did you mean /endpoints/rides?" in capsys.readouterr().out


def test_settings_that_name_another_catalog_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = "sources: [{endpoint: /endpoints/rides}]\n"
    path = _rides(tmp_path, f"catalog: {{source: ./other.json}}\n{sources}")
    config = str(tmp_path / "router.yaml")
    assert run_command_line(["check", str(path), "--config", config]) == 0
    out = capsys.readouterr().out
    assert "[other-catalog]" in out and str(tmp_path / "other.json") in out
    (tmp_path / "router.yaml").write_text(f"catalog: {{source: ./catalog.xreg.json}}\n{sources}")
    assert run_command_line(["check", str(path), "--config", config]) == 0
    assert "[other-catalog]" not in capsys.readouterr().out
