"""Where a definition of another authority lies here: at its own path, or beside the one that has that path.

The authority tells definitions apart (section 2.2.1), and names may differ between catalogs (5.3). So of two that have
one path, the one that came second lies in a group that is called after its authority.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from registry.store.marks import SCOPE

_PLAIN: Final = re.compile(r"[^A-Za-z0-9.-]+", re.ASCII)
_SIGN: Final = re.compile(r"@[A-Za-z0-9.-]{1,24}-[0-9a-f]{8}", re.ASCII)
MAX_ID: Final = 128
_SIGN_LENGTH: Final = 34


def sign_of(authority: str) -> str:
    """Return the end of the names of groups that hold what is of an authority."""
    plain = _PLAIN.sub("-", authority.partition("://")[2] or authority).strip("-.")[:24]
    return f"@{plain or 'x'}-{hashlib.sha256(authority.encode()).hexdigest()[:8]}"


def is_aside(group: str) -> bool:
    """Tell a group that holds what came second."""
    return "@" in group and _SIGN.fullmatch(group[group.rindex("@") :]) is not None


def is_shortened(group: str) -> bool:
    """Tell whether the name of a group may have lost its end, where it came by a group that holds what came second."""
    return len(group) == MAX_ID - _SIGN_LENGTH


def home_of(owner: str, authority: str) -> tuple[str, str]:
    """Return group and id of a definition in the catalog of its authority."""
    group, _, name = owner.removeprefix(SCOPE).partition("/messages/")
    return group.removesuffix(sign_of(authority)), name


def owners_for(group: str, name: str, authority: str) -> tuple[str, str]:
    """Return the xids for a definition: at its own path, and beside what is there already."""
    aside = f"{group[: MAX_ID - _SIGN_LENGTH]}{sign_of(authority)}"
    return f"{SCOPE}{group}/messages/{name}", f"{SCOPE}{aside}/messages/{name}"
