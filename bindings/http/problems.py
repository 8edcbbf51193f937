"""Short answers, and refusals as ``application/problem+json`` (RFC 9457) with a fixed title for each status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

_LINES: Final = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}
_BARE: Final = {status: line + b"date: %b\r\ncontent-length: 0\r\n\r\n" for status, line in _LINES.items()}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, complete; its length is added when it is sent."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    def encoded(self, date: bytes, connection: bytes, *, body: bool) -> bytes:
        """Return it as HTTP/1.1, without its *body* for HEAD; *connection* is the value of that header, if any."""
        if not (self.headers or self.body or connection):
            return _BARE[self.status] % date
        lines = [_LINES[self.status], b"date: ", date, b"\r\ncontent-length: %d\r\n" % len(self.body)]
        lines += [b"%s: %s\r\n" % header for header in self.headers]
        if connection:
            lines.append(b"connection: %s\r\n" % connection)
        lines.append(b"\r\n")
        if body:
            lines.append(self.body)
        return b"".join(lines)


class HttpProblem(Exception):
    """A request that is answered with a problem: nothing of it was stored, unless ``detail`` says otherwise."""

    def __init__(self, status: HTTPStatus, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers

    def reply(self) -> Reply:
        """Return the answer that the sender gets."""
        problem = {"type": "about:blank", "title": self.status.phrase, "status": self.status, "detail": self.detail}
        content = (b"content-type", b"application/problem+json")
        return Reply(self.status, (content, *self.headers), json.dumps(problem).encode("ascii"))


def unavailable(detail: str, retry_after: int) -> HttpProblem:
    """Return the problem for a gateway that cannot take anything now; ``retry_after`` in seconds."""
    return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, (b"retry-after", b"%d" % retry_after))
