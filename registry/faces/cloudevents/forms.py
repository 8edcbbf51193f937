"""Entities in their older form and back, by the catalog's own readers and writers of both dialects.

``shown`` gives the older form of attributes of 1.0, ``read`` the attributes of an older form; both without identifiers,
epoch and times. A message that stands for another is one attribute of 1.0, ``xref``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from catalog.convert.definition_groups import (
    config_form,
    definition_form,
    group_form,
    newer_constraints,
    newer_options,
)
from catalog.convert.endpoints import endpoint_form
from catalog.convert.schemas import schema_form
from catalog.declared import Declarations, DeclaredMessage, Place
from catalog.dialects.reading import reference_of
from catalog.dialects.registry import read
from catalog.findings import Findings
from registry.core.views import CHECKS
from registry.errors import Refusal
from registry.faces.cloudevents.attributes import newer_names, older_names, present
from registry.faces.cloudevents.names import GROUPS, Links

XREF: Final = "xref"
_OLDER: Final = "0.4-wip"
_NEWER: Final = "1.0-rc4"
_IDENTITY: Final = ("endpointid", "schemaid", "versionid", "xid", "meta", "versions")
_BASES: Final = ("basemessage", "basemessageuri", "basemessageurl", "basemessagexid")
_REFERENCES: Final = ("definitiongroups", "messagegroups")


class Form(Protocol):
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
    read(tree, Place(""), into, findings)
    wrong = [each for each in findings.sorted() if each.severity == "error"] if strict else []
    if wrong:
        raise Refusal("bad_request", wrong[0].pointer, error_detail=f"{wrong[0].message}: {wrong[0].hint}")
    return into


def _references(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the references to groups as they are written, by how readers take them: other registries know no other."""
    listed = (value for name, value in body.items() if name.lower() in _REFERENCES and isinstance(value, list))
    return {reference_of(each): each for value in listed for each in value if isinstance(each, str)}
