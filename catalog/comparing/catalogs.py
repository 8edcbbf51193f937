"""All changes between two catalogs: definitions, what endpoints expect, and what can no longer be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from catalog.comparing.changes import Change, Difference
from catalog.comparing.definitions import definition_changes
from catalog.definitions.candidates import verdicts
from catalog.definitions.demands import candidate_of
from catalog.explaining.entities import masked
from catalog.model import Catalog, Definition, Endpoint

_RULES: Final = {"indistinguishable": "ambiguous-now", "never-reached": "never-reached-now"}
_DEFAULTS: Final = ("envelope", "protocol", "envelopeoptions")
_ADDRESSING: Final = ("usage", "uris", "options")


def compare(old: Catalog, new: Catalog) -> Difference:
    """Return what changed from *old* to *new*.

    Definitions are compared without the defaults of endpoints, which are reported where they change. A definition that
    is gone while another with the same constraints has come is renamed.
    """
    if old.epoch and old.epoch == new.epoch:
        return Difference(old.epoch, new.epoch)
    renamed = _renamed(old, new)
    changes = [*_definitions(old, new, renamed), *_endpoints(old, new, renamed), *_undecided(old, new)]
    return Difference(old.epoch, new.epoch, tuple(changes))


def _definitions(old: Catalog, new: Catalog, renamed: Mapping[str, str]) -> Iterator[Change]:
    arrived = set(renamed.values())
    for xid, before in old.definitions.items():
        if xid in renamed:
            after = new.definitions[renamed[xid]]
            yield Change("definition-renamed", renamed[xid], "", False, "same", xid, renamed[xid])
            yield from definition_changes(before, after, old, new)
        elif xid in new.definitions:
            yield from definition_changes(before, new.definitions[xid], old, new)
        else:
            yield Change("definition-removed", xid, compatible=False, relation="narrower")
    for xid in new.definitions:
        if xid not in old.definitions and xid not in arrived:
            yield Change("definition-added", xid, relation="wider")


def _renamed(old: Catalog, new: Catalog) -> dict[str, str]:
    """Pair definitions that are gone with new ones of the same constraints; only where there is one of each."""
    gone: dict[str, list[str]] = {}
    for xid, definition in old.definitions.items():
        if xid not in new.definitions:
            gone.setdefault(_constraints(definition), []).append(xid)
    come: dict[str, list[str]] = {}
    for xid, definition in new.definitions.items():
        if xid not in old.definitions:
            come.setdefault(_constraints(definition), []).append(xid)
    return {xids[0]: come[key][0] for key, xids in gone.items() if len(xids) == len(come.get(key, ())) == 1}


def _constraints(definition: Definition) -> str:
    """Return all that a definition matches and makes, but for how it is called and what it derives from."""
    schema = repr(definition.dataschema) if definition.dataschema is not None else definition.dataschemauri
    alone = replace(
        definition,
        xid="",
        group="",
        base=(),
        schemauri=None,
        schemakey=None,
        dataschema=None,
        dataschemauri=schema,
    )
    return repr(alone)


def _endpoints(old: Catalog, new: Catalog, renamed: Mapping[str, str]) -> Iterator[Change]:
    for xid, before in old.endpoints.items():
        after = new.endpoints.get(xid)
        if after is None:
            yield Change("endpoint-removed", xid, compatible=False)
        else:
            yield from _endpoint(before, after, renamed)
    for xid in new.endpoints:
        if xid not in old.endpoints:
            yield Change("endpoint-added", xid)


def _endpoint(before: Endpoint, after: Endpoint, renamed: Mapping[str, str]) -> Iterator[Change]:
    for name in _DEFAULTS:
        if getattr(before, name) != getattr(after, name):
            one, other = masked(getattr(before, name)), masked(getattr(after, name))
            yield Change("endpoint-changed", after.xid, name, False, "different", one, other)
    for name in _ADDRESSING:
        if getattr(before, name) != getattr(after, name):
            one, other = masked(getattr(before, name)), masked(getattr(after, name))
            yield Change("address-changed", after.xid, name, True, "same", one, other, "filters nothing")
    known = {renamed.get(xid, xid) for xid in before.candidates}
    expected = frozenset(after.candidates)
    for xid in before.candidates:
        if renamed.get(xid, xid) not in expected:
            yield Change("candidate-removed", after.xid, xid, False, "narrower")
    yield from (
        Change("candidate-added", after.xid, xid, True, "wider") for xid in after.candidates if xid not in known
    )


def _undecided(old: Catalog, new: Catalog) -> Iterator[Change]:
    """Tell of definitions that could win a record before and never can now, among the candidates of one channel."""
    for scope, xids, endpoint in _scopes(new):
        competed, was = _scope(old, scope)
        before = _verdicts(old, competed, was)
        after = _verdicts(new, xids, endpoint)
        for (xid, rule), detail in after.items():
            if (xid, rule) not in before:
                kind = _RULES[rule]
                yield Change(kind, xid, scope, False, "narrower", detail=detail)  # type: ignore[arg-type]


def _scopes(catalog: Catalog) -> Iterator[tuple[str, tuple[str, ...], Endpoint | None]]:
    """Give what competes: the candidates of endpoints, and groups that no endpoint lists."""
    for endpoint in catalog.endpoints.values():
        yield endpoint.xid, endpoint.candidates, endpoint
    listed = {group for endpoint in catalog.endpoints.values() for group in endpoint.messagegroups}
    for xid, members in catalog.groups.items():
        if xid not in listed:
            yield xid, members, None


def _scope(catalog: Catalog, xid: str) -> tuple[tuple[str, ...], Endpoint | None]:
    endpoint = catalog.endpoints.get(xid)
    return (endpoint.candidates, endpoint) if endpoint else (catalog.groups.get(xid, ()), None)


def _verdicts(catalog: Catalog, xids: Iterable[str], endpoint: Endpoint | None) -> dict[tuple[str, str], str]:
    """Return what lint would warn of, by xid and rule; what only a body can tell apart is left to the body."""
    definitions: list[Definition] = [catalog.definitions[xid] for xid in xids]
    candidates = [candidate for each in definitions if (candidate := candidate_of(each, endpoint)) is not None]
    texts: dict[tuple[str, str], str] = {}
    for xid, verdict in verdicts(candidates):
        if verdict.rule == "never-reached" or verdict.severity == "warning":
            texts.setdefault((xid, verdict.rule), verdict.text)
    return texts
