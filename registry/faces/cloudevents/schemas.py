"""POST and PUT of schemas and their versions: the body is the document, or, with ``?meta``, the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.http.problems import Reply
from registry.core.documents import Given
from registry.core.places import Place
from registry.errors import Refusal
from registry.faces.cloudevents import headers
from registry.faces.cloudevents.bodies import body_of, object_of
from registry.faces.cloudevents.documents import content_type, taken_document
from registry.faces.cloudevents.forms import SchemaForm
from registry.faces.cloudevents.keeping import replaced
from registry.faces.cloudevents.reading import resource_at
from registry.faces.cloudevents.requesting import compare
from registry.faces.cloudevents.versions import following
from registry.faces.cloudevents.writing import Writing

_IDENTITY: Final = ("id", "version", "epoch", "createdOn", "modifiedOn")
_OF_DOCUMENT: Final = (headers.ELSEWHERE, "contenttype")
_FIRST: Final = "1"


class SchemaWriting(Writing):
    """See :class:`Writing`."""

    def reply(self) -> Reply:
        """Do it, and return the reply."""
        place, said = self.asked.place, self.headers()
        if place.kind == "resources":
            return self._make(self.fresh(place, said.get("id")), _FIRST, said)
        return self._next(place, said) if self.adding else self._put(said)

    def _put(self, said: Mapping[str, str | None]) -> Reply:
        owner, name = self.owner, self.asked.place.vid
        tree: Mapping[str, Any] = object_of(self.call, owner.xid) if self.asked.meta else said
        compare(tree, "id", owner.xid, owner.rid, name or owner.rid)
        shown = self.there(owner)
        if shown is None or (name and not self._has(owner, name)):
            if self.asked.meta:
                raise Refusal("not_found", self.asked.place.xid)
            if shown is None:
                self.housed(owner)
            self.requester.absent(self.asked.place, self.asked.epoch)
            return self._make(owner, name or _FIRST, said, shown=name)
        edition = self.viewer.edition(shown, name)
        self.check(owner, edition, tree)
        if edition.version is None:
            raise Refusal("not_found", owner.xid)
        where, stored = owner.collection("versions").child(edition.version.id), edition.version.attributes
        if self.asked.meta:
            self.requester.perform("replace", where, _metadata(stored, tree))
        else:
            self._document(where, _said(stored, said))
        return self.resource(owner, 200, name)

    def _make(self, place: Place, name: str, said: Mapping[str, str | None], *, shown: str = "") -> Reply:
        self._document(place.collection("versions").child(name), _said({}, said))
        return self.resource(place, 201, shown)

    def _next(self, place: Place, said: Mapping[str, str | None]) -> Reply:
        """Make a version after the latest, of which it inherits what the request does not say."""
        edition = self.viewer.edition(resource_at(self.session, place))
        compare(said, "id", place.xid, place.rid)
        self.check(place, edition, said)
        if edition.version is None:
            raise Refusal("not_found", place.xid)
        name = following(edition.version.id, place.xid)
        given = {**_said(edition.version.attributes, said), "versionid": name, "ancestorid": edition.version.id}
        self._document(place, given, verb="add")
        return self.resource(place, 201)

    def _document(self, place: Place, attributes: dict[str, Any], *, verb: Any = "replace") -> None:
        """Write a version with the body as its document, unless the attributes say that this is elsewhere."""
        body, media = self.call.body, self.call.head.header(b"content-type")
        if attributes.get(headers.ELSEWHERE) is not None:
            if body:
                why = "the document is elsewhere, so the body needs to be empty"
                raise Refusal("extra_xregistry_header", place.xid, name="Registry-schemaURI", error_detail=why)
            document, kind = Given(None, url=True), None
        else:
            kind = media.decode("latin-1").strip() if media and body else content_type(body)
            document, attributes = Given(body), {**attributes, headers.ELSEWHERE: None}
        self.requester.perform(verb, place, {**attributes, "contenttype": kind}, document=document)

    def _has(self, place: Place, name: str) -> bool:
        source = resource_at(self.session, place).source
        return source is not None and self.session.reader.version(f"{source.versions}/{name}") is not None


def _said(stored: Mapping[str, Any], said: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what a version says once headers have had their say, with None for what they take away."""
    form = SchemaForm()
    shown = {name: value for name, value in form.shown(stored).items() if name not in _OF_DOCUMENT}
    named = {name: value for name, value in said.items() if name not in _IDENTITY}
    return {**dict.fromkeys(stored), **replaced("schemas", form, stored, {**shown, **named})}


def _metadata(stored: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a version once its metadata is replaced; where its document is stays."""
    form, body = SchemaForm(), body_of(tree)
    shown, said = form.shown(stored), body.said
    if headers.ELSEWHERE in shown and not any(name.lower() in ("schemauri", headers.ELSEWHERE) for name in said):
        said = {**said, headers.ELSEWHERE: shown[headers.ELSEWHERE]}
    return {**taken_document(replaced("schemas", form, stored, said)), **body.times}
