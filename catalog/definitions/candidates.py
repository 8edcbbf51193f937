"""Find definitions that can never win among the candidates of an endpoint, or of a group without endpoints.

One rule decides (MATCHING.md#specificity): a definition loses every record that also matches a candidate which is as
specific and does not reject the body. Comparing all pairs would take hours for large catalogs. But such a candidate has
the same strong demands, so definitions are put into buckets by those, and within a bucket by the others; only the few
kinds of demands in one bucket are compared with each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal

from catalog.definitions.constraints import TYPED_LITERALS, is_now, scope_of
from catalog.definitions.inheritance import attribute_place, option_place
from catalog.dialects import Dialect, detect
from catalog.dialects.reading import spellings
from catalog.documents.documents import Document
from catalog.findings import Declarations, DeclaredMessage, Findings, SourceLocation
from catalog.model import Catalog, Definition, Endpoint, Property, Severity
from catalog.protocols.properties import changes_by_hop
from catalog.templates import TEMPLATE_TYPES, tokens_of
from catalog.values import canonical, text_of

# The demands of a definition on one kind of record, in a form in which equal demands are equal
# (MATCHING.md#constraints).
#
# *Strong* demands count for specificity: literals, and templates with their literal characters, with placeholders
# reduced to gaps. *Weak* ones only exclude records: presence, valid types, gaps that must be equal. Definitions with
# equal strong demands are equally specific on every record that both match, so lint uses them for its buckets. In
# doubt, demands are different: what is equal here is equal to the matcher.

_NEVER_EMPTY: Final = frozenset({"e.id", "e.source", "e.type"})
"""An event without one of these, or with an empty one, is invalid and matches no definition."""

Weakness = Literal["optional", "present", "gap"]
Gap = tuple[str, int]
"""The location of a placeholder: the key of its property and its number there."""


@dataclass(frozen=True, slots=True)
class Weak:
    """A demand that does not count for specificity; a ``gap`` is a template of a single placeholder."""

    kind: Weakness
    type: str

    def implied_by(self, other: Weak | None) -> bool:
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
    weak: tuple[tuple[str, Weak], ...]
    same: frozenset[frozenset[Gap]]
    content: str | None
    free: int = 0

    def implied_by(self, other: Demands) -> bool:
        """Whether every record that satisfies *other* satisfies this, if the strong demands are equal."""
        given = dict(other.weak)
        return (
            (self.content is None or self.content == other.content)
            and all(weak.implied_by(given.get(key)) for key, weak in self.weak)
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
    def meant_for_events(self) -> bool:
        """Whether the definition describes CloudEvents; otherwise it is for records of both kinds."""
        return self.envelope or not self.native

    def demands(self, *, events: bool) -> Demands:
        """Return the demands on events, or on other records."""
        written = self.definition.datacontenttype
        content = written.strip().lower() if written else None
        return _demands(list(self.properties(events=events)), content)

    def properties(self, *, events: bool) -> Iterator[tuple[str, Property]]:
        """Yield what filters such records here: attributes under ``e.NAME``, protocol options under ``p.PATH``."""
        if events and self.envelope:
            yield from ((f"e.{prop.name}", prop) for prop in self.definition.envelopemetadata)
        if self.protocol:
            options = self.definition.protocoloptions
            yield from ((f"p.{prop.name}", prop) for prop in options if not changes_by_hop(prop.name))


def candidate_of(definition: Definition, endpoint: Endpoint | None) -> Candidate | None:
    """Return the definition as a candidate of the endpoint; None if it can never match there."""
    scope = scope_of(definition, endpoint)
    default = endpoint.protocol if endpoint else None
    if scope is None or (default and definition.protocol not in (None, default)):
        return None
    return Candidate(definition, *scope)


def _demands(properties: list[tuple[str, Property]], content: str | None) -> Demands:
    strong: list[tuple[str, str, str, str]] = []
    weak: list[tuple[str, Weak]] = []
    gaps: dict[str, list[Gap]] = {}
    seen: dict[str, int] = {}
    free = 0
    for key, prop in properties:
        times = seen[key] = seen.get(key, 0) + 1
        place = key if times == 1 else f"{key}#{times}"
        tokens = _tokens(prop)
        for gap, name in enumerate(tokens[1::2]):
            gaps.setdefault(name, []).append((place, gap))
        if any(tokens[::2]) or len(tokens) > 3:
            strong.append((place, "template", "timestamp" if prop.type == "timestamp" else "", repr(tokens[::2])))
        elif prop.value is not None and not tokens and not is_now(prop):
            if key == "e.specversion" and prop.value in ("1.0", 1.0):
                free = 1
            else:
                strong.append((place, "literal", *_literal(prop)))
        else:
            demand = _weak(key, prop, gap=bool(tokens))
            if demand is not None:
                weak.append((place, demand))
    same = frozenset(frozenset(places) for places in gaps.values() if len(places) > 1)
    return Demands(tuple(sorted(strong)), tuple(sorted(weak, key=_place)), same, content, free)


def _place(entry: tuple[str, Weak]) -> str:
    return entry[0]


def _tokens(prop: Property) -> list[str]:
    """Return the tokens of a template; none for a value that is not a template."""
    if prop.value is None or prop.type not in TEMPLATE_TYPES or is_now(prop):
        return []
    text = text_of(prop.value)
    tokens = tokens_of(text) if "{" in text else []
    return tokens if len(tokens) > 1 else []


def _literal(prop: Property) -> tuple[str, str]:
    """Return kind and text of a literal: equal for literals that match the same texts."""
    text = text_of(prop.value)
    if prop.type in TYPED_LITERALS:
        return prop.type, str(canonical(prop.type, text) or text)
    return "", text


def _weak(key: str, prop: Property, *, gap: bool) -> Weak | None:
    """Return a weak demand; None for one that every record satisfies."""
    takes_any = prop.type in ("any", "string") or (prop.type == "binary" and key.startswith("p."))
    if gap:
        kind: Weakness = "gap"
        takes_any = prop.type != "timestamp"
    else:
        kind = "present" if prop.required or is_now(prop) else "optional"
    if takes_any and (kind == "optional" or key in _NEVER_EMPTY):
        return None
    return Weak(kind, "timestamp" if gap and prop.type == "timestamp" else "string" if gap else prop.type)


# The input of lint: the catalog, the declarations of its documents, and the documents themselves.


@dataclass(frozen=True, slots=True)
class DeclaredProperty:
    """One property of a definition that is not simply inherited; its location is determined only for a report."""

    definition: Definition
    message: DeclaredMessage
    prop: Property
    in_envelope: bool

    @property
    def place(self) -> SourceLocation:
        """Where the property is written; the message's own location if it is nowhere in it."""
        if self.in_envelope:
            place = attribute_place(self.message, self.prop.name)
        else:
            place = option_place(self.message, self.prop.name, self.definition.protocol)
        return place or self.message.place


@dataclass(frozen=True)
class Subject:
    """One load. Rules report to ``findings``; everything else is read-only."""

    catalog: Catalog
    declarations: Declarations
    documents: Sequence[Document]
    findings: Findings

    def definitions(self) -> Iterator[tuple[Definition, DeclaredMessage, Definition | None]]:
        """Yield every definition with its declaration and its nearest base, if that is a definition too."""
        for definition in self.catalog.definitions.values():
            base = self.catalog.definitions.get(definition.base[0]) if definition.base else None
            yield definition, self.declarations.messages[definition.xid], base

    def attributes(self) -> Iterator[DeclaredProperty]:
        """Yield the envelope attributes that are not simply inherited."""
        for definition, message, base in self.definitions():
            for prop in _new(definition.envelopemetadata, base.envelopemetadata if base else ()):
                yield DeclaredProperty(definition, message, prop, True)

    def options(self) -> Iterator[DeclaredProperty]:
        """Yield the protocol options that are not simply inherited."""
        for definition, message, base in self.definitions():
            for prop in _new(definition.protocoloptions, base.protocoloptions if base else ()):
                yield DeclaredProperty(definition, message, prop, False)

    @cached_property
    def endpoint_bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """The endpoints as written, by xid; the first counts if one is written twice."""
        bodies: dict[str, Mapping[str, Any]] = {}
        for tree in self._trees:
            for key, body in _members(tree, "endpoints").items():
                if isinstance(body, dict):
                    bodies.setdefault(f"/endpoints/{key}", body)
        return bodies

    @cached_property
    def groups_beside_endpoints(self) -> frozenset[str]:
        """Groups of documents that have endpoints too; the others may be listed by endpoints elsewhere."""
        with_endpoints = [tree for tree in self._trees if _members(tree, "endpoints")]
        names = spellings("groups")
        collections = (_members(tree, name) for tree in with_endpoints for name in tree if name.lower() in names)
        return frozenset(f"/messagegroups/{key}" for members in collections for key in members)

    @cached_property
    def dialects(self) -> Mapping[str, Dialect]:
        """The dialect of every document that is a catalog, by file."""
        trees = {each.file: each.tree for each in self.documents if isinstance(each.tree, dict)}
        return {file: dialect for file, tree in trees.items() if (dialect := detect(tree)) is not None}

    @property
    def _trees(self) -> list[dict[str, Any]]:
        return [document.tree for document in self.documents if isinstance(document.tree, dict)]


def _members(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    members = tree.get(name)
    return members if isinstance(members, dict) else {}


def _new(own: tuple[Property, ...], inherited: tuple[Property, ...]) -> Iterator[Property]:
    known = set(inherited)
    return (prop for prop in own if prop not in known)


MAX_KINDS: Final = 64
"""Most kinds of demands in a bucket that are compared with each other; if more, only equal ones are."""
LOOKED_AT: Final = 16
NAMED: Final = 3
Schema = tuple[str, ...] | None
_RANKS: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class CandidateFinding:
    """A finding about one definition."""

    severity: Severity
    rule: str
    text: str
    hint: str


@dataclass(slots=True)
class _Kind:
    """Candidates with equal demands and protocol, by data schema."""

    protocol: str | None
    demands: tuple[Demands, ...]
    members: dict[Schema, list[Definition]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Literals that count for specificity but exclude nothing."""
        return sum(each.free for each in self.demands)

    def covers(self, other: _Kind) -> bool:
        """Whether this matches everything that *other* matches, and is no less specific."""
        implied = all(mine.implied_by(its) for mine, its in zip(self.demands, other.demands, strict=True))
        return self is other or (self.protocol in (None, other.protocol) and self.free >= other.free and implied)


def candidates(subject: Subject) -> None:
    """Report definitions that never win, each once, for the first endpoint or group where that is worst."""
    worst: dict[str, tuple[CandidateFinding, list[str]]] = {}
    for scope, competing in _scopes(subject):
        for xid, verdict in verdicts(competing):
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


def _scopes(subject: Subject) -> Iterator[tuple[str, list[Candidate]]]:
    """Yield competing definitions: the candidates of each endpoint, and groups in documents without endpoints."""
    catalog = subject.catalog
    seen: set[tuple[tuple[str, ...], str | None, str | None]] = set()
    for endpoint in catalog.endpoints.values():
        key = (endpoint.candidates, endpoint.protocol, endpoint.envelope)
        if len(endpoint.candidates) > 1 and key not in seen:
            seen.add(key)
            yield endpoint.xid, _candidates(subject, endpoint.candidates, endpoint)
    listed = {group for endpoint in catalog.endpoints.values() for group in endpoint.messagegroups}
    for xid, members in catalog.groups.items():
        if len(members) > 1 and xid not in listed and xid not in subject.groups_beside_endpoints:
            yield xid, _candidates(subject, members, None)


def _candidates(subject: Subject, xids: Iterable[str], endpoint: Endpoint | None) -> list[Candidate]:
    possible = (candidate_of(subject.catalog.definitions[xid], endpoint) for xid in xids)
    return [candidate for candidate in possible if candidate is not None]


def verdicts(competing: Sequence[Candidate]) -> Iterator[tuple[str, CandidateFinding]]:
    """Yield the competing definitions that never win, each with its finding.

    Only records that a definition is meant for count: events if it has an envelope, else records of both kinds.
    """
    for events in (True, False):
        if all(each.meant_for_events != events for each in competing):
            continue
        buckets: dict[object, list[tuple[Candidate, tuple[Demands, ...]]]] = {}
        for candidate in competing:
            if events or candidate.native:
                demands = tuple(candidate.demands(events=each) for each in ((True,) if events else (False, True)))
                buckets.setdefault(tuple(each.strong for each in demands), []).append((candidate, demands))
        for bucket in buckets.values():
            if len(bucket) > 1:
                yield from _among(bucket, events=events)


def _among(
    bucket: list[tuple[Candidate, tuple[Demands, ...]]], *, events: bool
) -> Iterator[tuple[str, CandidateFinding]]:
    """Compare candidates with equal strong demands."""
    kinds: dict[object, _Kind] = {}
    for candidate, demands in bucket:
        kind = kinds.setdefault((candidate.protocol, demands), _Kind(candidate.protocol, demands))
        kind.members.setdefault(schema_of(candidate.definition), []).append(candidate.definition)
    rivals = {key: _rivals(kind, list(kinds.values())) for key, kind in kinds.items()}
    what = "event" if events else "record"
    for candidate, demands in bucket:
        if candidate.meant_for_events == events:
            key = (candidate.protocol, demands)
            verdict = _verdict(candidate.definition, kinds[key], rivals[key], what)
            if verdict is not None:
                yield candidate.definition.xid, verdict


def _rivals(kind: _Kind, kinds: list[_Kind]) -> list[_Kind]:
    """Return the kinds that cover *kind*, including itself; more specific ones first."""
    compared = kinds if len(kinds) <= MAX_KINDS else [kind]
    return sorted((other for other in compared if other.covers(kind)), key=lambda other: -other.free)


def _verdict(definition: Definition, kind: _Kind, rivals: list[_Kind], what: str) -> CandidateFinding | None:
    schema = schema_of(definition)
    tied: list[str] = []
    for other in rivals:
        preferred = other.free > kind.free
        for rival in _unrejecting(other, schema):
            if rival.xid == definition.xid:
                continue
            if preferred or definition.xid in rival.base:
                return _never_reached(rival, what)
            if rival.xid not in definition.base:
                tied.append(rival.xid)
    if tied:
        return _indistinguishable(tied, what)
    others = [rival.xid for other in rivals for rival in _rejecting(other, schema) if not _related(definition, rival)]
    return _by_schema_only(others) if others else None


def _unrejecting(kind: _Kind, schema: Schema) -> Iterator[Definition]:
    """Yield rivals that accept every body the definition accepts: without a schema, or with the same one."""
    for each in dict.fromkeys((None, schema)):
        yield from islice(kind.members.get(each, ()), LOOKED_AT)


def _rejecting(kind: _Kind, schema: Schema) -> Iterator[Definition]:
    others = (members for each, members in kind.members.items() if each is not None and each != schema)
    for members in islice(others, LOOKED_AT):
        yield members[0]


def _related(one: Definition, other: Definition) -> bool:
    return one.xid in other.base or other.xid in one.base


def schema_of(definition: Definition) -> Schema:
    """Return a key of a definition's data schema, loaded or not; None if it has none and accepts any body."""
    if definition.schemakey is not None:
        return ("loaded", definition.schemakey, definition.schemaname, definition.schemapointer)
    if definition.dataschemauri or definition.dataschemaxid:
        return ("named", definition.dataschemauri or "", definition.dataschemaxid or "")
    return ("inline", repr(definition.dataschema)) if definition.dataschema is not None else None


def _named(xids: list[str]) -> str:
    listed = list(dict.fromkeys(xids))
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def _indistinguishable(tied: list[str], what: str) -> CandidateFinding:
    text = f"every {what} that matches this also matches {_named(tied)}, equally specific, and is ambiguous"
    hint = "use different attributes, protocol options or data schemas, derive one from the other, or remove one"
    return CandidateFinding("warning", "indistinguishable", text, hint)


def _by_schema_only(others: list[str]) -> CandidateFinding:
    text = f"only its data schema differs from {_named(others)}; a body that is valid for both is ambiguous"
    return CandidateFinding("info", "indistinguishable", text, "use different attributes or protocol options")


def _never_reached(rival: Definition, what: str) -> CandidateFinding:
    text = f"{rival.xid} is preferred for every {what} that matches this"
    return CandidateFinding("info", "never-reached", text, "list only one of them, unless this is meant as a base")
