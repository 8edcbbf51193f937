"""XML documents for XSD: the schema is walked from a root element, and what it describes is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lxml import etree

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling.filling import Filler, Filling, Unfillable
from catalog.schemas.xsd.components import (
    XML_NAMESPACE,
    XS,
    XSI_TYPE,
    Components,
    Name,
    Node,
    base_of,
    declared_name,
    name_of,
    namespace_of,
)
from catalog.schemas.xsd.simple import SimpleTexts

_MAX_HOPS: Final = 50
_PARTICLES: Final = tuple(f"{XS}{kind}" for kind in ("sequence", "choice", "all", "group", "element", "any"))
_XML_ATTRIBUTES: Final = {"lang": "en", "space": "default", "base": "https://example.com/"}
_FOREIGN: Final = "urn:example:any"
"""The namespace of elements that stand where a schema allows any."""


def open_filler(source: SchemaSource, library: Library) -> Filler:
    """Return what makes payloads for a schema."""
    return XsdFiller(source, library)


class XsdFiller:
    """Makes documents for one XML schema; ``name`` of the source is the root element, else the first that can be."""

    def __init__(self, source: SchemaSource, library: Library) -> None:
        self._components = Components(source, library)
        elements = self._components.elements()
        wanted = [each for each in elements if not source.name or each.get("name") == source.name.rpartition(":")[2]]
        if not wanted:
            raise Unfillable("the XML schema has no element that can be the root")
        self._root = wanted[0]

    def payload(self, filling: Filling, content_type: str) -> bytes:
        root = _Writer(self._components, filling).element(self._root, None, 0)
        return etree.tostring(root, encoding="UTF-8", xml_declaration=True)


class _Writer:
    """Writes one document."""

    def __init__(self, components: Components, filling: Filling) -> None:
        self._components = components
        self._filling = filling
        self._texts = SimpleTexts(components, filling)

    def element(self, declaration: Node, parent: Node | None, level: int) -> Node:
        """Write one element and what is in it; its own counts are the caller's."""
        self._filling.spend(level)
        tag = self._tag(declaration)
        if declaration.get("ref"):
            declaration = self._components.named("element", str(declaration.get("ref")), declaration)
            if declaration.get("abstract") == "true":
                declaration = self._substitute(declaration)
            tag = declared_name(declaration).tag
        if parent is None:
            written = etree.Element(tag, nsmap=_prefixes(declaration))
        else:
            written = etree.SubElement(parent, tag)
        fixed = declaration.get("fixed")
        kind = self._type(declaration)
        if isinstance(kind, str) or kind.tag == f"{XS}simpleType":
            written.text = fixed if fixed is not None else self._built_in(kind)
        else:
            self._complex(written, kind, level)
            if fixed is not None:
                written.text = fixed
        return written

    def _built_in(self, kind: Node | str) -> str:
        return "" if kind == "anyType" else self._texts.text(kind)

    def _type(self, declaration: Node) -> Node | str:
        """Return the type of an element: named, written in it, that of the element it stands for, or any."""
        for _ in range(_MAX_HOPS):
            if declaration.get("type"):
                return self._components.type_named(str(declaration.get("type")), declaration)
            for inline in declaration.iterchildren(f"{XS}complexType", f"{XS}simpleType"):
                return inline
            if not declaration.get("substitutionGroup"):
                break
            declaration = self._components.named("element", str(declaration.get("substitutionGroup")), declaration)
        return "anyType"

    def _tag(self, declaration: Node) -> str:
        return _local_name(declaration, "elementFormDefault").tag

    def _substitute(self, declaration: Node) -> Node:
        substitutes = self._components.substitutes(declaration)
        if not substitutes:
            raise Unfillable("nothing can stand for an abstract element")
        return self._filling.pick(substitutes)

    def _complex(self, written: Node, kind: Node, level: int) -> None:
        if kind.get("abstract") == "true":
            usable = self._components.derived(kind)
            if not usable:
                raise Unfillable("nothing is derived from an abstract type")
            kind = self._filling.pick(usable)
            name = declared_name(kind)
            prefix = next((key for key, value in written.nsmap.items() if value == name.namespace and key), None)
            if name.namespace and prefix is None:
                raise Unfillable("a derived type needs a prefix that the document does not have")
            written.set(XSI_TYPE, f"{prefix}:{name.local}" if prefix else name.local)
        for attribute in self._attributes(kind).values():
            self._attribute(written, attribute)
        self._content(written, kind, level)

    def _content(self, written: Node, kind: Node, level: int, hops: int = 0) -> None:
        if hops > _MAX_HOPS:
            raise Unfillable("a complex type is its own base")
        derivation = base_of(kind)
        if derivation is None:
            content = kind.find(f"{XS}complexContent")
            inner = None if content is None else content.find("*")
            self._particles(written, kind if inner is None else inner, level)
            return
        base = self._components.type_named(str(derivation.get("base")), derivation)
        if kind.find(f"{XS}simpleContent") is not None:
            self._simple_content(written, derivation, base, hops)
            return
        if derivation.tag == f"{XS}extension" and not isinstance(base, str):
            self._content(written, base, level, hops + 1)
        self._particles(written, derivation, level)

    def _simple_content(self, written: Node, derivation: Node, base: Node | str, hops: int) -> None:
        restricted = derivation if derivation.tag == f"{XS}restriction" else None
        for _ in range(_MAX_HOPS):
            inline = derivation.find(f"{XS}simpleType")
            if inline is not None:
                base = inline
            outer = None if isinstance(base, str) else base_of(base)
            if outer is None:
                written.text = self._texts.text(base, restricted)
                return
            if restricted is None and outer.tag == f"{XS}restriction":
                restricted = outer
            derivation, base = outer, self._components.type_named(str(outer.get("base")), outer)
        raise Unfillable("a complex type is its own base")

    def _particles(self, written: Node, holder: Node, level: int) -> None:
        for particle in holder.iterchildren(*_PARTICLES):
            self._particle(written, particle, level)

    def _particle(self, written: Node, particle: Node, level: int) -> None:
        low, high = _occurs(particle)
        if low == 0 and not self._filling.wants(level):
            return
        for _ in range(self._filling.count(low, high, level)):
            self._once(written, particle, level)

    def _once(self, written: Node, particle: Node, level: int) -> None:
        self._filling.spend(level)
        kind = etree.QName(particle).localname
        if kind == "element":
            self.element(particle, written, level + 1)
        elif kind == "choice":
            options = list(particle.iterchildren(*_PARTICLES))
            if options:
                self._particle(written, self._option(options, level), level)
        elif kind == "any":
            if particle.get("processContents", "strict") == "strict":
                raise Unfillable("the schema wants some element of another schema")
            etree.SubElement(written, f"{{{_FOREIGN}}}any")
        elif particle.get("ref"):
            group = self._components.named("group", str(particle.get("ref")), particle)
            self._particles(written, group, level + 1)
        else:
            self._particles(written, particle, level)

    def _option(self, options: list[Node], level: int) -> Node:
        if not self._filling.is_lean(level):
            return self._filling.pick(options)
        flat = [each for each in options if _occurs(each)[0] == 0 or self._is_simple(each)]
        return self._filling.pick(flat or options)

    def _is_simple(self, particle: Node) -> bool:
        if particle.tag != f"{XS}element":
            return False
        target = particle
        if particle.get("ref"):
            target = self._components.named("element", str(particle.get("ref")), particle)
        kind = self._type(target)
        return isinstance(kind, str) or kind.tag == f"{XS}simpleType"

    def _attributes(self, kind: Node, hops: int = 0) -> dict[Name, Node]:
        """Return the attributes of a complex type, inherited ones included, by their names."""
        if hops > _MAX_HOPS:
            raise Unfillable("a complex type is its own base")
        attributes: dict[Name, Node] = {}
        derivation = base_of(kind)
        if derivation is not None:
            base = self._components.type_named(str(derivation.get("base")), derivation)
            if not isinstance(base, str) and base.tag == f"{XS}complexType":
                attributes.update(self._attributes(base, hops + 1))
        for attribute in self._written_attributes(kind if derivation is None else derivation, hops):
            attributes[self._attribute_name(attribute)] = attribute
        return attributes

    def _written_attributes(self, holder: Node, hops: int) -> Iterator[Node]:
        if hops > _MAX_HOPS:
            raise Unfillable("an attribute group holds itself")
        for each in holder.iterchildren(f"{XS}attribute", f"{XS}attributeGroup"):
            if each.tag == f"{XS}attribute":
                yield each
            else:
                group = self._components.named("attributeGroup", str(each.get("ref")), each)
                yield from self._written_attributes(group, hops + 1)

    def _attribute_name(self, attribute: Node) -> Name:
        if not attribute.get("ref"):
            return _local_name(attribute, "attributeFormDefault")
        name = name_of(str(attribute.get("ref")), attribute)
        return name if name.namespace else Name(namespace_of(attribute), name.local)

    def _attribute(self, written: Node, attribute: Node) -> None:
        use, name = attribute.get("use", "optional"), self._attribute_name(attribute)
        if use == "prohibited" or (use != "required" and not self._filling.wants(1)):
            return
        if name.namespace == XML_NAMESPACE:
            written.set(name.tag, _XML_ATTRIBUTES.get(name.local, "x"))
            return
        declaration = attribute
        if attribute.get("ref"):
            declaration = self._components.named("attribute", str(attribute.get("ref")), attribute)
        fixed = attribute.get("fixed", declaration.get("fixed"))
        kind = self._type(declaration)
        written.set(name.tag, fixed if fixed is not None else self._texts.text("string" if kind == "anyType" else kind))


def _local_name(node: Node, default: str) -> Name:
    """Return the name of an element or attribute: qualified when it stands at the top, or it or its schema says so."""
    root = node.getroottree().getroot()
    qualified = node.getparent() is root or node.get("form", root.get(default, "unqualified")) == "qualified"
    return Name(namespace_of(node) if qualified else "", node.get("name", ""))


def _prefixes(declaration: Node) -> dict[str, str]:
    """Return the prefixes of the schema's own document, without that of XSD itself."""
    return {prefix: uri for prefix, uri in declaration.nsmap.items() if prefix and f"{{{uri}}}" != XS}


def _occurs(particle: Node) -> tuple[int, int | None]:
    """Return how often a particle may stand; None for without end."""
    low, high = particle.get("minOccurs", "1"), particle.get("maxOccurs", "1")
    return (
        int(low) if low.isdecimal() and len(low) < 9 else 1,
        None if high == "unbounded" else int(high) if high.isdecimal() and len(high) < 9 else 1,
    )
