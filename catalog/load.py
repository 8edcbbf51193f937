"""From sources to one catalog: read, detect, declare, inherit, build, lint and hash; :func:`build` is the order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from catalog.declared import Declarations, DeclaredEndpoint, Place
from catalog.definitions.inheritance import Inheritance
from catalog.definitions.properties import definition_of
from catalog.definitions.relations import with_relations
from catalog.dialects import registry
from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.reach import Reach
from catalog.documents.registry_api import own_address
from catalog.findings import Findings
from catalog.linting import Subject, lint
from catalog.listing import meaning_of
from catalog.model import Catalog, Definition, Endpoint
from catalog.parsing.nearest import Suggestions
from catalog.paused_gc import paused_gc
from catalog.references.abroad import Abroad
from catalog.references.following import Following
from catalog.references.resolving import Resolver
from catalog.schemas.addresses import SchemaAddresses
from catalog.schemas.linking import link_schemas

EPOCH_CHARACTERS: Final = 16
MAX_CANDIDATES: Final = 1_000_000
"""Candidates of all endpoints of a load together."""


@paused_gc()
def load(
    sources: Sequence[str | Path],
    *,
    network: bool = False,
    declarations: Declarations | None = None,
    fetcher: Fetcher | None = None,
    allow: Sequence[str] = (),
    base_uri: str = "",
) -> Catalog:
    """Read files, folders and URLs as one catalog, with all findings of lint.

    References go across documents. A definition that cannot be used is left out and reported, the rest works. URLs are
    refused unless *network* is on; what documents refer to may be at public addresses and at those of *allow*
    (:class:`catalog.documents.reach.Reach`). *declarations*, when given, is filled with what the documents declare. A
    *fetcher*, when given, counts instead of *network* and *allow*, and afterwards knows all that was read. *base_uri*
    is the address of the registry that the sources are of, where they do not say it themselves.

    Raises:
        DocumentError: a source is missing, unreadable, or neither JSON nor YAML (exit code 2 of ``check``).
    """
    findings = Findings()
    given = fetcher if fetcher is not None else Fetcher(network=network, reach=Reach(allow))
    return build(read_documents(sources, findings, fetcher=given), findings, declarations, given, base_uri)


def build(
    documents: Iterable[Document],
    findings: Findings,
    into: Declarations | None = None,
    fetcher: Fetcher | None = None,
    base_uri: str = "",
) -> Catalog:
    """Make a catalog of documents that were read; *findings* may hold some already, and all end in the catalog.

    The *fetcher* gives what they refer to; without one there is no network. *base_uri* is as for :func:`load`.
    """
    given = fetcher if fetcher is not None else Fetcher(network=False)
    following = Following(given, findings)
    documents = tuple(following.completed(document) for document in documents)
    declarations = _declared(documents, Declarations() if into is None else into, findings)
    abroad = Abroad(documents, declarations, given, findings, _declared, following)
    resolver = Resolver(declarations.messages, declarations.groups, abroad)
    near = Suggestions(declarations.groups)
    listed = {each.xid: _listed_groups(each, resolver, findings, near) for each in declarations.endpoints.values()}
    effective = Inheritance(declarations, resolver, findings).resolve()
    definitions = dict(sorted((each.message.xid, definition_of(each, findings)) for each in effective))
    definitions = with_relations(definitions, declarations)
    groups = _groups(declarations, definitions)
    endpoints = _endpoints(declarations, definitions, groups, listed, findings)
    addresses = SchemaAddresses(declarations, abroad, base_uri)
    linked = link_schemas(definitions, declarations, abroad, given, findings, addresses)
    catalog = Catalog(linked.definitions, groups, endpoints, linked.schemas)
    lint(Subject(catalog, declarations, documents, findings))
    order = tuple(each.message.xid for each in effective)
    pending = tuple(sorted({*following.pending, *abroad.pending, *linked.pending}))
    return replace(catalog, findings=findings.sorted(), epoch=epoch_of(catalog), pending=pending, order=order)


def epoch_of(catalog: Catalog) -> str:
    """Return the content hash of a catalog: equal for equal meaning, whatever the files, their order or format."""
    digest = hashlib.sha256()
    for part in meaning_of(catalog):  # one at a time: the text of a whole catalog may be large
        digest.update(msgspec.json.encode(part, order="deterministic"))
        digest.update(b"\n")
    return digest.hexdigest()[:EPOCH_CHARACTERS]


def _declared(documents: Iterable[Document], declarations: Declarations, findings: Findings) -> Declarations:
    for document in documents:
        place = Place(document.file)
        for address in own_address(document.tree) or tuple(each for each in document.aliases[:1] if is_url(each)):
            files = (document.file, *(each.file for each in document.mounts.values()))
            declarations.addresses.update(dict.fromkeys(files, address))
        if registry.read(document.tree, document.root, declarations, findings):
            continue
        if document.named:
            hint = "name a catalog of messages; other registries have nothing to route by"
            findings.error(place, "not-a-catalog", "this holds no message groups, endpoints or schema groups", hint)
        else:
            findings.info(
                place, "not-a-catalog", "no message groups, endpoints or schema groups in here; passed over", ""
            )
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
    listed: Mapping[str, tuple[str, ...]],
    findings: Findings,
) -> dict[str, Endpoint]:
    inline: dict[str, list[str]] = {}
    for definition in definitions.values():
        if definition.group in declarations.endpoints:
            inline.setdefault(definition.group, []).append(definition.xid)
    endpoints: dict[str, Endpoint] = {}
    left = MAX_CANDIDATES
    for xid in sorted(declarations.endpoints):
        declared = declarations.endpoints[xid]
        size = len(inline.get(xid, ())) + sum(len(groups[group]) for group in listed[xid])
        if size > left:
            text = f"{xid} expects {size} messages, and all endpoints together more than {MAX_CANDIDATES}"
            findings.error(declared.place, "too-many", text, "list fewer groups, or split the catalog")
            continue
        left -= size
        candidates = (*inline.get(xid, ()), *(message for group in listed[xid] for message in groups[group]))
        endpoints[xid] = Endpoint(candidates=tuple(dict.fromkeys(candidates)), **_kept(declared, listed[xid]))
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


def _listed_groups(
    declared: DeclaredEndpoint, resolver: Resolver, findings: Findings, near: Suggestions
) -> tuple[str, ...]:
    groups: dict[str, None] = {}
    for index, reference in enumerate(declared.messagegroups):
        place = declared.groups_written[index] if declared.groups_written else declared.place / "messagegroups" / index
        group = resolver.group(reference, place.file)
        if group is not None:
            groups[group] = None
        failure = resolver.failure(reference, place.file)
        if failure is not None and failure.transient:
            text = f"the message group {reference} cannot be reached now: {failure}"
            findings.warning(place, "unreachable-reference", text, failure.hint)
        elif group is None:
            text = f"the message group {reference} is not there" + (f" ({failure})" if failure is not None else "")
            # The network is off, so that nothing is known of what is there.
            unasked = failure is not None and failure.offline
            hint = near.hint(reference, "correct the reference, or add the document")
            findings.add(place, "warning" if unasked else "error", "dangling-group", text, hint)
    return tuple(groups)
