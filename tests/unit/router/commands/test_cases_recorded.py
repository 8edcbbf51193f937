"""``xrouter test --record``: cases made of records and dead letters."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from tests.support.cases import GREENHOUSE, XRouter, reported, runner, valve


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
