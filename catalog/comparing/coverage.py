"""Whether one definition matches every record that another matches (JUDGING.md"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from catalog.definitions.constraints import TYPED_LITERALS, constraint_of, literal_equal, scope_of, template_of
from catalog.model import Definition, Property, PropertyType
from catalog.protocols.properties import REPEATED, changes_by_hop, is_dotted
from catalog.templates import Placeholder, Template, parse
from catalog.values import binary_value, canonical, is_timestamp, is_valid, media_type_matches, percent_decode

# One template laid over another, segment by segment: does it fit, and what do its placeholders then hold?

_SEPARATORS: Final = {False: re.compile("(/)"), True: re.compile("([/.])")}
_Part = str | Placeholder


@dataclass(frozen=True, slots=True)
class PlaceholderValue:
    """What is known of a placeholder's value: its ``text``, or that it is what another's ``name`` holds, or nothing.

    Equal tokens stand for equal values; an opaque one equals none but itself, by its place.
    """

    kind: Literal["text", "name", "opaque"]
    value: str
    place: str = ""

    def of(self, key: str, *, decode: bool) -> PlaceholderValue:
        """Return the token as the property *key* has it."""
        if self.kind == "opaque":
            return replace(self, place=key)
        return PlaceholderValue("text", percent_decode(self.value)) if self.kind == "text" and decode else self


def opaque(number: int) -> PlaceholderValue:
    """Return a token of which nothing is known, for the placeholder of that number."""
    return PlaceholderValue("opaque", str(number))


def aligned(big: Template, small: Template, *, literal: bool) -> list[PlaceholderValue] | None:
    """Return what the placeholders of *big* hold in whatever *small* matches; None when not all of it fits.

    With *literal* the text of *small* is no template: its braces are text.
    """
    parts: tuple[_Part, ...] = (small.text,) if literal else small.parts
    if big.is_bare:
        return [_whole(parts, 0)]
    if not literal and small.is_bare:
        return None
    mine, its = _segments(big.parts, big.dots), _segments(parts, big.dots)
    if mine[1] != its[1]:
        return None
    tokens: list[PlaceholderValue] = []
    for segment, other in zip(mine[0], its[0], strict=True):
        segment_tokens = _segment(segment, other, big.dots, len(tokens))
        if segment_tokens is None:
            return None
        tokens.extend(segment_tokens)
    return tokens


def _whole(parts: tuple[_Part, ...], number: int) -> PlaceholderValue:
    if len(parts) != 1:
        return opaque(number)
    only = parts[0]
    return PlaceholderValue("text", only) if isinstance(only, str) else PlaceholderValue("name", only.name)


def _segments(parts: tuple[_Part, ...], dots: bool) -> tuple[list[tuple[_Part, ...]], list[str]]:
    """Cut parts at the separators in their texts; empty texts are left out."""
    segments: list[list[_Part]] = [[]]
    separators: list[str] = []
    for part in parts:
        if isinstance(part, Placeholder):
            segments[-1].append(part)
            continue
        first, *rest = _SEPARATORS[dots].split(part)
        if first:
            segments[-1].append(first)
        for separator, text in zip(rest[::2], rest[1::2], strict=True):
            separators.append(separator)
            segments.append([text] if text else [])
    return [tuple(segment) for segment in segments], separators


def _segment(
    big: tuple[_Part, ...], small: tuple[_Part, ...], dots: bool, number: int
) -> list[PlaceholderValue] | None:
    """Lay one segment over another; *number* is that of its first placeholder."""
    shape = [None if isinstance(part, Placeholder) else part for part in big]
    if shape == [None if isinstance(part, Placeholder) else part for part in small]:
        return [PlaceholderValue("name", part.name) for part in small if isinstance(part, Placeholder)]
    if shape == [None]:
        return [_whole(small, number)] if small else None
    if all(isinstance(part, str) for part in small):
        text = "".join(part for part in small if isinstance(part, str))
        return _taken(big, text, dots)
    return None


def _taken(big: tuple[_Part, ...], text: str, dots: bool) -> list[PlaceholderValue] | None:
    """Match a literal segment; placeholders get names of their own, so that each gives its value."""
    names = [part for part in big if isinstance(part, Placeholder)]
    if not names:
        return [] if "".join(part for part in big if isinstance(part, str)) == text else None
    numbered = iter(range(len(names)))
    template = parse(
        "".join(part if isinstance(part, str) else f"{{{next(numbered)}}}" for part in big),
        dots=dots,
    )
    taken = template.match(text)
    return None if taken is None else [PlaceholderValue("text", taken[str(place)]) for place in range(len(names))]


# One change, and all changes between two catalogs; their JSON forms are those of ``catalog diff``.

Relation = Literal["same", "wider", "narrower", "different", "unknown"]
"""How the records that match before and after relate: the same ones, more, fewer, others, or that is not decidable."""
Kind = Literal[
    "definition-added",
    "definition-removed",
    "definition-renamed",
    "definition-changed",
    "selector-changed",
    "property-added",
    "property-removed",
    "property-changed",
    "relation-changed",
    "schema-added",
    "schema-removed",
    "schema-changed",
    "context-gained",
    "context-lost",
    "mapped-attribute-added",
    "mapped-attribute-removed",
    "mapped-attribute-changed",
    "endpoint-added",
    "endpoint-removed",
    "endpoint-changed",
    "address-changed",
    "candidate-added",
    "candidate-removed",
    "ambiguous-now",
    "never-reached-now",
]
COMPATIBLE: Final = frozenset({"same", "wider"})


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """One change of the thing *xid*; ``name`` is the property, attribute, placeholder or candidate it is about.

    ``compatible`` is False when records that had an outcome may get another, or consumers may miss or misread a thing.
    ``relation`` is set where records are constrained, ``detail`` says in words what a reader could not see otherwise.
    """

    kind: Kind
    xid: str
    name: str = ""
    compatible: bool = True
    relation: Relation | None = None
    before: Any = None
    after: Any = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return all members, in this order."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """All changes from the catalog of epoch ``before`` to that of ``after``, in a stable order."""

    before: str
    after: str
    changes: tuple[CatalogChange, ...] = ()

    @property
    def compatible(self) -> bool:
        """Whether every change is."""
        return all(change.compatible for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return ``{before, after, compatible, changes}``."""
        changes = [change.to_json() for change in self.changes]
        return {"before": self.before, "after": self.after, "compatible": self.compatible, "changes": changes}


# Does one definition match every record that another matches? Decided from its constraints (JUDGING.md#constraints).
#
# "Yes" is a promise that a test holds against a plain matcher; "no" only says that it cannot be promised. So a change
# is called wider or narrower when that is sure, and different otherwise.

_ALWAYS_THERE: Final = frozenset({"e.id", "e.source", "e.type", "e.specversion"})
_REPEATING: Final = tuple(f"p.{name}" for name in REPEATED)
"""Properties of which a record may have several values, any of which may satisfy a constraint."""
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
"""The next wider type by what is valid for it; the three of URIs are one, and ``binary`` is base64 in an envelope."""
_URIS: Final = frozenset({"uri", "urireference", "uritemplate"})
_NEVER_EMPTY: Final = frozenset({"integer", "number", "boolean", "duration", "timestamp"})

Form = Literal["any", "literal", "media", "template"]


@dataclass(frozen=True, slots=True)
class RequiredValue:
    """What one property asks, under the key ``e.NAME`` or ``p.PATH``; what is ``needed`` must be there."""

    key: str
    form: Form
    type: PropertyType
    text: str = ""
    needed: bool = False
    dots: bool = False

    @property
    def decodes(self) -> bool:
        """Whether values of placeholders are percent-decoded."""
        return self.type == "uritemplate"

    @property
    def template(self) -> Template:
        """The value as a template; a literal is one without placeholders."""
        return template_of(self.text, self.dots)

    @property
    def takes_texts(self) -> bool:
        """Whether every text will do."""
        return self.form == "any" and (self.type in ("any", "string") or self.takes_bytes)

    @property
    def takes_bytes(self) -> bool:
        """Whether a value that is no text will do; an attribute of an event is always text."""
        return self.is_bytes or (self.form == "any" and self.type in ("any", "binary") and self.key.startswith("p."))

    @property
    def is_bytes(self) -> bool:
        """Whether it is a literal of bytes, which are any bytes to a protocol and base64 to an event."""
        return self.form == "literal" and self.type == "binary" and self.key.startswith("p.")


def asked_of(definition: Definition) -> dict[str, list[RequiredValue]]:
    """Return what a definition asks of each property that filters, by key."""
    asks: dict[str, list[RequiredValue]] = {}
    for prop in definition.envelopemetadata:
        asks.setdefault(f"e.{prop.name}", []).append(_asked(f"e.{prop.name}", prop))
    for prop in definition.protocoloptions:
        if not changes_by_hop(prop.name):
            dots = is_dotted(definition.protocol or "", prop.name)
            asks.setdefault(f"p.{prop.name}", []).append(_asked(f"p.{prop.name}", prop, dots=dots))
    return asks


def placeholders(definition: Definition, *, events: bool) -> dict[str, None]:
    """Return the names of placeholders that events, or records that are none, give values for; in order, each once."""
    properties = (*(definition.envelopemetadata if events else ()), *definition.protocoloptions)
    asked = (_asked("e." + prop.name, prop) for prop in properties)
    return dict.fromkeys(name for each in asked if each.form == "template" for name in each.template.names)


def relation_of(before: Definition, after: Definition) -> Relation:
    """Tell how the records that match *before* relate to those that match *after*."""
    return _relation(covers(after, before), covers(before, after))


def property_relation(before: Sequence[RequiredValue], after: Sequence[RequiredValue]) -> Relation:
    """Tell the same of one property on its own, whatever its placeholders share with others."""
    return _relation(_covering(after, before) is not None, _covering(before, after) is not None)


def covers(big: Definition, small: Definition) -> bool:
    """Tell whether *big* is sure to match every record that *small* matches, where no endpoint gives defaults."""
    return covers_asked(big, small, asked_of(big), asked_of(small))


def covers_asked(
    big: Definition,
    small: Definition,
    wanted: Mapping[str, Sequence[RequiredValue]],
    given: Mapping[str, Sequence[RequiredValue]],
) -> bool:
    """Tell the same, where the caller has what both ask (:func:`asked_of`), since it compares each with many."""
    if not _same_kind(big, small):
        return False
    if big.datacontenttype and not (
        small.datacontenttype and media_type_matches(big.datacontenttype, small.datacontenttype)
    ):
        return False
    tokens: dict[str, list[PlaceholderValue]] = {}
    for key, asks in wanted.items():
        pairs = _covering(asks, given.get(key, ()))
        if pairs is None:
            return False
        for mine, its in pairs:
            if mine.form == "template":
                shared = len(asks) == len(given.get(key, ())) == 1
                for name, token in zip(mine.template.names, _tokens(mine, its, shared=shared), strict=True):
                    tokens.setdefault(name, []).append(token)
    return all(len(set(values)) == 1 for values in tokens.values()) and _same_readings(wanted, given)


def _same_readings(wanted: Mapping[str, Sequence[RequiredValue]], given: Mapping[str, Sequence[RequiredValue]]) -> bool:
    """Tell whether placeholders that are taken once as written and once decoded are so in both.

    Their values must be equal in both readings, which no comparison of constraints one by one can promise.
    """
    readings: dict[str, set[RequiredValue]] = {}
    for each in (each for asks in wanted.values() for each in asks if each.form == "template"):
        for name in each.template.names:
            readings.setdefault(name, set()).add(each)
    known = {each for asks in given.values() for each in asks}
    return all(uses <= known for uses in readings.values() if len({each.decodes for each in uses}) > 1)


def _relation(wider: bool, narrower: bool) -> Relation:
    if wider and narrower:
        return "same"
    return "wider" if wider else "narrower" if narrower else "different"


def _same_kind(big: Definition, small: Definition) -> bool:
    """Compare what kind of record is meant; another envelope or protocol is another kind, wider or not."""
    mine, its = scope_of(big, None), scope_of(small, None)
    if mine is None or its is None or mine[:2] != its[:2]:
        return False
    return mine.native or not its.native


def _asked(key: str, prop: Property, *, dots: bool = False) -> RequiredValue:
    constraint = constraint_of(key, prop, dots=dots)
    needed = not constraint.optional and key not in _ALWAYS_THERE
    if constraint.kind in ("present", "optional"):
        return RequiredValue(key, "any", prop.type, needed=needed)
    return RequiredValue(key, cast(Form, constraint.kind), prop.type, constraint.value or "", needed, constraint.dots)


def _covering(
    big: Sequence[RequiredValue], small: Sequence[RequiredValue]
) -> list[tuple[RequiredValue, RequiredValue]] | None:
    """Pair every constraint of *big* with one of *small* that implies it; None when there is none for one of them."""
    pairs: list[tuple[RequiredValue, RequiredValue]] = []
    for each in big:
        among = small or (RequiredValue(each.key, "any", "any"),)
        implying = next((other for other in among if _implies(other, each)), None)
        if implying is None:
            return None
        pairs.append((each, implying))
    return pairs


def _implies(small: RequiredValue, big: RequiredValue) -> bool:
    return (small.needed or not big.needed) and _texts_covered(big, small)


def _texts_covered(big: RequiredValue, small: RequiredValue) -> bool:
    """Tell whether *big* takes every value that *small* takes."""
    if big.form == "any":
        return _valid_for(big, small)
    if big.form == "template":
        return _fits(big, small)
    if small.form != big.form:
        return False
    if big.form == "media":
        return media_type_matches(big.text, small.text)
    if big.is_bytes or small.is_bytes:
        return big.is_bytes and small.is_bytes and binary_value(big.text) == binary_value(small.text)
    if not literal_equal(big.type, big.text, small.text):
        return False
    return _exact(small) or big.type == small.type or (small.type == "integer" and big.type == "number")


def _valid_for(big: RequiredValue, small: RequiredValue) -> bool:
    """Tell whether all that *small* takes is valid for the type of *big*."""
    if small.is_bytes:
        return big.takes_bytes
    if big.takes_texts:
        return big.takes_bytes or not small.takes_bytes
    if small.form == "any":
        return not small.takes_bytes and _within(small.type, big.type)
    if small.form == "literal":
        valid = is_valid(big.type, small.text, bits32=big.key.startswith("e."))
        return valid and (_exact(small) or _within(small.type, big.type))
    return small.form == "template" and small.type == "timestamp" and _within(small.type, big.type)


def _within(narrow: str, wide: str) -> bool:
    """Tell whether every value valid for one type is valid for the other."""
    wanted = "uri" if wide in _URIS else wide
    current: str | None = "uri" if narrow in _URIS else narrow
    while current is not None and current != wanted:
        current = _WIDER.get(current)
    return current is not None


def _fits(big: RequiredValue, small: RequiredValue) -> bool:
    """Tell whether the template of *big* takes every value that *small* takes."""
    if small.is_bytes or (big.type == "timestamp" and not _only_instants(small)):
        return False
    template = big.template
    if template.is_bare:
        return small.form != "any" or small.type in _NEVER_EMPTY
    literal = small.form == "literal" and _exact(small)
    tokens = aligned(template, small.template, literal=literal) if literal or small.form == "template" else None
    if tokens is None:
        return False
    return len(set(zip(template.names, tokens, strict=True))) == len(set(template.names))


def _only_instants(small: RequiredValue) -> bool:
    if small.form == "literal":
        return is_timestamp(small.text) and (small.type == "timestamp" or _exact(small))
    return small.form in ("any", "template") and small.type == "timestamp"


def _exact(literal: RequiredValue) -> bool:
    """Tell a literal that only its own text equals."""
    typed = literal.type in TYPED_LITERALS and canonical(literal.type, literal.text) is not None
    return not (typed or literal.is_bytes)


def _tokens(big: RequiredValue, small: RequiredValue, *, shared: bool) -> Iterator[PlaceholderValue]:
    """Give for each placeholder of *big* what is known of its value when *small* matches.

    Of a property that may have several values the two may take different ones, unless they ask for the same.
    """
    names = big.template.names
    repeats = big.key.startswith(_REPEATING)
    certain = small.form in ("literal", "template") and not (repeats and not (shared and _texts_covered(small, big)))
    tokens = None
    if certain and small.form == "literal" and _exact(small):
        tokens = aligned(big.template, small.template, literal=True)
    elif certain and small.form == "template" and small.decodes == big.decodes:
        tokens = aligned(big.template, small.template, literal=False)
    if tokens is None:
        tokens = [opaque(number) for number in range(len(names))]
    for token in tokens:
        yield token.of(big.key, decode=big.decodes)
