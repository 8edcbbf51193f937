"""What is wrong in settings is told with where it was written: every fault, its line, or the variable that gave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from router.cli import run_command_line
from router.errors import ConfigError
from router.settings import load_settings

WRONG: Final = """\
trigggr: 1s
catalog: {source: ./catalog.json}
http:
  port: eight
sinks:
  events: {type: table, pth: ./x}
  out: {type: kafkaa}
"""
FAULTS: Final = {
    "1: trigggr: unknown key 'trigggr'; did you mean trigger?",
    "4: http.port: input should be a valid integer, unable to parse string as an integer",
    "6: sinks.events.path: is required; add it",
    "6: sinks.events.pth: unknown key 'pth'; did you mean path?",
    "7: sinks.out: unknown type; known: table, kafka, jsonl, mqtt, amqp, nats, http",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "router.yaml"
    file.write_text(WRONG)
    metadata: dict[str, Any] = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "made"}}}
    catalog = {"messagegroups": {"g": {"messages": {"m": metadata}}}}
    (tmp_path / "catalog.json").write_text(json.dumps(catalog))
    return file


def errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("xrouter: error: ") for line in lines if line.startswith("xrouter: error: ")]


@pytest.mark.parametrize("command", ["run", "gateway", "routes"])
def test_every_fault_is_told_with_its_line(config: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([command, str(config)]) == 3
    assert set(errors(capsys)) == {f"{config}:{fault}" for fault in FAULTS}


def test_a_variable_is_blamed_for_what_it_gave(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("catalog: {source: ./catalog.json}\ntrigger: 1s\nmetrics: {port: x}\n")
    monkeypatch.setenv("XROUTER_TRIGGER", "often")
    monkeypatch.setenv("XROUTER_SINKS__BUS__TYPE", "kafka")
    monkeypatch.setenv("XROUTER_HTTP", '{"port": "eight"}')
    assert run_command_line(["run", str(config)]) == 3
    told = errors(capsys)
    assert f"{config}:3: metrics.port: input should be a valid integer, unable to parse string as an integer" in told
    blamed = {line.split(": ")[0]: line.split(": ")[1] for line in told if line.startswith("environment")}
    assert blamed["environment variable XROUTER_TRIGGER"] == "trigger"
    assert blamed["environment variable XROUTER_HTTP"] == "http.port"
    run_command_line(["check", str(config.with_name("catalog.json")), "--config", str(config), "--format", "json"])
    found = {each["message"].split(": ")[0]: each["pointer"] for each in json.loads(capsys.readouterr().out)}
    assert found["environment variable XROUTER_TRIGGER"] == "", "no line of the file is at fault"
    assert "/metrics/port" in found.values()


def test_what_a_variable_left_out_is_its_fault(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("catalog: {source: ./catalog.json}\n")
    monkeypatch.setenv("XROUTER_SINKS__BUS__TOPIC", "out")
    assert run_command_line(["run", str(config)]) == 3
    assert any(line.startswith("environment variable XROUTER_SINKS__BUS__TOPIC: sinks.bus") for line in errors(capsys))


def test_a_secret_of_the_environment_is_not_told(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("catalog: {source: ./catalog.json}\nmetrics: {token: plain}\n")
    monkeypatch.setenv("XROUTER_METRICS__TOKEN", "hush-hush")
    monkeypatch.setenv("XROUTER_TRIGGER", "often")
    run_command_line(["run", str(config)])
    assert "hush-hush" not in capsys.readouterr().err


def test_an_error_of_the_whole_file_has_its_own_place(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("trigger: [\n")
    assert run_command_line(["run", str(config)]) == 3
    [line] = errors(capsys)
    assert line.startswith(f"{config}, line 2")


@pytest.mark.parametrize(
    "master", ["bogus", "local[x]", "local[]", "spark://host", "spark://", "mesos://h:1", "http://h:7077", "Yarn", " "]
)
def test_what_is_no_master_is_told_by_the_settings(config: Path, master: str) -> None:
    config.write_text(json.dumps({"spark": {"master": master}}))
    with pytest.raises(ConfigError, match="is not a valid Spark master; write local") as caught:
        load_settings(config)
    assert caught.value.places == (f"{config}:1",)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[4]",
        "local[*,3]",
        "spark://a:1,b_c.d:2",
        "spark://[::1]:7077",
        "yarn",
        "k8s://https://h",
    ],
)
def test_what_spark_takes_as_a_master_is_taken(config: Path, master: str) -> None:
    place = str(config.parent)
    cluster = {} if master.startswith("local") else {"driver_host": "10.0.0.5", "shared_folders": [place]}
    config.write_text(json.dumps({"spark": {"master": master, **cluster}}))
    assert load_settings(config).spark.master == master
