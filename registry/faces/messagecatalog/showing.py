"""Entities of the store as documents of Message Catalog 0.1.

What 0.1 has no word for stands beside the rest under its own name, as section 2.2.4 permits: a document that is taken
in again gives what it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from catalog.dialects.messagewriting import CONTENT, SELECTORS, format_of, written
from registry.core.lineage import number_of
from registry.store.entities import Group, Version

SPECVERSION: Final = "0.1"
LONG_TEXT: Final = "documentationtext"
"""Where documentation is kept that is no URL: 0.1 has text there, 1.0 has a URL."""
COMMON: Final = ("description", "documentation", "tags", "relatedto", "relatedvia", "relation")
"""What 0.1 says of a definition beside its id, format and authority."""
OWN: Final = frozenset((*CONTENT, *SELECTORS, "definition"))
"""Attributes of 1.0 that are the content of a version."""
_LAST: Final = ("version", "createdtimeutc", "definition")


def shown_group(group: Group) -> dict[str, Any]:
    """Return a group without its definitions; one that core writers gave no format has none."""
    given = dict(group.attributes)
    form = format_of(given.pop("envelope", None), protocol := given.pop("protocol", None))
    if group.attributes.get("envelope") is not None and protocol is not None:
        given["protocol"] = protocol
    shown: dict[str, Any] = {"id": group.id, "specversion": SPECVERSION, **({"format": form} if form else {})}
    shown |= _described(given)
    return {**shown, **given, "createdtimeutc": group.createdat, "updatedtimeutc": group.modifiedat}


def shown_version(name: str, version: Version, group: Group, authority: str) -> dict[str, Any]:
    """Return a version of the definition *name* by itself; *authority* is that of definitions that name none."""
    given = dict(version.attributes)
    text = written({key: value for key, value in given.items() if key in OWN})
    given = {key: value for key, value in given.items() if key not in OWN}
    form = text.format or format_of(group.attributes.get("envelope"), group.attributes.get("protocol"))
    number = number_of(version.id)
    own = given.pop("authority", None)
    shown: dict[str, Any] = {"id": name, "specversion": SPECVERSION, "authority": own or authority}
    shown |= {"format": form} if form else {}
    shown |= _described(given)
    shown |= {"version": version.id if number is None else number, "createdtimeutc": version.createdat}
    return {**shown, **given, **text.beside, "definition": text.definition}


def shown_definition(versions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a definition with versions that were shown singly, the latest last: what it has is common to them.

    A version has what differs from that.
    """
    listed = list(versions)
    common = {key: value for key, value in listed[-1].items() if key not in _LAST}
    own: list[dict[str, Any]] = []
    for each in listed:
        less = {key: value for key, value in each.items() if key in _LAST or common.get(key, value) != value}
        less |= {key: value for key, value in each.items() if key not in common}
        own.append({**less, **{key: None for key in common if key not in each}})
    return {**common, "versions": own}


def _described(given: dict[str, Any]) -> dict[str, Any]:
    """Take what 0.1 has words for out of *given*."""
    text = given.pop(LONG_TEXT, None)
    attributes: dict[str, Any] = {name: given.pop(name) for name in COMMON if name in given}
    return {**attributes, "documentation": text} if text is not None else attributes
