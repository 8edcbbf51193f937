"""POST and PUT of definitions, which have no versions but the latest, and of their metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.http.problems import Reply
from registry.core.places import Place
from registry.errors import Refusal
from registry.faces.cloudevents.attributes import present
from registry.faces.cloudevents.bodies import definition_body, object_of
from registry.faces.cloudevents.forms import XREF
from registry.faces.cloudevents.held import core_body
from registry.faces.cloudevents.keeping import replaced
from registry.faces.cloudevents.reading import resource_at
from registry.faces.cloudevents.requesting import compare
from registry.faces.cloudevents.views import Edition
from registry.faces.cloudevents.writing import Writing

_SHARED: Final = ("name", "description", "docs", "tags")
"""What registry and definition have in common: it stays where a request says nothing of it."""


class DefinitionWriting(Writing):
    """See :class:`Writing`."""

    def reply(self) -> Reply:
        """Do it, and return the reply."""
        place = self.asked.place
        needs_body = self.adding or self.asked.meta or self.call.body.strip()
        tree = _with_headers(object_of(self.call, place.xid) if needs_body else {}, self.headers(), place)
        if place.kind == "resources":
            return self._make(self.fresh(place, tree.get("id")), tree)
        owner = self.owner
        compare(tree, "id", owner.xid, owner.rid)
        if self.adding:
            return self._next(owner, tree)
        shown = self.there(owner)
        if shown is None:
            self.housed(owner)
            self.requester.absent(owner, self.asked.epoch)
            return self._make(owner, tree, {"versionid": place.vid} if place.vid else {})
        edition = self.viewer.edition(shown, place.vid)
        self.check(owner, edition, tree)
        self.requester.perform("replace", owner, self._replacement(owner, edition, tree, meta=self.asked.meta))
        return self.resource(owner, 200)

    def _make(self, place: Place, tree: Mapping[str, Any], version: Mapping[str, str] | None = None) -> Reply:
        body = definition_body(tree)
        attributes = self.viewer.form(place, self.viewer.defaults(place)).read(present(body.said))
        self.requester.perform("replace", place, core_body(attributes, {**body.times, **(version or {})}))
        return self.resource(place, 201)

    def _next(self, place: Place, tree: Mapping[str, Any]) -> Reply:
        """Make a version that takes the place of the latest, which the core keeps."""
        edition = self.viewer.edition(resource_at(self.session, place))
        self.check(place, edition, tree)
        body = self._replacement(place, edition, tree, meta=False)
        if "meta" in body:
            raise Refusal("extra_xref_attribute", place.xid, name="versions", singular="definition")
        self.requester.perform("add", place, body, sticky=edition.shown.resource.sticky)
        return self.resource(place, 201)

    def _replacement(self, place: Place, edition: Edition, tree: Mapping[str, Any], *, meta: bool) -> dict[str, Any]:
        """Return a definition as the core takes it, once *tree* has replaced it; with *meta* its content stays."""
        form = self.viewer.form(place, self.viewer.defaults(place))
        stored = self.viewer.stored(edition)
        body = definition_body(tree)
        kept = {name: each for name, each in form.shown(stored).items() if (name in _SHARED) != meta}
        attributes = replaced("messages", form, stored, {**kept, **body.said})
        again: dict[str, Any] = {"meta": {}} if XREF in stored and XREF not in attributes else {}
        return {**core_body(attributes, body.times), **again}


def _with_headers(tree: Mapping[str, Any], said: Mapping[str, str | None], place: Place) -> dict[str, Any]:
    """Lay what headers say over a body, with which they need to agree; None stays, for what is to be taken away."""
    laid = dict(tree)
    for name, value in said.items():
        if laid.get(name) is not None and str(laid[name]) != (value or ""):
            why = f"the body says otherwise: {str(laid[name])[:80]}"
            raise Refusal("extra_xregistry_header", place.xid, name=f"Registry-{name}", error_detail=why)
        laid.setdefault(name, value)
    return laid
