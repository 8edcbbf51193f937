"""Messages of every dialect: what a definition says, under whichever names, as one declared message.

The collection it stands in is the caller's matter (``registry``); this reads one object, its versions and its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from catalog.declared import MESSAGE_REFERENCE, DeclaredMessage, Place
from catalog.dialects.declaring import MAX_DECLARED, members, other_members
from catalog.dialects.dialect import Dialect
from catalog.dialects.metadata import (
    Content,
    add_definition,
    add_metadata,
    document_of,
    flatten_metadata,
    split_config,
    split_options,
)
from catalog.dialects.names import DocumentReader, message_names
from catalog.dialects.reading import Format, given, optional_text, read_format, reference_of, spelled
from catalog.dialects.versions import default_version
from catalog.findings import Findings
from catalog.protocols.properties import canonical_protocol

_TEXTS: Final = frozenset({"dataschemaformat", "dataschemauri", "dataschemaxid", "datacontenttype"})
_OBJECTS: Final = frozenset({"envelopemetadata", "envelopeoptions", "protocoloptions"})
_SCHEMA: Final = re.compile(r"#/schemagroups/([^/]+)/schemas?/", re.IGNORECASE)
_MAX_VERSION_DIGITS: Final = 18


def read_message(
    xid: str, group: str, message: Mapping[str, Any], place: Place, default: Format, reader: DocumentReader
) -> Iterator[DeclaredMessage]:
    """Give a message, and before it its versions, which others may have as base.

    Versions of Message Catalog 0.1 are numbered, and nothing refers to them: the highest is the message.
    """
    content, form = _content(message, place, default, reader)
    base = _base(message, place, reader)
    nested = document_of(message)
    if base is None and nested is not None:
        base = _base(message[nested], place / nested, reader)
    other = _other(message)
    default_of_versions = form if form.given else default
    if is_numbered(message, reader.dialect):
        latest = _latest_version(message, place, reader.findings)
        if latest is not None:
            body, at = latest
            below, inner = _content(body, at, default_of_versions, reader)
            content = _laid(content, below)
            base = base or _base(body, at, reader)
            form = form if form.given else inner
            other = _other({**message, **body})
    else:
        versions = list(islice(members(message, "versions", place, reader.into, reader.findings), MAX_DECLARED))
        default_name = default_version(message, {key: body for key, body, _ in versions})
        for version, body, at in versions:
            below, inner = _content(body, at, default_of_versions, reader)
            its = _base(body, at, reader)
            hidden = f"{xid}/versions/{version}"
            yield DeclaredMessage(hidden, group, at, below.attributes, its, None, True, below.written, _other(body))
            if version == default_name:
                content, base = _laid(content, below), base or its
    borrowed = _borrowed(message, content.attributes, base, place, reader.findings)
    if reader.dialect.is_listed:
        other = {name: value for name, value in other.items() if name.lower() != "id"}
    if reader.dialect.groups_give_formats and base is None and borrowed is None:
        _name_format(content, form if form.given else default)
    yield DeclaredMessage(xid, group, place, content.attributes, base, borrowed, False, content.written, other)


def _other(body: Mapping[str, Any]) -> dict[str, Any]:
    return other_members(body, message_names() | {"versions"})


def is_numbered(message: Mapping[str, Any], dialect: Dialect) -> bool:
    """Tell versions of Message Catalog 0.1 from those of a registry."""
    versions = message.get("versions")
    if dialect.numbers_versions or isinstance(versions, list):
        return True
    bodies = versions.values() if isinstance(versions, dict) else ()
    return any(isinstance(body, dict) and isinstance(body.get("definition"), dict) for body in bodies)


def version_number(version: Any) -> int:
    """Return a version as number; -1, which any version exceeds, for what is none."""
    if isinstance(version, int) and not isinstance(version, bool):
        return version
    text = str(version)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_VERSION_DIGITS else -1


def _content(
    body: Mapping[str, Any], place: Place, default: Format, reader: DocumentReader, *, inside: bool = False
) -> tuple[Content, Format]:
    """Return what defines a message or a version of one, and the envelope and protocol that it names itself.

    ``null`` and ``"None"`` are not given. What an entity of a registry nests as ``definition`` is read as if it stood
    in its place; *inside* of that, nothing is nested once more.
    """
    content = Content()
    own = read_format(body, place, reader)
    for name, canonical in reader.spelled(body, "attributes", place):
        value = _attribute(canonical, body[name], place / name, reader.findings)
        if name.lower() == "config" and value is not None:
            value, named = split_config(value, place / name, content)
            protocol = spelled(named, canonical_protocol, place / name / "protocol", reader.findings)
            if protocol is not None and own.protocol is None:
                own = replace(own, protocol=protocol, written={**own.written, "protocol": place / name / "protocol"})
        if value is not None:
            content.put(canonical, value, place / name)
    for name, value in (("envelope", own.envelope), ("protocol", own.protocol)):
        if value is not None:
            content.put(name, value, own.written[name])
    form = own if own.given else default
    flatten_metadata(content, reader)
    add_metadata(body, form, place, content, reader)
    nested = document_of(body)
    if nested is None:
        add_definition(body, form, place, content, reader)
    elif not inside:
        below, inner = _content(body[nested], place / nested, form, reader, inside=True)
        content, own = _laid(content, below), own if own.given else inner
    split_options(content, reader)
    reference = content.attributes.get("dataschemauri")
    if reference is not None:
        content.attributes["dataschemauri"] = _SCHEMA.sub(r"#/schemagroups/\1/schemas/", reference)
    return content, own


def _laid(content: Content, below: Content) -> Content:
    """Lay what a message says over what its version says."""
    kept = {path: at for path, at in below.written.items() if path.partition(".")[0] not in content.attributes}
    return Content({**below.attributes, **content.attributes}, {**kept, **content.written})


def _name_format(content: Content, form: Format) -> None:
    """Give a message of Message Catalog 0.1 the format of its group, which is as much its own (section 2.1)."""
    for name, value in (("envelope", form.envelope), ("protocol", form.protocol)):
        if value is not None:
            content.attributes.setdefault(name, value)


def _attribute(name: str, value: Any, place: Place, findings: Findings) -> Any:
    if name in _TEXTS:
        return given(optional_text(value, place, findings))
    if name in _OBJECTS and not isinstance(value, dict):
        findings.error(place, "wrong-shape", f"{name} is no object, and ignored", "write it as a map")
        return None
    return value


def _base(message: Mapping[str, Any], place: Place, reader: DocumentReader) -> str | None:
    """Return the base reference, under whichever of its names."""
    for name, _ in reader.spelled(message, "bases", place):
        reference = given(optional_text(message[name], place / name, reader.findings))
        return None if reference is None else reference_of(reference)
    return None


def _borrowed(
    message: Mapping[str, Any], attributes: Mapping[str, Any], base: str | None, place: Place, findings: Findings
) -> str | None:
    """Return the message that this one stands for.

    A ``uri`` counts when it points to a message, or when nothing else is said.
    """
    meta = message.get("meta")
    xref = message.get("xref") or (meta.get("xref") if isinstance(meta, dict) else None)
    if xref is not None:
        reference = optional_text(xref, place / "xref", findings)
        return None if reference is None else reference_of(reference)
    uri = reference_of(message["uri"]) if isinstance(message.get("uri"), str) else None
    if base is None and uri is not None and (MESSAGE_REFERENCE.search(uri) or not attributes):
        return uri
    return None


def _latest_version(
    message: Mapping[str, Any], place: Place, findings: Findings
) -> tuple[Mapping[str, Any], Place] | None:
    """Return the highest of numbered versions; None when there are none."""
    versions = message.get("versions")
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
        number = version_number(body.get("version", key if isinstance(key, str) else None))
        if best is None or number > best[0]:
            best = (number, body, at)
    return None if best is None else best[1:]
