"""``xrouter dead-letters suggest``: what it reads, what it writes and what it tells."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line
from router.state.ledger import LetterLedger
from tests.support import shop as unmatched
from tests.support.ledger import replayed

WRITTEN = "2026-01-02T03:04:05.000000Z"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings whose dead letters are lines of JSON, with 60 of a fleet in them."""
    (tmp_path / "catalog.json").write_text(json.dumps(unmatched.CATALOG))
    lines = []
    for number, record in enumerate(unmatched.telemetry(60)):
        line: dict[str, Any] = {
            "letter": f"{number:032x}",
            "reason": "no-match",
            "detail": "no candidate matches",
            "nearest": [],
            "endpoint": record.endpoint,
            "protocol": record.protocol,
            "native": record.native,
            "body": None,
            "epoch": "e",
            "position": f"p-{number}",
            "received": WRITTEN,
            "failed": WRITTEN,
            "attempts": 0,
        }
        form = record.to_json()
        line["body"] = base64.b64encode(form["body"].encode()).decode()
        lines.append(json.dumps(line))
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "q-000000000001.jsonl").write_text("\n".join(lines) + "\n")
    settings = {
        "catalog": {"source": "catalog.json"},
        "sinks": {"out": {"type": "jsonl"}, "dead": {"type": "jsonl", "path": "letters"}},
        "routes": [{"to": ["out"]}],
        "dead_letters": {"sinks": ["dead"]},
        "state": "state",
    }
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str]) -> Any:
    """``xrouter(*arguments)`` gives exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = run_command_line([*("dead-letters", "suggest"), *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


def test_a_fragment_on_standard_output_and_the_table_beside_it(xrouter: Any, config: Path) -> None:
    status, out, err = xrouter(config)
    assert status == 0
    assert set(yaml.safe_load(out)["messagegroups"]["Plant"]["messages"]) == {
        f"plants.devices.{kind}" for kind in ("state", "reading", "alarm", "log")
    }
    rows = [line.split("\t") for line in err.splitlines() if "\t" in line]
    assert rows[0] == ["draft", "letters", "matched", "address or type", "properties"]
    assert {row[2] for row in rows[1:]} == {"100.0%"} and len(rows) == 5
    assert "add it to catalog.source" in err


@pytest.mark.parametrize("name", ["drafts.yaml", "drafts.json"])
def test_a_file_that_goes_beside_the_catalog(xrouter: Any, config: Path, name: str) -> None:
    draft = config.parent / name
    status, out, _ = xrouter(config, "--output", draft)
    assert status == 0 and str(draft) in out
    assert draft.read_text().startswith("{") == name.endswith(".json")
    catalog = load([config.parent / "catalog.json", draft])
    assert len(catalog.definitions) == 7 and not [each for each in catalog.findings if each.severity != "info"]
    assert len(catalog.endpoints[unmatched.PLANT].candidates) == 5

    status, _, err = xrouter(config, "--output", draft)
    assert status == 1 and "already exists" in err
    assert xrouter(config, "--output", draft, "--force")[0] == 0


def test_an_endpoint_that_has_to_change_is_told(xrouter: Any, config: Path) -> None:
    _, _, err = xrouter(config, "--group", "Fleet")
    assert "/endpoints/plant has to list /messagegroups/Fleet in its messagegroups" in err


def test_filters_and_standings(xrouter: Any, config: Path) -> None:
    assert "no letters to draft a definition from" in xrouter(config, "--endpoint", "/endpoints/other")[2]
    assert "left out: of a shape with fewer than 100 letters" in xrouter(config, "--min", 100)[2]
    assert "no letters to draft a definition from" in xrouter(config, "--reason", "ambiguous")[2]
    with LetterLedger.open(config.parent / "state") as ledger:
        replayed(ledger, [f"{number:032x}" for number in range(60)], datetime.now(UTC))
    assert "no letters to draft a definition from" in xrouter(config)[2]


def test_what_settings_mark_as_sensitive_is_not_told(xrouter: Any, config: Path) -> None:
    tree = yaml.safe_load(config.read_text())
    assert "firmware" in xrouter(config)[1]
    tree["dead_letters"]["redact"] = ["firmware"]
    config.write_text(yaml.safe_dump(tree))
    status, out, _ = xrouter(config)
    assert status == 0 and "firmware" not in out
