"""What no HTTP server should take for a request: lines, headers, lengths and chunks that are not as they should be."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

# What an abuse of an HTTP server is: :class:`Shape`.
#
# A shape says what is sent, in which pieces and with which pauses, and how its connection ends. Nothing of it is
# well-formed enough to be taken, unless ``taken`` says that it may be answered 202.

KEY: Final = "hostile-insider-key"
"""An API key that abusers have, of a user who may send: abuse behind the check of access."""
PATH: Final = b"/events"
TEMPLATE: Final = b"/days/"
"""What the paths begin with that the route ``/days/{y}-{m}-{d}/x`` looks at."""
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
CHUNKED: Final = request(b"Transfer-Encoding: chunked")


def each_of(group: str, table: Mapping[str, bytes]) -> Iterator[Shape]:
    """Each of these bytes at once, and then the answers are read."""
    return (Shape(f"{group}: {name}", (content,)) for name, content in table.items())


def _start_lines() -> Iterator[Shape]:
    starts = {
        "empty": b"",
        "one word": b"rubbish",
        "two words": b"POST /events",
        "no target": b"POST  HTTP/1.1",
        "HTTP/0.9": b"POST /events HTTP/0.9",
        "HTTP/1.2": b"POST /events HTTP/1.2",
        "HTTP/2.0": b"POST /events HTTP/2.0",
        "HTTP/3.0": b"POST /events HTTP/3.0",
        "HTTP/1": b"POST /events HTTP/1",
        "HTTP/1.": b"POST /events HTTP/1.",
        "HTTP/11.1": b"POST /events HTTP/11.1",
        "HTTP/1.1.1": b"POST /events HTTP/1.1.1",
        "HTTP/-1.1": b"POST /events HTTP/-1.1",
        "http/1.1": b"POST /events http/1.1",
        "HTTPS/1.1": b"POST /events HTTPS/1.1",
        "version of bytes": b"POST /events HTTP/\xff.\xff",
        "space at the end": b"POST /events HTTP/1.1 ",
        "space before": b" POST /events HTTP/1.1",
        "tabs": b"POST\t/events\tHTTP/1.1",
        "NUL in the method": b"PO\x00ST /events HTTP/1.1",
        "lower case": b"post /events HTTP/1.1",
        "long method": b"P" * 5000 + b" /events HTTP/1.1",
        "method of bytes": b"\xff\xfe /events HTTP/1.1",
        "CR in the line": b"POST /events\r HTTP/1.1",
        "an answer": b"HTTP/1.1 200 OK",
        "SMTP": b"EHLO example.com",
        "SSH": b"SSH-2.0-OpenSSH_9.6",
        "Redis": b"*1\r\n$4\r\nPING",
        "memcached": b"get x",
        "SIP": b"INVITE sip:a@b SIP/2.0",
    }
    yield from each_of("start line", {name: request(ONE, start=start, body=b"x") for name, start in starts.items()})


def _targets() -> Iterator[Shape]:
    targets = {
        "no slash": b"events",
        "asterisk": b"*",
        "fragment": b"/events#x",
        "space": b"/ev ents",
        "NUL": b"/ev\x00ents",
        "control": b"/ev\x01ents",
        "bytes": b"/ev\xffents",
        "authority": b"x:80",
        "other scheme": b"ftp://x/events",
        "no host": b"http:///events",
        "a user": b"http://a:b@x/events",
        "unknown": b"/nowhere",
        "two slashes": b"//events",
        "dots": b"/../../../etc/passwd",
        "encoded dots": b"/%2e%2e/%2e%2e/etc/passwd",
        "encoded NUL": b"/events%00",
        "bad percent": b"/%zz%",
        "long": b"/" + b"e" * 20_000,
        "megabyte": b"/" + b"e" * 1_000_000,
        "dashes": TEMPLATE + b"-" * 4000 + b"/x",
        "more dashes": TEMPLATE + b"-" * 7000 + b"/y",
        "slashes": b"/" * 8000,
        "long query": b"/events?" + b"q=1&" * 5000,
        "script": b"/<script>alert(1)</script>",
        "shell": b"/;cat${IFS}/etc/passwd",
        "log4j": b"/${jndi:ldap://x/a}",
        "line feed": b"/events%0d%0aX:y",
    }
    for name, target in targets.items():
        content = request(ONE, start=b"PUT " + target + b" HTTP/1.1", body=b"x")
        yield Shape(f"target: {name}", (content,), taken=name == "dashes")
    yield Shape(
        "target: dashes of a stranger", (request(start=b"PUT " + targets["dashes"] + b" HTTP/1.1", known=False),)
    )


def _methods() -> Iterator[Shape]:
    for method in (
        b"GET",
        b"HEAD",
        b"DELETE",
        b"TRACE",
        b"CONNECT",
        b"PATCH",
        b"M-SEARCH",
        b"PROPFIND",
        b"FOO",
        b"QUERY",
    ):
        yield Shape(f"method: {method.decode()}", (request(start=method + b" /events HTTP/1.1"),))


def _headers() -> Iterator[Shape]:
    lines = {
        "no colon": b"X",
        "no name": b": x",
        "space before the colon": b"X : y",
        "folded": b"X: a\r\n b",
        "folded by a tab": b"X: a\r\n\tb",
        "NUL in a value": b"X: a\x00b",
        "NUL in a name": b"X\x00Y: a",
        "bell": b"X: \x07",
        "escape": b"X: \x1b[2J",
        "DEL": b"X: \x7f",
        "bare CR": b"X: a\rY: b",
        "bare LF": b"X: a\nY: b",
        "name of bytes": b"\xff: x",
        "brackets in a name": b"X(y): z",
        "space in a name": b"X y: z",
        "two hosts": b"Host: y",
        "100 kB": b"X: " + b"y" * 100_000,
        "a megabyte": b"X: " + b"y" * 1_000_000,
        "a long name": b"X" * 100_000 + b": y",
        "300 of them": b"\r\n".join(b"X%d: y" % n for n in range(300)),
        "100,000 of them": b"\r\n".join([b"A: b"] * 100_000),
        "one 5,000 times": b"\r\n".join([b"Cookie: a=b"] * 5000),
    }
    for name, line in lines.items():
        yield Shape(f"header: {name}", (request(line, ONE, body=b"x"),))
    yield Shape("header: no host", (b"POST /events HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",))
    yield Shape("header: a space before the first", (b"POST /events HTTP/1.1\r\n X: y\r\n" + ONE + b"\r\n\r\nx",))
    yield Shape("header: line feeds only", (GOOD.replace(b"\r\n", b"\n"),))
    yield Shape("header: carriage returns only", (GOOD.replace(b"\r\n", b"\r"),))


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


def _framing() -> Iterator[Shape]:
    lengths = (
        b"ten",
        b"+1",
        b"-1",
        b"0x1",
        b"1,1",
        b"1, 2",
        b"1 1",
        b"",
        b"1.0",
        b"1e1",
        b"9" * 30,
        b"18446744073709551617",
        b"\xb2",
        b"1;",
    )
    for length in lengths:
        shown = length.decode("latin-1") or "nothing"
        yield Shape(f"framing: a length of {shown}", (request(b"Content-Length: " + length, body=b"x") + GOOD,))
    codings = (
        b"identity",
        b"gzip",
        b"gzip, chunked",
        b"chunked, gzip",
        b"chunked, chunked",
        b"xchunked",
        b"chunkedx",
        b"\x0bchunked",
        b'"chunked"',
        b"chunked;q=1",
        b"",
    )
    for coding in codings:
        name = coding.decode("latin-1").replace("\x0b", "VT ") or "nothing"
        yield Shape(
            f"framing: coded {name}", (request(b"Transfer-Encoding: " + coding, body=b"1\r\nx\r\n0\r\n\r\n") + GOOD,)
        )
    both = {
        "length, then chunked": request(ONE, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        "chunked, then length": request(b"Transfer-Encoding: chunked", ONE, body=b"0\r\n\r\n"),
        "two lengths": request(ONE, b"Content-Length: 2", body=b"xy"),
        "the same length twice": request(ONE, ONE, body=b"x"),
        "chunked twice": request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        "chunked in 1.0": request(b"Transfer-Encoding: chunked", start=b"POST /events HTTP/1.0", body=b"0\r\n\r\n"),
        "a hidden length": request(b"Content-Length : 5", ONE, body=b"x"),
        "a smuggled request": request(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"5c\r\n" + GOOD),
        "no length": request(),
        "WebSocket": request(
            b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", start=b"GET /events HTTP/1.1"
        ),
    }
    yield from each_of("framing", both)
    yield Shape(
        "framing: h2c with a pipeline",
        (request(b"Connection: Upgrade", b"Upgrade: h2c", start=b"GET /n HTTP/1.1") * 50,),
        ending="half",
    )


def _chunks() -> Iterator[Shape]:
    bodies = {
        "no size": b"\r\nx",
        "no number": b"g\r\nx",
        "negative": b"-1\r\nx",
        "hex prefix": b"0x1\r\nx",
        "a space": b"1 \r\nx\r\n0\r\n\r\n",
        "a space before": b" 1\r\nx\r\n0\r\n\r\n",
        "too large": b"f" * 17 + b"\r\n",
        "beyond 32 bits": b"100000001\r\nx",
        "bare LF": b"1\nx\n0\n\n",
        "LF after data": b"1\r\nx\n0\r\n\r\n",
        "more data than said": b"1\r\nxyz\r\n0\r\n\r\n",
        "leading zeros": b"0" * 100_000 + b"1\r\nx",
        "an endless extension": b"1;" + b"x" * 1_000_000,
        "an extension of bytes": b"1;\xff\r\nx\r\n0\r\n\r\n",
        "LF in an extension": b"1;a\nb\r\nx\r\n0\r\n\r\n",
        "a length in the trailer": b"0\r\nContent-Length: 5\r\n\r\n",
        "an endless trailer": b"0\r\n" + b"X: y\r\n" * 50_000,
        "a folded trailer": b"0\r\nX: y\r\n z\r\n\r\n",
        "quoted": b'1;a="\r\nx\r\n0\r\n\r\n',
        "a long trailer": b"0\r\nX: " + b"y" * 1_000_000,
    }
    for name, body in bodies.items():
        yield Shape(f"chunks: {name}", (CHUNKED + body,))
    yield Shape("chunks: extensions of one byte each", (CHUNKED, b"1;aaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 30_000))
    yield Shape(
        "chunks: larger than may be",
        (CHUNKED, b"ffff\r\n" + b"x" * 65_535 + b"\r\n", *(b"ffff\r\n" + b"x" * 65_535 + b"\r\n",) * 30),
    )


def _http2() -> Iterator[Shape]:
    preface, settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    frames = {
        "preface": b"",
        "SETTINGS": settings * 1000,
        "PING": (b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"x" * 8) * 1000,
        "WINDOW_UPDATE": b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x01" * 1000,
        "window 0": b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00",
        "RST_STREAM": b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08" * 1000,
        "a malformed frame": b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        "headers without end": b"\x00\x40\x00\x01\x00\x00\x00\x00\x01" + b"x" * 16_384,
    }
    for name, content in frames.items():
        yield Shape(f"HTTP/2: {name}", (preface + settings + content,))


MALFORMED: Final = tuple(
    shape
    for family in (_start_lines, _targets, _methods, _headers, _credentials, _framing, _chunks, _http2)
    for shape in family()
)


# Requests that could be read in two ways, with the status each is refused with, and odd ones that must be taken.

POST = b"POST /events HTTP/1.1\r\nHost: x\r\n"
WELL_FORMED = POST + b"Content-Length: 1\r\n\r\na"
CHUNKED_REQUEST = POST + b"Transfer-Encoding: chunked\r\n\r\n"
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
    "no host": (b"POST /events HTTP/1.1\r\nContent-Length: 1\r\n\r\na", 400),
    "two hosts": (POST + b"Host: y\r\nContent-Length: 1\r\n\r\na", 400),
    "CONNECT": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no known method": (b"G\x01T /events HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a control character in the target": (b"POST /ev\x01ents HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400),
    "a fragment": (b"POST /events#x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400),
    "a user in the target": (b"POST http://a:b@x/events HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400),
    "a chunk size with a sign": (CHUNKED_REQUEST + b"-1\r\na\r\n0\r\n\r\n", 400),
    "a chunk without its end": (CHUNKED_REQUEST + b"1\r\nab\r\n0\r\n\r\n", 400),
    "LF after a chunk": (CHUNKED_REQUEST + b"1\r\na\n0\r\n\r\n", 400),
    "a length in a trailer": (CHUNKED_REQUEST + b"0\r\nContent-Length: 1\r\n\r\n", 400),
    "endless chunk extensions": (CHUNKED_REQUEST + b"1;" + b"x" * 200_000 + b"\r\na\r\n", 400),
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
    "chunked, with an extension and a trailer": CHUNKED_REQUEST + b"1;a=b\r\na\r\n0\r\nX: y\r\n\r\n",
    "an absolute target": b"POST http://x/events HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na",
    "HTTP/1.0": b"POST /events HTTP/1.0\r\nContent-Length: 1\r\n\r\na",
    "an offer of h2c": POST
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    b"Content-Length: 1\r\n\r\na",
    "an offer of h2c, chunked": POST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "empty lines before": b"\r\n\r\n" + WELL_FORMED,
}


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
