"""Constraints on properties, and the candidates and levels that they come from (MATCHING.md#constraints)."""

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
    Effective,
    Named,
    OptionPlaces,
    attribute_place,
    foreign_sections,
    merge,
    normal_options,
    short_entry,
)
from catalog.findings import Declarations, DeclaredEndpoint, DeclaredGroup, DeclaredMessage, Findings, SourceLocation
from catalog.model import CLOUDEVENTS, Definition, Endpoint, Property, PropertyType
from catalog.parsing.pointers import unescaped
from catalog.protocols.properties import (
    ALWAYS_REQUIRED,
    AMQP_SECTIONS,
    ANY_VOCABULARY,
    ATTRIBUTE_TYPES,
    CONTENT_TYPES,
    VOCABULARIES,
    Vocabulary,
    canonical_member,
    canonical_option,
    canonical_type,
    changes_by_hop,
    is_dotted,
    wire_type,
)
from catalog.templates import TEMPLATE_TYPES, Template, parse
from catalog.values import (
    NOW,
    WrittenNumber,
    binary_value,
    canonical,
    is_any_timestamp,
    is_old_now,
    is_timestamp,
    is_valid,
    media_type_matches,
    percent_decode,
    plain_number,
    text_of,
)

# One constraint on one property: the rules of MATCHING.md#constraints, for one value at a time.
#
# The vectorised equivalence classes of ``classes`` are built from these and must agree; explanations use them directly.

Kind = Literal["literal", "media", "template", "present", "optional"]
TYPED_LITERALS: Final = frozenset({"number", "integer", "boolean", "timestamp", "binary"})
ANY_BYTES: Final = frozenset({"any", "binary"})
"""Types whose constraints values that are not texts can satisfy."""
MEDIA_PROPERTIES: Final = frozenset({"e.datacontenttype", *(f"p.{option}" for option in CONTENT_TYPES)})
"""Keys whose values are compared as media types."""
BASE64_KEY: Final = "key_base64"
CONTENT: Final = "d"
"""The key of the content type of the data, whatever the mode (MATCHING.md#content-type)."""


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
        return template_of(self.value or "", self.dots)

    @property
    def takes_any_text(self) -> bool:
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
        """The expected value in explanations."""
        if self.kind == "present":
            return f"any {self.type}" if self.value is None else f"any {self.type} (now)"
        if self.kind == "optional":
            return f"absent, or a valid {self.type}"
        return self.value or ""

    def captured(self, text: str | None) -> dict[str, str]:
        """Return the values of a template's placeholders; empty if the text does not match."""
        taken = self.template.match(text, decode=self.decodes) if self.kind == "template" and text is not None else None
        return {name: percent_decode(value) if self.decodes else value for name, value in (taken or {}).items()}

    def satisfied(self, text: str | None, *, present: bool) -> bool:
        """Evaluate one value: ``text`` is None for an absent value, or with ``present`` for one that is not a text."""
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
    """Return the constraint of a declared attribute on that of an event."""
    return constraint_of(f"e.{prop.name}", prop, bits32=True)


def protocol_constraints(
    definition: Definition, protocol: str, *, hop_by_hop: bool
) -> Iterator[tuple[str, Constraint]]:
    """Yield (key, constraint) for the options of a definition that *protocol* has, keys ``p.PATH``.

    Those of type binary have the key ``b.PATH``: the bytes of a value, of any type, as base64 text.
    Hop-by-hop properties are left out unless requested (MATCHING.md#hop-by-hop-properties).
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
    """Return the key of the property that a key refers to: ``b.PATH`` and ``p.PATH`` are the same property."""
    return f"p.{key[2:]}" if key.startswith("b.") else key


def content_constraint(definition: Definition) -> Constraint | None:
    """Return the constraint on the key ``d``; None if the definition has no content type."""
    if not definition.datacontenttype:
        return None
    return Constraint("media", "string", definition.datacontenttype, optional=True, counts=False)


def _of_bytes(prop: Property) -> tuple[str, Constraint]:
    key = f"p.{prop.name}" if prop.name == BASE64_KEY else f"b.{prop.name}"
    if prop.value is None:
        return key, constraint_of(key, prop)
    return key, Constraint("literal", "binary", base64.b64encode(binary_value(text_of(prop.value))).decode("ascii"))


def is_now(prop: Property) -> bool:
    """Whether a value means any time."""
    return prop.type == "timestamp" and is_any_timestamp(prop.value)


def constraint_of(key: str, prop: Property, *, dots: bool = False, bits32: bool = False) -> Constraint:
    """Return the constraint of a property on the value of *key*; the flags are as in :class:`Constraint`."""
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

    ``event`` are the constraints on CloudEvents, ``native`` those on other records; None means that records of that
    kind never match it (MATCHING.md#matching).
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
    """Count properties constrained by literals, and literal characters in templates (MATCHING.md#specificity)."""
    literals = {
        property_of(key)
        for key, constraint in constraints
        if constraint.counts and constraint.kind in ("literal", "media")
    }
    characters = sum(c.template.literal_characters for _, c in constraints if c.kind == "template")
    return len(literals), characters


class Scope(NamedTuple):
    """What a definition has at an endpoint, by itself and by the endpoint's defaults, which apply there only.

    ``protocol`` restricts it (None: any protocol), ``envelope`` says whether it declares event attributes, and
    ``native`` whether records that are not events can match it: a default protocol alone describes none.
    """

    protocol: str | None
    envelope: bool
    native: bool


def scope_of(definition: Definition, endpoint: Endpoint | None) -> Scope | None:
    """Return what applies at an endpoint, or without any; None for a definition with an unknown envelope."""
    envelope = definition.envelope or (endpoint.envelope if endpoint else None)
    if envelope is not None and envelope != CLOUDEVENTS:
        return None
    protocol = definition.protocol or (endpoint.protocol if endpoint else None)
    declared = definition.protocol is not None and definition.protocol_declared
    describes = declared or bool(definition.protocoloptions and protocol)
    return Scope(protocol, envelope is not None, describes or (envelope is None and protocol is None))


def target_of(definition: Definition, endpoint: Endpoint | None, *, hop_by_hop: bool = False) -> MatchCandidate | None:
    """Return the definition as a candidate of that endpoint; None if it can never match.

    A default protocol, of group or endpoint, restricts; without protocol options of its own the definition still needs
    a CloudEvent.
    """
    scope = scope_of(definition, endpoint)
    return None if scope is None else target_in(definition, scope, hop_by_hop=hop_by_hop)


def target_in(definition: Definition, scope: Scope, *, hop_by_hop: bool = False) -> MatchCandidate:
    """Return the definition as a candidate in that scope."""
    protocol = scope.protocol
    content = content_constraint(definition)
    common: tuple[Keyed, ...] = ((CONTENT, content),) if content else ()
    options = tuple(protocol_constraints(definition, protocol, hop_by_hop=hop_by_hop)) if protocol else ()
    attributes = tuple(envelope_constraints(definition)) if scope.envelope else ()
    native = (*options, *common) if scope.native else None
    return MatchCandidate(definition, protocol, scope.envelope, (*attributes, *options, *common), native)


# The levels that a definition is made of, and every property with its origins.
#
# Explaining or rewriting a catalog requires the contribution of each level. So the levels are merged here once more, by
# the merge of :mod:`catalog.definitions.inheritance`, in bodies that keep the level and location of every part.

# Convert merged attributes to properties with type, value and ``required`` (MATCHING.md#property-types).

_NUMBERS: Final = frozenset({"any", "boolean", "integer", "number"})


def definition_of(effective: Effective, findings: Findings) -> Definition:
    """Build the definition; report problems of single properties and read them as well as possible."""
    message, attributes = effective.message, effective.attributes
    at_attribute, at_option = partial(attribute_place, message), OptionPlaces(message, effective.spelling).of
    return Definition(
        xid=message.xid,
        group=message.group,
        envelope=effective.envelope,
        protocol=effective.protocol,
        protocol_declared=effective.protocol_declared,
        envelopemetadata=tuple(_read(attribute_bodies(attributes, effective.envelope), findings, at_attribute)),
        protocoloptions=tuple(_read(option_bodies(attributes, effective.spelling), findings, at_option)),
        envelopeoptions=attributes.get("envelopeoptions", {}),
        dataschemaformat=attributes.get("dataschemaformat"),
        dataschema=attributes.get("dataschema"),
        dataschemauri=attributes.get("dataschemauri"),
        dataschemaxid=attributes.get("dataschemaxid"),
        datacontenttype=attributes.get("datacontenttype"),
        base=effective.base,
    )


def _read(
    bodies: Iterable[PropertyBody], findings: Findings, at: Callable[[str], SourceLocation | None]
) -> Iterator[Property]:
    for each in bodies:
        report = Report(findings, partial(at, each.path))
        yield declared_property(each.path, each.body, each.default, report, required=each.required)


class PropertyBody(NamedTuple):
    """The merged body of one property; ``required`` is always True if CloudEvents requires the attribute."""

    path: str
    body: Any
    default: PropertyType
    required: bool = False


def attribute_bodies(attributes: Mapping[str, Any], envelope: str | None) -> Iterator[PropertyBody]:
    """Yield the attributes of an envelope; the default is CloudEvents."""
    cloudevents = envelope in (CLOUDEVENTS, None)
    for name, body in attributes.get("envelopemetadata", {}).items():
        default = ATTRIBUTE_TYPES.get(name, "string") if cloudevents else "string"
        yield PropertyBody(name, body, default, cloudevents and name in ALWAYS_REQUIRED)


def option_bodies(attributes: Mapping[str, Any], protocol: str | None) -> Iterator[PropertyBody]:
    """Yield the options that the protocol has; bases may have others, for another protocol."""
    vocabulary = VOCABULARIES.get(protocol or "", ANY_VOCABULARY)
    given = attributes.get("protocoloptions", {})
    for written, value in given.items():
        name = canonical_option(protocol, written)
        if name is not None and (name == written or name not in given):
            yield from _places(vocabulary, name, value)


def _places(vocabulary: Vocabulary, name: str, value: Any) -> Iterator[PropertyBody]:
    """Yield every property below one option."""
    if isinstance(value, Named) and name in vocabulary.lists:
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
class Report:
    """Where to report on one property; an inherited property is reported only where it is written.

    ``find`` returns that location, None for an inherited property; it is called only if there is something to report.
    """

    findings: Findings
    find: Callable[[], SourceLocation | None] | None

    def warning(self, rule: str, message: str, hint: str) -> None:
        place = self.find() if self.find is not None else None
        if place is not None:
            self.findings.warning(place, rule, message, hint)


def declared_property(
    name: str, body: Any, default: PropertyType, report: Report, *, required: bool = False
) -> Property:
    """Read ``{type, value, required}``, or a bare scalar that means its ``value``."""
    if not isinstance(body, dict):
        return Property(name, default, _of_type(default, _value(body, report)), required)
    declared = body.get("type")
    kind = canonical_type(declared) if isinstance(declared, str) and declared else default
    if not isinstance(declared, (str, NoneType)) or kind is None:
        hint = "use one of the types of the 1.0 message specification"
        report.warning("unknown-type", f"the type {declared!r:.80} of {name} is unknown; read as {default}", hint)
    value = _of_type(kind or default, _value(body.get("value"), report))
    wire = wire_type(declared) if isinstance(declared, str) and name.partition(".")[0] in AMQP_SECTIONS else ""
    return Property(name, kind or default, value, required or _required(body, report), wire)


def _of_type(kind: PropertyType, value: str | bool | int | float | None) -> str | bool | int | float | None:
    """Return a value in the 1.0 spelling of its type: a number, or the text as written where a text is needed."""
    if isinstance(value, WrittenNumber):
        return plain_number(value) if kind in _NUMBERS else text_of(value)
    return NOW if kind == "timestamp" and is_old_now(value) else value


def _required(body: Mapping[str, Any], report: Report) -> bool:
    value = body.get("required")
    if value is None or isinstance(value, bool):
        return bool(value)
    report.warning("wrong-shape", f"required is {value!r:.80}, which is not a boolean", "write true or false")
    return str(value).strip().lower() == "true"


def _value(value: Any, report: Report) -> str | bool | int | float | None:
    if value is None or value == "":
        return None
    if isinstance(value, (str, bool, int, float)):
        return value
    report.warning("wrong-shape", "a value must be a string, number or boolean; this one is ignored", "write a scalar")
    return None


MEMBERS: Final = ("type", "value", "required")
_SILENT: Final = Report(Findings(), None)
_METADATA: Final = "envelopemetadata"
_OPTIONS: Final = "protocoloptions"
_EMPTY: Final[tuple[Any, ...]] = (Named(()), {})


@dataclass(frozen=True, slots=True)
class Level:
    """One message of a chain of bases. ``metadata`` and ``options`` are its own, in canonical spelling, unmerged.

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

    level: Level
    member: str
    value: Any
    place: SourceLocation | None


@dataclass(frozen=True, slots=True)
class MergedProperty:
    """A property merged from all levels. ``members`` are the values that count, ``hidden`` the overridden ones.

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
class _Body:
    """A body while levels are merged; ``scalar`` bodies are replaced as a whole, never merged.

    ``nearest`` says whether the nearest level sets it, ``raw`` is what the last level writes.
    """

    members: dict[str, LevelValue] = field(default_factory=dict)
    hidden: list[LevelValue] = field(default_factory=list)
    scalar: bool = False
    nearest: bool = False
    raw: Any = None

    def overlaid(self, above: _Body) -> _Body:
        """Return this body merged with *above*, which takes precedence."""
        if self.scalar or above.scalar:
            return replace(above, hidden=[*self.hidden, *self.members.values()])
        replaced = [said for name, said in self.members.items() if name in above.members]
        return replace(above, members={**self.members, **above.members}, hidden=[*self.hidden, *replaced])


def levels_of(chain: Sequence[str], declarations: Declarations) -> tuple[Level, ...]:
    """Return the levels of a chain of xids (a message, then its bases, nearest first)."""
    levels: list[Level] = []
    inherited: str | None = None
    envelope: str | None = None
    for xid in reversed(chain):
        message = declarations.messages[xid]
        home = declarations.beyond.get(message.group)
        group = declarations.groups.get(message.group) or (home if isinstance(home, DeclaredGroup) else None)
        endpoint = declarations.endpoints.get(message.group) or (home if isinstance(home, DeclaredEndpoint) else None)
        own = message.attributes
        envelope = own.get("envelope") or envelope or (group.envelope if group else None)
        inherited = own.get("protocol") or inherited or (group.protocol if group else None)
        spelling = inherited or (endpoint.protocol if endpoint else None)
        options = normal_options(own.get("protocoloptions") or {}, spelling, message.place, Findings())
        written = own.get("envelopemetadata") or {}
        metadata = {name: body for name, body in written.items() if body is not None}
        levels.append(Level(message, group, envelope, inherited, spelling, metadata, options))
    return tuple(reversed(levels))


def applicable_levels(section: str, levels: Sequence[Level]) -> Sequence[Level]:
    """Return the levels whose *section* applies to the nearest one: same envelope or protocol."""
    return [level for level in levels if section not in foreign_sections(level, levels[0])]


def merged_properties(levels: Sequence[Level]) -> tuple[MergedProperty, ...]:
    """Return every property of the definition that *levels* make, in the order of the definition."""
    bases = levels[1:]
    before: dict[tuple[str, str], list[Property]] = {}
    for section, inherited, _, _ in _effective(bases, levels[0]):
        before.setdefault((section, inherited.name), []).append(inherited)
    properties: list[MergedProperty] = []
    effective = list(_effective(levels, levels[0]))
    times = Counter((section, prop.name) for section, prop, _, _ in effective)
    for section, prop, body, default in effective:
        known = before.get((section, prop.name), [])
        single = known[0] if len(known) == times[section, prop.name] == 1 else None  # else nothing is merged
        raw = body.raw if body.nearest else None
        properties.append(
            MergedProperty(prop, section, body.members, tuple(body.hidden), body.nearest, raw, single, default)
        )
    return tuple(properties)


def _effective(levels: Sequence[Level], of: Level) -> Iterator[tuple[str, Property, _Body, PropertyType]]:
    """Yield section, property, body and default type of the merged properties of *levels* for the definition *of*.

    Properties of farther levels come first, attributes before options.
    """
    merged: dict[str, Any] = {}
    order: dict[tuple[str, str | None], int] = {}
    for place in range(len(levels) - 1, -1, -1):
        foreign = foreign_sections(levels[place], of)
        bodies_of = _bodies(levels[place], nearest=place == 0)
        own = {section: members for section, members in bodies_of.items() if section not in foreign}
        merged = merge(merged, own, _laid_over)
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
        yield section, declared_property(path, raw, default, _SILENT, required=required), body, default


def _laid_over(below: list[Any], above: list[Any]) -> list[Any]:
    """Merge bodies; a repeated name replaces, and so does one that was no property's below."""
    if not all(isinstance(each, _Body) for each in (*below, *above)):
        return above
    if len(below) == len(above) == 1:
        return [below[0].overlaid(above[0])]
    above[0].hidden.extend(said for each in below for said in (*each.hidden, *each.members.values()))
    return above


def _bodies(level: Level, *, nearest: bool) -> dict[str, dict[str, Any]]:
    """Return the properties that one level writes, each with its location."""

    def body(raw: Any, place: SourceLocation | None) -> _Body:
        if not isinstance(raw, dict):
            return _Body({"value": LevelValue(level, "value", raw, place)}, scalar=True, nearest=nearest, raw=raw)
        given = (name for name in MEMBERS if raw.get(name) is not None)
        members = {name: LevelValue(level, name, raw[name], place and place / name) for name in given}
        return _Body(members, nearest=nearest, raw=raw)

    written: dict[str, dict[str, Any]] = {}
    if _METADATA in level.message.attributes:
        written[_METADATA] = {
            name: body(raw, attribute_place(level.message, name)) for name, raw in level.metadata.items()
        }
    places = OptionPlaces(level.message, level.spelling)
    sections = VOCABULARIES.get(level.spelling or "", ANY_VOCABULARY).sections
    options = written[_OPTIONS] = {}
    for top, value in level.options.items():
        if isinstance(value, Named):
            entries = ((sub, _of_entry(level.message, places.of(f"{top}.{sub}")), raw) for sub, raw in value.entries)
            options[top] = Named(tuple((sub, body(raw, place)) for sub, place, raw in entries))
        elif isinstance(value, dict) and top in sections:
            options[top] = {sub: body(raw, places.of(f"{top}.{sub}")) for sub, raw in value.items()}
        else:
            options[top] = body(value, places.of(top))
    return written


def _of_entry(message: DeclaredMessage, place: SourceLocation | None) -> SourceLocation | None:
    """Return the location of a list entry's body, one level deeper in ``{NAME: {…}}`` than in ``{name, …}``."""
    above = message.at("protocoloptions").pointer + "/"
    node = message.attributes.get("protocoloptions")
    if place is None or not place.pointer.startswith(above):
        return place
    for key in place.pointer[len(above) :].split("/"):
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
            short = short_entry(node)
            return place / short[0] if short is not None else place
        node = node.get(unescaped(key)) if isinstance(node, dict) else None
    return place
