"""References of documents: resolve them, fetch what they need, and read documents outside the sources."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from catalog.dialects import detect, suffixes
from catalog.dialects.reading import message_names, names_of, spellings
from catalog.documents.documents import Document, read_document
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.registry_api import INDEX, Assembly, next_page, own_address
from catalog.findings import (
    MESSAGE_REFERENCE,
    Declarations,
    DeclaredEndpoint,
    DeclaredGroup,
    DeclaredMessage,
    DocumentError,
    Findings,
    SourceLocation,
)
from catalog.parsing.pointers import steps_of, unescaped

# References to messages and groups: xids, JSON pointers, relative and absolute URIs, and bare names.

_GROUP_REFERENCE: Final = re.compile(r"(?:^|[/#])(messagegroups)/([^/?#]+)/?$")


class ReferenceResolver:
    """Resolves references: among the things that were read, and outside the sources if there is an *abroad*.

    All documents of a load share one space of xids; each other document has its own.
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

    def message(self, reference: str, source: str) -> str | None:
        """Return the name of the message that *reference* in the message *source* means; None if dangling.

        A missing version means its message. A reference into an unreadable document means the message of that xid in
        the sources, except *source* itself, so that this is not a cycle.
        """
        land = self._abroad.land_of(source) if self._abroad is not None else None
        match = MESSAGE_REFERENCE.search(reference)
        if match is None:
            return self._message_in(land, _siblings(reference, source, land))
        kind, group, message, version = match.groups()
        xids = _spellings(kind, group, message, version)
        address, fragment = _document_of(reference, match)
        if not address:
            return self._message_in(land, xids)
        try:
            target = self._land(address, fragment, f"{kind}/{group}", self._messages[source].place.file)
        except DocumentError as error:
            self._failures[source, reference] = error
            target = None
            if land is not None:
                return None
        known = self._message_in(target, xids)
        if known is None and target is not None:
            self._failures[source, reference] = DocumentError(f"{target.name} does not contain {xids[0]}")
        return None if known == source and target is None else known

    def group(self, reference: str, file: str = "") -> str | None:
        """Return the name of the message group that *reference* in *file* means; None if there is none."""
        match = _GROUP_REFERENCE.search(reference)
        if match is None:
            return self._group_in(None, [f"/messagegroups/{reference}"]) or self._only_group(reference, file)
        group = match.group(2)
        xids = [f"/messagegroups/{name}" for name in (group, *_unescaped(group))]
        address, fragment = _document_of(reference, match)
        target: ExternalDocument | None = None
        if address:
            try:
                target = self._land(address, fragment, f"messagegroups/{group}", file)
            except DocumentError as error:
                self._failures[file, reference] = error
        known = self._group_in(target, xids)
        if known is None and target is not None:
            self._failures[file, reference] = DocumentError(f"{target.name} does not contain {xids[0]}")
        return known

    def failure(self, reference: str, source: str) -> DocumentError | None:
        """Return why the document of a reference could not be read; *source* is the message, or a group's file."""
        return self._failures.get((source, reference))

    def declared_group(self, name: str) -> DeclaredGroup | None:
        """Return a message group, of the sources or of another document."""
        return self._groups.get(name) or (self._abroad.group(name) if self._abroad is not None else None)

    def endpoint_beyond(self, name: str) -> DeclaredEndpoint | None:
        """Return an endpoint of a document outside the sources."""
        return self._abroad.endpoint(name) if self._abroad is not None else None

    def _land(self, address: str, fragment: bool, group: str, file: str) -> ExternalDocument | None:
        """Return the document of a reference; None for the sources.

        Raises:
            DocumentError: it cannot be read.
        """
        if self._abroad is None:
            return None
        return self._abroad.document(address, file) if fragment else self._abroad.registry(address, group, file)

    def _message_in(self, land: ExternalDocument | None, xids: Iterable[str]) -> str | None:
        if land is None or self._abroad is None:
            return self._known("", self._messages, xids)
        known = self._known(land.name, land.declarations.messages, xids)
        return None if known is None else self._abroad.adopt(land, known)

    def _group_in(self, land: ExternalDocument | None, xids: Iterable[str]) -> str | None:
        if land is None or self._abroad is None:
            return self._known("groups", self._groups, xids)
        known = self._known(f"groups {land.name}", land.declarations.groups, xids)
        return None if known is None else self._abroad.adopt_group(land, known)

    def _only_group(self, reference: str, file: str) -> str | None:
        """Return the group of a document that is referred to as a whole and has exactly one group."""
        if self._abroad is None or not (is_url(reference) or reference.lower().endswith(suffixes())):
            return None
        try:
            land = self._abroad.document(reference, file)
        except DocumentError as error:
            self._failures[file, reference] = error
            return None
        groups = list(land.declarations.groups) if land is not None else []
        return self._group_in(land, groups) if len(groups) == 1 else None

    def _known(self, space: str, things: Mapping[str, object], xids: Iterable[str]) -> str | None:
        """Return the first of *xids* that exists, case-sensitive first: ids are unique without regard to case."""
        wanted = list(xids)
        for xid in wanted:
            if xid in things:
                return xid
        size, folded = self._folded.get(space, (0, {}))
        if size < len(things):  # things from other documents are found by exact name only
            folded = {known.lower(): known for known in things if known.startswith("/")}
            self._folded[space] = (len(things), folded)
        return next((folded[xid.lower()] for xid in wanted if xid.lower() in folded), None)


def _document_of(reference: str, match: re.Match[str]) -> tuple[str, bool]:
    """Return what precedes the xid in a reference, and whether it is a document or a registry; empty for its own."""
    lead = reference[: match.start(1)]
    address, fragment, _ = lead.partition("#")
    if fragment:
        return address, True
    prefix = address.rstrip("$").rstrip("/")
    return ("", False) if prefix in ("", ".") else (prefix, False)


def _siblings(reference: str, source: str, land: ExternalDocument | None) -> list[str]:
    """Return the xid that a bare name means: a message beside *source*."""
    name = reference.rsplit("/", 1)[-1].lstrip("#")
    plain = re.fullmatch(r"(?:\.\.?/)*(?:messages/)?[^/?#:]+", reference)
    xid = source.removeprefix(land.name) if land is not None else source
    return [f"{xid.split('/messages/', 1)[0]}/messages/{name}"] if plain and name else []


def _spellings(kind: str, group: str, message: str, version: str | None) -> list[str]:
    """Return the xids a reference may mean: as written, then unescaped as a pointer or URI; versions first."""
    xids: list[str] = []
    for names in ((group, message), *zip(_unescaped(group), _unescaped(message), strict=True)):
        xid = f"/{kind}/{names[0]}/messages/{names[1]}"
        xids.extend([f"{xid}/versions/{version}", xid] if version else [xid])
    return xids


def _unescaped(name: str) -> tuple[str, str]:
    pointer = unescaped(name)
    return pointer, unquote(pointer)


# Collections (``messagegroupsurl``) and definitions (``self``) that documents refer to by address without content.
#
# They are fetched like references, within the same limits, and inserted into the document, so that readers of the
# document see it complete. A listed definition that cannot be fetched is left out: without constraints it would match
# every event of its envelope.

MAX_DOCUMENTS: Final = 1_000
"""Most documents that are read because the sources of one load refer to them by address."""
_ENDS: Final = ("url", "uri")
_RESOURCES: Final = frozenset(f"{name}{end}" for name in ("definition", "message") for end in _ENDS)
"""The address of a definition that the registry does not store itself (RESOURCEURI of 0.5)."""
_SHOWN: Final = frozenset({"versions", "xref", "uri", "meta", "xid", "messageid"})
"""Members that, beside the format of the message, show that a definition is included and not only listed."""


@dataclass(slots=True)
class AddressFollower:
    """Reads what the documents of one load refer to. ``pending`` are the addresses that are unavailable at present."""

    fetcher: Fetcher
    findings: Findings
    pending: dict[str, None] = field(default_factory=dict)
    _documents: int = 0

    def completed(self, document: Document) -> Document:
        """Return *document* with everything it refers to by address; report and leave out what is unavailable."""
        if not isinstance(document.tree, dict) or detect(document.tree) is None or not _names(document.tree):
            return document
        assembly = Assembly(document.file, document.tree)
        assembly.mounts.update(document.mounts)
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            path = waiting.pop()
            node = assembly.at(path)
            for name, written in list(_hidden(node, len(path))):
                self._collection(assembly, (*path, name[:-3]), written, _place(document, assembly, path) / name)
            node = assembly.at(path)
            for name in [name for name in node if _kind(name, len(path)) is not None and isinstance(node[name], dict)]:
                below = [(*path, name, key) for key, each in node[name].items() if isinstance(each, dict)]
                if not path:
                    waiting.extend(below)
                elif name.lower() in spellings("messages"):
                    self._listed(document, assembly, below)
        return replace(document, tree=assembly.tree, mounts=assembly.mounts)

    def _collection(self, assembly: Assembly, path: tuple[str, ...], written: str, place: SourceLocation) -> None:
        try:
            tree, at = self._read(written, place)
            members, at = _members(tree, path, at)
            assembly.lay(path, members, at)
            assembly.mounts.update(at.mounts or {})
        except DocumentError as error:
            self._report(error, place, f"{path[-1]} at {written}")

    def _listed(self, document: Document, assembly: Assembly, paths: Sequence[tuple[str, ...]]) -> None:
        for path in paths:
            entity = assembly.at(path)
            named = _address(entity)
            if named is None:
                continue
            place = _place(document, assembly, path)
            try:
                tree, at = self._read(_reachable(entity[named], document), place / named)
                assembly.lay(path if named.lower() == "self" else (*path, "definition"), tree, at)
            except DocumentError as error:
                self._report(error, place / named, f"the definition at {entity[named]}")
                assembly.lay(path[:-1], {path[-1]: None}, place)

    def _read(self, written: str, place: SourceLocation) -> tuple[dict[str, Any], SourceLocation]:
        """Return the object at an address that is written at *place*, and its location.

        Raises:
            DocumentError: it cannot be read; ``transient`` if that may change.
        """
        address = self.fetcher.resolve(written, place.file)
        if self._documents >= MAX_DOCUMENTS:
            message = f"{address} is not read: documents refer to more than {MAX_DOCUMENTS} others"
            raise DocumentError(message, file=address, hint="give whole documents as sources")
        self._documents += 1
        document = read_document(address, self.fetcher, self.findings)
        if is_url(address) and not document.mounts and next_page(self.fetcher.answer(address).link) is not None:
            hint = "give the registry itself as a source; its pages are followed"
            raise DocumentError(f"{address} is a paginated response", file=address, hint=hint)
        tree, at = document.tree, SourceLocation(document.file, "", document.mounts)
        for key in steps_of(written.partition("#")[2]):
            tree, at = tree.get(key) if isinstance(tree, dict) else None, at / key
        if not isinstance(tree, dict):
            raise DocumentError(f"{written} is not the address of an object", file=address, hint="correct the address")
        return tree, at

    def _report(self, error: DocumentError, place: SourceLocation, what: str) -> None:
        if error.transient:
            self.pending[error.file or place.file] = None
            text = f"{what} is unavailable at present: {error}"
            self.findings.warning(place, "unreachable-reference", text, error.hint)
        elif not self.fetcher.network and is_url(error.file):
            self.findings.warning(place, "network-off", f"{what} is not read: {error}", error.hint)
        else:
            self.findings.error(place, "unreadable-document", f"{what} is not read: {error}", error.hint)


def _names(tree: Mapping[str, Any]) -> bool:
    """Whether a document refers to anything without including it; most do not."""
    if any(True for _ in _hidden(tree, 0)):
        return True
    for name, groups in tree.items():
        if _kind(name, 0) is None or not isinstance(groups, dict):
            continue
        for group in groups.values():
            if isinstance(group, dict) and (any(True for _ in _hidden(group, 2)) or _any_listed(group)):
                return True
    return False


def _any_listed(group: Mapping[str, Any]) -> bool:
    return any(
        isinstance(message, dict) and _address(message) is not None
        for name in group
        if name.lower() in spellings("messages") and isinstance(group[name], dict)
        for message in group[name].values()
    )


def _hidden(entity: Mapping[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    """Yield the members with addresses of collections that are not included under any name, with the addresses."""
    for key, address in entity.items():
        kind = _kind(key[:-3], depth) if key.lower().endswith(_ENDS) else None
        if kind is None or not isinstance(address, str) or not address or address.startswith("#"):
            continue
        shown = any(name.lower() in kind for name in entity)
        count = next((entity[name] for name in entity if name.lower() == f"{key[:-3].lower()}count"), None)
        if not shown and count != 0:
            yield key, address


def _kind(name: str, depth: int) -> frozenset[str] | None:
    """Return all names of the collection that *name* is one of; None if it is none at that depth."""
    kinds = (names_of("groups"), {"endpoints"}, {"schemagroups"}) if depth == 0 else (names_of("messages"), {"schemas"})
    return next((kind for kind in map(frozenset, kinds) if name.lower() in kind), None)


def _address(message: Mapping[str, Any]) -> str | None:
    """Return the member with the address of a definition that is only listed here; None for an included one."""
    if not any(isinstance(message.get(name), str) for name in message if name == "self" or name.lower() in _RESOURCES):
        return None
    shown = (_SHOWN | message_names()) - names_of("selectors")
    if any(name.lower() in shown for name in message):
        return None
    names = sorted((name for name in message if name.lower() in _RESOURCES), key=len) or ["self"]
    address = message.get(names[0])
    return names[0] if isinstance(address, str) and address and not address.startswith("#") else None


def _members(tree: dict[str, Any], path: Sequence[str], at: SourceLocation) -> tuple[dict[str, Any], SourceLocation]:
    """Return the collection *path* of a document: at its path, below its name, or as the whole document.

    Raises:
        DocumentError: it is none of them.
    """
    name = path[-1]
    groups = _of_kind(tree, path[0], 0)
    if len(path) > 1 and groups is not None:  # as a registry's response for one collection is assembled
        key = path[1] if path[1] in tree[groups] else next(iter(tree[groups]), "")
        if path[1] in tree[groups] or len(tree[groups]) == 1:
            group = tree[groups][key]
            member = _of_kind(group, name, 2) if isinstance(group, dict) else None
            if member is not None:
                return group[member], at / groups / key / member
    member = _of_kind(tree, name, len(path) - 1)
    if member is not None:
        return tree[member], at / member
    if groups is None and tree and all(isinstance(each, dict) for each in tree.values()):
        return tree, at
    raise DocumentError(f"{at.file} has no {name}", file=at.file, hint=f"add {name}, as a map by id")


def _reachable(address: str, document: Document) -> str:
    """Return the address of an entity of a registry at the origin that the registry was read from.

    A server behind a proxy often has the wrong name for itself; ours worked.
    """
    for own in own_address(document.tree) if is_url(document.file) else ():
        if address.startswith(f"{own.rstrip('/')}/"):
            base = urlsplit(document.file)._replace(query="", fragment="").geturl()
            return base.rstrip("/") + address.removeprefix(own.rstrip("/"))
    return address


def _of_kind(tree: Mapping[str, Any], name: str, depth: int) -> str | None:
    """Return the key of *tree* for the collection *name*, under any of its names, if it is a map."""
    kind = _kind(name, depth) or frozenset()
    return next((key for key in tree if key.lower() in kind and isinstance(tree[key], dict)), None)


def _place(document: Document, assembly: Assembly, path: Sequence[str]) -> SourceLocation:
    place = SourceLocation(document.file, "", assembly.mounts)
    for step in path:
        place = place / step
    return place


# Documents and registries outside the sources that references lead to; they are not part of the catalog.
#
# A message found there may be a base, may be borrowed, or may be a candidate through its group. Its name is the address
# of its document and its xid (``https://host/base.json#/messagegroups/G/messages/M``), so that it never conflicts with
# definitions of the catalog. The address of a local document is its path relative to the folder of the sources.

MAX_EXTERNAL_DOCUMENTS: Final = 200
"""Most documents outside the sources that one load reads."""
Declare = Callable[[Iterable[Document], Declarations, Findings], Declarations]
"""Reads documents into declarations; one that is not a catalog is reported as ``not-a-catalog``."""


@dataclass(slots=True)
class ExternalDocument:
    """One document or registry outside the sources. ``name`` is the prefix of its xids."""

    name: str
    declarations: Declarations = field(default_factory=Declarations)
    findings: Findings = field(default_factory=Findings)


class ExternalDocuments:
    """Finds, reads and caches external documents; referenced messages are declared under their long name.

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
        self._documents = 0
        folders: list[str] = []
        for document in documents:
            for address in {document.file, *document.aliases, *(place.file for place in document.mounts.values())}:
                with suppress(DocumentError):  # documents choose their alias, which may be anything
                    self._home.add(self._key(address))
            if not is_url(document.file):
                folders.append(os.path.dirname(os.path.abspath(document.file)))
        self._folder = os.path.commonpath(folders) if folders else os.path.abspath(os.curdir)

    def land_of(self, xid: str) -> ExternalDocument | None:
        """Return the document of a message or group from outside the sources; None for those of the catalog."""
        return self._of.get(xid)

    def at(self, file: str) -> Declarations | None:
        """Return the declarations of the document at *file*, if it was read from outside the sources."""
        land = self._lands.get(self._key(file))
        return land.declarations if isinstance(land, ExternalDocument) else None

    def document(self, address: str, base: str) -> ExternalDocument | None:
        """Return the document that *address*, written in the document at *base*, means; None for a source.

        Raises:
            DocumentError: it cannot be read; ``transient`` if that may change.
        """
        target = self._fetcher.resolve(address, base)
        key = self._key(target)
        if key in self._home:
            return None
        if key not in self._lands:
            self._lands[key] = self._discovered(target)
        land = self._lands[key]
        if isinstance(land, DocumentError):
            raise land.with_traceback(None)
        return land

    def registry(self, prefix: str, group: str, base: str) -> ExternalDocument | None:
        """Return the registry at *prefix*, with its *group* (``messagegroups/G``) read; None for a source.

        Raises:
            DocumentError: as :meth:`document`.
        """
        target = self._fetcher.resolve(f"{prefix}/", base).rstrip("/")
        if self._key(target) in self._home:
            return None
        if not is_url(target):
            return self.document(f"{prefix}/{INDEX}", base)
        land = self._lands.setdefault(f"{target}/", ExternalDocument(target))
        if not isinstance(land, ExternalDocument):
            raise land.with_traceback(None)
        address = f"{target}/{group}"
        if address not in self._lands:
            read = self._discovered(address, land)
            self._lands[address] = read
        known = self._lands[address]
        if isinstance(known, DocumentError):
            raise known.with_traceback(None)
        return land

    def adopt(self, land: ExternalDocument, xid: str) -> str:
        """Declare a message of *land* in the catalog, only as a target of references; return its name."""
        name = land.name + xid
        if name not in self._declarations.messages:
            self._declare_message(land, xid, hidden=True)
            self._report(land, land.declarations.messages[xid].place)
        return name

    def adopt_group(self, land: ExternalDocument, xid: str) -> str:
        """Declare a message group of *land* in the catalog, with all its messages as candidates; return its name."""
        name = land.name + xid
        if name not in self._declarations.groups:
            group = land.declarations.groups[xid]
            self._declarations.groups[name] = replace(group, xid=name)
            self._of[name] = land
            for message in land.declarations.messages.values():
                if message.group == xid:
                    self._declare_message(land, message.xid, hidden=message.hidden)
            self._report(land, group.place)
        return name

    def _declare_message(self, land: ExternalDocument, xid: str, *, hidden: bool) -> None:
        message = land.declarations.messages[xid]
        adopted = replace(message, xid=land.name + xid, group=land.name + message.group, hidden=hidden)
        self._declarations.messages[adopted.xid] = adopted
        self._of[adopted.xid] = self._of[adopted.group] = land
        home = self.group(adopted.group) or self.endpoint(adopted.group)
        if home is not None:
            self._declarations.beyond[adopted.group] = replace(home, xid=adopted.group)

    def _report(self, land: ExternalDocument, place: SourceLocation) -> None:
        """Copy the findings about what is used; others concern only the author of the document."""
        for each in land.findings.sorted():
            if each.file == place.file and f"{each.pointer}/".startswith(f"{place.pointer}/"):
                self._findings.extend((each,))

    def group(self, name: str) -> DeclaredGroup | None:
        """Return an external group by its long name, also one of which only messages were adopted."""
        land = self._of.get(name)
        return land.declarations.groups.get(name.removeprefix(land.name)) if land is not None else None

    def endpoint(self, name: str) -> DeclaredEndpoint | None:
        """Return an external endpoint by its long name."""
        land = self._of.get(name)
        return land.declarations.endpoints.get(name.removeprefix(land.name)) if land is not None else None

    def _discovered(self, address: str, land: ExternalDocument | None = None) -> ExternalDocument | DocumentError:
        """Read a document as one of its own, or as part of its registry."""
        destination = land if land is not None else ExternalDocument(f"{self.label(address)}#")
        findings = Findings()
        try:
            if self._documents >= MAX_EXTERNAL_DOCUMENTS:
                message = f"{address} is not read: references lead to more than {MAX_EXTERNAL_DOCUMENTS} documents"
                raise DocumentError(message, file=address, hint="add the documents to the sources")
            self._documents += 1
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

    def _key(self, address: str) -> str:
        """Return the canonical key of an address, however it is written."""
        absolute = self._fetcher.address(address)
        return absolute.rstrip("/") if is_url(absolute) else os.path.abspath(absolute)

    def label(self, address: str) -> str:
        """Return the address as used in names: the same wherever a folder of catalogs is stored."""
        return address if is_url(address) else os.path.relpath(os.path.abspath(address), self._folder)
