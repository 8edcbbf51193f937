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
from typing import Any, Final, Literal

from catalog.definitions.constraints import TYPED_LITERALS, is_now, scope_of
from catalog.definitions.inheritance import attribute_location, option_location
from catalog.dialects import Dialect, detect
from catalog.dialects.reading import spellings_of
from catalog.documents.documents import Document
from catalog.findings import Declarations, DeclaredMessage, EffectiveMessage, Findings, SourceLocation
from catalog.model import Catalog, Definition, Endpoint, Property, Severity
from catalog.protocols.properties import is_hop_by_hop
from catalog.templates import TEMPLATE_TYPES, split_tokens
from catalog.values import to_text, value_key

# Demands: the constraints of a definition on one kind of record, in a comparable form (MATCHING.md#constraints).
#
# *Strong* demands count for specificity: literals, and templates with their literal characters, with placeholders
# reduced to gaps. *Weak* ones only exclude records: presence, valid types, gaps that must be equal. Definitions with
# equal strong demands are equally specific on every record that both match, so lint uses them for its buckets. In
# doubt, demands are treated as different.

_NEVER_EMPTY: Final = frozenset({"e.id", "e.source", "e.type"})
"""An event without one of these, or with an empty one, is invalid and matches no definition."""

Weakness = Literal["optional", "present", "gap"]
Gap = tuple[str, int]
"""The location of a placeholder: the key of its property and its number there."""


@dataclass(frozen=True, slots=True)
class WeakDemand:
    """A demand that does not count for specificity. A ``gap`` is a template that is one placeholder."""

    kind: Weakness
    type: str

    def is_implied_by(self, other: WeakDemand | None) -> bool:
        """Whether every value that satisfies *other* (None: no demand) satisfies this."""
        if self == other:
            return True
        if other is None or self.kind == "gap":
            return False
        if self.kind == "optional":
            return other.type == self.type and (other.kind == "present" or self.type == "timestamp")
        if other.kind == "optional":
            return False
        if other.kind == "gap":  # matches any non-empty text; with type timestamp, any timestamp
            return self.type in ("any", "string") or self.type == other.type == "timestamp"
        return self.type == "any" or (self.type == "string" and other.type not in ("any", "binary"))


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of one definition on events, or on native records.

    ``strong`` is hashable and sorted; ``free`` counts literals that every event has (specversion). ``same`` are groups
    of gaps that must be equal. ``content`` is the content type of MATCHING.md#content-type.
    """

    strong: Hashable
    weak: tuple[tuple[str, WeakDemand], ...]
    same: frozenset[frozenset[Gap]]
    content: str | None
    free: int = 0

    def is_implied_by(self, other: Demands) -> bool:
        """Whether every record that satisfies *other* satisfies this, if the strong demands are equal."""
        given = dict(other.weak)
        return (
            (self.content is None or self.content == other.content)
            and all(weak.is_implied_by(given.get(key)) for key, weak in self.weak)
            and all(any(group <= wider for wider in other.same) for group in self.same)
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A definition as one endpoint sees it: with the endpoint's defaults, which apply there only.

    ``protocol`` restricts it (None: any). ``envelope`` says whether it declares event attributes, ``native`` whether
    records that are not events can match it: a default protocol alone describes none.
    """

    definition: Definition
    protocol: str | None
    envelope: bool
    native: bool

    @property
    def is_for_events(self) -> bool:
        """Whether the definition describes CloudEvents; otherwise it is for records of both kinds."""
        return self.envelope or not self.native

    def demands(self, *, events: bool) -> Demands:
        """Return the demands on events, or on other records."""
        written = self.definition.datacontenttype
        content = written.strip().lower() if written else None
        return _build_demands(list(self.filtering_properties(events=events)), content)

    def filtering_properties(self, *, events: bool) -> Iterator[tuple[str, Property]]:
        """Yield the properties that filter such records: attributes as ``e.NAME``, protocol options as ``p.PATH``."""
        if events and self.envelope:
            yield from ((f"e.{prop.name}", prop) for prop in self.definition.envelopemetadata)
        if self.protocol:
            options = self.definition.protocoloptions
            yield from ((f"p.{prop.name}", prop) for prop in options if not is_hop_by_hop(prop.name))


def candidate_of(definition: Definition, endpoint: Endpoint | None) -> Candidate | None:
    """Return the definition as a candidate of *endpoint*; None if it can never match there."""
    scope = scope_of(definition, endpoint)
    default = endpoint.protocol if endpoint else None
    if scope is None or (default and definition.protocol not in (None, default)):
        return None
    return Candidate(definition, *scope)


def _build_demands(properties: list[tuple[str, Property]], content: str | None) -> Demands:
    strong: list[tuple[str, str, str, str]] = []
    weak: list[tuple[str, WeakDemand]] = []
    gaps: dict[str, list[Gap]] = {}
    seen: dict[str, int] = {}
    free = 0
    for key, prop in properties:
        times = seen[key] = seen.get(key, 0) + 1
        place = key if times == 1 else f"{key}#{times}"
        tokens = _template_tokens(prop)
        for gap, name in enumerate(tokens[1::2]):
            gaps.setdefault(name, []).append((place, gap))
        if any(tokens[::2]) or len(tokens) > 3:
            strong.append((place, "template", "timestamp" if prop.type == "timestamp" else "", repr(tokens[::2])))
        elif prop.value is not None and not tokens and not is_now(prop):
            if key == "e.specversion" and prop.value in ("1.0", 1.0):
                free = 1
            else:
                strong.append((place, "literal", *_literal_key(prop)))
        else:
            demand = _weak_demand(key, prop, gap=bool(tokens))
            if demand is not None:
                weak.append((place, demand))
    same = frozenset(frozenset(places) for places in gaps.values() if len(places) > 1)
    return Demands(tuple(sorted(strong)), tuple(sorted(weak, key=lambda entry: entry[0])), same, content, free)


def _template_tokens(prop: Property) -> list[str]:
    """Return the tokens of a template; empty if the value is not a template."""
    if prop.value is None or prop.type not in TEMPLATE_TYPES or is_now(prop):
        return []
    text = to_text(prop.value)
    tokens = split_tokens(text) if "{" in text else []
    return tokens if len(tokens) > 1 else []


def _literal_key(prop: Property) -> tuple[str, str]:
    """Return a key that is equal for literals that match the same texts."""
    text = to_text(prop.value)
    if prop.type in TYPED_LITERALS:
        return prop.type, str(value_key(prop.type, text) or text)
    return "", text


def _weak_demand(key: str, prop: Property, *, gap: bool) -> WeakDemand | None:
    """Return a weak demand; None if every record satisfies it."""
    takes_any = prop.type in ("any", "string") or (prop.type == "binary" and key.startswith("p."))
    if gap:
        kind: Weakness = "gap"
        takes_any = prop.type != "timestamp"
    else:
        kind = "present" if prop.required or is_now(prop) else "optional"
    if takes_any and (kind == "optional" or key in _NEVER_EMPTY):
        return None
    return WeakDemand(kind, "timestamp" if gap and prop.type == "timestamp" else "string" if gap else prop.type)


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
"""Maximum kinds of demands compared within a bucket; above it, only equal demands are compared."""
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


@dataclass(slots=True)
class _Peers:
    """Candidates with equal demands and equal protocol, by data schema."""

    protocol: str | None
    demands: tuple[Demands, ...]
    members: dict[SchemaKey, list[Definition]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """The number of literals that count for specificity but exclude nothing."""
        return sum(each.free for each in self.demands)

    def is_wider_than(self, other: _Peers) -> bool:
        """Whether this matches everything that *other* matches and is at least as specific."""
        implied = all(mine.is_implied_by(its) for mine, its in zip(self.demands, other.demands, strict=True))
        return self is other or (self.protocol in (None, other.protocol) and self.free >= other.free and implied)


def check_candidates(subject: Subject) -> None:
    """Report each definition that never wins, once, with its most severe finding."""
    worst: dict[str, tuple[CandidateFinding, list[str]]] = {}
    for scope, competing in _iter_scopes(subject):
        for xid, verdict in find_never_winning(competing):
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


def _iter_scopes(subject: Subject) -> Iterator[tuple[str, list[Candidate]]]:
    """Yield definitions that compete: the candidates of each endpoint, and groups in documents without endpoints."""
    catalog = subject.catalog
    seen: set[tuple[tuple[str, ...], str | None, str | None]] = set()
    for endpoint in catalog.endpoints.values():
        key = (endpoint.candidates, endpoint.protocol, endpoint.envelope)
        if len(endpoint.candidates) > 1 and key not in seen:
            seen.add(key)
            yield endpoint.xid, _candidates_of_scope(subject, endpoint.candidates, endpoint)
    listed = {group for endpoint in catalog.endpoints.values() for group in endpoint.messagegroups}
    for xid, members in catalog.groups.items():
        if len(members) > 1 and xid not in listed and xid not in subject.groups_beside_endpoints:
            yield xid, _candidates_of_scope(subject, members, None)


def _candidates_of_scope(subject: Subject, xids: Iterable[str], endpoint: Endpoint | None) -> list[Candidate]:
    possible = (candidate_of(subject.catalog.definitions[xid], endpoint) for xid in xids)
    return [candidate for candidate in possible if candidate is not None]


def find_never_winning(competing: Sequence[Candidate]) -> Iterator[tuple[str, CandidateFinding]]:
    """Yield the competing definitions that never win, each with its finding.

    A definition with an envelope is compared on events only, any other on both kinds of records.
    """
    for events in (True, False):
        if all(each.is_for_events != events for each in competing):
            continue
        buckets: dict[object, list[tuple[Candidate, tuple[Demands, ...]]]] = {}
        for candidate in competing:
            if events or candidate.native:
                demands = tuple(candidate.demands(events=each) for each in ((True,) if events else (False, True)))
                buckets.setdefault(tuple(each.strong for each in demands), []).append((candidate, demands))
        for bucket in buckets.values():
            if len(bucket) > 1:
                yield from _compare_candidates(bucket, events=events)


def _compare_candidates(
    bucket: list[tuple[Candidate, tuple[Demands, ...]]], *, events: bool
) -> Iterator[tuple[str, CandidateFinding]]:
    """Compare candidates with equal strong demands."""
    kinds: dict[object, _Peers] = {}
    for candidate, demands in bucket:
        kind = kinds.setdefault((candidate.protocol, demands), _Peers(candidate.protocol, demands))
        kind.members.setdefault(schema_key_of(candidate.definition), []).append(candidate.definition)
    rivals = {key: _find_rivals(kind, list(kinds.values())) for key, kind in kinds.items()}
    what = "event" if events else "record"
    for candidate, demands in bucket:
        if candidate.is_for_events == events:
            key = (candidate.protocol, demands)
            verdict = _find_conflict(candidate.definition, kinds[key], rivals[key], what)
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
                return _never_reached_finding(rival, what)
            if rival.xid not in definition.base:
                tied.append(rival.xid)
    if tied:
        return _indistinguishable_finding(tied, what)
    others = [rival.xid for other in rivals for rival in _rejectors(other, schema) if not _related(definition, rival)]
    return _schema_only_finding(others) if others else None


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


def _indistinguishable_finding(tied: list[str], what: str) -> CandidateFinding:
    text = f"every {what} that matches this also matches {_join_xids(tied)}, equally specific, and is ambiguous"
    hint = "use different attributes, protocol options or data schemas, derive one from the other, or remove one"
    return CandidateFinding("warning", "indistinguishable", text, hint)


def _schema_only_finding(others: list[str]) -> CandidateFinding:
    text = f"only its data schema differs from {_join_xids(others)}; a body that is valid for both is ambiguous"
    return CandidateFinding("info", "indistinguishable", text, "use different attributes or protocol options")


def _never_reached_finding(rival: Definition, what: str) -> CandidateFinding:
    text = f"{rival.xid} is preferred for every {what} that matches this"
    return CandidateFinding("info", "never-reached", text, "list only one of them, unless this is meant as a base")
