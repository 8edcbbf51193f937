"""Constraints of definitions on properties, and the candidates that matching compares (MATCHING.md#constraints)."""

from __future__ import annotations

import base64
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from types import NoneType
from typing import Any, Final, Literal, NamedTuple

from catalog.definitions.inheritance import (
    EffectiveMessage,
    NamedValues,
    OptionLocations,
    attribute_location,
    foreign_sections,
    merge_values,
    normalize_options,
    parse_short_entry,
)
from catalog.findings import Declarations, DeclaredEndpoint, DeclaredGroup, DeclaredMessage, Findings, SourceLocation
from catalog.model import CLOUDEVENTS, Definition, Endpoint, Property, PropertyType
from catalog.parsing.pointers import unescape_step
from catalog.protocols.properties import (
    ALL_OPTIONS,
    ALWAYS_REQUIRED,
    AMQP_SECTIONS,
    ATTRIBUTE_TYPES,
    CONTENT_TYPES,
    PROTOCOL_OPTIONS,
    ProtocolOptions,
    amqp_type_of,
    canonical_member,
    canonical_option,
    canonical_type,
    is_dotted,
    is_hop_by_hop,
)
from catalog.templates import TEMPLATE_TYPES, Template, parse_template
from catalog.values import (
    NOW,
    WrittenNumber,
    decode_binary,
    is_any_timestamp,
    is_old_now,
    is_timestamp,
    is_valid,
    media_type_matches,
    percent_decode,
    plain_number,
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


# Inheritance levels: every property of a definition with the levels that its parts come from.
#
# Explaining or rewriting a catalog needs the contribution of each level. So the levels are merged once more, as in
# :mod:`catalog.definitions.inheritance`, into bodies that record the level and location of every member.

# Convert merged attributes to properties with type, value and ``required`` (MATCHING.md#property-types).

_NUMBERS: Final = frozenset({"any", "boolean", "integer", "number"})


def build_definition(effective: EffectiveMessage, findings: Findings) -> Definition:
    """Build the definition; report invalid properties and read them as far as possible."""
    message, attributes = effective.message, effective.attributes
    at_attribute, at_option = partial(attribute_location, message), OptionLocations(message, effective.spelling).find
    return Definition(
        xid=message.xid,
        group=message.group,
        envelope=effective.envelope,
        protocol=effective.protocol,
        protocol_declared=effective.protocol_declared,
        envelopemetadata=tuple(_read_all(attribute_bodies(attributes, effective.envelope), findings, at_attribute)),
        protocoloptions=tuple(_read_all(option_bodies(attributes, effective.spelling), findings, at_option)),
        envelopeoptions=attributes.get("envelopeoptions", {}),
        dataschemaformat=attributes.get("dataschemaformat"),
        dataschema=attributes.get("dataschema"),
        dataschemauri=attributes.get("dataschemauri"),
        dataschemaxid=attributes.get("dataschemaxid"),
        datacontenttype=attributes.get("datacontenttype"),
        base=effective.base,
    )


def _read_all(
    bodies: Iterable[PropertyBody], findings: Findings, at: Callable[[str], SourceLocation | None]
) -> Iterator[Property]:
    for each in bodies:
        report = PropertyReport(findings, partial(at, each.path))
        yield read_property(each.path, each.body, each.default, report, required=each.required)


class PropertyBody(NamedTuple):
    """The merged body of one property; ``required`` is always True if CloudEvents requires the attribute."""

    path: str
    body: Any
    default: PropertyType
    required: bool = False


def attribute_bodies(attributes: Mapping[str, Any], envelope: str | None) -> Iterator[PropertyBody]:
    """Yield the attributes of *envelope* (None: CloudEvents)."""
    cloudevents = envelope in (CLOUDEVENTS, None)
    for name, body in attributes.get("envelopemetadata", {}).items():
        default = ATTRIBUTE_TYPES.get(name, "string") if cloudevents else "string"
        yield PropertyBody(name, body, default, cloudevents and name in ALWAYS_REQUIRED)


def option_bodies(attributes: Mapping[str, Any], protocol: str | None) -> Iterator[PropertyBody]:
    """Yield the options that *protocol* defines; those of bases for other protocols are skipped."""
    vocabulary = PROTOCOL_OPTIONS.get(protocol or "", ALL_OPTIONS)
    given = attributes.get("protocoloptions", {})
    for written, value in given.items():
        name = canonical_option(protocol, written)
        if name is not None and (name == written or name not in given):
            yield from _iter_option_bodies(vocabulary, name, value)


def _iter_option_bodies(vocabulary: ProtocolOptions, name: str, value: Any) -> Iterator[PropertyBody]:
    """Yield the properties in one option: itself, its list entries or its section members."""
    if isinstance(value, NamedValues) and name in vocabulary.lists:
        for inner, body in value.entries:
            yield PropertyBody(f"{name}.{inner.lower() if name in vocabulary.lower else inner}", body, "string")
    elif isinstance(value, dict) and name in vocabulary.sections:
        table = vocabulary.sections[name]
        for written, body in value.items():
            known = written if table is None else canonical_member(table, written)
            if known is not None:
                yield PropertyBody(f"{name}.{known}", body, table[known] if table is not None else "string")
    elif name in vocabulary.scalars:
        yield PropertyBody(name, value, vocabulary.scalars[name])


@dataclass(frozen=True, slots=True)
class PropertyReport:
    """Reports problems of one property, but only where it is written, not where it is inherited.

    ``find`` returns the location, None for an inherited property; it is called only if there is something to report.
    """

    findings: Findings
    find: Callable[[], SourceLocation | None] | None

    def warning(self, rule: str, message: str, hint: str) -> None:
        place = self.find() if self.find is not None else None
        if place is not None:
            self.findings.warning(place, rule, message, hint)


def read_property(
    name: str, body: Any, default: PropertyType, report: PropertyReport, *, required: bool = False
) -> Property:
    """Read ``{type, value, required}``, or a bare scalar as the ``value``."""
    if not isinstance(body, dict):
        return Property(name, default, _convert_to_type(default, _read_value(body, report)), required)
    declared = body.get("type")
    kind = canonical_type(declared) if isinstance(declared, str) and declared else default
    if not isinstance(declared, (str, NoneType)) or kind is None:
        hint = "use one of the types of the 1.0 message specification"
        report.warning("unknown-type", f"the type {declared!r:.80} of {name} is unknown; read as {default}", hint)
    value = _convert_to_type(kind or default, _read_value(body.get("value"), report))
    wire = amqp_type_of(declared) if isinstance(declared, str) and name.partition(".")[0] in AMQP_SECTIONS else ""
    return Property(name, kind or default, value, required or _read_required(body, report), wire)


def _convert_to_type(kind: PropertyType, value: str | bool | int | float | None) -> str | bool | int | float | None:
    """Convert a value to its type: a plain number, or the text of a number where text is needed."""
    if isinstance(value, WrittenNumber):
        return plain_number(value) if kind in _NUMBERS else to_text(value)
    return NOW if kind == "timestamp" and is_old_now(value) else value


def _read_required(body: Mapping[str, Any], report: PropertyReport) -> bool:
    value = body.get("required")
    if value is None or isinstance(value, bool):
        return bool(value)
    report.warning("wrong-shape", f"required is {value!r:.80}, which is not a boolean", "write true or false")
    return str(value).strip().lower() == "true"


def _read_value(value: Any, report: PropertyReport) -> str | bool | int | float | None:
    if value is None or value == "":
        return None
    if isinstance(value, (str, bool, int, float)):
        return value
    report.warning("wrong-shape", "a value must be a string, number or boolean; this one is ignored", "write a scalar")
    return None


BODY_MEMBERS: Final = ("type", "value", "required")
_SILENT: Final = PropertyReport(Findings(), None)
_METADATA: Final = "envelopemetadata"
_OPTIONS: Final = "protocoloptions"
_EMPTY: Final[tuple[Any, ...]] = (NamedValues(()), {})


@dataclass(frozen=True, slots=True)
class InheritanceLevel:
    """One message of an inheritance chain. ``metadata`` and ``options`` are its own, in canonical spelling.

    ``envelope`` and ``protocol`` are those that apply here (inherited or default), ``spelling`` is the protocol that
    its options are written for.
    """

    message: DeclaredMessage
    group: DeclaredGroup | None
    envelope: str | None
    protocol: str | None
    spelling: str | None
    metadata: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def xid(self) -> str:
        """The message's xid."""
        return self.message.xid


@dataclass(frozen=True, slots=True)
class LevelValue:
    """One level's value of one member of a property (``type``, ``value`` or ``required``)."""

    level: InheritanceLevel
    member: str
    value: Any
    place: SourceLocation | None


@dataclass(frozen=True, slots=True)
class MergedProperty:
    """A property merged from all levels. ``members`` are the effective values, ``hidden`` the overridden ones.

    ``own`` says whether the nearest level sets it; ``inherited`` is the property of the bases. ``body`` is what the
    nearest level writes, None if it does not. ``hidden`` has the nearest last.
    """

    property: Property
    section: str
    members: Mapping[str, LevelValue]
    hidden: tuple[LevelValue, ...]
    own: bool
    body: Any
    inherited: Property | None
    default: PropertyType


@dataclass(slots=True)
class _MergedBody:
    """A property body during the merge. A ``scalar`` body is replaced as a whole, never merged.

    ``nearest`` says whether the nearest level sets it, ``raw`` is what the last level writes.
    """

    members: dict[str, LevelValue] = field(default_factory=dict)
    hidden: list[LevelValue] = field(default_factory=list)
    scalar: bool = False
    nearest: bool = False
    raw: Any = None

    def merge_with(self, above: _MergedBody) -> _MergedBody:
        """Return this body merged with *above*, which takes precedence."""
        if self.scalar or above.scalar:
            return replace(above, hidden=[*self.hidden, *self.members.values()])
        replaced = [said for name, said in self.members.items() if name in above.members]
        return replace(above, members={**self.members, **above.members}, hidden=[*self.hidden, *replaced])


def levels_of(chain: Sequence[str], declarations: Declarations) -> tuple[InheritanceLevel, ...]:
    """Return the levels of a chain of xids: a message, then its bases, nearest first."""
    levels: list[InheritanceLevel] = []
    inherited: str | None = None
    envelope: str | None = None
    for xid in reversed(chain):
        message = declarations.messages[xid]
        home = declarations.external.get(message.group)
        group = declarations.groups.get(message.group) or (home if isinstance(home, DeclaredGroup) else None)
        endpoint = declarations.endpoints.get(message.group) or (home if isinstance(home, DeclaredEndpoint) else None)
        own = message.attributes
        envelope = own.get("envelope") or envelope or (group.envelope if group else None)
        inherited = own.get("protocol") or inherited or (group.protocol if group else None)
        spelling = inherited or (endpoint.protocol if endpoint else None)
        options = normalize_options(own.get("protocoloptions") or {}, spelling, message.place, Findings())
        written = own.get("envelopemetadata") or {}
        metadata = {name: body for name, body in written.items() if body is not None}
        levels.append(InheritanceLevel(message, group, envelope, inherited, spelling, metadata, options))
    return tuple(reversed(levels))


def applicable_levels(section: str, levels: Sequence[InheritanceLevel]) -> Sequence[InheritanceLevel]:
    """Return the levels whose *section* applies to the nearest one: same envelope or protocol."""
    return [level for level in levels if section not in foreign_sections(level, levels[0])]


def merge_properties(levels: Sequence[InheritanceLevel]) -> tuple[MergedProperty, ...]:
    """Return the properties merged from *levels*, in the order of the definition."""
    bases = levels[1:]
    before: dict[tuple[str, str], list[Property]] = {}
    for section, inherited, _, _ in _iter_merged(bases, levels[0]):
        before.setdefault((section, inherited.name), []).append(inherited)
    properties: list[MergedProperty] = []
    effective = list(_iter_merged(levels, levels[0]))
    times = Counter((section, prop.name) for section, prop, _, _ in effective)
    for section, prop, body, default in effective:
        known = before.get((section, prop.name), [])
        single = known[0] if len(known) == times[section, prop.name] == 1 else None  # otherwise entries are not merged
        raw = body.raw if body.nearest else None
        properties.append(
            MergedProperty(prop, section, body.members, tuple(body.hidden), body.nearest, raw, single, default)
        )
    return tuple(properties)


def _iter_merged(
    levels: Sequence[InheritanceLevel], of: InheritanceLevel
) -> Iterator[tuple[str, Property, _MergedBody, PropertyType]]:
    """Yield section, property, body and default type of the merged properties of *levels* for the definition *of*.

    Properties of remote bases come first, and attributes before options.
    """
    merged: dict[str, Any] = {}
    order: dict[tuple[str, str | None], int] = {}
    for place in range(len(levels) - 1, -1, -1):
        foreign = foreign_sections(levels[place], of)
        bodies_of = _bodies_of_level(levels[place], nearest=place == 0)
        own = {section: members for section, members in bodies_of.items() if section not in foreign}
        merged = merge_values(merged, own, _merge_bodies)
        for section, members in own.items():
            for name, value in members.items():
                if value not in _EMPTY:
                    order.setdefault((section, name), len(order))
    spelling = of.spelling
    for (section, written), number in tuple(order.items()):
        order.setdefault((section, canonical_option(spelling, written or "")), number)
    bodies = [
        *((order[_METADATA, each.path], _METADATA, each) for each in attribute_bodies(merged, of.envelope)),
        *((order[_OPTIONS, each.path.partition(".")[0]], _OPTIONS, each) for each in option_bodies(merged, spelling)),
    ]
    for _, section, (path, body, default, required) in sorted(bodies, key=itemgetter(0)):
        said = {name: said.value for name, said in body.members.items()}
        raw = said.get("value") if body.scalar else said
        yield section, read_property(path, raw, default, _SILENT, required=required), body, default


def _merge_bodies(below: list[Any], above: list[Any]) -> list[Any]:
    """Merge the bodies of one name. Repeated names and values that are not bodies are replaced as a whole."""
    if not all(isinstance(each, _MergedBody) for each in (*below, *above)):
        return above
    if len(below) == len(above) == 1:
        return [below[0].merge_with(above[0])]
    above[0].hidden.extend(said for each in below for said in (*each.hidden, *each.members.values()))
    return above


def _bodies_of_level(level: InheritanceLevel, *, nearest: bool) -> dict[str, dict[str, Any]]:
    """Return the properties that one level writes, with their locations."""

    def body(raw: Any, place: SourceLocation | None) -> _MergedBody:
        if not isinstance(raw, dict):
            return _MergedBody({"value": LevelValue(level, "value", raw, place)}, scalar=True, nearest=nearest, raw=raw)
        given = (name for name in BODY_MEMBERS if raw.get(name) is not None)
        members = {name: LevelValue(level, name, raw[name], place and place / name) for name in given}
        return _MergedBody(members, nearest=nearest, raw=raw)

    written: dict[str, dict[str, Any]] = {}
    if _METADATA in level.message.attributes:
        written[_METADATA] = {
            name: body(raw, attribute_location(level.message, name)) for name, raw in level.metadata.items()
        }
    places = OptionLocations(level.message, level.spelling)
    sections = PROTOCOL_OPTIONS.get(level.spelling or "", ALL_OPTIONS).sections
    options = written[_OPTIONS] = {}
    for top, value in level.options.items():
        if isinstance(value, NamedValues):
            entries = ((sub, _entry_at(level.message, places.find(f"{top}.{sub}")), raw) for sub, raw in value.entries)
            options[top] = NamedValues(tuple((sub, body(raw, place)) for sub, place, raw in entries))
        elif isinstance(value, dict) and top in sections:
            options[top] = {sub: body(raw, places.find(f"{top}.{sub}")) for sub, raw in value.items()}
        else:
            options[top] = body(value, places.find(top))
    return written


def _entry_at(message: DeclaredMessage, place: SourceLocation | None) -> SourceLocation | None:
    """Return the location of a list entry's body: for ``{NAME: {…}}`` one step below *place*."""
    above = message.at("protocoloptions").pointer + "/"
    node = message.attributes.get("protocoloptions")
    if place is None or not place.pointer.startswith(above):
        return place
    for key in place.pointer[len(above) :].split("/"):
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
            short = parse_short_entry(node)
            return place / short[0] if short is not None else place
        node = node.get(unescape_step(key)) if isinstance(node, dict) else None
    return place
