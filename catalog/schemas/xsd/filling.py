"""Sample XML documents for XML Schemas, generated from a root element."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final

from lxml import etree

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import Chooser, PayloadSampler, UnsupportedSchema, make_matching_text
from catalog.schemas.xsd.validating import (
    XML_NAMESPACE,
    XS,
    XSI_TYPE,
    Components,
    Node,
    QualifiedName,
    base_of,
    declared_name,
    name_of,
    namespace_of,
)

# Texts of simple types: built-in types, restrictions by facets, lists and unions.

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
_OTHERS: Final[Mapping[str, Callable[[Chooser], str]]] = {
    "boolean": lambda chooser: chooser.pick(("true", "false")),
    "duration": lambda chooser: f"PT{chooser.random.randrange(1, 60)}S",
    "dayTimeDuration": lambda chooser: f"PT{chooser.random.randrange(1, 60)}S",
    "yearMonthDuration": lambda chooser: f"P{chooser.random.randrange(1, 12)}M",
    "language": lambda chooser: chooser.pick(("en", "de", "sv")),
    "anyURI": lambda chooser: f"https://example.com/{chooser.make_word()}",
}


@dataclass(slots=True)
class _Facets:
    """The facets of a type's restrictions; for each facet, the outermost value, which is the tightest."""

    values: dict[str, str] = field(default_factory=dict)
    patterns: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)

    def add(self, restriction: Node) -> None:
        """Add the facets of a restriction; outer restrictions must be added first."""
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
        """Return a facet as number; None if it is missing, not a number, or extremely large."""
        try:
            number = Decimal(self.values[facet])
        except (KeyError, InvalidOperation):
            return None
        return number if number.is_finite() and abs(number.adjusted()) <= _MAX_DIGITS else None

    def lengths(self) -> tuple[int, int | None]:
        """Return minimum and maximum length."""
        exact = self.number("length")
        low, high = (exact, exact) if exact is not None else (self.number("minLength"), self.number("maxLength"))
        return int(low or 0), None if high is None else int(high)


class SimpleTexts:
    """Makes texts for simple types of one schema, for one document."""

    def __init__(self, components: Components, chooser: Chooser) -> None:
        self._components = components
        self._chooser = chooser

    def make(self, kind: Node | str, beside: Node | None = None) -> str:
        """Return a text for a type: its declaration, or the local name of a built-in type.

        *beside* is a restriction whose facets also apply (simple content).

        Raises:
            UnsupportedSchema: the type is unknown, or is its own base.
        """
        facets = _Facets()
        if beside is not None:
            facets.add(beside)
        return self._make_restricted(kind, facets)

    def _make_restricted(self, kind: Node | str, facets: _Facets, level: int = 0) -> str:
        if level > _MAX_BASES:
            raise UnsupportedSchema("a simple type is its own base")
        if isinstance(kind, str):
            return _choose_text(facets, self._chooser) or _make_built_in(kind, facets, self._chooser)
        for derivation in kind.iterchildren(f"{XS}restriction", f"{XS}list", f"{XS}union"):
            form = etree.QName(derivation).localname
            if form == "restriction":
                facets.add(derivation)
                return self._make_restricted(self._find_type(derivation, "base"), facets, level + 1)
            chosen = _choose_text(facets, self._chooser)
            if chosen is not None:
                return chosen
            return self._make_list(derivation, facets) if form == "list" else self._make_union(derivation, level)
        raise UnsupportedSchema("a simple type says nothing")

    def _make_list(self, node: Node, facets: _Facets) -> str:
        low, high = facets.lengths()
        items = self._find_type(node, "itemType")
        return " ".join(self.make(items) for _ in range(self._chooser.pick_count(max(low, 1), high, 0)))

    def _make_union(self, node: Node, level: int) -> str:
        members: list[Node | str] = [
            self._components.find_type(each, node) for each in node.get("memberTypes", "").split()
        ]
        members += list(node.iterchildren(f"{XS}simpleType"))
        if not members:
            raise UnsupportedSchema("a union has no types")
        return self._make_restricted(self._chooser.pick(members), _Facets(), level + 1)

    def _find_type(self, node: Node, attribute: str) -> Node | str:
        if node.get(attribute):
            return self._components.find_type(str(node.get(attribute)), node)
        inline = node.find(f"{XS}simpleType")
        if inline is None:
            raise UnsupportedSchema(f"a simple type has no {attribute}")
        return inline


def _choose_text(facets: _Facets, chooser: Chooser) -> str | None:
    """Return a text of the enumeration or for a pattern; None if there is neither, or no matching text is found."""
    if facets.choices:
        return chooser.pick(facets.choices)
    low, high = facets.lengths()
    for _ in range(_TRIES if facets.patterns else 0):
        text = make_matching_text(chooser.pick(facets.patterns), chooser, whole=True)
        if text is not None and low <= len(text) and (high is None or len(text) <= high):
            return text
    return None


def _make_built_in(kind: str, facets: _Facets, chooser: Chooser) -> str:
    if kind in _INTEGERS or kind in _NUMBERS:
        return _make_number(kind, facets, chooser)
    if kind in _TIMES:
        return _clip_time(_TIMES[kind](chooser.now), facets)
    if kind in _OTHERS:
        return _OTHERS[kind](chooser)
    low, high = facets.lengths()
    if kind == "base64Binary":
        return base64.b64encode(chooser.make_bytes(low, high)).decode("ascii")
    if kind == "hexBinary":
        return chooser.make_bytes(low, high).hex().upper()
    if kind in ("ID", "IDREF", "IDREFS", "ENTITY", "ENTITIES", "NOTATION"):
        return f"{chooser.make_word()}-{chooser.random.getrandbits(32):08x}"
    return chooser.make_text(low, high)


def _make_number(kind: str, facets: _Facets, chooser: Chooser) -> str:
    low, high = _INTEGERS.get(kind, (None, None))
    minimum, maximum = facets.number("minInclusive"), facets.number("maxInclusive")
    above, below = facets.number("minExclusive"), facets.number("maxExclusive")
    digits = None if (given := facets.number("totalDigits")) is None else min(given, Decimal(_MAX_DIGITS))
    if kind in _NUMBERS:
        if maximum is None and below is None and digits is not None:
            maximum = max(minimum or Decimal(0), Decimal(10) ** int(min(digits, Decimal(2))) - 1)
        places = facets.number("fractionDigits")
        number = chooser.make_decimal(
            _first_of(minimum, above), _first_of(maximum, below), 2 if places is None else min(2, int(places))
        )
        return format(number.normalize(), "f")
    minimum = minimum if minimum is not None else above + 1 if above is not None else None
    maximum = maximum if maximum is not None else below - 1 if below is not None else None
    if maximum is None and digits is not None and (high is None or 10 ** int(digits) <= high):
        maximum = Decimal(10) ** int(digits) - 1
    first, last = _int_or_default(minimum, low), _int_or_default(maximum, high)
    if minimum is None and maximum is None and first is not None and first < 0 and (last is None or last > 0):
        first = 0
    if maximum is None and first is not None and first >= 0 and last is not None:
        last = min(last, first + 1000)
    return str(chooser.make_integer(first, last))


def _first_of(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    return other if one is None else one


def _int_or_default(bound: Decimal | None, otherwise: int | None) -> int | None:
    return otherwise if bound is None else int(bound)


def _clip_time(text: str, facets: _Facets) -> str:
    """Return a time, or a bound that it exceeds; compared as text, since bounds rarely have other zones."""
    low = facets.values.get("minInclusive") or facets.values.get("minExclusive")
    high = facets.values.get("maxInclusive") or facets.values.get("maxExclusive")
    if low is not None and text < low:
        return low
    return high if high is not None and text > high else text


_MAX_HOPS: Final = 50
_PARTICLES: Final = tuple(f"{XS}{kind}" for kind in ("sequence", "choice", "all", "group", "element", "any"))
_XML_ATTRIBUTES: Final = {"lang": "en", "space": "default", "base": "https://example.com/"}
_FOREIGN: Final = "urn:example:any"
"""The namespace of elements for ``xs:any``."""


def open_sampler(source: SchemaSource, library: Library) -> PayloadSampler:
    """Return the generator of sample payloads for a schema."""
    return XsdSampler(source, library)


class XsdSampler:
    """Makes documents for one XML Schema; the root is the element ``source.name``, or the first possible one."""

    def __init__(self, source: SchemaSource, library: Library) -> None:
        self._components = Components(source, library)
        elements = self._components.root_elements()
        wanted = [each for each in elements if not source.name or each.get("name") == source.name.rpartition(":")[2]]
        if not wanted:
            raise UnsupportedSchema("the XML schema has no element that can be the root")
        self._root = wanted[0]

    def payload(self, chooser: Chooser, content_type: str) -> bytes:
        root = _DocumentWriter(self._components, chooser).write_element(self._root, None, 0)
        return etree.tostring(root, encoding="UTF-8", xml_declaration=True)


class _DocumentWriter:
    """Writes one document."""

    def __init__(self, components: Components, chooser: Chooser) -> None:
        self._components = components
        self._chooser = chooser
        self._texts = SimpleTexts(components, chooser)

    def write_element(self, declaration: Node, parent: Node | None, level: int) -> Node:
        """Write one element with its content; the caller handles ``minOccurs`` and ``maxOccurs``."""
        self._chooser.count_value(level)
        tag = self._tag_of(declaration)
        if declaration.get("ref"):
            declaration = self._components.find("element", str(declaration.get("ref")), declaration)
            if declaration.get("abstract") == "true":
                declaration = self._pick_substitute(declaration)
            tag = declared_name(declaration).tag
        if parent is None:
            written = etree.Element(tag, nsmap=_namespace_prefixes(declaration))
        else:
            written = etree.SubElement(parent, tag)
        fixed = declaration.get("fixed")
        kind = self._type_of(declaration)
        if isinstance(kind, str) or kind.tag == f"{XS}simpleType":
            written.text = fixed if fixed is not None else self._simple_text(kind)
        else:
            self._write_complex(written, kind, level)
            if fixed is not None:
                written.text = fixed
        return written

    def _simple_text(self, kind: Node | str) -> str:
        return "" if kind == "anyType" else self._texts.make(kind)

    def _type_of(self, declaration: Node) -> Node | str:
        """Return the type of an element: named, inline, or that of its substitution group; otherwise any."""
        for _ in range(_MAX_HOPS):
            if declaration.get("type"):
                return self._components.find_type(str(declaration.get("type")), declaration)
            for inline in declaration.iterchildren(f"{XS}complexType", f"{XS}simpleType"):
                return inline
            if not declaration.get("substitutionGroup"):
                break
            declaration = self._components.find("element", str(declaration.get("substitutionGroup")), declaration)
        return "anyType"

    def _tag_of(self, declaration: Node) -> str:
        return _local_name(declaration, "elementFormDefault").tag

    def _pick_substitute(self, declaration: Node) -> Node:
        substitutes = self._components.find_substitutes(declaration)
        if not substitutes:
            raise UnsupportedSchema("nothing can stand for an abstract element")
        return self._chooser.pick(substitutes)

    def _write_complex(self, written: Node, kind: Node, level: int) -> None:
        if kind.get("abstract") == "true":
            usable = self._components.find_derived(kind)
            if not usable:
                raise UnsupportedSchema("nothing is derived from an abstract type")
            kind = self._chooser.pick(usable)
            name = declared_name(kind)
            prefix = next((key for key, value in written.nsmap.items() if value == name.namespace and key), None)
            if name.namespace and prefix is None:
                raise UnsupportedSchema("a derived type needs a prefix that the document does not have")
            written.set(XSI_TYPE, f"{prefix}:{name.local}" if prefix else name.local)
        for attribute in self._attributes_of(kind).values():
            self._write_attribute(written, attribute)
        self._write_content(written, kind, level)

    def _write_content(self, written: Node, kind: Node, level: int, hops: int = 0) -> None:
        if hops > _MAX_HOPS:
            raise UnsupportedSchema("a complex type is its own base")
        derivation = base_of(kind)
        if derivation is None:
            content = kind.find(f"{XS}complexContent")
            inner = None if content is None else content.find("*")
            self._write_particles(written, kind if inner is None else inner, level)
            return
        base = self._components.find_type(str(derivation.get("base")), derivation)
        if kind.find(f"{XS}simpleContent") is not None:
            self._write_simple_content(written, derivation, base, hops)
            return
        if derivation.tag == f"{XS}extension" and not isinstance(base, str):
            self._write_content(written, base, level, hops + 1)
        self._write_particles(written, derivation, level)

    def _write_simple_content(self, written: Node, derivation: Node, base: Node | str, hops: int) -> None:
        restricted = derivation if derivation.tag == f"{XS}restriction" else None
        for _ in range(_MAX_HOPS):
            inline = derivation.find(f"{XS}simpleType")
            if inline is not None:
                base = inline
            outer = None if isinstance(base, str) else base_of(base)
            if outer is None:
                written.text = self._texts.make(base, restricted)
                return
            if restricted is None and outer.tag == f"{XS}restriction":
                restricted = outer
            derivation, base = outer, self._components.find_type(str(outer.get("base")), outer)
        raise UnsupportedSchema("a complex type is its own base")

    def _write_particles(self, written: Node, holder: Node, level: int) -> None:
        for particle in holder.iterchildren(*_PARTICLES):
            self._write_particle(written, particle, level)

    def _write_particle(self, written: Node, particle: Node, level: int) -> None:
        low, high = _occurrence_bounds(particle)
        if low == 0 and not self._chooser.includes(level):
            return
        for _ in range(self._chooser.pick_count(low, high, level)):
            self._write_once(written, particle, level)

    def _write_once(self, written: Node, particle: Node, level: int) -> None:
        self._chooser.count_value(level)
        kind = etree.QName(particle).localname
        if kind == "element":
            self.write_element(particle, written, level + 1)
        elif kind == "choice":
            options = list(particle.iterchildren(*_PARTICLES))
            if options:
                self._write_particle(written, self._pick_option(options, level), level)
        elif kind == "any":
            if particle.get("processContents", "strict") == "strict":
                raise UnsupportedSchema("the schema requires an element of another schema")
            etree.SubElement(written, f"{{{_FOREIGN}}}any")
        elif particle.get("ref"):
            group = self._components.find("group", str(particle.get("ref")), particle)
            self._write_particles(written, group, level + 1)
        else:
            self._write_particles(written, particle, level)

    def _pick_option(self, options: list[Node], level: int) -> Node:
        if not self._chooser.is_minimal(level):
            return self._chooser.pick(options)
        flat = [each for each in options if _occurrence_bounds(each)[0] == 0 or self._is_simple(each)]
        return self._chooser.pick(flat or options)

    def _is_simple(self, particle: Node) -> bool:
        if particle.tag != f"{XS}element":
            return False
        target = particle
        if particle.get("ref"):
            target = self._components.find("element", str(particle.get("ref")), particle)
        kind = self._type_of(target)
        return isinstance(kind, str) or kind.tag == f"{XS}simpleType"

    def _attributes_of(self, kind: Node, hops: int = 0) -> dict[QualifiedName, Node]:
        """Return the attributes of a complex type by name, including inherited ones."""
        if hops > _MAX_HOPS:
            raise UnsupportedSchema("a complex type is its own base")
        attributes: dict[QualifiedName, Node] = {}
        derivation = base_of(kind)
        if derivation is not None:
            base = self._components.find_type(str(derivation.get("base")), derivation)
            if not isinstance(base, str) and base.tag == f"{XS}complexType":
                attributes.update(self._attributes_of(base, hops + 1))
        for attribute in self._iter_attributes(kind if derivation is None else derivation, hops):
            attributes[self._attribute_name(attribute)] = attribute
        return attributes

    def _iter_attributes(self, holder: Node, hops: int) -> Iterator[Node]:
        if hops > _MAX_HOPS:
            raise UnsupportedSchema("an attribute group contains itself")
        for each in holder.iterchildren(f"{XS}attribute", f"{XS}attributeGroup"):
            if each.tag == f"{XS}attribute":
                yield each
            else:
                group = self._components.find("attributeGroup", str(each.get("ref")), each)
                yield from self._iter_attributes(group, hops + 1)

    def _attribute_name(self, attribute: Node) -> QualifiedName:
        if not attribute.get("ref"):
            return _local_name(attribute, "attributeFormDefault")
        name = name_of(str(attribute.get("ref")), attribute)
        return name if name.namespace else QualifiedName(namespace_of(attribute), name.local)

    def _write_attribute(self, written: Node, attribute: Node) -> None:
        use, name = attribute.get("use", "optional"), self._attribute_name(attribute)
        if use == "prohibited" or (use != "required" and not self._chooser.includes(1)):
            return
        if name.namespace == XML_NAMESPACE:
            written.set(name.tag, _XML_ATTRIBUTES.get(name.local, "x"))
            return
        declaration = attribute
        if attribute.get("ref"):
            declaration = self._components.find("attribute", str(attribute.get("ref")), attribute)
        fixed = attribute.get("fixed", declaration.get("fixed"))
        kind = self._type_of(declaration)
        written.set(name.tag, fixed if fixed is not None else self._texts.make("string" if kind == "anyType" else kind))


def _local_name(node: Node, default: str) -> QualifiedName:
    """Return the name of an element or attribute, qualified if it is global, or if its form or the schema's is."""
    root = node.getroottree().getroot()
    qualified = node.getparent() is root or node.get("form", root.get(default, "unqualified")) == "qualified"
    return QualifiedName(namespace_of(node) if qualified else "", node.get("name", ""))


def _namespace_prefixes(declaration: Node) -> dict[str, str]:
    """Return the namespace prefixes of the schema's document, except XSD's own."""
    return {prefix: uri for prefix, uri in declaration.nsmap.items() if prefix and f"{{{uri}}}" != XS}


def _occurrence_bounds(particle: Node) -> tuple[int, int | None]:
    """Return ``minOccurs`` and ``maxOccurs`` of a particle; None for unbounded."""
    low, high = particle.get("minOccurs", "1"), particle.get("maxOccurs", "1")
    return (
        int(low) if low.isdecimal() and len(low) < 9 else 1,
        None if high == "unbounded" else int(high) if high.isdecimal() and len(high) < 9 else 1,
    )
