"""A hostile HTTP client in a process of its own, so that it takes nothing from the honest ones but the server's time.

It comes from several addresses of the loopback network. ``python -m tests.support.hostile_http`` reads its orders from
standard input and writes to standard output what it has seen; :func:`abuse` starts it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import resource
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Final

from tests.support.http import MALFORMED, WEARING, Shape

SHAPES: Final = (*MALFORMED, *WEARING)
ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(2, 8))
WORKERS: Final = 16
READ_SECONDS: Final = 15.0
STAY_SECONDS: Final = 3.0
ROOT: Final = Path(__file__).parents[2]
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Seen:
    """What came of it: how often each status was answered, which shapes were played, and which were wrongly taken."""

    connections: int = 0
    failed: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    shapes: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)


def abuse(port: int, *, seconds: float, tls: bool) -> subprocess.Popen[str]:
    """Begin to play all shapes against a port of loopback: each once, and again and again until *seconds* are over."""
    command = [sys.executable, "-m", "tests.support.hostile_http", str(port), str(seconds), str(int(tls))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def seen(process: subprocess.Popen[str], limit: float) -> Seen:
    """Wait for the end of it, and return what it has seen."""
    out, _ = process.communicate(timeout=limit)
    assert process.returncode == 0
    return Seen(**json.loads(out))


class Client:
    """Plays shapes against one port."""

    def __init__(self, port: int, tls: bool) -> None:
        self._port = port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls else None
        if self._tls is not None:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        self._addresses = cycle(ADDRESSES)
        self._statuses: Counter[str] = Counter()
        self.seen = Seen()

    async def run(self, seconds: float) -> None:
        """Play all shapes once, and go on until the time is over."""
        deadline = time.monotonic() + seconds
        shapes = self._order(deadline)
        await asyncio.gather(*(self._work(shapes) for _ in range(WORKERS)))
        self.seen.statuses = dict(self._statuses)

    def _order(self, deadline: float) -> Iterator[Shape]:
        chance = random.Random(12)
        shapes = list(SHAPES)
        yield from shapes
        while time.monotonic() < deadline:
            chance.shuffle(shapes)
            for shape in shapes:
                if time.monotonic() >= deadline:
                    return
                yield shape

    async def _work(self, shapes: Iterator[Shape]) -> None:
        for shape in shapes:
            await asyncio.gather(*(self._play(shape) for _ in range(shape.count)))
            self.seen.shapes = sorted({*self.seen.shapes, shape.name})

    async def _play(self, shape: Shape) -> None:
        self.seen.connections += 1
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                tls = None if shape.raw else self._tls
                source = (next(self._addresses), 0)
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=tls, local_addr=source)
                await self._send(shape, reader, writer)
        except (OSError, TimeoutError):
            self.seen.failed += 1
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _send(self, shape: Shape, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading = asyncio.create_task(self._read(shape, reader)) if shape.ending in ("read", "half") else None
        try:
            for piece in shape.pieces:
                writer.write(piece)
                await writer.drain()
                if shape.pause:
                    await asyncio.sleep(shape.pause)
            if shape.ending == "half" and writer.can_write_eof():
                writer.write_eof()
            elif shape.ending == "reset":
                plain = writer.get_extra_info("socket")
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif shape.ending == "stay":
                await asyncio.sleep(STAY_SECONDS)
        finally:
            if reading is not None:
                await reading

    async def _read(self, shape: Shape, reader: asyncio.StreamReader) -> None:
        answer = b""
        try:
            while data := await reader.read(65_536):
                answer += data
        except OSError:
            self.seen.failed += 1
        statuses = [status.decode() for status in _STATUS.findall(answer)]
        self._statuses.update(statuses)
        if "202" in statuses and not shape.taken:
            self.seen.taken.append(shape.name)


def main() -> None:
    """Play, and write what was seen."""
    port, seconds, tls = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "1"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    client = Client(port, tls)
    asyncio.run(client.run(seconds))
    json.dump(asdict(client.seen), sys.stdout)


if __name__ == "__main__":
    main()
