"""The metrics of a registry: forms that watchers ask for, and how replication goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.apis.apis import apis_by_path
from registry.http.server import RegistryServer, RegistrySettings, create_metrics_server
from registry.replication.peers import Peer
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

LIMIT = 60.0


@contextmanager
def running(folder: Path, **given: Any) -> Iterator[RegistryServer]:
    folder.mkdir()
    store, port = f"sqlite:///{folder}/r.db", given.pop("port", 0)
    server = RegistryServer(RegistrySettings(store, port=port, metrics=("127.0.0.1", 0), **given))
    server.start()
    try:
        yield server
    finally:
        server.stop(2.0)


def asked(server: RegistryServer, **headers: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics", headers=headers, timeout=30)


def test_watchers_choose_form_and_compression(tmp_path: Path) -> None:
    with running(tmp_path / "r") as server:
        plain = asked(server, **{"accept-encoding": "identity"})
        assert plain.headers["content-type"].startswith("text/plain; version=")
        assert "content-encoding" not in plain.headers and plain.headers["cache-control"] == "no-store"
        packed = asked(server, **{"accept-encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip" and "xrouter_registry_delivers" in packed.text
        opened = asked(server, accept="application/openmetrics-text; version=1.0.0")
        assert opened.headers["content-type"].startswith("application/openmetrics-text")
        assert opened.text.endswith("# EOF\n")
        one = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics?name[]=xrouter_registry_delivers")
        assert [line.split()[0] for line in one.text.splitlines() if line[0] != "#"] == ["xrouter_registry_delivers"]


def test_health_and_readiness_are_told_beside_the_metrics(tmp_path: Path) -> None:
    with running(tmp_path / "r") as server:
        watch = f"http://127.0.0.1:{server.metrics_port}"
        for path in ("/healthz", "/readyz"):
            told = httpx.get(f"{watch}{path}", timeout=30)
            assert (told.status_code, told.json()) == (200, {"status": "ok"})
            assert told.headers["cache-control"] == "no-store"
        assert httpx.get(f"{watch}/livez", timeout=30).status_code == 404
        assert httpx.post(f"{watch}/readyz", timeout=30).status_code == 405


def test_a_registry_that_serves_no_more_is_not_ready() -> None:
    serves = [True]
    watched = create_metrics_server("127.0.0.1", 0, (), lambda: serves[0])
    watched.start()
    try:
        url = f"http://127.0.0.1:{watched.port}"
        assert httpx.get(f"{url}/readyz", timeout=30).status_code == 200
        serves[0] = False
        told = httpx.get(f"{url}/readyz", timeout=30)
        assert (told.status_code, told.json()) == (503, {"status": "not serving"})
        assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
    finally:
        watched.stop()


@pytest.mark.slow
def test_replication_tells_how_it_goes_with_each_peer(tmp_path: Path) -> None:
    apis, port = apis_by_path({"messagecatalog": "/messagecatalog"}), free_ports(1)[0]
    url = f"http://127.0.0.1:{port}/messagecatalog"
    peers = (Peer(url, interval=0.05),)
    begun = time.time()
    with running(tmp_path / "a", apis=apis, authority="urn:us", peers=peers) as one:

        def told(name: str, direction: str) -> float:
            begins = f'xrouter_registry_replication_{name}{{direction="{direction}",peer="{url}"}} '
            other = f'xrouter_registry_replication_{name}{{peer="{url}",direction="{direction}"}} '
            lines = [line for line in asked(one).text.splitlines() if line.startswith((begins, other))]
            assert len(lines) == 1, asked(one).text
            return float(lines[0].split()[-1])

        wait_until(lambda: told("failures_total", "pull") >= 1, LIMIT, "a round that fails")
        assert told("last_success_timestamp_seconds", "pull") == 0
        with running(tmp_path / "b", apis=apis, authority="urn:us", port=port) as other:
            httpx.put(f"http://127.0.0.1:{one.port}/messagegroups/g/messages/m", json={}, timeout=30)
            httpx.put(f"http://127.0.0.1:{other.port}/messagegroups/h/messages/m", json={}, timeout=30)
            wait_until(lambda: told("applied_total", "push") == 2, LIMIT, "what was given")
            wait_until(lambda: told("applied_total", "pull") == 2, LIMIT, "what was taken")
            assert told("last_success_timestamp_seconds", "push") > begun
            assert 0 <= told("behind_seconds", "pull") < LIMIT
            assert told("changes_total", "pull") >= 2 and told("refused_total", "pull") == 0
        failed = told("failures_total", "pull")
        wait_until(lambda: told("failures_total", "pull") > failed, LIMIT, "a peer that is gone")
        behind = told("behind_seconds", "pull")
        wait_until(lambda: told("behind_seconds", "pull") > behind, LIMIT, "a lag that grows")
