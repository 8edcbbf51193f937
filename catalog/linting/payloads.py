"""Payload declarations that contradict themselves; whether schemas are any good is found when they are linked."""

from __future__ import annotations

from typing import Final

from catalog.declared import DeclaredMessage
from catalog.definitions.pointing import attribute_place
from catalog.definitions.subject import Subject
from catalog.linting.placeholders import is_literal
from catalog.model import CLOUDEVENTS, Definition
from catalog.schemas.library import format_of
from catalog.values import media_type_matches, text_of

_SCHEMAS: Final = ("dataschema", "dataschemauri")


def payloads(subject: Subject) -> None:
    """Look at schema and content type of every definition that declares any."""
    for definition, message, base in subject.definitions():
        _format(subject, definition, message)
        if all(message.attributes.get(name) is not None for name in _SCHEMAS):
            text = "dataschema and dataschemauri exclude each other"
            subject.findings.warning(message.at("dataschemauri"), "mutually-exclusive", text, "keep one of them")
        _content_type(subject, definition, message, base)


def _format(subject: Subject, definition: Definition, message: DeclaredMessage) -> None:
    """A schema without a format: an info when its own is known; when none can be, linking has reported it."""
    given = next((name for name in _SCHEMAS if message.attributes.get(name) is not None), None)
    if given is None or definition.dataschemaformat is not None:
        return
    linked = subject.catalog.schemas.get(definition.schemakey or "")
    known = format_of(None, linked) if linked is not None else None
    if linked is not None and known is None:
        return
    text = f"{given} is given, and dataschemaformat is not" + (f"; {known.family} is taken" if known else "")
    hint = "add dataschemaformat, such as JsonSchema/draft-07 or Avro/1.11"
    subject.findings.add(message.at(given), "info" if known else "warning", "missing-required", text, hint)


def _content_type(subject: Subject, definition: Definition, message: DeclaredMessage, base: Definition | None) -> None:
    """Both the attribute of the message and that of its envelope are compared with the content type of the data."""
    if definition.envelope != CLOUDEVENTS or not definition.datacontenttype:
        return
    own, attribute = definition.datacontenttype, _declared_in_envelope(definition)
    if base is not None and (own, attribute) == (base.datacontenttype, _declared_in_envelope(base)):
        return
    place = message.at("datacontenttype")
    if "datacontenttype" not in message.attributes:
        place = attribute_place(message, "datacontenttype") or message.place
    if own.strip().lower().startswith("application/cloudevents"):
        text = f"datacontenttype is that of the data here, and no event carries {own}"
        subject.findings.warning(place, "content-type-conflict", text, "write the content type of the data, or none")
    elif attribute and not (media_type_matches(own, attribute) or media_type_matches(attribute, own)):
        text = f"datacontenttype is {own} for the message and {attribute} in its envelope"
        subject.findings.warning(place, "content-type-conflict", text, "make them equal, or keep one of them")


def _declared_in_envelope(definition: Definition) -> str | None:
    for prop in definition.envelopemetadata:
        if prop.name == "datacontenttype" and is_literal(prop):
            return text_of(prop.value)
    return None
