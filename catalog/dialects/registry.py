"""Documents of every dialect: which groups, endpoints, messages and schemas they declare, under whichever names.

A document of Message Catalog 0.1 may also be one group, or a single definition, which is a group of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from catalog.declared import Declarations, DeclaredGroup, DeclaredMessage, Place
from catalog.dialects.declaring import (
    MAX_ID,
    declare_group,
    declare_message,
    declare_registry,
    declare_schemas,
    deprecated,
    has_room,
    long_id,
    members,
    other_members,
    repeated,
)
from catalog.dialects.detection import detect
from catalog.dialects.dialect import Kind
from catalog.dialects.endpoints import read_endpoint
from catalog.dialects.message_catalog import is_definition
from catalog.dialects.messages import read_message, version_number
from catalog.dialects.names import DocumentReader, names_of, spellings
from catalog.dialects.reading import Format, read_format
from catalog.findings import Findings
from catalog.values import is_number, text_of

_IDS: Final = ("id", "messageid", "definitionid", "messagegroupid", "definitiongroupid")
_OF_LISTS: Final = frozenset({"groups", "definitions", "messagedefinitions"})
"""Collections that Message Catalog 0.1 writes as lists."""


def read(tree: Mapping[str, Any], root: Place, into: Declarations, findings: Findings) -> bool:
    """Add everything that the document *tree*, which stands at *root*, declares; False when it is no catalog at all.

    What has the wrong shape is reported and left out.
    """
    dialect = detect(tree)
    if dialect is None:
        return False
    reader = DocumentReader(dialect, into, findings)
    if dialect.is_replaced:
        deprecated(root, dialect.title, findings)
        findings.of_older_dialect(root.file)
    single = is_definition(tree)
    if single:
        _read_single(tree, root, reader)
    elif dialect.is_listed and any(name.lower() in spellings("messages") for name in tree):
        _read_lone_group(tree, root, reader)
    else:
        declare_registry(tree, into)
    for key, group, place in _collections(tree, "groups", root, reader):
        _read_group(f"/messagegroups/{key}", group, place, reader)
    for key, endpoint, place in members(tree, "endpoints", root, into, findings):
        _read_endpoint(f"/endpoints/{key}", endpoint, place, reader)
    for name in [name for name in tree if name.lower() == "schemagroups"]:
        declare_schemas(tree, name, root, into, findings)
    return True


def _read_lone_group(tree: Mapping[str, Any], root: Place, reader: DocumentReader) -> None:
    own = _id(tree)
    if own is None:
        reader.findings.error(root, "missing-id", "the group has no id, and is left out", "give it an id")
    else:
        _read_group(f"/messagegroups/{own}", tree, root, reader)


def _read_single(tree: Mapping[str, Any], root: Place, reader: DocumentReader) -> None:
    """Read a definition that is a document of its own; of several versions of it the highest counts."""
    own = _id(tree)
    if own is None:
        reader.findings.error(root, "missing-id", "the definition has no id, and is left out", "give it an id")
        return
    if len(own) > MAX_ID:
        long_id(root, own, reader.findings)
        return
    group = f"/messagegroups/{own}"
    form = read_format(tree, root, reader)
    declare_group(DeclaredGroup(group, root, form.envelope, form.protocol), reader.into, reader.findings)
    for message in read_message(f"{group}/messages/{own}", group, tree, root, form, reader):
        known = reader.into.messages.get(message.xid)
        numbers = [version_number(each.other.get("version")) for each in (known, message) if each is not None]
        if known is not None and numbers[0] != numbers[1]:
            if numbers[1] > numbers[0]:
                reader.into.messages[message.xid] = message
            continue
        declare_message(message, reader.into, reader.findings)


def _read_group(xid: str, group: Mapping[str, Any], place: Place, reader: DocumentReader) -> None:
    form = read_format(group, place, reader)
    other = other_members(group, names_of("selectors", "messages"))
    if reader.dialect.is_listed:
        other = other_members(other, {"id", *spellings("groups")})
    declare_group(DeclaredGroup(xid, place, form.envelope, form.protocol, other), reader.into, reader.findings)
    _read_messages(xid, group, place, form, reader)


def _read_endpoint(xid: str, endpoint: Mapping[str, Any], place: Place, reader: DocumentReader) -> None:
    known = reader.into.endpoints.get(xid)
    if known is not None:
        repeated(place, xid, known.place, reader.findings)
        return
    declared = read_endpoint(xid, endpoint, place, reader)
    reader.into.endpoints[xid] = declared
    quiet = replace(reader, findings=Findings())
    default = replace(read_format(endpoint, place, quiet), envelope=declared.envelope, protocol=declared.protocol)
    _read_messages(xid, endpoint, place, default, reader)


def _read_messages(xid: str, container: Mapping[str, Any], at: Place, default: Format, reader: DocumentReader) -> None:
    """Add the messages of a group or an endpoint, with their versions; of several with one id the highest version."""
    latest: dict[str, tuple[Mapping[str, Any], Place]] = {}
    for key, message, place in _collections(container, "messages", at, reader):
        known = latest.get(key)
        if known is None:
            latest[key] = (message, place)
        elif "version" in message or "version" in known[0]:
            if version_number(message.get("version")) > version_number(known[0].get("version")):
                latest[key] = (message, place)
        else:
            repeated(place, f"{xid}/messages/{key}", known[1], reader.findings)
    for key, (message, place) in latest.items():
        own = f"{xid}/messages/{key}"
        if not _add(own, read_message(own, xid, message, place, default, reader), place, reader):
            return


def _add(xid: str, read: Iterator[DeclaredMessage], place: Place, reader: DocumentReader) -> bool:
    """Declare a message and its versions; one that is declared already is compared. False when there is no room."""
    if xid in reader.into.messages:
        *_, message = read
        declare_message(message, reader.into, reader.findings)
        return True
    for message in read:
        if not has_room(reader.into, place, reader.findings):
            return False
        reader.into.messages[message.xid] = message
    return True


def _collections(
    holder: Mapping[str, Any], kind: Kind, at: Place, reader: DocumentReader
) -> Iterator[tuple[str, Mapping[str, Any], Place]]:
    """Give the members of the collections of a kind that *holder* has: of maps by key, of lists by id."""
    for name, _ in reader.spelled(holder, kind, at, several=True):
        listed = reader.dialect.is_listed or name.lower() in _OF_LISTS
        if listed and isinstance(holder[name], list):
            yield from _listed(holder[name], at / name, reader)
        else:
            yield from members(holder, name, at, reader.into, reader.findings)


def _listed(entries: list[Any], at: Place, reader: DocumentReader) -> Iterator[tuple[str, Mapping[str, Any], Place]]:
    for index, member in enumerate(entries):
        if not has_room(reader.into, at, reader.findings):
            return
        place = at / index
        if not isinstance(member, dict):
            text, hint = "a member of the list is no object, and ignored", "write it as an object"
            reader.findings.error(place, "wrong-shape", text, hint)
            continue
        name = _id(member)
        if name is None:
            reader.findings.error(place, "missing-id", "this has no id, and is left out", "give it an id")
        elif len(name) > MAX_ID:
            long_id(at, name, reader.findings)
        else:
            yield name, member, place


def _id(holder: Mapping[str, Any]) -> str | None:
    for name in _IDS:
        value = holder.get(name)
        if (isinstance(value, str) or is_number(value)) and value != "":
            return text_of(value)
    return None
