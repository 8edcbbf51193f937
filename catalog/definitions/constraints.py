"""Constraints of definitions on properties, and the candidates that matching compares (MATCHING.md#constraints)."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

from catalog.model import CLOUDEVENTS, Definition, Endpoint, Property, PropertyType
from catalog.protocols.properties import CONTENT_TYPES, is_dotted, is_hop_by_hop
from catalog.templates import TEMPLATE_TYPES, Template, parse_template
from catalog.values import (
    decode_binary,
    is_any_timestamp,
    is_timestamp,
    is_valid,
    media_type_matches,
    percent_decode,
    to_text,
    value_key,
)

# One constraint on one property, evaluated one value at a time (MATCHING.md#constraints).
#
# The vectorised equivalence classes of ``classes`` are built from these and must agree; explanations use them directly.

Kind = Literal["literal", "media", "template", "present", "optional"]
TYPED_LITERALS: Final = frozenset({"number", "integer", "boolean", "timestamp", "binary"})
ANY_BYTES: Final = frozenset({"any", "binary"})
"""Types that accept values which are not text."""
MEDIA_PROPERTIES: Final = frozenset({"e.datacontenttype", *(f"p.{option}" for option in CONTENT_TYPES)})
"""Keys whose values are compared as media types."""
BASE64_KEY: Final = "key_base64"
CONTENT_TYPE_KEY: Final = "d"
"""The key of the data's content type, in any content mode (MATCHING.md#content-type)."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A definition's constraint on one property.

    ``value`` is the literal or template as text. ``optional`` allows an absent value. ``counts`` is False if it does
    not count for specificity. ``dots`` ends placeholders at dots too (NATS subjects); ``bits32`` marks CloudEvents
    attributes, whose integers are limited and whose binary is base64.
    """

    kind: Kind
    type: PropertyType
    value: str | None = None
    optional: bool = False
    counts: bool = True
    dots: bool = False
    bits32: bool = False

    @property
    def template(self) -> Template:
        """The parsed template of a ``template`` constraint."""
        return parse_cached_template(self.value or "", self.dots)

    @property
    def accepts_any_text(self) -> bool:
        """Whether every text is valid for the type. ``binary`` of a protocol is any bytes, of an attribute base64."""
        return self.type in ("any", "string") or (self.type == "binary" and not self.bits32)

    @property
    def is_exact(self) -> bool:
        """Whether a literal is equal to its own text only. Bytes of a protocol have one base64 spelling."""
        return self.type not in TYPED_LITERALS or (self.type == "binary" and not self.bits32)

    @property
    def decodes(self) -> bool:
        """Whether extracted values are percent-decoded."""
        return self.type == "uritemplate"

    @property
    def expected(self) -> str:
        """The expected value, as shown in explanations."""
        if self.kind == "present":
            return f"any {self.type}" if self.value is None else f"any {self.type} (now)"
        if self.kind == "optional":
            return f"absent, or a valid {self.type}"
        return self.value or ""

    def placeholder_values(self, text: str | None) -> dict[str, str]:
        """Return the values of a template's placeholders; empty if the text does not match."""
        taken = self.template.match(text, decode=self.decodes) if self.kind == "template" and text is not None else None
        return {name: percent_decode(value) if self.decodes else value for name, value in (taken or {}).items()}

    def satisfied(self, text: str | None, *, present: bool) -> bool:
        """Evaluate one value. ``text`` is None if the value is absent, or if it is ``present`` but not text."""
        if not present:
            return self.optional
        if text is None:
            return self.kind in ("present", "optional") and self.type in ANY_BYTES
        if self.kind == "literal":
            return literals_equal(self.type, self.value or "", text)
        if self.kind == "media":
            return media_type_matches(self.value or "", text)
        if self.kind == "template":
            if self.type == "timestamp" and not is_timestamp(text):
                return False
            return self.template.match(text, decode=self.decodes) is not None
        return self.accepts_any_text or is_valid(self.type, text, bits32=self.bits32)


@functools.lru_cache(maxsize=65536)
def parse_cached_template(value: str, dots: bool) -> Template:
    """Parse a template, cached by its text."""
    return parse_template(value, dots=dots)


def literals_equal(kind: PropertyType, value: str, text: str) -> bool:
    """Whether a literal equals a value, compared by the property's type."""
    if kind not in TYPED_LITERALS:
        return value == text
    wanted = value_key(kind, value)
    return value == text or (wanted is not None and wanted == value_key(kind, text))


def envelope_constraints(definition: Definition) -> Iterator[tuple[str, Constraint]]:
    """Yield (``e.NAME``, constraint) for each attribute that a definition declares."""
    for prop in definition.envelopemetadata:
        yield f"e.{prop.name}", attribute_constraint(prop)


def attribute_constraint(prop: Property) -> Constraint:
    """Return the constraint of a declared attribute on an event's attribute."""
    return constraint_of(f"e.{prop.name}", prop, bits32=True)


def protocol_constraints(
    definition: Definition, protocol: str, *, hop_by_hop: bool
) -> Iterator[tuple[str, Constraint]]:
    """Yield (``p.PATH``, constraint) for each option of a definition that *protocol* has.

    Binary options have the key ``b.PATH``: the bytes of a value of any type as base64 text.
    Hop-by-hop properties are left out unless requested (MATCHING.md#hop-by-hop-properties).
    """
    for prop in definition.protocoloptions:
        if is_hop_by_hop(prop.name) and not hop_by_hop:
            continue
        key = f"p.{prop.name}"
        if prop.type == "binary" and key not in MEDIA_PROPERTIES:
            yield _bytes_constraint(prop)
            continue
        yield key, constraint_of(key, prop, dots=is_dotted(protocol, prop.name))


def property_key_of(key: str) -> str:
    """Return the ``p.PATH`` key of a ``b.PATH`` key, any other key unchanged."""
    return f"p.{key[2:]}" if key.startswith("b.") else key


def content_constraint(definition: Definition) -> Constraint | None:
    """Return the constraint on the key ``d``; None if the definition has no content type."""
    if not definition.datacontenttype:
        return None
    return Constraint("media", "string", definition.datacontenttype, optional=True, counts=False)


def _bytes_constraint(prop: Property) -> tuple[str, Constraint]:
    key = f"p.{prop.name}" if prop.name == BASE64_KEY else f"b.{prop.name}"
    if prop.value is None:
        return key, constraint_of(key, prop)
    return key, Constraint("literal", "binary", base64.b64encode(decode_binary(to_text(prop.value))).decode("ascii"))


def is_now(prop: Property) -> bool:
    """Whether the value is a timestamp that means any time."""
    return prop.type == "timestamp" and is_any_timestamp(prop.value)


def constraint_of(key: str, prop: Property, *, dots: bool = False, bits32: bool = False) -> Constraint:
    """Return the constraint of a property on the value of *key*; the flags are as in :class:`Constraint`."""
    if prop.value is None:
        kind: Kind = "present" if prop.required else "optional"
        return Constraint(kind, prop.type, optional=not prop.required, counts=False, bits32=bits32)
    value = to_text(prop.value)
    if is_now(prop):
        return Constraint("present", "timestamp", value, counts=False)
    if prop.type in TEMPLATE_TYPES and not parse_cached_template(value, dots).is_literal:
        return Constraint("template", prop.type, value, dots=dots)
    if key in MEDIA_PROPERTIES:
        return Constraint("media", prop.type, value)
    return Constraint("literal", prop.type, value, bits32=bits32)


# Candidates: definitions as one endpoint sees them, with their constraints on each kind of record.

KeyedConstraint = tuple[str, Constraint]


@dataclass(frozen=True, eq=False)
class MatchCandidate:
    """One candidate. ``protocol`` restricts it (None: any protocol).

    ``event`` are the constraints on CloudEvents, ``native`` those on other records; None means that records of that
    kind never match it (MATCHING.md#matching).
    """

    definition: Definition
    protocol: str | None
    envelope: bool
    event: tuple[KeyedConstraint, ...] | None
    native: tuple[KeyedConstraint, ...] | None

    @property
    def xid(self) -> str:
        """The xid of the definition."""
        return self.definition.xid

    @cached_property
    def event_rank(self) -> tuple[int, int]:
        """The specificity on CloudEvents: properties with literals, then literal characters in templates."""
        return specificity_of(self.event or ())

    @cached_property
    def native_rank(self) -> tuple[int, int]:
        """The specificity on native records."""
        return specificity_of(self.native or ())

    def constraints(self, *, event: bool) -> tuple[KeyedConstraint, ...] | None:
        """Return the constraints for one kind of record."""
        return self.event if event else self.native


def specificity_of(constraints: Iterable[KeyedConstraint]) -> tuple[int, int]:
    """Count properties constrained by literals, and literal characters in templates (MATCHING.md#specificity)."""
    literals = {
        property_key_of(key)
        for key, constraint in constraints
        if constraint.counts and constraint.kind in ("literal", "media")
    }
    characters = sum(c.template.literal_characters for _, c in constraints if c.kind == "template")
    return len(literals), characters


class EndpointScope(NamedTuple):
    """The protocol and kinds of records of a definition at one endpoint, including the endpoint's defaults.

    ``protocol`` restricts it (None: any protocol), ``envelope`` says whether it declares event attributes, and
    ``native`` whether records that are not events can match it: a default protocol alone describes none.
    """

    protocol: str | None
    envelope: bool
    native: bool


def scope_of(definition: Definition, endpoint: Endpoint | None) -> EndpointScope | None:
    """Return the scope of a definition at *endpoint* (None: without one); None if its envelope is unknown."""
    envelope = definition.envelope or (endpoint.envelope if endpoint else None)
    if envelope is not None and envelope != CLOUDEVENTS:
        return None
    protocol = definition.protocol or (endpoint.protocol if endpoint else None)
    declared = definition.protocol is not None and definition.protocol_declared
    describes = declared or bool(definition.protocoloptions and protocol)
    return EndpointScope(protocol, envelope is not None, describes or (envelope is None and protocol is None))


def match_candidate_of(
    definition: Definition, endpoint: Endpoint | None, *, hop_by_hop: bool = False
) -> MatchCandidate | None:
    """Return the definition as a candidate of *endpoint*; None if it can never match.

    A default protocol of a group or endpoint only restricts: without protocol options of its own, the definition still
    matches CloudEvents only.
    """
    scope = scope_of(definition, endpoint)
    return None if scope is None else candidate_in_scope(definition, scope, hop_by_hop=hop_by_hop)


def candidate_in_scope(definition: Definition, scope: EndpointScope, *, hop_by_hop: bool = False) -> MatchCandidate:
    """Return the definition as a candidate in that scope."""
    protocol = scope.protocol
    content = content_constraint(definition)
    common: tuple[KeyedConstraint, ...] = ((CONTENT_TYPE_KEY, content),) if content else ()
    options = tuple(protocol_constraints(definition, protocol, hop_by_hop=hop_by_hop)) if protocol else ()
    attributes = tuple(envelope_constraints(definition)) if scope.envelope else ()
    native = (*options, *common) if scope.native else None
    return MatchCandidate(definition, protocol, scope.envelope, (*attributes, *options, *common), native)
