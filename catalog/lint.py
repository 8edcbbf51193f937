"""Rules about what a catalog means once it is read: definitions and endpoints that will not do what they seem to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from catalog.declared import Declarations, Place
from catalog.findings import Findings
from catalog.model import CLOUDEVENTS, PROTOCOLS, Definition, Endpoint, Property
from catalog.pointing import attribute_place, option_place
from catalog.protocol_properties import ALWAYS_REQUIRED
from catalog.templates import parse
from catalog.values import is_any_timestamp, is_valid, text_of

_ATTRIBUTE_NAME: Final = re.compile(r"[a-z0-9]+", re.ASCII)
_TEMPLATE_TYPES: Final = frozenset({"string", "symbol", "uri", "urireference", "uritemplate", "timestamp", "any"})
_FALLS_BACK: Final = frozenset({"id", "source", "time"})
_HAS_DEFAULT: Final = frozenset({"type", "specversion", "datacontenttype", "dataschema", "partitionkey"})
"""Attributes that mapping can fill without a declared value (section 6)."""


@dataclass(frozen=True, slots=True)
class Linter:
    """Applies every rule; each reports where the thing is declared, and none stops at the first."""

    declarations: Declarations
    findings: Findings

    def definitions(self, definitions: Mapping[str, Definition]) -> None:
        """Look at every definition; what it has from its base unchanged is reported at the base only."""
        for definition in definitions.values():
            place = self.declarations.messages[definition.xid].place
            base = definitions.get(definition.base[0]) if definition.base else None
            self._selectors(definition, base, place)
            self._protocol_options(definition, base)
            if definition.envelope in (None, CLOUDEVENTS):
                self._attributes(definition, base)
            self._mapping(definition)

    def endpoints(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Look at every endpoint."""
        for endpoint in endpoints.values():
            place = self.declarations.endpoints[endpoint.xid].place
            if not endpoint.candidates:
                hint = "list a message group, or add messages"
                self.findings.warning(place, "no-candidates", f"{endpoint.xid} expects no message at all", hint)
            self._known_protocol(endpoint.protocol, place)

    def _selectors(self, definition: Definition, base: Definition | None, place: Place) -> None:
        if definition.envelope not in (None, CLOUDEVENTS) and (base is None or base.envelope != definition.envelope):
            text = f"the envelope {definition.envelope} is unknown; the definition never matches"
            self.findings.warning(place, "unknown-envelope", text, f"use {CLOUDEVENTS}, or no envelope")
        if base is None or base.protocol != definition.protocol:
            self._known_protocol(definition.protocol, place)
        message = self.declarations.messages[definition.xid]
        endpoint = self.declarations.endpoints.get(definition.group)
        known = definition.protocol or (endpoint.protocol if endpoint else None)
        if known is None and message.attributes.get("protocoloptions"):
            at = message.at("protocoloptions")
            hint = "add protocol to the message, or to its group"
            self.findings.warning(at, "no-protocol", "which protocol these options are for is not said", hint)

    def _known_protocol(self, protocol: str | None, place: Place) -> None:
        if protocol is not None and protocol not in PROTOCOLS:
            text = f"the protocol {protocol} is unknown; nothing is ever received over it"
            self.findings.warning(place, "unknown-protocol", text, f"use one of {', '.join(PROTOCOLS)}")

    def _protocol_options(self, definition: Definition, base: Definition | None) -> None:
        message = self.declarations.messages[definition.xid]
        for prop in _new(definition.protocoloptions, base.protocoloptions if base else ()):
            self._value(prop, option_place(message, prop.name, definition.protocol) or message.place)

    def _attributes(self, definition: Definition, base: Definition | None) -> None:
        message = self.declarations.messages[definition.xid]
        for prop in _new(definition.envelopemetadata, base.envelopemetadata if base else ()):
            at = attribute_place(message, prop.name) or message.place
            self._value(prop, at, bits32=True)
            if not _ATTRIBUTE_NAME.fullmatch(prop.name):
                text = f"{prop.name!r} is no CloudEvents attribute name; no event has it"
                self.findings.warning(at, "attribute-name", text, "use lower case letters and digits only")
            if prop.name == "specversion" and prop.value not in (None, "1.0", 1.0):
                self.findings.warning(at, "specversion", "no event has this specversion", 'use "1.0"')
            body = message.attributes.get("envelopemetadata", {}).get(prop.name)
            if prop.name in ALWAYS_REQUIRED and isinstance(body, dict) and body.get("required") is False:
                text = f"{prop.name} is required of every event, whatever is declared"
                self.findings.warning(at, "always-required", text, "remove required")

    def _value(self, prop: Property, place: Place, *, bits32: bool = False) -> None:
        """Report a literal that no value of its type can equal."""
        if prop.value is None or is_any_timestamp(prop.value):
            return
        text = text_of(prop.value)
        if prop.type in _TEMPLATE_TYPES and not parse(text).is_literal:
            return
        if not is_valid(prop.type, text, bits32=bits32):
            message = f"the value {text[:80]!r} of {prop.name} is no {prop.type}"
            self.findings.warning(place, "value-type", message, "correct value or type")

    def _mapping(self, definition: Definition) -> None:
        """Warn of a native record that this definition matches and cannot make an event of (section 6)."""
        if definition.envelope != CLOUDEVENTS or definition.protocol is None or not definition.protocoloptions:
            return
        message = self.declarations.messages[definition.xid]
        supplied = set(_placeholders(definition.protocoloptions))
        for prop in definition.envelopemetadata:
            lacking = _lacking(prop, supplied)
            if lacking:
                at = attribute_place(message, prop.name) or message.place
                hint = "use the placeholder in protocoloptions too, or set it in the context of the source"
                self.findings.warning(at, "unmappable", f"a native message gives no {lacking} for {prop.name}", hint)


def _lacking(prop: Property, supplied: set[str]) -> str:
    """Name what mapping would lack for an attribute; empty when nothing."""
    if prop.name in _FALLS_BACK:
        return ""
    if prop.value is None:
        return "value" if prop.required and prop.name not in _HAS_DEFAULT else ""
    if prop.type not in _TEMPLATE_TYPES or is_any_timestamp(prop.value):
        return ""
    return ", ".join(dict.fromkeys(name for name in parse(text_of(prop.value)).names if name not in supplied))


def _new(own: tuple[Property, ...], inherited: tuple[Property, ...]) -> Iterator[Property]:
    known = set(inherited)
    return (prop for prop in own if prop not in known)


def _placeholders(properties: tuple[Property, ...]) -> Iterator[str]:
    for prop in properties:
        if isinstance(prop.value, str) and prop.type in _TEMPLATE_TYPES:
            yield from parse(prop.value).names
