"""Changes as catalogs give them to one another, in JSON; and which of two states of one thing counts.

A state builds on all that its writer had seen. Of two states the one that builds on the other counts. Where neither
does, both sides wrote at once, and both catalogs decide alike: what is there goes before what is gone, and of two
contents the later stamp counts; the other is not lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from registry.store.history import MODEL, SCOPE, Mark, is_by_xid

Winner = Literal["mine", "theirs", "both-mine", "both-theirs"]
"""Whose state counts; with ``both`` the other one's content is kept too."""
MAX_ORIGINS: Final = 1000
MAX_AUTHORITY: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9\-._~:@+]{0,127}", re.ASCII)
MAX_AHEAD: Final = 2**32
"""How far the stamps of a page may be ahead of our clock as it was before the page."""
MAX_STAMP: Final = 2**62
"""The last stamp that others may give; what the clock can count beyond is for writes of our own."""


class ReplicatedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One state of a group, or of a version of a definition; ``attributes`` is None for what was deleted.

    With ``xid``, which names what is no message, ``attributes`` is its state (:mod:`registry.replication.entities`),
    and ``group`` is ''. Catalogs of earlier releases refuse such changes.

    ``group`` and ``definition`` are ids in the catalog whose ``authority`` the version is; ``definition`` is '' for a
    group. The other members are those of :class:`registry.store.history.Mark`.
    """

    group: str
    stamp: int
    origin: str
    seen: dict[str, int]
    definition: str = ""
    uid: str = ""
    name: str = ""
    authority: str = ""
    createdat: str = ""
    attributes: dict[str, Any] | None = None
    xid: str = ""

    def fault(self, clock: int) -> str:
        """Return why this is no change, '' when nothing is wrong.

        *clock* is ours as it was before the page, so that a page advances it by MAX_AHEAD at most, and never to its
        end.
        """
        stamps, last = [self.stamp, *self.seen.values()], min(clock + MAX_AHEAD, MAX_STAMP)
        if not all(0 < each <= last for each in stamps) or not 0 < len(self.seen) <= MAX_ORIGINS:
            return "its stamps are invalid"
        if self.seen.get(self.origin, 0) < self.stamp:
            return "it has not seen itself"
        named = (_xid_names(self.xid) or ("",)) if self.xid else (self.group,)
        if not all(_NAME.fullmatch(each) for each in (*named, self.origin, *self.seen)):
            return "it has invalid names"
        own = (self.definition, self.uid, self.name)
        if self.definition and not all(_NAME.fullmatch(each) for each in own):
            return "a version needs a definition, a uid and an id"
        return (
            "" if self.authority.isprintable() and len(self.authority) <= MAX_AUTHORITY else "its authority is invalid"
        )


def _xid_names(xid: str) -> list[str]:
    """Return the names in an xid of what is marked by it, [] for any other text."""
    names = xid.split("/")[1:]
    if not xid.startswith("/") or len(names) > 6 or (len(names) == 6 and names[4] != "versions"):
        return []
    return names if xid == MODEL or (len(names) in (2, 4, 6) and is_by_xid(xid)) else []


class ChangePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of changes of the catalog *catalog*, up to a position; ``more`` says whether others follow."""

    catalog: str
    authority: str
    position: int
    changes: list[ReplicatedChange]
    more: bool = False


@dataclass(frozen=True, slots=True)
class MergeDecision:
    """Whose state counts, and what the outcome has seen."""

    winner: Winner
    seen: dict[str, int]


def judged(mine: Mark, theirs: ReplicatedChange, digest: str) -> MergeDecision:
    """Return what comes of our state and another's, whose content has a *digest*."""
    seen = {name: max(mine.seen.get(name, 0), theirs.seen.get(name, 0)) for name in {**mine.seen, **theirs.seen}}
    gone = theirs.attributes is None
    same = mine.deleted == gone and (gone or mine.digest == digest)
    if seen == mine.seen == theirs.seen:
        ahead = (not gone, digest) > (not mine.deleted, mine.digest)
        return MergeDecision("theirs" if ahead and not same else "mine", seen)
    if seen == mine.seen:
        return MergeDecision("mine", seen)
    if seen == theirs.seen:
        return MergeDecision("theirs", seen)
    if mine.deleted != gone:
        return MergeDecision("theirs" if mine.deleted else "mine", seen)
    later = (theirs.stamp, theirs.origin) > (mine.stamp, mine.origin)
    if same:
        return MergeDecision("theirs" if later else "mine", seen)
    return MergeDecision("both-theirs" if later else "both-mine", seen)


def encoded(changes: ChangePage) -> bytes:
    """Return the JSON of changes."""
    return msgspec.json.encode(changes)


def decoded(data: bytes | Mapping[str, Any]) -> ChangePage | None:
    """Read changes; None for data that are no changes."""
    try:
        changes = (
            msgspec.json.decode(data, type=ChangePage)
            if isinstance(data, bytes)
            else msgspec.convert(data, type=ChangePage)
        )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return changes


# Where a definition of another authority lies here: at its own path, or beside the one that has that path.
#
# The authority tells definitions apart (section 2.2.1), and names may differ between catalogs (5.3). So of two that
# have one path, the one that came second lies in a group that is called after its authority.

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
