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
from catalog.model import CLOUDEVENTS, PROTOCOLS
from catalog.protocols.properties import (
    VOCABULARIES,
    Vocabulary,
    canonical_envelope,
    canonical_member,
    canonical_option,
    canonical_protocol,
    canonical_type,
    squash,
)
from catalog.values import text_of

# What a message definition of CNCF Message Catalog 0.1 holds, turned into attributes of 1.0.
#
# The content has one section per part of the message: ``attributes`` of a CloudEvent; the sections of an AMQP message;
# ``publish`` and ``userproperty`` of MQTT; ``pub`` of NATS. Its values are attribute value templates, in which an empty
# ``value`` permits any content and a ``null`` one is as if the property were not listed.

MQTT_NAMES: Final = {"expiryinterval": "message_expiry_interval"}
"""Names of properties of MQTT that are no spelling of those of 1.0."""
MAIN: Final = {"MQTT/5.0": "publish", "MQTT/3.1.1": "publish", "NATS": "pub"}
"""The section that holds the plain options, by protocol."""
PAYLOADS: Final = ("applicationdata", "payload")
"""The sections that hold a schema of the data, of AMQP and of the others."""
_FORMATS: Final = {"json": "JsonSchema", "jsonschema": "JsonSchema", "avro": "Avro", "protobuf": "Protobuf/3"}
_DRAFT: Final = re.compile(r"draft[-/][0-9][0-9-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Described:
    """Attributes under their 1.0 names, where they are written, and the protocol when the content settles it."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, SourceLocation] = field(default_factory=dict)
    protocol: str | None = None


def described(content: Mapping[str, Any], form: Format, at: SourceLocation, findings: Findings) -> Described:
    """Read the content of a definition of the format *form*."""
    reader = _Reader(at, findings)
    if form.protocol is None or (form.envelope is not None and "attributes" in content):
        reader.envelope(content)
        content = {name: section for name, section in content.items() if name != "attributes"}
    if form.protocol is None:
        return Described(reader.attributes, reader.written)
    protocol = form.protocol
    main = MAIN.get(protocol)
    section = content.get(main) if main is not None else None
    if main == "publish" and isinstance(section, dict):
        version = given(_text(section.get("mqttversion")))
        protocol = canonical_protocol(f"MQTT/{version}") if version is not None else protocol
    reader.options(content, protocol, main)
    return Described(reader.attributes, reader.written, protocol)


class _Reader:
    """Fills ``attributes`` and ``written`` from one content."""

    def __init__(self, at: SourceLocation, findings: Findings) -> None:
        self.attributes: dict[str, Any] = {}
        self.written: dict[str, SourceLocation] = {}
        self._at = at
        self._findings = findings

    def envelope(self, content: Mapping[str, Any]) -> None:
        """Read the attributes of an envelope, among which is the schema of the data."""
        place = self._at / "attributes"
        listed = self._map(content.get("attributes"), place)
        attributes = {name: body for name, body in listed.items() if _is_listed(body)}
        schema = attributes.get("dataschema")
        if isinstance(schema, dict):
            self._schema(schema, place / "dataschema")
            body = {name: value for name, value in schema.items() if name not in ("schema", "schematype")}
            attributes["dataschema"] = body
            if body.get("value") is None and not body.get("required"):
                del attributes["dataschema"]
        self.attributes["envelopemetadata"] = attributes
        self.written["envelopemetadata"] = place

    def options(self, content: Mapping[str, Any], protocol: str, main: str | None) -> None:
        """Read the sections of a message of a protocol."""
        vocabulary = VOCABULARIES.get(protocol, Vocabulary({}))
        options: dict[str, Any] = {}
        for name, value in content.items():
            place = self._at / name
            if name in PAYLOADS:
                self._schema(self._map(value, place).get("dataschema"), place / "dataschema")
            elif name == main:
                self._plain(self._map(value, place), protocol, vocabulary, place, options)
            elif name == "userproperty" and "user_properties" in vocabulary.lists:
                options["user_properties"] = self._list("user_properties", value, place)
            else:
                self._section(name, value, protocol, vocabulary, place, options)
        self.attributes["protocoloptions"] = options
        self.written["protocoloptions"] = self._at

    def _plain(
        self,
        section: Mapping[str, Any],
        protocol: str,
        vocabulary: Vocabulary,
        at: SourceLocation,
        options: dict[str, Any],
    ) -> None:
        for name, value in section.items():
            known = MQTT_NAMES.get(name, name) if protocol.startswith("MQTT/") else name
            canonical = canonical_option(protocol, known)
            if canonical is not None and canonical in vocabulary.scalars:
                if _is_listed(value):
                    options[canonical] = value
                    self.written[f"protocoloptions.{canonical}"] = at / name
            elif name != "mqttversion":
                self._unknown(f"{protocol} has no option {name}; it is ignored", at / name)

    def _section(
        self, name: str, value: Any, protocol: str, vocabulary: Vocabulary, at: SourceLocation, options: dict[str, Any]
    ) -> None:
        """Read a section of AMQP; what a format that 0.1 does not define has is taken as it is."""
        canonical = canonical_option(protocol, name)
        if canonical is not None and canonical in vocabulary.sections:
            table = vocabulary.sections[canonical]
            section = options.setdefault(canonical, {})
            for inner, body in self._map(value, at).items():
                known = inner if table is None else canonical_member(table, inner)
                if known is None:
                    self._unknown(f"the AMQP section {canonical} has no property {inner}; it is ignored", at / inner)
                elif _is_listed(body):
                    section[known] = body
                    self.written[f"protocoloptions.{canonical}.{known}"] = at / inner
        elif protocol not in MAIN and canonical is not None:
            options[name] = value
        else:
            self._unknown(f"a message of {protocol} has no section {name}; it is ignored", at)

    def _list(self, canonical: str, value: Any, at: SourceLocation) -> list[Any]:
        """Read a map by name as the list that 1.0 has."""
        named: list[Any] = []
        for name, body in self._map(value, at).items():
            if _is_listed(body):
                named.append({"name": name, **(body if isinstance(body, dict) else {"value": body})})
                self.written[f"protocoloptions.{canonical}.{name}"] = at / name
        return named

    def _schema(self, schema: Any, at: SourceLocation) -> None:
        """Read a data schema: a reference in ``value``, or a document in ``schema``."""
        if isinstance(schema, str):
            schema = {"value": schema}
        body = self._map(schema, at)
        reference = given(optional_text(body.get("value"), at / "value", self._findings))
        document = body.get("schema")
        kind = given(optional_text(body.get("schematype"), at / "schematype", self._findings))
        if reference is not None:
            self.attributes["dataschemauri"], self.written["dataschemauri"] = reference, at / "value"
        if document is not None:
            self.attributes["dataschema"], self.written["dataschema"] = document, at / "schema"
        if kind is not None:
            self.attributes["dataschemaformat"] = schema_format(kind, document)
            self.written["dataschemaformat"] = at / "schematype"

    def _map(self, value: Any, at: SourceLocation) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self._findings.error(at, "wrong-shape", "this is not an object and is ignored", "write it as a map by name")
        return {}

    def _unknown(self, text: str, at: SourceLocation) -> None:
        self._findings.warning(at, "unknown-option", text, "correct or remove the name")


def _is_listed(body: Any) -> bool:
    """Tell what counts: a null value is as if the property were not there."""
    return body is not None and not (isinstance(body, dict) and "value" in body and body["value"] is None)


def _text(value: Any) -> str | None:
    """Return a text that may be wrapped as ``{"value": …}``."""
    inner = value.get("value") if isinstance(value, dict) else value
    return None if inner is None or isinstance(inner, (dict, list, bool)) else text_of(inner)


def schema_format(kind: str, document: Any) -> str:
    """Return a schema format of 1.0; the version of a JSON schema is the one that it says it has."""
    name = _FORMATS.get(kind.lower(), kind)
    said = document.get("$schema") if isinstance(document, dict) else None
    draft = _DRAFT.search(said) if name == "JsonSchema" and isinstance(said, str) else None
    return f"{name}/{draft.group()}" if draft else name


# Attributes of 1.0 as a message definition of CNCF Message Catalog 0.1: the way back from ``messagesections``.
#
# What 0.1 has no section for stays beside the definition, under its name of 1.0, where readers of 0.1 take it too. Each
# definition is read back before it is given away, so that nothing is ever said otherwise than it was.

SCHEMA: Final = ("dataschemauri", "dataschema", "dataschemaformat")
CONTENT: Final = ("envelopemetadata", "protocoloptions", *SCHEMA)
"""Attributes that a definition holds in its sections."""
SELECTORS: Final = ("envelope", "protocol")
_NAMES: Final = {canonical: written for written, canonical in MQTT_NAMES.items()}
_TYPES: Final = ("JSON", "Avro", "Protobuf")


@dataclass(frozen=True, slots=True)
class MessageSections:
    """A definition: ``format`` ('' when nothing names one), its sections, and the attributes that stay beside it."""

    format: str
    definition: Mapping[str, Any]
    beside: Mapping[str, Any]


def format_of(envelope: str | None, protocol: str | None) -> str:
    """Return the format name of an envelope, or of a protocol if there is no envelope; '' if neither has one."""
    if envelope is not None:
        return "CloudEvents" if canonical_envelope(envelope) == CLOUDEVENTS else envelope
    known = canonical_protocol(protocol or "")
    return known.partition("/")[0] if known in PROTOCOLS else ""


def written(attributes: Mapping[str, Any]) -> MessageSections:
    """Return a message's own attributes, under their names of 1.0, as a definition of 0.1."""
    envelope, protocol = attributes.get("envelope"), attributes.get("protocol")
    form = format_of(envelope, protocol)
    beside = {name: value for name, value in attributes.items() if name not in SELECTORS}
    known = None if protocol is None else canonical_protocol(protocol)
    unsaid = (
        {} if protocol is None or (envelope is None and known == canonical_protocol(form)) else {"protocol": protocol}
    )
    own = beside.get("definition")
    if isinstance(own, dict):  # of a format that is not ours, or nested by a registry: it stays as it was written
        del beside["definition"]
        return MessageSections(form, own, {**beside, **unsaid})
    reading = Format(envelope if envelope is None else canonical_envelope(envelope), known)
    for content in (CONTENT, CONTENT[:2]):
        taken = {name: attributes[name] for name in content if name in attributes}
        sections = _sections(taken, reading)
        if sections is not None and _reads_as(sections, reading, taken):
            rest = {name: value for name, value in beside.items() if name not in taken}
            versioned = envelope is None and "mqttversion" in sections.get("publish", ())
            return MessageSections(form, sections, rest if versioned else {**rest, **unsaid})
    return MessageSections(form, {}, {**beside, **unsaid})


def _reads_as(sections: Mapping[str, Any], reading: Format, wanted: Mapping[str, Any]) -> bool:
    """Whether readers of 0.1 take the sections for those very attributes."""
    findings = Findings()
    description = described(sections, reading, SourceLocation(""), findings)
    if findings.sorted() or description.protocol not in (None, reading.protocol):
        return False
    given = {name: value for name, value in description.attributes.items() if value != {}}
    return given == {name: value for name, value in wanted.items() if value != {}}


def _sections(taken: Mapping[str, Any], reading: Format) -> dict[str, Any] | None:
    """Return the sections; None for what has the wrong shape for them."""
    sections: dict[str, Any] = {}
    schema = _schema(taken)
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
        sections[PAYLOADS[0 if reading.protocol.startswith("AMQP/") else 1]] = {"dataschema": schema}
    return sections


def _schema(taken: Mapping[str, Any]) -> dict[str, Any]:
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
    """Add the sections of a protocol; False when an option has the wrong shape for them."""
    vocabulary = VOCABULARIES.get(protocol, Vocabulary({}))
    main = MAIN.get(protocol)
    plain: dict[str, Any] = {"mqttversion": "3.1.1"} if protocol == "MQTT/3.1.1" else {}
    for name, value in options.items():
        if main is not None and name in vocabulary.scalars:
            plain[_NAMES.get(name, squash(name)) if main == "publish" else squash(name)] = value
        elif main is not None and name == "user_properties":
            named = _by_name(value)
            if named is None:
                return False
            sections["userproperty"] = named
        elif name in vocabulary.sections:
            if not isinstance(value, dict):
                return False
            fixed = vocabulary.sections[name] is not None
            sections[squash(name)] = {squash(inner) if fixed else inner: body for inner, body in value.items()}
        else:
            sections[name] = value
    if main is not None and plain:
        sections[main] = plain
    return True


def _by_name(values: Any) -> dict[str, Any] | None:
    """Return a list of named values as the map that 0.1 has; None for what is no such list, or names one twice."""
    by_name: dict[str, Any] = {}
    for each in values if isinstance(values, list) else [None]:
        if not isinstance(each, dict) or not isinstance(name := each.get("name"), str) or name in by_name:
            return None
        by_name[name] = {inner: value for inner, value in each.items() if inner != "name"}
    return by_name


# What stands in ``metadata`` before 1.0, and what of ``envelopeoptions`` and ``config`` belongs elsewhere.
#
# ``metadata`` holds attributes of an envelope or options of a protocol, by what ``format`` names, else by the names in
# it. The specification's own example puts attribute constraints into ``envelopeoptions`` of a message; they are
# ``envelopemetadata`` (MATCHING.md#catalogs).

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
            text = f"{name} is not an object and is ignored"
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
            text = f"{name} is not an object and is ignored"
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
        findings.error(place, "wrong-shape", f"{name} is not an object and is ignored", "write it as a map")
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
        findings.error(place / "versions", "wrong-shape", "versions is not a list and is ignored", "write it as a list")
    best: tuple[int, Mapping[str, Any], SourceLocation] | None = None
    for key, body in entries:
        at = place / "versions" / key
        if not isinstance(body, dict):
            findings.error(at, "wrong-shape", "a version is not an object and is ignored", "write it as an object")
            continue
        number = version_number(body.get("version", key if isinstance(key, str) else None))
        if best is None or number > best[0]:
            best = (number, body, at)
    return None if best is None else best[1:]
