"""What a message definition of CNCF Message Catalog 0.1 holds, turned into attributes of 1.0.

The content has one section per part of the message: ``attributes`` of a CloudEvent; the sections of an AMQP message;
``publish`` and ``userproperty`` of MQTT; ``pub`` of NATS. Its values are attribute value templates, in which an empty
``value`` permits any content and a ``null`` one is as if the property were not listed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.dialects.reading import Format, given, optional_text
from catalog.findings import Findings, SourceLocation
from catalog.model import CLOUDEVENTS, PROTOCOLS
from catalog.protocols.properties import (
    VOCABULARIES,
    Vocabulary,
    canonical_envelope,
    canonical_member,
    canonical_option,
    canonical_protocol,
    squash,
)
from catalog.values import text_of

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
                self._unknown(f"{protocol} has no {name}; it is ignored", at / name)

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
                    self._unknown(f"the AMQP {canonical} have no {inner}; it is ignored", at / inner)
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
        self._findings.error(at, "wrong-shape", "this is no object, and ignored", "write it as a map by name")
        return {}

    def _unknown(self, text: str, at: SourceLocation) -> None:
        self._findings.warning(at, "unknown-option", text, "remove it, or correct the name")


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
    """Return the format that names an envelope or, without one, a protocol; '' where none can."""
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
    """Tell whether readers of 0.1 take the sections for those very attributes."""
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
