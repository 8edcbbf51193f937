"""Attributes of 1.0 as a message definition of CNCF Message Catalog 0.1: the way back from ``messagesections``.

What 0.1 has no section for stays beside the definition, under its name of 1.0, where readers of 0.1 take it too. Each
definition is read back before it is given away, so that nothing is ever said otherwise than it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from catalog.declared import Place
from catalog.dialects.messagesections import MAIN, MQTT_NAMES, PAYLOADS, described, schema_format
from catalog.dialects.reading import Format
from catalog.findings import Findings
from catalog.model import CLOUDEVENTS, PROTOCOLS
from catalog.protocols.properties import VOCABULARIES, Vocabulary, canonical_envelope, canonical_protocol, squash

SCHEMA: Final = ("dataschemauri", "dataschema", "dataschemaformat")
CONTENT: Final = ("envelopemetadata", "protocoloptions", *SCHEMA)
"""Attributes that a definition holds in its sections."""
SELECTORS: Final = ("envelope", "protocol")
_NAMES: Final = {canonical: written for written, canonical in MQTT_NAMES.items()}
_TYPES: Final = ("JSON", "Avro", "Protobuf")


@dataclass(frozen=True, slots=True)
class Written:
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


def written(attributes: Mapping[str, Any]) -> Written:
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
        return Written(form, own, {**beside, **unsaid})
    reading = Format(envelope if envelope is None else canonical_envelope(envelope), known)
    for content in (CONTENT, CONTENT[:2]):
        taken = {name: attributes[name] for name in content if name in attributes}
        sections = _sections(taken, reading)
        if sections is not None and _reads_as(sections, reading, taken):
            rest = {name: value for name, value in beside.items() if name not in taken}
            versioned = envelope is None and "mqttversion" in sections.get("publish", ())
            return Written(form, sections, rest if versioned else {**rest, **unsaid})
    return Written(form, {}, {**beside, **unsaid})


def _reads_as(sections: Mapping[str, Any], reading: Format, wanted: Mapping[str, Any]) -> bool:
    """Tell whether readers of 0.1 take the sections for those very attributes."""
    findings = Findings()
    description = described(sections, reading, Place(""), findings)
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
