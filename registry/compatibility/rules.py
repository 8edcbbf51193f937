"""The ``compatibility`` rule of versions with their ancestors (core ``spec.md``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from catalog.schemas.contract import SchemaSource
from catalog.schemas.families import parse_format
from registry.compatibility import json_schema, schemas
from registry.compatibility.schemas import Budget, Undecided, schema_source
from registry.errors import Refusal, join_values
from registry.model.attributes import ResourceType
from registry.store.entities import Resource, Version

RULES: Final = ("backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive")


@dataclass(frozen=True, slots=True)
class Checker:
    """The compatibility check of a schema family. Both functions raise :class:`Undecided` if they cannot decide.

    ``prepare`` is called once for each version. ``find_gap`` is given two prepared schemas, and returns why a reader
    with the first cannot read data written with the second, '' if it can.
    """

    prepare: Callable[[SchemaSource], Any]
    find_gap: Callable[[Any, Any, Budget], str]


CHECKERS: Final[Mapping[str, Checker]] = {
    "Avro": Checker(schemas.parse_avro, schemas.find_avro_gap),
    "JsonSchema": Checker(lambda source: source, json_schema.find_json_gap),
    "Protobuf": Checker(schemas.parse_messages, schemas.find_protobuf_gap),
}
"""Compatibility checks by schema family."""
RESULT_NAMES: Final = ("compatibilityvalidated", "compatibilityvalidatedreason")
MIN_PAIR_STEPS: Final = 100
"""Minimum steps counted for two versions."""


def check_compatibility(
    kind: ResourceType,
    resource: Resource,
    versions: Mapping[str, Version],
    before: Mapping[str, Version],
    changed: Collection[str],
    document: Callable[[Version], bytes | None],
) -> None:
    """Check versions of a resource against their ancestors, and record on each that it was checked.

    *before* are all versions before the write; those not *changed* complied with the same rule, and count as compatible
    with their ancestors.

    Raises:
        Refusal: a version violates the rule, or no checker can decide it.
    """
    rule = str(resource.attributes.get("compatibility") or "").lower()
    if not rule or not kind.validatecompatibility:
        for each in versions.values():
            for attribute in RESULT_NAMES:
                each.attributes.pop(attribute, None)
        return
    fresh = [name for name, each in versions.items() if name in changed or RESULT_NAMES[0] not in each.attributes]
    schemas = _SchemaCache(document)
    for each in map(versions.__getitem__, fresh):
        for attribute in RESULT_NAMES:
            each.attributes.pop(attribute, None)
        form = each.attributes.get("format")
        if not form:
            continue
        known = parse_format(form)
        if rule not in RULES or known is None or known.family not in CHECKERS:
            raise Refusal("compatibility_unknown", resource.xid, compat=rule, format=form)
        body = document(each)
        if body is None:
            each.attributes.update(zip(RESULT_NAMES, (False, "The document is external."), strict=True))
        elif body:
            schemas.source_of(each)
            each.attributes[RESULT_NAMES[0]] = True
    _compare_pairs(rule, resource, versions, _iter_pairs(rule, versions, before, fresh), schemas)


def is_checked(version: Version) -> bool:
    """Whether a version was checked before, or has no format."""
    return RESULT_NAMES[0] in version.attributes or not version.attributes.get("format")


class _SchemaCache:
    """A cache of parsed and prepared documents of versions."""

    def __init__(self, document: Callable[[Version], bytes | None]) -> None:
        self._document = document
        self._sources: dict[str, SchemaSource] = {}
        self._prepared: dict[str, Any] = {}

    def source_of(self, version: Version) -> SchemaSource:
        """Return the document of a version, which has a known format."""
        if version.id not in self._sources:
            form, body = parse_format(version.attributes["format"]), self._document(version)
            assert form is not None and body, "only versions that are validated are compared"
            self._sources[version.id] = schema_source(version, form, body)
        return self._sources[version.id]

    def prepared_schema(self, version: Version) -> Any:
        """Return the prepared schema of a version; raises Undecided if it cannot be prepared."""
        if version.id not in self._prepared:
            source = self.source_of(version)
            try:
                self._prepared[version.id] = CHECKERS[source.family].prepare(source)
            except Undecided as error:
                self._prepared[version.id] = error
        prepared = self._prepared[version.id]
        if isinstance(prepared, Undecided):
            raise prepared.with_traceback(None)
        return prepared


def _compare_pairs(
    rule: str,
    resource: Resource,
    versions: Mapping[str, Version],
    pairs: Iterator[tuple[str, str]],
    schemas: _SchemaCache,
) -> None:
    name = rule.partition("_")[0]
    broken: dict[str, str] = {}
    undecided: dict[str, str] = {}
    budget = Budget()
    for newer, older in dict.fromkeys(pairs):
        if not (versions[newer].attributes.get(RESULT_NAMES[0]) and versions[older].attributes.get(RESULT_NAMES[0])):
            continue
        try:
            budget.spend(MIN_PAIR_STEPS)
            why = _find_gap(name, versions[newer], versions[older], schemas, budget)
        except Undecided as error:
            undecided.setdefault(newer, f"{newer} against {older}: {error}")
            if budget.is_exhausted:
                break
            continue
        if why:
            broken.setdefault(newer, f"{newer} against {older}: {why}")
    if broken:
        raise Refusal("compatibility_violation", resource.xid, detail=_error_detail(broken), compat=rule)
    if undecided:
        form = str(versions[min(undecided)].attributes.get("format"))
        raise Refusal("compatibility_unknown", resource.xid, detail=_error_detail(undecided), compat=rule, format=form)


def _error_detail(reasons: Mapping[str, str]) -> str:
    return f"{join_values(sorted(reasons))}. {'; '.join(reasons.values())}"


def _find_gap(rule: str, newer: Version, older: Version, schemas: _SchemaCache, budget: Budget) -> str:
    family = schemas.source_of(newer).family
    if family != schemas.source_of(older).family:
        return "they have different formats"
    asked = ("backward", newer, older), ("forward", older, newer)
    undecided: Undecided | None = None
    for name, reader, writer in asked:
        if rule not in (name, "full"):
            continue
        try:
            one, other = schemas.prepared_schema(reader), schemas.prepared_schema(writer)
            why = CHECKERS[family].find_gap(one, other, budget)
        except Undecided as error:
            undecided = error
            continue
        if why:
            return why
    if undecided is not None:
        raise undecided
    return ""


def _iter_pairs(
    rule: str, versions: Mapping[str, Version], before: Mapping[str, Version], changed: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs (newer, older) that must be checked: one has changed, or the ancestry is new."""
    everything = rule.endswith("_transitive")
    children: dict[str, list[str]] = {}
    for name, each in versions.items():
        if each.ancestorid != name:
            children.setdefault(each.ancestorid, []).append(name)
    moved = [name for name, each in versions.items() if name in before and before[name].ancestorid != each.ancestorid]
    for name in changed:
        yield from ((name, older) for older in _iter_ancestors(name, versions, everything=everything))
        yield from ((newer, name) for newer in _iter_descendants(name, children, everything=everything))
    for name in moved:
        known = set(_iter_ancestors(name, before, everything=everything))
        gained = [each for each in _iter_ancestors(name, versions, everything=everything) if each not in known]
        below = _iter_descendants(name, children, everything=True) if everything and gained else ()
        yield from ((newer, older) for newer in (name, *below) for older in gained)


def _iter_ancestors(name: str, versions: Mapping[str, Version], *, everything: bool) -> Iterator[str]:
    each = versions[name]
    while each.ancestorid != each.id and each.ancestorid in versions:
        each = versions[each.ancestorid]
        yield each.id
        if not everything:
            return


def _iter_descendants(name: str, children: Mapping[str, list[str]], *, everything: bool) -> Iterator[str]:
    waiting = list(children.get(name, ()))
    while waiting:
        each = waiting.pop()
        yield each
        if everything:
            waiting += children.get(each, ())
