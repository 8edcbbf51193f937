"""The declarations of an XML schema and of all that it includes and imports, by kind and qualified name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from lxml import etree

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling.filling import Unfillable

XS: Final = "{http://www.w3.org/2001/XMLSchema}"
XML_NAMESPACE: Final = "http://www.w3.org/XML/1998/namespace"
XSI_TYPE: Final = "{http://www.w3.org/2001/XMLSchema-instance}type"
_MAX_DOCUMENTS: Final = 200
_MAX_BASES: Final = 50
_KINDS: Final = ("element", "attribute", "complexType", "simpleType", "group", "attributeGroup")
_READING: Final = ("include", "import", "redefine")

Node = etree._Element


class Name(NamedTuple):
    """A qualified name; ``namespace`` is empty for none."""

    namespace: str
    local: str

    @property
    def tag(self) -> str:
        """The name as lxml writes tags."""
        return f"{{{self.namespace}}}{self.local}" if self.namespace else self.local


class Components:
    """Everything that is declared at the top of the documents of one schema.

    Documents that the library does not know are left out; what needs them is found missing when it is asked for.
    """

    def __init__(self, source: SchemaSource, library: Library) -> None:
        self._library = library
        self._declared: dict[str, dict[Name, Node]] = {kind: {} for kind in _KINDS}
        self._read: set[tuple[str, str]] = set()
        root = _parsed(source.document)
        self._add(root, source.uri)

    def named(self, kind: str, reference: str, at: Node) -> Node:
        """Return the declaration of that kind that a reference names, which is written in the node *at*.

        Raises:
            Unfillable: there is none.
        """
        name = name_of(reference, at)
        known = self._declared[kind]
        declaration = known.get(name)
        # A document without target namespace that another one includes takes over that one's.
        if declaration is None and not name.namespace:
            declaration = known.get(Name(namespace_of(at), name.local))
        if declaration is None:
            raise Unfillable(f"the XML schema has no {kind} {name.local[:60]}")
        return declaration

    def type_named(self, reference: str, at: Node) -> Node | str:
        """Return the type that a reference names: a declaration, or the local name of a built-in type."""
        name = name_of(reference, at)
        if f"{{{name.namespace}}}" == XS:
            return name.local
        for kind in ("complexType", "simpleType"):
            try:
                return self.named(kind, reference, at)
            except Unfillable:
                continue
        raise Unfillable(f"the XML schema has no type {name.local[:60]}")

    def elements(self) -> list[Node]:
        """Return the top-level elements that can be the root of a document, in the order of the documents."""
        return [each for each in self._declared["element"].values() if each.get("abstract") != "true"]

    def substitutes(self, element: Node) -> list[Node]:
        """Return the elements that may stand for a top-level element."""
        name = declared_name(element)
        heads = [each for each in self._declared["element"].values() if each.get("substitutionGroup")]
        substitutes = [each for each in heads if name_of(str(each.get("substitutionGroup")), each) == name]
        return [each for each in substitutes if each.get("abstract") != "true"]

    def derived(self, declaration: Node) -> list[Node]:
        """Return the complex types that can be used in place of an abstract one."""
        types = self._declared["complexType"].values()
        return [each for each in types if each.get("abstract") != "true" and self._derives(each, declaration)]

    def _derives(self, declaration: Node, base: Node) -> bool:
        current: Node | str = declaration
        for _ in range(_MAX_BASES):
            written = None if isinstance(current, str) else base_of(current)
            if written is None:
                return False
            current = self.type_named(str(written.get("base")), written)
            if current is base:
                return True
        return False

    def _add(self, root: Node, uri: str) -> None:
        for node in root.iterchildren(*(f"{XS}{kind}" for kind in (*_KINDS, *_READING))):
            kind = etree.QName(node).localname
            if kind in _READING:
                self._include(node, kind, root, uri)
            elif node.get("name"):
                self._declared[kind].setdefault(declared_name(node), node)

    def _include(self, node: Node, kind: str, root: Node, uri: str) -> None:
        location = node.get("schemaLocation") or node.get("namespace")
        key = (location or "", uri)
        if not location or key in self._read or len(self._read) >= _MAX_DOCUMENTS:
            return
        self._read.add(key)
        if kind == "redefine":
            for each in _declarations(node):
                self._declared[etree.QName(each).localname].setdefault(declared_name(each), each)
        loaded = self._library.document(location, uri)
        if loaded is None or not isinstance(loaded[1], str):
            return
        included = _parsed(loaded[1])
        if kind != "import" and not included.get("targetNamespace") and root.get("targetNamespace"):
            included.set("targetNamespace", str(root.get("targetNamespace")))
        self._add(included, loaded[0])


def declared_name(node: Node) -> Name:
    """Return the qualified name of a top-level declaration."""
    return Name(namespace_of(node), node.get("name", ""))


def namespace_of(node: Node) -> str:
    """Return the target namespace of the document that a node is written in."""
    return str(node.getroottree().getroot().get("targetNamespace", ""))


def name_of(reference: str, at: Node) -> Name:
    """Return the qualified name that ``prefix:local`` means in a node."""
    prefix, colon, local = reference.strip().rpartition(":")
    if prefix == "xml":
        return Name(XML_NAMESPACE, local)
    return Name(at.nsmap.get(prefix if colon else None) or "", local)


def base_of(declaration: Node) -> Node | None:
    """Return the node of a complex type that says what it is derived from, with its attribute ``base``."""
    for content in declaration.iterchildren(f"{XS}simpleContent", f"{XS}complexContent"):
        for derivation in content.iterchildren(f"{XS}extension", f"{XS}restriction"):
            return derivation if derivation.get("base") else None
    return None


def _declarations(node: Node) -> Iterator[Node]:
    return (each for each in node.iterchildren(*(f"{XS}{kind}" for kind in _KINDS)) if each.get("name"))


def _parsed(text: object) -> Node:
    if not isinstance(text, str):
        raise Unfillable("an XML schema is text")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(text.encode("utf-8"), parser)
    except etree.XMLSyntaxError as error:
        raise Unfillable(f"the XML schema cannot be read: {str(error)[:120]}") from error
    if root.tag != f"{XS}schema":
        raise Unfillable("the XML schema has another root element than xs:schema")
    return root
