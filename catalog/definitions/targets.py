"""Targets: definitions as one endpoint sees them, with the constraints that decide each kind of record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from catalog.definitions.constraints import (
    CONTENT,
    Constraint,
    content_constraint,
    envelope_constraints,
    property_of,
    protocol_constraints,
)
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint

Keyed = tuple[str, Constraint]


@dataclass(frozen=True, eq=False)
class Target:
    """One candidate. ``protocol`` restricts it (None: any protocol).

    ``event`` are the constraints on a record that is a CloudEvent, ``native`` those on one that is not; None means
    that records of that kind never match it (JUDGING.md#matching).
    """

    definition: Definition
    protocol: str | None
    envelope: bool
    event: tuple[Keyed, ...] | None
    native: tuple[Keyed, ...] | None

    @property
    def xid(self) -> str:
        """The xid of the definition."""
        return self.definition.xid

    @cached_property
    def event_rank(self) -> tuple[int, int]:
        """Specificity as tested on a CloudEvent: properties with literals, then literal characters in templates."""
        return rank(self.event or ())

    @cached_property
    def native_rank(self) -> tuple[int, int]:
        """Specificity as tested on a native record."""
        return rank(self.native or ())

    def constraints(self, *, event: bool) -> tuple[Keyed, ...] | None:
        """Return the constraints for one kind of record."""
        return self.event if event else self.native


def rank(constraints: Iterable[Keyed]) -> tuple[int, int]:
    """Count properties constrained by literals, and literal characters in templates (JUDGING.md#specificity)."""
    literals = {
        property_of(key)
        for key, constraint in constraints
        if constraint.counts and constraint.kind in ("literal", "media")
    }
    characters = sum(c.template.literal_characters for _, c in constraints if c.kind == "template")
    return len(literals), characters


class Scope(NamedTuple):
    """What of a definition holds at an endpoint, by its own words and the endpoint's defaults, which apply there only.

    ``protocol`` restricts it (None: any protocol), ``envelope`` tells that it declares the attributes of events, and
    ``native`` that records which are no events can match it: a default protocol alone describes none.
    """

    protocol: str | None
    envelope: bool
    native: bool


def scope_of(definition: Definition, endpoint: Endpoint | None) -> Scope | None:
    """Return what holds at an endpoint, or without any; None for a definition of an envelope that is unknown."""
    envelope = definition.envelope or (endpoint.envelope if endpoint else None)
    if envelope is not None and envelope != CLOUDEVENTS:
        return None
    protocol = definition.protocol or (endpoint.protocol if endpoint else None)
    declared = definition.protocol is not None and definition.protocol_declared
    describes = declared or bool(definition.protocoloptions and protocol)
    return Scope(protocol, envelope is not None, describes or (envelope is None and protocol is None))


def target_of(definition: Definition, endpoint: Endpoint | None, *, hop_by_hop: bool = False) -> Target | None:
    """Return the definition as a candidate of that endpoint; None when it can never match.

    A default protocol, of group or endpoint, restricts; without protocol options of its own the definition then still
    needs a CloudEvent.
    """
    scope = scope_of(definition, endpoint)
    if scope is None:
        return None
    protocol = scope.protocol
    content = content_constraint(definition)
    common: tuple[Keyed, ...] = ((CONTENT, content),) if content else ()
    options = tuple(protocol_constraints(definition, protocol, hop_by_hop=hop_by_hop)) if protocol else ()
    attributes = tuple(envelope_constraints(definition)) if scope.envelope else ()
    native = (*options, *common) if scope.native else None
    return Target(definition, protocol, scope.envelope, (*attributes, *options, *common), native)


def targets_of(catalog: Catalog, endpoint: Endpoint, *, hop_by_hop: bool = False) -> list[Target]:
    """Return the candidates of one endpoint, in the order of the endpoint."""
    targets = (
        target_of(catalog.definitions[xid], endpoint, hop_by_hop=hop_by_hop)
        for xid in endpoint.candidates
        if xid in catalog.definitions
    )
    return [target for target in targets if target is not None]
