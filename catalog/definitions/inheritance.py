"""Merge every message with its bases (MATCHING.md#inheritance).

Chains of bases are followed in a loop, so that no document can exhaust the stack. Each message is resolved once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from catalog.findings import Declarations, DeclaredMessage, Findings, SourceLocation
from catalog.model import CLOUDEVENTS, Definition, PropertyType, Relation
from catalog.parsing.nearest import Suggestions
from catalog.protocols.properties import (
    ALL_OPTIONS,
    ATTRIBUTE_TYPES,
    PROTOCOL_OPTIONS,
    ProtocolOptions,
    canonical_member,
    canonical_option,
    squash_name,
)
from catalog.references import ReferenceResolver
from catalog.values import is_number, to_text

# Normalise protocol options before merging: canonical names, ordered lists of named values.
#
# Only names are normalised; property bodies (``{type, value}`` or a bare scalar) are not, since a scalar replaces a
# whole inherited object and an object is merged.

CONTENT_TYPE: Final = "content-type"
_ENTRY_MEMBERS: Final = frozenset({"name", "type", "value", "required", "description", "specurl"})


@dataclass(frozen=True, slots=True)
class NamedValues:
    """A list of named values, in order. If a name is repeated, all its entries must match."""

    entries: tuple[tuple[str, Any], ...]

    def merge_with(self, overlay: NamedValues, lay: Callable[[list[Any], list[Any]], list[Any]]) -> NamedValues:
        """Return this list merged with *overlay*; *lay* merges the inherited and the overlaid bodies of one name."""
        own: dict[str, list[Any]] = {}
        for name, body in overlay.entries:
            own.setdefault(name, []).append(body)
        inherited: dict[str, list[Any]] = {}
        for name, body in self.entries:
            inherited.setdefault(name, []).append(body)
        united: list[tuple[str, Any]] = []
        for name in dict.fromkeys((*inherited, *own)):
            united.extend((name, body) for body in lay(inherited.get(name, []), own.get(name, [])))
        return NamedValues(tuple(united))


def parse_short_entry(body: Any) -> tuple[str, Any] | None:
    """Return name and body of an entry ``{NAME: {…}}`` in a list of named values; None for any other entry."""
    if not isinstance(body, dict) or len(body) != 1:
        return None
    name, inner = next(iter(body.items()))
    return None if name in _ENTRY_MEMBERS or isinstance(inner, list) else (name, inner)


def normalize_options(
    options: Mapping[str, Any], protocol: str | None, place: SourceLocation, findings: Findings
) -> dict[str, Any]:
    """Return the options in canonical spelling; report and leave out unknown ones."""
    vocabulary = PROTOCOL_OPTIONS.get(protocol or "", ALL_OPTIONS)
    normal: dict[str, Any] = {}
    for name, value, at in _iter_options(options, protocol, place):
        if value is None:
            continue
        canonical = canonical_option(protocol, name)
        if canonical is None:
            if protocol in PROTOCOL_OPTIONS:
                hint = f"remove it, or correct the name; {protocol} has {', '.join(_known_option_names(vocabulary))}"
                findings.warning(at, "unknown-option", f"{protocol} has no option {name}; it is ignored", hint)
            continue
        if canonical != name:
            findings.report_spelling(at, name, canonical)
        if canonical in normal and canonical != name:
            continue
        read = _normalize_option(vocabulary, canonical, value, at, findings)
        if read is not None:
            normal[canonical] = read
    return normal


def _normalize_option(
    vocabulary: ProtocolOptions, name: str, value: Any, at: SourceLocation, findings: Findings
) -> Any:
    if name in vocabulary.lists:
        return NamedValues(tuple(_iter_named_values(value, at, findings, lower=name in vocabulary.lower)))
    if name in vocabulary.sections:
        return _read_section(value, vocabulary.sections[name], at, findings)
    return value


def _iter_options(
    options: Mapping[str, Any], protocol: str | None, place: SourceLocation
) -> Iterator[tuple[str, Any, SourceLocation]]:
    """Yield the options as (name, value, location); those of MQTT may be below ``properties``."""
    for name, value in options.items():
        if name == "properties" and isinstance(value, dict) and (protocol or "").startswith("MQTT/"):
            for inner, member in value.items():
                yield inner, member, place / name / inner
        else:
            yield name, value, place / name


def _iter_named_values(value: Any, at: SourceLocation, findings: Findings, *, lower: bool) -> Iterator[tuple[str, Any]]:
    """Yield (name, body) from a list of ``{name, …}``, a list of ``{NAME: {…}}`` as in 0.5, or a map."""
    for key, body, place in _entries(value, at, findings):
        name: Any = key
        short = parse_short_entry(body) if key is None else None
        if short is not None:
            name, body = short
        elif isinstance(body, dict):
            name = body.get("name", key)
            body = {member: content for member, content in body.items() if member != "name"}
        if is_number(name):
            name = to_text(name)
        if not isinstance(name, str) or not name:
            findings.error(place, "unnamed-property", "a property has no name and is ignored", "give it a name")
        elif body is not None:
            yield name.lower() if lower or name.lower() == CONTENT_TYPE else name, body


def _entries(value: Any, at: SourceLocation, findings: Findings) -> Iterator[tuple[str | None, Any, SourceLocation]]:
    if isinstance(value, dict):
        for key, body in value.items():
            yield key, body, at / key
    elif isinstance(value, list):
        for index, body in enumerate(value):
            yield None, body, at / index
    else:
        hint = "write a list of {name, type, value}"
        findings.error(at, "wrong-shape", "this is neither a list nor a map of properties; it is ignored", hint)


def _read_section(
    value: Any, table: Mapping[str, PropertyType] | None, at: SourceLocation, findings: Findings
) -> dict[str, Any] | None:
    if not isinstance(value, (dict, list)):
        findings.error(at, "wrong-shape", "an AMQP section must be a map; it is ignored", "write a map by name")
        return None
    section: dict[str, Any] = {}
    for name, body in _iter_named_values(value, at, findings, lower=False):
        canonical = name if table is None else canonical_member(table, name)
        if canonical is None:
            hint = "correct the name, or move it to application-properties"
            findings.warning(at / name, "unknown-option", f"AMQP has no property {name}; it is ignored", hint)
            continue
        if canonical != name:
            findings.report_spelling(at / name, name, canonical)
        section[canonical] = body
    return section


def _known_option_names(vocabulary: ProtocolOptions) -> tuple[str, ...]:
    return (*vocabulary.scalars, *vocabulary.lists, *vocabulary.sections)


# The location of a property in its document, given its canonical name.


def attribute_location(message: DeclaredMessage, name: str) -> SourceLocation | None:
    """Return the location of an envelope attribute; None if the message inherits it."""
    raw = message.attributes.get("envelopemetadata")
    place = message.at("envelopemetadata")
    if (elsewhere := message.written.get(f"envelopemetadata.{name}")) is not None:
        return elsewhere
    return place / name if isinstance(raw, dict) and name in raw else None


def option_location(message: DeclaredMessage, name: str, protocol: str | None) -> SourceLocation | None:
    """Return the location of a protocol option named as in the model; None if the message inherits it.

    For many options of one message, use :class:`OptionLocations`.
    """
    return OptionLocations(message, protocol).find(name)


class OptionLocations:
    """The locations of one message's protocol options, found in one pass."""

    def __init__(self, message: DeclaredMessage, protocol: str | None) -> None:
        self._message = message
        self._protocol = protocol
        self._options: dict[str, tuple[Any, SourceLocation]] | None = None
        self._members: dict[str, dict[str, SourceLocation]] = {}

    def find(self, name: str) -> SourceLocation | None:
        """Return the location of an option named as in the model; None if the message inherits it."""
        written = self._message.written.get(f"protocoloptions.{name}")
        if written is not None:
            return written
        if self._options is None:
            self._options = self._read_options()
        first, _, rest = name.partition(".")
        option = self._options.get(first)
        if option is None or not rest:
            return option[1] if option else None
        if first not in self._members:
            self._members[first] = _member_locations(*option)
        return self._members[first].get(squash_name(rest))

    def _read_options(self) -> dict[str, tuple[Any, SourceLocation]]:
        """Return value and location of each option by its canonical and its written name; the first one wins."""
        raw = self._message.attributes.get("protocoloptions")
        if not isinstance(raw, dict):
            return {}
        place = self._message.at("protocoloptions")
        holders = [(raw, place)]
        if isinstance(raw.get("properties"), dict):
            holders.append((raw["properties"], place / "properties"))
        options: dict[str, tuple[Any, SourceLocation]] = {}
        for holder, at in holders:
            for key, value in holder.items():
                for name in (key, canonical_option(self._protocol, key)):
                    if name is not None and name not in options:
                        options[name] = (value, at / key)
        return options


def _member_locations(raw: Any, place: SourceLocation) -> dict[str, SourceLocation]:
    """Return the locations of named values by normalised name; the first of a repeated name wins."""
    entries = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    members: dict[str, SourceLocation] = {}
    for key, body in entries:
        short = parse_short_entry(body) if isinstance(raw, list) else None
        written = short[0] if short else body.get("name", key) if isinstance(body, dict) else key
        if isinstance(written, str) and (shared := squash_name(written)) not in members:
            members[shared] = place / key
    return members


MAX_LEVELS: Final = 64
MAX_PROPERTIES: Final = 500_000
"""Maximum properties of all messages of a catalog: a few lines of inheritance can multiply them."""
_SCHEMA: Final = ("dataschema", "dataschemaxid", "dataschemauri")


@dataclass(frozen=True, slots=True)
class EffectiveMessage:
    """A message after inheritance. Its attributes are merged but not yet parsed as properties.

    ``protocol_declared`` is False if only a group's default gives the protocol. ``spelling`` is the protocol of these
    options: an endpoint's default is not the message's, but applies to the options of an inline one. ``own`` is what
    the message itself declares, in canonical spelling.
    """

    message: DeclaredMessage
    attributes: Mapping[str, Any]
    own: Mapping[str, Any]
    envelope: str | None = None
    protocol: str | None = None
    protocol_declared: bool = True
    spelling: str | None = None
    base: tuple[str, ...] = ()


class _HasSelectors(Protocol):
    """Anything with an envelope and the protocol that its options are written for; None if not declared."""

    @property
    def envelope(self) -> str | None: ...
    @property
    def spelling(self) -> str | None: ...


def foreign_sections(base: _HasSelectors, derived: _HasSelectors) -> tuple[str, ...]:
    """Return the sections that *derived* does not inherit from *base*, since envelope or protocol differ.

    A base without envelope or protocol passes on all its sections.
    """
    sections: tuple[str, ...] = ()
    if None not in (base.envelope, derived.envelope) and base.envelope != derived.envelope:
        sections += ("envelopemetadata", "envelopeoptions")
    if None not in (base.spelling, derived.spelling) and base.spelling != derived.spelling:
        sections += ("protocoloptions",)
    return sections


@dataclass(slots=True)
class InheritanceResolver:
    """Merges the messages of a catalog with their bases. Unusable messages are reported and left out."""

    declarations: Declarations
    resolver: ReferenceResolver
    findings: Findings
    _resolved: dict[str, EffectiveMessage | None] = field(default_factory=dict)
    _errors: set[str] = field(default_factory=set)
    _base_xids: dict[str, str | None] = field(default_factory=dict)
    _properties: int = 0
    _suggestions: Suggestions = field(init=False)

    def __post_init__(self) -> None:
        self._suggestions = Suggestions(self.declarations.messages)

    def resolve(self) -> list[EffectiveMessage]:
        """Return all usable messages except versions, in the order of their documents."""
        for xid in list(self.declarations.messages):  # references may add messages of other documents
            self._resolve_chain(xid)
        resolved = (self._resolved[xid] for xid in self.declarations.messages)
        return [effective for effective in resolved if effective is not None and not effective.message.hidden]

    def _resolve_chain(self, xid: str) -> None:
        chain: dict[str, None] = {}
        current: str | None = xid
        while current is not None and current not in self._resolved:
            if current in chain:
                self._report_cycle(list(chain), current)
                break
            chain[current] = None
            current = self._base_xid(current)
        for name in reversed(chain):
            if name not in self._resolved:
                self._resolved[name] = self._inherit(name)

    def _report_cycle(self, chain: list[str], entry: str) -> None:
        """Report a cycle and mark its messages; messages that lead into it are marked later."""
        cycle = chain[chain.index(entry) :]
        for xid in cycle:
            message = self.declarations.messages[xid]
            text = f"{xid} is its own base: {' -> '.join((*cycle[:8], '...') if len(cycle) > 8 else (*cycle, entry))}"
            self.findings.error(message.place, "base-cycle", text, "remove one basemessage of the cycle")
            self._resolved[xid] = None
            self._errors.add(xid)

    def _base_xid(self, xid: str) -> str | None:
        if xid not in self._base_xids:
            message = self.declarations.messages[xid]
            reference = message.borrowed or message.base
            self._base_xids[xid] = None if reference is None else self.resolver.resolve_message(reference, xid)
            failure = self.resolver.failure_of(reference or "", xid)
            if failure is not None and failure.transient:
                text = f"{reference} is unavailable at present, so {xid} is incomplete: {failure}"
                self.findings.warning(message.place, "unreachable-reference", text, failure.hint)
        return self._base_xids[xid]

    def _inherit(self, xid: str) -> EffectiveMessage | None:
        message = self.declarations.messages[xid]
        target = self._base_xid(xid)
        if target in self._errors:
            text = f"{xid} derives from {target}, which has an error"
            self.findings.error(message.place, "base-error", text, "fix the base")
            self._errors.add(xid)
            return None
        base = self._resolved[target] if target is not None else None
        if base is None and not self._is_usable(message):
            return None
        if base is not None and len(base.base) >= MAX_LEVELS:
            text = f"{xid} has a chain of bases with more than {MAX_LEVELS} levels"
            self.findings.error(message.place, "base-too-deep", text, "shorten the chain of bases")
            self._errors.add(xid)
            return None
        return self._check_property_count(self._merge_with_base(message, base))

    def _check_property_count(self, effective: EffectiveMessage) -> EffectiveMessage | None:
        """Return *effective*, or report it and return None if there are too many properties."""
        size = _count_properties(effective.attributes)
        if self._properties + size > MAX_PROPERTIES:
            message = effective.message
            text = f"{message.xid} has {size} properties, and all messages together have more than {MAX_PROPERTIES}"
            self.findings.error(message.place, "too-many", text, "inherit less, or split the catalog")
            self._errors.add(message.xid)
            return None
        self._properties += size
        return effective

    def _is_usable(self, message: DeclaredMessage) -> bool:
        """Report a dangling reference; return whether the message can be used without it."""
        reference = message.borrowed or message.base
        failure = self.resolver.failure_of(reference or "", message.xid)
        if reference is not None and (failure is None or not failure.transient):
            reason = f" ({failure})" if failure is not None else ""
            rule, text = "dangling-base", f"the base {reference} was not found{reason}; the definition is used as is"
            if message.borrowed is not None:
                rule = "dangling-borrow"
                text = f"{message.xid} borrows {reference}, which was not found{reason}; it is left out"
            hint = self._suggestions.hint(reference, "correct the reference, or add the document")
            self.findings.warning(message.place, rule, text, hint)
        return message.borrowed is None

    def _merge_with_base(self, message: DeclaredMessage, base: EffectiveMessage | None) -> EffectiveMessage:
        """Merge a message with its base: envelope and protocol are its own, else the base's, else its group's."""
        own = dict(message.attributes)
        group = self.resolver.declared_group(message.group)
        envelope = own.pop("envelope", None) or (base.envelope if base else None) or (group.envelope if group else None)
        protocol, declared = own.pop("protocol", None), True
        if protocol is None and base is not None and base.protocol is not None:
            protocol, declared = base.protocol, base.protocol_declared
        elif protocol is None and group is not None and group.protocol is not None:
            protocol, declared = group.protocol, False
        endpoint = self.declarations.endpoints.get(message.group) or self.resolver.external_endpoint(message.group)
        spelling = protocol or (endpoint.protocol if endpoint else None)
        options = own.get("protocoloptions")
        if options is not None:
            own["protocoloptions"] = normalize_options(options, spelling, message.at("protocoloptions"), self.findings)
        metadata = own.get("envelopemetadata")
        if metadata is not None:
            own["envelopemetadata"] = {name: body for name, body in metadata.items() if body is not None}
        effective = EffectiveMessage(message, own, own, envelope, protocol, declared, spelling)
        if base is None:
            return effective
        inherited = self._inherited_attributes(effective, base)
        self._report_foreign(effective, base, inherited)
        return replace(effective, attributes=overlay(inherited, own), base=(base.message.xid, *base.base))

    def _inherited_attributes(self, derived: EffectiveMessage, base: EffectiveMessage) -> Mapping[str, Any]:
        """Return the inherited attributes, without sections of another envelope or protocol."""
        levels = [base, *(each for each in map(self._resolved.get, base.base) if each is not None)]
        foreign = [foreign_sections(level, derived) for level in levels]
        if not any(foreign):
            return base.attributes
        inherited: dict[str, Any] = {}
        for level, sections in zip(reversed(levels), reversed(foreign), strict=True):
            kept = {name: value for name, value in level.own.items() if name not in sections}
            inherited = overlay(inherited, kept)
        return inherited

    def _report_foreign(self, derived: EffectiveMessage, base: EffectiveMessage, inherited: Mapping[str, Any]) -> None:
        """Report properties that are not inherited because the message has another envelope or protocol."""
        message = derived.message
        for selector, section, own, others in (
            ("envelope", "envelopemetadata", derived.envelope, base.envelope),
            ("envelope", "envelopeoptions", derived.envelope, base.envelope),
            ("protocol", "protocoloptions", derived.spelling, base.spelling),
        ):
            left = sorted(_iter_missing_names(base.attributes.get(section) or {}, inherited.get(section) or {}))
            if left:
                place = message.at(selector) if selector in message.attributes else message.place
                names = ", ".join((*left[:5], "...") if len(left) > 5 else left)
                text = (
                    f"{message.xid} has {selector} {own}, but its base {base.message.xid} has {others}: "
                    f"it does not inherit {section} {names}"
                )
                hint = f"write them in {message.xid} too, or move the common part to a base without {selector}"
                self.findings.warning(place, "foreign-base", text, hint)


def _iter_missing_names(given: Mapping[str, Any], inherited: Mapping[str, Any]) -> Iterator[str]:
    return (name for name, value in given.items() if name not in inherited or inherited[name] != value)


MergeRule = Callable[[list[Any], list[Any]], list[Any]]
"""Merges the inherited bodies of a name with the overriding ones; several if a list repeats the name."""


def merge_values(inherited: Any, overlay: Any, replaced: MergeRule = lambda below, above: above) -> Any:
    """Deep-merge maps and named lists by member; anything else is replaced. A null member is ignored.

    A repeated name in a list is replaced too. *replaced* may record overridden values.
    """
    if isinstance(inherited, NamedValues) and isinstance(overlay, NamedValues):
        return inherited.merge_with(overlay, partial(_merge_lists, replaced=replaced))
    if not isinstance(inherited, dict) or not isinstance(overlay, dict):
        return replaced([inherited], [overlay])[0]
    merged = dict(inherited)
    for name, value in overlay.items():
        if value is not None:
            merged[name] = merge_values(merged[name], value, replaced) if name in merged else value
    return merged


def _merge_lists(below: list[Any], above: list[Any], replaced: MergeRule) -> list[Any]:
    if len(below) == len(above) == 1:
        return [merge_values(below[0], above[0], replaced)]
    return replaced(below, above) if above else below


def overlay(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge attributes. The ways to declare a schema exclude each other, so the nearest one wins."""
    kept = dict(inherited)
    if any(name in own for name in _SCHEMA):
        kept = {name: value for name, value in kept.items() if name not in _SCHEMA or name in own}
    merged: dict[str, Any] = merge_values(kept, dict(own))
    return merged


def _count_properties(attributes: Mapping[str, Any]) -> int:
    """Count the properties in merged attributes."""
    options = attributes.get("protocoloptions", {}).values()
    inner = sum(
        len(each.entries) if isinstance(each, NamedValues) else len(each) for each in options if _has_many(each)
    )
    return len(attributes.get("envelopemetadata", ())) + len(options) + inner


def _has_many(option: Any) -> bool:
    return isinstance(option, (NamedValues, dict))


# Relations between definitions, such as request and reply (CNCF Message Catalog 0.1).
#
# ``relatedto``, ``relatedvia`` and ``relation`` are read in every dialect; 1.0 has no names for them and treats them
# as extensions. Derived definitions inherit them.
#
# Section 3 defines the properties that ``relatedvia`` may name and their counterparts in the related message, by
# format: an attribute of a CloudEvent equals the other's ``id``; an AMQP correlation id or application property equals
# the other's message id, and the group id its group id; MQTT 5 correlation data or a user property equals the other's
# correlation data. Other protocols have no such rule.

RELATED_TO: Final = "relatedto"
RELATED_VIA: Final = "relatedvia"
RELATION_KIND: Final = "relation"
_NAMES: Final = (RELATED_TO, RELATED_VIA, RELATION_KIND)
_IDENTITIES: Final = {"correlation-id": "message-id", "group-id": "group-id"}
"""AMQP properties that relate messages, with their counterparts in the related message."""
_CORRELATION: Final = "correlation_data"


def add_relations(definitions: Mapping[str, Definition], declarations: Declarations) -> dict[str, Definition]:
    """Return the definitions with their relations, except those to definitions that cannot be used."""
    related = {xid: read_relation(each, definitions, declarations) for xid, each in definitions.items()}
    return {
        xid: each if (relation := related[xid]) is None else replace(each, relation=relation)
        for xid, each in definitions.items()
    }


def read_relation(
    definition: Definition, definitions: Mapping[str, Definition], declarations: Declarations
) -> Relation | None:
    """Return the relation of a definition to another, declared by itself or its bases."""
    said: dict[str, str] = {}
    target = ""
    for xid in (definition.xid, *definition.base):
        message = declarations.messages[xid]
        for name, value in relation_attributes(message).items():
            if name == RELATED_TO and RELATED_TO not in said:
                target = related_xid(message, value)
            said.setdefault(name, value)
    if target not in definitions:
        return None
    via, of = correlation_keys(said.get(RELATED_VIA, ""), definition)
    return Relation(target, said.get(RELATION_KIND, ""), via, of)


def related_xid(message: DeclaredMessage, related: str) -> str:
    """Return the xid of the related definition; *related* is an xid or an id in the same group."""
    return related if related.startswith("/") else f"{message.group}/messages/{related}"


def correlation_keys(via: str, definition: Definition) -> tuple[str, str]:
    """Return the constraint keys of the property *via* and of its counterpart; empty if *via* is unknown.

    The keys are described in :mod:`catalog.definitions.constraints`.
    """
    name = via.removeprefix("attributes.")
    attributes = {*ATTRIBUTE_TYPES, *(prop.name for prop in definition.envelopemetadata)}
    if definition.envelope == CLOUDEVENTS and name in attributes:
        return f"e.{name}", "e.id"
    section, _, member = via.partition(".")
    options = {prop.name for prop in definition.protocoloptions}
    if definition.protocol == "AMQP/1.0":
        identity = canonical_member(dict.fromkeys(_IDENTITIES, "string"), member)
        if squash_name(section) == "properties" and identity is not None:
            return f"p.properties.{identity}", f"p.properties.{_IDENTITIES[identity]}"
        if squash_name(section) == "applicationproperties" and f"application-properties.{member}" in options:
            return f"p.application-properties.{member}", "p.properties.message-id"
    if definition.protocol == "MQTT/5.0":
        if section in ("publish", via) and canonical_option("MQTT/5.0", member or section) == _CORRELATION:
            return f"p.{_CORRELATION}", f"p.{_CORRELATION}"
        if squash_name(section) in ("userproperty", "userproperties") and f"user_properties.{member}" in options:
            return f"p.user_properties.{member}", f"p.{_CORRELATION}"
    return "", ""


def relation_attributes(message: DeclaredMessage) -> dict[str, str]:
    """Return the relation attributes that a message itself declares, by name."""
    return {name: text for name in _NAMES if isinstance(text := message.other.get(name), str) and text}
