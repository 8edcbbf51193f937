"""Secrets go where the operator says: never without TLS unasked, and never after a catalog that moves."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import catalog.parsing.regular
from bindings.private_files import is_locked
from catalog.load import load
from router.cli import run_command_line
from router.commands.check.command import collect_findings
from router.commands.doctor import run_doctor
from router.errors import ConfigError, StateError
from router.evaluation.plan import Plan
from router.running.reload import Reloader
from router.settings import Settings, load_settings
from router.state.durable import FILE, admit, pinned_addresses
from router.state.ledger import LetterLedger
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.cases import read_cases

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "settings"
TRUST: Final = read_cases(CASES / "trust.yaml")
SECRETS = {"P": "hush"}
LOGIN = "username: u, password: '${P}'"
SOURCE = "sources: [{endpoint: /endpoints/e, %s}]"
SINK = "sinks: {out: {%s}, e: {type: jsonl, path: ./o}}\nroutes: [{to: e}]\ndead_letters: {sinks: [e]}"
PROTOCOLS = {"mqtt": "MQTT/5.0", "amqp": "AMQP/1.0", "nats": "NATS", "kafka": "KAFKA", "http": "HTTP"}


def write_catalog(folder: Path, uri: str, usage: str = "consumer", kind: str = "mqtt") -> None:
    options: dict[str, Any] = {"topic": "t", "node": "t", "subject": "t"}
    told = {"endpoints": [{"uri": each} for each in uri.split(" ")], "options": options}
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": uri}}}
    endpoint = {"usage": [usage], "protocol": PROTOCOLS[kind], "protocoloptions": told, "messages": {"m": message}}
    (folder / "catalog.json").write_text(json.dumps({"endpoints": {"e": endpoint}}))


def settings_of(folder: Path, text: str) -> Settings:
    file = folder / "router.yaml"
    file.write_text(f"catalog: {{source: ./catalog.json, poll: 10ms}}\n{text}")
    return load_settings(file, SECRETS)


def plan_of(folder: Path, text: str) -> Plan:
    return Plan(load([folder / "catalog.json"]), settings_of(folder, text))


def admitted(plan: Plan) -> dict[str, list[str]]:
    admit(plan.settings, plan.catalog, plan.sources)
    return pinned_addresses(Path(plan.settings.state))


@pytest.mark.parametrize("case", read_cases(CASES / "sinks.yaml"), ids=lambda case: case["sink"])
def test_settings_of_a_sink(tmp_path: Path, case: dict[str, Any]) -> None:
    text = "sinks: {s: {%s}, e: {type: jsonl, path: ./o}}\nroutes: [{to: e}]\ndead_letters: {sinks: [e]}"
    if "fault" in case:
        with pytest.raises(ConfigError) as caught:
            settings_of(tmp_path, text % case["sink"])
        told = (*caught.value.problems, str(caught.value))
        assert any(case["fault"] in line for line in told) and "hush" not in str(told), told
    if "fault" not in case or case.get("allowable"):
        settings_of(tmp_path, text % (case["sink"] + ", allow_plaintext_password: true" * ("fault" in case)))


def test_a_registry_gets_its_password_in_plain_text_if_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("catalog: {source: 'http://u:${P}@registry/x', allow_plaintext_password: true}")
    load_settings(tmp_path / "r.yaml", SECRETS)


@pytest.mark.parametrize(("uri", "more", "security", "protocol"), TRUST["schemes"])
def test_the_scheme_of_kafka_addresses_decides(
    tmp_path: Path, uri: str, more: str, security: str, protocol: str
) -> None:
    from router.sources import make_source_client as source_client

    write_catalog(tmp_path, uri, kind="kafka")
    plan = plan_of(tmp_path, SOURCE % more if more else "")
    [source] = plan.sources
    assert (source.servers.split(",")[0], source.security) == ("h:9093", security)
    client = source_client(source)
    assert (
        client.librdkafka_config()["security.protocol"] == client.jvm_options()["kafka.security.protocol"] == protocol
    )
    admitted(plan)


@pytest.mark.parametrize(("uri", "more", "fault"), TRUST["contradictions"])
def test_settings_that_contradict_a_scheme_are_an_error(tmp_path: Path, uri: str, more: str, fault: str) -> None:
    write_catalog(tmp_path, uri, kind="kafka")
    with pytest.raises(ConfigError, match=fault):
        _ = plan_of(tmp_path, SOURCE % more).sources


def test_names_of_queries_do_not_change_with_plain_addresses(tmp_path: Path) -> None:
    names = set()
    for uri in ("h:1", "kafka://h:1", "PLAINTEXT://h:1", "kafka://h:1/"):
        write_catalog(tmp_path, uri, kind="kafka")
        names |= {source.query for source in plan_of(tmp_path, "").sources}
    assert names == {"kafka-241147f4"}


@pytest.mark.parametrize("kind", ["mqtt", "nats", "amqp", "kafka"])
def test_a_source_of_the_catalog_needs_leave_too(tmp_path: Path, kind: str) -> None:
    write_catalog(tmp_path, f"{kind}://127.0.0.1:5", kind=kind)
    plan = plan_of(tmp_path, SOURCE % LOGIN)
    with pytest.raises(ConfigError, match="would receive a secret in plain text") as caught:
        admitted(plan)
    assert caught.value.key == "sources.0.allow_plaintext_password" and not (tmp_path / "state" / FILE).exists()
    admitted(plan_of(tmp_path, SOURCE % f"{LOGIN}, allow_plaintext_password: true"))


@pytest.mark.parametrize(("kind", "first", "good", "moved"), TRUST["moved"])
def test_a_catalog_cannot_move_where_credentials_go(
    tmp_path: Path, kind: str, first: str, good: str, moved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SOURCE % LOGIN
    write_catalog(tmp_path, first, kind=kind)
    plan = plan_of(tmp_path, text)
    admitted(plan)
    monkeypatch.setenv("P", "hush")
    for uri in moved:
        write_catalog(tmp_path, uri, kind=kind)
        [refused] = _refused(plan)
        assert refused["rule"] == "moved-address" and "the catalog says" in refused["message"]
        with pytest.raises(ConfigError, match="its credentials are for") as caught:
            admitted(plan_of(tmp_path, text))
        assert "sources.0." in caught.value.hint and FILE in caught.value.hint
        checked, _ = collect_findings([str(tmp_path / "catalog.json")], tmp_path / "router.yaml")
        assert [each.severity for each in checked if each.rule == "moved-address"] == ["error"]
    write_catalog(tmp_path, good, kind=kind)
    admitted(plan_of(tmp_path, text))
    field = "bootstrap_servers" if kind == "kafka" else "uris"
    write_catalog(tmp_path, moved[0], kind=kind)
    admitted(plan_of(tmp_path, SOURCE % f"{LOGIN}, {field}: '{moved[0]}'"))


def _refused(active: Plan) -> list[dict[str, Any]]:
    """Let a router with this plan look at the catalog once; return why it refuses it."""
    status = RouterStatus()
    assert Reloader(active.settings, active, Metrics(), status).poll() is None, "it must not take effect"
    refused: list[dict[str, Any]] = status.check_readiness()[1]["catalog"]["refused"]
    return refused


@pytest.mark.parametrize(("kind", "own", "first", "pinned", "moved"), TRUST["sinks"])
def test_sinks_of_endpoints_are_held_too(
    tmp_path: Path, kind: str, own: str, first: str, pinned: str, moved: str
) -> None:
    login = f"type: {kind}, endpoint: /endpoints/e, {LOGIN}"
    write_catalog(tmp_path, first, "producer", kind)
    plan = plan_of(tmp_path, SINK % login)
    assert admitted(plan) == {"sink out": [pinned]}
    write_catalog(tmp_path, moved, "producer", kind)
    assert [each["rule"] for each in _refused(plan)] == ["moved-address"]
    with pytest.raises(ConfigError, match="sink out: its credentials are for"):
        admitted(plan_of(tmp_path, SINK % login))
    if own:
        admitted(plan_of(tmp_path, SINK % f"{login}, {own}"))


def test_a_reload_pins_what_is_new_before_it_takes_effect(tmp_path: Path) -> None:
    write_catalog(tmp_path, "mqtts://h")
    text = f"sources: [{{endpoint: /endpoints/e, lane: x}}, {{endpoint: /endpoints/f, {LOGIN}}}]"
    plan = plan_of(tmp_path, text)
    assert admitted(plan) == {}
    told = json.loads((tmp_path / "catalog.json").read_text())
    told["endpoints"]["f"] = told["endpoints"]["e"]
    (tmp_path / "catalog.json").write_text(json.dumps(told))
    reloaded = Reloader(plan.settings, plan, Metrics(), RouterStatus()).poll()
    assert reloaded is not None
    assert pinned_addresses(tmp_path / "state") == {"source /endpoints/f": ["mqtts://h:8883"]}


@pytest.mark.parametrize(
    "content", ["", "{}", '{"format": 2, "addresses": {}}', '{"format": 1, "addresses": []}', "\xff"]
)
def test_damaged_pins_are_never_taken_for_none(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalog(tmp_path, "mqtts://h")
    plan = plan_of(tmp_path, SOURCE % LOGIN)
    admitted(plan)
    monkeypatch.setenv("P", "hush")
    (tmp_path / "state" / FILE).write_text(content, encoding="latin-1")
    with pytest.raises(StateError, match=FILE):
        admitted(plan)
    assert [each.state for each in examine_quietly(tmp_path) if each.name == "addresses"] == ["fail"]


def examine_quietly(folder: Path) -> list[Any]:
    return list(run_doctor(folder / "router.yaml"))


def test_doctor_shows_pins_and_asks_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P", "hush")
    write_catalog(tmp_path, "SASL_SSL://127.0.0.1:1", kind="kafka")
    admitted(plan_of(tmp_path, SOURCE % LOGIN))
    write_catalog(tmp_path, "SASL_SSL://127.0.0.1:2", kind="kafka")
    seen = {each.name: each for each in examine_quietly(tmp_path)}
    assert seen["addresses"].state == "fail" and "sasl_ssl://127.0.0.1:1" in seen["addresses"].observation
    assert "source /endpoints/e" not in seen


@pytest.mark.parametrize("command", ["run", "gateway"])
def test_no_process_starts_with_a_catalog_that_moved(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("P", "hush")
    inbox = "inbox: {kafka: {bootstrap_servers: '127.0.0.1:1', topic: t}}\n" if command == "gateway" else ""
    text = f"metrics: {{port: 0}}\n{inbox}{SOURCE % LOGIN}"
    write_catalog(tmp_path, "mqtts://h")
    admitted(plan_of(tmp_path, text))
    write_catalog(tmp_path, "mqtts://127.0.0.1:1")
    assert run_command_line([command, str(tmp_path / "router.yaml")]) == 3
    err = capsys.readouterr().err
    assert "its credentials are for mqtts://h:8883; the catalog says mqtts://127.0.0.1:1" in err
    assert "hint: if that is intended, set sources.0.uris to it, or remove the entry from" in err and "hush" not in err


def test_a_sink_without_an_address_yet_is_not_pinned_to_none(tmp_path: Path) -> None:
    text = SINK % f"type: mqtt, endpoint: /endpoints/e, {LOGIN}"
    (tmp_path / "catalog.json").write_text(json.dumps({"messagegroups": {"g": {"messages": {"m": {}}}}}))
    assert admitted(plan_of(tmp_path, text)) == {}
    write_catalog(tmp_path, "mqtts://h", "producer")
    assert admitted(plan_of(tmp_path, text)) == {"sink out": ["mqtts://h:8883"]}


# What is no regular file where one has to be: refused in a line that names it, at once, by whatever reads it.


LIMIT = 20.0
"""Seconds; what waits for a pipe waits for ever."""


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")
    (path.parent / "elsewhere").write_text("")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def opened(root: Path) -> str:
    """Open a state folder that cannot be used, and return what is said."""
    began = time.monotonic()
    with pytest.raises(StateError) as caught, StateFolder.open(root):
        pass
    assert time.monotonic() - began < LIMIT
    text = f"{caught.value.message}"
    assert "\n" not in text and caught.value.hint
    return text


@pytest.mark.parametrize("made", [a_pipe, a_folder, a_link, a_link_to_nothing, a_socket])
def test_a_lock_that_is_no_file(tmp_path: Path, made: Callable[[Path], None]) -> None:
    root = tmp_path / "state"
    root.mkdir()
    made(root / "lock")
    _, _, why = opened(root).partition(f"{root / 'lock'} cannot be used: ")
    assert why.startswith(("it is a ", "Is a directory"))
    assert not is_locked(root / "lock")


@pytest.mark.parametrize("name", ["format.json", "inbox/format.json", "addresses.json", "ledger/kafka/7", "state.db"])
@pytest.mark.parametrize("made", [a_pipe, a_socket])
def test_a_file_of_the_state_that_is_none(tmp_path: Path, made: Callable[[Path], None], name: str) -> None:
    root = tmp_path / "state"
    with StateFolder.open(root):
        pass
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    made(path)
    said = opened(root)
    assert str(path) in said and "it is a " in said


def test_what_looks_beside_a_router_does_not_wait_either(tmp_path: Path) -> None:
    with StateFolder.open(tmp_path):
        pass
    (tmp_path / "format.json").unlink()
    os.mkfifo(tmp_path / "format.json")
    with pytest.raises(StateError, match="it is a pipe"):
        StateFolder.beside(tmp_path).__enter__()
    os.mkfifo(tmp_path / "addresses.json")
    with pytest.raises(StateError, match=r"addresses\.json"):
        pinned_addresses(tmp_path)
    (tmp_path / "state.db").unlink()
    (tmp_path / "format.json").unlink()
    os.mkfifo(tmp_path / "state.db")
    with pytest.raises(StateError), LetterLedger.open(tmp_path, create=False):
        pass


DEVICE = "/dev/zero"


@pytest.mark.parametrize("what", ["a pipe", "a folder", "a device"])
@pytest.mark.parametrize("role", ["settings", "secret", "catalog", "cases", "records"])
def test_files_that_commands_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str, role: str
) -> None:
    monkeypatch.setattr(catalog.parsing.regular, "PIPE_SECONDS", 0.2)
    good = tmp_path / "catalog.json"
    good.write_text('{"messagegroups": {"g": {"messages": {"m": {"envelope": "CloudEvents/1.0"}}}}}')
    path = tmp_path / "x.cases.yaml"
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a folder":
        path.mkdir()
    else:
        path.symlink_to(DEVICE)
    settings = tmp_path / "router.yaml"
    settings.write_text(f"sources: [{{endpoint: /endpoints/e, username: u, password: 'file:{path}'}}]\n")
    told = {
        "settings": ["check", str(good), "--config", str(path)],
        "secret": ["check", str(good), "--config", str(settings)],
        "catalog": ["check", str(path)],
        "cases": ["test", str(path), "--catalog", str(good)],
        "records": ["match", "--catalog", str(good), "--expect", str(path)],
    }
    began = time.monotonic()
    assert run_command_line(told[role]) != 0
    assert time.monotonic() - began < LIMIT
    said = capsys.readouterr()
    text = said.out + said.err
    if (role, what) == ("cases", "a folder"):  # it may hold some
        assert "there are no cases" in text
        return
    assert (path.name in text or DEVICE in text) and "Traceback" not in text


def test_a_pipe_that_somebody_writes_to_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"messagegroups": {"g": {"messages": {"m": {"envelope": "CloudEvents/1.0"}}}}}')
    os.close(writing)
    try:
        assert run_command_line(["check", f"/dev/fd/{reading}"]) == 0
    finally:
        os.close(reading)
    assert "0 errors" in capsys.readouterr().out
