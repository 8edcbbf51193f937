"""What the gateway refuses, as ``application/problem+json`` (RFC 9457). Titles are fixed per status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the gateway, complete."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class Refusal(Exception):
    """A request that is answered with a problem: nothing of it was stored, unless ``detail`` says otherwise."""

    def __init__(self, status: HTTPStatus, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers

    def reply(self) -> Reply:
        """Return the answer that the sender gets."""
        problem = {"type": "about:blank", "title": self.status.phrase, "status": self.status, "detail": self.detail}
        body = json.dumps(problem).encode("ascii")
        content = ((b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body)))
        return Reply(self.status, (*content, *self.headers), body)


def unavailable(detail: str, retry_after: int) -> Refusal:
    """Return the refusal of a gateway that cannot take anything now; ``retry_after`` in seconds."""
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, detail, (b"retry-after", b"%d" % retry_after))
