"""Which version of a resource counts, for messages and schemas alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from catalog.values import is_number, text_of

_MAX_DIGITS: Final = 18


def default_version(resource: Mapping[str, Any], versions: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the key of the version that counts: the one named, the one that says so itself, else the highest.

    Numbers are higher than other names, which count by their letters; None when there are no versions.
    """
    if not versions:
        return None
    for name in _named(resource):
        if name in versions:
            return name
    for key, body in versions.items():
        if body.get("isdefault") is True:
            return key
    return max(versions, key=_rank)


def _named(resource: Mapping[str, Any]) -> Iterator[str]:
    for holder in (resource.get("meta"), resource):
        if not isinstance(holder, dict):
            continue
        for name in ("defaultversionid", "versionid"):
            value = holder.get(name)
            if isinstance(value, str) or is_number(value):
                yield text_of(value)


def _rank(key: str) -> tuple[bool, int, str]:
    number = key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS
    return number, int(key) if number else 0, key
