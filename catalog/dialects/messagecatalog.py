"""CNCF Message Catalog 0.1: groups of message definitions with numbered versions and value templates.

A document is one group, or holds several below ``groups``. Of a definition the highest version counts, with what is
common to all versions around it (semantics.md section 2). ``relatedto``, ``relatedvia``, ``relation`` and ``authority``
say nothing about what a message looks like; only that a related definition exists is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from catalog.declared import Declarations, DeclaredGroup, DeclaredMessage, Place
from catalog.dialects.declaring import (
    MAX_ID,
    declare_group,
    declare_message,
    deprecated,
    has_room,
    long_id,
    other_members,
)
from catalog.dialects.messagesections import Described, described
from catalog.dialects.reading import Format, read_format
from catalog.documents import Document
from catalog.findings import Findings

_NAME: Final = "CNCF Message Catalog 0.1"
_TAKEN: Final = frozenset({"id", "format", "definition", "definitions", "messagedefinitions", "versions", "groups"})
_COLLECTIONS: Final = ("messagedefinitions", "definitions")
_MAX_VERSION_DIGITS: Final = 18


def read(document: Document, into: Declarations, findings: Findings) -> None:
    """Add everything that *document* declares; what has the wrong shape is reported and left out."""
    root = Place(document.file)
    deprecated(root, _NAME, findings)
    if "groups" in document.tree:
        for name, group, place in _items(document.tree["groups"], root / "groups", "group", findings):
            if not has_room(into, root / "groups", findings):
                return
            _read_group(name, group, place, into, findings)
    if any(name in document.tree for name in _COLLECTIONS):
        own = _id(document.tree)
        if own is None:
            findings.error(root, "missing-id", "the group has no id, and is left out", "give it an id")
        else:
            _read_group(own, document.tree, root, into, findings)


def _read_group(name: str, group: Mapping[str, Any], place: Place, into: Declarations, findings: Findings) -> None:
    xid = f"/messagegroups/{name}"
    form = read_format(group, place, findings)
    other = other_members(group, _TAKEN)
    declare_group(DeclaredGroup(xid, place, form.envelope, form.protocol, other), into, findings)
    latest = _latest(group, place, findings)
    for key, (definition, at) in latest.items():
        if not has_room(into, place, findings):
            return
        message = _message(f"{xid}/messages/{key}", xid, definition, at, form, findings)
        declare_message(message, into, findings)
        related = definition.get("relatedto")
        if related is not None and not (isinstance(related, str) and related in latest):
            text = f"{key} relates to {related!r}, which is not in its group"
            findings.warning(at / "relatedto", "dangling-relation", text, "name a definition of the same group")


def _latest(group: Mapping[str, Any], at: Place, findings: Findings) -> dict[str, tuple[Mapping[str, Any], Place]]:
    """Return the definitions of a group by id; of several with one id, each a version, the highest."""
    found: dict[str, tuple[Mapping[str, Any], Place]] = {}
    for collection in _COLLECTIONS:
        if group.get(collection) is None:
            continue
        for name, definition, place in _items(group[collection], at / collection, "definition", findings):
            known = found.get(name)
            if known is None or _number(definition.get("version")) > _number(known[0].get("version")):
                found[name] = (definition, place)
    return found


def _message(
    xid: str, group: str, definition: Mapping[str, Any], place: Place, default: Format, findings: Findings
) -> DeclaredMessage:
    own = read_format(definition, place, findings)
    body, at = _version(definition, place, findings)
    content = body.get("definition")
    if content is not None and not isinstance(content, dict):
        findings.error(at / "definition", "wrong-shape", "definition is no object, and ignored", "write it as a map")
    form = own if own.given else default
    read = described(content, form, at / "definition", findings) if isinstance(content, dict) else Described()
    attributes = {**read.attributes}
    protocol = read.protocol or form.protocol
    if form.envelope is not None:
        attributes["envelope"] = form.envelope
    if protocol is not None:
        attributes["protocol"] = protocol
    written = {**read.written, **(dict.fromkeys(("envelope", "protocol"), place / "format") if own.given else {})}
    other = other_members({**definition, **body}, _TAKEN)
    return DeclaredMessage(xid, group, place, attributes, written=written, other=other)


def _version(definition: Mapping[str, Any], place: Place, findings: Findings) -> tuple[Mapping[str, Any], Place]:
    """Return the highest version of a definition; the definition itself when it has none."""
    versions = definition.get("versions")
    entries: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(versions, dict):
        entries = iter(versions.items())
    elif isinstance(versions, list):
        entries = iter(enumerate(versions))
    elif versions is not None:
        findings.error(place / "versions", "wrong-shape", "versions is no list, and ignored", "write it as a list")
    best: tuple[int, Mapping[str, Any], Place] | None = None
    for key, body in entries:
        at = place / "versions" / key
        if not isinstance(body, dict):
            findings.error(at, "wrong-shape", "a version is no object, and ignored", "write it as an object")
            continue
        number = _number(body.get("version", key if isinstance(key, str) else None))
        if best is None or number > best[0]:
            best = (number, body, at)
    return (definition, place) if best is None else (best[1], best[2])


def _items(collection: Any, at: Place, what: str, findings: Findings) -> Iterator[tuple[str, Mapping[str, Any], Place]]:
    """Give the objects of a list by their ids, or of a map by its keys."""
    entries: Iterator[tuple[str | int, Any]]
    if isinstance(collection, list):
        entries = iter(enumerate(collection))
    elif isinstance(collection, dict):
        entries = iter(collection.items())
    else:
        findings.error(at, "wrong-shape", f"this is no list of {what}s, and ignored", "write it as a list")
        return
    for key, member in entries:
        place = at / key
        if not isinstance(member, dict):
            findings.error(place, "wrong-shape", f"a {what} is no object, and ignored", "write it as an object")
            continue
        name = key if isinstance(key, str) else _id(member)
        if name is None:
            findings.error(place, "missing-id", f"the {what} has no id, and is left out", "give it an id")
        elif len(name) > MAX_ID:
            long_id(at, name, findings)
        else:
            yield name, member, place


def _id(holder: Mapping[str, Any]) -> str | None:
    value = holder.get("id")
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        return None
    return str(value)


def _number(version: Any) -> int:
    """Return a version as number; -1, which any version exceeds, for what is none."""
    if isinstance(version, int) and not isinstance(version, bool):
        return version
    text = str(version)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_VERSION_DIGITS else -1
