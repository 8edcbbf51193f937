"""Definitions that cannot win among the candidates of an endpoint, or of a group without endpoints.

One rule decides (JUDGING.md#specificity): a definition loses every record that also matches a candidate which is as
specific and does not reject the body. Comparing all pairs would take hours for large catalogs. But such a candidate has
the same strong demands, so definitions are bucketed by those, and within a bucket by the rest; only the few kinds of
demands in one bucket are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from catalog.definitions.demands import Candidate, Demands, candidate_of
from catalog.definitions.subject import Subject
from catalog.model import Definition, Endpoint, Severity

MAX_KINDS: Final = 64
"""Kinds of demands in one bucket that are compared with each other; of more, only equal ones are."""
LOOKED_AT: Final = 16
NAMED: Final = 3
Schema = tuple[str, ...] | None
_RANKS: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be reported about one definition."""

    severity: Severity
    rule: str
    text: str
    hint: str


@dataclass(slots=True)
class _Kind:
    """Candidates of equal demands and protocol, by data schema."""

    protocol: str | None
    demands: tuple[Demands, ...]
    members: dict[Schema, list[Definition]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Literals that count for specificity and exclude nothing."""
        return sum(each.free for each in self.demands)

    def covers(self, other: _Kind) -> bool:
        """Tell whether this matches whatever *other* matches, and is no less specific."""
        implied = all(mine.implied_by(its) for mine, its in zip(self.demands, other.demands, strict=True))
        return self is other or (self.protocol in (None, other.protocol) and self.free >= other.free and implied)


def candidates(subject: Subject) -> None:
    """Report definitions that never win, each once, for the first endpoint or group where that is worst."""
    worst: dict[str, tuple[Verdict, list[str]]] = {}
    for scope, competing in _scopes(subject):
        for xid, verdict in verdicts(competing):
            if verdict.rule == "never-reached" and scope in subject.catalog.groups:
                continue  # a group may well hold bases beside what derives from them
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
    """Give what competes: the candidates of each endpoint, and of groups in documents without endpoints."""
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


def verdicts(competing: Sequence[Candidate]) -> Iterator[tuple[str, Verdict]]:
    """Give the definitions among competing ones that never win, each with its verdict.

    Judged are the records that a definition is meant for: events when it has an envelope, else records of both kinds.
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


def _among(bucket: list[tuple[Candidate, tuple[Demands, ...]]], *, events: bool) -> Iterator[tuple[str, Verdict]]:
    """Judge candidates of equal strong demands."""
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
    """Return the kinds that cover *kind*, itself among them; more specific ones first."""
    compared = kinds if len(kinds) <= MAX_KINDS else [kind]
    return sorted((other for other in compared if other.covers(kind)), key=lambda other: -other.free)


def _verdict(definition: Definition, kind: _Kind, rivals: list[_Kind], what: str) -> Verdict | None:
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
    """Give rivals that take every body the definition takes: without a schema, or with the same one."""
    for each in dict.fromkeys((None, schema)):
        yield from islice(kind.members.get(each, ()), LOOKED_AT)


def _rejecting(kind: _Kind, schema: Schema) -> Iterator[Definition]:
    others = (members for each, members in kind.members.items() if each is not None and each != schema)
    for members in islice(others, LOOKED_AT):
        yield members[0]


def _related(one: Definition, other: Definition) -> bool:
    return one.xid in other.base or other.xid in one.base


def schema_of(definition: Definition) -> Schema:
    """Name the data schema of a definition, loaded or not; None when it has none and takes any body."""
    if definition.schemakey is not None:
        return ("loaded", definition.schemakey, definition.schemaname, definition.schemapointer)
    if definition.dataschemauri or definition.dataschemaxid:
        return ("named", definition.dataschemauri or "", definition.dataschemaxid or "")
    return ("inline", repr(definition.dataschema)) if definition.dataschema is not None else None


def _named(xids: list[str]) -> str:
    listed = list(dict.fromkeys(xids))
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def _indistinguishable(tied: list[str], what: str) -> Verdict:
    text = f"every {what} that matches this also matches {_named(tied)}, no less specific, and so is ambiguous"
    hint = "let an attribute, a protocol option or the data schema differ, derive one from the other, or remove one"
    return Verdict("warning", "indistinguishable", text, hint)


def _by_schema_only(others: list[str]) -> Verdict:
    text = f"only its data schema tells this from {_named(others)}; a body that fits both is ambiguous"
    return Verdict("info", "indistinguishable", text, "let an attribute or a protocol option differ")


def _never_reached(rival: Definition, what: str) -> Verdict:
    text = f"{rival.xid} is preferred for every {what} that matches this"
    return Verdict("info", "never-reached", text, "list only one of them, unless this is meant as a base")
