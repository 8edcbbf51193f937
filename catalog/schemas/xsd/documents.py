"""XML Schema documents: read without DTD, entities, files or network, and put together with those they refer to.

Every reference to another document is asked of the library and then replaced by a name of our own, so that libxml2,
which follows references by itself, can only ever come to documents that are in :attr:`XsdDocuments.texts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lxml import etree

from catalog.schemas.contract import Library, SchemaError, SchemaSource, short
from catalog.schemas.filling import Unfillable

XS: Final = "{http://www.w3.org/2001/XMLSchema}"
MAX_DOCUMENTS: Final = 500
MAX_TEXT: Final = 8 * 1024 * 1024
"""Bytes of all documents of one schema together."""
_MAIN: Final = "document0.xsd"
_REFERRING: Final = (f"{XS}include", f"{XS}import", f"{XS}redefine", f"{XS}override")
_DECLARATION: Final = re.compile(r"\ufeff?\s*<\?xml\s[^>]*\?>")
XML_NAMESPACE: Final = "http://www.w3.org/XML/1998/namespace"
# Nearly every schema that uses xml:lang imports this, from an address that no catalog has at hand.
_XML_ATTRIBUTES: Final = f"""<schema xmlns="{XS[1:-1]}" targetNamespace="{XML_NAMESPACE}">
<attribute name="lang" type="string"/><attribute name="base" type="anyURI"/><attribute name="id" type="ID"/>
<attribute name="space"><simpleType><restriction base="NCName"><enumeration value="default"/>
<enumeration value="preserve"/></restriction></simpleType></attribute>
<attributeGroup name="specialAttrs"><attribute ref="xml:base"/><attribute ref="xml:lang"/><attribute ref="xml:space"/>
<attribute ref="xml:id"/></attributeGroup></schema>"""


@dataclass(frozen=True, slots=True)
class XsdDocuments:
    """All documents of a schema, by the names that their references have been given; the first is the schema itself.

    ``elements`` are the local names of all global elements, ``later`` what in them XSD 1.0 does not have, and
    ``intricate`` tells whether they hold anything whose compiled form may be out of proportion to its text.
    """

    texts: Mapping[str, bytes]
    elements: frozenset[str]
    later: str = ""
    intricate: bool = False


class _Resolver(etree.Resolver):
    """Gives the documents that are known; nothing but an empty one for whatever else libxml2 may ask for."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        super().__init__()
        self._texts = texts

    def resolve(self, system_url: str, public_id: str, context: Any) -> Any:  # type: ignore[override]  # of the stubs
        text = self._texts.get(system_url)
        if text is None:
            return self.resolve_empty(context)  # type: ignore[attr-defined]
        return self.resolve_string(text, context, base_url=system_url)


def safe_parser(**options: Any) -> etree.XMLParser:
    """Return a parser that opens nothing, expands no entity, and keeps libxml2's limits on depth and size."""
    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False, **options
    )


def has_doctype(root: etree._Element) -> bool:
    """Tell whether a document has a DOCTYPE, with or without declarations in it."""
    return bool(root.getroottree().docinfo.doctype)  # type: ignore[attr-defined]  # stubs lack it


def compile_documents(texts: Mapping[str, bytes]) -> etree.XMLSchema:
    """Compile documents that were read.

    Raises:
        etree.XMLSchemaParseError: libxml2 refuses them.
    """
    parser = safe_parser(encoding="utf-8")
    parser.resolvers.add(_Resolver(texts))
    return etree.XMLSchema(etree.fromstring(texts[_MAIN], parser, base_url=_MAIN))


def read_documents(source: SchemaSource, library: Library) -> XsdDocuments:
    """Read a schema and all documents that it refers to.

    Raises:
        SchemaError: one is no XML Schema, has a DTD, or is unknown to the library.
    """
    roots = {_MAIN: _read(source.document, "")}
    names = {source.uri: _MAIN}
    waiting = [(_MAIN, source.uri)]
    size = len(source.document)
    while waiting:
        current, base = waiting.pop()
        for each in _referring(roots[current]):
            uri, document = _referred(each, base, library)
            if uri not in names:
                names[uri] = f"document{len(names)}.xsd"
                roots[names[uri]] = _read(document, uri)
                waiting.append((names[uri], uri))
                size += len(document)
            each.set("schemaLocation", names[uri])
            if len(names) > MAX_DOCUMENTS or size > MAX_TEXT:
                limits = f"{MAX_DOCUMENTS} documents and {MAX_TEXT} characters"
                raise SchemaError(f"the XML Schema has more than {limits}", hint="include less")
    return XsdDocuments(
        texts={name: etree.tostring(root, encoding="utf-8") for name, root in roots.items()},
        elements=frozenset(str(each.get("name")) for root in roots.values() for each in root.findall(f"{XS}element")),
        later=next((later for root in roots.values() for later in _later(root)), ""),
        intricate=size > MAX_TEXT // 32 or any(map(_is_intricate, roots.values())),
    )


def locations_of(source: SchemaSource) -> list[str]:
    """Return the locations that a document refers to, as written; none of what is no XML Schema."""
    try:
        root = _read(source.document, "")
    except SchemaError:
        return []
    return list(dict.fromkeys(str(each.get("schemaLocation")) for each in _referring(root)))


def _read(document: Any, uri: str) -> etree._Element:
    place = f" {short(uri)}" if uri else ""
    if not isinstance(document, str):
        raise SchemaError(f"the XML Schema{place} is no text", hint="give the text of the .xsd file as a string")
    text = _DECLARATION.sub("", document, count=1).removeprefix("\ufeff").strip()
    try:
        root = etree.fromstring(text.encode("utf-8", "surrogatepass"), safe_parser(encoding="utf-8"))
    except etree.XMLSyntaxError as error:
        hint = "correct the document; entities and DTDs are not for schemas of messages"
        raise SchemaError(f"the XML Schema{place} is not XML: {short(str(error.msg))}", hint=hint) from error
    if has_doctype(root):
        raise SchemaError(f"the XML Schema{place} has a DTD", hint="take the DOCTYPE out, and write its entities out")
    if root.tag != f"{XS}schema":
        hint = f"its root must be schema in the namespace {XS[1:-1]}"
        raise SchemaError(f"{place.strip() or 'the document'} is no XML Schema", hint=hint)
    return root


def _referring(root: etree._Element) -> Iterator[etree._Element]:
    return (each for each in root.iterchildren(*_REFERRING) if each.get("schemaLocation") is not None)


def _referred(each: etree._Element, base: str, library: Library) -> tuple[str, str]:
    location = str(each.get("schemaLocation"))
    loaded = library.document(location.strip(), base) or library.document(location, base)
    if loaded is None and each.get("namespace") == XML_NAMESPACE:
        return XML_NAMESPACE, _XML_ATTRIBUTES
    if loaded is None:
        hint = f"add a document that the schema's {location!r} leads to"
        raise SchemaError(f"the XML Schema refers to {short(location)!r}, which is not known", hint=hint)
    return loaded


def _later(root: etree._Element) -> Iterator[str]:
    tags = ("assert", "assertion", "alternative", "openContent", "defaultOpenContent", "override", "explicitTimezone")
    yield from (str(each.tag).rpartition("}")[2] for each in root.iter(*(f"{XS}{tag}" for tag in tags)))
    for types in ("dateTimeStamp", "dayTimeDuration", "yearMonthDuration", "anyAtomicType"):
        yield from (
            types for each in root.iter(f"{XS}*") if str(each.get("type", each.get("base"))).endswith(f":{types}")
        )


def _is_intricate(root: etree._Element) -> bool:
    """Tell whether a document holds references that multiply, many optional parts, or patterns that count."""
    if next(root.iter(f"{XS}union", f"{XS}extension"), None) is not None:
        return True
    refers = any(each.get("ref") for each in root.iter(f"{XS}group", f"{XS}attributeGroup"))
    substitutes = any(each.get("substitutionGroup") for each in root.iter(f"{XS}element"))
    counts = any("{" in str(each.get("value")) for each in root.iter(f"{XS}pattern"))
    return refers or substitutes or counts or sum(each.get("minOccurs") == "0" for each in root.iter(f"{XS}*")) > 200


# The declarations of an XML schema and of all that it includes and imports, by kind and qualified name.

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
