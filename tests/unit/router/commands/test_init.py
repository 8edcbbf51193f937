"""``xrouter init``: what it writes is in order and takes messages, and its schema says what settings may be."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line
from router.commands.emit.producer import MessageProducer, encode_record_line
from router.matching.records import RecordMatcher
from router.settings import load_settings
from router.settings.load import read_packaged_schema
from tests.support.cases import read_cases
from tests.support.readme import README, block
from tests.support.settings_pages import encode_json_schema

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "settings" / "schema.yaml")

ROOT: Final = Path(__file__).resolve().parents[4]
NAMES: Final = ("http", "kafka", "mqtt", "amqp", "nats")
CHOICES: Final = [(), *((name,) for name in NAMES), ("http", "mqtt"), NAMES]
FILES: Final = {"router.yaml", "catalog.xreg.json", "router.schema.json"}


def begin(folder: Path, chosen: tuple[str, ...]) -> int:
    return run_command_line(["init", str(folder), *(f"--{name}" for name in chosen)])


def schema() -> Any:
    return jsonschema_rs.validator_for(json.loads(read_packaged_schema()))


@pytest.mark.parametrize("chosen", CHOICES, ids="+".join)
def test_what_is_written_is_in_order(
    tmp_path: Path, chosen: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    assert begin(folder, chosen) == 0
    told = capsys.readouterr().out
    broker = chosen not in ((), ("http",))
    assert {path.name for path in folder.iterdir()} == FILES | ({"compose.yaml"} if broker else set())
    assert "xrouter" in told or "python -m xrouter" in told
    assert ("docker compose" in told) == broker
    assert ("curl" in told) == (not chosen or "http" in chosen)
    config = str(folder / "router.yaml")
    assert run_command_line(["check", str(folder / "catalog.xreg.json"), "--config", config]) == 0
    assert capsys.readouterr().out == "0 errors, 0 warnings, 0 infos\n"
    sources = load_settings(config, {}).sources
    assert [each.endpoint for each in sources] == [f"/endpoints/garden-{name}" for name in chosen or ("http",)]


def test_each_endpoint_takes_its_definitions(tmp_path: Path) -> None:
    begin(tmp_path / "new", NAMES)
    catalog = load([tmp_path / "new" / "catalog.xreg.json"])
    for xid, endpoint in catalog.endpoints.items():
        groups = tuple(f"{group}/" for group in endpoint.messagegroups)
        offered = [message for message in catalog.definitions if message.startswith(groups)]
        assert len(offered) == (1 if endpoint.protocol in ("KAFKA", "AMQP/1.0") else 2)
        for message in offered:
            native = catalog.definitions[message].protocol is not None
            mode = "native" if native else "binary"
            producer = MessageProducer(
                catalog, message, endpoint=xid, mode=mode, context={"bed": "7", "what": "moisture"}, seed=1
            )
            record = next(iter(producer.iter_records(1)))
            [outcome] = RecordMatcher(catalog, endpoint=xid).outcomes([encode_record_line(record)])
            # Of an event that has the form of a plain message as well, that definition is the more specific one.
            assert outcome["outcome"] == "routed" and outcome["message"] in ([message] if native else offered)
            assert outcome["cloudevent"]["source"] == "/beds/7"


def test_brokers_are_where_the_catalog_says_and_for_this_machine_alone(tmp_path: Path) -> None:
    begin(tmp_path / "new", NAMES)
    services = yaml.safe_load((tmp_path / "new" / "compose.yaml").read_text())["services"]
    ports = list(itertools.chain.from_iterable(service.get("ports", ()) for service in services.values()))
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert all(re.search(r":\d", service["image"]) for service in services.values())
    text = (tmp_path / "new" / "catalog.xreg.json").read_text()
    assert {port.rpartition(":")[2] for port in ports} == set(re.findall(r"//localhost:(\d+)", text))


def test_the_first_line_names_the_schema_beside_it(tmp_path: Path) -> None:
    begin(tmp_path, ())
    line = (tmp_path / "router.yaml").read_text().splitlines()[0]
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", line)
    assert named and (tmp_path / named[1]).read_bytes() == read_packaged_schema()


def test_the_schema_is_written_by_a_command(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run_command_line(["init", "--schema"]) == 0
    assert json.loads(capsysbinary.readouterr().out) == json.loads(read_packaged_schema())


def test_the_packaged_schema_is_that_of_the_settings() -> None:
    assert read_packaged_schema() == encode_json_schema(), "it has drifted: run `python -m tests.support.readme`"


def test_the_schema_takes_settings_that_are_good(tmp_path: Path) -> None:
    begin(tmp_path, NAMES)
    texts = [
        *(path.read_text() for path in (ROOT / "deploy" / "compose" / "router.yaml", tmp_path / "router.yaml")),
        (ROOT / "router" / "commands" / "demo" / "router.yaml").read_text(),
        block(README.read_text(), "settings"),
        'http: {port: "${PORT}", max_body: 64KiB}\ntrigger: realtime\nstate: ./s\ndrain_grace: 0\n',
        "sinks: {bus: {type: kafka, bootstrap_servers: b, topic: t, options: {linger.ms: 5}}}\n",
    ]
    for text in texts:
        assert [error.message for error in schema().iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize("text", CASES["refused"])
def test_the_schema_refuses_what_run_refuses(tmp_path: Path, text: str) -> None:
    assert not schema().is_valid(yaml.safe_load(text))
    config = tmp_path / "router.yaml"
    config.write_text(text)
    assert run_command_line(["run", str(config)]) == 3
