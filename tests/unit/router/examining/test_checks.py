"""What stops a start, told by ``doctor``, and by ``run`` before Spark: the same list, at once, within a limit."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from bindings.private_files import take_lock
from catalog.load import load
from router.commands.doctor import run_doctor
from router.errors import BrokerUnreachable, SinkError
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.preflight import CheckResult, PreflightCheck, combine_errors, iter_router_checks, require_checks, run_checks
from router.settings import load_settings
from router.sources import resolve_sources
from tests.support.ports import LOOPBACK, Authority, free_ports
from tests.unit.router.sinks.tables.test_rules import declare

BROKERS: Final = {
    "mqtt": ("MQTT/5.0", "mqtt", {"topic": "in"}),
    "amqp": ("AMQP/1.0", "amqp", {"node": "in"}),
    "nats": ("NATS", "nats", {"subject": "in"}),
}
SINKS: Final = {
    "mqtt": {"topic": "out"},
    "amqp": {"node": "out"},
    "nats": {"subject": "out"},
    "http": {},
}


class Place:
    """A folder with settings and a catalog: HTTP comes in, tables go out; more as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "router.yaml"
        self.endpoints: dict[str, Any] = {
            "door": self.endpoint("HTTP", {"path": "/in"}),
        }
        self.settings: dict[str, Any] = {
            "catalog": {"source": str(folder / "catalog.json")},
            "state": str(folder / "state"),
            "http": {"port": 0},
            "metrics": {"port": 0},
            "sinks": {
                "lake": {"type": "table", "path": str(folder / "lake")},
                "dead": {"type": "table", "path": str(folder / "dead")},
            },
            "routes": [{"to": ["lake"]}],
            "dead_letters": {"sinks": ["dead"]},
        }

    @staticmethod
    def endpoint(protocol: str, options: dict[str, Any], uri: str = "") -> dict[str, Any]:
        """Return an endpoint of the one definition there is."""
        told = {"options": options, **({"endpoints": [{"uri": uri}]} if uri else {})}
        return {
            "usage": ["consumer"],
            "protocol": protocol,
            "protocoloptions": told,
            "messagegroups": ["/messagegroups/g"],
        }

    def sink(self, name: str, told: dict[str, Any]) -> None:
        """Add a sink that takes all events."""
        self.settings["sinks"][name] = told
        self.settings["routes"][0]["to"].append(name)

    def write(self) -> Path:
        """Write both files; return the settings'."""
        metadata = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "made"}}}
        groups = {"g": {"messages": {"m": metadata}}}
        (self.folder / "catalog.json").write_text(json.dumps({"messagegroups": groups, "endpoints": self.endpoints}))
        self.config.write_text(yaml.safe_dump(self.settings))
        return self.config


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield int(server.getsockname()[1])


def states(config: Path) -> dict[str, CheckResult]:
    return {each.name: each for each in run_doctor(config)}


def test_the_checks_of_peers_compile_one_plan(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Plan] = []

    def noted(*given: Any) -> Plan:
        compiled.append(Plan(*given))
        return compiled[-1]

    monkeypatch.setattr("router.preflight.Plan", noted)
    monkeypatch.setattr("bindings.kafka.offsets.TIMEOUT_SECONDS", 0.5)
    place.sink("bus", {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "out"})
    assert states(place.write())["sink bus"].state == "warn"
    assert len(compiled) == 1


def test_a_table_whose_features_cannot_be_written_is_named(place: Place) -> None:
    folder = Path(place.settings["sinks"]["lake"]["path"])
    write_deltalake(folder, pa.table({"id": ["a"]}))
    assert states(place.write())["sink lake"].state == "ok"
    declare(folder, "identityColumns")
    found = states(place.write())["sink lake"]
    assert found.state == "warn" and "DROP FEATURE" in found.remedy
    assert found.observation == f"{folder}: the table has features that cannot be written here: identityColumns"


def test_who_is_waited_for_stops_no_start(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (protocol, scheme, options) in BROKERS.items():
        place.endpoints[name] = Place.endpoint(protocol, options, f"{scheme}://127.0.0.1:1")
    for name, told in SINKS.items():
        address = {"url": "http://127.0.0.1:1/{type}"} if name == "http" else {"uri": f"{name}://127.0.0.1:1"}
        place.sink(name, {"type": name, **address, **told})
    config = place.write()
    found = states(config)
    for name in (*(f"source /endpoints/{each}" for each in BROKERS), *(f"sink {each}" for each in SINKS)):
        assert found[name].state == "warn" and "127.0.0.1:1: Connection refused" in found[name].observation, name
    assert not any(each.state == "fail" for each in found.values())
    settings = load_settings(config)
    configure_logs(settings.log)
    catalog = load(settings.catalog.source)
    capsys.readouterr()
    require_checks(iter_router_checks(settings, catalog, resolve_sources(catalog, settings)))
    err = capsys.readouterr().err
    assert err.count("preflight check failed") >= 7 and "the gateway connects when" in err


def test_who_answers_is_ok(place: Place, taken: int) -> None:
    for name, (protocol, scheme, options) in BROKERS.items():
        # The first is away: one that answers will do.
        place.endpoints[name] = Place.endpoint(protocol, options, f"{scheme}://127.0.0.1:{taken}")
        place.endpoints[name]["protocoloptions"]["endpoints"].insert(0, {"uri": f"{scheme}://127.0.0.1:1"})
    for name, told in SINKS.items():
        address = (
            {"url": f"http://127.0.0.1:{taken}/{{type}}"} if name == "http" else {"uri": f"{name}://127.0.0.1:{taken}"}
        )
        place.sink(name, {"type": name, **address, **told})
    found = states(place.write())
    for name in (*(f"source /endpoints/{each}" for each in BROKERS), *(f"sink {each}" for each in SINKS)):
        assert found[name].state == "ok" and f":{taken} accepts connections" in found[name].observation, name


def test_a_certificate_of_somebody_else_is_told(place: Place, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with TlsServer(theirs) as port:
        for name, authority in (("ours", ours), ("theirs", theirs)):
            url = f"https://localhost:{port}/{{type}}"
            place.sink(name, {"type": "http", "url": url, "tls": {"ca": str(authority.certificate)}})
        found = states(place.write())
    assert found["sink theirs"].state == "ok"
    assert found["sink ours"].state == "warn" and "its certificate is invalid" in found["sink ours"].observation


def test_what_a_running_router_has_is_not_missing(place: Place, taken: int) -> None:
    place.settings["http"]["port"] = place.settings["metrics"]["port"] = taken
    config = place.write()
    assert [states(config)[name].state for name in ("http port", "metrics port")] == ["fail", "fail"]
    (place.folder / "state").mkdir()
    with take_lock(place.folder / "state" / "lock"):
        found = states(config)
    for name in ("http port", "metrics port"):
        assert found[name].state == "ok" and "the router that runs" in found[name].observation


def test_nobody_is_waited_for_longer_than_his_limit() -> None:
    never = threading.Event()

    def slow() -> Iterator[CheckResult]:
        never.wait()
        yield CheckResult("slow", "ok", "too late")

    def quick() -> Iterator[CheckResult]:
        yield CheckResult("quick", "ok", "there")

    began = time.monotonic()
    found = list(
        run_checks([PreflightCheck(f"slow {n}", slow, 0.5) for n in range(20)] + [PreflightCheck("quick", quick)])
    )
    never.set()
    assert time.monotonic() - began < 8, "all at once"
    assert [each.state for each in found] == ["warn"] * 20 + ["ok"]
    assert "after 0.5 s" in found[0].observation and combine_errors(found) is None


def test_a_refusal_has_the_code_of_the_first_and_names_all() -> None:
    found = [
        CheckResult("a", "warn", "waits"),
        CheckResult("sink lake", "fail", "full", "free it", SinkError),
        CheckResult("source s", "fail", "away", "start it", BrokerUnreachable),
    ]
    error = combine_errors(found)
    assert isinstance(error, SinkError) and (error.message, error.sink) == ("sink lake: full", "lake")
    assert [(each.message, each.hint, each.exit_code) for each in error.others] == [("source s: away", "start it", 5)]


class TlsServer:
    """Answers handshakes on a thread for the time of the block; its port."""

    def __init__(self, authority: Authority) -> None:
        pair = authority.sign("localhost", alternatives="DNS:localhost,IP:127.0.0.1")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)

    def __enter__(self) -> int:
        self._server = socket.create_server((LOOPBACK, free_ports(1)[0]))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return int(self._server.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                self._context.wrap_socket(client, server_side=True).close()
            except OSError:
                client.close()

    def __exit__(self, *_: object) -> None:
        self._server.close()
