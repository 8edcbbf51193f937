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

KEYS = Path(__file__).parents[3] / "cases" / "routes" / "keys.yaml"
GROUPS = "/messagegroups/{}/messages/{}"
READING, ALARM, ORDER, LOST = (
    GROUPS.format(*each) for each in (("Plant", "reading"), ("Plant", "alarm"), ("Shop", "order"), ("Lost", "letter"))
)
SINKS: dict[str, Any] = {
    "bus": {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "e.{type}.{context.line|none}.{subject}"},
    "tables": {"type": "table", "path": "tables", "layout": "definition"},
    "web": {"type": "http", "url": "https://${HOOK}/in"},
    "mail": {"type": "mqtt", "uri": "mqtt://broker", "topic": "m/{messagegroup}/{attributes.ext}"},
    "files": {"type": "jsonl"},
    "dead": {"type": "table", "path": "dead"},
    "late": {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "late.{reason}"},
}
ROUTES: list[dict[str, Any]] = [
    {"when": {"attributes": {"type": "temp*"}, "context": {"line": ["1", "2"]}}, "to": ["bus", "mail"]},
    {"when": {"attributes": {"type": "temp*", "subject": "?*"}}, "to": ["web"]},
    {"when": {"attributes": {"type": "smoke"}}, "to": ["bus"]},
    {"when": {"message": "*/alarm"}, "to": ["files"]},
    {"when": {"outcome": "dead-letter", "endpoint": "/endpoints/plant", "reason": ["no-*"]}, "to": ["late"]},
    {"when": {"outcome": "dead-letter", "endpoint": "/endpoints/plant", "reason": "no-match"}, "to": ["dead"]},
    {"when": {"messagegroup": "Lost"}, "to": ["files"]},
    {"to": ["tables"]},
]


def catalog() -> dict[str, Any]:
    """Two endpoints over two groups, and a group that no endpoint lists."""

    def message(type_: str, **more: Any) -> dict[str, Any]:
        attributes = {"type": {"value": type_}, **more}
        return {"envelope": "CloudEvents/1.0", "envelopemetadata": attributes}

    line = {"source": {"value": "/lines/{line}", "type": "uritemplate"}}
    native = {
        "protocol": "KAFKA",
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"type": {"value": "order"}},
        "protocoloptions": {"headers": [{"name": "n", "value": "{number}"}]},
    }
    options = {"endpoints": [{"uri": "kafka://broker:9092"}]}
    return {
        "messagegroups": {
            "Plant": {"messages": {"reading": message("temperature", **line), "alarm": message("smoke")}},
            "Shop": {"messages": {"order": native}},
            "Lost": {"messages": {"letter": message("letter")}},
        },
        "endpoints": {
            name: {
                "usage": "consumer",
                "protocol": "KAFKA",
                "protocoloptions": {**options, "options": {"topic": name}},
                "messagegroups": [f"/messagegroups/{group}"],
            }
            for name, group in (("plant", "Plant"), ("shop", "Shop"))
        },
    }


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOOK", "hidden-host")
    (tmp_path / "catalog.json").write_text(json.dumps(catalog()))
    told = {
        "catalog": {"source": "catalog.json"},
        "sinks": SINKS,
        "routes": ROUTES,
        "dead_letters": {"sinks": ["dead"]},
    }
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def objects(config: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run_command_line(["routes", str(config), "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert "hidden-host" not in out
    return [json.loads(line) for line in out.splitlines()]


def test_where_values_decide_the_routes_stand_in_order(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flows = {each["message"]: each for each in objects(config, capsys) if each["kind"] == "definition"}
    assert set(flows) == {READING, ALARM, ORDER}
    reading = flows[READING]
    assert (reading["endpoint"], reading["records"]) == ("/endpoints/plant", "events")
    assert [(way["route"], way["values"]) for way in reading["ways"]] == [
        (0, {"context.line": ["1", "2"]}),
        (1, {"attributes.subject": ["?*"]}),
        (7, {}),
    ]
    assert reading["ways"][0]["sinks"] == [
        {"sink": "bus", "destination": "e.temperature.{context.line|none}.{subject}"},
        {"sink": "mail", "destination": "m/Plant/{attributes.ext}"},
    ]
    assert reading["ways"][1]["sinks"] == [{"sink": "web", "destination": "https://${HOOK}/in"}]
    assert reading["ways"][2]["sinks"] == [
        {"sink": "tables", "destination": str(config.parent / "tables" / "Plant" / "reading")}
    ]
    (way,) = flows[ALARM]["ways"]
    assert (way["route"], way["values"]) == (2, {})
    assert way["sinks"] == [{"sink": "bus", "destination": "e.smoke.none.{subject}"}]


def test_what_is_never_reached_and_where_letters_go(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(config, capsys)
    kinds = ("unreached-route", "unrouted-definition", "left-over-definition")
    rest = [(each["kind"], each.get("route", each.get("message"))) for each in found if each["kind"] in kinds]
    # Alarms are smoke, which a route before takes; a letter of no-match is one of no-*.
    assert rest == [
        *(("unreached-route", number) for number in (3, 5, 6)),
        ("unrouted-definition", LOST),
        ("left-over-definition", ORDER),
    ]
    letters = [each for each in found if each["kind"] == "dead-letters"]
    assert [(each["endpoints"], each["route"]) for each in letters] == [
        (["/endpoints/plant"], 4),
        (["/endpoints/plant"], None),
        (["/endpoints/shop", ""], None),
    ]
    assert letters[0]["reasons"] == ["no-candidates", "no-match"]
    assert letters[0]["sinks"] == [{"sink": "late", "destination": "late.{reason}"}]
    assert len(letters[1]["reasons"]) == 7 and len(letters[2]["reasons"]) == 9


def test_plain_text_is_a_row_for_each_way(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["routes", str(config)]) == 0
    out = capsys.readouterr().out
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert [row[2:4] for row in rows if row[1].startswith(READING)] == [
        ["0", "context.line=1|2"],
        ["1", "attributes.subject=?*"],
        ["7", "else"],
    ]
    assert ["/endpoints/plant", "dead letters", "4", "no-candidates, no-match", "late: late.{reason}"] in rows
    assert "Routes that no record reaches: 3, 5, 6\n" in out
    assert f"Definitions that no source has: {LOST}\n" in out


def run_once(config: Path, *pairs: tuple[str, str]) -> None:
    """Let a router start by these settings and have a record of each definition at its endpoint."""
    settings = load_settings(config)
    coverage = Coverage()
    coverage.keep_in(StateDatabase(Path(settings.state)))
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


def test_unseen_shows_what_never_occurred_alone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["routes", str(config), "--unseen"]) == 1
    assert "no router has run with these settings yet" in capsys.readouterr().err
    run_once(config, ("/endpoints/plant", READING))
    assert run_command_line(["routes", str(config), "--unseen", "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["message"] for each in found if each["kind"] == "definition"} == {ALARM, ORDER}
    assert {each["kind"] for each in found} == {"definition", "silent-endpoint"}
    # What the catalog has since got is expected by no router yet, and has not occurred either.
    tree = catalog()
    tree["messagegroups"]["Shop"]["messages"]["return"] = tree["messagegroups"]["Shop"]["messages"]["order"]
    (config.parent / "catalog.json").write_text(json.dumps(tree))
    assert run_command_line(["routes", str(config), "--unseen", "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    new = GROUPS.format("Shop", "return")
    assert {each["message"]: each["since"] for each in found if each["kind"] == "definition"}[new] is None
    run_once(config, *(("/endpoints/plant", xid) for xid in (READING, ALARM)), ("/endpoints/shop", ORDER))
    run_once(config, ("/endpoints/shop", new))
    assert run_command_line(["routes", str(config), "--unseen"]) == 0
    assert capsys.readouterr().out == "Every definition has occurred.\n"


def test_a_file_of_what_occurred_that_is_damaged_is_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_once(config)
    path = Path(load_settings(config).state) / "state.db"
    path.write_bytes(b"no database at all" * 300)
    assert run_command_line(["routes", str(config)]) > 0
    assert str(path) in capsys.readouterr().err


def test_check_warns_of_routes_and_tells_of_definitions(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", str(config.parent / "catalog.json"), "--config", str(config), "--format", "json"]
    assert run_command_line(arguments) == 0
    found = [each for each in json.loads(capsys.readouterr().out) if each["file"] == str(config)]
    told = {(each["rule"], each["severity"], each["pointer"]) for each in found if "route" in each["rule"]}
    assert told == {
        *(("unreached-route", "warning", f"/routes/{number}") for number in (3, 5, 6)),
        ("unrouted-definition", "info", "/sources"),
    }
    assert all(each["hint"] and "hidden-host" not in str(each) for each in found)


def test_routes_that_are_all_reached_give_no_finding(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = yaml.safe_load(config.read_text())
    told["routes"] = [route for number, route in enumerate(ROUTES) if number not in (3, 5, 6)]
    tree = catalog()
    tree["endpoints"]["shop"]["messagegroups"].append("/messagegroups/Lost")
    (config.parent / "catalog.json").write_text(json.dumps(tree))
    config.write_text(yaml.safe_dump(told))
    assert (
        run_command_line(["check", str(config.parent / "catalog.json"), "--config", str(config), "--format", "json"])
        == 0
    )
    rules = {each["rule"] for each in json.loads(capsys.readouterr().out)}
    assert not rules & {"unreached-route", "unrouted-definition"}


def test_in_real_time_mode_it_is_told_what_goes_by_the_rest_topic(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = yaml.safe_load(config.read_text())
    bus = {**SINKS["bus"], "topic": "events"}
    told |= {"sinks": {"bus": bus, "dead": SINKS["dead"]}, "routes": [{"to": "bus"}]}
    told |= {"trigger": "realtime", "realtime": {"rest": "rest"}}
    config.write_text(yaml.safe_dump(told))
    found = [each for each in objects(config, capsys) if each["kind"] == "unsettled-definition"]
    assert found == [{"kind": "unsettled-definition", "message": ORDER}]
    assert run_command_line(["routes", str(config)]) == 0
    assert f"Definitions with records that go through the fallback topic: {ORDER}\n" in capsys.readouterr().out
    check = ["check", str(config.parent / "catalog.json"), "--config", str(config), "--format", "json"]
    assert run_command_line(check) == 0
    rules = {each["rule"]: each for each in json.loads(capsys.readouterr().out)}
    assert ORDER in rules["unsettled-definition"]["message"]
    config.write_text(yaml.safe_dump({**told, "sinks": {"bus": {**bus, "key": "{type}"}, "dead": SINKS["dead"]}}))
    assert run_command_line(check) == 1
    assert {"source"} == {each["rule"] for each in json.loads(capsys.readouterr().out) if each["severity"] == "error"}


@pytest.mark.parametrize(
    ("mode", "route", "told"),
    [
        ("ambiguous", None, True),
        ("never", None, True),
        ("always", None, False),
        ("ambiguous", "always", False),
        ("always", "never", True),
    ],
)
def test_schemas_that_are_not_held_are_told(
    config: Path, capsys: pytest.CaptureFixture[str], mode: str, route: str | None, told: bool
) -> None:
    tree = catalog()
    order = tree["messagegroups"]["Shop"]["messages"]["order"]
    order |= {"dataschemaformat": "JsonSchema/draft-07", "dataschema": {"type": "object"}}
    (config.parent / "catalog.json").write_text(json.dumps(tree))
    last = {"to": ["tables"]} | ({"validate": route} if route else {})
    sinks = {name: SINKS[name] for name in ("tables", "dead")}
    settings = yaml.safe_load(config.read_text()) | {"sinks": sinks, "match": {"validate": mode}, "routes": [last]}
    config.write_text(yaml.safe_dump(settings))
    found = [each for each in objects(config, capsys) if each["kind"] == "unheld-schema"]
    assert found == ([{"kind": "unheld-schema", "message": ORDER}] if told else [])
    assert run_command_line(["routes", str(config)]) == 0
    assert (
        f"Definitions whose bodies are not validated against their schemas: {ORDER}\n" in capsys.readouterr().out
    ) == told
    assert (
        run_command_line(["check", str(config.parent / "catalog.json"), "--config", str(config), "--format", "json"])
        == 0
    )
    rules = {each["rule"]: each for each in json.loads(capsys.readouterr().out)}
    assert ("unheld-schema" in rules) == told
    assert not told or (rules["unheld-schema"]["severity"], ORDER in rules["unheld-schema"]["message"]) == (
        "info",
        True,
    )


@pytest.mark.parametrize("case", yaml.safe_load(KEYS.read_text()), ids=lambda case: case["case"])
def test_check_says_which_events_get_no_key_in_kafka(
    config: Path, case: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {"type": {"value": "reading"}, **case["message"].get("envelopemetadata", {})}
    message = {"envelope": "CloudEvents/1.0", **case["message"], "envelopemetadata": metadata}
    options = {"KAFKA": {"topic": "plant"}, "HTTP": {"path": "/in", "method": "POST"}}
    scheme = case["protocol"].partition("/")[0].lower()
    endpoint = {
        "usage": "consumer",
        "protocol": case["protocol"],
        "protocoloptions": {
            "endpoints": [{"uri": f"{scheme}://broker" + (":9092" if scheme == "kafka" else "")}],
            "options": options.get(case["protocol"], {"topic": "#", "node": "queue", "subject": "d.>"}),
        },
        "messagegroups": ["/messagegroups/Plant"],
    }
    tree = {"messagegroups": {"Plant": {"messages": {"reading": message}}}, "endpoints": {"plant": endpoint}}
    (config.parent / "catalog.json").write_text(json.dumps(tree))
    bus = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "events"}
    bus |= {"key": case["key"]} if "key" in case else {}
    told = {"sinks": {"bus": bus, "dead": SINKS["dead"]}, "routes": [{"to": ["bus"]}], "http": {"port": 0}}
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | told))
    run_command_line(["check", str(config.parent / "catalog.json"), "--config", str(config), "--format", "json"])
    found = [each for each in json.loads(capsys.readouterr().out) if each["rule"] == "unkeyed-events"]
    if case["says"] is None:
        assert found == []
        return
    (finding,) = found
    assert (finding["severity"], finding["pointer"]) == ("info", "/sinks/bus")
    assert "/messagegroups/Plant/messages/reading" in finding["message"]
    assert f'set sinks.bus.key, such as "{case["says"]}"' in finding["hint"]
