"""Read a message of any dialect, with its versions, as a declared message.

The caller (``registry``) reads collections; this module reads one message object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, TypeGuard

from catalog.dialects.detection import Dialect
from catalog.dialects.reading import (
    MAX_DECLARED,
    DocumentReader,
    Format,
    blank_to_none,
    canonical_reference,
    default_version,
    iter_collection,
    message_member_names,
    other_members,
    read_format,
    read_optional_text,
    read_selector,
    spellings_of,
)
from catalog.findings import MESSAGE_REFERENCE, DeclaredMessage, Findings, SourceLocation
from catalog.model import CLOUDEVENTS, PROTOCOLS
from catalog.protocols.properties import (
    canonical_envelope,
    canonical_member,
    canonical_option,
    canonical_protocol,
    canonical_type,
    options_of,
    squash_name,
)
from catalog.values import to_text

# Convert the content of a CNCF Message Catalog 0.1 definition to 1.0 attributes.
#
# The content has a section for each part of the message: ``attributes`` of a CloudEvent; the sections of an AMQP
# message;
# ``publish`` and ``userproperty`` of MQTT; ``pub`` of NATS. Its values are attribute value templates, in which an empty
# ``value`` permits any content and a ``null`` one is as if the property were not listed.

MQTT_NAMES: Final = {"expiryinterval": "message_expiry_interval"}
"""MQTT property names that differ from those of 1.0."""
MAIN_SECTIONS: Final = {"MQTT/5.0": "publish", "MQTT/3.1.1": "publish", "NATS": "pub"}
"""The section with the protocol's plain options, by protocol."""
PAYLOAD_SECTIONS: Final = ("applicationdata", "payload")
"""The sections that may contain a data schema: of AMQP, and of the other protocols."""
_FORMATS: Final = {"json": "JsonSchema", "jsonschema": "JsonSchema", "avro": "Avro", "protobuf": "Protobuf/3"}
_DRAFT: Final = re.compile(r"draft[-/][0-9][0-9-]*", re.ASCII)


def read_definition(content: Mapping[str, Any], form: Format, at: SourceLocation, findings: Findings) -> _ContentReader:
    """Read the content of a definition with the format *form*."""
    protocol = form.protocol
    main = MAIN_SECTIONS.get(protocol or "")
    section = content.get(main) if main is not None else None
    if main == "publish" and isinstance(section, dict):
        version = blank_to_none(_unwrap_text(section.get("mqttversion")))
        protocol = canonical_protocol(f"MQTT/{version}") if version is not None else protocol
    reader = _ContentReader(at, protocol, main, findings)
    if protocol is None or (form.envelope is not None and "attributes" in content):
        reader.read_envelope(content)
        content = {name: section for name, section in content.items() if name != "attributes"}
    if protocol is not None:
        reader.read_options(content)
    return reader


class _ContentReader:
    """Reads one content into 1.0 ``attributes`` and their locations; ``protocol`` is set if the content implies one."""

    def __init__(self, at: SourceLocation, protocol: str | None, main: str | None, findings: Findings) -> None:
        self.protocol = protocol
        self.attributes: dict[str, Any] = {}
        self.written: dict[str, SourceLocation] = {}
        self._at = at
        self._main = main
        self._vocabulary = options_of(protocol)
        self._options: dict[str, Any] = {}
        self._findings = findings

    def read_envelope(self, content: Mapping[str, Any]) -> None:
        """Read envelope attributes, including the data schema."""
        place = self._at / "attributes"
        listed = self._expect_map(content.get("attributes"), place)
        attributes = {name: body for name, body in listed.items() if _is_given(body)}
        schema = attributes.get("dataschema")
        if isinstance(schema, dict):
            self._read_schema(schema, place / "dataschema")
            body = {name: value for name, value in schema.items() if name not in ("schema", "schematype")}
            attributes["dataschema"] = body
            if body.get("value") is None and not body.get("required"):
                del attributes["dataschema"]
        self.attributes["envelopemetadata"] = attributes
        self.written["envelopemetadata"] = place

    def read_options(self, content: Mapping[str, Any]) -> None:
        """Read the sections of a protocol message."""
        for name, value in content.items():
            place = self._at / name
            if name in PAYLOAD_SECTIONS:
                self._read_schema(self._expect_map(value, place).get("dataschema"), place / "dataschema")
            elif name == self._main:
                self._read_plain_options(self._expect_map(value, place), place)
            elif name == "userproperty" and "user_properties" in self._vocabulary.lists:
                self._options["user_properties"] = self._map_to_list("user_properties", value, place)
            else:
                self._read_section(name, value, place)
        self.attributes["protocoloptions"] = self._options
        self.written["protocoloptions"] = self._at

    def _read_plain_options(self, section: Mapping[str, Any], at: SourceLocation) -> None:
        for name, value in section.items():
            canonical = canonical_option(self.protocol, MQTT_NAMES.get(name, name) if self._main == "publish" else name)
            if canonical is not None and canonical in self._vocabulary.scalars:
                if _is_given(value):
                    self._options[canonical] = value
                    self.written[f"protocoloptions.{canonical}"] = at / name
            elif name != "mqttversion":
                self._report(f"{self.protocol} has no option {name}; it is ignored", at / name)

    def _read_section(self, name: str, value: Any, at: SourceLocation) -> None:
        """Read an AMQP section; sections of formats that 0.1 does not define are copied as written."""
        canonical = canonical_option(self.protocol, name)
        if canonical is not None and canonical in self._vocabulary.sections:
            table = self._vocabulary.sections[canonical]
            section = self._options.setdefault(canonical, {})
            for inner, body in self._expect_map(value, at).items():
                known = inner if table is None else canonical_member(table, inner)
                if known is None:
                    self._report(f"the AMQP section {canonical} has no property {inner}; it is ignored", at / inner)
                elif _is_given(body):
                    section[known] = body
                    self.written[f"protocoloptions.{canonical}.{known}"] = at / inner
        elif self.protocol not in MAIN_SECTIONS and canonical is not None:
            self._options[name] = value
        else:
            self._report(f"a message of {self.protocol} has no section {name}; it is ignored", at)

    def _map_to_list(self, canonical: str, value: Any, at: SourceLocation) -> list[Any]:
        """Convert a map by name to a list of ``{name, …}`` as in 1.0."""
        named: list[Any] = []
        for name, body in self._expect_map(value, at).items():
            if _is_given(body):
                named.append({"name": name, **(body if isinstance(body, dict) else {"value": body})})
                self.written[f"protocoloptions.{canonical}.{name}"] = at / name
        return named

    def _read_schema(self, schema: Any, at: SourceLocation) -> None:
        """Read a data schema: a reference in ``value``, or a document in ``schema``."""
        if isinstance(schema, str):
            schema = {"value": schema}
        body = self._expect_map(schema, at)
        reference = blank_to_none(read_optional_text(body.get("value"), at / "value", self._findings))
        document = body.get("schema")
        kind = blank_to_none(read_optional_text(body.get("schematype"), at / "schematype", self._findings))
        if reference is not None:
            self.attributes["dataschemauri"], self.written["dataschemauri"] = reference, at / "value"
        if document is not None:
            self.attributes["dataschema"], self.written["dataschema"] = document, at / "schema"
        if kind is not None:
            self.attributes["dataschemaformat"] = schema_format(kind, document)
            self.written["dataschemaformat"] = at / "schematype"

    def _expect_map(self, value: Any, at: SourceLocation) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self._findings.error(at, "wrong-shape", "this is not an object and is ignored", "write it as a map by name")
        return {}

    def _report(self, text: str, at: SourceLocation) -> None:
        self._findings.warning(at, "unknown-option", text, "correct or remove the name")


def _is_given(body: Any) -> bool:
    """Whether a property is given; a null value counts as absent."""
    return body is not None and not (isinstance(body, dict) and "value" in body and body["value"] is None)


def _unwrap_text(value: Any) -> str | None:
    """Return the text of a value that may be wrapped as ``{"value": …}``; None if it has none."""
    inner = value.get("value") if isinstance(value, dict) else value
    return None if inner is None or isinstance(inner, (dict, list, bool)) else to_text(inner)


def schema_format(kind: str, document: Any) -> str:
    """Return the 1.0 schema format; a JSON schema's version is taken from its ``$schema``."""
    name = _FORMATS.get(kind.lower(), kind)
    said = document.get("$schema") if isinstance(document, dict) else None
    draft = _DRAFT.search(said) if name == "JsonSchema" and isinstance(said, str) else None
    return f"{name}/{draft.group()}" if draft else name


# Convert 1.0 attributes to a CNCF Message Catalog 0.1 definition: the inverse of the above.
#
# Attributes without a section in 0.1 are written beside the definition, under their 1.0 names. Each definition is
# read back, to make sure that it has the same meaning.

SCHEMA_ATTRIBUTES: Final = ("dataschemauri", "dataschema", "dataschemaformat")
CONTENT_ATTRIBUTES: Final = ("envelopemetadata", "protocoloptions", *SCHEMA_ATTRIBUTES)
"""Attributes that are written in sections of the definition."""
SELECTORS: Final = ("envelope", "protocol")
_NAMES: Final = {canonical: written for written, canonical in MQTT_NAMES.items()}
_TYPES: Final = ("JSON", "Avro", "Protobuf")


@dataclass(frozen=True, slots=True)
class MessageSections:
    """A 0.1 definition: its ``format`` (may be ''), its sections, and the attributes written beside it."""

    format: str
    definition: Mapping[str, Any]
    beside: Mapping[str, Any]


def format_name_of(envelope: str | None, protocol: str | None) -> str:
    """Return the format name of an envelope, or of a protocol if there is no envelope; '' if neither has one."""
    if envelope is not None:
        return "CloudEvents" if canonical_envelope(envelope) == CLOUDEVENTS else envelope
    known = canonical_protocol(protocol or "")
    return known.partition("/")[0] if known in PROTOCOLS else ""


def to_message_sections(attributes: Mapping[str, Any]) -> MessageSections:
    """Convert a message's own 1.0 attributes to a 0.1 definition."""
    envelope, protocol = attributes.get("envelope"), attributes.get("protocol")
    form = format_name_of(envelope, protocol)
    beside = {name: value for name, value in attributes.items() if name not in SELECTORS}
    known = None if protocol is None else canonical_protocol(protocol)
    unsaid = (
        {} if protocol is None or (envelope is None and known == canonical_protocol(form)) else {"protocol": protocol}
    )
    own = beside.get("definition")
    if isinstance(own, dict):  # of an unknown format, or nested by a registry: kept as written
        del beside["definition"]
        return MessageSections(form, own, {**beside, **unsaid})
    reading = Format(envelope if envelope is None else canonical_envelope(envelope), known)
    for content in (CONTENT_ATTRIBUTES, CONTENT_ATTRIBUTES[:2]):
        taken = {name: attributes[name] for name in content if name in attributes}
        sections = _to_sections(taken, reading)
        if sections is not None and _reads_back_as(sections, reading, taken):
            rest = {name: value for name, value in beside.items() if name not in taken}
            versioned = envelope is None and "mqttversion" in sections.get("publish", ())
            return MessageSections(form, sections, rest if versioned else {**rest, **unsaid})
    return MessageSections(form, {}, {**beside, **unsaid})


def _reads_back_as(sections: Mapping[str, Any], reading: Format, wanted: Mapping[str, Any]) -> bool:
    """Whether reading the sections gives exactly the *wanted* attributes."""
    findings = Findings()
    description = read_definition(sections, reading, SourceLocation(""), findings)
    if findings.sorted() or description.protocol not in (None, reading.protocol):
        return False
    given = {name: value for name, value in description.attributes.items() if value != {}}
    return given == {name: value for name, value in wanted.items() if value != {}}


def _to_sections(taken: Mapping[str, Any], reading: Format) -> dict[str, Any] | None:
    """Return the sections; None if an attribute cannot be written in sections."""
    sections: dict[str, Any] = {}
    schema = _to_schema_section(taken)
    if reading.protocol is None or "envelopemetadata" in taken:
        metadata = taken.get("envelopemetadata", {})
        if not isinstance(metadata, dict):
            return None
        sections["attributes"] = dict(metadata)
    if reading.protocol is None:
        if schema:
            known = sections["attributes"].get("dataschema", {})
            if not isinstance(known, dict):
                return None
            sections["attributes"]["dataschema"] = {**known, **schema}
        return sections
    options = taken.get("protocoloptions", {})
    if not isinstance(options, dict) or not _add_options(options, reading.protocol, sections):
        return None
    if schema:
        sections[PAYLOAD_SECTIONS[0 if reading.protocol.startswith("AMQP/") else 1]] = {"dataschema": schema}
    return sections


def _to_schema_section(taken: Mapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    document, kind = taken.get("dataschema"), taken.get("dataschemaformat")
    if "dataschemauri" in taken:
        schema["value"] = taken["dataschemauri"]
    if kind is not None:
        schema["schematype"] = next((each for each in _TYPES if schema_format(each, document) == kind), kind)
    if document is not None:
        schema["schema"] = document
    return schema


def _add_options(options: Mapping[str, Any], protocol: str, sections: dict[str, Any]) -> bool:
    """Add the sections of a protocol; return False if an option cannot be written in sections."""
    vocabulary = options_of(protocol)
    main = MAIN_SECTIONS.get(protocol)
    plain: dict[str, Any] = {"mqttversion": "3.1.1"} if protocol == "MQTT/3.1.1" else {}
    for name, value in options.items():
        if main is not None and name in vocabulary.scalars:
            plain[_NAMES.get(name, squash_name(name)) if main == "publish" else squash_name(name)] = value
        elif main is not None and name == "user_properties":
            named = _list_to_map(value)
            if named is None:
                return False
            sections["userproperty"] = named
        elif name in vocabulary.sections:
            if not isinstance(value, dict):
                return False
            fixed = vocabulary.sections[name] is not None
            sections[squash_name(name)] = {
                squash_name(inner) if fixed else inner: body for inner, body in value.items()
            }
        else:
            sections[name] = value
    if main is not None and plain:
        sections[main] = plain
    return True


def _list_to_map(values: Any) -> dict[str, Any] | None:
    """Convert a list of named values to a map; None if it is not such a list or repeats a name."""
    by_name: dict[str, Any] = {}
    for each in values if isinstance(values, list) else [None]:
        if not isinstance(each, dict) or not isinstance(name := each.get("name"), str) or name in by_name:
            return None
        by_name[name] = {inner: value for inner, value in each.items() if inner != "name"}
    return by_name


# Sort out ``metadata``, ``envelopeoptions`` and ``config`` of older documents.
#
# ``metadata`` contains envelope attributes or protocol options, depending on ``format``, else on the names in it. The
# specification's own example has attribute constraints in ``envelopeoptions`` of a message; they are read as
# ``envelopemetadata`` (MATCHING.md#catalogs).

CLOUDEVENTS_ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
)
_CONSTRAINT: Final = frozenset({"type", "value", "required", "description", "specurl"})
_OPTIONS: Final = frozenset({"mode", "format"})
"""Envelope options (xRegistry 1.0 endpoint, envelopeoptions)."""


@dataclass(frozen=True, slots=True)
class MessageContent:
    """The 1.0 attributes of a message, and their locations.

    ``protocol`` is set if the content implies it, like ``mqttversion`` of Message Catalog 0.1.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    written: dict[str, SourceLocation] = field(default_factory=dict)

    def add_attribute(self, name: str, value: Any, place: SourceLocation) -> None:
        """Add an attribute unless it exists."""
        if name not in self.attributes:
            self.attributes[name] = value
            self.written[name] = place

    def add_constraints(self, constraints: Mapping[str, Any], at: SourceLocation) -> None:
        """Add constraints on envelope attributes to the existing ones, which take precedence."""
        known = self.attributes.get("envelopemetadata")
        if not isinstance(known, dict):
            self.add_attribute("envelopemetadata", dict(constraints), at)
            return
        new = {name: body for name, body in constraints.items() if name not in known}
        self.attributes["envelopemetadata"] = {**known, **new}
        self.written.update({f"envelopemetadata.{name}": at / name for name in new})


def add_metadata(
    holder: Mapping[str, Any], form: Format, at: SourceLocation, content: MessageContent, reader: DocumentReader
) -> None:
    """Read ``metadata`` as envelope attributes or as protocol options, depending on the format."""
    for name, _ in reader.iter_names(holder, "metadata", at):
        place, metadata = at / name, holder[name]
        if not isinstance(metadata, dict):
            text = f"{name} is not an object and is ignored"
            reader.findings.error(place, "wrong-shape", text, "write it as a map")
            continue
        if _is_of_protocol(metadata, form, content):
            content.add_attribute("protocoloptions", metadata, place)
            continue
        nested = metadata.get("attributes")
        flat, inside = (nested, place / "attributes") if isinstance(nested, dict) else (metadata, place)
        content.add_constraints(flat, inside)


def find_nested_document(holder: Mapping[str, Any]) -> str | None:
    """Return the name of the member with a nested definition document, as in ``?inline`` responses of 0.5.

    In Message Catalog 0.1 this member is the content of a version, which has sections instead.
    """
    names = message_member_names() | {"versions"}
    for name in [name for name in holder if name.lower() in spellings_of("definition")]:
        body = holder[name]
        if isinstance(body, dict) and any(inner.lower() in names for inner in body):
            return name
    return None


def add_definition(
    holder: Mapping[str, Any], form: Format, at: SourceLocation, content: MessageContent, reader: DocumentReader
) -> None:
    """Add the attributes in the sections of a Message Catalog 0.1 ``definition``."""
    for name, _ in reader.iter_names(holder, "definition", at):
        sections = holder[name]
        if not isinstance(sections, dict):
            text = f"{name} is not an object and is ignored"
            reader.findings.error(at / name, "wrong-shape", text, "write it as a map")
            continue
        read = read_definition(sections, form, at / name, reader.findings)
        for attribute, value in read.attributes.items():
            if attribute == "envelopemetadata":
                content.add_constraints(value, read.written[attribute])
            else:
                content.add_attribute(attribute, value, read.written[attribute])
        for path, place in read.written.items():
            content.written.setdefault(path, place)
        if read.protocol is not None and read.protocol != form.protocol:
            content.attributes["protocol"] = read.protocol


def flatten_attributes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return envelope attributes by name, including those below ``attributes``."""
    nested = metadata.get("attributes")
    if not _is_attribute_map(nested):
        return dict(metadata)
    return {**nested, **{name: body for name, body in metadata.items() if name != "attributes"}}


def flatten_metadata(content: MessageContent, reader: DocumentReader) -> None:
    """Move the attributes below ``envelopemetadata.attributes`` to ``envelopemetadata``."""
    metadata = content.attributes.get("envelopemetadata")
    if not isinstance(metadata, dict) or not _is_attribute_map(metadata.get("attributes")):
        return
    at = content.written["envelopemetadata"]
    reader.report_unusual(at / "attributes", "attributes in envelopemetadata", "envelopemetadata")
    nested = (name for name in metadata["attributes"] if name not in metadata)
    content.written.update({f"envelopemetadata.{name}": at / "attributes" / name for name in nested})
    content.attributes["envelopemetadata"] = flatten_attributes(metadata)


def split_options(content: MessageContent, reader: DocumentReader) -> None:
    """Move attribute constraints from ``envelopeoptions`` to ``envelopemetadata``."""
    options = content.attributes.get("envelopeoptions")
    if not isinstance(options, dict):
        return
    at = content.written["envelopeoptions"]
    nested = options.get("attributes")
    if _is_attribute_map(nested):
        reader.report_unusual(at / "attributes", "attributes in envelopeoptions", "envelopemetadata")
        content.add_constraints(nested, at / "attributes")
        options = {name: each for name, each in options.items() if name != "attributes"}
        content.attributes["envelopeoptions"] = options
    constraints = {name: body for name, body in options.items() if _is_constraint(name, body)}
    if constraints:
        reader.report_unusual(at, f"{', '.join(list(constraints)[:5])} in envelopeoptions", "envelopemetadata")
        content.add_constraints(constraints, at)
        options = {name: each for name, each in options.items() if name not in constraints}
        content.attributes["envelopeoptions"] = options
    if not options:
        del content.attributes["envelopeoptions"]


def split_config(config: Mapping[str, Any], at: SourceLocation, content: MessageContent) -> tuple[dict[str, Any], Any]:
    """Return the options in a message's ``config``, also nested ones, and the protocol named there."""
    nested = config.get("options")
    kept = {name: value for name, value in config.items() if name not in ("protocol", "options")}
    if isinstance(nested, dict):
        content.written.update({f"protocoloptions.{name}": at / "options" / name for name in nested})
        kept.update(nested)
    return kept, config.get("protocol")


def _is_attribute_map(body: Any) -> TypeGuard[dict[str, Any]]:
    """Whether ``attributes`` is a map of attributes, not an attribute with that name."""
    if not isinstance(body, dict):
        return False
    kind = body.get("type")
    return not isinstance(body.get("required"), bool) and not (isinstance(kind, str) and canonical_type(kind))


def _is_constraint(name: str, body: Any) -> bool:
    """Whether a member is an attribute constraint, not an option: by its members, or a CloudEvents name."""
    if name in _OPTIONS or body is None:
        return False
    if isinstance(body, dict):
        return all(member in _CONSTRAINT for member in body) and (bool(body) or name in CLOUDEVENTS_ATTRIBUTES)
    return name in CLOUDEVENTS_ATTRIBUTES and not isinstance(body, list)


def _is_of_protocol(metadata: Mapping[str, Any], form: Format, content: MessageContent) -> bool:
    """Whether ``metadata`` contains protocol options, not envelope attributes."""
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
    """Yield the versions of a message (which may be bases), then the message.

    Numbered versions of Message Catalog 0.1 are not yielded: the highest one is the message.
    """
    content, form = _read_content(message, place, default, reader)
    base = _read_base(message, place, reader)
    nested = find_nested_document(message)
    if base is None and nested is not None:
        base = _read_base(message[nested], place / nested, reader)
    other = _extras(message)
    default_of_versions = form if form.is_given else default
    if has_numbered_versions(message, reader.dialect):
        latest = _find_latest_version(message, place, reader.findings)
        if latest is not None:
            body, at = latest
            below, inner = _read_content(body, at, default_of_versions, reader)
            content = _overlay_content(content, below)
            base = base or _read_base(body, at, reader)
            form = form if form.is_given else inner
            other = _extras({**message, **body})
    else:
        entries = iter_collection(message, "versions", place, reader.declarations, reader.findings)
        versions = list(islice(entries, MAX_DECLARED))
        default_name = default_version(message, {key: body for key, body, _ in versions})
        for version, body, at in versions:
            below, inner = _read_content(body, at, default_of_versions, reader)
            its = _read_base(body, at, reader)
            hidden = f"{xid}/versions/{version}"
            yield DeclaredMessage(hidden, group, at, below.attributes, its, None, True, below.written, _extras(body))
            if version == default_name:
                content, base = _overlay_content(content, below), base or its
    borrowed = _read_borrowed(message, content.attributes, base, place, reader.findings)
    if reader.dialect.is_listed:
        other = {name: value for name, value in other.items() if name.lower() != "id"}
    if reader.dialect.groups_give_formats and base is None and borrowed is None:
        _add_group_format(content, form if form.is_given else default)
    yield DeclaredMessage(xid, group, place, content.attributes, base, borrowed, False, content.written, other)


def _extras(body: Mapping[str, Any]) -> dict[str, Any]:
    return other_members(body, message_member_names() | {"versions"})


def has_numbered_versions(message: Mapping[str, Any], dialect: Dialect) -> bool:
    """Whether versions are those of Message Catalog 0.1, not of a registry."""
    versions = message.get("versions")
    if dialect.numbers_versions or isinstance(versions, list):
        return True
    bodies = versions.values() if isinstance(versions, dict) else ()
    return any(isinstance(body, dict) and isinstance(body.get("definition"), dict) for body in bodies)


def parse_version_number(version: Any) -> int:
    """Parse a version number; return -1 if it is not a number."""
    if isinstance(version, int) and not isinstance(version, bool):
        return version
    text = str(version)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_VERSION_DIGITS else -1


def _read_content(
    body: Mapping[str, Any], place: SourceLocation, default: Format, reader: DocumentReader, *, inside: bool = False
) -> tuple[MessageContent, Format]:
    """Return the content of a message or version, and the envelope and protocol that it names itself.

    ``null`` and ``"None"`` count as absent. A nested ``definition`` document is read in place of its parent; *inside*
    it, no further nesting is read.
    """
    content = MessageContent()
    own = read_format(body, place, reader)
    for name, canonical in reader.iter_names(body, "attributes", place):
        value = _read_attribute(canonical, body[name], place / name, reader.findings)
        if name.lower() == "config" and value is not None:
            value, named = split_config(value, place / name, content)
            protocol = read_selector(named, canonical_protocol, place / name / "protocol", reader.findings)
            if protocol is not None and own.protocol is None:
                own = replace(own, protocol=protocol, written={**own.written, "protocol": place / name / "protocol"})
        if value is not None:
            content.add_attribute(canonical, value, place / name)
    for name, value in (("envelope", own.envelope), ("protocol", own.protocol)):
        if value is not None:
            content.add_attribute(name, value, own.written[name])
    form = own if own.is_given else default
    flatten_metadata(content, reader)
    add_metadata(body, form, place, content, reader)
    nested = find_nested_document(body)
    if nested is None:
        add_definition(body, form, place, content, reader)
    elif not inside:
        below, inner = _read_content(body[nested], place / nested, form, reader, inside=True)
        content, own = _overlay_content(content, below), own if own.is_given else inner
    split_options(content, reader)
    reference = content.attributes.get("dataschemauri")
    if reference is not None:
        content.attributes["dataschemauri"] = _SCHEMA.sub(r"#/schemagroups/\1/schemas/", reference)
    return content, own


def _overlay_content(content: MessageContent, below: MessageContent) -> MessageContent:
    """Merge the content of a message over that of its version."""
    kept = {path: at for path, at in below.written.items() if path.partition(".")[0] not in content.attributes}
    return MessageContent({**below.attributes, **content.attributes}, {**kept, **content.written})


def _add_group_format(content: MessageContent, form: Format) -> None:
    """Add the format of the group to a message of Message Catalog 0.1 (section 2.1)."""
    for name, value in (("envelope", form.envelope), ("protocol", form.protocol)):
        if value is not None:
            content.attributes.setdefault(name, value)


def _read_attribute(name: str, value: Any, place: SourceLocation, findings: Findings) -> Any:
    if name in _TEXTS:
        return blank_to_none(read_optional_text(value, place, findings))
    if name in _OBJECTS and not isinstance(value, dict):
        findings.error(place, "wrong-shape", f"{name} is not an object and is ignored", "write it as a map")
        return None
    return value


def _read_base(message: Mapping[str, Any], place: SourceLocation, reader: DocumentReader) -> str | None:
    """Return the base reference, given under any of its names."""
    for name, _ in reader.iter_names(message, "bases", place):
        reference = blank_to_none(read_optional_text(message[name], place / name, reader.findings))
        return None if reference is None else canonical_reference(reference)
    return None


def _read_borrowed(
    message: Mapping[str, Any],
    attributes: Mapping[str, Any],
    base: str | None,
    place: SourceLocation,
    findings: Findings,
) -> str | None:
    """Return the reference to the message that this one borrows (``xref`` or ``uri``).

    A ``uri`` is used if it points to a message, or if the message declares nothing else.
    """
    meta = message.get("meta")
    xref = message.get("xref") or (meta.get("xref") if isinstance(meta, dict) else None)
    if xref is not None:
        reference = read_optional_text(xref, place / "xref", findings)
        return None if reference is None else canonical_reference(reference)
    uri = canonical_reference(message["uri"]) if isinstance(message.get("uri"), str) else None
    if base is None and uri is not None and (MESSAGE_REFERENCE.search(uri) or not attributes):
        return uri
    return None


def _find_latest_version(
    message: Mapping[str, Any], place: SourceLocation, findings: Findings
) -> tuple[Mapping[str, Any], SourceLocation] | None:
    """Return the version with the highest number, with its location; None if there is none."""
    versions = message.get("versions")
    entries: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(versions, dict):
        entries = iter(versions.items())
    elif isinstance(versions, list):
        entries = iter(enumerate(versions))
    elif versions is not None:
        findings.error(place / "versions", "wrong-shape", "versions is not a list and is ignored", "write it as a list")
    best: tuple[int, Mapping[str, Any], SourceLocation] | None = None
    for key, body in entries:
        at = place / "versions" / key
        if not isinstance(body, dict):
            findings.error(at, "wrong-shape", "a version is not an object and is ignored", "write it as an object")
            continue
        number = parse_version_number(body.get("version", key if isinstance(key, str) else None))
        if best is None or number > best[0]:
            best = (number, body, at)
    return None if best is None else best[1:]
