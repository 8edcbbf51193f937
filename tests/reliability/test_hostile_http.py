"""A router under attack: a hundred kinds of abuse at its HTTP port, while honest senders go on sending.

It goes on for five minutes, with few open files. Honest senders are answered in time, nothing of the router grows
without bound or reaches its log as a traceback, it is ready at the end, and what was answered 202 is in its output.
"""

from __future__ import annotations

import json
import resource
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import plain
from tests.support.hostile_http import SHAPES, abuse, seen
from tests.support.http import KEY, HonestSenders
from tests.support.ports import Authority, free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
HONEST: Final = "honest-key"
SECONDS: Final = 300.0
GROWTH: Final = 300 * 2**20
FILES: Final = 1024


def catalog() -> dict[str, Any]:
    """Return a catalog of one event, and of a template that used to take days to match."""
    told = {"events": ("POST", "/events"), "days": ("PUT", "/days/{y}-{m}-{d}/x")}
    endpoints = {
        name: plain.endpoint("HTTP", {"path": path, "method": method}, "g") for name, (method, path) in told.items()
    }
    return plain.catalog(endpoints, g=plain.events("honest"))


class Attacked:
    """One router, and what it takes of the machine."""

    def __init__(self, folder: Path, *, tls: bool) -> None:
        self.router = RouterProcess(folder, {})
        self.http = free_ports(1)[0]
        self.client: ssl.SSLContext | None = None
        settings: dict[str, Any] = {"port": self.http, "auth": {"api_keys": {"h": "${HONEST}", "i": "${INSIDER}"}}}
        if tls:
            authority = Authority(folder / "authority")
            pair = authority.sign("server", alternatives="IP:127.0.0.1")
            settings["tls"] = {"cert": str(pair.certificate), "key": str(pair.key)}
            self.client = ssl.create_default_context(cafile=str(authority.certificate))
        # Short times, so that no kind of abuse takes long to see its end.
        settings |= {"header_timeout": "2s", "request_timeout": "3s", "idle_timeout": "2s"}
        more: dict[str, Any] = {"http": settings, "inbox": {"min_free_bytes": 0}, "trigger": "5s"}
        more["sources"] = [{"endpoint": "/endpoints/events"}, {"endpoint": "/endpoints/days"}]
        source = plain.write(folder, catalog())
        self.router.configure(plain.routed(source, plain.lines(folder, "out", "dead"), **more))

    def start(self) -> None:
        """Start it, with few open files, and fewer still until it raises its limit."""
        self.router.launch(environ={"HONEST": HONEST, "INSIDER": KEY})
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (FILES // 2, FILES))
        wait_until(lambda: self.router.readiness().get("ready"), SECONDS, lambda: self.router.log[-3000:])

    @property
    def pid(self) -> int:
        """The process of the router."""
        assert self.router._process is not None
        return self.router._process.pid

    def memory(self) -> int:
        """Return the bytes that it has in memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def files(self) -> int:
        """Return how many files it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def written(self) -> set[str]:
        """Return the ids of all events in the output."""
        return {line["cloudevent"]["id"] for line in plain.lines_of(self.router.folder / "out")}


@pytest.fixture
def attacked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Attacked]:
    made = Attacked(tmp_path / "router", tls=request.param)
    try:
        made.start()
        yield made
    finally:
        made.router.end()


def attack(attacked: Attacked) -> HonestSenders:
    """Attack for a while, hold everything to its bounds, and return the honest senders."""
    honest = HonestSenders(attacked.http, HONEST, tls=attacked.client)
    honest.start()
    wait_until(lambda: len(honest.confirmed) > 20, SECONDS, "honest senders to be answered")
    before, files, most = attacked.memory(), attacked.files(), (0, 0)
    began = time.monotonic()
    hostile = abuse(attacked.http, seconds=SECONDS, tls=attacked.client is not None)
    while hostile.poll() is None:
        most = max(most[0], attacked.memory()), max(most[1], attacked.files())
        time.sleep(0.2)
    found = seen(hostile, 2 * SECONDS)
    honest.stop()
    figures = {
        "connections": found.connections,
        "statuses": found.statuses,
        "honest": len(honest.confirmed),
        "worst": honest.worst,
        "reconnects": honest.reconnects,
        "memory MiB": (before >> 20, most[0] >> 20),
        "files": (files, most[1]),
        "seconds": time.monotonic() - began,
    }
    (attacked.router.folder / "figures.json").write_text(json.dumps(figures))
    assert set(found.shapes) == {shape.name for shape in SHAPES} and len(found.shapes) >= 100
    assert not found.taken, figures
    assert most[0] - before < GROWTH and most[1] < FILES, figures
    assert set(honest.statuses) == {202}, figures
    return honest


def check_end(attacked: Attacked, honest: HonestSenders) -> None:
    """The router is ready, loses nothing, stops while senders are active, and has said little."""
    router = attacked.router
    wait_until(lambda: router.readiness().get("ready"), SECONDS, lambda: f"{router.readiness()}")
    confirmed = set(honest.confirmed)
    wait_until(lambda: confirmed <= attacked.written(), SECONDS, "every event that was answered 202")
    active = HonestSenders(attacked.http, HONEST, tls=attacked.client, count=8)
    active.start()
    wait_until(lambda: len(active.confirmed) > 100, SECONDS, "active senders to be answered")
    assert router.stop() == 0
    active.stop()
    log = router.log
    assert "what='open files'" in log and "only 724 connections instead of 1000" in log
    assert "Traceback" not in log and HONEST not in log and KEY not in log
    assert "warning" not in log.partition("draining")[2], log[-3000:]
    assert len(log.splitlines()) < 500, log[:5000]


@pytest.mark.full
@pytest.mark.parametrize("attacked", [False, True], indirect=True, ids=["plain", "tls"])
def test_five_minutes_of_abuse(attacked: Attacked) -> None:
    honest = attack(attacked)
    check_end(attacked, honest)
    assert honest.worst < 2.0
