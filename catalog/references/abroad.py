"""What references lead to beyond the sources: documents and registries that are looked into, and are not the catalog.

A message found there may be a base, may be borrowed, or may be a candidate through its group. Its name is the address
of its document and its xid (``https://host/base.json#/messagegroups/G/messages/M``), so that it never clashes with a
definition of the catalog. The address of a local document is its path from the folder of the sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from catalog.declared import Declarations, DeclaredEndpoint, DeclaredGroup, Place
from catalog.documents.documents import Document, read_document
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.splitfiles import INDEX
from catalog.errors import DocumentError
from catalog.findings import Findings
from catalog.references.following import Following

MAX_DOCUMENTS: Final = 200
"""Documents beyond the sources that one load looks into."""
Declare = Callable[[Iterable[Document], Declarations, Findings], Declarations]
"""Reads documents into declarations; one that is no catalog is reported as ``not-a-catalog``."""


@dataclass(slots=True)
class Land:
    """One document or registry beyond the sources. ``name`` is what its xids are prefixed with."""

    name: str
    declarations: Declarations = field(default_factory=Declarations)
    findings: Findings = field(default_factory=Findings)


class Abroad:
    """Finds, reads and remembers lands; messages that are referred to become declared messages under their long name.

    ``pending`` are the addresses that could not be reached for now.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        declarations: Declarations,
        fetcher: Fetcher,
        findings: Findings,
        declare: Declare,
        following: Following,
    ) -> None:
        self.pending: dict[str, None] = {}
        self._declarations = declarations
        self._fetcher = fetcher
        self._findings = findings
        self._declare = declare
        self._following = following
        self._home: set[str] = set()
        self._lands: dict[str, Land | DocumentError] = {}
        self._of: dict[str, Land] = {}
        self._documents = 0
        folders: list[str] = []
        for document in documents:
            for address in {document.file, *document.aliases, *(place.file for place in document.mounts.values())}:
                with suppress(DocumentError):  # an alias is what a document says of itself, and may be anything
                    self._home.add(self._key(address))
            if not is_url(document.file):
                folders.append(os.path.dirname(os.path.abspath(document.file)))
        self._folder = os.path.commonpath(folders) if folders else os.path.abspath(os.curdir)

    def land_of(self, xid: str) -> Land | None:
        """Return the land of a message or group that came from one; None for those of the catalog."""
        return self._of.get(xid)

    def at(self, file: str) -> Declarations | None:
        """Return what the document at *file* declares, if it is one that was read beyond the sources."""
        land = self._lands.get(self._key(file))
        return land.declarations if isinstance(land, Land) else None

    def document(self, address: str, base: str) -> Land | None:
        """Return the land of the document that *address*, written in the document at *base*, means; None for a source.

        Raises:
            DocumentError: it cannot be read; ``transient`` when that may change.
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

    def registry(self, prefix: str, group: str, base: str) -> Land | None:
        """Return the land of the registry at *prefix*, with its *group* (``messagegroups/G``) read; None for a source.

        Raises:
            DocumentError: as :meth:`document`.
        """
        target = self._fetcher.resolve(f"{prefix}/", base).rstrip("/")
        if self._key(target) in self._home:
            return None
        if not is_url(target):
            return self.document(f"{prefix}/{INDEX}", base)
        land = self._lands.setdefault(f"{target}/", Land(target))
        if not isinstance(land, Land):
            raise land.with_traceback(None)
        address = f"{target}/{group}"
        if address not in self._lands:
            read = self._discovered(address, land)
            self._lands[address] = read
        known = self._lands[address]
        if isinstance(known, DocumentError):
            raise known.with_traceback(None)
        return land

    def adopt(self, land: Land, xid: str) -> str:
        """Declare a message of *land* in the catalog, as a mere target of references; return its name."""
        name = land.name + xid
        if name not in self._declarations.messages:
            self._declare_message(land, xid, hidden=True)
            self._report(land, land.declarations.messages[xid].place)
        return name

    def adopt_group(self, land: Land, xid: str) -> str:
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

    def _declare_message(self, land: Land, xid: str, *, hidden: bool) -> None:
        message = land.declarations.messages[xid]
        adopted = replace(message, xid=land.name + xid, group=land.name + message.group, hidden=hidden)
        self._declarations.messages[adopted.xid] = adopted
        self._of[adopted.xid] = self._of[adopted.group] = land
        home = self.group(adopted.group) or self.endpoint(adopted.group)
        if home is not None:
            self._declarations.beyond[adopted.group] = replace(home, xid=adopted.group)

    def _report(self, land: Land, place: Place) -> None:
        """Take over what there is to say about something that is used; the rest is the matter of who wrote it."""
        for each in land.findings.sorted():
            if each.file == place.file and f"{each.pointer}/".startswith(f"{place.pointer}/"):
                self._findings.extend((each,))

    def group(self, name: str) -> DeclaredGroup | None:
        """Return the group of a land by its long name, also one of which only messages were adopted."""
        land = self._of.get(name)
        return land.declarations.groups.get(name.removeprefix(land.name)) if land is not None else None

    def endpoint(self, name: str) -> DeclaredEndpoint | None:
        """Return the endpoint of a land by its long name."""
        land = self._of.get(name)
        return land.declarations.endpoints.get(name.removeprefix(land.name)) if land is not None else None

    def _discovered(self, address: str, land: Land | None = None) -> Land | DocumentError:
        """Read a document as a land of its own, or into that of its registry."""
        destination = land if land is not None else Land(f"{self.label(address)}#")
        findings = Findings()
        try:
            if self._documents >= MAX_DOCUMENTS:
                message = f"{address} is not looked into: references lead to more than {MAX_DOCUMENTS} documents"
                raise DocumentError(message, file=address, hint="add the documents to the sources")
            self._documents += 1
            document = self._following.completed(read_document(address, self._fetcher, findings))
            self._declare([document], destination.declarations, findings)
            if any(each.rule == "not-a-catalog" for each in findings.sorted()):
                hint = "refer to a document with messagegroups or endpoints"
                raise DocumentError(f"{address} is no xRegistry document", file=address, hint=hint)
        except DocumentError as error:
            if error.transient:
                self.pending[error.file or address] = None
            return error
        destination.findings.extend(findings.sorted())
        return destination

    def _key(self, address: str) -> str:
        """Return the one key of an address, however it is written."""
        absolute = self._fetcher.address(address)
        return absolute.rstrip("/") if is_url(absolute) else os.path.abspath(absolute)

    def label(self, address: str) -> str:
        """Return the address as names have it: the same wherever a folder of catalogs is put."""
        return address if is_url(address) else os.path.relpath(os.path.abspath(address), self._folder)
