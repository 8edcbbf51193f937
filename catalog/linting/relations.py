"""Relations that lead nowhere: to no definition, in a circle, or by a property that tells no message from another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from catalog.declared import DeclaredMessage
from catalog.definitions.relations import TO, VIA, target_of
from catalog.definitions.subject import Subject
from catalog.model import Relation

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
