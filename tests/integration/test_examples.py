"""The examples of ``deploy/examples`` against real brokers: what the senders send becomes what the pages say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.conftest import Kafka
from tests.support import plain
from tests.support.deployed import EXAMPLES, EXPECTED, NAMES, sender
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer
from tests.support.ports import free_ports
from tests.support.qpid import amqp_for_tests
from tests.support.router import RouterProcess, submit_options
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS: Final = 300.0


@pytest.fixture
def brokers(kafka: Kafka, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where each example finds its broker; for HTTP, the router itself."""
    with ExitStack() as ending:
        mqtt = ending.enter_context(Mosquitto(tmp_path / "mqtt"))
        nats = ending.enter_context(NatsServer(tmp_path / "nats"))
        amqp = ending.enter_context(amqp_for_tests(tmp_path / "amqp"))
        found = {"kafka": kafka.bootstrap, "mqtt": mqtt.uri, "nats": nats.uri, "amqp": amqp}
        yield {**found, "http": f"http://127.0.0.1:{free_ports(1)[0]}"}


def test_what_the_examples_send_becomes_what_they_say(
    brokers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, router: RouterProcess
) -> None:
    """One router with the catalogs and sources of all five, since each start takes its time."""
    senders, sources = {}, []
    for name in NAMES:
        monkeypatch.setenv("BROKER", brokers[name])
        senders[name] = sender(name)
        written = yaml.safe_load((EXAMPLES / name / "router.yaml").read_text())
        for source in written.get("sources", [{"endpoint": "/endpoints/hooks"}]):
            places: dict[str, Any] = {"uris": [brokers[name]], "bootstrap_servers": brokers[name]}
            sources.append({**source, **{key: place for key, place in places.items() if key in source}})
        senders[name].prepare()
    out = tmp_path / "out"
    told = {
        "match": {"validate": "always"},
        "start": "latest",
        "http": {"port": int(brokers["http"].rpartition(":")[2])},
    }
    catalogs = {"source": [str(EXAMPLES / name / "catalog.xreg.json") for name in NAMES]}
    settings = plain.routed(EXAMPLES, plain.lines(out, "out", "dead"), sources=sources, **told)
    router.configure({**settings, "catalog": catalogs})
    router.start()
    sent = {name: module.send() for name, module in senders.items()}
    assert sent == {name: len(expected) for name, expected in EXPECTED.items()}
    wait_until(lambda: router.total("xrouter_records_total") >= sum(sent.values()), SECONDS, lambda: router.log[-3000:])
    assert router.stop() == 0
    endpoints = {"work": "amqp", "hooks": "http", "orders": "kafka", "plants": "mqtt", "fleet": "nats"}
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    for line in plain.lines_of(out):
        kind = line["reason"] if "letter" in line else line["cloudevent"]["type"]
        found[endpoints[line["endpoint"].rpartition("/")[2]]].append(kind)
    assert {name: sorted(kinds) for name, kinds in found.items()} == EXPECTED


def run(name: str, broker: str | None) -> subprocess.CompletedProcess[str]:
    http, metrics = free_ports(2)
    environ = {**os.environ, **submit_options(), "XROUTER_METRICS__PORT": str(metrics), "XROUTER_HTTP__PORT": str(http)}
    environ["BROKER"] = broker or f"http://127.0.0.1:{http}"
    command = [sys.executable, str(EXAMPLES / "run.py"), name]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=2 * SECONDS)


def outcomes(text: str) -> list[str]:
    lines = [line.split() for line in text.splitlines() if line.startswith("  ")]
    return sorted(words[2].rstrip(":") if words[0] == "dead" else words[1] for words in lines)


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_one_command_runs_each_of_them(brokers: dict[str, str]) -> None:
    for name in NAMES:
        done = run(name, None if name == "http" else brokers[name])
        assert done.returncode == 0, done.stdout + done.stderr
        assert outcomes(done.stdout) == EXPECTED[name]
        assert not list((EXAMPLES / name).glob("state*"))


def test_a_broker_that_is_not_there_is_told() -> None:
    done = run("mqtt", f"mqtt://127.0.0.1:{free_ports(1)[0]}")
    assert done.returncode == 1 and "no broker at mqtt://127.0.0.1" in done.stderr and "BROKER=" in done.stderr
