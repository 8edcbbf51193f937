"""Constraints of definitions on properties: what satisfies, includes and exemplifies them (MATCHING.md#constraints).

Matching, its explanations, lint and ``catalog diff`` all use them.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple

from catalog.model import CLOUDEVENTS, Definition, Endpoint, Property, PropertyType
from catalog.protocols.properties import CONTENT_TYPES, REPEATED_PREFIXES, is_dotted, is_hop_by_hop
from catalog.templates import TEMPLATE_TYPES, Template, TemplateSegment, parse_template
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


class Constraint(NamedTuple):
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
    def accepts_bytes(self) -> bool:
        """Whether a value that is not text is accepted. Event attributes are always text."""
        return self.is_bytes or (self.is_open and self.type in ANY_BYTES and not self.bits32)

    @property
    def is_bytes(self) -> bool:
        """Whether it is a binary literal of a protocol: raw bytes."""
        return self.kind == "literal" and self.type == "binary" and not self.bits32

    @property
    def is_open(self) -> bool:
        """Whether any valid value is accepted."""
        return self.kind in ("present", "optional")

    @property
    def has_one_text(self) -> bool:
        """Whether it is a literal that equals only its own text."""
        typed = self.type in TYPED_LITERALS and value_key(self.type, self.value or "") is not None
        return self.kind == "literal" and not typed and not self.is_bytes

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
            return self.is_open and self.type in ANY_BYTES
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
def parse_cached_template(value: str, dots: bool, literal: bool = False) -> Template:
    """Parse a template, cached by its text."""
    return parse_template(value, dots=dots, literal=literal)


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
    if "{" in value and prop.type in TEMPLATE_TYPES and not parse_cached_template(value, dots).is_literal:
        return Constraint("template", prop.type, value, dots=dots)
    if key in MEDIA_PROPERTIES:
        return Constraint("media", prop.type, value)
    return Constraint("literal", prop.type, value, bits32=bits32)


KeyedConstraint = tuple[str, Constraint]
Demands = Mapping[str, Sequence[Constraint]]
"""Constraints by property; an empty or absent property is not constrained."""

# Inclusion: is every record that satisfies some constraints sure to satisfy others?
#
# "Yes" is certain (a test checks it with the matcher); "no" means "not proven".

ALWAYS_THERE: Final = frozenset({"e.id", "e.source", "e.type", "e.specversion"})
_NEVER_EMPTY: Final = frozenset({"e.id", "e.source", "e.type"})
"""An event without one of these, or with an empty one, is invalid and matches no definition."""
_REPEATING: Final = tuple(f"p.{name}" for name in REPEATED_PREFIXES)
"""Properties that may have several values in a record, any of which may satisfy a constraint."""
_WIDER: Final = {
    "integer": "number",
    "number": "uri",
    "boolean": "uri",
    "duration": "uri",
    "uri": "symbol",
    "timestamp": "symbol",
    "binary": "symbol",
    "symbol": "string",
    "string": "any",
}
"""The next wider type by valid values; the three URI types are equal, and ``binary`` is base64 in an envelope."""
_URIS: Final = frozenset({"uri", "urireference", "uritemplate"})
_WITHOUT_EMPTY: Final = frozenset({"integer", "number", "boolean", "duration", "timestamp"})
_ANY: Final = {bits32: (Constraint("optional", "any", optional=True, bits32=bits32),) for bits32 in (False, True)}


def demands_of(constraints: Iterable[KeyedConstraint]) -> dict[str, list[Constraint]]:
    """Return constraints by property, whether they compare its text (``p.``) or its bytes (``b.``)."""
    demands: dict[str, list[Constraint]] = {}
    for key, constraint in constraints:
        demands.setdefault(property_key_of(key), []).append(constraint)
    return demands


def excludes_nothing(key: str, constraint: Constraint) -> bool:
    """Whether every record of the kind satisfies a constraint."""
    if constraint.is_open:
        return constraint.accepts_any_text and (constraint.optional or key in _NEVER_EMPTY)
    if constraint.kind == "template":
        return constraint.template.is_bare and constraint.type != "timestamp" and key in _NEVER_EMPTY
    return key == "e.specversion" and constraint.value == "1.0"


def covers(big: Demands, small: Demands) -> bool:
    """Whether every record that satisfies *small* certainly satisfies *big*, also its repeated placeholders."""
    values: dict[str, set[_PlaceholderValue]] = {}
    for key, wanted in big.items():
        given = small.get(key) or _ANY[key.startswith("e.")]
        for each in wanted:
            implying = next((other for other in given if _implies(key, other, each)), None)
            if implying is None:
                return False
            if each.kind == "template":
                shared = len(wanted) == len(given) == 1
                for name, value in zip(each.template.names, _values_in(key, each, implying, shared), strict=True):
                    values.setdefault(name, set()).add(value)
    return all(len(each) == 1 for each in values.values()) and _decoded_alike(big, small)


def covers_property(key: str, big: Sequence[Constraint], small: Sequence[Constraint]) -> bool:
    """Whether one property's constraints cover others, ignoring placeholders shared with other properties."""
    given = small or _ANY[key.startswith("e.")]
    return all(any(_implies(key, other, each) for other in given) for each in big)


def _implies(key: str, small: Constraint, big: Constraint) -> bool:
    present = big.optional or not small.optional or key in ALWAYS_THERE
    always = key.startswith("e.") and excludes_nothing(key, big)  # options may also have values that are no text
    return always or (present and _includes(big, small))


def _decoded_alike(big: Demands, small: Demands) -> bool:
    """Whether placeholders that *big* reads both raw and decoded are also read both ways in *small*.

    Their values must be equal both raw and decoded, which comparing single constraints cannot ensure.
    """
    readings: dict[str, set[KeyedConstraint]] = {}
    for key, each in ((key, each) for key, asks in big.items() for each in asks if each.kind == "template"):
        for name in each.template.names:
            readings.setdefault(name, set()).add((key, each))
    twofold = [uses for uses in readings.values() if len({each.decodes for _, each in uses}) > 1]
    return not twofold or set().union(*twofold) <= {(key, each) for key, asks in small.items() for each in asks}


def _includes(big: Constraint, small: Constraint) -> bool:
    """Whether *big* accepts every value that *small* accepts."""
    if big.is_open:
        return _is_valid_for(big, small)
    if big.kind == "template":
        return _template_includes(big, small)
    if small.kind != big.kind:
        return False
    if big.kind == "media":
        return media_type_matches(big.value or "", small.value or "")
    if big.is_bytes or small.is_bytes:
        return big.is_bytes and small.is_bytes and big.value == small.value
    if not literals_equal(big.type, big.value or "", small.value or ""):
        return False
    return small.has_one_text or big.type == small.type or (small.type == "integer" and big.type == "number")


def _is_valid_for(big: Constraint, small: Constraint) -> bool:
    """Whether everything that *small* accepts is valid for the type of *big*."""
    if small.is_bytes:
        return big.accepts_bytes
    if big.accepts_any_text:
        return big.accepts_bytes or not small.accepts_bytes
    if small.is_open:
        return not small.accepts_bytes and _is_subtype(small.type, big.type)
    if small.kind == "literal":
        valid = is_valid(big.type, small.value or "", bits32=big.bits32)
        return valid and (small.has_one_text or _is_subtype(small.type, big.type))
    return small.kind == "template" and small.type == "timestamp" and _is_subtype(small.type, big.type)


def _is_subtype(narrow: str, wide: str) -> bool:
    """Whether every value valid for one type is valid for the other."""
    wanted = "uri" if wide in _URIS else wide
    current: str | None = "uri" if narrow in _URIS else narrow
    while current is not None and current != wanted:
        current = _WIDER.get(current)
    return current is not None


def _template_includes(big: Constraint, small: Constraint) -> bool:
    if small.is_bytes or (big.type == "timestamp" and not _allows_only_timestamps(small)):
        return False
    if big.template.is_bare:
        return not small.is_open or small.type in _WITHOUT_EMPTY
    values = _align_templates(big.template, small)
    names = big.template.names
    return values is not None and len(set(zip(names, values, strict=True))) == len(set(names))


def _allows_only_timestamps(small: Constraint) -> bool:
    if small.kind == "literal":
        return is_timestamp(small.value or "") and (small.type == "timestamp" or small.has_one_text)
    return small.kind != "media" and small.type == "timestamp"


@dataclass(frozen=True, slots=True)
class _PlaceholderValue:
    """What is known about a placeholder's value: its ``text``, that it equals placeholder ``name``, or nothing.

    Equal objects mean equal values. An opaque value equals only itself.
    """

    kind: Literal["text", "name", "opaque"]
    value: str
    place: str = ""


def _values_in(key: str, big: Constraint, small: Constraint, shared: bool) -> list[_PlaceholderValue]:
    """Return what is known about each placeholder of the template *big* when a text satisfies *small*.

    If a property may have several values, both may match different ones, unless their constraints are the same.
    """
    several = key.startswith(_REPEATING) and not (shared and _includes(small, big))
    alike = small.has_one_text or small.decodes == big.decodes
    values = None if several or not alike else _align_templates(big.template, small)
    if values is None:
        values = [_PlaceholderValue("opaque", str(number)) for number in range(len(big.template.names))]
    return [_value_for(key, each, big.decodes) for each in values]


def _value_for(key: str, value: _PlaceholderValue, decodes: bool) -> _PlaceholderValue:
    """Return the value as the property *key* reads it."""
    if value.kind == "opaque":
        return replace(value, place=key)
    return replace(value, value=percent_decode(value.value)) if value.kind == "text" and decodes else value


def _align_templates(big: Template, small: Constraint) -> list[_PlaceholderValue] | None:
    """Return the values of *big*'s placeholders in any text that *small* matches; None if *big* may not match.

    Templates are aligned segment by segment.
    """
    literal = small.has_one_text
    if not literal and small.kind != "template":
        return None
    other = parse_cached_template(small.value or "", big.dots, literal)
    if big.is_bare:
        whole = other.segments[0] if len(other.segments) == 1 else TemplateSegment((other.text,), ())
        return (
            [_value_of_segment(whole, 0)] if literal or len(other.segments) == 1 else [_PlaceholderValue("opaque", "0")]
        )
    if other.is_bare or big.separators != other.separators:
        return None
    values: list[_PlaceholderValue] = []
    for mine, its in zip(big.segments, other.segments, strict=True):
        texts: list[str] = []
        if mine.literals == its.literals:
            values.extend(_PlaceholderValue("name", name) for name in its.names)
        elif mine.is_gap and (its.names or its.literals[0]):
            values.append(_value_of_segment(its, len(values)))
        elif not its.names and mine.match_into(its.literals[0], texts):
            values.extend(_PlaceholderValue("text", text) for text in texts)
        else:
            return None
    return values


def _value_of_segment(segment: TemplateSegment, number: int) -> _PlaceholderValue:
    if not segment.names:
        return _PlaceholderValue("text", segment.literals[0])
    return _PlaceholderValue("name", segment.names[0]) if segment.is_gap else _PlaceholderValue("opaque", str(number))


# Candidates: definitions as one endpoint sees them, with their constraints on each kind of record.


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

    @property
    def is_for_events(self) -> bool:
        """Whether the definition describes CloudEvents; otherwise it is for records of both kinds."""
        return self.envelope or self.native is None

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
