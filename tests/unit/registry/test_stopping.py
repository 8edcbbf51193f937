"""How a registry's server ends: in its time, and with nothing left open when it never began."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from bindings.gateways import GatewayError
from registry.http.server import RegistryServer, RegistrySettings
from tests.support.waiting import wait_until

LIMIT = 60.0
GRACE = 2.0


def settings(folder: Path, metrics: tuple[str, int] | None = None) -> RegistrySettings:
    return RegistrySettings(f"sqlite:///{folder}/registry.db", port=0, metrics=metrics)


def opened(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    found: list[str] = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:
            continue
    return [each for each in found if each.startswith(str(folder))]


def writers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("registry-writer")]


def test_a_write_that_waits_for_another_process_does_not_hold_the_end_up(tmp_path: Path) -> None:
    server = RegistryServer(settings(tmp_path))
    server.start()
    url = f"http://127.0.0.1:{server.port}/messagegroups/g"
    with closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def ask() -> None:
            with suppress(httpx.HTTPError):  # the server ends before there is an answer
                httpx.put(url, json={}, timeout=LIMIT)

        asked = threading.Thread(target=ask, daemon=True)
        asked.start()
        wait_until(lambda: bool(writers()), LIMIT, "a write that waits")
        before = time.monotonic()
        server.stop(GRACE)
        took = time.monotonic() - before
        assert writers(), "the write waited for all the time"
        other.execute("ROLLBACK")
    assert took < 5 * GRACE
    wait_until(lambda: not writers(), LIMIT, "the end of the write")
    asked.join(LIMIT)


def test_nothing_is_open_where_the_port_of_metrics_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = RegistryServer(settings(tmp_path, ("127.0.0.1", taken.getsockname()[1])))
        with pytest.raises(GatewayError):
            server.start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port)).close()
    assert not opened(tmp_path)
