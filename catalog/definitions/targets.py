"""Targets: definitions as one endpoint sees them, with the constraints that decide each kind of record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

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
    that records of that kind never match it (semantics.md section 5).
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
    """Count properties constrained by literals, and literal characters in templates (section 5, rule b)."""
    literals = {
        property_of(key)
        for key, constraint in constraints
        if constraint.counts and constraint.kind in ("literal", "media")
    }
    characters = sum(c.template.literal_characters for _, c in constraints if c.kind == "template")
    return len(literals), characters


def target_of(definition: Definition, endpoint: Endpoint | None, *, hop_by_hop: bool = False) -> Target | None:
    """Return the definition as a candidate of that endpoint; None when it can never match.

    The endpoint's envelope and protocol are defaults that apply there only. A default protocol, of group or
    endpoint, restricts; without protocol options of its own the definition then still needs a CloudEvent.
    """
    envelope = definition.envelope or (endpoint.envelope if endpoint else None)
    if envelope is not None and envelope != CLOUDEVENTS:
        return None
    protocol = definition.protocol
    declared = protocol is not None and definition.protocol_declared
    if protocol is None and endpoint is not None:
        protocol = endpoint.protocol
    content = content_constraint(definition)
    common: tuple[Keyed, ...] = ((CONTENT, content),) if content else ()
    options = tuple(protocol_constraints(definition, protocol, hop_by_hop=hop_by_hop)) if protocol else ()
    describes = declared or bool(definition.protocoloptions and protocol)
    attributes = tuple(envelope_constraints(definition)) if envelope else ()
    event = (*attributes, *options, *common)
    native = (*options, *common) if describes or (envelope is None and protocol is None) else None
    return Target(definition, protocol, envelope is not None, event, native)


def targets_of(catalog: Catalog, endpoint: Endpoint, *, hop_by_hop: bool = False) -> list[Target]:
    """Return the candidates of one endpoint, in the order of the endpoint."""
    found = (
        target_of(catalog.definitions[xid], endpoint, hop_by_hop=hop_by_hop)
        for xid in endpoint.candidates
        if xid in catalog.definitions
    )
    return [target for target in found if target is not None]
