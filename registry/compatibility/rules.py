"""What ``compatibility`` asks of the versions of a resource, along their ancestors (core ``spec.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from catalog.schemas.formats import parse_format
from registry.compatibility.avro import unreadable
from registry.compatibility.formats import tree_of
from registry.errors import Refusal, listed
from registry.model.types import ResourceType
from registry.store.entities import Resource, Version

RULES: Final = ("backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive")
CHECKERS: Final[Mapping[str, Callable[[Any, Any], str]]] = {"Avro": unreadable}
"""By family: tells why readers of the first schema cannot read what was written with the second, '' when they can."""
VALIDATED: Final = ("compatibilityvalidated", "compatibilityvalidatedreason")


def check_compatibility(
    kind: ResourceType,
    resource: Resource,
    versions: Mapping[str, Version],
    document: Callable[[Version], bytes | None],
) -> None:
    """Check all versions of a resource, and note on each that it was done.

    Raises:
        Refusal: one violates the rule, or there is nobody here who could tell.
    """
    rule = str(resource.attributes.get("compatibility") or "").lower()
    for each in versions.values():
        for attribute in VALIDATED:
            each.attributes.pop(attribute, None)
    if not rule or not kind.validatecompatibility:
        return
    trees: dict[str, Any] = {}
    for each in versions.values():
        form = each.attributes.get("format")
        if not form:
            continue
        known = parse_format(form)
        if rule not in RULES or known is None or known.family not in CHECKERS:
            raise Refusal("compatibility_unknown", resource.xid, compat=rule, format=form)
        body = document(each)
        if body is None:
            each.attributes.update(zip(VALIDATED, (False, "The document is stored elsewhere."), strict=True))
        elif body:
            trees[each.id] = known.family, tree_of(known.family, body)
            each.attributes["compatibilityvalidated"] = True
    _compare(rule, resource, versions, trees)


def _compare(rule: str, resource: Resource, versions: Mapping[str, Version], trees: Mapping[str, Any]) -> None:
    name, _, transitive = rule.partition("_")
    broken: dict[str, str] = {}
    for newer in trees:
        for older in _ancestors(newer, versions, everything=bool(transitive)):
            if older not in trees:
                continue
            why = _why(name, trees[newer], trees[older])
            if why:
                broken.setdefault(newer, f"{newer} against {older}: {why}")
    if broken:
        detail = f"{listed(sorted(broken))}. {'; '.join(broken.values())}"
        raise Refusal("compatibility_violation", resource.xid, detail=detail, compat=rule)


def _why(rule: str, newer: tuple[str, Any], older: tuple[str, Any]) -> str:
    if newer[0] != older[0]:
        return "they are of different formats"
    check = CHECKERS[newer[0]]
    backward = check(newer[1], older[1]) if rule in ("backward", "full") else ""
    return backward or (check(older[1], newer[1]) if rule in ("forward", "full") else "")


def _ancestors(name: str, versions: Mapping[str, Version], *, everything: bool) -> Iterator[str]:
    each = versions[name]
    while each.ancestorid != each.id:
        each = versions[each.ancestorid]
        yield each.id
        if not everything:
            return
