"""Requests that could be read in two ways, with the status each is refused with, and odd ones that must be taken."""

from __future__ import annotations

POST = b"POST /events HTTP/1.1\r\nHost: x\r\n"
GOOD = POST + b"Content-Length: 1\r\n\r\na"
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
    "one": GOOD,
    "byte by byte": GOOD,
    "the end of the client's side": GOOD,
    "chunked, with an extension and a trailer": CHUNKED + b"1;a=b\r\na\r\n0\r\nX: y\r\n\r\n",
    "an absolute target": b"POST http://x/events HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na",
    "HTTP/1.0": b"POST /events HTTP/1.0\r\nContent-Length: 1\r\n\r\na",
    "an offer of h2c": POST
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    b"Content-Length: 1\r\n\r\na",
    "an offer of h2c, chunked": POST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "empty lines before": b"\r\n\r\n" + GOOD,
}
