"""What ``check`` and ``doctor`` say of settings for a cluster, before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.commands.check.command import collect_findings
from router.commands.doctor import run_doctor
from router.preflight import CheckResult
from tests.support.load import catalog, write_catalog
from tests.support.ports import LOOPBACK, free_ports

SETTINGS = """
catalog: {{source: {catalog}}}
state: {folder}/state
sources: [{{endpoint: /endpoints/plant, bootstrap_servers: "127.0.0.1:1"}}]
sinks: {{events: {{type: table, path: {folder}/lake}}, dead: {{type: jsonl}}}}
routes: [{{to: events}}]
dead_letters: {{sinks: dead}}
spark: {{master: "{master}", driver_host: {host}, shared_folders: {shared}}}
"""


def written(folder: Path, *, master: str = "spark://127.0.0.1:1", host: str = LOOPBACK, shared: str = "lake") -> Path:
    source = write_catalog(folder / "catalog.json", catalog(2, topic="in"))
    file = folder / "router.yaml"
    file.write_text(SETTINGS.format(catalog=source, folder=folder, master=master, host=host, shared=shared))
    return file


@pytest.mark.slow
def test_check_names_what_executors_cannot_reach(tmp_path: Path) -> None:
    source = [str(tmp_path / "catalog.json")]
    file = written(tmp_path, shared="elsewhere")
    [finding] = [each for each in collect_findings(source, file)[0] if each.rule == "settings"]
    assert finding.pointer == "/sinks/events/path" and "spark.shared_folders" in finding.message
    file = written(tmp_path, host="10.0.0.5")
    [finding] = [each for each in collect_findings(source, file)[0] if each.rule == "open-cluster"]
    assert "spark.authenticate" in finding.message
    rules = {each.rule for each in collect_findings(source, written(tmp_path))[0]}
    assert not rules & {"settings", "open-cluster"}


@pytest.fixture
def master() -> Iterator[str]:
    """The address of something that takes connections."""
    with socket.create_server((LOOPBACK, free_ports(1)[0])) as server:
        yield f"spark://{LOOPBACK}:1,{LOOPBACK}:{server.getsockname()[1]}"


@pytest.mark.slow
def test_doctor_looks_whether_a_master_is_there(tmp_path: Path, master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bindings.kafka.offsets.TIMEOUT_SECONDS", 0.5)
    assert cluster_states(written(tmp_path, master=master)) == ["ok"]
    assert cluster_states(written(tmp_path)) == ["fail"]
    assert cluster_states(written(tmp_path, master="yarn", host="10.0.0.5")) == ["warn", "ok"]
    assert cluster_states(written(tmp_path, master="local[2]")) == []


def cluster_states(file: Path) -> list[str]:
    def until_brokers(diagnoses: Iterator[CheckResult]) -> Iterator[CheckResult]:
        # Brokers come after it, and take ten seconds each when they are not there.
        for each in diagnoses:
            if each.name.startswith("source "):
                return
            yield each

    return [each.state for each in until_brokers(run_doctor(file)) if each.name == "cluster"]
