"""What does a registry do in a second on one core? ``make bench-registry``

Reads and writes over HTTP on one connection, versions added to a resource that has many, an import of definitions in
one transaction, and the first page of many messages; SQLite in a temporary folder. Writes over HTTP are linted as by
default, the import is not. CPU seconds are those of the server's process alone, the client is another one.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import httpx

from registry.core.requests import RegistryRequest
from registry.http.server import RegistryServer, RegistrySettings, open_service
from tests.benchmarks.machine import options, say
from tests.support import load

_VERSIONS: Final = (20, 320, 1_000)
_POSTED: Final = 50
_GROUP: Final = 20


def main() -> None:
    """Run the benchmark and print a table."""
    chosen = options(__doc__, requests=1000, definitions=10_000, messages=50_000)
    with tempfile.TemporaryDirectory(prefix="xrouter-bench-") as folder:
        for line in _serving(Path(folder), chosen.requests, chosen.messages):
            say(line)
        say(_import(Path(folder), chosen.definitions))


def _import(folder: Path, size: int) -> str:
    database, service = open_service(RegistrySettings(f"sqlite:///{folder}/import.db", lint="off"))
    tree = {name: each for name, each in load.catalog(size, topic="plant").items() if isinstance(each, dict)}
    wall, cpu, _ = _timed(lambda: _add(service, tree), os.getpid())
    database.close()
    return f"import of {size:,d} definitions     {wall:8.2f} s   {cpu:8.2f} CPU s"


def _serving(folder: Path, requests: int, messages: int) -> Iterator[str]:
    store = f"sqlite:///{folder}/r.db"
    database, service = open_service(RegistrySettings(store, lint="off"))
    many = {str(number): {"name": f"message {number}"} for number in range(messages)}
    several = {str(number): {"envelope": "CloudEvents/1.0"} for number in range(_GROUP)}
    _add(service, {"messagegroups": {"many": {"messages": many}, "several": {"messages": several}}})
    database.close()
    with _served(store) as (process, client):
        wall, cpu, page = _timed(lambda: client.get("/messagegroups/many/messages?limit=500"), process)
        assert len(page.json()) == 500
        yield f"first page (500) of {messages:,d}    {wall * 1000:8.1f} ms  {cpu * 1000:8.1f} CPU ms"
        body = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "com.example.a"}}}
        paths = [f"/messagegroups/g/messages/{number}" for number in range(requests)]
        yield _rate("writes", process, paths, lambda path: client.put(path, json=body))
        yield _rate("reads", process, paths, client.get)
        yield _rate("reads again", process, paths, client.get)
        inlined = "/messagegroups/several?inline=messages"
        # Another query each time, so that no answer that is kept counts.
        asked = [f"{inlined}&number={number}" for number in range(requests)]
        yield _rate(f"group of {_GROUP} inlined", process, asked, client.get)
        yield _rate("the same, unchanged", process, [inlined] * requests, client.get)
        held = 0
        for count in _VERSIONS:
            for start in range(held, count, 100):
                names = range(start, min(start + 100, count))
                client.post(
                    "/messagegroups/v/messages/m/versions", json={f"v{each}": body for each in names}
                ).raise_for_status()
            held = count + _POSTED
            for method, path in (("POST", ""), ("PATCH", "/versions/v7")):
                wall, cpu, _ = _timed(partial(_write, client, method, path, body), process)
                name = f"version {method} at {count:,d}"
                yield f"{name:30}  {wall / _POSTED * 1000:8.1f} ms  {cpu / _POSTED * 1000:8.1f} CPU ms"


def _write(client: httpx.Client, method: str, path: str, body: dict[str, Any]) -> None:
    for number in range(_POSTED):
        given = {**body, "name": f"{number}"}
        client.request(method, f"/messagegroups/v/messages/m{path}", json=given).raise_for_status()


@contextmanager
def _served(store: str) -> Iterator[tuple[int, httpx.Client]]:
    """Serve a registry in a process of its own; yield the process's number and a client."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(store, theirs))
    process.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{ours.recv()}", timeout=60) as client:
            assert process.pid is not None
            yield process.pid, client
    finally:
        ours.close()
        process.join()


def _serve(store: str, parent: Connection) -> None:
    server = RegistryServer(RegistrySettings(store, port=0, writes_per_second=1e9, write_burst=10**9))
    server.start()
    parent.send(server.port)
    try:
        parent.recv()
    except EOFError:
        server.stop()


def _add(service: Any, tree: dict[str, Any]) -> Any:
    return service.perform(RegistryRequest("add", (), "/", "", body=tree, administrator=True, max_answer=2**40))


def _rate(name: str, process: int, paths: list[str], call: Callable[[str], httpx.Response]) -> str:
    wall, cpu, _ = _timed(lambda: [call(path).raise_for_status() for path in paths], process)
    return f"{name:30}  {len(paths) / wall:8.0f} /s   {len(paths) / cpu:8.0f} per CPU s of the server"


def _timed(call: Callable[[], Any], process: int) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), _cpu(process)
    found = call()
    return time.perf_counter() - wall, _cpu(process) - cpu, found


def _cpu(process: int) -> float:
    """Return the CPU seconds that a process has used; of another those of its threads that live."""
    if process == os.getpid():
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((each / "schedstat").read_text("ascii").split()[0]) for each in tasks) / 1e9


if __name__ == "__main__":
    main()
