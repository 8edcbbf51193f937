"""DELETE: one entity, those that a list names, or all of a collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bindings.http.problems import Reply
from registry.core.places import Place
from registry.core.service import Session
from registry.errors import Refusal
from registry.faces.cloudevents import answers, headers
from registry.faces.cloudevents.bodies import list_of
from registry.faces.cloudevents.places import Asked
from registry.faces.cloudevents.reading import resource_at
from registry.faces.cloudevents.requesting import Requester, check_epoch, compare
from registry.faces.cloudevents.views import Edition, Viewer
from registry.http.face import Call


class Deleting:
    """Carries one DELETE out. All methods raise :class:`Refusal`; nothing has changed then."""

    def __init__(self, session: Session, call: Call, asked: Asked) -> None:
        self._session = session
        self._call = call
        self._asked = asked
        self._requester = Requester(session, call)
        self._viewer = Viewer(session, call.url, call.max_answer)

    def reply(self) -> Reply:
        """Do it, and return what the entities were."""
        place = self._asked.place
        if place.is_collection:
            return self._several(place)
        if place.kind == "group":
            return self._group(place)
        owner = place if place.kind == "resource" else place.owner
        edition = self._viewer.edition(resource_at(self._session, owner), place.vid)
        said: Mapping[str, Any] = headers.given(self._call.head, place.xid)
        tag = answers.tag_of(self._session, edition)
        self._requester.hold(tag, edition.epoch, place, self._asked.epoch, said.get("epoch"))
        if place.kind == "version":
            self._keep_one(owner, {place.vid})
        reply = answers.resource(self._session, self._viewer, owner, edition, redirect=False)
        self._requester.perform("delete", place)
        return reply

    def _group(self, place: Place) -> Reply:
        group = self._session.reader.group(place.xid)
        if group is None:
            raise Refusal("not_found", place.xid)
        self._requester.hold(answers.tag_of(self._session, group), group.epoch, place, self._asked.epoch)
        shown = self._viewer.group(place, group, "listed")
        self._requester.perform("delete", place)
        return answers.entity(shown)

    def _several(self, place: Place) -> Reply:
        given = list_of(self._call, place.xid)
        if place.kind == "versions":
            return self._versions(place, given)
        if place.kind == "resources" and self._session.reader.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)
        if given is None:
            self._requester.perform("delete", place)
            return Reply(204)
        shown = dict(self._one(place, each) for each in given)
        self._requester.perform("delete", place, {name: {} for name in shown})
        return answers.entity(shown)

    def _one(self, place: Place, given: Mapping[str, Any]) -> tuple[str, msgspec.Raw]:
        """Return the id of an entity of a list, and what it is, which is known to whoever wants it deleted."""
        name = given.get("id")
        if not isinstance(name, str):
            raise Refusal("bad_request", place.xid, error_detail="each object of the list needs an id")
        where = place.child(name)
        if place.kind == "groups":
            group = self._session.reader.group(where.xid)
            if group is None:
                raise Refusal("not_found", where.xid)
            check_epoch(group.epoch, where.xid, given.get("epoch"))
            return name, self._viewer.weighed(self._viewer.group(where, group, "listed"))
        edition = self._viewer.edition(resource_at(self._session, where))
        check_epoch(edition.epoch, where.xid, given.get("epoch"))
        defaults = self._viewer.defaults(where)
        return name, self._viewer.weighed(self._viewer.resource(where, edition, "listed", defaults))

    def _versions(self, place: Place, given: list[Mapping[str, Any]] | None) -> Reply:
        owner = place.owner
        latest = self._viewer.edition(resource_at(self._session, owner))
        if given is None:
            others = self._names(owner, latest) - {latest.version.id if latest.version is not None else ""}
            if others:
                self._requester.perform("delete", place, {name: {} for name in sorted(others)})
            return Reply(204)
        shown: dict[str, Any] = {}
        for each in given:
            name = str(each.get("version") if each.get("version") is not None else each.get("id"))
            compare(each, "id", owner.xid, owner.rid, name)
            edition = self._viewer.edition(latest.shown, name)
            check_epoch(edition.epoch, f"{owner.xid}/versions/{name}", each.get("epoch"))
            shown[name] = self._viewer.version(owner, edition, self._viewer.defaults(owner), inline=False)
        self._keep_one(owner, set(shown))
        if shown:
            self._requester.perform("delete", place, {name: {} for name in shown})
        return answers.entity(shown)

    def _keep_one(self, place: Place, names: set[str]) -> None:
        """Make sure that a resource keeps a version; of a definition there is none but the latest."""
        if names >= self._names(place, self._viewer.edition(resource_at(self._session, place))):
            why = "a resource keeps one version; delete the resource itself"
            raise Refusal("bad_request", place.xid, error_detail=why)

    def _names(self, place: Place, edition: Edition) -> set[str]:
        source = edition.shown.source
        if place.resource.plural == "messages" or source is None:
            return {edition.version.id} if edition.version is not None else set()
        return {each.id for each in self._session.reader.versions(source.versions)}
