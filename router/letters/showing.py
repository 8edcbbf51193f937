"""Texts of letters for people: safe for a terminal, of one line, and bounded."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from router.state.instants import instant

CUT: Final = "…"
BODY_SHOWN: Final = 4_096
"""Bytes of a body that are shown; all of them stand in the sink."""
_WIDTH: Final = 16


def printable(text: str, most: int = 0) -> str:
    """Return a text without what moves a terminal's cursor or breaks its line, cut to *most* characters if given."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return shown[: most - 1] + CUT if most and len(shown) > most else shown


def time_text(moment: datetime | None, *, short: bool = False) -> str:
    """Write a time, ``-`` for none; *short* is to the second."""
    if moment is None:
        return "-"
    text = instant(moment)
    return f"{text[:19]}Z" if short else text


def native_rows(native: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and value of each value of a native record, in order, repeats included."""
    for member, value in native.items():
        if isinstance(value, list):
            for entry in value:
                yield _entry(member, entry)
        elif isinstance(value, Mapping):
            yield from ((f"{member}.{name}", value_text(inner)) for name, inner in value.items())
        else:
            yield member, value_text(value)


def value_text(value: Any) -> str:
    """Write one value: texts as they are, anything else as JSON."""
    return printable(value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8"))


def body_lines(body: bytes | None, most: int = BODY_SHOWN) -> list[str]:
    """Write a body as lines: of text if it is UTF-8, else of hexadecimal digits beside their characters."""
    if body is None:
        return ["(none)"]
    shown = body[:most]
    more = [f"{CUT} {len(body) - most} bytes more"] if len(body) > most else []
    try:
        # A character may be cut in two at the end.
        text = shown.decode("utf-8", "ignore" if more else "strict") if _is_text(body) else None
    except UnicodeDecodeError:
        text = None
    if text is not None:
        return [printable(line.rstrip("\r")) for line in text.split("\n")] + more
    return [_hex(shown, start) for start in range(0, len(shown), _WIDTH)] + more


def body_json(body: bytes | None, most: int | None = None) -> dict[str, Any]:
    """Return a body as members of JSON: ``body`` or ``body_base64``."""
    if body is None:
        return {}
    try:
        return {"body": body[:most].decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body[:most]).decode("ascii")}


def _is_text(body: bytes) -> bool:
    try:
        return "\x00" not in body.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _entry(member: str, entry: Any) -> tuple[str, str]:
    if not isinstance(entry, Mapping) or "name" not in entry:
        return member, value_text(entry)
    if "value_base64" in entry:
        return f"{member}.{entry['name']}", f"base64 {value_text(entry['value_base64'])}"
    return f"{member}.{entry['name']}", value_text(entry.get("value"))


def _hex(data: bytes, start: int) -> str:
    piece = data[start : start + _WIDTH]
    plain = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)
    return f"{start:08x}  {piece.hex(' '):<{_WIDTH * 3 - 1}}  {plain}"
