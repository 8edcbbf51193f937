"""What does a registry do in a second on one core? ``make bench-registry``

Reads and writes over HTTP on one connection, an import of definitions in one transaction, and the first page of many
messages with the memory that serving it takes; SQLite in a temporary folder. Writes over HTTP are linted as by default,
the import is not. CPU seconds are those of this process, which is client and server in one.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from registry.core.requests import Request
from registry.http.server import RegistryServer, RegistrySettings, open_service
from tests.support.large_catalog import large_catalog


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--definitions", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=50_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xrouter-bench-") as folder:
        lines = [*_import(Path(folder), chosen.definitions), *_serving(Path(folder), chosen.requests, chosen.messages)]
    print("\n".join(lines))  # noqa: T201


def _import(folder: Path, size: int) -> list[str]:
    database, service = open_service(RegistrySettings(f"sqlite:///{folder}/import.db", lint="off"))
    tree = {name: each for name, each in large_catalog(size).items() if isinstance(each, dict)}
    wall, cpu, _ = _timed(lambda: _add(service, tree))
    database.close()
    return [f"import of {size:,d} definitions     {wall:8.2f} s   {cpu:8.2f} CPU s"]


def _serving(folder: Path, requests: int, messages: int) -> list[str]:
    settings = RegistrySettings(f"sqlite:///{folder}/r.db", port=0, writes_per_second=1e9, write_burst=10**9)
    database, service = open_service(RegistrySettings(settings.store, lint="off"))
    many = {str(number): {"name": f"message {number}"} for number in range(messages)}
    _add(service, {"messagegroups": {"many": {"messages": many}}})
    database.close()
    server = RegistryServer(settings)
    server.start()
    lines: list[str] = []
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        before = _memory()
        wall, cpu, page = _timed(lambda: client.get("/messagegroups/many/messages?limit=500"))
        grown = _memory() - before
        assert len(page.json()) == 500
        told = f"{wall * 1000:8.1f} ms  {cpu * 1000:8.1f} CPU ms  {grown:6.1f} MiB more"
        lines.append(f"first page (500) of {messages:,d}    {told}")
        body = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "com.example.a"}}}
        paths = [f"/messagegroups/g/messages/{number}" for number in range(requests)]
        lines.append(_rate("writes", paths, lambda path: client.put(path, json=body)))
        lines.append(_rate("reads", paths, client.get))
    server.stop()
    return lines


def _add(service: Any, tree: dict[str, Any]) -> Any:
    return service.perform(Request("add", (), "/", "", body=tree, administrator=True, max_answer=2**40))


def _rate(name: str, paths: list[str], call: Callable[[str], httpx.Response]) -> str:
    wall, cpu, _ = _timed(lambda: [call(path).raise_for_status() for path in paths])
    return f"{name:6}                          {len(paths) / wall:8.0f} /s   {len(paths) / cpu:8.0f} per CPU s"


def _timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
