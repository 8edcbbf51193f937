"""The levels that a definition is made of, and every property as they lay it over one another.

Who explains or rewrites a catalog needs to know what each level says. So the levels are merged here once more, by the
merge of :mod:`catalog.definitions.inheritance`, in bodies that keep the level and place of every part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple

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
from catalog.model import CLOUDEVENTS, Definition, Property, PropertyType
from catalog.parsing.pointers import unescaped
from catalog.protocols.properties import (
    ALWAYS_REQUIRED,
    AMQP_SECTIONS,
    ANY_VOCABULARY,
    ATTRIBUTE_TYPES,
    VOCABULARIES,
    Vocabulary,
    canonical_member,
    canonical_option,
    canonical_type,
    wire_type,
)
from catalog.values import NOW, WrittenNumber, is_old_now, plain_number, text_of

# Merged attributes to properties: type, value and need of every constrainable place (JUDGING.md#property-types).

_NUMBERS: Final = frozenset({"any", "boolean", "integer", "number"})


def definition_of(effective: Effective, findings: Findings) -> Definition:
    """Build the definition; what is odd about single properties is reported and read as well as it can be."""
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
        yield property_of(each.path, each.body, each.default, report, required=each.required)


class PropertyBody(NamedTuple):
    """What merged attributes say of one property; it is ``required`` where CloudEvents says so, whatever they say."""

    path: str
    body: Any
    default: PropertyType
    required: bool = False


def attribute_bodies(attributes: Mapping[str, Any], envelope: str | None) -> Iterator[PropertyBody]:
    """Give the attributes of an envelope, which is CloudEvents where none is named."""
    cloudevents = envelope in (CLOUDEVENTS, None)
    for name, body in attributes.get("envelopemetadata", {}).items():
        default = ATTRIBUTE_TYPES.get(name, "string") if cloudevents else "string"
        yield PropertyBody(name, body, default, cloudevents and name in ALWAYS_REQUIRED)


def option_bodies(attributes: Mapping[str, Any], protocol: str | None) -> Iterator[PropertyBody]:
    """Give the options that the protocol has; a base may have written others, for a protocol of its own."""
    vocabulary = VOCABULARIES.get(protocol or "", ANY_VOCABULARY)
    given = attributes.get("protocoloptions", {})
    for written, value in given.items():
        name = canonical_option(protocol, written)
        if name is not None and (name == written or name not in given):
            yield from _places(vocabulary, name, value)


def _places(vocabulary: Vocabulary, name: str, value: Any) -> Iterator[PropertyBody]:
    """Give every property below one option."""
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
    """Where to report on one property; what a message inherits is reported where it is written, and only there.

    ``find`` gives that place, None for an inherited property; it is asked only when there is something to report.
    """

    findings: Findings
    find: Callable[[], SourceLocation | None] | None

    def warning(self, rule: str, message: str, hint: str) -> None:
        place = self.find() if self.find is not None else None
        if place is not None:
            self.findings.warning(place, rule, message, hint)


def property_of(name: str, body: Any, default: PropertyType, report: Report, *, required: bool = False) -> Property:
    """Read ``{type, value, required}``, or a bare scalar that stands for its ``value``."""
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
    """Return a value as 1.0 spells it in its type: a number, or the text that is written where a text is meant."""
    if isinstance(value, WrittenNumber):
        return plain_number(value) if kind in _NUMBERS else text_of(value)
    return NOW if kind == "timestamp" and is_old_now(value) else value


def _required(body: Mapping[str, Any], report: Report) -> bool:
    value = body.get("required")
    if value is None or isinstance(value, bool):
        return bool(value)
    report.warning("wrong-shape", f"required is {value!r:.80}, no boolean", "write true or false")
    return str(value).strip().lower() == "true"


def _value(value: Any, report: Report) -> str | bool | int | float | None:
    if value is None or value == "":
        return None
    if isinstance(value, (str, bool, int, float)):
        return value
    report.warning("wrong-shape", "a value is a text, number or boolean; this one is ignored", "write a scalar")
    return None


MEMBERS: Final = ("type", "value", "required")
_SILENT: Final = Report(Findings(), None)
_METADATA: Final = "envelopemetadata"
_OPTIONS: Final = "protocoloptions"
_EMPTY: Final[tuple[Any, ...]] = (Named(()), {})


@dataclass(frozen=True, slots=True)
class Level:
    """One message of a chain of bases. ``metadata`` and ``options`` are its own, in canonical spelling, unmerged.

    ``envelope`` and ``protocol`` are those in force here (inherited or default), ``spelling`` is the protocol that its
    options are written for.
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
class Said:
    """One level's word on one member of a property (``type``, ``value`` or ``required``)."""

    level: Level
    member: str
    value: Any
    place: SourceLocation | None


@dataclass(frozen=True, slots=True)
class Laid:
    """A property as all levels make it. ``members`` are the words that count, ``hidden`` those laid over, nearest last.

    ``own`` says whether the nearest level itself sets it; ``inherited`` is the property as the bases make it. ``body``
    is what the nearest level writes, None when it does not.
    """

    property: Property
    section: str
    members: Mapping[str, Said]
    hidden: tuple[Said, ...]
    own: bool
    body: Any
    inherited: Property | None
    default: PropertyType


@dataclass(slots=True)
class _Body:
    """A body while levels are laid over it; ``scalar`` bodies are replaced as a whole, never merged.

    ``nearest`` says whether the nearest level sets it, ``raw`` is what the level laid last writes.
    """

    members: dict[str, Said] = field(default_factory=dict)
    hidden: list[Said] = field(default_factory=list)
    scalar: bool = False
    nearest: bool = False
    raw: Any = None

    def overlaid(self, above: _Body) -> _Body:
        """Return this body with *above* laid over it."""
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


def giving(section: str, levels: Sequence[Level]) -> Sequence[Level]:
    """Return the levels whose *section* holds for the nearest one: it is not of another envelope or protocol."""
    return [level for level in levels if section not in foreign_sections(level, levels[0])]


def laid(levels: Sequence[Level]) -> tuple[Laid, ...]:
    """Return every property of the definition that *levels* make, in the order of the definition."""
    bases = levels[1:]
    before: dict[tuple[str, str], list[Property]] = {}
    for section, inherited, _, _ in _effective(bases, levels[0]):
        before.setdefault((section, inherited.name), []).append(inherited)
    properties: list[Laid] = []
    effective = list(_effective(levels, levels[0]))
    times = Counter((section, prop.name) for section, prop, _, _ in effective)
    for section, prop, body, default in effective:
        known = before.get((section, prop.name), [])
        single = known[0] if len(known) == times[section, prop.name] == 1 else None  # else nothing is merged
        raw = body.raw if body.nearest else None
        properties.append(Laid(prop, section, body.members, tuple(body.hidden), body.nearest, raw, single, default))
    return tuple(properties)


def _effective(levels: Sequence[Level], of: Level) -> Iterator[tuple[str, Property, _Body, PropertyType]]:
    """Give section, property, body and default type of all that *levels* make together for the definition *of*.

    What a farther level sets comes first, attributes before options.
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
        yield section, property_of(path, raw, default, _SILENT, required=required), body, default


def _laid_over(below: list[Any], above: list[Any]) -> list[Any]:
    """Lay bodies over others; a name that is repeated replaces, and so does one that was no property's below."""
    if not all(isinstance(each, _Body) for each in (*below, *above)):
        return above
    if len(below) == len(above) == 1:
        return [below[0].overlaid(above[0])]
    above[0].hidden.extend(said for each in below for said in (*each.hidden, *each.members.values()))
    return above


def _bodies(level: Level, *, nearest: bool) -> dict[str, dict[str, Any]]:
    """Return what one level writes of properties, each with its place."""

    def body(raw: Any, place: SourceLocation | None) -> _Body:
        if not isinstance(raw, dict):
            return _Body({"value": Said(level, "value", raw, place)}, scalar=True, nearest=nearest, raw=raw)
        given = (name for name in MEMBERS if raw.get(name) is not None)
        members = {name: Said(level, name, raw[name], place and place / name) for name in given}
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
    """Return the place of the body of a list's entry, which ``{NAME: {…}}`` has one level deeper than ``{name, …}``."""
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
