"""Which version is newest and which oldest, and what each descends from (``model.md``, versionmode)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from registry.errors import Refusal, listed
from registry.model.moments import moment_of
from registry.model.types import ResourceType
from registry.store.entities import Version

_SEMVER: Final = re.compile(r"v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?(?:-([0-9A-Za-z.-]{1,100}))?(?:\+.*)?")
_MAX_DIGITS: Final = 18


def number_of(version: str) -> int | None:
    """Return the number that the id of a version is; None for any other id, which only the core API can give."""
    plain = version.isascii() and version.isdecimal() and len(version) <= _MAX_DIGITS
    return int(version) if plain and str(int(version)) == version else None


def rank(version: str) -> tuple[bool, int, str]:
    """Return what orders the ids of versions: numbers are higher than all other ids, which count by their letters."""
    number = number_of(version)
    return number is not None, number or 0, version


def newest(mode: str, versions: Collection[Version]) -> Version:
    """Return the newest version, of at least one."""
    if mode == "manual":
        parents = {each.ancestorid for each in versions if each.ancestorid != each.id}
        leaves = [each for each in versions if each.id not in parents]
        return max(leaves or versions, key=_created)
    return max(versions, key=_ORDERS[mode])


def oldest(mode: str, versions: Collection[Version]) -> Version:
    """Return the oldest version, of at least one."""
    if mode == "manual":
        roots = [each for each in versions if each.ancestorid == each.id]
        return min(roots or versions, key=_created)
    return min(versions, key=_ORDERS[mode])


def key_of(mode: str) -> Callable[[Version], tuple[Any, ...]]:
    """Return what tells which of two versions is newer, where neither descends from the other."""
    return _ORDERS.get(mode, _created)


def append(mode: str, fresh: Sequence[Version], last: Version) -> bool:
    """Let new versions that ask for no ancestor descend from the newest one, and from one another.

    Return False, and do nothing, where the order of *mode* has one of them elsewhere.
    """
    order = key_of(mode)
    ordered = sorted(fresh, key=order if mode in _ORDERS else lambda each: each.id.lower())
    if any(order(each) <= order(last) for each in ordered):
        return False
    for each in ordered:
        each.ancestorid, last = last.id, each
    return True


def settle(kind: ResourceType, subject: str, versions: Mapping[str, Version], asked: Collection[str]) -> list[Version]:
    """Give each version its ancestor, and return those whose ancestor changes though they had one.

    New versions come with the ancestor '', unless the request names one; *asked* are the ids of versions whose ancestor
    the request names.

    Raises:
        Refusal: an ancestor that is asked for is not there, ancestors form a circle, or there are several roots where
            one is allowed.
    """
    for each in versions.values():
        if each.id in asked and each.ancestorid not in versions:
            raise Refusal("unknown_id", subject, singular="version", id=each.ancestorid)
    before = {each.id: each.ancestorid for each in versions.values()}
    if kind.versionmode == "manual":
        _by_hand(versions)
    else:
        previous: Version | None = None
        for each in sorted(versions.values(), key=_ORDERS[kind.versionmode]):
            each.ancestorid = each.id if previous is None else previous.id
            previous = each
    _check_circles(subject, versions)
    roots = [each.id for each in versions.values() if each.ancestorid == each.id]
    if kind.singleversionroot and len(roots) > 1:
        raise Refusal("multiple_roots", subject, plural=kind.plural)
    return [each for each in versions.values() if before[each.id] not in ("", each.ancestorid)]


def _by_hand(versions: Mapping[str, Version]) -> None:
    fresh = sorted((each for each in versions.values() if not each.ancestorid), key=lambda each: each.id.lower())
    for each in versions.values():
        if each.ancestorid and each.ancestorid not in versions:
            each.ancestorid = each.id
    settled = [each for each in versions.values() if each.ancestorid]
    last = newest("manual", settled) if settled else None
    for each in fresh:
        each.ancestorid = each.id if last is None else last.id
        last = each


def _check_circles(subject: str, versions: Mapping[str, Version]) -> None:
    safe: set[str] = set()
    for start in versions.values():
        path: dict[str, None] = {}
        each = start
        while each.id not in safe:
            if each.id in path:
                raise Refusal("ancestor_circular_reference", subject, list=listed(sorted(path)))
            path[each.id] = None
            if each.ancestorid == each.id:
                break
            each = versions[each.ancestorid]
        safe.update(path)


def _created(version: Version) -> tuple[datetime, str]:
    return _moment(version.createdat), version.id.lower()


def _modified(version: Version) -> tuple[datetime, str]:
    return _moment(version.modifiedat), version.id.lower()


def _moment(text: str) -> datetime:
    moment = moment_of(text)
    assert moment is not None
    return moment


def _precedence(version: Version) -> tuple[Any, ...]:
    """Order by Semantic Versioning; ids that are no semantic versions come first, by their text."""
    match = _SEMVER.fullmatch(version.id)
    if match is None:
        return (0, (), 0, (), version.id.lower())
    numbers = tuple(int(part or 0) for part in match.groups()[:3])
    before = match[4]
    parts = tuple(
        (0, int(part), "") if part.isascii() and part.isdecimal() else (1, 0, part)
        for part in (before or "").split(".")
    )
    return (1, numbers, 0 if before else 1, parts, version.id.lower())


_ORDERS: Final[Mapping[str, Callable[[Version], tuple[Any, ...]]]] = {
    "createdat": _created,
    "modifiedat": _modified,
    "semver": _precedence,
}
