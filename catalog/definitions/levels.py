"""The levels that a definition is made of, and every property as they lay it over one another.

Who explains or rewrites a catalog needs to know what each level says. So the levels are merged here once more, by the
merge of :mod:`catalog.definitions.inheritance`, in bodies that keep the level and place of every part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final

from catalog.declared import Declarations, DeclaredEndpoint, DeclaredGroup, DeclaredMessage, Place
from catalog.definitions.inheritance import foreign_sections, merge
from catalog.definitions.options import Named, normal_options, short_entry
from catalog.definitions.pointing import OptionPlaces, attribute_place
from catalog.definitions.properties import Report, attribute_bodies, option_bodies, property_of
from catalog.findings import Findings
from catalog.model import Property, PropertyType
from catalog.parsing.pointers import unescaped
from catalog.protocols.properties import ANY_VOCABULARY, VOCABULARIES, canonical_option

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
    place: Place | None


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

    def body(raw: Any, place: Place | None) -> _Body:
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


def _of_entry(message: DeclaredMessage, place: Place | None) -> Place | None:
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
