"""What is read of a message catalog: lists page by page, groups, definitions and versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from registry.core.lineage import rank
from registry.core.requests import ResourcePath, place_of
from registry.core.service import RegistrySession
from registry.core.views import ShownResource, shown_resources
from registry.errors import Refusal
from registry.faces.messagecatalog.documents import shown_definition, shown_group, shown_version
from registry.http.requests import decoded_request as decoded
from registry.store.entities import GroupEntity, Version

# Places of a message catalog: its paths (section 4.1), and the URIs of versions (section 2.2.2).

Kind = Literal["catalog", "group", "definitions", "definition", "versions", "version"]
GROUPS: Final = "messagegroups"
MESSAGES: Final = "messages"
DEFINITIONS: Final = "messagedefinitions"
VERSIONS: Final = "versions"
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2}){1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CatalogPath:
    """What a path names; ids are '' where it is not so deep."""

    kind: Kind
    group: str = ""
    definition: str = ""
    version: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """The path in the core API."""
        named: tuple[str, ...] = (GROUPS,)
        if self.group:
            named = (*named, self.group)
        if self.kind == "definitions" or self.definition:
            named = (*named, MESSAGES)
        if self.definition:
            named = (*named, self.definition)
        if self.kind in ("versions", "version"):
            named = (*named, VERSIONS)
        return (*named, self.version) if self.version else named

    @property
    def xid(self) -> str:
        """The xid in the core API, that of a collection included."""
        return "/" + "/".join(self.segments)

    @property
    def path(self) -> str:
        """The path below the catalog, which begins with a slash where there is one."""
        parts = [self.group]
        if self.kind != "group" and self.group:
            parts.append(DEFINITIONS)
        parts.append(self.definition)
        if self.kind in ("versions", "version"):
            parts.append(VERSIONS)
        parts.append(self.version)
        return "".join(f"/{quote(part, safe='@:!$&()*+,;=~')}" for part in parts if part)

    def below(self, kind: Kind, *, definition: str = "", version: str = "") -> CatalogPath:
        """Return a place further down, in the same group."""
        return CatalogPath(kind, self.group, definition or self.definition, version)


def target_of(path: bytes) -> CatalogPath:
    """Read the raw path below the catalog.

    Raises:
        Refusal: there is nothing like it.
    """
    text = decoded(path, "/")
    parts = [decoded(part, text) for part in path.split(b"/")]
    if parts and not parts[0]:
        parts = parts[1:]
    if parts and not parts[-1]:
        parts = parts[:-1]
    if not parts:
        return CatalogPath("catalog")
    if not all(parts) or len(parts) > 5 or any("/" in part for part in parts):
        raise Refusal("api_not_found", text)
    if len(parts) == 1:
        return CatalogPath("group", parts[0])
    if parts[1] != DEFINITIONS or (len(parts) > 3 and parts[3] != VERSIONS):
        raise Refusal("api_not_found", text)
    kinds: tuple[Kind, ...] = ("definitions", "definition", "versions", "version")
    return CatalogPath(kinds[len(parts) - 2], parts[0], *parts[2:3], *parts[4:5])


def check_new_id(name: object, subject: str) -> str:
    """Return the id of something new.

    Raises:
        Refusal: it is no ``segment-nz-nc`` of RFC 3986; the core says what else it cannot be.
    """
    if not isinstance(name, str) or not _SEGMENT.fullmatch(name):
        why = "it needs to be a segment without colon of RFC 3986, of at most 128 characters"
        raise Refusal("malformed_id", subject, id=str(name), error_detail=why)
    return name


def split_uri(uri: str) -> tuple[str, CatalogPath] | None:
    """Return the authority and the place that a version's URI is made of; None when it is none."""
    head, marker, tail = uri.rpartition(f"/{DEFINITIONS}/")
    parts = tail.split("/")
    cut = max(head.rfind("/"), head.rfind(":") if head.lower().startswith("urn:") else -1)
    if not marker or cut <= 0 or not head[cut + 1 :]:
        return None
    try:
        target = target_of(f"/{head[cut + 1 :]}/{DEFINITIONS}/{tail}".encode())
    except Refusal:
        return None
    return (head[:cut], target) if len(parts) in (1, 3) and target.kind in ("definition", "version") else None


FILTERS: Final = ("id", "format", "description", "tags", "authority", "relatedto", "relation")
"""Attributes by whose value lists are filtered, as query parameters of their names."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """How many entries, after which one, with which values; ``weight`` bounds what they take as JSON."""

    limit: int
    after: str
    wanted: Mapping[str, str]
    weight: int


@dataclass(frozen=True, slots=True)
class Representation:
    """What an answer shows, and its ETag ('' without one). ``after`` is where the next page begins, '' for nowhere."""

    body: Any
    etag: str = ""
    after: str = ""


class CatalogReader:
    """Reads within one transaction; *authority* is that of definitions that name none. All methods raise Refusal."""

    def __init__(self, session: RegistrySession, authority: str) -> None:
        self._session = session
        self._reader = session.reader
        self._authority = authority

    def groups(self, page: ListRequest, *, whole: bool) -> Representation:
        """List groups, with *whole* each with all its definitions."""
        left = _Weight(page.weight)
        show = (lambda each: self._whole_group(each, left)) if whole else shown_group
        entries = ((each.id, show(each)) for each in self._reader.groups(f"/{GROUPS}", page.after))
        return _listed(entries, page, left, "/")

    def group(self, target: CatalogPath, weight: int, *, whole: bool) -> Representation:
        """Show a group, with *whole* with all its definitions."""
        group = self.group_of(target)
        if whole:
            return Representation(self._whole_group(group, _Weight(weight)))
        return Representation(shown_group(group), f'"{group.epoch}"')

    def definitions(self, target: CatalogPath, page: ListRequest) -> Representation:
        """List the latest versions of a group's definitions."""
        group = self.group_of(target)
        left = _Weight(page.weight)
        entries = (
            (each.resource.id, shown_version(each.resource.id, latest, group, self._authority))
            for each in shown_resources(self._reader, self._place(target.below("definitions")), page.after)
            if (latest := self._latest(each)) is not None
        )
        return _listed(entries, page, left, target.path)

    def definition(self, target: CatalogPath, weight: int, *, whole: bool) -> Representation:
        """Show the latest version of a definition, with *whole* the definition with all its versions."""
        group, shown = self.group_of(target), self.shown(target)
        latest = self._latest(shown)
        if latest is None or shown.source is None:
            raise Refusal("not_found", target.path)
        if whole:
            return Representation(self._whole(shown, group, _Weight(weight)))
        body = shown_version(target.definition, latest, group, self._authority)
        return Representation(body, f'"{shown.source.epoch}-{latest.epoch}"')

    def versions(self, target: CatalogPath, page: ListRequest) -> Representation:
        """List the versions of a definition, by their numbers."""
        group, shown = self.group_of(target), self.shown(target)
        listed = self._versions(shown)
        start = next((at for at, each in enumerate(listed, 1) if each.id == page.after), 0) if page.after else 0
        entries = ((each.id, shown_version(target.definition, each, group, self._authority)) for each in listed[start:])
        return _listed(entries, page, _Weight(page.weight), target.path, folded=False)

    def version(self, target: CatalogPath) -> Representation:
        """Show one version."""
        group, shown = self.group_of(target), self.shown(target)
        version = (
            self._reader.version(f"{shown.source.versions}/{target.version}") if shown.source is not None else None
        )
        if version is None:
            raise Refusal("not_found", target.path)
        return Representation(shown_version(target.definition, version, group, self._authority), f'"{version.epoch}"')

    def shown(self, target: CatalogPath) -> ShownResource:
        """Return a definition with what it may borrow from another."""
        place = self._place(target.below("definitions"))
        shown = next(shown_resources(self._reader, place, "", target.definition), None)
        if shown is None:
            raise Refusal("not_found", target.path)
        return shown

    def group_of(self, target: CatalogPath) -> GroupEntity:
        """Return the group of a path.

        Raises:
            Refusal: it is not there.
        """
        group = self._reader.group(f"/{GROUPS}/{target.group}")
        if group is None:
            raise Refusal("not_found", f"/{target.group}")
        return group

    def latest(self, target: CatalogPath) -> Version | None:
        """Return the latest version of a definition, None when there is no such definition."""
        try:
            return self._latest(self.shown(target))
        except Refusal:
            return None

    def formats(self, target: CatalogPath) -> Iterator[str]:
        """Yield the formats of the latest versions of a group's definitions."""
        group = self.group_of(target)
        for each in shown_resources(self._reader, self._place(target.below("definitions"))):
            latest = self._latest(each)
            if latest is not None:
                yield str(shown_version(each.resource.id, latest, group, self._authority).get("format", ""))

    def _place(self, target: CatalogPath) -> ResourcePath:
        return place_of(self._session.model, target.segments, target.path)

    def _versions(self, shown: ShownResource) -> list[Version]:
        if shown.source is None:
            return []
        return sorted(self._reader.versions(shown.source.versions), key=lambda each: rank(each.id))

    def _latest(self, shown: ShownResource) -> Version | None:
        """Return the latest version, which need not be the default one of the core."""
        if shown.count < 2:
            return shown.default
        return self._versions(shown)[-1]

    def _whole(self, shown: ShownResource, group: GroupEntity, left: _Weight) -> dict[str, Any]:
        versions = self._versions(shown)
        texts = [shown_version(shown.resource.id, each, group, self._authority) for each in versions]
        definition = shown_definition(texts)
        left.take(definition, f"/{group.id}/{DEFINITIONS}/{shown.resource.id}")
        return definition

    def _whole_group(self, group: GroupEntity, left: _Weight) -> dict[str, Any]:
        target = CatalogPath("definitions", group.id)
        definitions = [
            self._whole(each, group, left)
            for each in shown_resources(self._reader, self._place(target))
            if each.default is not None
        ]
        return {**shown_group(group), "definitions": definitions}


class _Weight:
    """Bounds what one answer takes."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, entry: Any, path: str) -> None:
        self._left -= len(msgspec.json.encode(entry))
        if self._left < 0:
            raise Refusal("too_large", path)


def _listed(
    entries: Iterator[tuple[str, dict[str, Any]]], page: ListRequest, left: _Weight, path: str, *, folded: bool = True
) -> Representation:
    def fits(each: Mapping[str, Any]) -> bool:
        return all(str(each.get(name, "")) == value for name, value in page.wanted.items())

    chosen = list(islice(((name, each) for name, each in entries if fits(each)), page.limit + 1))
    shown = chosen[: page.limit]
    for _, each in shown:
        left.take(each, path)
    last = shown[-1][0] if len(chosen) > page.limit else ""
    return Representation([each for _, each in shown], after=last.lower() if folded else last)
