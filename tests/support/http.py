"""What no HTTP server should take for a request (``tests/cases/hostile/http.yaml``), and honest senders beside it."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.support.cases import bytes_of, filled, read_cases

# What an abuse of an HTTP server is: :class:`Shape`.
#
# A shape says what is sent, in which pieces and with which pauses, and how its connection ends. Nothing of it is
# well-formed enough to be taken, unless ``taken`` says that it may be answered 202.

KEY: Final = "hostile-insider-key"
"""An API key that abusers have, of a user who may send: abuse behind the check of access."""
Ending = Literal["read", "close", "reset", "half", "stay"]


@dataclass(frozen=True, slots=True)
class Shape:
    """``pieces`` go out with ``pause`` seconds between them, over ``count`` connections at once.

    The ``ending``: read until the server closes, close or reset at once, end the own side and read, or neither read nor
    close. ``raw`` bytes go below TLS, if that is spoken.
    """

    name: str
    pieces: tuple[bytes, ...]
    pause: float = 0.0
    ending: Ending = "read"
    count: int = 1
    raw: bool = False
    taken: bool = False


# Requests that could be read in two ways, with the status each is refused with, odd ones that must be taken, and what
# wears an HTTP server out: slowness, silence, floods, bodies that nobody wants, and TLS that is none.

POST: Final = b"POST /events HTTP/1.1\r\nHost: x\r\n"
WELL_FORMED: Final = POST + b"Content-Length: 1\r\n\r\na"
_STRANGER: Final = "Host: x\r\nContent-Type: text/plain\r\n"
_WORDS: Final = {"${POST}": POST.decode(), "${STRANGER}": _STRANGER, "${KNOWN}": f"{_STRANGER}X-Api-Key: {KEY}\r\n"}
_CASES: Final = filled(read_cases(Path(__file__).resolve().parents[1] / "cases/hostile/http.yaml"), _WORDS)
REFUSED: Final = {
    name: (bytes_of(told), status) for status, requests in _CASES["refused"].items() for name, told in requests.items()
}
TAKEN: Final = {name: bytes_of(told) for name, told in _CASES["taken"].items()}


def _shape(told: dict[str, Any]) -> Shape:
    bytewise = bytes_of(told.pop("bytewise", ""))
    repeated = (each if isinstance(each, list) else [each, 1] for each in told.pop("pieces", ()))
    pieces = [piece for recipe, times in repeated for piece in [bytes_of(recipe)] * times]
    return Shape(pieces=(*pieces, *(bytes([each]) for each in bytewise)), **told)


def _malformed() -> Iterator[Shape]:
    """Each request that is refused, of somebody who may send; a router allows longer heads than the tests here."""
    for name, (content, status) in REFUSED.items():
        known = content.replace(b"Host: x\r\n", b"Host: x\r\nX-Api-Key: " + KEY.encode() + b"\r\n")
        yield Shape(f"malformed: {name}", (known,), taken=status in (414, 431))


MALFORMED: Final = (*_malformed(), *map(_shape, _CASES["strangers"]))
WEARING: Final = tuple(map(_shape, _CASES["wearing"]))


# Honest HTTP senders that keep their connections, repeat what was not answered, and note how long they waited.

PAUSE_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 60.0


class HonestSenders:
    """Threads that send numbered events, one after the other each, until they are stopped.

    ``worst`` is the longest wait for an answer in seconds, with all reconnecting and repeating in it. ``confirmed`` are
    the ids that were answered 202.
    """

    def __init__(self, port: int, key: str, *, tls: ssl.SSLContext | None, count: int = 4) -> None:
        self._port = port
        self._key = key
        self._tls = tls
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.worst = 0.0
        self.confirmed: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.reconnects = 0
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(count)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after what is under way; what nobody answers is given up."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_SECONDS)
            assert not thread.is_alive(), "a sender waits for an answer"

    def _run(self, number: int) -> None:
        connection = self._connection()
        sent = 0
        while not self._stop.wait(PAUSE_SECONDS):
            sent += 1
            event = f"{number}-{sent}"
            began = time.monotonic()
            while True:
                try:
                    status = self._post(connection, event)
                    break
                except (OSError, http.client.HTTPException):
                    connection.close()
                    connection = self._connection()
                    with self._lock:
                        self.reconnects += 1
                    if self._stop.wait(PAUSE_SECONDS):
                        return  # not answered, and nobody waits any more
            with self._lock:
                self.worst = max(self.worst, time.monotonic() - began)
                self.statuses[status] += 1
                if status == 202:
                    self.confirmed.append(event)
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, event: str) -> int:
        headers = {
            "X-Api-Key": self._key,
            "ce-specversion": "1.0",
            "ce-id": event,
            "ce-source": "/honest",
            "ce-type": "honest",
            "content-type": "text/plain",
        }
        connection.request("POST", "/events", body=event, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS, context=self._tls)
