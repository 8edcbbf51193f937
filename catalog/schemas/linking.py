"""Links definitions with their data schemas, and compiles each schema once to say what is wrong with it.

A schema is given by the nearest of a message and its bases that gives any: inline, by xid or by URI. References are
relative to the document they are written in, and reported there; who only inherits them is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from catalog.declared import Declarations, DeclaredMessage, Place
from catalog.documents.fetching import Fetcher
from catalog.findings import Findings
from catalog.model import Definition, Severity
from catalog.parsing.nearest import nearest
from catalog.references.abroad import Abroad
from catalog.schemas.addresses import SchemaAddresses
from catalog.schemas.bodies import short
from catalog.schemas.compiling import compile_schema, documents_of
from catalog.schemas.contract import MissingTypeError, SchemaError, SchemaSource
from catalog.schemas.families import FAMILIES, family_names, family_of
from catalog.schemas.formats import parse_format
from catalog.schemas.gathering import Gathering, Located
from catalog.schemas.library import CatalogLibrary, format_of, schema_source
from catalog.schemas.registry import Link, SchemaRegistry

_REFERENCES: Final = ("dataschemaxid", "dataschemauri")
_SCHEMAS: Final = ("dataschema", *_REFERENCES)
_LOOKS_LIKE_REFERENCE: Final = re.compile(r"#?/schemagroups/\S+|#/\S+|https?://\S+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LinkedSchemas:
    """What linking gives: ``definitions`` with their links, and ``schemas`` and ``pending`` as a catalog has them."""

    definitions: dict[str, Definition]
    schemas: dict[str, dict[str, Any]]
    pending: tuple[str, ...]


def link_schemas(
    definitions: Mapping[str, Definition],
    declarations: Declarations,
    abroad: Abroad,
    fetcher: Fetcher,
    findings: Findings,
    addresses: SchemaAddresses,
) -> LinkedSchemas:
    """Find the schema of every definition, take in what it refers to, and compile it once.

    A schema that cannot be had or used is a finding; its definitions stay, without verdicts.
    """
    gathering = Gathering(SchemaRegistry(declarations), abroad, fetcher, findings)
    gathering.everything_embedded()
    linker = _Linker(declarations, gathering, findings, addresses)
    linked = {xid: linker.linked(definition) for xid, definition in definitions.items()}
    linker.compile()
    return LinkedSchemas(linked, dict(sorted(gathering.schemas.items())), tuple(sorted(gathering.pending)))


@dataclass(slots=True)
class _Linker:
    declarations: Declarations
    gathering: Gathering
    findings: Findings
    addresses: SchemaAddresses
    _located: dict[str, Located | None] = field(default_factory=dict)
    _sources: dict[tuple[str, str, str, str | None], tuple[SchemaSource | None, dict[Place, None]]] = field(
        default_factory=dict
    )
    _plain: set[tuple[str, str | None]] = field(default_factory=set)
    _told: set[tuple[str, str]] = field(default_factory=set)

    def linked(self, definition: Definition) -> Definition:
        """Return the definition with its link, and note its schema for :meth:`compile`."""
        writer = self._writer(definition, _SCHEMAS)
        registry = self.gathering.registry_of((writer or definition).xid)
        address = self.addresses.of(definition, writer, registry)
        definition = definition if address is None else replace(definition, schemauri=address)
        if writer is None:
            return definition
        if writer.xid not in self._located:
            self._located[writer.xid] = self._locate(writer, definition)
        located = self._located[writer.xid]
        if located is None:
            return definition
        linked = replace(definition, schemakey=located.key, schemaname=located.name, schemapointer=located.pointer)
        self._note(linked, writer)
        return linked

    def compile(self) -> None:
        """Compile every schema that was noted, and report those that cannot be used."""
        library = CatalogLibrary(self.gathering.schemas)
        for source, asked in self._sources.values():
            if source is None:
                continue
            whole = self.gathering.complete(source)
            try:
                compile_schema(source, library)
            except MissingTypeError as error:
                for place in asked:
                    self.findings.error(place, "unresolvable-schema", str(error), error.hint)
            except SchemaError as error:
                if whole:  # else what it lacks was reported, but for names
                    self._invalid(source, error)
                elif source.uri in self.gathering.unnamed:
                    self._unnamed(source, error)
            else:
                self._ignored(source, library)

    def _ignored(self, source: SchemaSource, library: CatalogLibrary) -> None:
        """Report what is ignored in a schema and in what it refers to; each place once, however often it is used."""
        family = family_of(source.family)
        others = {uri: document for uri, document in documents_of(source, library).values()} if family.ignores else {}
        for each in (source, *(replace(source, document=o, name="", pointer="", uri=uri) for uri, o in others.items())):
            for fault in family.ignored_in(each):
                if (each.uri, fault.path) not in self._told:
                    self._told.add((each.uri, fault.path))
                    hint = "correct or remove it; until then it is ignored, and the type underneath counts"
                    self.findings.warning(self._place(each, fault.path), "ignored-logical-type", fault.message, hint)

    def _writer(self, definition: Definition, attributes: tuple[str, ...]) -> DeclaredMessage | None:
        """Return the nearest message, from the definition to its last base, that gives any of *attributes*."""
        for xid in (definition.xid, *definition.base):
            message = self.declarations.messages[xid]
            if not message.attributes.keys().isdisjoint(attributes):
                return message
        return None

    def _locate(self, writer: DeclaredMessage, definition: Definition) -> Located | None:
        if "dataschema" in writer.attributes:
            document = definition.dataschema
            if not (isinstance(document, str) and _LOOKS_LIKE_REFERENCE.fullmatch(document.strip())):
                return self.gathering.inline(f"{writer.xid}#dataschema", document, writer.at("dataschema"))
            return self._referenced(document.strip(), writer, writer.at("dataschema"))
        for attribute in _REFERENCES:
            reference = writer.attributes.get(attribute)
            located = self._referenced(reference.strip(), writer, writer.at(attribute)) if reference else None
            if located is not None:
                return located
        return None

    def _referenced(self, reference: str, writer: DeclaredMessage, place: Place) -> Located | None:
        registry = self.gathering.registry_of(writer.xid)
        link = registry.link(reference)
        if link is not None:
            return self.gathering.linked(link, place)
        named = registry.by_id(reference)
        if named is not None:
            return self.gathering.linked(Link(named), place)
        if registry.is_reference(reference) and reference.startswith(("#", "/")):
            hint = registry.suggestion(reference) or "correct the reference, or add the document"
            self.findings.error(place, "unresolvable-schema", short(f"the schema {reference} is not there"), hint)
            return None
        return self.gathering.addressed(reference, place)

    def _note(self, definition: Definition, writer: DeclaredMessage) -> None:
        key = definition.schemakey or ""
        asked = writer.at(next(each for each in _SCHEMAS if each in writer.attributes))
        if (key, definition.dataschemaformat) not in self._plain:
            self._check_format(definition, asked)
        identity = (key, definition.schemaname, definition.schemapointer, definition.dataschemaformat)
        if identity not in self._sources:
            source = schema_source(definition, self.gathering.schemas)
            self._sources[identity] = (source, {})
        self._sources[identity][1][asked] = None

    def _check_format(self, definition: Definition, asked: Place) -> None:
        """Report a format that is unknown, or two that contradict each other; else remember that there is nothing."""
        key = definition.schemakey or ""
        entry = self.gathering.schemas[key]
        writer = self._writer(definition, ("dataschemaformat",))
        declared_at = writer.at("dataschemaformat") if writer is not None else asked
        schema_format = format_of(definition.dataschemaformat, entry)
        given = [parse_format(text) for text in (definition.dataschemaformat, entry["format"]) if text]
        if schema_format is not None and all(each and each.family == schema_format.family for each in given):
            self._plain.add((key, definition.dataschemaformat))
            return
        said = ((definition.dataschemaformat, declared_at), (entry["format"], self.gathering.places[key]))
        for text, place in said:
            known = parse_format(text)
            if text and known is None:
                message = f"the schema format {text!r} is unknown, so payloads are not validated"
                meant = nearest(text.partition("/")[0], (each.name for each in FAMILIES))
                hint = f"did you mean {meant}?" if meant else f"use {family_names()}"
                self.findings.add(place, "error" if meant else "warning", "unknown-schema-format", message, hint)
            elif known is not None and schema_format is not None and known.family != schema_format.family:
                message = (
                    f"the schema format is given as {text}, and the schema is {schema_format.family}, which counts"
                )
                self.findings.warning(place, "schema-format-conflict", message, "correct the format")
        if schema_format is None and not any(text for text, _ in said):
            message = "what format the schema has is not said, so payloads are not validated"
            self.findings.warning(asked, "unknown-schema-format", message, f"add dataschemaformat: {family_names()}")

    def _invalid(self, source: SchemaSource, error: SchemaError) -> None:
        """Report a schema that cannot be used: an error where the catalog has it, a warning where it was fetched."""
        place = self._place(source, error.pointer)
        severity: Severity = "error" if source.uri in self.gathering.inside else "warning"
        hint = error.hint or "correct the schema; until then there is no verdict about payloads"
        self.findings.add(place, severity, "invalid-schema", str(error), hint)

    def _unnamed(self, source: SchemaSource, error: SchemaError) -> None:
        """Report a schema with the name of a type that nothing defines; who sees a part of a registry cannot know."""
        place = self._place(source, error.pointer)
        if self.gathering.fetcher.whole:
            self.findings.error(place, "unresolvable-schema", str(error), error.hint)
        else:
            self.findings.warning(place, "schema-unreachable", str(error), error.hint)

    def _place(self, source: SchemaSource, pointer: str) -> Place:
        """Return where a part of a schema is written; of one that is a text in the catalog, where the text is."""
        place = self.gathering.places[source.uri]
        return place if source.uri in self.gathering.texts else Place(place.file, place.pointer + pointer)
