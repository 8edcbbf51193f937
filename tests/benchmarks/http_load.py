"""HTTP clients that cost little: keep-alive connections in a process of their own, each with one request at a time.

A client library in the process of the server would be what is measured. Here requests are bytes made once, and of an
answer only its status line and its length are looked at.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LIMIT_SECONDS: Final = 300.0
_OK: Final = b"HTTP/1.1 202 "


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a run: answers a second, and the share of one core that the clients took."""

    rate: float
    busy: float


def load(port: int, path: str, headers: Mapping[str, str], body: bytes, *, count: int, clients: int) -> Load:
    """POST *count* requests over *clients* connections to loopback, from another process; all must be answered 202."""
    lines = [f"POST {path} HTTP/1.1", f"host: 127.0.0.1:{port}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode("ascii") + body
    command = [sys.executable, "-m", "tests.benchmarks.http_load", str(port), str(count), str(clients)]
    done = subprocess.run(command, input=request, capture_output=True, check=True, timeout=LIMIT_SECONDS)
    return Load(**json.loads(done.stdout))


async def _client(port: int, request: bytes, count: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(_OK):
            raise RuntimeError(f"not 202: {head[:200]!r}")
        if length := _length(head):
            await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()


def _length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 : head.index(b"\r\n", at)]) if at >= 0 else 0


async def _all(port: int, request: bytes, count: int, clients: int) -> Load:
    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_client(port, request, count // clients) for _ in range(clients)))
    took = time.perf_counter() - start
    return Load(count // clients * clients / took, (time.process_time() - cpu) / took)


def main() -> None:
    """Read the request from standard input, send it, and write what came of it."""
    port, count, clients = (int(each) for each in sys.argv[1:4])
    found = asyncio.run(_all(port, sys.stdin.buffer.read(), count, clients))
    json.dump({"rate": found.rate, "busy": found.busy}, sys.stdout)


if __name__ == "__main__":
    main()
