"""Changes as catalogs give them to one another, in JSON; and which of two states of one thing counts.

A state builds on all that its writer had seen. Of two states the one that builds on the other counts. Where neither
does, both sides wrote at once, and both catalogs decide alike: what is there goes before what is gone, and of two
contents the later stamp counts; the other is not lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from registry.store.marks import MODEL, Mark, is_by_xid

Winner = Literal["mine", "theirs", "both-mine", "both-theirs"]
"""Whose state counts; with ``both`` the other one's content is kept too."""
MAX_ORIGINS: Final = 1000
MAX_AUTHORITY: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9\-._~:@+]{0,127}", re.ASCII)
MAX_AHEAD: Final = 2**32
"""How far the stamps of a page may be ahead of our clock as it was before the page."""
MAX_STAMP: Final = 2**62
"""The last stamp that others may give; what the clock can count beyond is for writes of our own."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One state of a group, or of a version of a definition; ``attributes`` is None for what was deleted.

    With ``xid``, which names what is no message, ``attributes`` is its state (:mod:`registry.replication.entities`),
    and ``group`` is ''. Catalogs of earlier releases refuse such changes.

    ``group`` and ``definition`` are ids in the catalog whose ``authority`` the version is; ``definition`` is '' for a
    group. The other members are those of :class:`registry.store.marks.Mark`.
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


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """A page of changes of the catalog *catalog*, up to a position; ``more`` says whether others follow."""

    catalog: str
    authority: str
    position: int
    changes: list[Change]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whose state counts, and what the outcome has seen."""

    winner: Winner
    seen: dict[str, int]


def judged(mine: Mark, theirs: Change, digest: str) -> Verdict:
    """Return what comes of our state and another's, whose content has a *digest*."""
    seen = {name: max(mine.seen.get(name, 0), theirs.seen.get(name, 0)) for name in {**mine.seen, **theirs.seen}}
    gone = theirs.attributes is None
    same = mine.deleted == gone and (gone or mine.digest == digest)
    if seen == mine.seen == theirs.seen:
        ahead = (not gone, digest) > (not mine.deleted, mine.digest)
        return Verdict("theirs" if ahead and not same else "mine", seen)
    if seen == mine.seen:
        return Verdict("mine", seen)
    if seen == theirs.seen:
        return Verdict("theirs", seen)
    if mine.deleted != gone:
        return Verdict("theirs" if mine.deleted else "mine", seen)
    later = (theirs.stamp, theirs.origin) > (mine.stamp, mine.origin)
    if same:
        return Verdict("theirs" if later else "mine", seen)
    return Verdict("both-theirs" if later else "both-mine", seen)


def encoded(changes: Changes) -> bytes:
    """Return the JSON of changes."""
    return msgspec.json.encode(changes)


def decoded(data: bytes | Mapping[str, Any]) -> Changes | None:
    """Read changes; None for data that are no changes."""
    try:
        changes = (
            msgspec.json.decode(data, type=Changes) if isinstance(data, bytes) else msgspec.convert(data, type=Changes)
        )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return changes
