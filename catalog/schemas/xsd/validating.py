"""Validation with XML Schema 1.0, by libxml2.

Bodies are parsed without DTDs, entities, files and network access, and ``xsi:schemaLocation`` is removed so that
libxml2 does not follow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from lxml import etree

from catalog.schemas.contract import (
    CostExceeded,
    Library,
    MissingTypeError,
    SchemaError,
    SchemaFault,
    SchemaSource,
    Validator,
    clip,
    make_fault,
)
from catalog.schemas.sandbox import COMPILE_MEMORY, COMPILE_SECONDS, LimitExceeded, compile_limited

# Reading XML Schema documents, without DTDs, entities, files and network access, and with all that they refer to.
#
# Each reference to another document is resolved by the library and replaced by a generated name, so that libxml2, which
# follows references itself, can only find documents in :attr:`XsdDocuments.texts`.

XS: Final = "{http://www.w3.org/2001/XMLSchema}"
PLAIN_SIZE: Final = 256 * 1024
"""Larger schemas are first compiled in the sandbox: on a busy machine 40 ms for a small one, which takes 1 ms here."""
_MAIN: Final = "document0.xsd"
_REFERRING: Final = (f"{XS}include", f"{XS}import", f"{XS}redefine", f"{XS}override")
_DECLARATION: Final = re.compile(r"\ufeff?\s*<\?xml\s[^>]*\?>")
XML_NAMESPACE: Final = "http://www.w3.org/XML/1998/namespace"
# Most schemas that use xml:lang import this schema, which catalogs do not contain.
_XML_ATTRIBUTES: Final = f"""<schema xmlns="{XS[1:-1]}" targetNamespace="{XML_NAMESPACE}">
<attribute name="lang" type="string"/><attribute name="base" type="anyURI"/><attribute name="id" type="ID"/>
<attribute name="space"><simpleType><restriction base="NCName"><enumeration value="default"/>
<enumeration value="preserve"/></restriction></simpleType></attribute>
<attributeGroup name="specialAttrs"><attribute ref="xml:base"/><attribute ref="xml:lang"/><attribute ref="xml:space"/>
<attribute ref="xml:id"/></attributeGroup></schema>"""


@dataclass(frozen=True, slots=True)
class XsdDocuments:
    """All documents of a schema by generated name; the first is the schema itself.

    ``elements`` are the local names of all global elements, ``later`` is a feature of XSD 1.1 that is used, and
    ``intricate`` says whether the compiled form may be much larger than the text.
    """

    texts: Mapping[str, bytes]
    elements: frozenset[str]
    later: str = ""
    intricate: bool = False


class _KnownDocuments(etree.Resolver):
    """Resolves the names of the loaded documents for libxml2; any other name gives an empty document."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        super().__init__()
        self._texts = texts

    def resolve(self, system_url: str, public_id: str, context: Any) -> Any:  # type: ignore[override]  # of the stubs
        text = self._texts.get(system_url)
        if text is None:
            return self.resolve_empty(context)  # type: ignore[attr-defined]
        return self.resolve_string(text, context, base_url=system_url)


def safe_parser(**options: Any) -> etree.XMLParser:
    """Return a parser without external access and entities, and with libxml2's limits on depth and size."""
    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False, **options
    )


def has_doctype(root: etree._Element) -> bool:
    """Whether a document has a DOCTYPE."""
    return bool(root.getroottree().docinfo.doctype)  # type: ignore[attr-defined]  # stubs lack it


def compile_documents(texts: Mapping[str, bytes]) -> etree.XMLSchema:
    """Compile loaded documents.

    Raises:
        etree.XMLSchemaParseError: libxml2 rejects them.
    """
    parser = safe_parser(encoding="utf-8")
    parser.resolvers.add(_KnownDocuments(texts))
    return etree.XMLSchema(etree.fromstring(texts[_MAIN], parser, base_url=_MAIN))


def read_documents(source: SchemaSource, library: Library) -> XsdDocuments:
    """Load a schema and all documents that it refers to.

    Raises:
        SchemaError: a document is not an XML Schema, has a DTD, or is unknown to the library.
    """
    roots = {_MAIN: _parse_schema(source.document, "")}
    names = {source.uri: _MAIN}
    waiting = [(_MAIN, source.uri)]
    size = len(source.document)
    while waiting:
        current, base = waiting.pop()
        for each in _iter_references(roots[current]):
            uri, document = _load_reference(each, base, library)
            if uri not in names:
                names[uri] = f"document{len(names)}.xsd"
                roots[names[uri]] = _parse_schema(document, uri)
                waiting.append((names[uri], uri))
                size += len(document)
            each.set("schemaLocation", names[uri])
    return XsdDocuments(
        texts={name: etree.tostring(root, encoding="utf-8") for name, root in roots.items()},
        elements=frozenset(str(each.get("name")) for root in roots.values() for each in root.findall(f"{XS}element")),
        later=next((later for root in roots.values() for later in _iter_xsd11(root)), ""),
        intricate=size > PLAIN_SIZE or any(map(_is_intricate, roots.values())),
    )


def _parse_schema(document: Any, uri: str) -> etree._Element:
    place = f" {clip(uri)}" if uri else ""
    if not isinstance(document, str):
        raise SchemaError(
            f"the XML Schema{place} is not a string", hint="write the content of the .xsd file as a string"
        )
    text = _DECLARATION.sub("", document, count=1).removeprefix("\ufeff").strip()
    try:
        root = etree.fromstring(text.encode("utf-8", "surrogatepass"), safe_parser(encoding="utf-8"))
    except etree.XMLSyntaxError as error:
        hint = "correct the document; entities and DTDs are not for schemas of messages"
        raise SchemaError(f"the XML Schema{place} is not XML: {clip(str(error.msg))}", hint=hint) from error
    if has_doctype(root):
        raise SchemaError(f"the XML Schema{place} has a DTD", hint="take the DOCTYPE out, and write its entities out")
    if root.tag != f"{XS}schema":
        hint = f"its root must be schema in the namespace {XS[1:-1]}"
        raise SchemaError(f"{place.strip() or 'the document'} is not an XML Schema", hint=hint)
    return root


def _iter_references(root: etree._Element) -> Iterator[etree._Element]:
    return (each for each in root.iterchildren(*_REFERRING) if each.get("schemaLocation") is not None)


def _load_reference(each: etree._Element, base: str, library: Library) -> tuple[str, str]:
    location = str(each.get("schemaLocation"))
    loaded = library.document(location.strip(), base) or library.document(location, base)
    if loaded is None and each.get("namespace") == XML_NAMESPACE:
        return XML_NAMESPACE, _XML_ATTRIBUTES
    if loaded is None:
        hint = f"add a document that the schema's {location!r} leads to"
        raise SchemaError(f"the XML Schema refers to {clip(location)!r}, which is not known", hint=hint)
    return loaded


def _iter_xsd11(root: etree._Element) -> Iterator[str]:
    tags = ("assert", "assertion", "alternative", "openContent", "defaultOpenContent", "override", "explicitTimezone")
    yield from (str(each.tag).rpartition("}")[2] for each in root.iter(*(f"{XS}{tag}" for tag in tags)))
    for types in ("dateTimeStamp", "dayTimeDuration", "yearMonthDuration", "anyAtomicType"):
        yield from (
            types for each in root.iter(f"{XS}*") if str(each.get("type", each.get("base"))).endswith(f":{types}")
        )


def _is_intricate(root: etree._Element) -> bool:
    """Whether a document has references that may multiply, many optional parts, or counted patterns."""
    if next(root.iter(f"{XS}union", f"{XS}extension"), None) is not None:
        return True
    refers = any(each.get("ref") for each in root.iter(f"{XS}group", f"{XS}attributeGroup"))
    substitutes = any(each.get("substitutionGroup") for each in root.iter(f"{XS}element"))
    counts = any("{" in str(each.get("value")) for each in root.iter(f"{XS}pattern"))
    return refers or substitutes or counts or sum(each.get("minOccurs") == "0" for each in root.iter(f"{XS}*")) > 200


# libxml2 compares each value with all values of an enumeration, and tries all ways to match ambiguous patterns and
# content models. It gives up after half a second, but for each value of a body. So only bodies of some size are
# validated in this process.

_MAX_WORK: Final = 40_000_000
"""Maximum bytes of a body that is validated here, times the options of enumerations (and 250)."""
_MAX_SQUARED: Final = 4096
"""Maximum size of a body whose values can be matched in quadratic time here."""
_REPEATED_GROUP: Final = re.compile(r"\)(?:[*+]|\{)")
_VARIABLE: Final = re.compile(r"[*+]|\{\d*,")
_GROUPS: Final = (f"{XS}sequence", f"{XS}choice", f"{XS}group")


def _find_fast_bytes(texts: Mapping[str, bytes]) -> int:
    """Return the size up to which every body can be validated fast."""
    roots = [etree.fromstring(text, safe_parser(encoding="utf-8")) for text in texts.values()]
    patterns = [str(each.get("value")) for root in roots for each in root.iter(f"{XS}pattern")]
    if any(map(_REPEATED_GROUP.search, patterns)) or any(map(_has_ambiguous_model, roots)):
        return 0
    options = sum(1 for root in roots for _ in root.iter(f"{XS}enumeration"))
    linear = _MAX_WORK // (250 + options)
    return min(linear, _MAX_SQUARED) if any(len(_VARIABLE.findall(each)) > 1 for each in patterns) else linear


def _has_ambiguous_model(root: etree._Element) -> bool:
    """Whether a repeated group has a count, or is inside of another repeated group."""
    for each in root.iter(*_GROUPS):
        times = str(each.get("maxOccurs", "1"))
        if times not in ("0", "1", "unbounded"):
            return True
        if times == "unbounded" and any(
            str(over.get("maxOccurs", "1")) != "1" for over in each.iterancestors(*_GROUPS)
        ):
            return True
    return False


MAX_LOCATED_BYTES: Final = 32 * 1024
"""Faults of larger bodies have no location, because libxml2 counts siblings for each fault."""
_CHUNK: Final = 1024
_LOCATIONS: Final = etree.XPath(
    "//@*[namespace-uri() = 'http://www.w3.org/2001/XMLSchema-instance' and contains(local-name(), 'chemaLocation')]"
)


def compile_schema(source: SchemaSource, library: Library) -> XsdValidator:
    """Compile an XML Schema; ``source.name`` is the required local name of the root element.

    Without a name, any global element may be the root. Included and imported documents come from the library.

    Raises:
        SchemaError: it is not an XML Schema 1.0, a document or the element is missing, or compiling exceeds the limits.
    """
    if source.pointer:
        hint = "append :Name of a global element to its reference, or #/xs:schema/xs:element[@name='Name']"
        raise MissingTypeError(f"{clip(source.pointer)} leads to no element of an XML Schema", hint=hint)
    if not isinstance(source.document, str):
        raise SchemaError("an XML Schema is a text", hint="write the content of the .xsd file as a string")
    documents = read_documents(source, library)
    if not documents.elements:
        raise SchemaError("the XML Schema declares no global element", hint="declare the root element of the messages")
    if source.name and source.name not in documents.elements:
        known = clip(", ".join(sorted(documents.elements)))
        raise MissingTypeError(f"the XML Schema declares no element {clip(source.name)}", hint=f"it declares {known}")
    try:
        # A short schema can make libxml2 use all memory, or days.
        reason = compile_limited(_find_fault, documents.texts, module="lxml.etree") if documents.intricate else ""
        if not reason:
            return XsdValidator(compile_documents(documents.texts), source.name, _find_fast_bytes(documents.texts))
    except LimitExceeded:
        limits = f"{COMPILE_SECONDS:g} s or {COMPILE_MEMORY // 1024**2} MiB"
        hint = "use fewer optional elements in one type, and groups and unions that refer to each other less often"
        raise SchemaError(f"compiling the XML Schema takes more than {limits}", hint=hint) from None
    except (etree.XMLSchemaParseError, etree.XMLSyntaxError) as error:
        reason = str(error)
    raise _compile_error(documents, source.version, reason)


def references_of(source: SchemaSource) -> Iterable[str]:
    """Return the locations of included, imported and redefined documents, as written; none if it is not an XSD."""
    try:
        root = _parse_schema(source.document, "")
    except SchemaError:
        return []
    return list(dict.fromkeys(str(each.get("schemaLocation")) for each in _iter_references(root)))


def _find_fault(texts: Mapping[str, bytes]) -> str:
    """Return why libxml2 rejects documents."""
    try:
        compile_documents(texts)
    except (etree.XMLSchemaParseError, etree.XMLSyntaxError) as error:
        return str(error) or "no reason is given"
    return ""


def _compile_error(documents: XsdDocuments, version: str, reason: str) -> SchemaError:
    if documents.later:
        hint = f"only XSD 1.0 is known: do without {documents.later}, which is of XSD 1.1"
    elif version.startswith("1.1"):
        hint = "correct the schema, and note that only XSD 1.0 is known"
    else:
        hint = "correct the schema; `xmllint --schema` says the same of it"
    return SchemaError(f"not a valid XML Schema: {clip(reason)}", hint=hint)


class XsdValidator(Validator):
    """A compiled XML Schema."""

    def __init__(self, schema: etree.XMLSchema, name: str, fast_bytes: int) -> None:
        self._schema = schema
        self._fast_bytes = fast_bytes
        self._name = name
        self._parser = safe_parser()

    def find_faults(
        self, body: bytes | None, content_type: str | None, limit: int, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        """Return the faults of *body*, with an XPath if it has at most MAX_LOCATED_BYTES.

        The body declares its encoding itself; the content type is ignored.

        Raises:
            CostExceeded: validation may take too long, and *at_any_cost* is False.
        """
        if not body:
            return [make_fault("the body is missing; XML is expected")]
        if not at_any_cost and len(body) > self._fast_bytes:
            raise CostExceeded
        try:
            root = etree.fromstring(body, self._parser)
        except (etree.XMLSyntaxError, ValueError) as error:
            return [make_fault(f"not XML: {error}")]
        if has_doctype(root):
            return [make_fault("a DOCTYPE is not allowed")]
        local = etree.QName(root).localname
        if self._name and local != self._name:
            return [make_fault(f"the root element is {local} and not {self._name}", "/*")]
        locations = _LOCATIONS(root)
        for each in locations if isinstance(locations, list) else ():
            del each.getparent().attrib[each.attrname]  # type: ignore[union-attr,arg-type]  # an attribute, by the XPath
        if len(body) <= MAX_LOCATED_BYTES:
            return self._find_located_faults(root, limit)
        if locations:
            body = etree.tostring(root, encoding="utf-8")
        del root
        return self._find_first_faults(body, limit)

    def _find_located_faults(self, root: etree._Element, limit: int) -> list[SchemaFault]:
        try:
            if self._schema.validate(root):
                return []
        except etree.XMLSchemaValidateError as error:
            # a pattern may match a value in too many ways
            return [make_fault(f"the validator gave up: {error}")]
        log = iter(self._schema.error_log)  # type: ignore[call-overload]
        return [make_fault(str(each.message), str(each.path or "")) for each in islice(log, limit)]

    def _find_first_faults(self, body: bytes, limit: int) -> list[SchemaFault]:
        """Validate while parsing, and stop after *limit* faults, because a large body may have millions."""
        parser = safe_parser(schema=self._schema)
        try:
            for begin in range(0, len(body), _CHUNK):
                parser.feed(body[begin : begin + _CHUNK])
                if len(parser.feed_error_log) >= limit:
                    return _to_faults(parser.feed_error_log, limit)
            parser.close()
        except (etree.XMLSyntaxError, etree.XMLSchemaError) as error:
            return _to_faults(parser.feed_error_log, limit) or [make_fault(str(error))]
        return _to_faults(parser.feed_error_log, limit)


def _to_faults(log: Iterable[etree._LogEntry], limit: int) -> list[SchemaFault]:
    return [make_fault(str(each.message)) for each in islice(log, limit)]
