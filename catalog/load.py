"""From sources to one catalog: read, detect, declare, inherit, build, lint and hash; :func:`build` is the order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from catalog.declared import Declarations, DeclaredEndpoint, Place
from catalog.dialects import Dialect, cereg, detect, messagecatalog, xregistry
from catalog.documents import Document, read_documents
from catalog.findings import Findings
from catalog.inheritance import Inheritance
from catalog.lint import Linter
from catalog.listing import catalog_to_json
from catalog.model import Catalog, Definition, Endpoint
from catalog.properties import definition_of
from catalog.references import Resolver

EPOCH_CHARACTERS: Final = 16
_READERS: Final[Mapping[Dialect, Callable[[Document, Declarations, Findings], None]]] = {
    Dialect.XREGISTRY: xregistry.read,
    Dialect.DEFINITION_GROUPS: cereg.read,
    Dialect.MESSAGE_CATALOG: messagecatalog.read,
}


def load(sources: Sequence[str | Path], *, network: bool = False) -> Catalog:
    """Read files, folders and URLs as one catalog, with all findings of lint.

    References go across documents. A definition that cannot be used is left out and reported, the rest works. URLs
    are refused unless *network* is on.

    Raises:
        DocumentError: a source is missing, unreadable, or neither JSON nor YAML (exit code 2 of ``check``).
    """
    findings = Findings()
    return build(read_documents(sources, findings, network=network), findings)


def build(documents: Iterable[Document], findings: Findings) -> Catalog:
    """Make a catalog of documents that were read; *findings* may hold some already, and all end in the catalog."""
    declarations = _declared(documents, findings)
    resolver = Resolver(declarations.messages, declarations.groups)
    effective = Inheritance(declarations, resolver, findings).resolve()
    definitions = dict(sorted((each.message.xid, definition_of(each, findings)) for each in effective))
    groups = _groups(declarations, definitions)
    endpoints = _endpoints(declarations, definitions, groups, resolver, findings)
    linter = Linter(declarations, findings)
    linter.definitions(definitions)
    linter.endpoints(endpoints)
    schemas = dict(sorted(declarations.schemas.items()))
    catalog = Catalog(definitions, groups, endpoints, schemas, findings.sorted())
    return replace(catalog, epoch=epoch_of(catalog))


def epoch_of(catalog: Catalog) -> str:
    """Return the content hash of a catalog: equal for equal meaning, whatever the files, their order or format."""
    meaning = catalog_to_json(catalog)
    meaning.pop("findings")
    meaning.pop("epoch")
    return hashlib.sha256(msgspec.json.encode(meaning, order="deterministic")).hexdigest()[:EPOCH_CHARACTERS]


def _declared(documents: Iterable[Document], findings: Findings) -> Declarations:
    declarations = Declarations()
    for document in documents:
        dialect = detect(document.tree)
        place = Place(document.file)
        reader = _READERS.get(dialect)
        if reader is not None:
            reader(document, declarations, findings)
        elif document.named:
            hint = "it should have messagegroups, endpoints or schemagroups"
            findings.error(place, "not-a-catalog", "this is no xRegistry document", hint)
        else:
            findings.info(place, "not-a-catalog", "not an xRegistry document, and passed over", "")
    return declarations


def _groups(declarations: Declarations, definitions: Mapping[str, Definition]) -> dict[str, tuple[str, ...]]:
    members: dict[str, list[str]] = {xid: [] for xid in sorted(declarations.groups)}
    for definition in definitions.values():
        if definition.group in members:
            members[definition.group].append(definition.xid)
    return {xid: tuple(listed) for xid, listed in members.items()}


def _endpoints(
    declarations: Declarations,
    definitions: Mapping[str, Definition],
    groups: Mapping[str, tuple[str, ...]],
    resolver: Resolver,
    findings: Findings,
) -> dict[str, Endpoint]:
    inline: dict[str, list[str]] = {}
    for definition in definitions.values():
        if definition.group in declarations.endpoints:
            inline.setdefault(definition.group, []).append(definition.xid)
    endpoints: dict[str, Endpoint] = {}
    for xid in sorted(declarations.endpoints):
        declared = declarations.endpoints[xid]
        listed = _listed_groups(declared, resolver, findings)
        candidates = (*inline.get(xid, ()), *(message for group in listed for message in groups[group]))
        endpoints[xid] = Endpoint(candidates=tuple(dict.fromkeys(candidates)), **_kept(declared, listed))
    return endpoints


def _kept(declared: DeclaredEndpoint, groups: tuple[str, ...]) -> dict[str, Any]:
    return {
        "xid": declared.xid,
        "usage": declared.usage,
        "envelope": declared.envelope,
        "protocol": declared.protocol,
        "envelopeoptions": declared.envelopeoptions,
        "uris": declared.uris,
        "options": declared.options,
        "messagegroups": groups,
    }


def _listed_groups(declared: DeclaredEndpoint, resolver: Resolver, findings: Findings) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for index, reference in enumerate(declared.messagegroups):
        group = resolver.group(reference)
        if group is not None:
            found[group] = None
            continue
        place = declared.groups_written[index] if declared.groups_written else declared.place / "messagegroups" / index
        hint = "correct the reference, or add the document"
        findings.warning(place, "dangling-group", f"the message group {reference} is not there", hint)
    return tuple(found)
