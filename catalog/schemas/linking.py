"""Link definitions with their data schemas, and compile each schema once to report its faults.

A definition has the schema of the nearest of the message and its bases that declares one: inline, by xid or by URI.
References are relative to the document that contains them, and reported there, not where they are inherited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from catalog.documents.fetching import Fetcher, is_url
from catalog.findings import Declarations, DeclaredMessage, DocumentError, Findings, SourceLocation
from catalog.model import Definition, Severity
from catalog.parsing.nearest import find_nearest
from catalog.parsing.texts import parse_text
from catalog.references import ExternalDocument, ExternalDocuments
from catalog.schemas.contract import MissingTypeError, SchemaError, SchemaSource, clip
from catalog.schemas.families import (
    FAMILIES,
    compile_schema,
    documents_of,
    family_names,
    family_of,
    parse_format,
)
from catalog.schemas.ids.client import FAMILY_OF_TYPE, parse_registered
from catalog.schemas.library import (
    CatalogLibrary,
    SchemaAddresses,
    SchemaReference,
    SchemaRegistry,
    SchemaVersion,
    format_of,
    schema_source,
    to_family_form,
    to_tree,
)

# Collects the schema documents of a catalog from the registry, files and URLs, with all documents that they refer to.
# Nothing is fetched after loading (MATCHING.md#data-schemas).

_DEEP_LINK: Final = re.compile(
    r"(?P<document>.*(?:[^#/:]\.[A-Za-z][A-Za-z0-9]*|/versions/(?:[0-9]+|latest)|/schemas/ids/[0-9]+))"
    r":(?P<name>[A-Za-z_][\w./-]*)"
)
_WRAPPED: Final = re.compile(r"(?P<base>https?://.*)(?:/subjects/[^/]+/versions/(?:[0-9]+|latest)|/schemas/ids/[0-9]+)")
"""URLs of Confluent's schema registry API, whose responses contain the schema as a string, with its references."""


@dataclass(frozen=True, slots=True)
class SchemaPart:
    """A loaded document, and the part of it that a reference names."""

    key: str
    name: str = ""
    pointer: str = ""


@dataclass(slots=True)
class SchemaLoader:
    """Documents by key, as in :attr:`Catalog.schemas`. Missing documents are reported at their references.

    ``places`` has the source location of each document, ``inside`` those in the catalog itself, ``texts`` those that
    are a string there; ``pending`` has the unreachable URIs, ``unnamed`` the schemas with undefined type names.
    """

    registry: SchemaRegistry
    abroad: ExternalDocuments
    fetcher: Fetcher
    findings: Findings
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, SourceLocation] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    unnamed: set[str] = field(default_factory=set)
    _named: dict[str, dict[str, str]] = field(default_factory=dict)
    """URLs that schemas of a schema registry refer to, by reference name."""
    _registries: dict[str, SchemaRegistry] = field(default_factory=dict)
    _completed: dict[tuple[str, str], bool] = field(default_factory=dict)

    def load_embedded(self) -> None:
        """Load all documents that are embedded in the registry."""
        for entry in self.registry.entries():
            if entry.document is not None:
                self._store_embedded(entry)

    def registry_of(self, xid: str) -> SchemaRegistry:
        """Return the registry for references in a message: the catalog's, or the one of its own document."""
        external = self.abroad.document_of(xid)
        return self.registry if external is None else self._external_registry(external)

    def load_inline(self, key: str, document: Any, place: SourceLocation) -> SchemaPart:
        """Load a document from inside a definition."""
        self._store_embedded(SchemaVersion(key, place, None, to_tree(document), text=isinstance(document, str)))
        return SchemaPart(key)

    def load_link(self, link: SchemaReference, location: SourceLocation) -> SchemaPart | None:
        """Load the target of a reference into the registry; *location* is the location of the reference."""
        located = self._load_target(link, location)
        if located is not None and link.entry.ids:
            self._add_ids(located.key, link.entry.ids)
        return located

    def _add_ids(self, key: str, ids: tuple[str, ...]) -> None:
        """Store the ids of a document in schema registries."""
        known = self.schemas[key].get("schemaids", [])
        self.schemas[key]["schemaids"] = list(dict.fromkeys((*known, *ids)))

    def _load_target(self, link: SchemaReference, location: SourceLocation) -> SchemaPart | None:
        entry, deep = link.entry, SchemaPart("", link.name, link.pointer)
        seen: set[str] = set()
        while entry.key not in seen:
            seen.add(entry.key)
            if entry.document is not None:
                self._store_embedded(entry)
                return SchemaPart(entry.key, deep.name, deep.pointer)
            further = self.registry.link(entry.address or "")
            if further is None:
                located = self.load_address(entry.address or "", entry.place, entry.format)
                deeper = bool(deep.name or deep.pointer)
                return SchemaPart(located.key, deep.name, deep.pointer) if located and deeper else located
            if further.entry is entry:
                if not is_url(entry.address or ""):
                    break
                return SchemaPart(entry.key, deep.name, deep.pointer) if self._load_served(entry) else None
            entry = further.entry
        hint = "add its document, or a URL of it"
        self.findings.error(location, "unresolvable-schema", f"{entry.key} has no document, it refers to itself", hint)
        return None

    def _load_served(self, entry: SchemaVersion) -> bool:
        """Load the document that a live registry serves at a schema's own URL; return False if not available."""
        if entry.key in self.schemas:
            return True
        uri = entry.address or ""
        try:
            uri = self.fetcher.resolve(uri, entry.place.file)
            self._load_document(entry.key, entry.format, uri)
        except DocumentError as error:
            self._report_unavailable(uri, error, entry.place)
            return False
        return True

    def load_address(self, reference: str, place: SourceLocation, form: str | None = None) -> SchemaPart | None:
        """Load the target of a URI written at *place*; None, and a finding, if not available."""
        document, _, fragment = reference.strip().partition("#")
        fragment, name = unquote(fragment), ""
        deep = _DEEP_LINK.fullmatch(document)
        if deep is not None:
            document, name = deep["document"], deep["name"]
        uri = document
        try:
            uri = self.fetcher.resolve(document, place.file)
            if fragment and self.registry.is_reference(fragment):
                return self._load_external(document, fragment, place)
            key = self.abroad.label(uri)
            if key not in self.schemas:
                self._load_document(key, form, uri)
        except DocumentError as error:
            self._report_unavailable(uri, error, place)
            return None
        pointer = fragment if fragment.startswith("/") else ""
        return SchemaPart(key, name or (fragment if not pointer else ""), pointer)

    def load_references(self, source: SchemaSource) -> bool:
        """Load all documents that *source* refers to, recursively; return False if one is not available."""
        known = self._completed.get((source.uri, source.family))
        if known is not None:
            return known
        waiting, seen, whole = [source], {source.uri}, True
        while waiting:
            current = waiting.pop()
            family = family_of(current.family)
            for reference in family.references_of(current):
                key = self._resolve(reference, current, by_name=family.refers_by_name)
                if key is None:
                    self.unnamed |= {source.uri} if family.refers_by_name else set()
                    whole = False
                elif key not in seen:
                    seen.add(key)
                    tree = to_family_form(self.schemas[key]["document"], family)
                    waiting.append(SchemaSource(source.family, source.version, tree, uri=key))
        self._completed[source.uri, source.family] = whole
        return whole

    def _resolve(self, reference: str, source: SchemaSource, *, by_name: bool) -> str | None:
        """Resolve a reference in a schema: by ``$id``, in the registry, in its group, then as a URI.

        A type name (*by_name*) is not a URI.
        """
        known: dict[str, str] = self.schemas[source.uri].get("references", {})
        if reference in known:
            return known[reference]
        place = self.places[source.uri]
        if (named := self._named.get(source.uri, {}).get(reference)) is not None:
            return self._store_reference(source.uri, reference, self.load_address(named, place))
        entry = self.registry.by_id(reference)
        link = SchemaReference(entry) if entry is not None else self.registry.link(reference)
        if link is None:
            entry = self.registry.sibling(reference, source.uri)
            link = SchemaReference(entry) if entry is not None and entry.key != source.uri else None
        if link is not None:
            return self._store_reference(source.uri, reference, self.load_link(link, place))
        return None if by_name else self._store_reference(source.uri, reference, self.load_address(reference, place))

    def _store_reference(self, key: str, reference: str, located: SchemaPart | None) -> str | None:
        """Store the target of a reference in the document *key*."""
        if located is None:
            return None
        known = self.schemas[key].get("references", {})
        self.schemas[key]["references"] = {**known, reference: located.key}
        return located.key

    def _load_external(self, document: str, fragment: str, place: SourceLocation) -> SchemaPart | None:
        """Load a schema from another registry document by URI."""
        external = self.abroad.document(document, place.file)
        link = (self.registry if external is None else self._external_registry(external)).link(fragment)
        if link is None:
            hint = "correct the reference"
            raise DocumentError(f"schema {fragment} not found in {document or place.file}", file=place.file, hint=hint)
        return self.load_link(link, place)

    def _external_registry(self, external: ExternalDocument) -> SchemaRegistry:
        if external.name not in self._registries:
            self._registries[external.name] = SchemaRegistry(external.declarations, external.name)
        return self._registries[external.name]

    def _load_document(self, key: str, form: str | None, uri: str) -> None:
        """Load the content of a URI; extract the schema from a schema registry's response."""
        document, wrapped = read_document(uri, self.fetcher.fetch(uri)), _WRAPPED.fullmatch(uri.partition("?")[0])
        if wrapped is not None and isinstance(document, dict) and isinstance(document.get("schema"), str):
            response = parse_registered(document)
            document, form = to_tree(response.document), form or FAMILY_OF_TYPE.get(response.type)
            self._named[key] = {
                each.name: f"{wrapped['base']}/subjects/{quote(each.subject, safe='')}/versions/{each.version}"
                for each in response.references
            }
        self._store(key, form, document, SourceLocation(uri))

    def _store_embedded(self, entry: SchemaVersion) -> None:
        if entry.key not in self.schemas:
            self._store(entry.key, entry.format, entry.document, entry.place)
            self.inside.add(entry.key)
            if entry.ids:
                self._add_ids(entry.key, entry.ids)
            if entry.text:
                self.texts.add(entry.key)

    def _store(self, key: str, form: str | None, document: Any, place: SourceLocation) -> None:
        self.schemas[key] = {"format": form, "document": document}
        self.places[key] = place

    def _report_unavailable(self, uri: str, error: DocumentError, place: SourceLocation) -> None:
        if error.transient:
            self.pending.add(uri)
            hint = error.hint or "it is retried; until then payloads are not validated"
            self.findings.warning(place, "schema-unreachable", clip(f"a schema is unreachable for now: {error}"), hint)
        elif not self.fetcher.network and uri.lower().startswith(("http://", "https://")):
            self.findings.warning(place, "network-off", clip(f"a schema is not loaded: {error}"), error.hint)
        else:
            hint = error.hint or "correct the reference"
            self.findings.error(place, "unresolvable-schema", clip(f"schema not available: {error}"), hint)


def read_document(uri: str, data: bytes) -> Any:
    """Return the tree of a JSON or YAML document, the text of any other.

    Raises:
        DocumentError: it is not UTF-8, or not valid JSON or YAML.
    """
    marks = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    try:
        text = data.decode(marks.get(data[:2], "utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DocumentError(f"{uri} is not UTF-8: {error}", file=uri, hint="save it as UTF-8") from error
    plain = uri.partition("?")[0].lower()
    if text.lstrip()[:1] in ("{", "[") or plain.endswith((".yaml", ".yml")):
        return parse_text(plain, text.encode()).tree
    return text


_REFERENCES: Final = ("dataschemaxid", "dataschemauri")
_SCHEMAS: Final = ("dataschema", *_REFERENCES)
_LOOKS_LIKE_REFERENCE: Final = re.compile(r"#?/schemagroups/\S+|#/\S+|https?://\S+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LinkedSchemas:
    """The result of linking: ``definitions`` with their links, ``schemas`` and ``pending`` as in a catalog."""

    definitions: dict[str, Definition]
    schemas: dict[str, dict[str, Any]]
    pending: tuple[str, ...]


def link_schemas(
    definitions: Mapping[str, Definition],
    declarations: Declarations,
    abroad: ExternalDocuments,
    fetcher: Fetcher,
    findings: Findings,
    addresses: SchemaAddresses,
) -> LinkedSchemas:
    """Find the schema of each definition, load its references, and compile it once.

    A missing or invalid schema is a finding; its definitions stay, and their payloads are not validated.
    """
    loader = SchemaLoader(SchemaRegistry(declarations), abroad, fetcher, findings)
    loader.load_embedded()
    linker = _Linker(declarations, loader, findings, addresses)
    linked = {xid: linker.link(definition) for xid, definition in definitions.items()}
    linker.compile_all()
    return LinkedSchemas(linked, dict(sorted(loader.schemas.items())), tuple(sorted(loader.pending)))


@dataclass(slots=True)
class _Linker:
    declarations: Declarations
    loader: SchemaLoader
    findings: Findings
    addresses: SchemaAddresses
    _located: dict[str, SchemaPart | None] = field(default_factory=dict)
    _sources: dict[tuple[str, str, str, str | None], tuple[SchemaSource | None, dict[SourceLocation, None]]] = field(
        default_factory=dict
    )
    _consistent: set[tuple[str, str | None]] = field(default_factory=set)
    _reported: set[tuple[str, str]] = field(default_factory=set)

    def link(self, definition: Definition) -> Definition:
        """Return the definition with its link, and store its schema for :meth:`compile_all`."""
        writer = self._find_writer(definition, _SCHEMAS)
        registry = self.loader.registry_of((writer or definition).xid)
        address = self.addresses.uri_of(definition, writer, registry)
        definition = definition if address is None else replace(definition, schemauri=address)
        if writer is None:
            return definition
        if writer.xid not in self._located:
            self._located[writer.xid] = self._locate_schema(writer, definition)
        located = self._located[writer.xid]
        if located is None:
            return definition
        linked = replace(definition, schemakey=located.key, schemaname=located.name, schemapointer=located.pointer)
        self._store_source(linked, writer)
        return linked

    def compile_all(self) -> None:
        """Compile the stored schemas, and report invalid ones."""
        library = CatalogLibrary(self.loader.schemas)
        for source, location in self._sources.values():
            if source is None:
                continue
            whole = self.loader.load_references(source)
            try:
                compile_schema(source, library)
            except MissingTypeError as error:
                for place in location:
                    self.findings.error(place, "unresolvable-schema", str(error), error.hint)
            except SchemaError as error:
                if whole:  # otherwise missing references were reported, except names
                    self._report_invalid(source, error)
                elif source.uri in self.loader.unnamed:
                    self._report_missing_type(source, error)
            else:
                self._report_ignored(source, library)

    def _report_ignored(self, source: SchemaSource, library: CatalogLibrary) -> None:
        """Report the ignored parts of a schema and its references; each location once."""
        family = family_of(source.family)
        others = {uri: document for uri, document in documents_of(source, library).values()} if family.ignores else {}
        for each in (source, *(replace(source, document=o, name="", pointer="", uri=uri) for uri, o in others.items())):
            for fault in family.find_ignored_parts(each):
                if (each.uri, fault.path) not in self._reported:
                    self._reported.add((each.uri, fault.path))
                    hint = "correct or remove it; until then it is ignored, and the underlying type is used"
                    self.findings.warning(self._locate(each, fault.path), "ignored-logical-type", fault.message, hint)

    def _find_writer(self, definition: Definition, attributes: tuple[str, ...]) -> DeclaredMessage | None:
        """Return the nearest message, from the definition to its last base, that has any of *attributes*."""
        for xid in (definition.xid, *definition.base):
            message = self.declarations.messages[xid]
            if not message.attributes.keys().isdisjoint(attributes):
                return message
        return None

    def _locate_schema(self, writer: DeclaredMessage, definition: Definition) -> SchemaPart | None:
        if "dataschema" in writer.attributes:
            document = definition.dataschema
            if not (isinstance(document, str) and _LOOKS_LIKE_REFERENCE.fullmatch(document.strip())):
                return self.loader.load_inline(f"{writer.xid}#dataschema", document, writer.at("dataschema"))
            return self._resolve(document.strip(), writer, writer.at("dataschema"))
        for attribute in _REFERENCES:
            reference = writer.attributes.get(attribute)
            located = self._resolve(reference.strip(), writer, writer.at(attribute)) if reference else None
            if located is not None:
                return located
        return None

    def _resolve(self, reference: str, writer: DeclaredMessage, place: SourceLocation) -> SchemaPart | None:
        registry = self.loader.registry_of(writer.xid)
        link = registry.link(reference)
        if link is not None:
            return self.loader.load_link(link, place)
        named = registry.by_id(reference)
        if named is not None:
            return self.loader.load_link(SchemaReference(named), place)
        if registry.is_reference(reference) and reference.startswith(("#", "/")):
            hint = registry.suggestion(reference) or "correct the reference, or add the document"
            self.findings.error(place, "unresolvable-schema", clip(f"schema {reference} not found"), hint)
            return None
        return self.loader.load_address(reference, place)

    def _store_source(self, definition: Definition, writer: DeclaredMessage) -> None:
        key = definition.schemakey or ""
        location = writer.at(next(each for each in _SCHEMAS if each in writer.attributes))
        if (key, definition.dataschemaformat) not in self._consistent:
            self._check_format(definition, location)
        identity = (key, definition.schemaname, definition.schemapointer, definition.dataschemaformat)
        if identity not in self._sources:
            source = schema_source(definition, self.loader.schemas)
            self._sources[identity] = (source, {})
        self._sources[identity][1][location] = None

    def _check_format(self, definition: Definition, location: SourceLocation) -> None:
        """Report an unknown format, or two that contradict each other."""
        key = definition.schemakey or ""
        entry = self.loader.schemas[key]
        writer = self._find_writer(definition, ("dataschemaformat",))
        declared_at = writer.at("dataschemaformat") if writer is not None else location
        schema_format = format_of(definition.dataschemaformat, entry)
        formats = [parse_format(text) for text in (definition.dataschemaformat, entry["format"]) if text]
        if schema_format is not None and all(each and each.family == schema_format.family for each in formats):
            self._consistent.add((key, definition.dataschemaformat))
            return
        declared = ((definition.dataschemaformat, declared_at), (entry["format"], self.loader.places[key]))
        for text, place in declared:
            known = parse_format(text)
            if text and known is None:
                message = f"the schema format {text!r} is unknown, so payloads are not validated"
                meant = find_nearest(text.partition("/")[0], (each.name for each in FAMILIES))
                hint = f"did you mean {meant}?" if meant else f"use {family_names()}"
                self.findings.add(place, "error" if meant else "warning", "unknown-schema-format", message, hint)
            elif known is not None and schema_format is not None and known.family != schema_format.family:
                message = (
                    f"the schema format is declared as {text}, but the schema is {schema_format.family}, which is used"
                )
                self.findings.warning(place, "schema-format-conflict", message, "correct the format")
        if schema_format is None and not any(text for text, _ in declared):
            message = "the format of the schema is not declared, so payloads are not validated"
            self.findings.warning(location, "unknown-schema-format", message, f"add dataschemaformat: {family_names()}")

    def _report_invalid(self, source: SchemaSource, error: SchemaError) -> None:
        """Report an invalid schema: an error if it is in the catalog, a warning if it was fetched."""
        place = self._locate(source, error.pointer)
        severity: Severity = "error" if source.uri in self.loader.inside else "warning"
        hint = error.hint or "fix the schema; until then payloads are not validated"
        self.findings.add(place, severity, "invalid-schema", str(error), hint)

    def _report_missing_type(self, source: SchemaSource, error: SchemaError) -> None:
        """Report a schema with an undefined type name, which may be in another part of the registry."""
        place = self._locate(source, error.pointer)
        if self.loader.fetcher.whole:
            self.findings.error(place, "unresolvable-schema", str(error), error.hint)
        else:
            self.findings.warning(place, "schema-unreachable", str(error), error.hint)

    def _locate(self, source: SchemaSource, pointer: str) -> SourceLocation:
        """Return the source location of a part of a schema, or of the string in the catalog that contains it."""
        place = self.loader.places[source.uri]
        return place if source.uri in self.loader.texts else SourceLocation(place.file, place.pointer + pointer)
