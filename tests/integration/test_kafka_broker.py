"""The broker that all Kafka tests stand on: it ends with them, and one that is missing fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers import KafkaBroker, answers, kafka_for_tests
from tests.support.processes import BrokerFailed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT_SECONDS = 300.0


def test_no_broker_outlives_the_tests(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support.brokers import KafkaBroker\n"
        "broker = KafkaBroker(Path(sys.argv[1])); broker.start(); print(broker.bootstrap, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        bootstrap = owner.stdout.readline().strip()
        assert answers(bootstrap)
        owner.kill()
    wait_until(lambda: not answers(bootstrap, 0.5), LIMIT_SECONDS, f"the orphan on {bootstrap} to end")


def test_a_given_broker_that_is_not_there_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XROUTER_TEST_KAFKA", "127.0.0.1:1")
    monkeypatch.setattr("tests.support.brokers.READY_LIMIT_SECONDS", 0.5)
    with pytest.raises(BrokerFailed, match="unset XROUTER_TEST_KAFKA"), kafka_for_tests(tmp_path):
        pass


def test_a_broker_that_cannot_start_tells_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, heap="1k")
    with pytest.raises(BrokerFailed, match="heap"):
        broker.start()
