"""All of lint on one screen: the families of rules in order, each a function over the whole catalog.

A family reports where the thing is declared, and none stops at the first finding. What a definition has from its base
unchanged is reported at the base only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from catalog.definitions.candidates import Candidate, Subject, candidates, schema_of
from catalog.definitions.inheritance import TO, VIA, target_of
from catalog.findings import DeclaredMessage, SourceLocation
from catalog.linting.attributes import attributes
from catalog.linting.events import events, payloads, values
from catalog.linting.options import channels, endpoint_options, options
from catalog.model import CLOUDEVENTS, PROTOCOLS, Definition, Property, Relation
from catalog.parsing.nearest import nearest

# Envelope and protocol: unknown ones, none where one is needed, and others than the group's.


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


def _known_protocol(subject: Subject, protocol: str | None, place: SourceLocation) -> None:
    if protocol is not None and protocol not in PROTOCOLS:
        text = f"the protocol {protocol} is unknown; nothing is ever received over it"
        hint = f"use one of {', '.join(PROTOCOLS)}"
        meant = _meant(protocol, _KNOWN)
        subject.findings.error(place, "unknown-protocol", text, f"did you mean {meant}?" if meant else hint)


def _meant(name: str, known: Mapping[str, str]) -> str | None:
    plain = _plain(name)
    return known.get(plain) or known.get(nearest(plain, known) or "")


def _unknown_envelope(subject: Subject, envelope: str, text: str, place: SourceLocation) -> None:
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


# Definitions that constrain nothing: all records of their envelope and protocol match them.


def unconstrained(subject: Subject) -> None:
    """Report definitions that take everything; one that others derive from, or that has a schema, as info only."""
    bases = {base for definition in subject.catalog.definitions.values() for base in definition.base}
    for xid, definition in subject.catalog.definitions.items():
        if not _takes_everything(definition):
            continue
        place = subject.declarations.messages[xid].place
        text = f"this constrains nothing, and takes {_everything(definition)}"
        hint = "give an attribute or option a value that only its records have"
        if schema_of(definition) is not None:
            text += "; only where several definitions match does its data schema decide"
            subject.findings.info(place, "takes-everything", text, hint)
        elif xid in bases:
            hint = "keep it in a group that no endpoint lists, if it is only meant as a base"
            subject.findings.info(place, "takes-everything", text, hint)
        else:
            subject.findings.warning(place, "takes-everything", text, hint)


def _takes_everything(definition: Definition) -> bool:
    """Tell whether there is no demand at all; for one without envelope and protocol a schema is one."""
    if definition.envelope not in (CLOUDEVENTS, None):
        return False
    if definition.envelope is None and definition.protocol is None and schema_of(definition) is not None:
        return False
    candidate = Candidate(definition, definition.protocol or "any", True, True)
    if any(map(_is_literal, candidate.properties(events=True))):
        return False  # as nearly all are, which need no closer look
    asked = candidate.demands(events=True)
    return not (asked.strong or asked.weak or asked.same or asked.content)


def _is_literal(asked: tuple[str, Property]) -> bool:
    """Tell a text that is sure to exclude records: no template, no "now", and not what every event has."""
    key, prop = asked
    text = isinstance(prop.value, str) and "{" not in prop.value
    return text and prop.type != "timestamp" and key != "e.specversion"


def _everything(definition: Definition) -> str:
    over = f" over {definition.protocol}" if definition.protocol else ""
    native = definition.protocol is not None and (definition.protocol_declared or definition.protocoloptions)
    if definition.envelope is not None and not native:
        return f"every CloudEvent{over}"
    return f"every record{over}"


# Relations that lead nowhere: to no definition, in a circle, or by a property that tells no message from another.

NAMED: Final = 8
"""Definitions of a circle that are named."""


def relations(subject: Subject) -> None:
    """Report the relations that definitions declare; what they have from their bases is reported there."""
    for message in subject.declarations.messages.values():
        if not message.hidden and TO in message.other:
            _target(subject, message)
    _circles(subject)
    _properties(subject)


def _target(subject: Subject, message: DeclaredMessage) -> None:
    related = message.other[TO]
    messages = subject.declarations.messages
    if isinstance(related, str) and related and target_of(message, related) in messages:
        return
    text = f"{message.xid} is related to {related!r:.80}, which is not in its group"
    subject.findings.warning(message.at(TO), "dangling-relation", text, "name a definition of the same group")


def _circles(subject: Subject) -> None:
    """Report each circle once, at the definition of it that comes first."""
    definitions = subject.catalog.definitions
    done: set[str] = set()
    for xid in definitions:
        way: dict[str, None] = {}
        at: str | None = xid
        while at is not None and at not in done and at not in way:
            way[at] = None
            relation = definitions[at].relation
            at = relation.to if relation is not None else None
        if at in way:
            walked = list(way)
            circle = walked[walked.index(at) :]
            shown = (*circle[:NAMED], "...") if len(circle) > NAMED else (*circle, at)
            text = f"{at} is, over its relations, related to itself: {' -> '.join(shown)}"
            hint = "take one relation out of the circle, or name in it what begins the exchange"
            place = subject.declarations.messages[at].at(TO)
            subject.findings.warning(place, "relation-cycle", text, hint)
        done.update(way)


def _properties(subject: Subject) -> None:
    for message, relation in _declared(subject):
        via = message.other.get(VIA)
        if via is not None and not relation.via:
            text = f"{message.xid} is related via {via!r:.80}, which no message of it has, or which identifies no other"
            hint = (
                "name an attribute of the event; in AMQP properties.correlationid, properties.groupid or "
                "applicationproperties.NAME; in MQTT 5 publish.correlationdata or userproperty.NAME"
            )
            subject.findings.warning(message.at(VIA), "unusable-via", text, hint)


def _declared(subject: Subject) -> Iterator[tuple[DeclaredMessage, Relation]]:
    for definition, message, _ in subject.definitions():
        if definition.relation is not None:
            yield message, definition.relation


# Credential material in endpoints: found by the name of its member or the form of its value, and never repeated.

_MESSAGES: Final = frozenset({"messages", "definitions", "messagegroups", "definitiongroups", "labels", "description"})
"""Members of an endpoint that are no configuration."""
_NAME: Final = re.compile(
    r"(?:password|passwd|passphrase|pwd|secret|apikey|accesskey|accountkey|secretkey|sharedkey|privatekey|"
    r"token|credentials?|connectionstring|signingkey)$"
)
_NOT_LETTERS: Final = re.compile(r"[^a-z0-9]+")
_REFERENCE: Final = re.compile(
    r"\s*(?:\$?\{[^{}]*\}|\$\w+|<[^<>]*>|\*+|(?:file|env|vault|secret|keyvault|arn):.*|@.*)\s*"
)
"""What stands for a credential that is kept elsewhere, or shows that there is one."""
_VALUES: Final = (
    ("user and password", re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#\s:@]*:(?!\$?\{)[^/?#\s@]+@")),
    (
        "a token",
        re.compile(r"[?&;](?:access_token|sig|api_?key|token|password|secret)=(?!\$?\{)[^&\s]+", re.IGNORECASE),
    ),
    (
        "a key",
        re.compile(
            r"\b(?:SharedAccessKey|AccountKey|SharedAccessSignature|password|pwd)\s*=\s*(?![\s$<{])[^;\s]+", re.I
        ),
    ),
    ("a token", re.compile(r"\s*(?:Bearer|Basic)\s+[A-Za-z0-9+/=._~\-]{8,}\s*", re.IGNORECASE)),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
)
MAX_TEXT: Final = 8192
"""Longer texts are not searched beyond this."""


def credentials(subject: Subject) -> None:
    """Look through every endpoint, but for its messages."""
    for endpoint in subject.declarations.endpoints.values():
        for name, value in subject.endpoint_bodies.get(endpoint.xid, {}).items():
            if name.lower() not in _MESSAGES:
                for place, what in _credentials(name, value, endpoint.place / name):
                    hint = (
                        "remove it from the catalog and take it as compromised; settings take it from the environment"
                    )
                    subject.findings.warning(place, "credential-in-catalog", f"this looks like {what}", hint)


def _credentials(name: str, value: Any, place: SourceLocation) -> Iterator[tuple[SourceLocation, str]]:
    """Give places and kinds of credentials at and below a member."""
    if isinstance(value, dict):
        described = value.get("name")
        if isinstance(described, str) and isinstance(value.get("value"), str):
            yield from _credentials(described, value["value"], place / "value")
            return
        for key, member in value.items():
            inner = name if key == "value" else key
            yield from _credentials(inner, member, place / key)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _credentials(name, member, place / index)
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        what = _kind(name, str(value))
        if what:
            yield place, what


def _kind(name: str, text: str) -> str:
    """Say what a value looks like, empty when it is no credential."""
    if not text.strip() or _REFERENCE.fullmatch(text[:MAX_TEXT]):
        return ""
    if _NAME.search(_NOT_LETTERS.sub("", name.lower())) and "://" not in text:
        return "a credential"
    return next((what for what, pattern in _VALUES if pattern.search(text[:MAX_TEXT])), "")


FAMILIES: Final[tuple[Callable[[Subject], None], ...]] = (
    attributes,
    selectors,
    values,
    options,
    events,
    payloads,
    channels,
    endpoint_options,
    credentials,
    relations,
    candidates,
    unconstrained,
)


def lint(subject: Subject) -> None:
    """Apply every rule that needs the whole catalog; findings of single values were reported while reading."""
    for family in FAMILIES:
        family(subject)
