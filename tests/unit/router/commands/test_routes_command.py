"""``xrouter routes``, and what ``check --config`` says of routes: told before the first record, and true."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line
from router.evaluation.outputs import ROUTED, Tally
from router.evaluation.plan import Plan
from router.settings import load_settings
from router.state.database import StateDatabase
from router.state.ledger import parse_instant
from router.watching.coverage import Coverage
from tests.support import plain
from tests.support.commands import write_set

KEYS = Path(__file__).parents[3] / "cases" / "routes" / "keys.yaml"
GROUPS = "/messagegroups/{}/messages/{}"
READING, ALARM, ORDER, LOST = (
    GROUPS.format(*each) for each in (("Plant", "reading"), ("Plant", "alarm"), ("Shop", "order"), ("Lost", "letter"))
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOOK", "hidden-host")
    write_set("routes", "plant", tmp_path)
    return tmp_path / "router.yaml"


def objects(config: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run_command_line(["routes", str(config), "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert "hidden-host" not in out
    return [json.loads(line) for line in out.splitlines()]


def run_once(config: Path, *pairs: tuple[str, str]) -> None:
    """Let a router start by these settings and have a record of each definition at its endpoint."""
    settings = load_settings(config)
    coverage = Coverage()
    with StateDatabase(Path(settings.state)) as database:
        coverage.keep_in(database)
        coverage.follow(Plan(load([str(config.parent / "catalog.json")]), settings))
        coverage.add_batch(Tally(Counter((endpoint, ROUTED, "") for endpoint, _ in pairs), Counter(pairs)))
        coverage.close()


def test_it_tells_when_each_definition_last_occurred(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(each.get("last_record") is each.get("since") is None for each in objects(config, capsys))
    assert run_command_line(["routes", str(config)]) == 0
    assert "never" not in capsys.readouterr().out
    run_once(config, ("/endpoints/plant", READING))
    found = objects(config, capsys)
    told = {each["message"]: each for each in found if each["kind"] == "definition"}
    moments = {xid: parse_instant(each["last_record"]) for xid, each in told.items()}
    assert moments[READING] is not None and moments[ALARM] is moments[ORDER] is None
    assert all(parse_instant(each["since"]) is not None for each in told.values())
    (silent,) = [each for each in found if each["kind"] == "silent-endpoint"]
    assert silent["endpoint"] == "/endpoints/shop" and silent["since"] == told[ORDER]["since"]
    assert run_command_line(["routes", str(config)]) == 0
    out = capsys.readouterr().out
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line and "dead letters" not in line]
    assert {row[5] for row in rows if row[1].startswith(READING)} == {told[READING]["last_record"]}
    assert {row[5] for row in rows if row[1].startswith(ALARM)} == {f"never since {told[ALARM]['since']}"}
    assert f"Definitions that never occurred: {ALARM}, {ORDER}\n" in out
    assert "Sources that have received no record: /endpoints/shop\n" in out


@pytest.mark.parametrize("case", yaml.safe_load(KEYS.read_text()), ids=lambda case: case["case"])
def test_check_says_which_events_get_no_key_in_kafka(
    config: Path, case: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {"type": {"value": "reading"}, **case["message"].get("envelopemetadata", {})}
    message = {"envelope": "CloudEvents/1.0", **case["message"], "envelopemetadata": metadata}
    options = {"KAFKA": {"topic": "plant"}, "HTTP": {"path": "/in", "method": "POST"}}
    scheme = case["protocol"].partition("/")[0].lower()
    told = options.get(case["protocol"], {"topic": "#", "node": "queue", "subject": "d.>"})
    uri = f"{scheme}://broker" + (":9092" if scheme == "kafka" else "")
    endpoint = plain.endpoint(case["protocol"], told, "Plant", uri=uri)
    plain.write(config.parent, plain.catalog({"plant": endpoint}, Plant={"reading": message}))
    bus = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "events"}
    bus |= {"key": case["key"]} if "key" in case else {}
    given = {"sinks": {"bus": bus, "dead": {"type": "jsonl"}}, "routes": [{"to": ["bus"]}], "http": {"port": 0}}
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | given))
    run_command_line(["check", str(config.parent / "catalog.json"), "--config", str(config), "--format", "json"])
    found = [each for each in json.loads(capsys.readouterr().out) if each["rule"] == "unkeyed-events"]
    if case["says"] is None:
        assert found == []
        return
    (finding,) = found
    assert (finding["severity"], finding["pointer"]) == ("info", "/sinks/bus")
    assert "/messagegroups/Plant/messages/reading" in finding["message"]
    assert f'set sinks.bus.key, such as "{case["says"]}"' in finding["hint"]
