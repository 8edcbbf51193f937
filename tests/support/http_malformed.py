"""What no HTTP server should take for a request: lines, headers, lengths and chunks that are not as they should be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.http_shapes import CHUNKED, GOOD, ONE, TEMPLATE, Shape, each_of, request


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
