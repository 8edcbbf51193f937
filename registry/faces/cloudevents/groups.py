"""POST and PUT of groups and endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bindings.http.problems import Reply
from registry.core.places import Place
from registry.faces.cloudevents import answers
from registry.faces.cloudevents.attributes import present
from registry.faces.cloudevents.bodies import body_of, object_of
from registry.faces.cloudevents.forms import GroupForm
from registry.faces.cloudevents.held import held_by
from registry.faces.cloudevents.keeping import replaced
from registry.faces.cloudevents.requesting import compare
from registry.faces.cloudevents.writing import Writing


class GroupWriting(Writing):
    """See :class:`Writing`."""

    def reply(self) -> Reply:
        """Do it, and return the reply."""
        place = self.asked.place
        tree = object_of(self.call, place.xid)
        if self.adding:
            return self._make(self.fresh(place, tree.get("id")), tree, held=True)
        compare(tree, "id", place.xid, place.gid)
        group = self.session.reader.group(place.xid)
        if group is None:
            self.requester.absent(place, self.asked.epoch)
            return self._make(place, tree, held=False)
        tag = answers.tag_of(self.session, group)
        self.requester.hold(tag, group.epoch, place, self.asked.epoch, tree.get("epoch"))
        body = body_of(tree, held=True)
        form = GroupForm(place.group.plural, place.gid, self.links)
        attributes = replaced(place.group.plural, form, group.attributes, body.said)
        self.requester.perform("replace", place, {**attributes, **body.times})
        return self._group(place, 200)

    def _make(self, place: Place, tree: Mapping[str, Any], *, held: bool) -> Reply:
        """Make a group; with *held* make what it holds too, which a PUT has to ignore."""
        body = body_of(tree, held=True)
        attributes = GroupForm(place.group.plural, place.gid, self.links).read(present(body.said))
        members = held_by(place, tree, attributes, self.links) if held else {}
        self.requester.perform("replace", place, {**attributes, **body.times, **members})
        return self._group(place, 201)

    def _group(self, place: Place, status: int) -> Reply:
        group = self.session.reader.group(place.xid)
        assert group is not None
        shown = self.viewer.group(place, group, "listed")
        return answers.entity(shown, status, self.fields(place, status), answers.tag_of(self.session, group))
