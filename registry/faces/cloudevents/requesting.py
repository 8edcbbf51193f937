"""Core requests that carry out what a client of this face asks for, all of them in one session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.lineage import as_object
from registry.core.requests import ABSENT, Flags, Given, RegistryRequest, ResourcePath, Verb
from registry.core.service import RegistrySession
from registry.errors import Refusal
from registry.faces.cloudevents.mapping import (
    JSON,
    XREF,
    MessageForm,
    SchemaForm,
    body_of,
    collection_of,
    definition_body,
    taken_document,
)
from registry.faces.cloudevents.names import RESOURCES, Links, rank
from registry.faces.cloudevents.views import Headers
from registry.http.access import Call
from registry.http.replies import MAX_FINDINGS, finding_header
from registry.http.requests import tags


class Requester:
    """Makes requests in the name of the sender of a call, and keeps what lint says of them."""

    def __init__(self, session: RegistrySession, call: Call) -> None:
        self._session = session
        self._call = call
        self._findings: list[tuple[bytes, bytes]] = []

    def perform(
        self,
        verb: Verb,
        place: ResourcePath,
        body: Any = ABSENT,
        *,
        document: Given | None = None,
        media: str = JSON,
        sticky: bool = False,
    ) -> None:
        """Do one thing at a place; with *sticky* the version that is written becomes the default one for good.

        Raises:
            Refusal: it cannot be done.
        """
        writer = self._call.writer
        request = RegistryRequest(
            verb,
            tuple(place.xid.split("/")[1:]),
            place.xid,
            self._call.registry,
            Flags(setdefaultversionid="request") if sticky else Flags(),
            document is None,
            body,
            document,
            media,
            who=writer.name,
            administrator=writer.administrator,
            may_write=writer.may_write,
            max_answer=self._call.max_answer,
        )
        self._findings += [finding_header(each) for each in self._session.perform(request).findings]

    @property
    def findings(self) -> Headers:
        """The headers that show the first findings of lint about what was written."""
        return tuple(self._findings[:MAX_FINDINGS])

    def hold(self, tag: str, epoch: int, place: ResourcePath, *given: object) -> None:
        """Make sure that the sender knows the newest state: by conditions, and by epochs that are given.

        Raises:
            Refusal: ``precondition_failed``, ``mismatched_epoch``.
        """
        head, there = self._call.head, {"*", tag}
        matches, known = (tags(head.header(name)) for name in (b"if-match", b"if-none-match"))
        if (matches is not None and not there & set(matches)) or there & set(known or ()):
            raise Refusal("precondition_failed", place.xid)
        check_epoch(epoch, place.xid, *given)

    def absent(self, place: ResourcePath, epoch: int | None) -> None:
        """Make sure that the sender does not want to change what is not there.

        Raises:
            Refusal: ``precondition_failed``, ``mismatched_epoch``.
        """
        check_epoch(0, place.xid, epoch)
        if self._call.head.header(b"if-match") is not None:
            raise Refusal("precondition_failed", place.xid)


def check_epoch(epoch: int, xid: str, *given: object) -> None:
    """Make sure that each epoch that is given is the present one.

    Raises:
        Refusal: ``mismatched_epoch``.
    """
    for each in given:
        if each is not None and (isinstance(each, bool) or str(each) != str(epoch)):
            raise Refusal("mismatched_epoch", xid, bad_epoch=str(each), epoch=str(epoch))


def compare(body: Mapping[str, Any], name: str, xid: str, *expected: object) -> None:
    """Make sure that an identifier of a body is one of those expected.

    Raises:
        Refusal: ``mismatched_id``.
    """
    given = body.get(name)
    if given is not None and (isinstance(given, bool) or str(given) not in {str(each) for each in expected}):
        raise Refusal("mismatched_id", xid, singular=name, invalid_id=str(given), expected_id=str(expected[0]))


# What a new group brings along: definitions, and schemas with their versions, as core bodies.


def held_by(
    place: ResourcePath, body: Mapping[str, Any], attributes: Mapping[str, Any], links: Links
) -> dict[str, Any]:
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


def _definition(
    place: ResourcePath, tree: Mapping[str, Any], defaults: Mapping[str, Any], links: Links
) -> dict[str, Any]:
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


def _schema(place: ResourcePath, tree: Mapping[str, Any]) -> dict[str, Any]:
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
