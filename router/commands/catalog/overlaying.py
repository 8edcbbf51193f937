"""A catalog laid over what a registry has: what is sent to it, and what it has then.

Entities of the catalog become what the catalog says, with all that it says; all others stay. A resource that the
registry has already keeps the names of its versions: what the catalog gives without versions is its default version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

RESOURCES: Final[Mapping[str, str]] = {"endpoints": "messages", "messagegroups": "messages", "schemagroups": "schemas"}
"""Collections of a registry's groups, each with that of their resources."""
Tree = Mapping[str, Any]


def groups_of(catalog: Tree, registry: Tree) -> dict[str, Any]:
    """Return the groups of a *catalog*, which is an xRegistry 1.0 document, as they are sent to a *registry*."""
    overlay: dict[str, Any] = {}
    for plural, resources in RESOURCES.items():
        groups = {}
        for name, group in _members(catalog, plural):
            there = _member(registry, plural, name)
            sent = {each: _sent(body, _member(there, resources, each)) for each, body in _members(group, resources)}
            groups[name] = {**group, **({resources: sent} if sent else {})}
        if groups:
            overlay[plural] = groups
    return overlay


def laid_over(registry: Tree, groups: Tree) -> dict[str, Any]:
    """Return the document of a *registry* that has taken in *groups*."""
    tree = dict(registry)
    for plural, resources in RESOURCES.items():
        there = dict(_members(registry, plural))
        for name, group in _members(groups, plural):
            kept = {**dict(_members(there.get(name), resources)), **dict(_members(group, resources))}
            there[name] = {**group, **({resources: kept} if kept else {})}
        if there:
            tree[plural] = there
    return tree


def _sent(body: Tree, there: Tree) -> dict[str, Any]:
    versions = dict(_members(body, "versions"))
    meta = body.get("meta")
    # What refers to another has no version of its own.
    unnamed = there or (isinstance(meta, Mapping) and meta.get("xref") is not None)
    kept = {name: value for name, value in body.items() if name != "versionid" or not unnamed}
    if not versions:
        return kept
    known = there.get("versionid")
    sent = _chained(versions, {*dict(_members(there, "versions")), known}, known, body.get("versionid"))
    if known is not None and known not in versions:
        # The attributes beside ``versions`` would become those of the version that is the default one until now.
        sent[known] = dict(_member(there, "versions", known)) or _alone(there)
    return {**kept, "versions": sent}


def _alone(resource: Tree) -> dict[str, Any]:
    """Return the default version of a resource that is shown without its versions."""
    return {name: value for name, value in resource.items() if name not in ("meta", "versions", "xid", "self")}


def _chained(versions: Mapping[str, Any], there: Collection[Any], known: Any, default: Any) -> dict[str, Any]:
    """Let each new version descend from the one before it, unless the catalog says itself from which.

    *there* are the versions that the registry has, of which *known* is the default one. The default one of the catalog
    comes last, since what nothing descends from becomes the default one.
    """
    chained = dict(versions)
    if any("ancestorid" in each for each in versions.values()):
        return chained
    new = sorted((name for name in versions if name not in there), key=lambda name: (name == default, _number(name)))
    for name in new:
        chained[name] = {**versions[name], "ancestorid": known if known is not None else name}
        known = name
    return chained


def _number(name: str) -> int:
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else 0


def _members(holder: Any, plural: str) -> Iterator[tuple[str, Tree]]:
    collection = holder.get(plural) if isinstance(holder, Mapping) else None
    if isinstance(collection, Mapping):
        yield from ((name, each) for name, each in collection.items() if isinstance(each, Mapping))


def _member(holder: Any, plural: str, name: str) -> Tree:
    return next((each for one, each in _members(holder, plural) if one == name), {})
