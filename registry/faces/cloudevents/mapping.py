"""Entities in their older form and back, by the catalog's own readers and writers of both dialects.

``shown`` gives the older form of attributes of 1.0, ``read`` the attributes of an older form; both without identifiers,
epoch and times. A message that stands for another is one attribute of 1.0, ``xref``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from catalog.convert.definition_groups import config_form, definition_form, group_form, newer_constraints, newer_options
from catalog.convert.document import endpoint_form, schema_form
from catalog.dialects.reading import reference_of
from catalog.dialects.registry import read
from catalog.findings import Declarations, DeclaredMessage, Findings, SourceLocation
from registry.core.lineage import as_object
from registry.core.requests import ABSENT
from registry.core.views import CHECKS
from registry.errors import Refusal
from registry.faces.cloudevents.names import GROUPS, RESOURCES, Links, newer_names, older_names, present
from registry.http.access import Call
from registry.http.requests import tree_of

XREF: Final = "xref"
_OLDER: Final = "0.4-wip"
_NEWER: Final = "1.0-rc4"
_IDENTITY: Final = ("endpointid", "schemaid", "versionid", "xid", "meta", "versions")
_BASES: Final = ("basemessage", "basemessageuri", "basemessageurl", "basemessagexid")
_REFERENCES: Final = ("definitiongroups", "messagegroups")


class EntityMapping(Protocol):
    """The two forms of one kind of entity; ``read`` raises :class:`Refusal`."""

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0."""


@dataclass(frozen=True, slots=True)
class GroupForm:
    """The forms of a group or an endpoint; *plural* is the name that 1.0 has for its type."""

    plural: str
    gid: str
    links: Links

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""
        if self.plural == "schemagroups":
            return older_names(stored)
        into = _declared({"specversion": _NEWER, self.plural: {self.gid: stored}})
        if self.plural == "messagegroups":
            group = into.groups[f"/messagegroups/{self.gid}"]
            return {**older_names(group.other), **group_form(group)}
        endpoint = into.endpoints[f"/endpoints/{self.gid}"]
        other = {name: value for name, value in endpoint.other.items() if name != "protocoloptions"}
        written = _references(stored)
        return {**older_names(other), **config_form(endpoint, lambda each: self.links.refer(written.get(each, each)))}

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0."""
        if self.plural == "schemagroups":
            return newer_names(body)
        into = _declared({"specversion": _OLDER, GROUPS[self.plural]: {self.gid: body}}, strict=True)
        if self.plural == "messagegroups":
            group = into.groups[f"/messagegroups/{self.gid}"]
            given = {"envelope": group.envelope, "protocol": group.protocol}
            return {**newer_names(group.other), **present(given)}
        endpoint = into.endpoints[f"/endpoints/{self.gid}"]
        written = _references(body)
        groups = [self.links.local(each) or written.get(each, each) for each in endpoint.messagegroups]
        form = endpoint_form(endpoint, groups)
        return newer_names({name: value for name, value in form.items() if name not in _IDENTITY})


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The forms of a message, in a group that gives *defaults* (``envelope``, ``protocol``)."""

    plural: str
    gid: str
    mid: str
    defaults: Mapping[str, Any]
    links: Links

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""
        xref = stored.get(XREF)
        tree = {name: value for name, value in stored.items() if name != XREF}
        if xref:  # what it shows is another's, whose own base does not count here
            tree = {**{name: value for name, value in tree.items() if name not in _BASES}, "meta": {XREF: xref}}
        message = self._message(_NEWER, "messages", tree)
        other = {name: value for name, value in message.other.items() if name != "meta"}
        # What an endpoint gives its messages applies only there: said of a message, it would apply everywhere.
        default = self.defaults.get("envelope") if self.plural == "messagegroups" else None
        content = definition_form(message, default, self.links.refer)
        if message.borrowed is not None and self.links.local(message.borrowed) is None and "uri" in stored:
            content["uri"] = stored["uri"]
        return {**older_names(other), **content}

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0."""
        given = {name: value for name, value in body.items() if name not in ("versions", "meta")}
        message = self._message(_OLDER, "definitions", given, strict=True)
        own = dict(message.attributes)
        if own.get("envelopemetadata") is not None:
            own["envelopemetadata"] = newer_constraints(own["envelopemetadata"])
        if own.get("protocoloptions") is not None:
            protocol = own.get("protocol") or self.defaults.get("protocol")
            own["protocoloptions"] = newer_options(own["protocoloptions"], protocol)
        other = {name: value for name, value in message.other.items() if name != "uri"}
        return present(
            {**newer_names(other), **own, **self._schema(own), **self._bases(message, given, alone=not other)}
        )

    def _message(
        self, version: str, messages: str, body: Mapping[str, Any], *, strict: bool = False
    ) -> DeclaredMessage:
        collection = self.plural if version == _NEWER else GROUPS[self.plural]
        group = {**self.defaults, messages: {self.mid: body}}
        into = _declared({"specversion": version, collection: {self.gid: group}}, strict=strict)
        return into.messages[f"/{self.plural}/{self.gid}/messages/{self.mid}"]

    def _schema(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Name a schema of this registry by its xid; one deep in a document, by the pointer to it."""
        uri = own.get("dataschemauri")
        xid = self.links.local(uri) if uri is not None else None
        if xid is None or "/schemas/" not in xid:
            return {}
        if ":" in xid.rpartition("/")[2]:
            return {"dataschemauri": f"#{xid}"}
        return {"dataschemauri": None, "dataschemaxid": xid}

    def _bases(self, message: DeclaredMessage, body: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
        """Return what the message inherits from, or the one that it stands for where it says nothing itself."""
        if message.base is not None:
            return {"basemessage": self.links.local(message.base) or message.base}
        if message.borrowed is None:
            return {"uri": body.get("uri")}
        xid = self.links.local(message.borrowed)
        if xid is None:
            return {"uri": body.get("uri")}
        return {XREF: xid} if alone and not message.attributes else {"basemessage": xid}


class SchemaForm:
    """The forms of a version of a schema, but for its document."""

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""
        return older_names({name: value for name, value in stored.items() if name not in CHECKS})

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0, with the document as the body has it (``schema``, ``schemabase64``)."""
        form = schema_form("/schemagroups/g/schemas/s", body)
        return newer_names({name: value for name, value in form.items() if name not in _IDENTITY})


def _declared(tree: Mapping[str, Any], *, strict: bool = False) -> Declarations:
    """Read a document of one entity; with *strict* what it says wrongly is refused, since it would be lost."""
    into, findings = Declarations(), Findings()
    read(tree, SourceLocation(""), into, findings)
    wrong = [each for each in findings.sorted() if each.severity == "error"] if strict else []
    if wrong:
        raise Refusal("bad_request", wrong[0].pointer, error_detail=f"{wrong[0].message}: {wrong[0].hint}")
    return into


def _references(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the references to groups as they are written, by how readers take them: other registries know no other."""
    listed = (value for name, value in body.items() if name.lower() in _REFERENCES and isinstance(value, list))
    return {reference_of(each): each for value in listed for each in value if isinstance(each, str)}


# Bodies of requests: what identifies an entity is taken apart from what it says.

_IDENTIFIERS: Final = ("id", "version", "epoch", "self", "specversion", "versions", "versionsurl", "versionscount")
_HELD: Final = tuple(f"{name}{end}" for name in RESOURCES.values() for end in ("", "url", "count"))
_TIMES: Final = {"createdOn": "createdat", "modifiedOn": "modifiedat"}
_TYPES: Final = frozenset(("definitiongroup", "endpoint", "schemagroup", "definition", "schema", "schemaversion"))


@dataclass(frozen=True, slots=True)
class Body:
    """What a body says: ``said`` under older names, ``times`` under those of 1.0; ``given`` is all of it."""

    given: Mapping[str, Any]
    said: Mapping[str, Any]
    times: Mapping[str, Any]


def body_of(tree: Mapping[str, Any], *, held: bool = False) -> Body:
    """Take a body apart; *held* is for groups, which name what they hold beside what they say."""
    left_out = {*_IDENTIFIERS, *(_HELD if held else ())}
    said = {name: value for name, value in tree.items() if name.lower() not in left_out and name not in _TIMES}
    kind = said.get("type")
    if isinstance(kind, str) and kind.lower() in _TYPES:
        said.pop("type")
    times = {newer: tree[older] for older, newer in _TIMES.items() if tree.get(older) is not None}
    return Body(tree, said, times)


def definition_body(tree: Mapping[str, Any]) -> Body:
    """Take the body of a definition apart, which may stand in its ``definition`` as listings nest it."""
    nested = tree.get("definition")
    rest = {name: value for name, value in tree.items() if name != "definition"}
    return body_of({**nested, **rest} if isinstance(nested, Mapping) else tree)


def object_of(call: Call, xid: str) -> Mapping[str, Any]:
    """Return the JSON object that a call has as body.

    Raises:
        Refusal: there is none.
    """
    tree = tree_of(call.body, xid)
    if tree is ABSENT:
        raise Refusal("missing_body", xid)
    return as_object(tree, xid)


def collection_of(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the collection that a group has in its body, empty when it has none.

    Raises:
        Refusal: it is no map.
    """
    collection = body.get(name)
    return {} if collection is None else as_object(collection, name)


def list_of(call: Call, xid: str) -> list[Mapping[str, Any]] | None:
    """Return the entities that the body of a deletion names, None when there is no body.

    Raises:
        Refusal: it is no list of entities with an ``id`` each.
    """
    tree = tree_of(call.body, xid)
    if tree is ABSENT:
        return None
    if not isinstance(tree, list) or not all(isinstance(each, dict) for each in tree):
        raise Refusal("bad_request", xid, error_detail="the body needs to be a list of objects with an id")
    return tree


# Documents of schemas as this face shows and takes them: JSON or text in ``schema``, all else in ``schemaBase64``.

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"


def shown_document(document: bytes) -> dict[str, Any]:
    """Return the member that shows a document; nothing for an empty one."""
    if not document:
        return {}
    tree = _tree(document)
    if tree is not None:
        return {"schema": tree}
    try:
        return {"schema": document.decode("utf-8")}
    except UnicodeDecodeError:
        return {"schemaBase64": base64.b64encode(document).decode("ascii")}


def content_type(document: bytes) -> str:
    """Return the content type of a document that came without one."""
    shown = shown_document(document)
    return BYTES if "schemaBase64" in shown else TEXT if isinstance(shown.get("schema", ""), str) else JSON


def taken_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a version as the core takes them: a document that is text by its bytes, and its type."""
    schema = attributes.get("schema")
    if not isinstance(schema, str):
        return dict(attributes)
    document = schema.encode("utf-8", "surrogatepass")
    rest = {name: value for name, value in attributes.items() if name != "schema"}
    return {"contenttype": content_type(document), **rest, "schemabase64": base64.b64encode(document).decode("ascii")}


def _tree(document: bytes) -> Any:
    """Return the object or array that a document is; None for any other."""
    try:
        tree = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return tree if isinstance(tree, dict | list) else None


# What an entity says after a client of this face has replaced it: nothing is taken away that the face cannot say.
#
# What a client sends back as it was shown leaves what is stored as it is. Attributes that 1.0 alone knows stay until
# the client names them, with null to take one away.

_BY_FORMAT: Final = frozenset(("protocol", "protocoloptions", "envelopemetadata", "envelopeoptions"))
_NEWER_ONLY: Final[Mapping[str, frozenset[str]]] = {
    "messages": _BY_FORMAT | {"basemessage", "datacontenttype", "dataschemaxid", "icon", "deprecated"},
    "messagegroups": frozenset(("protocol", "icon", "deprecated", "constraints")),
    "endpoints": frozenset(("envelopeoptions", "icon", "constraints")),
    "schemagroups": frozenset(("format", "icon", "deprecated", "constraints")),
    "schemas": frozenset(("icon", "contenttype", "deprecated")),
}
"""Names in older forms that are those of 1.0 alone, which clients of this face cannot be expected to send back."""


def replaced(plural: str, form: EntityMapping, stored: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be stored when *body* replaces the older form of what is *stored*; see the module.

    Raises:
        Refusal: the body cannot be read.
    """
    shown = form.shown(stored)
    # A new format brings its own rules for messages: what the old one had beside it goes with it.
    changed = body.get("format") is not None and body["format"] != shown.get("format")
    spared = _NEWER_ONLY[plural] - (_BY_FORMAT if changed else frozenset())
    if body.get("uri") is not None:
        spared -= {"basemessage"}  # what a definition borrows takes its place
    kept = {name: value for name, value in shown.items() if name in spared and name not in body}
    said = form.read({**kept, **{name: value for name, value in body.items() if value is not None}})
    before = form.read(shown)
    if XREF in said or (XREF in stored and said != before):
        return said  # what stands for another has nothing of its own, and what it showed was the other's
    if XREF in stored:
        return {XREF: stored[XREF]}
    result: dict[str, Any] = {}
    for name in {**stored, **said}:
        value = stored.get(name) if said.get(name) == before.get(name) else said.get(name)
        if value is not None:
            result[name] = value
    return result
