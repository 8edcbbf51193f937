"""Texts for the simple types of XML schemas: built-in ones, restrictions by facets, lists and unions."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final

from lxml import etree

from catalog.schemas.filling.filling import Filling, Unfillable
from catalog.schemas.filling.patterns import sample
from catalog.schemas.xsd.components import XS, Components, Node

_MAX_BASES: Final = 50
_TRIES: Final = 20
_MAX_DIGITS: Final = 60
_INTEGERS: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "integer": (None, None),
    "nonNegativeInteger": (0, None),
    "positiveInteger": (1, None),
    "nonPositiveInteger": (None, 0),
    "negativeInteger": (None, -1),
    "long": (-(2**63), 2**63 - 1),
    "int": (-(2**31), 2**31 - 1),
    "short": (-(2**15), 2**15 - 1),
    "byte": (-128, 127),
    "unsignedLong": (0, 2**64 - 1),
    "unsignedInt": (0, 2**32 - 1),
    "unsignedShort": (0, 2**16 - 1),
    "unsignedByte": (0, 255),
}
_NUMBERS: Final = frozenset({"decimal", "float", "double"})
_TIMES: Final[Mapping[str, Callable[[str], str]]] = {
    "dateTime": lambda now: now,
    "dateTimeStamp": lambda now: now,
    "date": lambda now: now[:10],
    "time": lambda now: now[11:],
    "gYear": lambda now: now[:4],
    "gYearMonth": lambda now: now[:7],
    "gMonthDay": lambda now: f"--{now[5:10]}",
    "gMonth": lambda now: f"--{now[5:7]}",
    "gDay": lambda now: f"---{now[8:10]}",
}
_OTHERS: Final[Mapping[str, Callable[[Filling], str]]] = {
    "boolean": lambda filling: filling.pick(("true", "false")),
    "duration": lambda filling: f"PT{filling.random.randrange(1, 60)}S",
    "dayTimeDuration": lambda filling: f"PT{filling.random.randrange(1, 60)}S",
    "yearMonthDuration": lambda filling: f"P{filling.random.randrange(1, 12)}M",
    "language": lambda filling: filling.pick(("en", "de", "sv")),
    "anyURI": lambda filling: f"https://example.com/{filling.word()}",
}


@dataclass(slots=True)
class _Facets:
    """What the restrictions of one type ask together; of each facet that of the outermost, which is the tightest."""

    values: dict[str, str] = field(default_factory=dict)
    patterns: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)

    def add(self, restriction: Node) -> None:
        """Add the facets of one restriction, outer ones first."""
        patterns, choices = [], []
        for each in restriction.iterchildren(tag=etree.Element):
            facet, value = etree.QName(each).localname, each.get("value")
            if value is not None and facet == "pattern":
                patterns.append(value)
            elif value is not None and facet == "enumeration":
                choices.append(value)
            elif value is not None:
                self.values.setdefault(facet, value)
        self.patterns = self.patterns or patterns
        self.choices = self.choices or choices

    def number(self, facet: str) -> Decimal | None:
        """Return a facet as number; None when it is not there, is no number, or one that no value comes near."""
        try:
            number = Decimal(self.values[facet])
        except (KeyError, InvalidOperation):
            return None
        return number if number.is_finite() and abs(number.adjusted()) <= _MAX_DIGITS else None

    def lengths(self) -> tuple[int, int | None]:
        """Return the bounds of the length."""
        exact = self.number("length")
        low, high = (exact, exact) if exact is not None else (self.number("minLength"), self.number("maxLength"))
        return int(low or 0), None if high is None else int(high)


class SimpleTexts:
    """Makes texts for simple types of one schema. One object serves one document, so that its ids differ."""

    def __init__(self, components: Components, filling: Filling) -> None:
        self._components = components
        self._filling = filling

    def text(self, kind: Node | str, beside: Node | None = None) -> str:
        """Return a text for a type, a declaration or the local name of a built-in one.

        *beside* is a restriction whose facets hold as well (simple content).

        Raises:
            Unfillable: the type is unknown, or is its own base.
        """
        facets = _Facets()
        if beside is not None:
            facets.add(beside)
        return self._text(kind, facets)

    def _text(self, kind: Node | str, facets: _Facets, level: int = 0) -> str:
        if level > _MAX_BASES:
            raise Unfillable("a simple type is its own base")
        if isinstance(kind, str):
            return _chosen(facets, self._filling) or _built_in(kind, facets, self._filling)
        for derivation in kind.iterchildren(f"{XS}restriction", f"{XS}list", f"{XS}union"):
            form = etree.QName(derivation).localname
            if form == "restriction":
                facets.add(derivation)
                return self._text(self._named_or_inline(derivation, "base"), facets, level + 1)
            chosen = _chosen(facets, self._filling)
            if chosen is not None:
                return chosen
            return self._list(derivation, facets) if form == "list" else self._union(derivation, level)
        raise Unfillable("a simple type says nothing")

    def _list(self, node: Node, facets: _Facets) -> str:
        low, high = facets.lengths()
        items = self._named_or_inline(node, "itemType")
        return " ".join(self.text(items) for _ in range(self._filling.count(max(low, 1), high, 0)))

    def _union(self, node: Node, level: int) -> str:
        members: list[Node | str] = [
            self._components.type_named(each, node) for each in node.get("memberTypes", "").split()
        ]
        members += list(node.iterchildren(f"{XS}simpleType"))
        if not members:
            raise Unfillable("a union has no types")
        return self._text(self._filling.pick(members), _Facets(), level + 1)

    def _named_or_inline(self, node: Node, attribute: str) -> Node | str:
        if node.get(attribute):
            return self._components.type_named(str(node.get(attribute)), node)
        inline = node.find(f"{XS}simpleType")
        if inline is None:
            raise Unfillable(f"a simple type has no {attribute}")
        return inline


def _chosen(facets: _Facets, filling: Filling) -> str | None:
    """Return a text of the enumeration or for a pattern; None when there is neither, or no such text is known."""
    if facets.choices:
        return filling.pick(facets.choices)
    low, high = facets.lengths()
    for _ in range(_TRIES if facets.patterns else 0):
        text = sample(filling.pick(facets.patterns), filling, whole=True)
        if text is not None and low <= len(text) and (high is None or len(text) <= high):
            return text
    return None


def _built_in(kind: str, facets: _Facets, filling: Filling) -> str:
    if kind in _INTEGERS or kind in _NUMBERS:
        return _number(kind, facets, filling)
    if kind in _TIMES:
        return _within(_TIMES[kind](filling.now), facets)
    if kind in _OTHERS:
        return _OTHERS[kind](filling)
    low, high = facets.lengths()
    if kind == "base64Binary":
        return base64.b64encode(filling.bytes(low, high)).decode("ascii")
    if kind == "hexBinary":
        return filling.bytes(low, high).hex().upper()
    if kind in ("ID", "IDREF", "IDREFS", "ENTITY", "ENTITIES", "NOTATION"):
        return f"{filling.word()}-{filling.random.getrandbits(32):08x}"
    return filling.text(low, high)


def _number(kind: str, facets: _Facets, filling: Filling) -> str:
    low, high = _INTEGERS.get(kind, (None, None))
    least, most = facets.number("minInclusive"), facets.number("maxInclusive")
    above, below = facets.number("minExclusive"), facets.number("maxExclusive")
    digits = None if (given := facets.number("totalDigits")) is None else min(given, Decimal(_MAX_DIGITS))
    if kind in _NUMBERS:
        if most is None and below is None and digits is not None:
            most = max(least or Decimal(0), Decimal(10) ** int(min(digits, Decimal(2))) - 1)
        places = facets.number("fractionDigits")
        number = filling.decimal(
            _first(least, above), _first(most, below), 2 if places is None else min(2, int(places))
        )
        return format(number.normalize(), "f")
    least = least if least is not None else above + 1 if above is not None else None
    most = most if most is not None else below - 1 if below is not None else None
    if most is None and digits is not None and (high is None or 10 ** int(digits) <= high):
        most = Decimal(10) ** int(digits) - 1
    first, last = _integer(least, low), _integer(most, high)
    if least is None and most is None and first is not None and first < 0 and (last is None or last > 0):
        first = 0
    if most is None and first is not None and first >= 0 and last is not None:
        last = min(last, first + 1000)
    return str(filling.integer(first, last))


def _first(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    return other if one is None else one


def _integer(bound: Decimal | None, otherwise: int | None) -> int | None:
    return otherwise if bound is None else int(bound)


def _within(text: str, facets: _Facets) -> str:
    """Return a time, or the bound that it is past; compared as text, as bounds are seldom written in other zones."""
    low = facets.values.get("minInclusive") or facets.values.get("minExclusive")
    high = facets.values.get("maxInclusive") or facets.values.get("maxExclusive")
    if low is not None and text < low:
        return low
    return high if high is not None and text > high else text
