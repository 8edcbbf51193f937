"""Definitions that constrain nothing: all records of their envelope and protocol match them."""

from __future__ import annotations

from catalog.definitions.candidates import schema_of
from catalog.definitions.demands import Candidate
from catalog.definitions.subject import Subject
from catalog.model import CLOUDEVENTS, Definition, Property


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
