"""Versions as this face counts them: the latest has the greatest id, where shorter ids are filled up from the left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from registry.errors import Refusal
from registry.store.entities import Version

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_DOTTED: Final = re.compile(r"([1-9][0-9]{0,15})((?:\.[0-9]{1,16}){1,3})", re.ASCII)


def rank(version: str) -> tuple[int, str]:
    """Return what versions are compared by: padded with spaces to one length, the shorter is the less."""
    return len(version), version


def latest(versions: Iterable[Version]) -> Version | None:
    """Return the latest version, None when there is none."""
    return max(versions, key=lambda each: rank(each.id), default=None)


def number(version: str) -> int | str:
    """Return the id of a version as the number that it is, else as it is."""
    return int(version) if _NUMBER.fullmatch(version) else version


def following(version: str, subject: str) -> str:
    """Return the id of the version after the latest: one more, or of dotted numbers the next whole one.

    Raises:
        Refusal: it is unknown which version follows.
    """
    if _NUMBER.fullmatch(version):
        return str(int(version) + 1)
    dotted = _DOTTED.fullmatch(version)
    if dotted is None:
        why = f"no version follows {version!r} by itself; put the next one at its own path"
        raise Refusal("bad_request", subject, error_detail=why)
    zeros = re.sub(r"[0-9]", "0", dotted[2])
    return f"{int(dotted[1]) + 1}{zeros}"
