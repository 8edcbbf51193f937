"""Gateways of brokers as the router runs them: one that ends by a fault of its own is opened again."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
import structlog

from bindings.background import fault_counts
from bindings.gateways import EndpointSubscription, GatewayError
from bindings.inbox.log import Inbox
from bindings.parts import InboxRow
from catalog.load import load
from router.evaluation.plan import Plan
from router.intake.intake import BrokerGateways, Intake, open_local_store
from router.settings import Settings, SourceSettings, settings_from_dict
from router.sources import Source
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus

ENDPOINT = "/endpoints/plant"


class NoRows:
    """A store that nothing reaches in these tests."""

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Store nothing."""
        raise AssertionError("no gateway of this test takes a message")


class FragileGateway:
    """A gateway that ends when it is told to, and that may not start."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self.alive = False
        self.connected = False
        self.trouble = ""
        self.stopped = False

    def start(self) -> None:
        """Begin, or refuse to."""
        if self._fault:
            raise GatewayError(self._fault)
        self.alive = self.connected = True

    def end(self) -> None:
        """End as by a fault of its own."""
        self.alive = self.connected = False
        self.trouble = "it stopped after an internal error: ValueError"

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Take other subscriptions."""

    def stop(self, grace: float) -> None:
        """Note that it was let go."""
        self.stopped = True


@pytest.fixture
def source() -> Source:
    settings = SourceSettings(endpoint=ENDPOINT)
    place = {"uris": ("mqtt://127.0.0.1:1",), "addresses": ("a/b",), "protocol": "MQTT/5.0"}
    return Source(ENDPOINT, "mqtt", f"mqtt:{ENDPOINT}", "inbox", settings, **place)  # type: ignore[arg-type]


def settings_of() -> Settings:
    given = {
        "catalog": {"source": "x"},
        "sinks": {"out": {"type": "jsonl", "path": "-"}},
        "dead_letters": {"sinks": ["out"]},
    }
    return Settings.model_validate({**given, "routes": [{"to": ["out"]}]})


def test_a_connection_that_is_lost_and_there_again_is_told_once(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = FragileGateway()
    monkeypatch.setattr("router.intake.intake.open_gateway", lambda *_: gateway)
    gateways = BrokerGateways(NoRows(), settings_of(), Metrics(), RouterStatus(), "id")
    with structlog.testing.capture_logs() as logged:
        gateways.run_for_sources([source])
        for connected in (True, True, False, False, True, True):
            gateway.connected, gateway.trouble = connected, "" if connected else "the broker went away"
            gateways.check_gateways()
    told = [(entry["event"], entry["endpoints"]) for entry in logged if entry["event"] != "gateway started"]
    assert told == [(event, ENDPOINT) for event in ("connected", "connection lost", "connected again")]
    assert {entry["addresses"] for entry in logged[1:]} == {", ".join(source.addresses)} != {""}
    assert [entry["problem"] for entry in logged if "problem" in entry] == ["the broker went away"]


def test_a_gateway_that_ended_by_itself_is_opened_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("bindings.background.time.monotonic", lambda: now[0])
    later = [FragileGateway(), FragileGateway("certificate plant.pem cannot be read"), FragileGateway()]
    opened: list[FragileGateway] = []

    def opener(*_: object) -> FragileGateway:
        opened.append(later[len(opened)])
        return opened[-1]

    status = RouterStatus()
    monkeypatch.setattr("router.intake.intake.open_gateway", opener)
    gateways = BrokerGateways(NoRows(), settings_of(), Metrics(), status, "id")

    def reasons() -> str:
        return " ".join(status.check_readiness()[1]["reasons"])

    gateways.run_for_sources([source])
    gateways.check_gateways()
    assert "gateway" not in reasons()
    counted = fault_counts().get("gateway", 0)
    opened[0].end()
    gateways.check_gateways()  # The second one cannot start; the router goes on and says so.
    assert opened[0].stopped
    assert "certificate plant.pem cannot be read" in reasons()
    gateways.check_gateways()
    assert len(opened) == 2, "the next try waits for its time"
    now[0] += 120
    gateways.check_gateways()
    assert len(opened) == 3
    gateways.check_gateways()
    assert "gateway" not in reasons()
    assert fault_counts()["gateway"] == counted + 2


# What the inbox takes on disk is told as it was while nobody can look.


def test_without_descriptors_the_last_size_is_told(tmp_path: Path) -> None:
    endpoint = {"usage": ["consumer"], "protocol": "HTTP", "protocoloptions": {"options": {"path": "/e"}}}
    (tmp_path / "c.json").write_text(json.dumps({"endpoints": {"e": {**endpoint, "messagegroups": []}}}))
    tables = {name: {"type": "table", "path": name} for name in ("lake", "dead")}
    told = {"sinks": tables, "routes": [{"to": ["lake"]}], "dead_letters": {"sinks": ["dead"]}, "http": {"port": 0}}
    settings = settings_from_dict(told, {}, tmp_path)
    sizes: list[int | OSError] = [7, OSError(errno.EMFILE, "too many open files"), 9]

    def size() -> int:
        found = sizes.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    def opened() -> Inbox:
        inbox = open_local_store(settings, state)
        inbox.measure_size = size  # type: ignore[method-assign]
        return inbox

    with StateFolder.open(tmp_path / "state") as state:
        intake = Intake(settings, Metrics(), RouterStatus(), opened)
        assert intake.inbox_size() == (0, settings.inbox.max_bytes)
        intake.receive_for_plan(Plan(load([tmp_path / "c.json"]), settings))
        try:
            assert [intake.inbox_size()[0] for _ in range(3)] == [7, 7, 9]
        finally:
            intake.close()
