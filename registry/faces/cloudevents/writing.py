"""What all POSTs and PUTs have in common: what is there is looked up, held against what the sender knows, and shown."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from bindings.http.problems import Reply
from registry.core.places import Place, check_id
from registry.core.resolving import Shown, shown_resources
from registry.core.service import Session
from registry.errors import Refusal
from registry.faces.cloudevents import answers, headers
from registry.faces.cloudevents.names import Links, older_path
from registry.faces.cloudevents.places import Asked
from registry.faces.cloudevents.reading import resource_at
from registry.faces.cloudevents.requesting import Requester, compare
from registry.faces.cloudevents.views import Edition, Viewer
from registry.http.face import Call


class Writing:
    """One POST or PUT. All methods raise :class:`Refusal`; nothing has changed then."""

    def __init__(self, session: Session, call: Call, asked: Asked) -> None:
        self.session: Final = session
        self.call: Final = call
        self.asked: Final = asked
        self.links: Final = Links(call.url)
        self.requester: Final = Requester(session, call)
        self.viewer: Final = Viewer(session, call.url, call.max_answer)

    @property
    def adding(self) -> bool:
        """Whether it is a POST."""
        return self.call.head.method == "POST"

    @property
    def owner(self) -> Place:
        """The resource that the request is directed at, or at a version of."""
        place = self.asked.place
        return place if place.kind == "resource" else place.owner

    def headers(self) -> dict[str, str | None]:
        """Return what the headers say, None for what is to be taken away."""
        return headers.given(self.call.head, self.asked.path)

    def there(self, place: Place) -> Shown | None:
        """Return a resource, None when there is none."""
        return next(shown_resources(self.session.reader, place, "", place.rid), None)

    def fresh(self, place: Place, name: object) -> Place:
        """Return the place of a new entity of a collection, by its id or one of ours."""
        if place.kind == "resources":
            self.housed(place)
        where = place.child(check_id(name if name is not None else str(uuid.uuid4()), place.xid))
        reader = self.session.reader
        if (reader.group if place.kind == "groups" else reader.resource)(where.xid) is not None:
            raise Refusal("conflict", where.xid, error_detail="it exists already")
        self.requester.absent(where, self.asked.epoch)
        return where

    def housed(self, place: Place) -> None:
        """Make sure that the group of a new resource is there."""
        if self.session.reader.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)

    def check(self, place: Place, edition: Edition, tree: Mapping[str, Any]) -> None:
        """Compare what a request knows of a resource with what is there; it cannot know the number of a new version."""
        if self.adding and tree.get("version") is not None:
            why = "the registry gives a new version its number"
            raise Refusal("extra_xregistry_header", place.xid, name="Registry-version", error_detail=why)
        if edition.version is not None:
            compare(tree, "version", place.xid, edition.version.id)
        tag = answers.tag_of(self.session, edition)
        self.requester.hold(tag, edition.epoch, place, self.asked.epoch, tree.get("epoch"))

    def resource(self, place: Place, status: int, name: str = "") -> Reply:
        """Return the reply that shows a resource as it became, or one version of it."""
        edition = self.viewer.edition(resource_at(self.session, place), name)
        more = self.fields(place, status)
        if not self.asked.meta:
            return answers.resource(self.session, self.viewer, place, edition, status, more, redirect=False)
        defaults = self.viewer.defaults(place)
        if name:
            return answers.entity(self.viewer.version(place, edition, defaults, inline=False), status, more)
        return answers.entity(self.viewer.resource(place, edition, "listed", defaults), status, more)

    def fields(self, place: Place, status: int) -> list[tuple[bytes, bytes]]:
        """Return the headers of a reply: what lint says, and where a new entity is."""
        location = f"{self.call.url}{older_path(place.xid)}".encode("ascii")
        return [*self.requester.findings, *([(b"Location", location)] if status == 201 else [])]
