"""What no HTTP server should take for a request: lines, headers, lengths and chunks that are not as they should be."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

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


def request(*lines: bytes, start: bytes = b"POST /events HTTP/1.1", body: bytes = b"", known: bool = True) -> bytes:
    """Return a request whose head has these lines, after those that every request has."""
    always = (b"Host: x", b"Content-Type: text/plain", *((b"X-Api-Key: " + KEY.encode(),) if known else ()))
    return b"\r\n".join((start, *always, *lines)) + b"\r\n\r\n" + body


ONE: Final = b"Content-Length: 1"
GOOD: Final = request(ONE, body=b"x")


# Requests that could be read in two ways, with the status each is refused with, and odd ones that must be taken.

POST = b"POST /events HTTP/1.1\r\nHost: x\r\n"
WELL_FORMED = POST + b"Content-Length: 1\r\n\r\na"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = {
    "length beside chunked": (
        POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        400,
    ),
    "chunked beside length": (
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n1\r\na\r\n0\r\n\r\n",
        400,
    ),
    "chunked in 1.0": (b"POST /events HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na", 400),
    "a list of lengths": (POST + b"Content-Length: 1, 1\r\n\r\na", 400),
    "a length with a sign": (POST + b"Content-Length: +1\r\n\r\na", 400),
    "a length beyond 64 bits": (POST + b"Content-Length: 99999999999999999999\r\n\r\na", 400),
    "a space before the colon": (POST + b"Content-Length : 1\r\n\r\na", 400),
    "another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 400),
    "a coding in disguise": (POST + b"Transfer-Encoding: xchunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 400),
    "two codings": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "bare LF": (b"POST /events HTTP/1.1\nHost: x\nContent-Length: 1\n\na", 400),
    "bare LF in headers": (b"POST /events HTTP/1.1\r\nHost: x\nContent-Length: 1\r\n\r\na", 400),
    "bare CR in headers": (b"POST /events HTTP/1.1\r\nHost: x\rContent-Length: 1\r\n\r\na", 400),
    "a folded header": (POST + b"X: a\r\n b\r\nContent-Length: 1\r\n\r\na", 400),
    "NUL in a value": (POST + b"X: a\x00b\r\nContent-Length: 1\r\n\r\na", 400),
    "NUL in a name": (POST + b"X\x00: a\r\nContent-Length: 1\r\n\r\na", 400),
    "no colon": (POST + b"X\r\nContent-Length: 1\r\n\r\na", 400),
    "HTTP/0.9": (b"POST /events HTTP/0.9\r\nHost: x\r\nContent-Length: 1\r\n\r\na", 400),
    "HTTP/1.2": (b"POST /events HTTP/1.2\r\nHost: x\r\nContent-Length: 1\r\n\r\na", 400),
    "HTTP/2.0": (b"POST /events HTTP/2.0\r\nHost: x\r\nContent-Length: 1\r\n\r\na", 400),
    "HTTP/2 by prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "rubbish": (b"rubbish\r\n\r\n", 400),
    "a length that is no number": (POST + b"Content-Length: ten\r\n\r\n", 400),
    "no host": (b"POST /events HTTP/1.1\r\nContent-Length: 1\r\n\r\na", 400),
    "two hosts": (POST + b"Host: y\r\nContent-Length: 1\r\n\r\na", 400),
    "CONNECT": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no known method": (b"G\x01T /events HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a control character in the target": (b"POST /ev\x01ents HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400),
    "a fragment": (b"POST /events#x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400),
    "a user in the target": (b"POST http://a:b@x/events HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400),
    "a chunk size with a sign": (CHUNKED + b"-1\r\na\r\n0\r\n\r\n", 400),
    "a chunk without its end": (CHUNKED + b"1\r\nab\r\n0\r\n\r\n", 400),
    "LF after a chunk": (CHUNKED + b"1\r\na\n0\r\n\r\n", 400),
    "a length in a trailer": (CHUNKED + b"0\r\nContent-Length: 1\r\n\r\n", 400),
    "endless chunk extensions": (CHUNKED + b"1;" + b"x" * 200_000 + b"\r\na\r\n", 400),
    "a long target": (b"POST /" + b"e" * 300 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "an endless target": (b"POST /" + b"e" * 20_000, 414),
    "large headers": (POST + b"X: " + b"y" * 5000 + b"\r\nContent-Length: 1\r\n\r\na", 431),
    "an endless header": (POST + b"X: " + b"y" * 20_000, 431),
    "many headers": (POST + b"".join(b"X%d: y\r\n" % n for n in range(20)) + b"\r\n", 431),
}

TAKEN = {
    "one": WELL_FORMED,
    "byte by byte": WELL_FORMED,
    "the end of the client's side": WELL_FORMED,
    "chunked, with an extension and a trailer": CHUNKED + b"1;a=b\r\na\r\n0\r\nX: y\r\n\r\n",
    "an absolute target": b"POST http://x/events HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na",
    "HTTP/1.0": b"POST /events HTTP/1.0\r\nContent-Length: 1\r\n\r\na",
    "an offer of h2c": POST
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    b"Content-Length: 1\r\n\r\na",
    "an offer of h2c, chunked": POST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "empty lines before": b"\r\n\r\n" + WELL_FORMED,
}


def _credentials() -> Iterator[Shape]:
    lines = {
        "none": b"X: y",
        "an empty key": b"X-Api-Key: ",
        "a wrong key": b"X-Api-Key: guess",
        "a long key": b"X-Api-Key: " + b"k" * 50_000,
        "bytes": b"Authorization: \xff\xfe",
        "a long token": b"Authorization: Bearer " + b"t" * 50_000,
        "no base64": b"Authorization: Basic !!!",
        "no colon": b"Authorization: Basic YW5u",
        "another scheme": b"Authorization: Negotiate YW5u",
        "many": b"\r\n".join([b"Authorization: Bearer x"] * 100),
    }
    for name, line in lines.items():
        yield Shape(f"credentials: {name}", (request(line, ONE, body=b"x", known=False),))
    yield Shape(
        "credentials: a stranger's megabyte", (request(b"Content-Length: 1000000", body=b"x" * 1_000_000, known=False),)
    )
    yield Shape(
        "credentials: a stranger's handshake",
        (request(b"WebHook-Request-Origin: \xff", start=b"OPTIONS /x HTTP/1.1", known=False),),
    )


def _malformed() -> Iterator[Shape]:
    """Each request that is refused, of somebody who may send; a router allows longer heads than the tests here."""
    for name, (content, status) in REFUSED.items():
        known = content.replace(b"Host: x\r\n", b"Host: x\r\nX-Api-Key: " + KEY.encode() + b"\r\n")
        yield Shape(f"malformed: {name}", (known,), taken=status in (414, 431))
    dashes = b"PUT /days/" + b"-" * 4000 + b"/x HTTP/1.1"
    yield Shape("a template: dashes", (request(ONE, start=dashes, body=b"x"),), taken=True)
    yield Shape("a template: dashes of a stranger", (request(start=dashes, known=False),))


MALFORMED: Final = (*_malformed(), *_credentials())


# What wears an HTTP server out: slowness, silence, floods, bodies that nobody wants, and TLS that is none.


def _bodies() -> Iterator[Shape]:
    large = b"Content-Length: 50000000"
    yield Shape("body: too large", (request(large), *(b"x" * 65_536,) * 100))
    yield Shape("body: too large, and awaited", (request(large, b"Expect: 100-continue"),))
    yield Shape("body: too large, slowly", (request(large), *(b"x",) * 40), pause=0.2)
    yield Shape("body: too large, never read", (request(large), *(b"x" * 65_536,) * 50), ending="stay")
    yield Shape("body: cut short", (request(b"Content-Length: 1000", body=b"half"),), ending="half")
    yield Shape("body: left", (request(b"Content-Length: 1000", body=b"half"),), ending="close")
    yield Shape("body: reset", (request(b"Content-Length: 1000", body=b"half"),), ending="reset")
    yield Shape(
        "body: of 40 at a time", (request(b"Content-Length: 1000000"), *(b"x" * 60_000,) * 15), ending="reset", count=40
    )


def _slow() -> Iterator[Shape]:
    yield Shape("slow: a head byte by byte", tuple(bytes([each]) for each in GOOD[:100]), pause=0.2)
    yield Shape("slow: headers without end", (b"POST /events HTTP/1.1\r\n", *(b"X: y\r\n",) * 60), pause=0.2)
    yield Shape("slow: a body byte by byte", (request(b"Content-Length: 500"), *(b"x",) * 60), pause=0.2)
    yield Shape("slow: chunks byte by byte", (CHUNKED, *(b"1\r\nx\r\n",) * 60), pause=0.2)
    yield Shape("slow: empty lines", (b"\r\n",) * 60, pause=0.2)
    yield Shape("slow: a stranger's body", (request(b"Content-Length: 500", known=False), *(b"x",) * 60), pause=0.2)
    yield Shape("slow: many heads", (b"POST /events HTTP/1.1\r\n", *(b"X: y\r\n",) * 20), pause=0.5, count=40)
    yield Shape("slow: many bodies", (request(b"Content-Length: 500"), *(b"x",) * 20), pause=0.5, count=40)
    yield Shape("slow: a body that stops", (request(b"Content-Length: 500", body=b"x"),), ending="stay", count=20)
    yield Shape(
        "slow: a body that is awaited",
        (request(b"Content-Length: 5", b"Expect: 100-continue"),),
        ending="stay",
        count=20,
    )


def _half_open() -> Iterator[Shape]:
    yield Shape("half open: nothing", (), ending="stay", count=60)
    yield Shape("half open: closed at once", (), ending="close", count=100)
    yield Shape("half open: reset at once", (), ending="reset", count=100)
    yield Shape("half open: own side closed", (), ending="half", count=20)
    yield Shape("half open: half a line", (b"POST /ev",), ending="stay", count=20)
    yield Shape("half open: half a line, closed", (b"POST /ev",), ending="half", count=20)
    yield Shape("half open: half a head, reset", (GOOD[:40],), ending="reset", count=50)
    yield Shape(
        "half open: answers that nobody reads",
        (request(start=b"GET /nowhere HTTP/1.1") * 300,) * 20,
        ending="stay",
        count=4,
    )
    yield Shape("half open: left before the answer", (GOOD,), ending="reset", count=20, taken=True)


def _floods() -> Iterator[Shape]:
    unknown = request(start=b"GET /nowhere HTTP/1.1")
    yield Shape("flood: connections", (), ending="close", count=300)
    yield Shape("flood: a pipeline of the unknown", (unknown * 200,) * 3, ending="half")
    yield Shape(
        "flood: a pipeline of strangers", (request(start=b"GET /x HTTP/1.1", known=False) * 200,) * 3, ending="half"
    )
    yield Shape("flood: strangers, one by one", (request(ONE, body=b"x", known=False),), count=60, ending="half")
    yield Shape(
        "flood: refused bodies", (request(b"Content-Length: 60000", known=False, body=b"x" * 60_000),), count=40
    )
    yield Shape(
        "flood: handshakes of webhooks",
        (request(b"WebHook-Request-Origin: x", start=b"OPTIONS /events HTTP/1.1") * 100,),
        ending="half",
    )
    yield Shape("flood: rubbish", (bytes(range(256)) * 400,) * 5, count=10)
    yield Shape("flood: NULs", (b"\x00" * 100_000,) * 5, count=10)
    yield Shape("flood: line ends", (b"\r\n" * 100_000,) * 5, count=4)
    yield Shape(
        "flood: small pieces",
        tuple(bytes([each]) for each in request(ONE, body=b"x", known=False)),
        count=5,
        ending="half",
    )


def _tls() -> Iterator[Shape]:
    hello = bytes.fromhex("16030100c8010000c40303") + b"r" * 32 + b"\x00" + b"\x00\x04\x13\x01\x13\x02\x01\x00"
    contents = {
        "plain HTTP": GOOD,
        "half a hello": hello,
        "hello of rubbish": b"\x16\x03\x01\x02\x00" + b"\xff" * 512,
        "SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"x" * 40,
        "SSL 3": b"\x16\x03\x00\x00\x2f\x01\x00\x00\x2b\x03\x00" + b"r" * 32 + b"\x00\x00\x04\x00\x2f\x00\x35\x01\x00",
        "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
        "alerts": b"\x15\x03\x03\x00\x02\x01\x00" * 1000,
        "a record too long": b"\x16\x03\x03\xff\xff" + b"x" * 70_000,
        "empty records": b"\x16\x03\x03\x00\x00" * 10_000,
        "data before a handshake": b"\x17\x03\x03\x00\x10" + b"x" * 16,
        "a heartbeat": b"\x18\x03\x03\x00\x03\x01\x40\x00",
        "rubbish": bytes(range(256)) * 10,
    }
    for name, content in contents.items():
        yield Shape(f"TLS: {name}", (content,), raw=True, taken=content is GOOD)
    yield Shape("TLS: a hello byte by byte", tuple(bytes([each]) for each in hello), pause=0.2, raw=True)
    yield Shape("TLS: nothing", (), ending="stay", count=40, raw=True)
    yield Shape("TLS: half a hello, and nothing", (hello[:20],), ending="stay", count=40, raw=True)
    yield Shape("TLS: half a hello, reset", (hello[:20],), ending="reset", count=60, raw=True)
    yield Shape("TLS: a handshake, closed", (), ending="close", count=10)
    yield Shape("TLS: a handshake, and nothing", (), ending="stay", count=10)


WEARING: Final = tuple(shape for family in (_bodies, _slow, _half_open, _floods, _tls) for shape in family())


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
