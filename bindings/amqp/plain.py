"""A quick reader of the sections that most messages are made of, short ASCII texts; it makes no value at each step.

Nothing here decides anything: a section that is not as expected gives None, and the readers of
:mod:`bindings.amqp.sections` read it from its start, with odd values and errors. Both return the same; a property test
holds them equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bindings.amqp.forms import part
from bindings.amqp.values import read_value
from bindings.parts import Part

_STRING: Final = 0xA1
_CODES: Final[Mapping[str | None, int]] = {None: _STRING, "string": _STRING, "symbol": 0xA3}
"""By the usual type of a field, the first byte of a short text of that type, which need not be noted."""
_NONE: Final = -1
_INNER: Final = 1
"""The depth of values in an outermost list or map."""

Taken = tuple[list[Part], dict[str, str], int]
"""The parts of a section, the types that their forms do not show, and the offset behind it."""


def binary(data: bytes, at: int, end: int) -> tuple[bytes, int] | None:
    """Return the binary at *at* and the offset behind it; None when there is none, or it does not end before *end*."""
    code = data[at] if at < end else 0
    if code == 0xA0 and at + 2 <= end:
        start, stop = at + 2, at + 2 + data[at + 1]
    elif code == 0xB0 and at + 5 <= end:
        start, stop = at + 5, at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        return None
    return (data[start:stop], stop) if stop <= end else None


def texts(data: bytes, at: int, end: int, section: str) -> Taken | None:
    """Return the parts of a map whose keys are short, distinct ASCII strings; None for any other map."""
    extent = _extent(data, at, end, 0xC1)
    if extent is None or extent[0] % 2:
        return None
    count, at, stop = extent
    parts: list[Part] = []
    types: dict[str, str] = {}
    seen = set()
    prefix = f"{section}."
    for _ in range(count // 2):
        behind = _short(data, at, stop, _STRING)
        if not behind:
            return None
        path = prefix + data[at + 2 : behind].decode("ascii")
        seen.add(path)
        at = behind
        if behind := _short(data, at, stop, _STRING):
            parts.append(Part(path, data[at + 2 : behind]))
            at = behind
        else:
            value, at = read_value(data, at, stop, _INNER)
            entry = part(path, value, types)
            if entry is not None:
                parts.append(entry)
    return (parts, types, stop) if at == stop and 2 * len(seen) == count else None


def fields(data: bytes, at: int, end: int, section: str, known: Sequence[tuple[str, str | None]]) -> Taken | None:
    """Return the parts of a list of *known* fields, each with its usual type; None when it is not such a list."""
    extent = _extent(data, at, end, 0xC0)
    if extent is None or extent[0] > len(known):
        return None
    count, at, stop = extent
    parts: list[Part] = []
    types: dict[str, str] = {}
    for member, usual in known[:count]:
        if at < stop and data[at] == 0x40:  # null: the field is not there
            at += 1
        elif behind := _short(data, at, stop, _CODES.get(usual, _NONE)):
            parts.append(Part(f"{section}.{member}", data[at + 2 : behind]))
            at = behind
        else:
            value, at = read_value(data, at, stop, _INNER)
            entry = part(f"{section}.{member}", value, types, usual) if value.kind != "null" else None
            if entry is not None:
                parts.append(entry)
    return (parts, types, stop) if at == stop else None


def _short(data: bytes, at: int, end: int, code: int) -> int:
    """Return the offset behind a text of at most 255 ASCII characters that says its own type; 0 when there is none."""
    if at + 2 > end or data[at] != code:
        return 0
    behind = at + 2 + data[at + 1]
    return behind if behind <= end and data[at + 2 : behind].isascii() else 0


def _extent(data: bytes, at: int, end: int, code: int) -> tuple[int, int, int] | None:
    """Return how many values a list (0xC0) or map (0xC1) has, and where their bytes begin and end."""
    if at + 3 <= end and data[at] == code:
        count, start, stop = data[at + 2], at + 3, at + 2 + data[at + 1]
    elif at + 9 <= end and data[at] == code + 0x10:
        stop = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        count, start = int.from_bytes(data[at + 5 : at + 9], "big"), at + 9
    else:
        return None
    return (count, start, stop) if start <= stop <= end else None
