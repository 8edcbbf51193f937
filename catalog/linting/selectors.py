"""Envelope and protocol: unknown ones, none where one is needed, and others than the group's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from catalog.declared import DeclaredMessage, Place
from catalog.definitions.subject import Subject
from catalog.model import CLOUDEVENTS, PROTOCOLS, Definition
from catalog.parsing.nearest import nearest


def _plain(name: str) -> str:
    """Reduce a name to its letters and digits, so that a slip in between counts no more than one."""
    return "".join(character for character in name.lower() if character.isalnum())


_KNOWN: Final = {
    **{_plain(protocol.partition("/")[0]): protocol for protocol in PROTOCOLS},
    **{_plain(protocol): protocol for protocol in PROTOCOLS},
}
"""The protocols by what their names are compared by, with their version and without."""


def selectors(subject: Subject) -> None:
    """Look at the envelope and protocol of every definition and endpoint."""
    endpoints = subject.catalog.endpoints.values()
    enveloped = {xid for endpoint in endpoints if endpoint.envelope for xid in endpoint.candidates}
    for definition, message, base in subject.definitions():
        if definition.envelope not in (None, CLOUDEVENTS) and (base is None or base.envelope != definition.envelope):
            text = f"the envelope {definition.envelope} is unknown; the definition never matches"
            place = message.at("envelope") if "envelope" in message.attributes else message.place
            _unknown_envelope(subject, definition.envelope, text, place)
        if base is None or base.protocol != definition.protocol:
            place = message.at("protocol") if "protocol" in message.attributes else message.place
            _known_protocol(subject, definition.protocol, place)
        _no_protocol(subject, definition, message)
        if definition.xid not in enveloped:
            _no_envelope(subject, definition, message)
        _group(subject, definition, message)
    for endpoint in endpoints:
        place = subject.declarations.endpoints[endpoint.xid].place
        _known_protocol(subject, endpoint.protocol, place)
        if endpoint.envelope not in (None, CLOUDEVENTS):
            text = f"the envelope {endpoint.envelope} is unknown; messages that have none of their own never match"
            _unknown_envelope(subject, endpoint.envelope, text, place)


def _known_protocol(subject: Subject, protocol: str | None, place: Place) -> None:
    if protocol is not None and protocol not in PROTOCOLS:
        text = f"the protocol {protocol} is unknown; nothing is ever received over it"
        hint = f"use one of {', '.join(PROTOCOLS)}"
        meant = _meant(protocol, _KNOWN)
        subject.findings.error(place, "unknown-protocol", text, f"did you mean {meant}?" if meant else hint)


def _meant(name: str, known: Mapping[str, str]) -> str | None:
    plain = _plain(name)
    return known.get(plain) or known.get(nearest(plain, known) or "")


def _unknown_envelope(subject: Subject, envelope: str, text: str, place: Place) -> None:
    hint = f"use {CLOUDEVENTS}, or no envelope"
    meant = _meant(envelope, {_plain(CLOUDEVENTS): CLOUDEVENTS})
    subject.findings.error(place, "unknown-envelope", text, f"did you mean {CLOUDEVENTS}?" if meant else hint)


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
