"""Does one definition match every record that another matches? Decided from its constraints (JUDGING.md#constraints).

"Yes" is a promise that a test holds against a plain matcher; "no" only says that it cannot be promised. So a change
is called wider or narrower when that is sure, and different otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from catalog.comparing.alignment import Token, aligned, opaque
from catalog.comparing.changes import Relation
from catalog.definitions.constraints import TYPED_LITERALS, constraint_of, literal_equal, template_of
from catalog.definitions.targets import scope_of
from catalog.model import Definition, Property, PropertyType
from catalog.protocols.properties import REPEATED, changes_by_hop, is_dotted
from catalog.templates import Template
from catalog.values import (
    binary_value,
    canonical,
    is_timestamp,
    is_valid,
    media_type_matches,
)

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
class Asked:
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


def asked_of(definition: Definition) -> dict[str, list[Asked]]:
    """Return what a definition asks of each property that filters, by key."""
    asks: dict[str, list[Asked]] = {}
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


def property_relation(before: Sequence[Asked], after: Sequence[Asked]) -> Relation:
    """Tell the same of one property on its own, whatever its placeholders share with others."""
    return _relation(_covering(after, before) is not None, _covering(before, after) is not None)


def covers(big: Definition, small: Definition) -> bool:
    """Tell whether *big* is sure to match every record that *small* matches, where no endpoint gives defaults."""
    return covers_asked(big, small, asked_of(big), asked_of(small))


def covers_asked(
    big: Definition, small: Definition, wanted: Mapping[str, Sequence[Asked]], given: Mapping[str, Sequence[Asked]]
) -> bool:
    """Tell the same, where the caller has what both ask (:func:`asked_of`), since it compares each with many."""
    if not _same_kind(big, small):
        return False
    if big.datacontenttype and not (
        small.datacontenttype and media_type_matches(big.datacontenttype, small.datacontenttype)
    ):
        return False
    tokens: dict[str, list[Token]] = {}
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


def _same_readings(wanted: Mapping[str, Sequence[Asked]], given: Mapping[str, Sequence[Asked]]) -> bool:
    """Tell whether placeholders that are taken once as written and once decoded are so in both.

    Their values must be equal in both readings, which no comparison of constraints one by one can promise.
    """
    readings: dict[str, set[Asked]] = {}
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


def _asked(key: str, prop: Property, *, dots: bool = False) -> Asked:
    constraint = constraint_of(key, prop, dots=dots)
    needed = not constraint.optional and key not in _ALWAYS_THERE
    if constraint.kind in ("present", "optional"):
        return Asked(key, "any", prop.type, needed=needed)
    return Asked(key, cast(Form, constraint.kind), prop.type, constraint.value or "", needed, constraint.dots)


def _covering(big: Sequence[Asked], small: Sequence[Asked]) -> list[tuple[Asked, Asked]] | None:
    """Pair every constraint of *big* with one of *small* that implies it; None when there is none for one of them."""
    pairs: list[tuple[Asked, Asked]] = []
    for each in big:
        among = small or (Asked(each.key, "any", "any"),)
        implying = next((other for other in among if _implies(other, each)), None)
        if implying is None:
            return None
        pairs.append((each, implying))
    return pairs


def _implies(small: Asked, big: Asked) -> bool:
    return (small.needed or not big.needed) and _texts_covered(big, small)


def _texts_covered(big: Asked, small: Asked) -> bool:
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


def _valid_for(big: Asked, small: Asked) -> bool:
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


def _fits(big: Asked, small: Asked) -> bool:
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


def _only_instants(small: Asked) -> bool:
    if small.form == "literal":
        return is_timestamp(small.text) and (small.type == "timestamp" or _exact(small))
    return small.form in ("any", "template") and small.type == "timestamp"


def _exact(literal: Asked) -> bool:
    """Tell a literal that only its own text equals."""
    typed = literal.type in TYPED_LITERALS and canonical(literal.type, literal.text) is not None
    return not (typed or literal.is_bytes)


def _tokens(big: Asked, small: Asked, *, shared: bool) -> Iterator[Token]:
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
