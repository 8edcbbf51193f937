"""Where drafts are put: a message group that the endpoint lists already, wherever that is possible.

Two documents cannot both speak of one endpoint: the first counts, and lint warns of the second. But they can both speak
of one group, whose messages unite. So a fragment that adds to a group which the endpoint lists takes effect without
anything else being changed; else the endpoint has to list the group of the drafts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from catalog.model import CLOUDEVENTS, Endpoint
from router.commands.dead_letters.suggesting.basis import Basis
from router.errors import RouterError

Attachment = Literal["listed", "missing", "new", "unlisted", "free"]
"""How the group comes to its endpoint.

``listed``: the endpoint lists it. ``missing``: it lists it, and nobody has declared it. ``new``: the endpoint is not in
the catalog, and the fragment has it. ``unlisted``: the endpoint has to be changed. ``free``: there is no endpoint.
"""
ENDPOINT: Final = re.compile(r"/endpoints/([^/?#{}\s]{1,128})")
_GROUP: Final = re.compile(r"(?:^|[/#])messagegroups/([^/?#]+)/?$")
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._~@:\-]{0,127}")
_NOT_ID: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Placement:
    """The group that the drafts of one endpoint go into.

    ``envelope`` and ``protocol`` are the defaults that the group has in the catalog, or will have. ``others`` are more
    endpoints of the same protocol that list the group, and so will expect the drafts as well.
    """

    endpoint: str
    group: str
    attachment: Attachment
    envelope: str | None = CLOUDEVENTS
    protocol: str | None = None
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The id of the group."""
        return self.group.rpartition("/")[2]


def placement_of(endpoint: str, protocol: str, basis: Basis, wanted: str | None = None) -> Placement:
    """Choose the group for drafts of one endpoint (``""``: none) and protocol; *wanted* names it.

    Raises:
        RouterError: *wanted* is no id of a group, or one whose envelope or protocol forbids the drafts.
    """
    known = basis.catalog.endpoints.get(endpoint)
    if wanted is not None:
        return _wanted(endpoint, protocol, basis, _checked(wanted))
    if known is None:
        name = ENDPOINT.fullmatch(endpoint)
        group = _fresh(f"{_clean(name.group(1))}.drafts" if name else "drafts", basis)
        return Placement(endpoint, group, "new" if name else "free", protocol=protocol)
    for reference in basis.declarations.endpoints[endpoint].messagegroups:
        missing = _missing(reference, basis)
        if missing is not None:
            return Placement(endpoint, missing, "missing", protocol=protocol)
    fitting = [_listed(known, group, basis) for group in _fitting(known, protocol, basis)]
    if fitting:
        return min(fitting, key=lambda each: (len(each.others), known.messagegroups.index(each.group)))
    group = _fresh(f"{_clean(endpoint.rpartition('/')[2])}.drafts", basis)
    return Placement(endpoint, group, "unlisted", protocol=protocol)


def _wanted(endpoint: str, protocol: str, basis: Basis, name: str) -> Placement:
    known = basis.catalog.endpoints.get(endpoint)
    folded = {each.lower(): each for each in basis.declarations.groups}
    group = folded.get(f"/messagegroups/{name}".lower(), f"/messagegroups/{name}")
    if group in basis.catalog.groups and not _fits(group, protocol, basis):
        hint = "name another group, or leave --group out"
        raise RouterError(f"{group} is of another envelope or protocol than drafts for {protocol}", hint=hint)
    if known is None:
        placement: Placement = Placement(endpoint, group, "new" if ENDPOINT.fullmatch(endpoint) else "free")
    elif group in known.messagegroups:
        return _listed(known, group, basis)
    else:
        references = basis.declarations.endpoints[endpoint].messagegroups
        missing = any(_missing(reference, basis) == group for reference in references)
        placement = Placement(endpoint, group, "missing" if missing else "unlisted")
    declared = basis.declarations.groups.get(group)
    if declared is None:
        return placement
    return Placement(endpoint, group, placement.attachment, declared.envelope, declared.protocol)


def _checked(wanted: str) -> str:
    name = wanted.removeprefix("/messagegroups/")
    if not _ID.fullmatch(name):
        hint = "use letters, digits, . _ and -, such as --group Plant.Drafts"
        raise RouterError(f"--group {wanted!r} is no id of a message group", hint=hint)
    return name


def _fitting(endpoint: Endpoint, protocol: str, basis: Basis) -> Iterator[str]:
    for group in endpoint.messagegroups:
        if group.startswith("/messagegroups/") and _fits(group, protocol, basis):
            yield group


def _fits(group: str, protocol: str, basis: Basis) -> bool:
    """Tell whether drafts may be in a group: all messages of one have its envelope and protocol."""
    declared = basis.declarations.groups.get(group)
    if declared is None:
        return False
    return declared.envelope in (None, CLOUDEVENTS) and declared.protocol in (None, protocol)


def _listed(endpoint: Endpoint, group: str, basis: Basis) -> Placement:
    declared = basis.declarations.groups[group]
    others = tuple(
        each.xid
        for each in basis.catalog.endpoints.values()
        if each is not endpoint and group in each.messagegroups and each.protocol in (None, endpoint.protocol)
    )
    return Placement(endpoint.xid, group, "listed", declared.envelope, declared.protocol, others)


def _missing(reference: str, basis: Basis) -> str | None:
    """Return the group that a reference of an endpoint names within the catalog, when nobody has declared it."""
    match = _GROUP.search(reference)
    if match is None or reference[: match.start(1)] not in ("#/messagegroups/", "/messagegroups/"):
        return None
    xid = f"/messagegroups/{match.group(1)}"
    known = {each.lower() for each in basis.declarations.groups}
    return xid if _ID.fullmatch(match.group(1)) and xid.lower() not in known else None


def _fresh(name: str, basis: Basis) -> str:
    known = {each.lower() for each in basis.declarations.groups}
    chosen, number = f"/messagegroups/{name}", 2
    while chosen.lower() in known:
        chosen, number = f"/messagegroups/{name}{number}", number + 1
    return chosen


def _clean(text: str) -> str:
    return _NOT_ID.sub("-", text).strip(".-")[:100] or "endpoint"
