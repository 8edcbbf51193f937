"""Messages of every dialect: what a definition says, under whichever names, as one declared message.

The collection it stands in is the caller's matter (``registry``); this reads one object, its versions and its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, TypeGuard

from catalog.dialects.detection import Dialect
from catalog.dialects.messagesections import described
from catalog.dialects.reading import (
    MAX_DECLARED,
    DocumentReader,
    Format,
    default_version,
    given,
    members,
    message_names,
    optional_text,
    other_members,
    read_format,
    reference_of,
    spelled,
    spellings,
)
from catalog.findings import MESSAGE_REFERENCE, DeclaredMessage, Findings, SourceLocation
from catalog.protocols.properties import canonical_option, canonical_protocol, canonical_type

# What stands in ``metadata`` before 1.0, and what of ``envelopeoptions`` and ``config`` belongs elsewhere.
#
# ``metadata`` holds attributes of an envelope or options of a protocol, by what ``format`` names, else by the names in
# it. The specification's own example puts attribute constraints into ``envelopeoptions`` of a message; they are
# ``envelopemetadata`` (JUDGING.md#catalogs).

CLOUDEVENTS_ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
)
_CONSTRAINT: Final = frozenset({"type", "value", "required", "description", "specurl"})
_OPTIONS: Final = frozenset({"mode", "format"})
"""Options that an envelope has (xRegistry 1.0 endpoint, envelopeoptions)."""


@dataclass(frozen=True, slots=True)
class Content:
    """Attributes of a message under their 1.0 names, and where they are written.

    ``protocol`` is what the content settles, as ``mqttversion`` of Message Catalog 0.1 does.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    written: dict[str, SourceLocation] = field(default_factory=dict)

    def put(self, name: str, value: Any, place: SourceLocation) -> None:
        """Add an attribute that is not there yet."""
        if name not in self.attributes:
            self.attributes[name] = value
            self.written[name] = place

    def add_constraints(self, constraints: Mapping[str, Any], at: SourceLocation) -> None:
        """Add constraints of envelope attributes to those that are there and count."""
        known = self.attributes.get("envelopemetadata")
        if not isinstance(known, dict):
            self.put("envelopemetadata", dict(constraints), at)
            return
        new = {name: body for name, body in constraints.items() if name not in known}
        self.attributes["envelopemetadata"] = {**known, **new}
        self.written.update({f"envelopemetadata.{name}": at / name for name in new})


def add_metadata(
    holder: Mapping[str, Any], form: Format, at: SourceLocation, content: Content, reader: DocumentReader
) -> None:
    """Put ``metadata`` where its format has it: envelope attributes, or options of a protocol."""
    for name, _ in reader.spelled(holder, "metadata", at):
        place, metadata = at / name, holder[name]
        if not isinstance(metadata, dict):
            text = f"{name} is no object, and ignored"
            reader.findings.error(place, "wrong-shape", text, "write it as a map")
            continue
        if _is_of_protocol(metadata, form, content):
            content.put("protocoloptions", metadata, place)
            continue
        nested = metadata.get("attributes")
        flat, inside = (nested, place / "attributes") if isinstance(nested, dict) else (metadata, place)
        content.add_constraints(flat, inside)


def document_of(holder: Mapping[str, Any]) -> str | None:
    """Return the member that nests the whole document of a definition, as registries of 0.5 do with ``?inline``.

    Message Catalog 0.1 calls the content of a version so, which has sections instead.
    """
    names = message_names() | {"versions"}
    for name in [name for name in holder if name.lower() in spellings("definition")]:
        body = holder[name]
        if isinstance(body, dict) and any(inner.lower() in names for inner in body):
            return name
    return None


def add_definition(
    holder: Mapping[str, Any], form: Format, at: SourceLocation, content: Content, reader: DocumentReader
) -> None:
    """Add what ``definition`` of Message Catalog 0.1 holds, in its sections."""
    for name, _ in reader.spelled(holder, "definition", at):
        sections = holder[name]
        if not isinstance(sections, dict):
            text = f"{name} is no object, and ignored"
            reader.findings.error(at / name, "wrong-shape", text, "write it as a map")
            continue
        read = described(sections, form, at / name, reader.findings)
        for attribute, value in read.attributes.items():
            if attribute == "envelopemetadata":
                content.add_constraints(value, read.written[attribute])
            else:
                content.put(attribute, value, read.written[attribute])
        for path, place in read.written.items():
            content.written.setdefault(path, place)
        if read.protocol is not None and read.protocol != form.protocol:
            content.attributes["protocol"] = read.protocol


def flat_attributes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return envelope attributes by name, also those that stand below ``attributes``."""
    nested = metadata.get("attributes")
    if not _is_attributes(nested):
        return dict(metadata)
    return {**nested, **{name: body for name, body in metadata.items() if name != "attributes"}}


def flatten_metadata(content: Content, reader: DocumentReader) -> None:
    """Put the attributes that stand below ``attributes`` of ``envelopemetadata`` where 1.0 has them."""
    metadata = content.attributes.get("envelopemetadata")
    if not isinstance(metadata, dict) or not _is_attributes(metadata.get("attributes")):
        return
    at = content.written["envelopemetadata"]
    reader.unusual(at / "attributes", "attributes in envelopemetadata", "envelopemetadata")
    nested = (name for name in metadata["attributes"] if name not in metadata)
    content.written.update({f"envelopemetadata.{name}": at / "attributes" / name for name in nested})
    content.attributes["envelopemetadata"] = flat_attributes(metadata)


def split_options(content: Content, reader: DocumentReader) -> None:
    """Take the constraints of attributes out of ``envelopeoptions``, also those that stand below ``attributes``."""
    options = content.attributes.get("envelopeoptions")
    if not isinstance(options, dict):
        return
    at = content.written["envelopeoptions"]
    nested = options.get("attributes")
    if _is_attributes(nested):
        reader.unusual(at / "attributes", "attributes in envelopeoptions", "envelopemetadata")
        content.add_constraints(nested, at / "attributes")
        options = {name: each for name, each in options.items() if name != "attributes"}
        content.attributes["envelopeoptions"] = options
    constraints = {name: body for name, body in options.items() if _is_constraint(name, body)}
    if constraints:
        reader.unusual(at, f"{', '.join(list(constraints)[:5])} in envelopeoptions", "envelopemetadata")
        content.add_constraints(constraints, at)
        options = {name: each for name, each in options.items() if name not in constraints}
        content.attributes["envelopeoptions"] = options
    if not options:
        del content.attributes["envelopeoptions"]


def split_config(config: Mapping[str, Any], at: SourceLocation, content: Content) -> tuple[dict[str, Any], Any]:
    """Return the options of ``config`` of a message, also those one level deeper, and the protocol that it names."""
    nested = config.get("options")
    kept = {name: value for name, value in config.items() if name not in ("protocol", "options")}
    if isinstance(nested, dict):
        content.written.update({f"protocoloptions.{name}": at / "options" / name for name in nested})
        kept.update(nested)
    return kept, config.get("protocol")


def _is_attributes(body: Any) -> TypeGuard[dict[str, Any]]:
    """Whether ``attributes`` is a map of attributes, and not an attribute of that name."""
    if not isinstance(body, dict):
        return False
    kind = body.get("type")
    return not isinstance(body.get("required"), bool) and not (isinstance(kind, str) and canonical_type(kind))


def _is_constraint(name: str, body: Any) -> bool:
    """Tell a constraint of an attribute from an option: by its members, or as a scalar by CloudEvents' own names."""
    if name in _OPTIONS or body is None:
        return False
    if isinstance(body, dict):
        return all(member in _CONSTRAINT for member in body) and (bool(body) or name in CLOUDEVENTS_ATTRIBUTES)
    return name in CLOUDEVENTS_ATTRIBUTES and not isinstance(body, list)


def _is_of_protocol(metadata: Mapping[str, Any], form: Format, content: Content) -> bool:
    """Tell options of a protocol from attributes of an envelope."""
    if isinstance(metadata.get("attributes"), dict) or "protocoloptions" in content.attributes:
        return False
    if form.by_format or form.envelope is not None:
        return form.by_format and form.envelope is None
    return any(
        canonical_option(form.protocol, name) is not None
        for name in metadata
        if form.protocol is not None or name not in CLOUDEVENTS_ATTRIBUTES
    )


_TEXTS: Final = frozenset({"dataschemaformat", "dataschemauri", "dataschemaxid", "datacontenttype"})
_OBJECTS: Final = frozenset({"envelopemetadata", "envelopeoptions", "protocoloptions"})
_SCHEMA: Final = re.compile(r"#/schemagroups/([^/]+)/schemas?/", re.IGNORECASE)
_MAX_VERSION_DIGITS: Final = 18


def read_message(
    xid: str, group: str, message: Mapping[str, Any], place: SourceLocation, default: Format, reader: DocumentReader
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
    body: Mapping[str, Any], place: SourceLocation, default: Format, reader: DocumentReader, *, inside: bool = False
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


def _attribute(name: str, value: Any, place: SourceLocation, findings: Findings) -> Any:
    if name in _TEXTS:
        return given(optional_text(value, place, findings))
    if name in _OBJECTS and not isinstance(value, dict):
        findings.error(place, "wrong-shape", f"{name} is no object, and ignored", "write it as a map")
        return None
    return value


def _base(message: Mapping[str, Any], place: SourceLocation, reader: DocumentReader) -> str | None:
    """Return the base reference, under whichever of its names."""
    for name, _ in reader.spelled(message, "bases", place):
        reference = given(optional_text(message[name], place / name, reader.findings))
        return None if reference is None else reference_of(reference)
    return None


def _borrowed(
    message: Mapping[str, Any],
    attributes: Mapping[str, Any],
    base: str | None,
    place: SourceLocation,
    findings: Findings,
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
    message: Mapping[str, Any], place: SourceLocation, findings: Findings
) -> tuple[Mapping[str, Any], SourceLocation] | None:
    """Return the highest of numbered versions; None when there are none."""
    versions = message.get("versions")
    entries: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(versions, dict):
        entries = iter(versions.items())
    elif isinstance(versions, list):
        entries = iter(enumerate(versions))
    elif versions is not None:
        findings.error(place / "versions", "wrong-shape", "versions is no list, and ignored", "write it as a list")
    best: tuple[int, Mapping[str, Any], SourceLocation] | None = None
    for key, body in entries:
        at = place / "versions" / key
        if not isinstance(body, dict):
            findings.error(at, "wrong-shape", "a version is no object, and ignored", "write it as an object")
            continue
        number = version_number(body.get("version", key if isinstance(key, str) else None))
        if best is None or number > best[0]:
            best = (number, body, at)
    return None if best is None else best[1:]
