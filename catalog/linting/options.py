"""Protocol options that can never be met: wildcards, stripped headers, and options that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from catalog.declared import Place
from catalog.definitions.pointing import option_place
from catalog.definitions.subject import Declared, Subject
from catalog.model import Definition
from catalog.protocols.properties import ANY_VOCABULARY, REQUEST_CREDENTIALS, TOKEN_PARAMETER, VOCABULARIES
from catalog.templates import tokens_of

_STRIPPED: Final = frozenset({f"query.{TOKEN_PARAMETER}", *(f"headers.{name}" for name in REQUEST_CREDENTIALS)})
_EXCLUSIVE: Final[Mapping[str, tuple[str, str]]] = {"KAFKA": ("key", "key_base64"), "HTTP": ("method", "status")}
_TOPICS: Final = frozenset({"topic_name", "response_topic"})
_WILDCARD: Final = re.compile(r"[+#*>]")
_CHARACTERS: Final = re.compile(r"[+#]")
_TOKENS: Final = re.compile(r"(?<![^.])[*>](?![^.])")
_PUBLISHED: Final[Mapping[str, str]] = {"MQTT/3.1.1": "topic", "MQTT/5.0": "topic", "NATS": "subject"}
"""The endpoint option that names where producers publish to."""


def options(subject: Subject) -> None:
    """Look at the protocol options of every definition, and at where producers publish to."""
    for declared in subject.options():
        _wildcard(subject, declared)
        _stripped(subject, declared)
    for definition, _, base in subject.definitions():
        _exclusive(subject, definition, base)
    for endpoint in subject.catalog.endpoints.values():
        name = _PUBLISHED.get(endpoint.protocol or "")
        value = endpoint.options.get(name) if name else None
        if isinstance(value, str) and "producer" in endpoint.usage:
            place = subject.declarations.endpoints[endpoint.xid].place
            _tell_wildcard(subject, endpoint.protocol, value, f"the {name} that {endpoint.xid} publishes to", place)


def _wildcard(subject: Subject, declared: Declared) -> None:
    prop, protocol = declared.prop, declared.definition.protocol
    topics = _TOPICS if (protocol or "").startswith("MQTT/") else frozenset()
    kinds = VOCABULARIES.get(protocol or "", ANY_VOCABULARY).dotted or topics
    if prop.name in kinds and isinstance(prop.value, str) and _WILDCARD.search(prop.value):
        _tell_wildcard(subject, protocol, prop.value, prop.name, declared.place)


def _tell_wildcard(subject: Subject, protocol: str | None, value: str, what: str, place: Place) -> None:
    """Report a wildcard in the literal part of a name; where dots part the levels, only as a whole level."""
    wildcards = _TOKENS if VOCABULARIES.get(protocol or "", ANY_VOCABULARY).dotted else _CHARACTERS
    for text in tokens_of(value)[::2]:
        wildcard = wildcards.search(text)
        if wildcard is not None:
            message = f"{what} holds the wildcard {wildcard.group()}, and no message is published to such a name"
            hint = "write a placeholder such as {name} in its place"
            subject.findings.warning(place, "publish-wildcard", message, hint)
            return


def _stripped(subject: Subject, declared: Declared) -> None:
    prop = declared.prop
    if (
        declared.definition.protocol == "HTTP"
        and prop.name.lower() in _STRIPPED
        and (prop.required or prop.value is not None)
    ):
        text = f"gateways remove {prop.name.split('.', 1)[1]} from every record, so the definition never matches"
        subject.findings.warning(
            declared.place, "never-received", text, "remove the constraint; gateways check credentials"
        )


def _exclusive(subject: Subject, definition: Definition, base: Definition | None) -> None:
    pair = _EXCLUSIVE.get(definition.protocol or "")
    if pair is None:
        return
    given = {prop.name for prop in definition.protocoloptions if prop.value is not None or prop.required}
    inherited = {prop.name for prop in base.protocoloptions} if base is not None else set()
    if given.issuperset(pair) and not inherited.issuperset(pair):
        message = subject.declarations.messages[definition.xid]
        written = (option_place(message, name, definition.protocol) for name in reversed(pair))
        place = next((at for at in written if at is not None), message.place)
        text = f"{pair[0]} and {pair[1]} exclude each other, and no record has both"
        subject.findings.warning(place, "mutually-exclusive", text, f"keep {pair[0]} or {pair[1]}")
