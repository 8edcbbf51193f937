"""Protocol options that can never be met: wildcards, stripped headers, and options that exclude each other."""

from __future__ import annotations

import re
from typing import Final

from catalog.declared import Place
from catalog.definitions.pointing import option_place
from catalog.definitions.subject import Declared, Subject
from catalog.model import Definition
from catalog.protocols.properties import vocabulary_of
from catalog.templates import tokens_of

_WILDCARD: Final = re.compile(r"[+#*>]")
_CHARACTERS: Final = re.compile(r"[+#]")
_TOKENS: Final = re.compile(r"(?<![^.])[*>](?![^.])")


def options(subject: Subject) -> None:
    """Look at the protocol options of every definition, and at where producers publish to."""
    for declared in subject.options():
        _wildcard(subject, declared)
        _stripped(subject, declared)
    for definition, _, base in subject.definitions():
        _exclusive(subject, definition, base)
    for endpoint in subject.catalog.endpoints.values():
        name = vocabulary_of(endpoint.protocol).publishes
        value = endpoint.options.get(name) if name else None
        if isinstance(value, str) and "producer" in endpoint.usage:
            place = subject.declarations.endpoints[endpoint.xid].place
            _report_wildcard(subject, endpoint.protocol, value, f"the {name} that {endpoint.xid} publishes to", place)


def _wildcard(subject: Subject, declared: Declared) -> None:
    prop, protocol = declared.prop, declared.definition.protocol
    if prop.name in vocabulary_of(protocol).names and isinstance(prop.value, str) and _WILDCARD.search(prop.value):
        _report_wildcard(subject, protocol, prop.value, prop.name, declared.place)


def _report_wildcard(subject: Subject, protocol: str | None, value: str, what: str, place: Place) -> None:
    """Report a wildcard in the literal part of a name; where dots part the levels, only as a whole level."""
    wildcards = _TOKENS if vocabulary_of(protocol).dotted else _CHARACTERS
    for text in tokens_of(value)[::2]:
        wildcard = wildcards.search(text)
        if wildcard is not None:
            message = f"{what} holds the wildcard {wildcard.group()}, and no message is published to such a name"
            hint = "write a placeholder such as {name} in its place"
            subject.findings.warning(place, "publish-wildcard", message, hint)
            return


def _stripped(subject: Subject, declared: Declared) -> None:
    prop = declared.prop
    withheld = vocabulary_of(declared.definition.protocol).withheld
    if prop.name.lower() in withheld and (prop.required or prop.value is not None):
        text = f"gateways remove {prop.name.split('.', 1)[1]} from every record, so the definition never matches"
        subject.findings.warning(
            declared.place, "never-received", text, "remove the constraint; gateways check credentials"
        )


def _exclusive(subject: Subject, definition: Definition, base: Definition | None) -> None:
    pair = vocabulary_of(definition.protocol).exclusive
    if not pair:
        return
    given = {prop.name for prop in definition.protocoloptions if prop.value is not None or prop.required}
    inherited = {prop.name for prop in base.protocoloptions} if base is not None else set()
    if given.issuperset(pair) and not inherited.issuperset(pair):
        message = subject.declarations.messages[definition.xid]
        written = (option_place(message, name, definition.protocol) for name in reversed(pair))
        place = next((at for at in written if at is not None), message.place)
        text = f"{pair[0]} and {pair[1]} exclude each other, and no record has both"
        subject.findings.warning(place, "mutually-exclusive", text, f"keep {pair[0]} or {pair[1]}")
