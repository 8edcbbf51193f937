"""The face itself: requests read, carried out in one transaction, and refusals reported under older names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bindings.http.problems import Reply
from bindings.http.request import Head
from registry.core.service import RegistryService, Session
from registry.errors import Refusal
from registry.faces.cloudevents import answers
from registry.faces.cloudevents.definitions import DefinitionWriting
from registry.faces.cloudevents.deleting import Deleting
from registry.faces.cloudevents.groups import GroupWriting
from registry.faces.cloudevents.names import older_path
from registry.faces.cloudevents.places import asked
from registry.faces.cloudevents.reading import Reading
from registry.faces.cloudevents.schemas import SchemaWriting
from registry.http.access import READING
from registry.http.face import Call
from registry.http.replies import refusal_of

_RESOURCES: Final[Mapping[str, type[DefinitionWriting | SchemaWriting]]] = {
    "messages": DefinitionWriting,
    "schemas": SchemaWriting,
}
"""Who writes resources of a type."""


class CloudEventsFace:
    """CloudEvents Registry 0.4/0.5; see :class:`registry.http.face.Face`."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: Call) -> Reply:
        """Carry a request out."""
        with self._service.session(writing=call.head.method not in READING) as session:
            return _reply(session, call)

    def refused(self, head: Head, url: str, refusal: Refusal) -> Reply:
        """Report a refusal as the core API does, since the specification leaves open how."""
        if refusal.subject.startswith("/"):
            refusal.subject = older_path(refusal.subject)
        return refusal_of(head, url, refusal)


def _reply(session: Session, call: Call) -> Reply:
    given, method = asked(call, session.model), call.head.method
    if method == "OPTIONS":
        return Reply(200, (answers.allow(given.methods),))
    if method not in given.methods or (given.meta and method not in ("GET", "HEAD", "PUT")):
        refusal = Refusal("action_not_supported", older_path(given.place.xid), action=method)
        reply = refusal_of(call.head, call.url, refusal)
        return Reply(reply.status, (*reply.headers, answers.allow(given.methods)), reply.body)
    if method in READING:
        return Reading(session, call, given).reply()
    if method == "DELETE":
        return Deleting(session, call, given).reply()
    if given.place.resource_type is None:
        return GroupWriting(session, call, given).reply()
    return _RESOURCES[given.place.resource_type.plural](session, call, given).reply()
