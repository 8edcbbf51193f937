"""Resolve references between documents, fetching referenced documents where needed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from catalog.dialects import detect, suffixes
from catalog.dialects.asyncapi.document import DOCUMENTS, bundle
from catalog.dialects.detection import ASYNCAPI
from catalog.dialects.reading import message_member_names, names_of, spellings_of
from catalog.documents.documents import Document, read_document
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.registry_api import (
    INDEX,
    Assembly,
    collection_names,
    iter_missing_collections,
    next_page,
    own_addresses,
    shown_collections,
)
from catalog.findings import (
    MESSAGE_REFERENCE,
    Declarations,
    DeclaredGroup,
    DeclaredMessage,
    DocumentError,
    Findings,
    SourceLocation,
)
from catalog.parsing.pointers import parse_pointer, unescape_step

# References to messages and groups: xids, JSON pointers, relative and absolute URIs, and bare names.

_GROUP_REFERENCE: Final = re.compile(r"(?:^|[/#])(messagegroups)/([^/?#]+)/?$")


class ReferenceResolver:
    """Resolves references in the sources, and in external documents if *abroad* is given.

    All source documents share one space of xids; each external document has its own.
    """

    def __init__(
        self,
        messages: Mapping[str, DeclaredMessage],
        groups: Mapping[str, DeclaredGroup],
        abroad: ExternalDocuments | None = None,
    ) -> None:
        self._messages = messages
        self._groups = groups
        self._abroad = abroad
        self._folded: dict[str, tuple[int, dict[str, str]]] = {}
        self._failures: dict[tuple[str, str], DocumentError] = {}

    def resolve_message(self, reference: str, source: str) -> str | None:
        """Return the xid of the message that *reference* in the message *source* refers to; None if dangling.

        A missing version is resolved to its message. A reference into an unreadable document is resolved to the message
        with that xid in the sources, except *source* itself, to avoid a cycle.
        """
        external = self._abroad.document_of(source) if self._abroad is not None else None
        match = MESSAGE_REFERENCE.search(reference)
        if match is None:
            return self._find_message(external, _sibling_xids(reference, source, external))
        kind, group, message, version = match.groups()
        xids = _possible_xids(kind, group, message, version)
        address, fragment = _split_document(reference, match)
        if not address:
            return self._find_message(external, xids)
        try:
            target = self._external_document(address, fragment, f"{kind}/{group}", self._messages[source].place.file)
        except DocumentError as error:
            self._failures[source, reference] = error
            target = None
            if external is not None:
                return None
        known = self._find_message(target, xids)
        if known is None and target is not None:
            self._failures[source, reference] = DocumentError(f"{target.name} does not contain {xids[0]}")
        return None if known == source and target is None else known

    def resolve_group(self, reference: str, file: str = "") -> str | None:
        """Return the xid of the message group that *reference* in *file* refers to; None if dangling."""
        match = _GROUP_REFERENCE.search(reference)
        if match is None:
            return self._find_group(None, [f"/messagegroups/{reference}"]) or self._find_only_group(reference, file)
        group = match.group(2)
        xids = [f"/messagegroups/{name}" for name in (group, *_unescape_name(group))]
        address, fragment = _split_document(reference, match)
        target: ExternalDocument | None = None
        if address:
            try:
                target = self._external_document(address, fragment, f"messagegroups/{group}", file)
            except DocumentError as error:
                self._failures[file, reference] = error
        known = self._find_group(target, xids)
        if known is None and target is not None:
            self._failures[file, reference] = DocumentError(f"{target.name} does not contain {xids[0]}")
        return known

    def failure_of(self, reference: str, source: str) -> DocumentError | None:
        """Return the error of a reference's document, None if it was read; *source* is the message or the file."""
        return self._failures.get((source, reference))

    def _external_document(self, address: str, fragment: bool, group: str, file: str) -> ExternalDocument | None:
        """Return the external document of a reference; None if it refers to the sources.

        Raises:
            DocumentError: it cannot be read.
        """
        if self._abroad is None:
            return None
        return self._abroad.document(address, file) if fragment else self._abroad.find_registry(address, group, file)

    def _find_message(self, external: ExternalDocument | None, xids: Iterable[str]) -> str | None:
        if external is None or self._abroad is None:
            return self._find_existing("", self._messages, xids)
        known = self._find_existing(external.name, external.declarations.messages, xids)
        return None if known is None else self._abroad.adopt_message(external, known)

    def _find_group(self, external: ExternalDocument | None, xids: Iterable[str]) -> str | None:
        if external is None or self._abroad is None:
            return self._find_existing("groups", self._groups, xids)
        known = self._find_existing(f"groups {external.name}", external.declarations.groups, xids)
        return None if known is None else self._abroad.adopt_group(external, known)

    def _find_only_group(self, reference: str, file: str) -> str | None:
        """Return the only group of a document, for a reference to the document as a whole."""
        if self._abroad is None or not (is_url(reference) or reference.lower().endswith(suffixes())):
            return None
        try:
            external = self._abroad.document(reference, file)
        except DocumentError as error:
            self._failures[file, reference] = error
            return None
        groups = list(external.declarations.groups) if external is not None else []
        return self._find_group(external, groups) if len(groups) == 1 else None

    def _find_existing(self, space: str, things: Mapping[str, object], xids: Iterable[str]) -> str | None:
        """Return the first existing one of *xids*, comparing first with, then without regard to case."""
        wanted = list(xids)
        for xid in wanted:
            if xid in things:
                return xid
        size, folded = self._folded.get(space, (0, {}))
        if size < len(things):  # external entities are found by exact name only
            folded = {known.lower(): known for known in things if known.startswith("/")}
            self._folded[space] = (len(things), folded)
        return next((folded[xid.lower()] for xid in wanted if xid.lower() in folded), None)


def _split_document(reference: str, match: re.Match[str]) -> tuple[str, bool]:
    """Return the address before the xid in a reference, and whether it is a document (not a registry)."""
    lead = reference[: match.start(1)]
    address, fragment, _ = lead.partition("#")
    if fragment:
        return address, True
    prefix = address.rstrip("$").rstrip("/")
    return ("", False) if prefix in ("", ".") else (prefix, False)


def _sibling_xids(reference: str, source: str, external: ExternalDocument | None) -> list[str]:
    """Return the xid for a bare name, in the group of *source*, as a list."""
    name = reference.rsplit("/", 1)[-1].lstrip("#")
    plain = re.fullmatch(r"(?:\.\.?/)*(?:messages/)?[^/?#:]+", reference)
    xid = source.removeprefix(external.name) if external is not None else source
    return [f"{xid.split('/messages/', 1)[0]}/messages/{name}"] if plain and name else []


def _possible_xids(kind: str, group: str, message: str, version: str | None) -> list[str]:
    """Return the possible xids of a reference: as written, then unescaped; versions first."""
    xids: list[str] = []
    for names in ((group, message), *zip(_unescape_name(group), _unescape_name(message), strict=True)):
        xid = f"/{kind}/{names[0]}/messages/{names[1]}"
        xids.extend([f"{xid}/versions/{version}", xid] if version else [xid])
    return xids


def _unescape_name(name: str) -> tuple[str, str]:
    pointer = unescape_step(name)
    return pointer, unquote(pointer)


# Completing documents: collections (``messagegroupsurl``) and definitions (``self``) given only by address.
#
# They are fetched like references, within the same limits, and inserted into the document before it is read. A listed
# definition that cannot be fetched is left out: without constraints it would match every event.

MAX_DOCUMENTS: Final = 1_000
"""Maximum documents that one load reads because sources give only their address."""
_ADDRESS_ENDINGS: Final = ("url", "uri")
_RESOURCES: Final = frozenset(f"{name}{end}" for name in ("definition", "message") for end in _ADDRESS_ENDINGS)
"""Members with the address of a definition that the registry does not store itself (RESOURCEURI of 0.5)."""
_SHOWN: Final = frozenset({"versions", "xref", "uri", "meta", "xid", "messageid"})
"""Further members that show that a definition is included, not only listed."""


@dataclass(slots=True)
class AddressFollower:
    """Fetches content that documents give only by address. ``pending`` are addresses unavailable at present."""

    fetcher: Fetcher
    findings: Findings
    pending: dict[str, None] = field(default_factory=dict)
    _documents: int = 0

    def completed(self, document: Document) -> Document:
        """Return *document* with all content given by address; report and leave out unavailable content."""
        dialect = detect(document.tree) if isinstance(document.tree, dict) else None
        if dialect is ASYNCAPI:
            return self._bundled(document)
        if dialect is None or not _is_partial(document.tree):
            return document
        assembly = Assembly(document.file, document.tree)
        assembly.mounts.update(document.mounts)
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            path = waiting.pop()
            node = assembly.find(path)
            for name, written in list(iter_missing_collections(node, len(path), _ADDRESS_ENDINGS)):
                self._add_collection(assembly, (*path, name[:-3]), written, _locate(document, assembly, path) / name)
            node = assembly.find(path)
            for name in shown_collections(node, len(path)):
                below = [(*path, name, key) for key, each in node[name].items() if isinstance(each, dict)]
                if not path:
                    waiting.extend(below)
                elif name.lower() in spellings_of("messages"):
                    self._add_definitions(document, assembly, below)
        return replace(document, tree=assembly.tree, mounts=assembly.mounts)

    def _bundled(self, document: Document) -> Document:
        """Return a document of AsyncAPI with the others that it refers to, except schemas, which are loaded later."""
        mounts = dict(document.mounts)

        def read(address: str, number: int) -> Any:
            try:
                tree, at = self._read_object(address, document.root)
            except DocumentError as error:
                self._report_unreadable(error, document.root, f"the document {address}")
                return None
            mounts[document.file, f"/{DOCUMENTS}/{number}"] = at
            return tree

        return replace(document, tree=bundle(document.tree, read), mounts=mounts)

    def _add_collection(self, assembly: Assembly, path: tuple[str, ...], written: str, place: SourceLocation) -> None:
        try:
            tree, at = self._read_object(written, place)
            members, at = _find_collection(tree, path, at)
            assembly.add_part(path, members, at)
            assembly.mounts.update(at.mounts or {})
        except DocumentError as error:
            self._report_unreadable(error, place, f"{path[-1]} at {written}")

    def _add_definitions(self, document: Document, assembly: Assembly, paths: Sequence[tuple[str, ...]]) -> None:
        for path in paths:
            entity = assembly.find(path)
            named = _find_address_member(entity)
            if named is None:
                continue
            place = _locate(document, assembly, path)
            try:
                tree, at = self._read_object(_to_reachable(entity[named], document), place / named)
                assembly.add_part(path if named.lower() == "self" else (*path, "definition"), tree, at)
            except DocumentError as error:
                self._report_unreadable(error, place / named, f"the definition at {entity[named]}")
                assembly.add_part(path[:-1], {path[-1]: None}, place)

    def _read_object(self, written: str, place: SourceLocation) -> tuple[dict[str, Any], SourceLocation]:
        """Fetch the object at the address *written* at *place*; return it with its location.

        Raises:
            DocumentError: it cannot be read; ``transient`` if a retry may succeed.
        """
        address = self.fetcher.resolve(written, place.file)
        if self._documents >= MAX_DOCUMENTS:
            message = f"{address} is not read: documents refer to more than {MAX_DOCUMENTS} others"
            raise DocumentError(message, file=address, hint="give whole documents as sources")
        self._documents += 1
        document = read_document(address, self.fetcher, self.findings)
        if is_url(address) and not document.mounts and next_page(self.fetcher.fetch_response(address).link) is not None:
            hint = "give the registry itself as a source; its pages are followed"
            raise DocumentError(f"{address} is a paginated response", file=address, hint=hint)
        tree, at = document.tree, SourceLocation(document.file, "", document.mounts)
        for key in parse_pointer(written.partition("#")[2]):
            tree, at = tree.get(key) if isinstance(tree, dict) else None, at / key
        if not isinstance(tree, dict):
            raise DocumentError(f"{written} is not the address of an object", file=address, hint="correct the address")
        return tree, at

    def _report_unreadable(self, error: DocumentError, place: SourceLocation, what: str) -> None:
        if error.transient:
            self.pending[error.file or place.file] = None
            text = f"{what} is unavailable at present: {error}"
            self.findings.warning(place, "unreachable-reference", text, error.hint)
        elif not self.fetcher.network and is_url(error.file):
            self.findings.warning(place, "network-off", f"{what} is not read: {error}", error.hint)
        else:
            self.findings.error(place, "unreadable-document", f"{what} is not read: {error}", error.hint)


def _is_partial(tree: Mapping[str, Any]) -> bool:
    """Whether a document gives any content only by address; most do not."""
    if any(True for _ in iter_missing_collections(tree, 0, _ADDRESS_ENDINGS)):
        return True
    groups = (group for name in shown_collections(tree, 0) for group in tree[name].values() if isinstance(group, dict))
    return any(
        any(True for _ in iter_missing_collections(group, 2, _ADDRESS_ENDINGS)) or _has_listed_only(group)
        for group in groups
    )


def _has_listed_only(group: Mapping[str, Any]) -> bool:
    return any(
        isinstance(message, dict) and _find_address_member(message) is not None
        for name in group
        if name.lower() in spellings_of("messages") and isinstance(group[name], dict)
        for message in group[name].values()
    )


def _find_address_member(message: Mapping[str, Any]) -> str | None:
    """Return the name of the member with a definition's address; None if the definition is included."""
    if not any(isinstance(message.get(name), str) for name in message if name == "self" or name.lower() in _RESOURCES):
        return None
    shown = (_SHOWN | message_member_names()) - names_of("selectors")
    if any(name.lower() in shown for name in message):
        return None
    names = sorted((name for name in message if name.lower() in _RESOURCES), key=len) or ["self"]
    address = message.get(names[0])
    return names[0] if isinstance(address, str) and address and not address.startswith("#") else None


def _find_collection(
    tree: dict[str, Any], path: Sequence[str], at: SourceLocation
) -> tuple[dict[str, Any], SourceLocation]:
    """Return the collection *path* of a document and its location: at its path, by its name, or the whole document.

    Raises:
        DocumentError: there is no such collection.
    """
    name = path[-1]
    groups = _find_collection_key(tree, path[0], 0)
    if len(path) > 1 and groups is not None:  # an assembled registry response for one collection
        key = path[1] if path[1] in tree[groups] else next(iter(tree[groups]), "")
        if path[1] in tree[groups] or len(tree[groups]) == 1:
            group = tree[groups][key]
            member = _find_collection_key(group, name, 2) if isinstance(group, dict) else None
            if member is not None:
                return group[member], at / groups / key / member
    member = _find_collection_key(tree, name, len(path) - 1)
    if member is not None:
        return tree[member], at / member
    if groups is None and tree and all(isinstance(each, dict) for each in tree.values()):
        return tree, at
    raise DocumentError(f"{at.file} has no {name}", file=at.file, hint=f"add {name}, as a map by id")


def _to_reachable(address: str, document: Document) -> str:
    """Replace the registry's stated address by the one that it was read from.

    A server behind a proxy often states the wrong host name.
    """
    for own in own_addresses(document.tree) if is_url(document.file) else ():
        if address.startswith(f"{own.rstrip('/')}/"):
            base = urlsplit(document.file)._replace(query="", fragment="").geturl()
            return base.rstrip("/") + address.removeprefix(own.rstrip("/"))
    return address


def _find_collection_key(tree: Mapping[str, Any], name: str, depth: int) -> str | None:
    """Return the key of *tree* for the collection *name*, under any of its names, if it is a map."""
    kind = collection_names(name, depth)
    return next((key for key in tree if key.lower() in kind and isinstance(tree[key], dict)), None)


def _locate(document: Document, assembly: Assembly, path: Sequence[str]) -> SourceLocation:
    place = SourceLocation(document.file, "", assembly.mounts)
    for step in path:
        place = place / step
    return place


# External documents: referenced documents and registries that are not sources.
#
# A message found there may be a base, may be borrowed, or may be a candidate through its group. Its name is the address
# of its document and its xid (``https://host/base.json#/messagegroups/G/messages/M``), so that it never conflicts with
# definitions of the catalog. The address of a local document is its path relative to the folder of the sources.

Declare = Callable[[Iterable[Document], Declarations, Findings], Declarations]
"""Reads documents into declarations; one that is not a catalog is reported as ``not-a-catalog``."""


@dataclass(slots=True)
class ExternalDocument:
    """An external document or registry. ``name`` is the prefix of its xids in the catalog."""

    name: str
    declarations: Declarations = field(default_factory=Declarations)
    findings: Findings = field(default_factory=Findings)


class ExternalDocuments:
    """Finds, reads and caches external documents; declares referenced messages under their long name.

    ``pending`` are the addresses that are unavailable at present.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        declarations: Declarations,
        fetcher: Fetcher,
        findings: Findings,
        declare: Declare,
        following: AddressFollower,
    ) -> None:
        self.pending: dict[str, None] = {}
        self._declarations = declarations
        self._fetcher = fetcher
        self._findings = findings
        self._declare = declare
        self._following = following
        self._home: set[str] = set()
        self._lands: dict[str, ExternalDocument | DocumentError] = {}
        self._of: dict[str, ExternalDocument] = {}
        folders: list[str] = []
        for document in documents:
            for address in {document.file, *document.aliases, *(place.file for place in document.mounts.values())}:
                with suppress(DocumentError):  # documents choose their aliases freely
                    self._home.add(self._canonical_key(address))
            if not is_url(document.file):
                folders.append(os.path.dirname(os.path.abspath(document.file)))
        self._folder = os.path.commonpath(folders) if folders else os.path.abspath(os.curdir)

    def document_of(self, xid: str) -> ExternalDocument | None:
        """Return the external document of a message or group; None if it is in the sources."""
        return self._of.get(xid)

    def document(self, address: str, base: str) -> ExternalDocument | None:
        """Return the external document at *address*, written in the document at *base*; None for a source.

        Raises:
            DocumentError: it cannot be read; ``transient`` if a retry may succeed.
        """
        target = self._fetcher.resolve(address, base)
        key = self._canonical_key(target)
        if key in self._home:
            return None
        if key not in self._lands:
            self._lands[key] = self._discover(target)
        external = self._lands[key]
        if isinstance(external, DocumentError):
            raise external.with_traceback(None)
        return external

    def find_registry(self, prefix: str, group: str, base: str) -> ExternalDocument | None:
        """Return the registry at *prefix*, with its *group* (``messagegroups/G``) read; None for a source.

        Raises:
            DocumentError: it cannot be read.
        """
        target = self._fetcher.resolve(f"{prefix}/", base).rstrip("/")
        if self._canonical_key(target) in self._home:
            return None
        if not is_url(target):
            return self.document(f"{prefix}/{INDEX}", base)
        external = self._lands.setdefault(f"{target}/", ExternalDocument(target))
        if not isinstance(external, ExternalDocument):
            raise external.with_traceback(None)
        address = f"{target}/{group}"
        if address not in self._lands:
            read = self._discover(address, external)
            self._lands[address] = read
        known = self._lands[address]
        if isinstance(known, DocumentError):
            raise known.with_traceback(None)
        return external

    def adopt_message(self, external: ExternalDocument, xid: str) -> str:
        """Declare a message of *external* in the catalog, only as a target of references; return its long name."""
        name = external.name + xid
        if name not in self._declarations.messages:
            self._declare_message(external, xid, hidden=True)
            self._copy_findings(external, external.declarations.messages[xid].place)
        return name

    def adopt_group(self, external: ExternalDocument, xid: str) -> str:
        """Declare a group of *external* in the catalog, with all its messages as candidates; return its long name."""
        name = external.name + xid
        if name not in self._declarations.groups:
            group = external.declarations.groups[xid]
            self._declarations.groups[name] = replace(group, xid=name)
            self._of[name] = external
            for message in external.declarations.messages.values():
                if message.group == xid:
                    self._declare_message(external, message.xid, hidden=message.hidden)
            self._copy_findings(external, group.place)
        return name

    def _declare_message(self, external: ExternalDocument, xid: str, *, hidden: bool) -> None:
        message = external.declarations.messages[xid]
        adopted = replace(message, xid=external.name + xid, group=external.name + message.group, hidden=hidden)
        self._declarations.messages[adopted.xid] = adopted
        self._of[adopted.xid] = self._of[adopted.group] = external
        declared = external.declarations
        home = declared.groups.get(message.group) or declared.endpoints.get(message.group)
        if home is not None:
            self._declarations.external[adopted.group] = replace(home, xid=adopted.group)

    def _copy_findings(self, external: ExternalDocument, place: SourceLocation) -> None:
        """Copy the findings at or below *place* to the catalog; others concern only the author of the document."""
        for each in external.findings.sorted():
            if each.file == place.file and f"{each.pointer}/".startswith(f"{place.pointer}/"):
                self._findings.extend((each,))

    def _discover(self, address: str, external: ExternalDocument | None = None) -> ExternalDocument | DocumentError:
        """Read an external document, or a part of the external registry *external*."""
        destination = external if external is not None else ExternalDocument(f"{self.label(address)}#")
        findings = Findings()
        try:
            document = self._following.completed(read_document(address, self._fetcher, findings))
            self._declare([document], destination.declarations, findings)
            if any(each.rule == "not-a-catalog" for each in findings.sorted()):
                hint = "refer to a document with messagegroups or endpoints"
                raise DocumentError(f"{address} is not an xRegistry document", file=address, hint=hint)
        except DocumentError as error:
            if error.transient:
                self.pending[error.file or address] = None
            return error
        destination.findings.extend(findings.sorted())
        return destination

    def _canonical_key(self, address: str) -> str:
        """Return a key that is equal for all spellings of an address."""
        absolute = self._fetcher.address(address)
        return absolute.rstrip("/") if is_url(absolute) else os.path.abspath(absolute)

    def label(self, address: str) -> str:
        """Return the address used in long names: for files, relative to the folder of the sources."""
        return address if is_url(address) else os.path.relpath(os.path.abspath(address), self._folder)
