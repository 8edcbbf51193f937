"""References to messages and groups: xids, JSON pointers, relative and absolute URIs, and bare names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from catalog.declared import MESSAGE_REFERENCE, DeclaredEndpoint, DeclaredGroup, DeclaredMessage
from catalog.dialects import suffixes
from catalog.documents.fetching import is_url
from catalog.errors import DocumentError
from catalog.parsing.pointers import unescaped

if TYPE_CHECKING:
    from catalog.references.abroad import Abroad, Land

_GROUP_REFERENCE: Final = re.compile(r"(?:^|[/#])(messagegroups)/([^/?#]+)/?$")


class Resolver:
    """Finds what references mean: among the things that were read, and beyond them when there is an *abroad*.

    All documents of a load share one space of xids; each document beyond them has its own.
    """

    def __init__(
        self,
        messages: Mapping[str, DeclaredMessage],
        groups: Mapping[str, DeclaredGroup],
        abroad: Abroad | None = None,
    ) -> None:
        self._messages = messages
        self._groups = groups
        self._abroad = abroad
        self._folded: dict[str, tuple[int, dict[str, str]]] = {}
        self._failures: dict[tuple[str, str], DocumentError] = {}

    def message(self, reference: str, source: str) -> str | None:
        """Return the name of the message that *reference*, written in the message *source*, means; None when dangling.

        A version that is not there means its message. A reference into a document that cannot be read means the message
        of that xid in the sources, but for *source* itself: this is no cycle.
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
            self._failures[source, reference] = DocumentError(f"{target.name} has no {xids[0]}")
        return None if known == source and target is None else known

    def group(self, reference: str, file: str = "") -> str | None:
        """Return the name of the message group that *reference*, written in *file*, means; None when there is none."""
        match = _GROUP_REFERENCE.search(reference)
        if match is None:
            return self._group_in(None, [f"/messagegroups/{reference}"]) or self._only_group(reference, file)
        group = match.group(2)
        xids = [f"/messagegroups/{name}" for name in (group, *_unescaped(group))]
        address, fragment = _document_of(reference, match)
        target: Land | None = None
        if address:
            try:
                target = self._land(address, fragment, f"messagegroups/{group}", file)
            except DocumentError as error:
                self._failures[file, reference] = error
        known = self._group_in(target, xids)
        if known is None and target is not None:
            self._failures[file, reference] = DocumentError(f"{target.name} has no {xids[0]}")
        return known

    def failure(self, reference: str, source: str) -> DocumentError | None:
        """Return why the document of a reference could not be read; *source* is the message, or a group's file."""
        return self._failures.get((source, reference))

    def declared_group(self, name: str) -> DeclaredGroup | None:
        """Return a message group, of the sources or beyond."""
        return self._groups.get(name) or (self._abroad.group(name) if self._abroad is not None else None)

    def endpoint_beyond(self, name: str) -> DeclaredEndpoint | None:
        """Return an endpoint of a document beyond the sources."""
        return self._abroad.endpoint(name) if self._abroad is not None else None

    def _land(self, address: str, fragment: bool, group: str, file: str) -> Land | None:
        """Return the land of a reference; None for the sources.

        Raises:
            DocumentError: it cannot be read.
        """
        if self._abroad is None:
            return None
        return self._abroad.document(address, file) if fragment else self._abroad.registry(address, group, file)

    def _message_in(self, land: Land | None, xids: Iterable[str]) -> str | None:
        if land is None or self._abroad is None:
            return self._known("", self._messages, xids)
        known = self._known(land.name, land.declarations.messages, xids)
        return None if known is None else self._abroad.adopt(land, known)

    def _group_in(self, land: Land | None, xids: Iterable[str]) -> str | None:
        if land is None or self._abroad is None:
            return self._known("groups", self._groups, xids)
        known = self._known(f"groups {land.name}", land.declarations.groups, xids)
        return None if known is None else self._abroad.adopt_group(land, known)

    def _only_group(self, reference: str, file: str) -> str | None:
        """Return the group of a document that is referred to as a whole, and has one group."""
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
        """Return the first of *xids* that is there, with regard to case or else without: ids are unique so."""
        wanted = list(xids)
        for xid in wanted:
            if xid in things:
                return xid
        size, folded = self._folded.get(space, (0, {}))
        if size < len(things):  # things that came from abroad are found by their exact names only
            folded = {known.lower(): known for known in things if known.startswith("/")}
            self._folded[space] = (len(things), folded)
        return next((folded[xid.lower()] for xid in wanted if xid.lower() in folded), None)


def _document_of(reference: str, match: re.Match[str]) -> tuple[str, bool]:
    """Return what a reference says before the xid, and whether that is a document or a registry; empty for its own."""
    lead = reference[: match.start(1)]
    address, fragment, _ = lead.partition("#")
    if fragment:
        return address, True
    prefix = address.rstrip("$").rstrip("/")
    return ("", False) if prefix in ("", ".") else (prefix, False)


def _siblings(reference: str, source: str, land: Land | None) -> list[str]:
    """Return the xid that a bare name means: a message beside *source*."""
    name = reference.rsplit("/", 1)[-1].lstrip("#")
    plain = re.fullmatch(r"(?:\.\.?/)*(?:messages/)?[^/?#:]+", reference)
    xid = source.removeprefix(land.name) if land is not None else source
    return [f"{xid.split('/messages/', 1)[0]}/messages/{name}"] if plain and name else []


def _spellings(kind: str, group: str, message: str, version: str | None) -> list[str]:
    """Give the xids a reference may mean: as written, then unescaped as a pointer or URI; versions first."""
    xids: list[str] = []
    for names in ((group, message), *zip(_unescaped(group), _unescaped(message), strict=True)):
        xid = f"/{kind}/{names[0]}/messages/{names[1]}"
        xids.extend([f"{xid}/versions/{version}", xid] if version else [xid])
    return xids


def _unescaped(name: str) -> tuple[str, str]:
    pointer = unescaped(name)
    return pointer, unquote(pointer)
