"""What an abuse of an HTTP server is: :class:`Shape`.

A shape says what is sent, in which pieces and with which pauses, and how its connection ends. Nothing of it is
well-formed enough to be taken, unless ``taken`` says that it may be answered 202.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

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
