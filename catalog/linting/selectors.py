"""Envelope and protocol: unknown ones, none where one is needed, and others than the group's."""

from __future__ import annotations

from catalog.declared import DeclaredMessage, Place
from catalog.definitions.subject import Subject
from catalog.model import CLOUDEVENTS, PROTOCOLS, Definition


def selectors(subject: Subject) -> None:
    """Look at the envelope and protocol of every definition and endpoint."""
    endpoints = subject.catalog.endpoints.values()
    enveloped = {xid for endpoint in endpoints if endpoint.envelope for xid in endpoint.candidates}
    for definition, message, base in subject.definitions():
        if definition.envelope not in (None, CLOUDEVENTS) and (base is None or base.envelope != definition.envelope):
            text = f"the envelope {definition.envelope} is unknown; the definition never matches"
            place = message.at("envelope") if "envelope" in message.attributes else message.place
            subject.findings.warning(place, "unknown-envelope", text, f"use {CLOUDEVENTS}, or no envelope")
        if base is None or base.protocol != definition.protocol:
            place = message.at("protocol") if "protocol" in message.attributes else message.place
            _known_protocol(subject, definition.protocol, place)
        _no_protocol(subject, definition, message)
        if definition.xid not in enveloped:
            _no_envelope(subject, definition, message)
        _group(subject, definition, message)
    for endpoint in endpoints:
        _known_protocol(subject, endpoint.protocol, subject.declarations.endpoints[endpoint.xid].place)


def _known_protocol(subject: Subject, protocol: str | None, place: Place) -> None:
    if protocol is not None and protocol not in PROTOCOLS:
        text = f"the protocol {protocol} is unknown; nothing is ever received over it"
        subject.findings.warning(place, "unknown-protocol", text, f"use one of {', '.join(PROTOCOLS)}")


def _no_protocol(subject: Subject, definition: Definition, message: DeclaredMessage) -> None:
    endpoint = subject.declarations.endpoints.get(definition.group)
    known = definition.protocol or (endpoint.protocol if endpoint else None)
    if known is None and message.attributes.get("protocoloptions"):
        text, hint = "which protocol these options are for is not said", "add protocol to the message, or to its group"
        subject.findings.warning(message.at("protocoloptions"), "no-protocol", text, hint)


def _no_envelope(subject: Subject, definition: Definition, message: DeclaredMessage) -> None:
    if definition.envelope is None and message.attributes.get("envelopemetadata"):
        text = "which envelope these attributes are of is not said, so they constrain nothing"
        hint = f"add envelope: {CLOUDEVENTS} to the message, or to its group"
        subject.findings.warning(message.at("envelopemetadata"), "no-envelope", text, hint)


def _group(subject: Subject, definition: Definition, message: DeclaredMessage) -> None:
    """Compare with what the group declares for all of its messages; in 0.1 it is a mere default."""
    group = subject.declarations.groups.get(definition.group)
    dialect = subject.dialects.get(message.place.file)
    if group is None or (dialect is not None and dialect.groups_give_formats):
        return
    for name, own, common in (
        ("envelope", definition.envelope, group.envelope),
        ("protocol", definition.protocol, group.protocol),
    ):
        if common is not None and own is not None and own != common:
            place = message.at(name) if name in message.attributes else message.place
            text = f"the {name} is {own}, and that of {group.xid} is {common}; they must be the same"
            hint = f"move it to a group of its own, or remove {name} from the group"
            subject.findings.warning(place, "group-mismatch", text, hint)
