"""A terminal that closes under a router: it drains, and its JVM stays until it has. Ctrl-C ends a start at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import plain
from tests.support.ports import free_ports
from tests.support.processes import children, program_of
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until


@pytest.fixture
def terminal() -> Iterator[None]:
    """Have processes begin as below a terminal, also where these tests run under nohup, whose children ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def configured(folder: Path) -> RouterProcess:
    """Return a router that takes events over HTTP, not yet started."""
    door = plain.endpoint("HTTP", {"path": "/events"}, "g")
    source = plain.write(folder, plain.catalog({"door": door}, g={"m": plain.event("made")}))
    [port] = free_ports(1)
    return RouterProcess(folder, plain.routed(source, plain.lines(folder, "out", "dead"), http={"port": port}))


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
        plain.post(port, "/events", {}, **plain.http_headers("made"))
        wait_until(lambda: router.total("xrouter_records_total") >= 1, 120, lambda: router.log[-2000:])
        assert router.hang_up() == 0, router.log[-3000:]
        assert "SIGHUP" in router.log and "JVM" not in router.log.partition("SIGHUP")[2]
    finally:
        router.end()
    [line] = plain.lines_of(tmp_path / "out")
    assert line["cloudevent"]["id"] == "1"
