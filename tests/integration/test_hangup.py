"""A terminal that closes under a router: it drains, and its JVM stays until it has. Ctrl-C ends a start at once."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import children, program_of
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

CATALOG = {
    "specversion": "1.0-rc4",
    "endpoints": {
        "door": {
            "usage": ["consumer"],
            "protocol": "HTTP",
            "protocoloptions": {"options": {"path": "/events"}},
            "messagegroups": ["/messagegroups/g"],
        }
    },
    "messagegroups": {
        "g": {"messages": {"m": {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "made"}}}}}
    },
}
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "made"}


@pytest.fixture
def terminal() -> Iterator[None]:
    """Have processes begin as below a terminal, also where these tests run under nohup, whose children ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def configured(folder: Path) -> RouterProcess:
    """Return a router that takes events over HTTP, not yet started."""
    (folder / "catalog.xreg.json").write_text(json.dumps(CATALOG))
    [port] = free_ports(1)
    settings = {"http": {"port": port}, "sinks": {"out": {"type": "jsonl", "path": str(folder / "out")}}}
    return RouterProcess(folder, {**settings, "routes": [{"to": ["out"]}]})


@pytest.mark.parametrize("with_jvm", [False, True], ids=["before the JVM", "with the JVM"])
def test_ctrl_c_ends_a_start_in_a_line(tmp_path: Path, with_jvm: bool) -> None:
    router = configured(tmp_path)
    router.launch()

    def has_come_so_far() -> bool:
        if with_jvm:
            return any(program_of(pid).endswith("java") for pid in children(router.pid))
        return "memory budget" in router.log

    try:
        wait_until(lambda: has_come_so_far() or router.ended is not None, 120, lambda: router.log[-2000:])
        began = time.monotonic()
        assert router.interrupt() == 0
        assert time.monotonic() - began < 60, "a start takes longer than that where this takes seconds"
        _, *told = router.log.partition("stopping before startup has finished")[2].splitlines()
        assert len(told) == 1 and "stopped" in told[0], router.log[-3000:]
        assert "running" not in router.log.replace("router.running", "")
    finally:
        router.end()


@pytest.mark.full
@pytest.mark.usefixtures("terminal")
def test_a_closed_terminal_drains(tmp_path: Path) -> None:
    router = configured(tmp_path)
    port = yaml.safe_load(router.config.read_text())["http"]["port"]
    router.start()
    try:
        httpx.post(f"http://{LOOPBACK}:{port}/events", headers=EVENT, content=b"{}").raise_for_status()
        wait_until(lambda: router.total("xrouter_records_total") >= 1, 120, lambda: router.log[-2000:])
        assert router.hang_up() == 0, router.log[-3000:]
        assert "SIGHUP" in router.log and "JVM" not in router.log.partition("SIGHUP")[2]
    finally:
        router.end()
    [line] = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert json.loads(line)["cloudevent"]["id"] == "1"
