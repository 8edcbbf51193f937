"""Gateways of brokers as the router runs them: one that ends by a fault of its own is opened again."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest
import structlog

from bindings.background import fault_counts
from bindings.gateways import EndpointSubscription, GatewayError
from bindings.parts import InboxRow
from router.intake.intake import BrokerGateways
from router.settings import Settings, SourceSettings
from router.sources import Source
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
