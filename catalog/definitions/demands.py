"""What a definition asks of one kind of record, in a form in which equal demands are equal (JUDGING.md#constraints).

Two parts. *Strong* demands are what specificity counts: literals, and templates with their literal characters, with
placeholders reduced to gaps. *Weak* ones only exclude records: presence, valid types, gaps that must hold the same.
Definitions of equal strong demands are equally specific on every record that both match, which is why lint buckets by
them. All of it errs on the side of different: what is called equal here is equal to the matcher.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from catalog.definitions.constraints import TYPED_LITERALS, is_now
from catalog.definitions.targets import scope_of
from catalog.model import Definition, Endpoint, Property
from catalog.protocols.properties import changes_by_hop
from catalog.templates import TEMPLATE_TYPES, tokens_of
from catalog.values import canonical, text_of

_NEVER_EMPTY: Final = frozenset({"e.id", "e.source", "e.type"})
"""An event without one of these, or with it empty, is no valid event and reaches no definition."""

Weakness = Literal["optional", "present", "gap"]
Gap = tuple[str, int]
"""A placeholder's place: the key of its property and its number therein."""


@dataclass(frozen=True, slots=True)
class Weak:
    """A demand that specificity does not count; a ``gap`` is a template that is one placeholder and nothing else."""

    kind: Weakness
    type: str

    def implied_by(self, other: Weak | None) -> bool:
        """Tell whether every value that satisfies *other* (None: no demand) satisfies this."""
        if self == other:
            return True
        if other is None or self.kind == "gap":
            return False
        if self.kind == "optional":
            return other.type == self.type and (other.kind == "present" or self.type == "timestamp")
        if other.kind == "optional":
            return False
        if other.kind == "gap":  # takes any text but none, and a timestamp only when it is one
            return self.type in ("any", "string") or self.type == other.type == "timestamp"
        return self.type == "any" or (self.type == "string" and other.type not in ("any", "binary"))


@dataclass(frozen=True, slots=True)
class Demands:
    """What one definition asks of events, or of native records.

    ``strong`` is hashable and sorted; ``free`` counts literals that every event has (specversion). ``same`` are groups
    of gaps that must hold the same value. ``content`` is that of JUDGING.md#content-type.
    """

    strong: Hashable
    weak: tuple[tuple[str, Weak], ...]
    same: frozenset[frozenset[Gap]]
    content: str | None
    free: int = 0

    def implied_by(self, other: Demands) -> bool:
        """Tell whether every record that satisfies *other* satisfies this, given that the strong demands are equal."""
        given = dict(other.weak)
        return (
            (self.content is None or self.content == other.content)
            and all(weak.implied_by(given.get(key)) for key, weak in self.weak)
            and all(any(group <= wider for wider in other.same) for group in self.same)
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A definition as one endpoint sees it: with its defaults, which apply there only.

    ``protocol`` restricts it (None: any). ``envelope`` tells that it declares the attributes of events, ``native`` that
    records which are no events can match it: a default protocol alone describes none.
    """

    definition: Definition
    protocol: str | None
    envelope: bool
    native: bool

    @property
    def meant_for_events(self) -> bool:
        """Whether the definition describes CloudEvents; else it is for records of both kinds."""
        return self.envelope or not self.native

    def demands(self, *, events: bool) -> Demands:
        """Return what it asks of events, or of records that are none."""
        written = self.definition.datacontenttype
        content = written.strip().lower() if written else None
        return _demands(list(self.properties(events=events)), content)

    def properties(self, *, events: bool) -> Iterator[tuple[str, Property]]:
        """Give what filters such records here: attributes under ``e.NAME``, protocol options under ``p.PATH``."""
        if events and self.envelope:
            yield from ((f"e.{prop.name}", prop) for prop in self.definition.envelopemetadata)
        if self.protocol:
            options = self.definition.protocoloptions
            yield from ((f"p.{prop.name}", prop) for prop in options if not changes_by_hop(prop.name))


def candidate_of(definition: Definition, endpoint: Endpoint | None) -> Candidate | None:
    """Return the definition as a candidate of the endpoint; None when it can never match there."""
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
    """Return the tokens of a template; none for a value that is no template."""
    if prop.value is None or prop.type not in TEMPLATE_TYPES or is_now(prop):
        return []
    text = text_of(prop.value)
    tokens = tokens_of(text) if "{" in text else []
    return tokens if len(tokens) > 1 else []


def _literal(prop: Property) -> tuple[str, str]:
    """Return kind and text of a literal: equal for values that the same texts equal."""
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
