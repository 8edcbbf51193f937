"""Merge every message with its bases, keeping who wrote what (MATCHING.md#inheritance).

A property is the history of what the messages of a chain write about it, the most remote base first: its value is the
history merged, its origins are the history read. Chains are followed in a loop, so that no document can exhaust the
stack. Each message is resolved once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Final, NamedTuple

from catalog.findings import (
    Declarations,
    DeclaredEndpoint,
    DeclaredGroup,
    DeclaredMessage,
    EffectiveMessage,
    Findings,
    History,
    Section,
    SourceLocation,
    WrittenBody,
)
from catalog.model import CLOUDEVENTS, Definition, Property, PropertyType, Relation
from catalog.parsing.nearest import Suggestions
from catalog.protocols.properties import (
    ALL_OPTIONS,
    ALWAYS_REQUIRED,
    AMQP_SECTIONS,
    ATTRIBUTE_TYPES,
    PROTOCOL_OPTIONS,
    amqp_type_of,
    canonical_member,
    canonical_option,
    canonical_type,
    squash_name,
)
from catalog.references import ReferenceResolver
from catalog.values import NOW, WrittenNumber, is_number, is_old_now, plain_number, to_text

# Reading what one message writes: canonical names, and bodies (``{type, value}`` or a bare scalar) as written.

CONTENT_TYPE: Final = "content-type"
METADATA: Final = "envelopemetadata"
OPTIONS: Final = "protocoloptions"
_ENVELOPE: Final = "envelopeoptions"
BODY_MEMBERS: Final = ("type", "value", "required")
_ENTRY_MEMBERS: Final = frozenset({"name", "type", "value", "required", "description", "specurl"})


def parse_short_entry(body: Any) -> tuple[str, Any] | None:
    """Return name and body of an entry ``{NAME: {…}}`` in a list of named values; None for any other entry."""
    if not isinstance(body, dict) or len(body) != 1:
        return None
    name, inner = next(iter(body.items()))
    return None if name in _ENTRY_MEMBERS or isinstance(inner, list) else (name, inner)


class _SectionReader:
    """Reads the properties that one message writes. Unknown options are reported and left out."""

    def __init__(self, message: DeclaredMessage, spelling: str | None, findings: Findings) -> None:
        self._message = message
        self._spelling = spelling
        self._findings = findings
        self._elsewhere = {path: at for path, at in message.written.items() if "." in path}

    def read(self) -> dict[str, Section]:
        """Return the envelope attributes (``envelopemetadata``), and each option with its members ('' for itself)."""
        sections: dict[str, Section] = {}
        metadata, options = (self._message.attributes.get(name) for name in (METADATA, OPTIONS))
        if metadata is not None:
            at = self._message.at(METADATA)
            given = ((name, body) for name, body in metadata.items() if body is not None)
            sections[METADATA] = {name: ((self._body(body, at, name, (METADATA, name)),),) for name, body in given}
        for name, value, at in self._iter_options(options or {}):
            canonical = canonical_option(self._spelling, name)
            if canonical is None:
                self._report_unknown(name, at)
                continue
            if canonical != name:
                self._findings.report_spelling(at / name, name, canonical)
            if canonical == name or canonical not in sections:
                section = self._read_option(canonical, value, at, name)
                if section is not None:
                    sections[canonical] = section
        return sections

    def _body(
        self, raw: Any, parent: SourceLocation, key: str | int, path: tuple[str, ...], nested: str = ""
    ) -> WrittenBody:
        if self._elsewhere and (elsewhere := self._elsewhere.get(".".join(path))) is not None:
            return WrittenBody(raw, self._message, elsewhere, None, nested)
        return WrittenBody(raw, self._message, parent, key, nested)

    def _iter_options(self, options: Mapping[str, Any]) -> Iterator[tuple[str, Any, SourceLocation]]:
        """Yield the options as (name, value, parent); those of MQTT may be below ``properties``."""
        place = self._message.at(OPTIONS)
        for name, value in options.items():
            if name == "properties" and isinstance(value, dict) and (self._spelling or "").startswith("MQTT/"):
                below = place / name
                yield from ((inner, member, below) for inner, member in value.items() if member is not None)
            elif value is not None:
                yield name, value, place

    def _report_unknown(self, name: str, at: SourceLocation) -> None:
        protocol = self._spelling
        known = PROTOCOL_OPTIONS.get(protocol or "")
        if known is not None:
            names = ", ".join((*known.scalars, *known.lists, *known.sections))
            hint = f"remove it, or correct the name; {protocol} has {names}"
            text = f"{protocol} has no option {name}; it is ignored"
            self._findings.warning(at / name, "unknown-option", text, hint)

    def _read_option(self, name: str, value: Any, at: SourceLocation, key: str) -> Section | None:
        vocabulary = PROTOCOL_OPTIONS.get(self._spelling or "", ALL_OPTIONS)
        if name in vocabulary.sections:
            return self._read_section(name, value, vocabulary.sections[name], at / key)
        if name not in vocabulary.lists:
            return {"": ((self._body(value, at, key, (OPTIONS, name)),),)}
        members: dict[str, tuple[History, ...]] = {}
        for inner, body in self._iter_named_values(name, value, at / key, lower=name in vocabulary.lower):
            members[inner] = (*members.get(inner, ()), (body,))
        return members

    def _read_section(
        self, name: str, value: Any, table: Mapping[str, PropertyType] | None, at: SourceLocation
    ) -> Section | None:
        if not isinstance(value, (dict, list)):
            text = "an AMQP section must be a map; it is ignored"
            self._findings.error(at, "wrong-shape", text, "write a map by name")
            return None
        section: dict[str, tuple[History, ...]] = {}
        for inner, body in self._iter_named_values(name, value, at, lower=False):
            canonical = inner if table is None else canonical_member(table, inner)
            if canonical is None:
                hint = "correct the name, or move it to application-properties"
                text = f"AMQP has no property {inner}; it is ignored"
                self._findings.warning(at / inner, "unknown-option", text, hint)
                continue
            if canonical != inner:
                self._findings.report_spelling(at / inner, inner, canonical)
            section[canonical] = ((body,),)
        return section

    def _iter_named_values(
        self, option: str, value: Any, at: SourceLocation, *, lower: bool
    ) -> Iterator[tuple[str, WrittenBody]]:
        """Yield name and body from a list of ``{name, …}``, a list of ``{NAME: {…}}`` as in 0.5, or a map."""
        listed = isinstance(value, list)
        if not listed and not isinstance(value, dict):
            hint = "write a list of {name, type, value}"
            text = "this is neither a list nor a map of properties; it is ignored"
            self._findings.error(at, "wrong-shape", text, hint)
            return
        for key, body in enumerate(value) if listed else value.items():
            name: Any = None if listed else key
            short = parse_short_entry(body) if listed else None
            if short is not None:
                name, body = short
            elif isinstance(body, dict):
                name = body.get("name", name)
                body = {member: content for member, content in body.items() if member != "name"}
            if is_number(name):
                name = to_text(name)
            if not isinstance(name, str) or not name:
                text = "a property has no name and is ignored"
                self._findings.error(at / key, "unnamed-property", text, "give it a name")
            elif body is not None:
                nested = name if short is not None else ""
                name = name.lower() if lower or name.lower() == CONTENT_TYPE else name
                yield name, self._body(body, at, key, (OPTIONS, option, name), nested)


# Merging histories.


def merge_sections(below: Mapping[str, Section], own: Mapping[str, Section]) -> dict[str, Section]:
    """Merge the sections of a message over those of its bases, name by name. A repeated name replaces all before."""
    merged = dict(below)
    for name, members in own.items():
        known = merged.get(name)
        if known is None:
            merged[name] = members
            continue
        united = dict(known)
        for inner, histories in members.items():
            before = united.get(inner)
            united[inner] = histories if before is None else _extend_histories(before, histories)
        merged[name] = united
    return merged


def _extend_histories(before: tuple[History, ...], own: tuple[History, ...]) -> tuple[History, ...]:
    if len(before) == len(own) == 1:
        return ((*before[0], *own[0]),)
    first, *rest = own
    replaced = (body for history in before for body in history)
    return ((*replaced, first[0]._replace(replaces=True)), *rest)


def merged_body(history: History) -> Any:
    """Return what a history amounts to: objects are merged, and a scalar replaces everything before it."""
    body = history[0].raw
    for each in history[1:]:
        if isinstance(body, dict) and isinstance(each.raw, dict) and not each.replaces:
            body = {**body, **{name: value for name, value in each.raw.items() if value is not None}}
        else:
            body = each.raw
    return body


class PropertyHistory(NamedTuple):
    """A property of a definition, with its default type, and whether CloudEvents always requires it."""

    section: str
    name: str
    history: History
    default: PropertyType
    required: bool = False

    def read(self, findings: Findings | None = None) -> Property:
        """Read ``{type, value, required}``, or a bare scalar as the ``value``.

        Problems are reported where the last message of the history writes it.
        """
        name, default, body = self.name, self.default, merged_body(self.history)

        def warn(rule: str, message: str, hint: str) -> None:
            if findings is not None:
                findings.warning(self.history[-1].entry, rule, message, hint)

        if not isinstance(body, dict):
            return Property(name, default, _convert_to_type(default, _read_value(body, warn)), self.required)
        declared = body.get("type")
        kind = canonical_type(declared) if isinstance(declared, str) and declared else default
        if not isinstance(declared, (str, NoneType)) or kind is None:
            hint = "use one of the types of the 1.0 message specification"
            warn("unknown-type", f"the type {declared!r:.80} of {name} is unknown; read as {default}", hint)
        value = _convert_to_type(kind or default, _read_value(body.get("value"), warn))
        wire = amqp_type_of(declared) if isinstance(declared, str) and name.partition(".")[0] in AMQP_SECTIONS else ""
        return Property(name, kind or default, value, self.required or _read_required(body, warn), wire)


def iter_histories(effective: EffectiveMessage) -> Iterator[PropertyHistory]:
    """Yield the properties of a message: attributes, then the options that its protocol defines."""
    cloudevents = effective.envelope in (CLOUDEVENTS, None)
    sections, spelling = effective.sections, effective.spelling
    for name, histories in sections.get(METADATA, {}).items():
        default = ATTRIBUTE_TYPES.get(name, "string") if cloudevents else "string"
        for history in histories:
            yield PropertyHistory(METADATA, name, history, default, cloudevents and name in ALWAYS_REQUIRED)
    vocabulary = PROTOCOL_OPTIONS.get(spelling or "", ALL_OPTIONS)
    for written, members in sections.items():
        option = canonical_option(spelling, written)
        if option is None or (option != written and option in sections):
            continue
        table = vocabulary.sections.get(option)
        for inner, histories in members.items():
            known: str | None = inner.lower() if option in vocabulary.lower else inner
            if table is not None:
                known = canonical_member(table, inner)
            if known is None:
                continue
            kind = vocabulary.scalars.get(option, "string") if table is None else table[known]
            for history in histories:
                yield PropertyHistory(OPTIONS, f"{option}.{known}" if known else option, history, kind)


def build_definition(effective: EffectiveMessage, findings: Findings) -> Definition:
    """Build the definition; report invalid properties and read them as far as possible."""
    message, attributes = effective.message, effective.attributes
    read: dict[str, list[Property]] = {METADATA: [], OPTIONS: []}
    for each in iter_histories(effective):
        own = each.history[-1].message is message  # what is inherited is reported at the base
        read[each.section].append(each.read(findings if own else None))
    return Definition(
        xid=message.xid,
        group=message.group,
        envelope=effective.envelope,
        protocol=effective.protocol,
        protocol_declared=effective.protocol_declared,
        envelopemetadata=tuple(read[METADATA]),
        protocoloptions=tuple(read[OPTIONS]),
        envelopeoptions=attributes.get("envelopeoptions", {}),
        dataschemaformat=attributes.get("dataschemaformat"),
        dataschema=attributes.get("dataschema"),
        dataschemauri=attributes.get("dataschemauri"),
        dataschemaxid=attributes.get("dataschemaxid"),
        datacontenttype=attributes.get("datacontenttype"),
        base=tuple(each.message.xid for each in effective.bases),
    )


# Reading one property: type, value and ``required`` (MATCHING.md#property-types).

_NUMBERS: Final = frozenset({"any", "boolean", "integer", "number"})


_Warn = Callable[[str, str, str], None]


def _convert_to_type(kind: PropertyType, value: str | bool | int | float | None) -> str | bool | int | float | None:
    """Convert a value to its type: a plain number, or the text of a number where text is needed."""
    if isinstance(value, WrittenNumber):
        return plain_number(value) if kind in _NUMBERS else to_text(value)
    return NOW if kind == "timestamp" and is_old_now(value) else value


def _read_required(body: Mapping[str, Any], warn: _Warn) -> bool:
    value = body.get("required")
    if value is None or isinstance(value, bool):
        return bool(value)
    warn("wrong-shape", f"required is {value!r:.80}, which is not a boolean", "write true or false")
    return str(value).strip().lower() == "true"


def _read_value(value: Any, warn: _Warn) -> str | bool | int | float | None:
    if value is None or value == "":
        return None
    if isinstance(value, (str, bool, int, float)):
        return value
    warn("wrong-shape", "a value must be a string, number or boolean; this one is ignored", "write a scalar")
    return None


# The location of a property in its document, given its canonical name.


def attribute_location(message: DeclaredMessage, name: str) -> SourceLocation | None:
    """Return the location of an envelope attribute; None if the message inherits it."""
    raw = message.attributes.get(METADATA)
    if (elsewhere := message.written.get(f"{METADATA}.{name}")) is not None:
        return elsewhere
    return message.at(METADATA) / name if isinstance(raw, dict) and name in raw else None


def option_location(effective: EffectiveMessage, name: str) -> SourceLocation | None:
    """Return the location of a protocol option; None if the message inherits it."""
    for each in iter_histories(replace(effective, sections=effective.own)):
        if each.name == name and each.section == OPTIONS:
            return each.history[-1].entry
    return None


MAX_LEVELS: Final = 64
MAX_PROPERTIES: Final = 500_000
"""Maximum properties of all messages of a catalog: a few lines of inheritance can multiply them."""
_SCHEMA: Final = ("dataschema", "dataschemaxid", "dataschemauri")
_NO_DATA: Final = frozenset({"envelope", "protocol", METADATA, OPTIONS})


def foreign_sections(base: EffectiveMessage, envelope: str | None, spelling: str | None) -> tuple[str, ...]:
    """Return the sections that a message with this envelope and protocol does not inherit, since the base has others.

    A base without envelope or protocol passes on all its sections.
    """
    sections: tuple[str, ...] = ()
    if None not in (base.envelope, envelope) and base.envelope != envelope:
        sections += (METADATA, _ENVELOPE)
    if None not in (base.spelling, spelling) and base.spelling != spelling:
        sections += (OPTIONS,)
    return sections


def effective_of(xid: str, declarations: Declarations) -> EffectiveMessage:
    """Return a message after inheritance; one that cannot be used is read without its base."""
    known = declarations.effective.get(xid)
    return known if known is not None else _derive(declarations.messages[xid], None, declarations, Findings())


def _derive(
    message: DeclaredMessage, base: EffectiveMessage | None, declarations: Declarations, findings: Findings
) -> EffectiveMessage:
    """Merge a message with its base: envelope and protocol are its own, else the base's, else its group's."""
    home = declarations.external.get(message.group)
    group = declarations.groups.get(message.group) or (home if isinstance(home, DeclaredGroup) else None)
    endpoint = declarations.endpoints.get(message.group) or (home if isinstance(home, DeclaredEndpoint) else None)
    given = message.attributes
    envelope = given.get("envelope") or (base.envelope if base else None) or (group.envelope if group else None)
    protocol, declared = given.get("protocol"), True
    if protocol is None and base is not None and base.protocol is not None:
        protocol, declared = base.protocol, base.protocol_declared
    elif protocol is None and group is not None and group.protocol is not None:
        protocol, declared = group.protocol, False
    spelling = protocol or (endpoint.protocol if endpoint else None)
    own, data = _SectionReader(message, spelling, findings).read(), _data_of(message)
    effective = EffectiveMessage(message, group, envelope, protocol, declared, spelling, own, own, data)
    if base is None:
        return effective
    bases = (base, *base.bases)
    foreign = [foreign_sections(each, envelope, spelling) for each in bases]
    sections, attributes = base.sections, base.attributes
    if any(foreign):
        sections, attributes = {}, {}
        for each, left in zip(reversed(bases), reversed(foreign), strict=True):
            kept = {name: it for name, it in each.own.items() if (name if name == METADATA else OPTIONS) not in left}
            sections = merge_sections(sections, kept)
            attributes = overlay(attributes, {n: value for n, value in _data_of(each.message).items() if n not in left})
        _report_foreign(effective, base, sections, attributes, findings)
    return replace(effective, sections=merge_sections(sections, own), attributes=overlay(attributes, data), bases=bases)


def _data_of(message: DeclaredMessage) -> dict[str, Any]:
    return {name: value for name, value in message.attributes.items() if name not in _NO_DATA}


def _report_foreign(
    derived: EffectiveMessage,
    base: EffectiveMessage,
    sections: Mapping[str, Section],
    attributes: Mapping[str, Any],
    findings: Findings,
) -> None:
    """Report properties that are not inherited because the message has another envelope or protocol."""
    message = derived.message
    envelopes, protocols = (derived.envelope, base.envelope), (derived.spelling, base.spelling)
    compared: tuple[tuple[str, str, tuple[str | None, str | None], Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("envelope", METADATA, envelopes, base.sections.get(METADATA, {}), sections.get(METADATA, {})),
        ("envelope", _ENVELOPE, envelopes, base.attributes.get(_ENVELOPE, {}), attributes.get(_ENVELOPE, {})),
        ("protocol", OPTIONS, protocols, _options_in(base.sections), _options_in(sections)),
    )
    for selector, section, (own, others), given, inherited in compared:
        left = sorted(name for name, value in given.items() if name not in inherited or inherited[name] != value)
        if left:
            place = message.at(selector) if selector in message.attributes else message.place
            names = ", ".join((*left[:5], "...") if len(left) > 5 else left)
            text = (
                f"{message.xid} has {selector} {own}, but its base {base.message.xid} has {others}: "
                f"it does not inherit {section} {names}"
            )
            hint = f"write them in {message.xid} too, or move the common part to a base without {selector}"
            findings.warning(place, "foreign-base", text, hint)


def _options_in(sections: Mapping[str, Section]) -> dict[str, Section]:
    return {name: section for name, section in sections.items() if name != METADATA}


def overlay(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge attributes. The ways to declare a schema exclude each other, so the nearest one wins."""
    kept = dict(inherited)
    if any(name in own for name in _SCHEMA):
        kept = {name: value for name, value in kept.items() if name not in _SCHEMA or name in own}
    return _merge_objects(kept, own)


def _merge_objects(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Deep-merge objects; anything else is replaced. A null member is ignored."""
    merged = dict(inherited)
    for name, value in own.items():
        known = merged.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[name] = _merge_objects(known, value)
        elif value is not None:
            merged[name] = value
    return merged


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
        usable = {xid: each for xid in self.declarations.messages if (each := self._resolved[xid]) is not None}
        self.declarations.effective.update(usable)
        return [effective for effective in usable.values() if not effective.message.hidden]

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
        if base is not None and len(base.bases) >= MAX_LEVELS:
            text = f"{xid} has a chain of bases with more than {MAX_LEVELS} levels"
            self.findings.error(message.place, "base-too-deep", text, "shorten the chain of bases")
            self._errors.add(xid)
            return None
        return self._check_property_count(_derive(message, base, self.declarations, self.findings))

    def _check_property_count(self, effective: EffectiveMessage) -> EffectiveMessage | None:
        """Return *effective*, or report it and return None if there are too many properties."""
        size = sum(len(histories) for section in effective.sections.values() for histories in section.values())
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
