"""``xrouter init``: what it writes is in order and takes messages, and its schema says what settings may be."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml
from sqlalchemy.exc import OperationalError

from catalog.load import load
from registry.http.server import RegistryServer
from registry.store.engine import store_error
from router.cli import run_command_line
from router.commands.emit.producer import MessageProducer, encode_record_line
from router.commands.registry import serve
from router.errors import StateError
from router.evaluation.outputs import ROUTED, Tally
from router.evaluation.plan import Plan
from router.matching.records import RecordMatcher
from router.settings import load_settings
from router.settings.load import read_packaged_schema
from router.state.database import StateDatabase
from router.state.ledger import parse_instant
from router.watching.coverage import Coverage
from tests.support import plain
from tests.support.cases import read_cases
from tests.support.commands import write_set
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


# ``xrouter routes``, and what ``check --config`` says of routes: told before the first record, and true.


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


# Stores that cannot be opened or fail as serving begins: commands of the registry end with one line and a remedy.


NOBODY = 65534
STATE = 6
"""The exit code of a store that cannot be used."""


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user to whom a folder's permissions matter, as they do not to root."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(mine)


def command_of(name: str, folder: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    config = folder / "registry.yaml"
    config.write_text(f"open: true\nauthority: urn:us\nstore: {store}\nreplication: [{{url: http://127.0.0.1:1/mc}}]\n")
    monkeypatch.chdir(folder)
    document = folder / "empty.xreg.json"
    document.write_text('{"specversion": "1.0-rc4", "messagegroups": {}}')
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(serve, "configure_logs", lambda _: None)
    return ["registry", name, str(config), *([str(document)] if name == "import" else [])]


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run_command_line(command) == STATE
    output, errors = capsys.readouterr()
    assert output == ""
    lines = errors.splitlines()
    assert len(lines) == 2 and lines[0].startswith("xrouter: error: ") and lines[1].startswith("hint: "), errors
    return lines


def test_a_store_is_named_without_what_may_be_a_secret() -> None:
    url = "postgresql+psycopg://u@/r?host=/run/postgresql&password=sesame&options=-c%20x%3Dsesame"
    refused = str(store_error(url, OSError("no answer")))
    assert "u@/r" in refused and "postgresql" in refused and "no answer" in refused and "sesame" not in refused


@pytest.mark.parametrize("made", [True, False], ids=["with a store", "without"])
def test_a_folder_that_only_others_may_write_to(
    made: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="readonly-"))
    try:
        command = command_of("init", folder, "{path: registry.db}", monkeypatch)
        if made:
            assert run_command_line(command) == 0
            capsys.readouterr()
        for each in (*folder.iterdir(), folder):
            each.chmod(0o555 if each.is_dir() else 0o444)
        with nobody():
            message, hint = refused(command, capsys)
        assert f"{folder}/registry.db" in message and "this user write access" in hint
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


# ``xrouter registry serve``: what ends it before it serves.


def test_a_store_that_fails_as_serving_begins_ends_it_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: RegistryServer) -> None:
        raise OperationalError("SELECT 1", {}, Exception("the disk is gone"))

    config = tmp_path / "registry.yaml"
    config.write_text("open: true\n")
    monkeypatch.setattr(RegistryServer, "start", failing)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(serve, "configure_logs", lambda _: None)
    with pytest.raises(StateError, match=r"registry\.db does not answer: the disk is gone"):
        serve.serve(config)
