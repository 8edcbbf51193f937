"""Constraints on properties (JUDGING.md"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property, PropertyType
from catalog.protocols.properties import CONTENT_TYPES, changes_by_hop, is_dotted
from catalog.templates import TEMPLATE_TYPES, Template, parse
from catalog.values import (
    binary_value,
    canonical,
    is_any_timestamp,
    is_timestamp,
    is_valid,
    media_type_matches,
    percent_decode,
    text_of,
)

# One constraint on one property: the rules of JUDGING.md#constraints, for one value at a time.
#
# The vectorised classes of ``classes`` are built from these and must agree with them; explanations ask them directly.

Kind = Literal["literal", "media", "template", "present", "optional"]
TYPED_LITERALS: Final = frozenset({"number", "integer", "boolean", "timestamp", "binary"})
ANY_BYTES: Final = frozenset({"any", "binary"})
"""Types that a value which is no text satisfies as well."""
MEDIA_PROPERTIES: Final = frozenset({"e.datacontenttype", *(f"p.{option}" for option in CONTENT_TYPES)})
"""Keys whose values are compared as media types."""
BASE64_KEY: Final = "key_base64"
CONTENT: Final = "d"
"""The key of the content type of the data, whatever the mode (JUDGING.md#content-type)."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a definition asks of one property.

    ``value`` is the literal or template as text. ``optional`` lets an absent value pass. ``counts`` is False for
    what specificity leaves out. ``dots`` ends placeholders at dots too (NATS subjects); ``bits32`` marks CloudEvents
    attributes, whose integers are bounded and whose binary is base64.
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
        return template_of(self.value or "", self.dots)

    @property
    def takes_any_text(self) -> bool:
        """Whether every text is valid for the type. Any bytes are ``binary`` to a protocol; an attribute is base64."""
        return self.type in ("any", "string") or (self.type == "binary" and not self.bits32)

    @property
    def is_exact(self) -> bool:
        """Whether a literal is equal to its own text only. Bytes of a protocol come as base64 in one spelling."""
        return self.type not in TYPED_LITERALS or (self.type == "binary" and not self.bits32)

    @property
    def decodes(self) -> bool:
        """Whether values taken out are percent-decoded."""
        return self.type == "uritemplate"

    @property
    def expected(self) -> str:
        """What an explanation says was expected."""
        if self.kind == "present":
            return f"any {self.type}" if self.value is None else f"any {self.type} (now)"
        if self.kind == "optional":
            return f"absent, or a valid {self.type}"
        return self.value or ""

    def captured(self, text: str | None) -> dict[str, str]:
        """Return what the placeholders of a template take from a value that fits it; nothing from any other."""
        taken = self.template.match(text, decode=self.decodes) if self.kind == "template" and text is not None else None
        return {name: percent_decode(value) if self.decodes else value for name, value in (taken or {}).items()}

    def satisfied(self, text: str | None, *, present: bool) -> bool:
        """Decide one value: ``text`` is None for an absent value, or with ``present`` for one that is no text."""
        if not present:
            return self.optional
        if text is None:
            return self.kind in ("present", "optional") and self.type in ANY_BYTES
        if self.kind == "literal":
            return literal_equal(self.type, self.value or "", text)
        if self.kind == "media":
            return media_type_matches(self.value or "", text)
        if self.kind == "template":
            if self.type == "timestamp" and not is_timestamp(text):
                return False
            return self.template.match(text, decode=self.decodes) is not None
        return self.takes_any_text or is_valid(self.type, text, bits32=self.bits32)


@functools.lru_cache(maxsize=65536)
def template_of(value: str, dots: bool) -> Template:
    """Parse a template once per text."""
    return parse(value, dots=dots)


def literal_equal(kind: PropertyType, value: str, text: str) -> bool:
    """Compare a literal with a found value in the property's type."""
    if kind not in TYPED_LITERALS:
        return value == text
    wanted = canonical(kind, value)
    return value == text or (wanted is not None and wanted == canonical(kind, text))


def envelope_constraints(definition: Definition) -> Iterator[tuple[str, Constraint]]:
    """Yield (key, constraint) for the attributes that a definition declares, keys ``e.NAME``."""
    for prop in definition.envelopemetadata:
        yield f"e.{prop.name}", attribute_constraint(prop)


def attribute_constraint(prop: Property) -> Constraint:
    """Return what a declared attribute asks of the one that an event has."""
    return constraint_of(f"e.{prop.name}", prop, bits32=True)


def protocol_constraints(
    definition: Definition, protocol: str, *, hop_by_hop: bool
) -> Iterator[tuple[str, Constraint]]:
    """Yield (key, constraint) for the options of a definition that *protocol* carries, keys ``p.PATH``.

    Those of type binary are looked for under ``b.PATH``: the bytes of a value, whatever it is, as base64 text.
    Properties that change hop by hop are left out unless asked for (JUDGING.md#hop-by-hop-properties).
    """
    for prop in definition.protocoloptions:
        if changes_by_hop(prop.name) and not hop_by_hop:
            continue
        key = f"p.{prop.name}"
        if prop.type == "binary" and key not in MEDIA_PROPERTIES:
            yield _of_bytes(prop)
            continue
        yield key, constraint_of(key, prop, dots=is_dotted(protocol, prop.name))


def property_of(key: str) -> str:
    """Return the key of the property that a key looks at: ``b.PATH`` and ``p.PATH`` are of one."""
    return f"p.{key[2:]}" if key.startswith("b.") else key


def content_constraint(definition: Definition) -> Constraint | None:
    """Return the constraint on the key ``d``; None when the definition sets no content type."""
    if not definition.datacontenttype:
        return None
    return Constraint("media", "string", definition.datacontenttype, optional=True, counts=False)


def _of_bytes(prop: Property) -> tuple[str, Constraint]:
    key = f"p.{prop.name}" if prop.name == BASE64_KEY else f"b.{prop.name}"
    if prop.value is None:
        return key, constraint_of(key, prop)
    return key, Constraint("literal", "binary", base64.b64encode(binary_value(text_of(prop.value))).decode("ascii"))


def is_now(prop: Property) -> bool:
    """Tell the value that stands for any time."""
    return prop.type == "timestamp" and is_any_timestamp(prop.value)


def constraint_of(key: str, prop: Property, *, dots: bool = False, bits32: bool = False) -> Constraint:
    """Return what a property asks of the value under *key*; the flags are as :class:`Constraint` has them."""
    if prop.value is None:
        kind: Kind = "present" if prop.required else "optional"
        return Constraint(kind, prop.type, optional=not prop.required, counts=False, bits32=bits32)
    value = text_of(prop.value)
    if is_now(prop):
        return Constraint("present", "timestamp", value, counts=False)
    if prop.type in TEMPLATE_TYPES and not template_of(value, dots).is_literal:
        return Constraint("template", prop.type, value, dots=dots)
    if key in MEDIA_PROPERTIES:
        return Constraint("media", prop.type, value)
    return Constraint("literal", prop.type, value, bits32=bits32)


# Targets: definitions as one endpoint sees them, with the constraints that decide each kind of record.

Keyed = tuple[str, Constraint]


@dataclass(frozen=True, eq=False)
class MatchCandidate:
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


def target_of(definition: Definition, endpoint: Endpoint | None, *, hop_by_hop: bool = False) -> MatchCandidate | None:
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
    return MatchCandidate(definition, protocol, scope.envelope, (*attributes, *options, *common), native)


def targets_of(catalog: Catalog, endpoint: Endpoint, *, hop_by_hop: bool = False) -> list[MatchCandidate]:
    """Return the candidates of one endpoint, in the order of the endpoint."""
    targets = (
        target_of(catalog.definitions[xid], endpoint, hop_by_hop=hop_by_hop)
        for xid in endpoint.candidates
        if xid in catalog.definitions
    )
    return [target for target in targets if target is not None]
