"""The examples of ``deploy/examples``, as far as that can be told without brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from router.cli import run_command_line
from router.commands.init import PROTOCOLS, make_compose
from router.settings import load_settings
from tests.support.deployed import EXAMPLES, EXPECTED, NAMES, sender


def test_there_is_one_for_each_protocol() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/send.py")} == set(NAMES) == set(PROTOCOLS)
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}]({name}/catalog.xreg.json)" in told for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_its_files_are_in_order(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = EXAMPLES / name
    assert run_command_line(["check", str(folder / "catalog.xreg.json"), "--config", str(folder / "router.yaml")]) == 0
    assert capsys.readouterr().out == "0 errors, 0 warnings, 0 infos\n"
    first = (folder / "router.yaml").read_text(encoding="utf-8").partition("\n")[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (folder / Path(schema)).resolve().name == "settings.schema.json" and (folder / schema).exists()


@pytest.mark.parametrize("name", NAMES)
def test_another_broker_can_be_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", "mqtt://elsewhere:1")
    loaded = sender(name)
    assert loaded.BROKER == "mqtt://elsewhere:1"
    settings = load_settings(EXAMPLES / name / "router.yaml", dict.fromkeys(loaded.VARIABLES, loaded.BROKER))
    told = settings.model_dump_json()
    assert told.count("mqtt://elsewhere:1") == len(loaded.VARIABLES) and "localhost" not in told
    assert len(loaded.VARIABLES) == {"http": 0, "kafka": 2}.get(name, 1)


def test_the_compose_file_starts_the_brokers_of_init() -> None:
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    known = make_compose(PROTOCOLS)["services"]
    assert services == {name: known[name] for name in services}
    assert set(services) == set(EXPECTED) - {"http"}
