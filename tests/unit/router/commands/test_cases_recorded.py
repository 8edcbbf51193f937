"""``xrouter test --record``: cases made of records and dead letters."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from router.dead_letters.redaction import HIDDEN
from router.errors import USAGE
from tests.support.cases import GREENHOUSE, XRouter, reported, runner, valve
from tests.support.letters import row, settings_file, write_letters


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> XRouter:
    """``xrouter(*arguments)`` runs ``test`` and gives exit code, standard output and standard error."""
    return runner(capsys, monkeypatch)


@pytest.mark.parametrize("suffix", ["yaml", "json", "jsonl"])
def test_a_recorded_case_fails_after_the_catalog_changed(
    xrouter: XRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    catalog, output = tmp_path / "greenhouse.xreg.yaml", tmp_path / "sub" / f"a.cases.{suffix}"
    catalog.write_text(GREENHOUSE.read_text())
    output.parent.mkdir()
    records = [valve(f"valves.{number}.roof") for number in range(3)] + [valve("valve.1")]
    lines = "\n\n".join(map(json.dumps, records)).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    status, out, _ = xrouter(output, "--catalog", catalog, "--record", "-")
    assert (status, out) == (0, f"{output}: 4 cases recorded\n")
    report = reported(xrouter, output)
    assert (report["passed"], report["failed"]) == (4, 0)
    if suffix == "yaml":
        assert output.read_text().startswith("# yaml-language-server: $schema=./.cases.schema.json\n")
        head = yaml.safe_load(output.read_text())
        assert head["catalog"] == ["../greenhouse.xreg.yaml"]
        assert head["cases"][1]["name"] == "Greenhouse.Plain.Valve 2"
        assert head["cases"][1]["expect"]["context"] == {"house": "1", "valve": "roof"}
        assert head["cases"][3]["expect"] == {"outcome": "dead-letter", "reason": "no-match"}
        # The id of a mapped event depends on where its record lies.
        assert "id" not in head["cases"][1]["expect"]["cloudevent"]
    beside = output.parent / ".cases.schema.json"
    if suffix == "jsonl":
        assert not beside.exists(), "a schema is of a document, and no line names one"
    else:
        schema = jsonschema_rs.validator_for(json.loads(beside.read_bytes()))
        schema.validate(yaml.safe_load(output.read_text()))
    assert reported(xrouter, output.parent)["passed"] == 4, "the schema is no file of cases"
    catalog.write_text(GREENHOUSE.read_text().replace("valves.{house}.{valve}", "valve.{house}"))
    status, out, _ = xrouter(output)
    assert status == 1
    assert "0 of 4 cases passed" in out
    head, outcome, more, why = out.splitlines()[:4]
    assert head.startswith(f"FAILED {output}:") and outcome.endswith("expected 'routed', found 'dead-letter'")
    assert more.endswith("differences as a consequence") and why.startswith("  why: ")
    assert "requires protocoloptions.subject 'valve.{house}', and the record has 'valves.0.roof'" in out


def test_recording_is_bounded_and_writes_over_nothing(xrouter: XRouter, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text("".join(f"{json.dumps(valve())}\n" for _ in range(9)))
    output = tmp_path / "a.cases.yaml"
    arguments = (output, "--catalog", GREENHOUSE, "--record", records)
    assert "2 cases recorded" in xrouter(*arguments, "--count", 2)[1]
    assert "already exists" in xrouter(*arguments)[2]
    assert "9 cases recorded" in xrouter(*arguments, "--force")[1]
    records.write_text(f"{json.dumps(valve())}\n\n[]")
    assert "records.jsonl:3: a record is a JSON object" in xrouter(*arguments, "--force")[2]
    records.write_text("")
    assert xrouter(*arguments, "--force")[0] == 1
    assert xrouter(tmp_path, "--catalog", GREENHOUSE, "--record", records)[0] == USAGE
    assert xrouter(*arguments[:-1], "dead-letters", "--force")[0] == USAGE
    assert "gone.jsonl cannot be read" in xrouter(*arguments[:-1], tmp_path / "gone.jsonl", "--force")[2]


def test_dead_letters_become_cases_without_what_is_sensitive(xrouter: XRouter, tmp_path: Path) -> None:
    config = settings_file(tmp_path, ("lines",), redact=["ce-id"])
    write_letters(config, [row(number) for number in range(3)])
    output = tmp_path / "a.cases.yaml"
    status, out, _ = xrouter(output, "--config", config, "--record", "dead-letters", "--count", 2)
    assert (status, out) == (0, f"{output}: 2 cases recorded\n")
    cases = yaml.safe_load(output.read_text())["cases"]
    assert cases[0]["expect"] == {
        "outcome": "dead-letter",
        "reason": "no-match",
        "endpoint": "/endpoints/till",
        "sinks": ["lines"],
    }
    headers = {each["name"]: each["value"] for each in cases[0]["record"]["native"]["headers"]}
    assert (headers["ce-id"], headers["ce-type"]) == (HIDDEN, "sold")
    assert xrouter(output)[0] == 0
    catalog = tmp_path / "catalog.json"
    catalog.write_text(catalog.read_text().replace('"sale"', '"sold"'))
    status, out, _ = xrouter(output)
    assert status == 1
    assert "expected 'dead-letter', found 'routed'" in out


def test_a_record_that_sensitive_values_decide_about_makes_no_case(xrouter: XRouter, tmp_path: Path) -> None:
    config = settings_file(tmp_path, ("lines",), redact=["ce-type"])
    catalog = tmp_path / "catalog.json"
    catalog.write_text(catalog.read_text().replace('"sale"', '"sold"'))
    write_letters(config, [row(0)])
    output = tmp_path / "a.cases.yaml"
    arguments = (output, "--config", config, "--record", "dead-letters")
    status, _, err = xrouter(*arguments)
    assert (status, output.exists()) == (1, False)
    assert "1 record skipped, since their outcomes depend on sensitive values; --reveal keeps them" in err
    assert xrouter(*arguments, "--reveal")[0] == 0
    assert "type: sold" in output.read_text()
