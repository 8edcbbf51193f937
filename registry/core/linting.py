"""What the catalog's own readers and lint say of a write: over what it touches, and what that refers to.

A registry may have more definitions than lint could go through at every write. So the document that is looked at has
the touched entities whole, those that they refer to, and the groups of both without the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection

from catalog.documents.documents import Document
from catalog.documents.fetching import Fetcher, HttpResponse
from catalog.errors import DocumentError
from catalog.findings import Declarations, Findings
from catalog.linting.attributes import refusing
from catalog.load import build
from catalog.model import Finding
from catalog.parsing.pointers import unescaped
from registry.core.requests import ResourcePath, place_of
from registry.core.views import ALL, NONE, EntityView, Inline, ShownResource, View, shown_resources
from registry.errors import Refusal
from registry.model.types import Model
from registry.store.entities import Work

Strictness = Literal["refuse", "report", "off"]
MAX_REFERRED: Final = 1000
"""Entities that are looked at only because others refer to them."""
_NAMES: Final = frozenset(
    ("basemessage", "basemessageuri", "basemessageurl", "dataschemauri", "dataschemaxid", "messagegroups")
)
_FILE: Final = "registry"
_META: Final[Inline] = {"meta": {}}


class Linter:
    """Lints what writes make: ``refuse`` lets no write make an error (but of an idle rule); ``report`` reports all."""

    def __init__(self, strictness: Strictness = "refuse") -> None:
        self._strictness = strictness

    def look(self, work: Work, model: Model, path: str) -> tuple[Mapping[str, str], ...]:
        """Return the findings about what a write has touched; the write was flushed, and may still be undone.

        Raises:
            Refusal: ``findings``: there are errors among them.
        """
        touched = _touched(work)
        if self._strictness == "off" or not touched:
            return ()
        tree = _Tree(work, model, touched).tree
        findings = [each for each in _findings(tree) if _within(each, touched)]
        errors = refusing(findings)
        # What is named may be written next: until then that is no error of this write.
        idle = {each for each in findings if each.severity == "error"}.difference(errors)
        shown = tuple(_shown(replace(each, severity="warning") if each in idle else each) for each in findings)
        if errors and self._strictness == "refuse":
            first = errors[0]
            raise Refusal("findings", path, more={"findings": shown}, error_detail=f"{first.pointer}: {first.message}")
        return shown


class _Offline(Fetcher):
    """Fetches nothing: clients must not read the network or this machine's files through the registry."""

    whole = False

    def __init__(self) -> None:
        super().__init__(network=False)

    def answer(self, uri: str | Path) -> HttpResponse:
        raise DocumentError(f"{uri} is not looked at here", file=str(uri), transient=True)

    def files(self, folder: str | Path) -> list[Path]:
        return []


class _Tree:
    """Builds the document."""

    def __init__(self, work: Work, model: Model, touched: set[str]) -> None:
        self.tree: dict[str, Any] = {"specversion": "1.0-rc4"}
        self._work = work
        self._model = model
        self._viewer = EntityView(work.reader, model, View("", doc=True, max_answer=sys.maxsize))
        self._left = MAX_REFERRED
        self._versions: dict[str, set[str]] = {}
        for xid in work.versions.touched:
            owner, _, name = xid.rsplit("/", 2)
            self._versions.setdefault(owner, set()).add(name)
        self._waiting = sorted(touched)
        self._seen = set(self._waiting)
        while self._waiting:
            self._add(self._waiting.pop())

    def _add(self, xid: str) -> None:
        try:
            place = place_of(self._model, xid.split("/")[1:], xid)
        except Refusal:
            return
        if place.kind == "group":
            self._group(place)
        elif place.kind == "resource":
            group = self._group(place.owner)
            shown = next(iter(shown_resources(self._work.reader, place, "", place.rid)), None)
            entity = shown and self._viewer.resource(place, shown, _META, None, xid)
            if group is not None and shown and entity:
                if "versionsurl" in entity:
                    entity["versions"] = self._shown_versions(place, shown)
                # Views hold finished text where they nest.
                tree = msgspec.json.decode(msgspec.json.encode(entity))
                group.setdefault(place.resource.plural, {})[place.rid] = tree
                self._refer(tree)

    def _shown_versions(self, place: ResourcePath, shown: ShownResource) -> dict[str, Any]:
        """Show the versions that a look needs: a resource may have a thousand that nothing here concerns."""
        names = self._versions.get(place.xid, set())
        if shown.default is not None:
            names = names | {shown.default.id}
        where = place.collection("versions")
        return self._viewer.entities(where, sorted(names), ALL, f"{where.xid}")

    def _group(self, place: ResourcePath) -> dict[str, Any] | None:
        members: dict[str, Any] = self.tree.setdefault(place.group.plural, {})
        if place.gid not in members:
            entity = self._work.reader.group(place.xid)
            shown = entity and self._viewer.group(place, entity, NONE, None, place.xid)
            if not isinstance(shown, dict):
                return None
            members[place.gid] = shown
            self._refer(shown)
        group: dict[str, Any] = members[place.gid]
        return group

    def _refer(self, entity: Mapping[str, Any]) -> None:
        """Take in what an entity refers to within this registry."""
        for reference in _references(entity):
            parts = reference.removeprefix("#").split("/")
            xid = "/".join(parts[:5])
            named = {unescaped(parts[6].partition(":")[0])} if len(parts) > 6 and parts[5] == "versions" else set()
            known = self._versions.setdefault(xid, set())
            is_new = xid not in self._seen or not named <= known
            known |= named
            if is_new and xid.startswith("/") and self._left:
                self._left -= 1
                self._seen.add(xid)
                self._waiting.append(xid)


def _touched(work: Work) -> set[str]:
    groups = {xid for xid in work.groups.touched if work.groups.now[xid] is not None}
    resources = {xid for xid in work.resources.touched if work.resources.now[xid] is not None}
    owners = {xid.rsplit("/", 2)[0] for xid in work.versions.touched}
    return groups | resources | {xid for xid in owners if work.resources.now.get(xid) is not None}


def _references(entity: Any) -> Iterator[str]:
    if isinstance(entity, Mapping):
        for name, value in entity.items():
            if name in _NAMES:
                given = value if isinstance(value, list) else [value]
                yield from (each for each in given if isinstance(each, str))
            elif name in ("versions", *(entity if "versionid" not in entity else ())):
                yield from _references(value)


def _findings(tree: dict[str, Any]) -> tuple[Finding, ...]:
    return build([Document(_FILE, tree)], Findings(), fetcher=_Offline()).findings


def _within(finding: Finding, touched: set[str]) -> bool:
    parts = finding.pointer.split("/")
    return "/".join(parts[:3]) in touched if len(parts) < 5 else "/".join(parts[:5]) in touched


def _shown(finding: Finding) -> dict[str, str]:
    place = {"severity": finding.severity, "rule": finding.rule, "place": finding.pointer}
    return {**place, "message": finding.message, "hint": finding.hint}


class Surroundings:
    """Entities as the catalog's readers see them, with what they refer to: ``catalog`` is made of all of it."""

    def __init__(self, connection: Connection, model: Model, xids: set[str]) -> None:
        self._xids = xids
        self.declarations: Final = Declarations()
        tree = _Tree(Work(connection), model, xids).tree
        self.catalog: Final = build([Document(_FILE, tree)], Findings(), self.declarations, _Offline())

    @property
    def findings(self) -> tuple[Mapping[str, str], ...]:
        """What lint says of those entities alone."""
        return tuple(_shown(each) for each in self.catalog.findings if _within(each, self._xids))
