"""The header block of a NATS message, byte for byte.

Client libraries give headers as a map, which loses repeats, order and whatever is no UTF-8; all of that has a meaning
in a native record (JUDGING.md#records). So the block is read and written here, as ``HPUB`` and ``HMSG`` carry it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from catalog.values import whole_number

VERSION: Final = b"NATS/1.0"
_NAME: Final = re.compile(rb"[!-9;-~]+")
"""What may be sent: printable ASCII without the colon, which is all that servers and clients agree on."""


class Header(NamedTuple):
    """One header as it was written; ``value`` is None for a line without a colon."""

    name: bytes
    value: bytes | None


class Status(NamedTuple):
    """What a server sends in place of a message: 100 idle heartbeat, 404, 408, 409, 503 and so on."""

    code: int
    description: str


def headers_of(block: bytes) -> list[Header]:
    """Return the headers of a raw block, in order and with repeats; blanks around names and values are not theirs."""
    return [_header(line) for line in block.split(b"\r\n")[1:] if line]


def status_of(block: bytes) -> Status | None:
    """Return the status that the first line of a raw block has; None for the headers of a message."""
    line = block.partition(b"\r\n")[0].removeprefix(VERSION).strip()
    word, _, description = line.partition(b" ")
    code = whole_number(word, 999)
    if code is None:
        return None
    return Status(code, description.strip().decode("utf-8", "replace"))


def block_of(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the raw block that carries these headers.

    Raises:
        ValueError: a name is no printable ASCII or has a colon, or a value has a line break, which would end the line.
    """
    lines = [VERSION]
    for name, value in headers:
        encoded = name.encode("utf-8", "surrogatepass")
        if not _NAME.fullmatch(encoded):
            raise ValueError(f"header name {name[:100]!r} is not printable ASCII without a colon")
        if b"\r" in value or b"\n" in value:
            raise ValueError(f"the value of header {name[:100]} has a line break")
        lines.append(encoded + b": " + value)
    return b"\r\n".join((*lines, b"", b""))


def _header(line: bytes) -> Header:
    name, colon, value = line.partition(b":")
    return Header(name.strip(b" \t"), value.strip(b" \t") if colon else None)
