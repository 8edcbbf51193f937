"""Schemas of a loaded catalog: the schema of each definition, references to schemas, and their URIs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from catalog.definitions.inheritance import attribute_location
from catalog.dialects import suffixes
from catalog.dialects.reading import default_version
from catalog.documents.fetching import is_url
from catalog.findings import Declarations, DeclaredMessage, DocumentError, SourceLocation
from catalog.model import Definition
from catalog.parsing.nearest import Suggestions
from catalog.parsing.pointers import unescape_step
from catalog.parsing.texts import parse_text
from catalog.references import ExternalDocuments
from catalog.schemas.contract import SchemaFamily, SchemaSource
from catalog.schemas.families import SchemaFormat, evident_family, family_of, parse_format
from catalog.values import is_valid, to_text


class CatalogLibrary:
    """Finds documents in :attr:`Catalog.schemas`; never loads any.

    The ``references`` of an entry map the references in its document to other entries; they were resolved when the
    catalog was loaded.
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return key and document for a reference in the document at *base*; None if unknown."""
        references = self._schemas.get(base, {}).get("references", {})
        key = references.get(reference, reference)
        entry = self._schemas.get(key)
        return None if entry is None else (key, entry["document"])


def schema_source(definition: Definition, schemas: Mapping[str, Any]) -> SchemaSource | None:
    """Return the schema of a definition; None if it has none, or its format is unknown."""
    entry = schemas.get(definition.schemakey or "")
    if entry is None:
        return None
    schema_format = format_of(definition.dataschemaformat, entry)
    if schema_format is None:
        return None
    family = family_of(schema_format.family)
    document = to_family_form(entry["document"], family)
    name, pointer = family.deep_link(definition.schemaname, definition.schemapointer)
    return SchemaSource(
        schema_format.family, schema_format.version, document, name, pointer, definition.schemakey or ""
    )


def format_of(declared: str | None, entry: Mapping[str, Any]) -> SchemaFormat | None:
    """Return the format of a schema: the document's evident family, else the registry's, else the definition's.

    The version is declared with the same family, by the definition or else by the registry. Return None if the format
    is unknown, or the definition declares an unknown one.
    """
    own = parse_format(declared)
    if declared and own is None:
        return None
    found = [each for each in (own, parse_format(entry.get("format"))) if each is not None]
    evident = evident_family(entry["document"])
    if evident is None:
        return next(reversed(found), None) if len({each.family for each in found}) > 1 else next(iter(found), None)
    return next((each for each in found if each.family == evident), SchemaFormat(evident))


def to_family_form(document: Any, family: SchemaFamily) -> Any:
    """Return a document in the form that the family compiles; for JSON families, text is parsed."""
    return to_tree(document) if family.is_tree else document


def to_tree(document: Any) -> Any:
    """Parse a JSON schema written as text; return other documents unchanged."""
    if not isinstance(document, str) or document.lstrip("\ufeff \t\r\n")[:1] not in ("{", "["):
        return document
    try:
        return parse_text("", document.encode("utf-8", "surrogatepass")).tree
    except DocumentError:
        return document  # compiling it will report the error


# Schema resources of the loaded documents, and resolving references to them.
#
# A resource has versions, one of them the default, or is itself the only version. A version contains its document
# (``schema``, ``schemaobject``, ``schemabase64``) or its address (``schemauri``, ``schemaurl``, ``uri``), in any letter
# case.

_DOCUMENTS: Final = ("schema", "schemaobject", "schemabase64")
_ADDRESSES: Final = ("schemauri", "schemaurl", "uri", "url")
_FORMATS: Final = ("format", "schemaformat")
_REFERENCE: Final = re.compile(
    r"(?:^|[/#])schemagroups/([^/?#]+)/schemas?/([^?#]+)(?:\?[^#]*)?(?:#(.*))?$", re.IGNORECASE
)
_MISSPELT: Final = re.compile(r"schemagroups(?![/?#]|$)", re.IGNORECASE)
_MAX_BORROWS: Final = 16
_MAX_COLONS: Final = 16


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema: its document, or the document's address. ``key`` is the version's xid.

    ``place`` is the source location of the document or address; ``text`` is True if the document is a string there.
    ``ids`` are its ids in schema registries, from the label ``schemaid``.
    """

    key: str
    place: SourceLocation
    format: str | None = None
    document: Any = None
    address: str | None = None
    text: bool = False
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """The target of a reference into the registry: a version, and a type (``:Name``) or pointer in its document."""

    entry: SchemaVersion
    name: str = ""
    pointer: str = ""


@dataclass(slots=True)
class SchemaRegistry:
    """Finds the schemas of all loaded documents by xid, case-insensitively.

    ``prefix`` is added to the keys of schemas from another registry than the catalog's.
    """

    declarations: Declarations
    prefix: str = ""
    _folded: dict[str, str] | None = None
    _ids: dict[str, SchemaVersion] | None = None
    _entries: dict[str, SchemaVersion | None] = field(default_factory=dict)

    def is_reference(self, reference: str) -> bool:
        """Whether *reference* looks like a reference into a registry, this one or another."""
        return _REFERENCE.search(reference) is not None or _MISSPELT.search(reference) is not None

    def link(self, reference: str) -> SchemaReference | None:
        """Return the target of an xid, JSON pointer or URI that contains an xid; None if unknown."""
        match = _REFERENCE.search(reference)
        if match is None:
            return None
        group, path, fragment = match.groups()
        fragment = unquote(fragment or "")
        pointer, name = (fragment, "") if fragment.startswith("/") else ("", fragment)
        for schema, version, deep in _iter_readings(path):
            entry = self._find_entry(group, schema, version)
            if entry is not None:
                return SchemaReference(entry, deep or name, pointer)
        return None

    def address(self, reference: str) -> str | None:
        """Return the ``self`` URL of a reference's target, with the reference's name and pointer; None if unknown."""
        match = _REFERENCE.search(reference)
        if match is None:
            return None
        group, path, fragment = match.groups()
        for schema, version, deep in _iter_readings(path):
            for names in ((group, schema), (_unescape(group), _unescape(schema))):
                xid = self._find_xid(f"/schemagroups/{names[0]}/schemas/{names[1]}")
                body = self.declarations.schemas[xid] if xid is not None else {}
                holder = body if version is None else versions_of(body).get(version, {})
                own = holder.get("self")
                if isinstance(own, str) and is_url(own):
                    within = (f":{deep}" if deep else "") + (f"#{fragment}" if fragment else "")
                    return own.removesuffix("$details") + within
        return None

    def sibling(self, name: str, key: str) -> SchemaVersion | None:
        """Return the schema called *name*, with or without file extension, in the group of the schema *key*."""
        match = _REFERENCE.search(key)
        plain = name.rsplit("/", 1)[-1]
        if match is None or not plain:
            return None
        stem = plain.rpartition(".")[0]
        names = (plain, stem) if stem else (plain,)
        return next((entry for each in names if (entry := self._find_entry(match.group(1), each, None))), None)

    def by_id(self, identifier: str) -> SchemaVersion | None:
        """Return the embedded schema with this ``$id`` (or ``id``), ignoring fragments."""
        if self._ids is None:
            self._ids = {}
            for entry in self.entries():
                if isinstance(entry.document, dict):
                    own = entry.document.get("$id", entry.document.get("id"))
                    if isinstance(own, str):
                        self._ids.setdefault(own.partition("#")[0], entry)
        return self._ids.get(identifier.partition("#")[0])

    def entries(self) -> Iterator[SchemaVersion]:
        """Yield every version of every schema."""
        for xid, body in self.declarations.schemas.items():
            versions = versions_of(body)
            for version in versions or (None,):
                entry = self._version_at(xid, version)
                if entry is not None:
                    yield entry

    def suggestion(self, reference: str) -> str:
        """Return a hint what an unresolvable reference may mean; empty if no schema is similar."""
        spelled = _MISSPELT.sub("schemagroups/", reference)
        if spelled != reference and self.link(spelled) is not None:
            return f"a slash is missing: write {spelled}"
        meant = Suggestions(self.declarations.schemas).meant("/" + spelled.lstrip("#/").partition("/versions/")[0])
        return f"did you mean {meant}?" if meant else ""

    def _find_entry(self, group: str, schema: str, version: str | None) -> SchemaVersion | None:
        """Return a version of a schema, by default the default version; the ids may be escaped."""
        for names in ((group, schema), (_unescape(group), _unescape(schema))):
            xid = self._find_xid(f"/schemagroups/{names[0]}/schemas/{names[1]}")
            if xid is not None:
                return self._follow_xref(xid, version)
        return None

    def _follow_xref(self, xid: str, version: str | None) -> SchemaVersion | None:
        """Return the version of a resource, following ``xref`` to other resources."""
        for _ in range(_MAX_BORROWS):
            body = self.declarations.schemas[xid]
            meta = body.get("meta")
            target = body.get("xref") or (meta.get("xref") if isinstance(meta, dict) else None)
            if not isinstance(target, str):
                return self._find_version(xid, version)
            known = self._find_xid(target.strip().lstrip("#"))
            if known is None:
                return None
            xid = known
        return None  # a cycle

    def _find_version(self, xid: str, version: str | None) -> SchemaVersion | None:
        body = self.declarations.schemas[xid]
        versions = versions_of(body)
        if version is None:
            return self._version_at(xid, default_version(body, versions))
        own = {str(body.get(name)).lower() for name in ("versionid", "defaultversionid", "version")}
        if not versions:
            return self._version_at(xid, None) if version.lower() in own else None
        for key in versions:
            if key.lower() in (version.lower(), unquote(version).lower()):
                return self._version_at(xid, key)
        return None

    def _version_at(self, xid: str, version: str | None) -> SchemaVersion | None:
        key = xid if version is None else f"{xid}/versions/{version}"
        if key not in self._entries:
            body, place = self.declarations.schemas[xid], self.declarations.schema_places[xid]
            holders = [(body, place)]
            if version is not None:
                holders.insert(0, (versions_of(body)[version], place / "versions" / version))
            self._entries[key] = _read_version(self.prefix + key, holders)
        return self._entries[key]

    def _find_xid(self, xid: str) -> str | None:
        if xid in self.declarations.schemas:
            return xid
        if self._folded is None:
            self._folded = {known.lower(): known for known in self.declarations.schemas}
        return self._folded.get(xid.lower())


def _iter_readings(path: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield possible schema, version and type name of a path; ids may contain colons, so the longest id is first."""
    path = path.rstrip("/").removesuffix("$details").removesuffix("$meta")
    schema, _, rest = path.partition("/")
    if ":" not in path:
        kind, _, version = rest.partition("/")
        if not rest or kind.lower() == "versions":
            yield schema, version.removesuffix("$details") or None, ""
        return
    cuts = [match.start() for match in islice(re.finditer(":", path), _MAX_COLONS)]
    for cut in (len(path), *reversed(cuts)):
        head, deep = path[:cut], path[cut + 1 :]
        schema, _, rest = head.partition("/")
        kind, _, version = rest.partition("/")
        if (not rest or (kind.lower() == "versions" and "/" not in version)) and schema:
            yield schema, version or None, deep


def versions_of(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the versions of a schema by id."""
    versions = body.get("versions")
    if not isinstance(versions, dict):
        return {}
    return {str(key): version for key, version in versions.items() if isinstance(version, dict)}


def _read_version(key: str, holders: list[tuple[Mapping[str, Any], SourceLocation]]) -> SchemaVersion | None:
    """Return a version with format and document from the first of *holders* (version, resource) that has them."""
    form = next((value for holder, _ in holders for _, value in _iter_members(holder, _FORMATS)), None)
    form = form if isinstance(form, str) else None
    ids = next((ids for holder, _ in holders if (ids := _ids_from_label(holder))), ())
    for holder, place in holders:
        for name, value in _iter_members(holder, _DOCUMENTS):
            document = _decode_base64(value) if name.lower() == "schemabase64" else value
            if document is not None:
                return SchemaVersion(key, place / name, form, to_tree(document), None, isinstance(document, str), ids)
        for name, value in _iter_members(holder, _ADDRESSES):
            if isinstance(value, str) and value.strip():
                return SchemaVersion(key, place / name, form, address=value.strip(), ids=ids)
    return None


def _ids_from_label(holder: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids in the label ``schemaid``, separated by commas."""
    labels = next((value for name, value in holder.items() if str(name).lower() == "labels"), None)
    label = labels.get("schemaid") if isinstance(labels, dict) else None
    texts = str(label).split(",") if isinstance(label, str | int) and not isinstance(label, bool) else ()
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


def _iter_members(holder: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the members of *holder* with these names in any letter case, in the order of *names*."""
    written = {str(name).lower(): name for name in holder}
    for name in names:
        if name in written and holder[written[name]] not in (None, ""):
            yield written[name], holder[written[name]]


def _decode_base64(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value).decode("utf-8-sig")
    except (binascii.Error, ValueError):
        return None


def _unescape(name: str) -> str:
    return unquote(unescape_step(name))


# Absolute URIs of data schemas, which events have as ``dataschema``.
#
# References in a catalog are relative to its registry (an xid or JSON pointer), or to their document. The address of
# the registry is its ``self`` URL, else ``catalog.base_uri`` of the settings, else the URL of its document. Local files
# have no absolute URI, because consumers could not resolve it (MATCHING.md#mapping).

_REGISTRY: Final = re.compile(r"#?(/schemagroups/\S+)", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+-]*:")
"""A URI scheme. With a dot, it is a file name with a type name instead: ``s.json:Name``."""
_WRITTEN: Final = ("dataschemauri", "dataschemaxid")


def is_absolute(uri: str) -> bool:
    """Whether a URI reference has a scheme."""
    return _ABSOLUTE.match(uri) is not None


@dataclass(frozen=True, slots=True)
class SchemaAddresses:
    """Determines absolute URIs of schemas; ``base`` is the registry's URI in the settings, or empty."""

    declarations: Declarations
    abroad: ExternalDocuments
    base: str = ""

    def uri_of(self, definition: Definition, writer: DeclaredMessage | None, registry: SchemaRegistry) -> str | None:
        """Return the ``dataschema`` of mapped events of a definition: a URI, or a template of one.

        It comes from the envelope, else from the URI or xid in *writer*, the nearest message with a schema. Return None
        if no absolute URI is known.
        """
        declared = next((prop for prop in definition.envelopemetadata if prop.name == "dataschema"), None)
        if declared is not None and declared.value is not None:
            message = self.declarations.messages[definition.xid]
            place = attribute_location(message, "dataschema") or message.place
            return self._to_absolute(to_text(declared.value), place, message.xid, registry)
        given = writer.attributes if writer is not None else {}
        inline = given.get("dataschema")
        references = [(name, given.get(name)) for name in _WRITTEN]
        if isinstance(inline, str) and (_REGISTRY.fullmatch(inline.strip()) or is_url(inline.strip())):
            references.insert(0, ("dataschema", inline))
        for name, reference in references:
            if isinstance(reference, str) and reference and writer is not None:
                uri = self._to_absolute(reference, writer.at(name), writer.xid, registry)
                if uri is not None and is_valid("uri", uri):
                    return uri
        return None

    def _to_absolute(self, written: str, place: SourceLocation, xid: str, registry: SchemaRegistry) -> str | None:
        reference = written.strip()
        if not reference or is_absolute(reference) or reference.startswith("{"):
            return reference or None
        within = _REGISTRY.fullmatch(reference)
        if within is not None:
            return registry.address(reference) or self._uri_in_registry(within[1], place, xid)
        document = place.file if is_url(place.file) else self._registry_address(place, xid)
        if not document:
            return None
        joined = urljoin(document, reference if reference[0] in "/#?." else f"./{reference}")
        return joined if is_absolute(joined) else None

    def _uri_in_registry(self, path: str, place: SourceLocation, xid: str) -> str | None:
        root = self._registry_address(place, xid)
        if root and not urlsplit(root).path.lower().endswith(suffixes()):
            return root.rstrip("/") + path
        document = root or (place.file if is_url(place.file) else "")
        # The path becomes the fragment of the document's URI, which can have only one.
        return f"{document}#{path.replace('#', '%23')}" if document else None

    def _registry_address(self, place: SourceLocation, xid: str) -> str:
        """Return the address of a message's registry; with a slash at the end unless it is a document."""
        external = self.abroad.document_of(xid)
        declarations = self.declarations if external is None else external.declarations
        address = declarations.addresses.get(place.file) or ("" if external is not None else self.base)
        root = urldefrag(address)[0].partition("?")[0]
        return root if not root or urlsplit(root).path.lower().endswith(suffixes()) else f"{root.rstrip('/')}/"
