"""Find definitions that can never win among the candidates of an endpoint, or of a group without endpoints.

A definition loses every record that also matches a candidate which is at least as specific and does not reject the
body (MATCHING.md#specificity). Comparing all pairs would take hours for large catalogs. But such a candidate has the
same strong demands, so definitions are put into buckets by these, and only the few kinds of weak demands within one
bucket are compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

from catalog.definitions.constraints import (
    TYPED_LITERALS,
    Constraint,
    Demands,
    KeyedConstraint,
    MatchCandidate,
    covers,
    demands_of,
    match_candidate_of,
)
from catalog.definitions.inheritance import attribute_location, option_location
from catalog.dialects import Dialect, detect
from catalog.dialects.reading import spellings_of
from catalog.documents.documents import Document
from catalog.findings import Declarations, DeclaredMessage, EffectiveMessage, Findings, SourceLocation
from catalog.model import Catalog, Definition, Endpoint, Property, Severity
from catalog.templates import split_tokens
from catalog.values import value_key

# Strong demands: literals, and templates with their literal characters, which count for specificity.
#
# Definitions with equal strong demands are equally specific on every record that both match, so lint uses them for its
# buckets. In doubt, demands are treated as different.

Kinds = tuple[tuple[KeyedConstraint, ...], ...]
"""The constraints of a definition: on events, or on records of both kinds."""


def competing_candidate(definition: Definition, endpoint: Endpoint | None) -> MatchCandidate | None:
    """Return the definition as a candidate of *endpoint*; None if it can never match there."""
    default = endpoint.protocol if endpoint else None
    if default and definition.protocol not in (None, default):
        return None
    return match_candidate_of(definition, endpoint)


def _strong_demands(constraints: Iterable[KeyedConstraint]) -> Hashable:
    """Return a key that is equal for constraints that count alike on every record; placeholders are gaps."""
    strong: list[tuple[str, int, str, str, str]] = []
    seen: dict[str, int] = {}
    for key, constraint in constraints:
        times = seen[key] = seen.get(key, 0) + 1
        value, kind = constraint.value or "", constraint.type
        if constraint.kind == "template" and not constraint.template.is_bare:
            shape = "timestamp" if kind == "timestamp" else ""
            strong.append((key, times, "template", shape, repr(split_tokens(value)[::2])))
        elif constraint.kind in ("literal", "media") and constraint.counts and not _is_free(key, constraint):
            typed = kind in TYPED_LITERALS
            text = str(value_key(kind, value) or value) if typed else value
            strong.append((key, times, "literal", kind if typed else "", text))
    return tuple(sorted(strong))


def _is_free(key: str, constraint: Constraint) -> bool:
    """Whether a literal counts, but every event has it."""
    return key == "e.specversion" and constraint.value == "1.0"


# The input of lint rules.


@dataclass(frozen=True, slots=True)
class DeclaredProperty:
    """A property that a definition sets itself. Its location is computed only when needed."""

    definition: Definition
    effective: EffectiveMessage
    prop: Property
    in_envelope: bool

    @property
    def place(self) -> SourceLocation:
        """The location of the property; the message's location if it is not written there."""
        if self.in_envelope:
            place = attribute_location(self.effective.message, self.prop.name)
        else:
            place = option_location(self.effective, self.prop.name)
        return place or self.effective.message.place


@dataclass(frozen=True)
class Subject:
    """What lint checks: one loaded catalog. Rules report to ``findings``; everything else is read-only."""

    catalog: Catalog
    declarations: Declarations
    documents: Sequence[Document]
    findings: Findings

    def definitions(self) -> Iterator[tuple[Definition, DeclaredMessage, Definition | None]]:
        """Yield each definition with its declaration and its nearest base (None if that is not a definition)."""
        for definition in self.catalog.definitions.values():
            base = self.catalog.definitions.get(definition.base[0]) if definition.base else None
            yield definition, self.declarations.messages[definition.xid], base

    def attributes(self) -> Iterator[DeclaredProperty]:
        """Yield the envelope attributes that definitions set themselves."""
        for definition, _, base in self.definitions():
            for prop in _iter_own_properties(definition.envelopemetadata, base.envelopemetadata if base else ()):
                yield DeclaredProperty(definition, self.declarations.effective[definition.xid], prop, True)

    def options(self) -> Iterator[DeclaredProperty]:
        """Yield the protocol options that definitions set themselves."""
        for definition, _, base in self.definitions():
            for prop in _iter_own_properties(definition.protocoloptions, base.protocoloptions if base else ()):
                yield DeclaredProperty(definition, self.declarations.effective[definition.xid], prop, False)

    @cached_property
    def endpoint_bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """The endpoints as written, by xid. If one is written twice, the first counts."""
        bodies: dict[str, Mapping[str, Any]] = {}
        for tree in self._trees:
            for key, body in _object_members(tree, "endpoints").items():
                if isinstance(body, dict):
                    bodies.setdefault(f"/endpoints/{key}", body)
        return bodies

    @cached_property
    def groups_beside_endpoints(self) -> frozenset[str]:
        """Groups of documents that also have endpoints. Endpoints elsewhere may list the other groups."""
        with_endpoints = [tree for tree in self._trees if _object_members(tree, "endpoints")]
        names = spellings_of("groups")
        collections = (_object_members(tree, name) for tree in with_endpoints for name in tree if name.lower() in names)
        return frozenset(f"/messagegroups/{key}" for members in collections for key in members)

    @cached_property
    def dialects(self) -> Mapping[str, Dialect]:
        """The dialect of every document that is a catalog, by file."""
        trees = {each.file: each.tree for each in self.documents if isinstance(each.tree, dict)}
        return {file: dialect for file, tree in trees.items() if (dialect := detect(tree)) is not None}

    @property
    def _trees(self) -> list[dict[str, Any]]:
        return [document.tree for document in self.documents if isinstance(document.tree, dict)]


def _object_members(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    members = tree.get(name)
    return members if isinstance(members, dict) else {}


def _iter_own_properties(own: tuple[Property, ...], inherited: tuple[Property, ...]) -> Iterator[Property]:
    known = set(inherited)
    return (prop for prop in own if prop not in known)


MAX_KINDS: Final = 64
"""Maximum kinds of constraints compared within a bucket; above it, only equal ones are compared."""
MAX_RIVALS: Final = 16
MAX_NAMED_XIDS: Final = 3
SchemaKey = tuple[str, ...] | None
_RANKS: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class CandidateFinding:
    """A finding about one definition."""

    severity: Severity
    rule: str
    text: str
    hint: str


@dataclass
class _Peers:
    """Candidates with equal constraints and equal protocol, by data schema."""

    protocol: str | None
    kinds: Kinds
    members: dict[SchemaKey, list[Definition]] = field(default_factory=dict)

    @cached_property
    def free(self) -> int:
        """The number of literals that count for specificity but exclude nothing."""
        return sum(_is_free(*each) for constraints in self.kinds for each in constraints)

    @cached_property
    def demands(self) -> tuple[Demands, ...]:
        """The constraints by property."""
        return tuple(map(demands_of, self.kinds))

    def is_wider_than(self, other: _Peers) -> bool:
        """Whether this matches everything that *other* matches and is at least as specific."""
        if self is other:
            return True
        if self.protocol not in (None, other.protocol) or self.free < other.free:
            return False
        return all(covers(mine, its) for mine, its in zip(self.demands, other.demands, strict=True))


def check_candidates(subject: Subject) -> None:
    """Report each definition that never wins, once, with its most severe finding."""
    worst: dict[str, tuple[CandidateFinding, list[str]]] = {}
    for scope, endpoint, xids in iter_scopes(subject.catalog):
        if endpoint is None and scope in subject.groups_beside_endpoints:
            continue
        for xid, verdict in find_never_winning(competing_candidates(subject.catalog, xids, endpoint)):
            if verdict.rule == "never-reached" and scope in subject.catalog.groups:
                continue  # a group may contain bases beside their derived definitions
            known = worst.get(xid)
            if known is None or _RANKS[verdict.severity] < _RANKS[known[0].severity]:
                worst[xid] = (verdict, [scope])
            elif known[0] == verdict:
                known[1].append(scope)
    for xid, (verdict, scopes) in worst.items():
        where = scopes[0] if len(scopes) == 1 else f"{scopes[0]} and {len(scopes) - 1} more"
        place = subject.declarations.messages[xid].place
        subject.findings.add(place, verdict.severity, verdict.rule, f"on {where}: {verdict.text}", verdict.hint)


def iter_scopes(catalog: Catalog, *, every: bool = False) -> Iterator[tuple[str, Endpoint | None, tuple[str, ...]]]:
    """Yield definitions that compete, with their scope: the candidates of endpoints, and groups that none lists.

    Of endpoints with the same candidates and defaults only the first is yielded, unless *every* one is asked for.
    """
    seen: set[tuple[tuple[str, ...], str | None, str | None]] = set()
    for endpoint in catalog.endpoints.values():
        key = (endpoint.candidates, endpoint.protocol, endpoint.envelope)
        if every or key not in seen:
            seen.add(key)
            yield endpoint.xid, endpoint, endpoint.candidates
    listed = {group for endpoint in catalog.endpoints.values() for group in endpoint.messagegroups}
    yield from ((xid, None, members) for xid, members in catalog.groups.items() if xid not in listed)


def competing_candidates(catalog: Catalog, xids: Iterable[str], endpoint: Endpoint | None) -> list[MatchCandidate]:
    """Return the definitions that can match as candidates of *endpoint*."""
    possible = (competing_candidate(catalog.definitions[xid], endpoint) for xid in xids)
    return [candidate for candidate in possible if candidate is not None]


def find_never_winning(competing: Sequence[MatchCandidate]) -> Iterator[tuple[str, CandidateFinding]]:
    """Yield the competing definitions that never win, each with its finding.

    A definition with an envelope is compared on events only, any other on both kinds of records.
    """
    for events in (True, False):
        if all(each.is_for_events != events for each in competing):
            continue
        buckets: dict[Hashable, list[tuple[MatchCandidate, Kinds]]] = {}
        for candidate in competing:
            kinds = (candidate.event or (),) if events else (candidate.native or (), candidate.event or ())
            if events or candidate.native is not None:
                buckets.setdefault(tuple(map(_strong_demands, kinds)), []).append((candidate, kinds))
        for bucket in buckets.values():
            if len(bucket) > 1:
                yield from _compare_candidates(bucket, events=events)


def _compare_candidates(
    bucket: list[tuple[MatchCandidate, Kinds]], *, events: bool
) -> Iterator[tuple[str, CandidateFinding]]:
    """Compare candidates with equal strong demands."""
    peers: dict[object, _Peers] = {}
    for candidate, kinds in bucket:
        kind = peers.setdefault((candidate.protocol, kinds), _Peers(candidate.protocol, kinds))
        kind.members.setdefault(schema_key_of(candidate.definition), []).append(candidate.definition)
    rivals = {key: _find_rivals(kind, list(peers.values())) for key, kind in peers.items()}
    what = "event" if events else "record"
    for candidate, kinds in bucket:
        if candidate.is_for_events == events:
            key = (candidate.protocol, kinds)
            verdict = _find_conflict(candidate.definition, peers[key], rivals[key], what)
            if verdict is not None:
                yield candidate.definition.xid, verdict


def _find_rivals(kind: _Peers, kinds: list[_Peers]) -> list[_Peers]:
    """Return the kinds that are wider than *kind*, and itself; more specific ones first."""
    compared = kinds if len(kinds) <= MAX_KINDS else [kind]
    return sorted((other for other in compared if other.is_wider_than(kind)), key=lambda other: -other.free)


def _find_conflict(definition: Definition, kind: _Peers, rivals: list[_Peers], what: str) -> CandidateFinding | None:
    schema = schema_key_of(definition)
    tied: list[str] = []
    for other in rivals:
        preferred = other.free > kind.free
        for rival in _acceptors(other, schema):
            if rival.xid == definition.xid:
                continue
            if preferred or definition.xid in rival.base:
                text = f"{rival.xid} is preferred for every {what} that matches this"
                hint = "list only one of them, unless this is meant as a base"
                return CandidateFinding("info", "never-reached", text, hint)
            if rival.xid not in definition.base:
                tied.append(rival.xid)
    if tied:
        text = f"every {what} that matches this also matches {_join_xids(tied)}, equally specific, and is ambiguous"
        hint = "use different attributes, protocol options or data schemas, derive one from the other, or remove one"
        return CandidateFinding("warning", "indistinguishable", text, hint)
    others = [rival.xid for other in rivals for rival in _rejectors(other, schema) if not _related(definition, rival)]
    if not others:
        return None
    text = f"only its data schema differs from {_join_xids(others)}; a body that is valid for both is ambiguous"
    return CandidateFinding("info", "indistinguishable", text, "use different attributes or protocol options")


def _acceptors(kind: _Peers, schema: SchemaKey) -> Iterator[Definition]:
    """Yield rivals that accept every body: those without a schema, or with the same one."""
    for each in dict.fromkeys((None, schema)):
        yield from islice(kind.members.get(each, ()), MAX_RIVALS)


def _rejectors(kind: _Peers, schema: SchemaKey) -> Iterator[Definition]:
    others = (members for each, members in kind.members.items() if each is not None and each != schema)
    for members in islice(others, MAX_RIVALS):
        yield members[0]


def _related(one: Definition, other: Definition) -> bool:
    return one.xid in other.base or other.xid in one.base


def schema_key_of(definition: Definition) -> SchemaKey:
    """Return a key of a definition's data schema, loaded or not; None if it has no schema."""
    if definition.schemakey is not None:
        return ("loaded", definition.schemakey, definition.schemaname, definition.schemapointer)
    if definition.dataschemauri or definition.dataschemaxid:
        return ("named", definition.dataschemauri or "", definition.dataschemaxid or "")
    return ("inline", repr(definition.dataschema)) if definition.dataschema is not None else None


def _join_xids(xids: list[str]) -> str:
    listed = list(dict.fromkeys(xids))
    more = f" and {len(listed) - MAX_NAMED_XIDS} more" if len(listed) > MAX_NAMED_XIDS else ""
    return ", ".join(listed[:MAX_NAMED_XIDS]) + more
