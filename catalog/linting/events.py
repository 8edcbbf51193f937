"""What CloudEvents asks of its attributes, and whether a native message can become one (JUDGING.md#mapping)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog.definitions.pointing import attribute_place
from catalog.definitions.subject import Declared, Subject
from catalog.linting.placeholders import is_literal, names_in, names_of
from catalog.linting.values import SHOWN
from catalog.model import CLOUDEVENTS, Definition, Property
from catalog.parsing.nearest import nearest
from catalog.protocols.properties import ALWAYS_REQUIRED
from catalog.templates import TEMPLATE_TYPES
from catalog.values import is_any_timestamp, is_valid, text_of

_NAME: Final = re.compile(r"(?!data\Z)[a-z0-9]+", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_TEXTUAL: Final = frozenset({"any", "string", "uritemplate"})
_POSSIBLE: Final[Mapping[str, frozenset[str]]] = {
    "specversion": frozenset({"any", "number", "string", "symbol"}),
    "time": _TEXTUAL | {"timestamp"},
    "datacontenttype": _TEXTUAL | {"symbol", "urireference", "uri"},
}
"""Types that a value of the attribute can have; the other attributes of CloudEvents can have any."""
_WITH_RULES: Final = frozenset({"specversion", "id", "time", "dataschema"})
_NOT_FIXED: Final = frozenset({"id", "time"})
_FALLS_BACK: Final[Mapping[str, str]] = {
    "id": "the position of the message",
    "source": "the URI of its endpoint",
    "time": "the time of the message",
}
"""Attributes that never make an event impossible, and what they are without their declared value."""
_REMEDY: Final = "use the placeholder in protocoloptions too, or set it in the context of the source"
_HAS_DEFAULT: Final = frozenset({"type", "specversion", "datacontenttype", "dataschema", "partitionkey"})
"""Attributes that mapping can fill without a declared value (JUDGING.md#mapping)."""
MAPPING_RULES: Final = frozenset({"unmappable", "falls-back"})
"""What :func:`mapping` reports."""


def events(subject: Subject) -> None:
    """Look at the envelope attributes of every definition whose envelope is CloudEvents, or not said."""
    for declared in subject.attributes():
        if declared.definition.envelope in (None, CLOUDEVENTS):
            _declared(subject, declared)
            _literal(subject, declared)
    mapping(subject, {})


def _declared(subject: Subject, declared: Declared) -> None:
    prop = declared.prop
    if not _NAME.fullmatch(prop.name):
        text = f"{prop.name[:SHOWN]!r} is no CloudEvents attribute name; no event has it"
        subject.findings.warning(
            declared.place, "attribute-name", text, "use lower case letters and digits only, and not data"
        )
    possible = _POSSIBLE.get(prop.name)
    if possible is not None and prop.type not in possible:
        text = f"{prop.name} is never of the type {prop.type}"
        subject.findings.warning(
            declared.place, "attribute-type", text, f"use {' or '.join(sorted(possible - {'any'}))}"
        )

    if prop.name in ALWAYS_REQUIRED:
        metadata: Any = declared.message.attributes.get("envelopemetadata", {})
        body = metadata.get(prop.name)
        if isinstance(body, dict) and body.get("required") is False:
            text = f"{prop.name} is required of every event, whatever is declared"
            subject.findings.warning(declared.place, "always-required", text, "remove required")


def _literal(subject: Subject, declared: Declared) -> None:
    prop = declared.prop
    if prop.name not in _WITH_RULES or not is_literal(prop):
        return
    if prop.name == "specversion" and prop.value not in ("1.0", 1.0):
        subject.findings.warning(declared.place, "specversion", "no event has this specversion", 'use "1.0"')
    if prop.name in _NOT_FIXED and is_valid(prop.type, text_of(prop.value)):
        text = f"{prop.name} has one fixed value, and is another for every event"
        hint = "remove the value" + (", or write 0000-01-01T00:00:00Z for any time" if prop.name == "time" else "")
        subject.findings.warning(declared.place, "fixed-value", text, hint)
    if prop.name == "dataschema" and is_valid(prop.type, text_of(prop.value)):
        if not _SCHEME.match(text_of(prop.value)):
            text = "dataschema is a relative reference, and CloudEvents wants a URI there"
            subject.findings.warning(
                declared.place, "relative-dataschema", text, "write the whole URI, or remove the value"
            )


def mapping(subject: Subject, context: Mapping[str, frozenset[str]]) -> None:
    """Warn of native records that definitions match and cannot make events of, or not as they say.

    *context* names, by xid of definitions, the placeholders that all of their sources supply (`context` of settings).
    """
    for definition, _, _ in subject.definitions():
        _mapping(subject, definition, context.get(definition.xid, frozenset()))


def _mapping(subject: Subject, definition: Definition, context: frozenset[str]) -> None:
    if definition.envelope != CLOUDEVENTS or definition.protocol is None or not definition.protocoloptions:
        return
    message = subject.declarations.messages[definition.xid]
    supplied = {*names_in(definition.protocoloptions), *context}
    for prop in definition.envelopemetadata:
        lacking = _lacking(prop, supplied)
        if not lacking:
            continue
        at = attribute_place(message, prop.name) or message.place
        text = f"a native message gives no {', '.join(lacking)} for {prop.name}"
        meant = next(filter(None, (nearest(name, supplied) for name in lacking)), None)
        hint = f"did you mean {{{meant}}}?" if meant else _REMEDY
        if prop.name not in _FALLS_BACK:
            subject.findings.warning(at, "unmappable", text, hint)
        else:
            # Settings often supply what no option does (`context`), and then nothing falls back; a slip is never that.
            report = subject.findings.warning if meant else subject.findings.info
            report(at, "falls-back", f"{text}, which falls back to {_FALLS_BACK[prop.name]}", hint)


def _lacking(prop: Property, supplied: set[str]) -> Sequence[str]:
    """Name what mapping would lack for an attribute: a value, or the placeholders that nothing supplies."""
    if prop.value is None:
        lacks = prop.required and prop.name not in _HAS_DEFAULT and prop.name not in _FALLS_BACK
        return ("value",) if lacks else ()
    if prop.type not in TEMPLATE_TYPES or is_any_timestamp(prop.value):
        return ()
    return tuple(dict.fromkeys(name for name in names_of(text_of(prop.value)) if name not in supplied))
