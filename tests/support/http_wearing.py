"""What wears an HTTP server out: slowness, silence, floods, bodies that nobody wants, and TLS that is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.http_shapes import CHUNKED, GOOD, ONE, Shape, request


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
