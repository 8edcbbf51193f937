"""GET: the registry, its model, collections page by page, groups, resources with their documents, and versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from bindings.http.problems import Reply
from registry.core.places import Place
from registry.core.resolving import Shown, shown_resources
from registry.core.service import Session
from registry.errors import Refusal
from registry.faces.cloudevents import answers
from registry.faces.cloudevents.model import model_of
from registry.faces.cloudevents.places import Asked
from registry.faces.cloudevents.views import Edition, Viewer
from registry.http.face import Call
from registry.http.requests import seen_before


class Reading:
    """Answers one request from what a session sees. All methods raise :class:`Refusal`."""

    def __init__(self, session: Session, call: Call, asked: Asked) -> None:
        self._session = session
        self._call = call
        self._asked = asked
        whole = asked.inline and asked.place.kind == "registry"
        self._viewer = Viewer(session, call.url, call.max_answer, whole=whole)

    def reply(self) -> Reply:
        """Return the reply; 304 to who has it already."""
        asked, kind = self._asked, self._asked.place.kind
        if kind == "registry":
            given = model_of(self._session.model) if asked.model else self._viewer.registry(inline=asked.inline)
            return answers.entity(given)
        if asked.place.is_collection:
            return self._page()
        reply = self._group() if kind == "group" else self._resource()
        tag = next((value for name, value in reply.headers if name == b"ETag"), b"").decode("ascii")
        return Reply(304, reply.headers) if reply.status == 200 and seen_before(self._call.head, tag) else reply

    def _group(self) -> Reply:
        group = self._session.reader.group(self._asked.place.xid)
        if group is None:
            raise Refusal("not_found", self._asked.place.xid)
        if self._asked.inline:  # what it holds changes without its epoch
            return answers.entity(self._viewer.group(self._asked.place, group, "whole"))
        shown = self._viewer.group(self._asked.place, group, "listed")
        return answers.entity(shown, tag=answers.tag_of(self._session, group))

    def _resource(self) -> Reply:
        asked, viewer = self._asked, self._viewer
        owner = asked.place if asked.place.kind == "resource" else asked.place.owner
        edition = viewer.edition(resource_at(self._session, owner), asked.place.vid)
        if not asked.meta:
            return answers.resource(self._session, viewer, owner, edition)
        defaults = viewer.defaults(owner)
        if asked.place.kind == "version":
            return answers.entity(viewer.version(owner, edition, defaults, inline=asked.inline))
        return answers.entity(viewer.resource(owner, edition, "nested" if asked.inline else "listed", defaults))

    def _page(self) -> Reply:
        place, asked = self._asked.place, self._asked
        members: dict[str, msgspec.Raw] = {}
        last = ""
        for name, each in self._members(place, asked.cursor):
            if len(members) == asked.limit:
                return answers.page(self._call, asked, members, last.lower(), self._count(place))
            members[name], last = self._viewer.weighed(each), name
        return answers.page(self._call, asked, members, "", 0)

    def _members(self, place: Place, after: str) -> Iterator[tuple[str, dict[str, Any]]]:
        viewer, inline = self._viewer, self._asked.inline
        if place.kind == "groups":
            return viewer.groups(place, after, "whole" if inline else "listed")
        if place.kind == "resources":
            if self._session.reader.group(place.owner.xid) is None:
                raise Refusal("not_found", place.owner.xid)
            return viewer.resources(place, after, "nested" if inline else "listed")
        return self._versions(resource_at(self._session, place.owner), place.owner, after)

    def _versions(self, shown: Shown, place: Place, after: str) -> Iterator[tuple[str, dict[str, Any]]]:
        viewer, inline = self._viewer, self._asked.inline
        defaults = viewer.defaults(place)
        if place.resource.plural == "messages" or shown.source is None:
            latest = [] if shown.default is None else [shown.default]
            versions = iter([each for each in latest if each.id.lower() > after])
        else:
            versions = self._session.reader.versions(shown.source.versions, after)
        for each in versions:
            yield each.id, viewer.version(place, Edition(shown, each), defaults, inline=inline)

    def _count(self, place: Place) -> int:
        if place.kind == "versions":
            return resource_at(self._session, place.owner).count
        return self._session.reader.count(place.xid)


def resource_at(session: Session, place: Place) -> Shown:
    """Return a resource.

    Raises:
        Refusal: ``not_found``.
    """
    shown = next(shown_resources(session.reader, place, "", place.rid), None)
    if shown is None:
        raise Refusal("not_found", place.xid)
    return shown
