"""The levels that a definition is made of, and every property as they lay it over one another.

Inheritance merges and forgets; who explains or rewrites a catalog needs to know what each level says. This reads
the same declarations by the same rules (semantics.md section 2), keeps the level of every part, and a test holds
its properties equal to those of the loaded definitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.declared import Declarations, DeclaredEndpoint, DeclaredGroup, DeclaredMessage, Place
from catalog.definitions.inheritance import own_attributes
from catalog.definitions.options import Named, normal_options, short_entry
from catalog.definitions.pointing import OptionPlaces, attribute_place
from catalog.definitions.properties import Report, property_of
from catalog.findings import Findings
from catalog.model import CLOUDEVENTS, Property, PropertyType
from catalog.parsing.pointers import unescaped
from catalog.protocols.properties import (
    ALWAYS_REQUIRED,
    ANY_VOCABULARY,
    ATTRIBUTE_TYPES,
    VOCABULARIES,
    canonical_member,
    canonical_option,
)

MEMBERS: Final = ("type", "value", "required")
_SILENT: Final = Report(Findings(), None)


@dataclass(frozen=True, slots=True)
class Level:
    """One message of a chain of bases. ``metadata`` and ``options`` are its own, in canonical spelling, unmerged.

    ``protocol`` is the one in force here (inherited or default), ``spelling`` the one its options are written for.
    """

    message: DeclaredMessage
    group: DeclaredGroup | None
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
    place: Place | None


@dataclass(frozen=True, slots=True)
class Laid:
    """A property as all levels make it. ``members`` are the words that count, ``hidden`` those laid over, nearest last.

    ``own`` tells whether the nearest level itself speaks of it; ``inherited`` is the property as the bases make it.
    ``body`` is what the nearest level writes, None when it does not.
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

    ``number`` is its place among all that its level writes.
    """

    members: dict[str, Said] = field(default_factory=dict)
    hidden: list[Said] = field(default_factory=list)
    scalar: bool = False
    nearest: bool = False
    raw: Any = None
    number: int = 0

    def overlaid(self, above: _Body) -> _Body:
        """Return this body with *above* laid over it."""
        if self.scalar or above.scalar:
            return _Body(above.members, [*self.hidden, *self.members.values()], above.scalar, above.nearest, above.raw)
        replaced = [said for name, said in self.members.items() if name in above.members]
        merged = {**self.members, **above.members}
        return _Body(merged, [*self.hidden, *replaced], False, above.nearest, above.raw)


_Key = tuple[str, str, str]
_Bodies = dict[_Key, list[_Body]]


def levels_of(chain: Sequence[str], declarations: Declarations) -> tuple[Level, ...]:
    """Return the levels of a chain of xids (a message, then its bases, nearest first)."""
    levels: list[Level] = []
    inherited: str | None = None
    for xid in reversed(chain):
        message = declarations.messages[xid]
        home = declarations.beyond.get(message.group)
        group = declarations.groups.get(message.group) or (home if isinstance(home, DeclaredGroup) else None)
        endpoint = declarations.endpoints.get(message.group) or (home if isinstance(home, DeclaredEndpoint) else None)
        own = message.attributes
        inherited = own.get("protocol") or inherited or (group.protocol if group else None)
        spelling = inherited or (endpoint.protocol if endpoint else None)
        options = normal_options(own.get("protocoloptions") or {}, spelling, message.place, Findings())
        metadata = own_attributes(own.get("envelopemetadata") or {})
        levels.append(Level(message, group, inherited, spelling, metadata, options))
    return tuple(reversed(levels))


def envelope_of(levels: Sequence[Level]) -> str | None:
    """Return the envelope in force: the nearest that a message names, else the farthest group's default."""
    for level in levels:
        if level.message.attributes.get("envelope"):
            return str(level.message.attributes["envelope"])
    return next((level.group.envelope for level in reversed(levels) if level.group and level.group.envelope), None)


def laid(levels: Sequence[Level]) -> tuple[Laid, ...]:
    """Return every property of the definition that *levels* make, in the order of the definition."""
    bases = levels[1:]
    before: dict[tuple[str, str], list[Property]] = {}
    for section, found, _, _ in _effective(bases) if bases else ():
        before.setdefault((section, found.name), []).append(found)
    made: list[Laid] = []
    effective = list(_effective(levels))
    times = Counter((section, prop.name) for section, prop, _, _ in effective)
    for section, prop, body, default in effective:
        known = before.get((section, prop.name), [])
        single = known[0] if len(known) == times[section, prop.name] == 1 else None  # else nothing is merged
        raw = body.raw if body.nearest else None
        made.append(
            Laid(prop, section, body.members, tuple(body.hidden), body.nearest, raw, single, default),
        )
    return tuple(made)


def _effective(levels: Sequence[Level]) -> Iterator[tuple[str, Property, _Body, PropertyType]]:
    """Give section, property, body and default type of all that *levels* make together."""
    bodies: _Bodies = {}
    for place in range(len(levels) - 1, -1, -1):
        listed = any("envelopemetadata" in below.message.attributes for below in levels[place + 1 :])
        _lay(bodies, levels[place], nearest=place == 0, over=listed)
    cloudevents = envelope_of(levels) in (CLOUDEVENTS, None)
    spelling = levels[0].spelling
    written = {top for section, top, _ in bodies if section == "protocoloptions"}
    for (section, top, sub), body in _ordered(bodies, levels):
        if section == "envelopemetadata":
            default: PropertyType = ATTRIBUTE_TYPES.get(top, "string") if cloudevents else "string"
            path, forced = top, cloudevents and top in ALWAYS_REQUIRED
        else:
            named = _path(spelling, top, sub, written)
            if named is None:
                continue
            (path, default), forced = named, False
        yield section, _property(path, body, default, required=forced), body, default


def _ordered(bodies: _Bodies, levels: Sequence[Level]) -> Iterator[tuple[_Key, _Body]]:
    """Give the bodies option by option; a list that one level alone writes in its order, any other by name."""
    tops: dict[tuple[str, str], list[tuple[_Key, _Body]]] = {}
    for key, found in bodies.items():
        tops.setdefault(key[:2], []).extend((key, body) for body in found)
    for (_, top), members in tops.items():
        if sum(top in level.options for level in levels) == 1:
            members.sort(key=lambda member: member[1].number)
        yield from members


def _property(path: str, body: _Body, default: PropertyType, *, required: bool) -> Property:
    raw = {name: said.value for name, said in body.members.items()}
    return property_of(path, raw.get("value") if body.scalar else raw, default, _SILENT, required=required)


def _path(spelling: str | None, top: str, sub: str, written: Iterable[str]) -> tuple[str, PropertyType] | None:
    """Return path and default type of an option in the protocol of the nearest level; None when it has none such."""
    vocabulary = VOCABULARIES.get(spelling or "", ANY_VOCABULARY)
    name = canonical_option(spelling, top)
    if name is None or (name != top and name in written):
        return None
    if sub and name in vocabulary.lists:
        return f"{name}.{sub.lower() if name in vocabulary.lower else sub}", "string"
    if sub and name in vocabulary.sections:
        table = vocabulary.sections[name]
        known = sub if table is None else canonical_member(table, sub)
        return None if known is None else (f"{name}.{known}", table[known] if table is not None else "string")
    return (name, vocabulary.scalars[name]) if not sub and name in vocabulary.scalars else None


def _lay(bodies: _Bodies, level: Level, *, nearest: bool, over: bool) -> None:
    """Lay one level over *bodies*: named lists by name (a name that is repeated replaces), all else member by member.

    What is null is not listed, when it is laid *over* anything.
    """
    own: _Bodies = {}
    for number, (key, raw, place) in enumerate(_written(level)):
        if raw is None and over:
            continue
        body = _body(level, raw, place)
        body.nearest, body.number = nearest, number
        own.setdefault(key, []).append(body)
    for every in bodies.values():
        for body in every:
            body.nearest = False
    for key, found in own.items():
        below = bodies.get(key, [])
        bodies[key] = [below[0].overlaid(found[0])] if len(below) == len(found) == 1 else _replaced(below, found)


def _replaced(below: list[_Body], found: list[_Body]) -> list[_Body]:
    for body in found[:1]:
        body.hidden.extend(said for each in below for said in (*each.hidden, *each.members.values()))
    return found


def _written(level: Level) -> Iterator[tuple[_Key, Any, Place | None]]:
    """Give everything one level writes of properties, with its place."""
    for name, body in level.metadata.items():
        yield ("envelopemetadata", name, ""), body, attribute_place(level.message, name)
    places = OptionPlaces(level.message, level.spelling)
    for top, value in level.options.items():
        if isinstance(value, Named):
            for sub, body in value.entries:
                yield ("protocoloptions", top, sub), body, _of_entry(level.message, places.of(f"{top}.{sub}"))
        elif isinstance(value, dict) and top in VOCABULARIES.get(level.spelling or "", ANY_VOCABULARY).sections:
            for sub, body in value.items():
                yield ("protocoloptions", top, sub), body, places.of(f"{top}.{sub}")
        else:
            yield ("protocoloptions", top, ""), value, places.of(top)


def _of_entry(message: DeclaredMessage, place: Place | None) -> Place | None:
    """Return the place of the body of a list's entry, which ``{NAME: {…}}`` has one level deeper than ``{name, …}``."""
    above = message.at("protocoloptions").pointer + "/"
    found = message.attributes.get("protocoloptions")
    if place is None or not place.pointer.startswith(above):
        return place
    for key in place.pointer[len(above) :].split("/"):
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
            short = short_entry(found)
            return place / short[0] if short is not None else place
        found = found.get(unescaped(key)) if isinstance(found, dict) else None
    return place


def _body(level: Level, raw: Any, place: Place | None) -> _Body:
    if not isinstance(raw, dict):
        return _Body({"value": Said(level, "value", raw, place)}, scalar=True, raw=raw)
    said = {name: Said(level, name, raw[name], place and place / name) for name in MEMBERS if raw.get(name) is not None}
    return _Body(said, raw=raw)
