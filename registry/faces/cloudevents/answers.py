"""What this face answers with: entities with their headers, documents, and pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from bindings.http.problems import Reply
from registry.core.places import Place
from registry.core.service import Session
from registry.faces.cloudevents import headers
from registry.faces.cloudevents.documents import content_type
from registry.faces.cloudevents.names import older_path
from registry.faces.cloudevents.places import Asked
from registry.faces.cloudevents.views import Edition, Viewer
from registry.http.face import Call
from registry.http.headers import encoded
from registry.http.replies import JSON
from registry.store.entities import Group

Headers = Iterable[tuple[bytes, bytes]]
_PLAIN: Final = frozenset(chr(code) for code in range(0x20, 0x7F))


def entity(shown: Mapping[str, Any], status: int = 200, more: Headers = (), tag: str = "") -> Reply:
    """Return the reply that is one entity, or a map of some."""
    tags = ((b"ETag", tag.encode("ascii")),) if tag else ()
    return Reply(status, ((b"Content-Type", JSON), *tags, *more), msgspec.json.encode(shown))


def tag_of(session: Session, subject: Edition | Group) -> str:
    """Return the ETag of a resource or a group.

    What a definition shows depends on the format of its group, and on what stands behind a reference.
    """
    if isinstance(subject, Group):
        return f'"{subject.epoch}"'
    resource = subject.shown.resource
    group = session.reader.group(resource.group)
    return f'"{resource.epoch}-{subject.epoch}-{group.epoch if group is not None else 0}"'


def page(call: Call, asked: Asked, members: Mapping[str, msgspec.Raw], after: str, count: int) -> Reply:
    """Return the reply that is a part of a collection, linked to the next."""
    more: list[tuple[bytes, bytes]] = []
    if after:
        query = urlencode([*((("inline", "true"),) if asked.inline else ()), ("limit", asked.limit), ("cursor", after)])
        link = f"<{call.url}{older_path(asked.place.xid)}?{query}>;rel=next;count={count}"
        more.append((b"Link", link.encode("ascii", "replace")))
    return Reply(200, ((b"Content-Type", JSON), *more), msgspec.json.encode(dict(members)))


def resource(
    session: Session,
    viewer: Viewer,
    place: Place,
    edition: Edition,
    status: int = 200,
    more: Headers = (),
    *,
    redirect: bool = True,
) -> Reply:
    """Return the reply that is a definition, or the document of a schema, or the way to where that is.

    *place* is that of the resource; *redirect* is for readers, who want the document.
    """
    defaults, tag = viewer.defaults(place), tag_of(session, edition)
    if place.resource.plural == "messages":
        shown = viewer.resource(place, edition, "whole", defaults)
        fields = (*headers.shown(shown, alone=False), (b"Content-Location", encoded(shown["self"])), *more)
        return entity(shown, status, fields, tag)
    shown = {**viewer.version(place, edition, defaults, inline=False), "id": place.rid}
    location = (b"Content-Location", encoded(shown["self"]))
    fields = ((b"ETag", tag.encode("ascii")), *headers.shown(shown, alone=True), location, *more)
    elsewhere = shown.get(headers.ELSEWHERE)
    if elsewhere is not None:
        return Reply(307, (*fields, (b"Location", encoded(elsewhere)))) if redirect else Reply(status, fields)
    document = (session.reader.document(edition.version.xid) if edition.version is not None else None) or b""
    media = str(shown.get("contenttype") or content_type(document))
    plain = "".join(each if each in _PLAIN else "?" for each in media)
    return Reply(status, ((b"Content-Type", plain.encode("ascii")), *fields), document)


def allow(methods: Iterable[str]) -> tuple[bytes, bytes]:
    """Return the header that names what a place takes."""
    return b"Allow", ", ".join((*methods, "OPTIONS")).encode("ascii")
