"""What a new group brings along: definitions, and schemas with their versions, as core bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.merging import as_object
from registry.core.places import Place
from registry.faces.cloudevents.bodies import body_of, collection_of, definition_body
from registry.faces.cloudevents.documents import taken_document
from registry.faces.cloudevents.forms import XREF, MessageForm, SchemaForm
from registry.faces.cloudevents.names import RESOURCES, Links
from registry.faces.cloudevents.requesting import compare
from registry.faces.cloudevents.versions import rank


def held_by(place: Place, body: Mapping[str, Any], attributes: Mapping[str, Any], links: Links) -> dict[str, Any]:
    """Return the resources in the body of a group, whose *attributes* are those of 1.0, as the core takes them.

    Raises:
        Refusal: one of them cannot be read.
    """
    held: dict[str, Any] = {}
    defaults = {name: attributes[name] for name in ("envelope", "protocol") if name in attributes}
    for plural in (name for name in place.group.resources if name in RESOURCES):
        where = place.collection(plural)
        for name, each in collection_of(body, RESOURCES[plural]).items():
            own = where.child(name)
            tree = as_object(each, own.xid)
            compare(tree, "id", own.xid, name)
            taken = _schema(own, tree) if plural == "schemas" else _definition(own, tree, defaults, links)
            held.setdefault(plural, {})[name] = taken
    return held


def _definition(place: Place, tree: Mapping[str, Any], defaults: Mapping[str, Any], links: Links) -> dict[str, Any]:
    """Return a new definition as the core takes it.

    Raises:
        Refusal: it cannot be read.
    """
    body = definition_body(tree)
    form = MessageForm(place.group.plural, place.gid, place.rid, defaults, links)
    return core_body(form.read(body.said), body.times)


def core_body(attributes: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a message as the core takes them: what stands for another says so in its ``meta``."""
    return {"meta": {XREF: attributes[XREF]}} if XREF in attributes else {**attributes, **times}


def _schema(place: Place, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new schema as the core takes it: each version follows on the one before it.

    What the schema says beside its versions is said of the latest, but for the format, which is that of all.

    Raises:
        Refusal: it cannot be read.
    """
    top = body_of(tree)
    versions = {name: as_object(each, place.xid) for name, each in collection_of(tree, "versions").items()}
    if not versions:
        return {"versionid": "1", **taken_document(SchemaForm().read(top.said)), **top.times}
    chain: dict[str, Any] = {}
    names = sorted(versions, key=rank)
    for before, name in zip((names[0], *names), names, strict=False):
        body = body_of(versions[name])
        compare(body.given, "id", f"{place.xid}/versions/{name}", name, place.rid)
        shared = top.said if name == names[-1] else {"format": top.said.get("format")}
        own = {key for key in body.said if key.lower().startswith("schema")}
        beside = {key: value for key, value in shared.items() if not own or not key.lower().startswith("schema")}
        said = SchemaForm().read({**beside, **body.said})
        chain[name] = {**taken_document(said), **body.times, "ancestorid": before}
    return {"versions": chain}
