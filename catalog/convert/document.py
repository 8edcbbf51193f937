"""A whole load as one document: registry, endpoints, message groups and schema groups.

Reading the document gives the definitions, endpoints and candidates that the sources gave. What has an error in the
sources is left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from catalog.convert.endpoints import endpoint_form
from catalog.convert.messages import flat_form, message_form
from catalog.convert.names import FIRST_VERSION, common, last, version_of
from catalog.convert.schemas import schema_form
from catalog.declared import Declarations, DeclaredMessage
from catalog.dialects.versions import default_version
from catalog.linting.rules import refusing
from catalog.model import Catalog

SPECVERSION: Final = "1.0-rc4"
REGISTRY: Final = "catalog"
"""The id of a registry whose sources name none."""
_OF_REGISTRY: Final = frozenset({"specversion", "registryid", "$schema", "model", "capabilities"})
"""What the document says itself, or what only describes the server that a source came from."""
_OF_GROUP: Final = frozenset({"messagegroupid", "schemagroupid", "specversion", "version"})


@dataclass(frozen=True, slots=True)
class Converted:
    """The document; the xids left out because of errors, and those that had to keep their base though flattened."""

    document: Mapping[str, Any]
    left_out: tuple[str, ...] = ()
    not_flat: tuple[str, ...] = ()


def convert(catalog: Catalog, declarations: Declarations, *, flatten: bool = False) -> Converted:
    """Return *catalog*, read from *declarations*, as an xRegistry 1.0-rc4 document.

    Messages stand as declared, with their bases; with *flatten* as they are in effect. A flat definition no longer
    derives from its base, so a record that both match equally well becomes ambiguous.
    """
    messages = _Messages(catalog, declarations, flatten=flatten)
    document: dict[str, Any] = {
        "specversion": SPECVERSION,
        "registryid": str(declarations.registry.get("registryid") or REGISTRY),
        "xid": "/",
        **common(declarations.registry, _OF_REGISTRY),
    }
    collections = {
        "endpoints": _endpoints(catalog, declarations, messages.of),
        "messagegroups": _groups(declarations, messages.of),
        "schemagroups": _schemagroups(declarations),
    }
    document.update({name: members for name, members in collections.items() if members})
    return Converted(document, tuple(messages.left_out), tuple(messages.not_flat))


class _Messages:
    """Writes the messages of a group or endpoint, and notes what could not be written as wanted."""

    def __init__(self, catalog: Catalog, declarations: Declarations, *, flatten: bool) -> None:
        self.left_out: list[str] = []
        self.not_flat: list[str] = []
        self._catalog = catalog
        self._declarations = declarations
        self._flatten = flatten
        self._versions: dict[str, dict[str, DeclaredMessage]] = {}
        self._members: dict[str, list[DeclaredMessage]] = {}
        for message in declarations.messages.values():
            if message.hidden:
                owner, _, version = message.xid.rpartition("/versions/")
                self._versions.setdefault(owner, {})[version] = message
            else:
                self._members.setdefault(message.group, []).append(message)
        self._tails = _tails(catalog)
        self._errors = {(each.file, each.pointer) for each in refusing(catalog.findings)}

    def of(self, group: str) -> dict[str, Any]:
        """Return the messages of a group or an endpoint by id."""
        written = {}
        for message in self._members.get(group, ()):
            place = (message.place.file, message.place.pointer)
            if message.xid not in self._catalog.definitions and (place in self._errors or message.borrowed is None):
                self.left_out.append(message.xid)
                continue
            written[last(message.xid)] = self._form(message)
        return written

    def _form(self, message: DeclaredMessage) -> dict[str, Any]:
        versions = self._versions.get(message.xid, {})
        chosen = default_version(message.other, {name: each.other for name, each in versions.items()})
        version = chosen or version_of(message.other) or FIRST_VERSION
        if self._flatten and message.xid in self._catalog.definitions:
            flat = flat_form(message, self._chain(message.xid), self._declarations, version)
            if flat is not None:
                return flat
            self.not_flat.append(message.xid)
        form = message_form(message, self._chain(message.xid), self._declarations, version)
        if versions:
            form["versions"] = {
                name: message_form(each, self._chain(each.xid), self._declarations, name)
                for name, each in versions.items()
            }
        return form

    def _chain(self, xid: str) -> tuple[str, ...]:
        definition = self._catalog.definitions.get(xid)
        return (xid, *definition.base) if definition else (xid, *self._tails.get(xid, ()))


def _tails(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return the bases of everything that is a base; versions are bases and no definitions of their own."""
    tails: dict[str, tuple[str, ...]] = {}
    for definition in catalog.definitions.values():
        for place, xid in enumerate(definition.base):
            if xid in tails:
                break
            tails[xid] = definition.base[place + 1 :]
    return tails


def _endpoints(catalog: Catalog, declarations: Declarations, messages: Callable[[str], Any]) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, declared in declarations.endpoints.items():
        groups = _listed(declared.messagegroups, catalog.endpoints[xid].messagegroups, declarations)
        form = endpoint_form(declared, groups)
        inline = messages(xid)
        forms[last(xid)] = {**form, **({"messages": inline} if inline else {})}
    return forms


def _listed(written: Sequence[str], resolved: Sequence[str], declarations: Declarations) -> list[str]:
    """Return the groups of the document by xid, then the references that lead elsewhere or nowhere, as written."""
    here = [xid for xid in resolved if xid.startswith("/")]
    known = {last(xid).lower() for xid in declarations.groups if xid.startswith("/")}
    away = len(here) < len(resolved)
    for reference in written:
        foreign = away and not reference.startswith(("#", "/")) and "/" in reference
        if foreign or reference.rstrip("/").rpartition("/")[2].lower() not in known:
            here.append(reference)
    return list(dict.fromkeys(here))


def _groups(declarations: Declarations, messages: Callable[[str], Any]) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, group in declarations.groups.items():
        if not xid.startswith("/"):
            continue  # of another document, where it stays
        defaults = {"envelope": group.envelope, "protocol": group.protocol}
        forms[last(xid)] = {
            "messagegroupid": last(xid),
            "xid": xid,
            **common(group.other, _OF_GROUP),
            **{name: value for name, value in defaults.items() if value is not None},
            "messages": messages(xid),
        }
    return forms


def _schemagroups(declarations: Declarations) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, other in declarations.schemagroups.items():
        forms[last(xid)] = {"schemagroupid": last(xid), "xid": xid, **common(other, _OF_GROUP), "schemas": {}}
    for xid, body in declarations.schemas.items():
        group = xid.partition("/schemas/")[0]
        forms[last(group)]["schemas"][xid[len(group) + len("/schemas/") :]] = schema_form(xid, body)
    return forms
