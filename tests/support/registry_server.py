"""A registry that a test starts in its own process, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from registry.apis.apis import APIS, apis_at
from registry.http.server import RegistryServer, RegistrySettings


@contextmanager
def served(store: str | Path, **given: Any) -> Iterator[httpx.Client]:
    """Serve the registry in *store*, a URL or a folder for SQLite, as fast as it can unless *given* says otherwise.

    Each face is at the path that is its name.
    """
    given.setdefault("faces", apis_at({name: f"/{name}" for name in APIS}))
    url = store if isinstance(store, str) else f"sqlite:///{store}/registry.db"
    settings = RegistrySettings(url, **{"port": 0, "writes_per_second": 1e6, "write_burst": 10**6, **given})
    with client_of(settings) as client:
        yield client


@contextmanager
def client_of(settings: RegistrySettings, timeout: float = 30) -> Iterator[httpx.Client]:
    """Serve a registry by its settings; the client waits so many seconds for an answer."""
    server = RegistryServer(settings)
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=timeout) as client:
            yield client
    finally:
        server.stop()
