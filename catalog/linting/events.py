"""What CloudEvents asks of its attributes, and whether a native message can become one (JUDGING.md#mapping)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from catalog.definitions.candidates import DeclaredProperty, Subject
from catalog.definitions.inheritance import attribute_place
from catalog.findings import DeclaredMessage, SourceLocation
from catalog.model import CLOUDEVENTS, Definition, Property
from catalog.parsing.nearest import nearest
from catalog.protocols.properties import ALWAYS_REQUIRED, CONTENT_TYPES
from catalog.schemas.library import format_of
from catalog.templates import TEMPLATE_TYPES, tokens_of
from catalog.values import is_any_timestamp, is_valid, media_type_matches, text_of

# Which types take placeholders, and what stands in braces without being one (JUDGING.md#templates).

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_MEANT: Final = re.compile(r"\s*[+#./;?&|!@=,$]?[\w ,.:*%\-]*")
"""What was probably meant as a placeholder: an operator or modifier of RFC 6570, a name with spaces, nothing."""


def is_literal(prop: Property) -> bool:
    """Tell whether a property has a value without placeholders, that is not "now" either."""
    if prop.value is None or is_any_timestamp(prop.value):
        return False
    return prop.type not in TEMPLATE_TYPES or not names_of(text_of(prop.value))


def names_of(text: str) -> list[str]:
    """Return the names of the placeholders of a template, as often as they occur."""
    return tokens_of(text)[1::2] if "{" in text else []


def names_in(properties: Iterable[Property]) -> Iterator[str]:
    """Give the names of all placeholders in several values."""
    for prop in properties:
        if isinstance(prop.value, str) and prop.type in TEMPLATE_TYPES:
            yield from names_of(prop.value)


def adjacent(tokens: Sequence[str]) -> tuple[str, str] | None:
    """Return the first two placeholders with nothing between them."""
    for place in range(2, len(tokens) - 1, 2):
        if not tokens[place]:
            return tokens[place - 1], tokens[place + 1]
    return None


def misread(tokens: Sequence[str]) -> str | None:
    """Return the literal text in braces that was probably meant as a placeholder; a JSON text is not."""
    for text in tokens[::2]:
        if '"' in text or ("{" not in text and "}" not in text):
            continue
        for braces in _BRACES.finditer(text):
            if _MEANT.fullmatch(braces.group(1)):
                return braces.group()
        rest = _BRACES.sub("", text)
        unpaired = next((character for character in rest if character in "{}"), None)
        if unpaired is not None:
            return unpaired
    return None


# Values that no record can have: of a wrong type or range, no media type, or with braces that are no placeholder.

SHOWN: Final = 80
"""Characters of a value that a message shows."""
_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+*'`|~%\-]+"
_MEDIA_TYPE: Final = re.compile(rf"\s*{_TOKEN}/{_TOKEN}\s*(?:;.*)?", re.DOTALL)
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "qos": (0, 2),
    "payload_format": (0, 1),
    "message_expiry_interval": (0, 2**32 - 1),
    "partition": (0, 2**31 - 1),
    "header.priority": (0, 255),
    "header.ttl": (0, 2**32 - 1),
    "status": (100, 599),
}
_METHOD: Final = re.compile(_TOKEN)


def values(subject: Subject) -> None:
    """Look at the value of every property that a definition does not simply inherit."""
    for declared in subject.attributes():
        _value(subject, declared)
        if declared.prop.name == "datacontenttype":
            _media_type(subject, declared.prop, declared.place)
    for declared in subject.options():
        if _value(subject, declared):
            _range(subject, declared)
        if declared.prop.name in CONTENT_TYPES:
            _media_type(subject, declared.prop, declared.place)
    for _, message, _ in subject.definitions():
        content = message.attributes.get("datacontenttype")
        if isinstance(content, str):
            _media_type(subject, Property("datacontenttype", "string", content), message.at("datacontenttype"))


def is_media_type(text: str) -> bool:
    """Tell whether a text is a media type, with or without parameters."""
    return _MEDIA_TYPE.fullmatch(text) is not None


def _value(subject: Subject, declared: DeclaredProperty) -> bool:
    """Report a literal that no value of its type can equal, and odd placeholders; tell whether all is well."""
    prop = declared.prop
    if prop.value is None or is_any_timestamp(prop.value):
        return True
    text = text_of(prop.value)
    if prop.type in TEMPLATE_TYPES and ("{" in text or "}" in text):
        tokens = tokens_of(text)
        _placeholders(subject, declared, tokens)
        if len(tokens) > 1:
            return True
    if is_valid(prop.type, text, bits32=declared.in_envelope):
        return True
    message = f"the value {text[:SHOWN]!r} of {prop.name} is no {prop.type}"
    subject.findings.warning(declared.place, "value-type", message, "correct value or type")
    return False


def _placeholders(subject: Subject, declared: DeclaredProperty, tokens: Sequence[str]) -> None:
    name = declared.prop.name
    literal = misread(tokens)
    if literal is not None:
        message = f"{literal[:SHOWN]!r} in {name} is no placeholder, and is read as literal text"
        hint = "write {name}, of letters, digits, _, - and . only"
        subject.findings.warning(declared.place, "not-a-placeholder", message, hint)
    pair = adjacent(tokens)
    if pair is not None:
        message = (
            f"{{{pair[0]}}} takes one character of {name}, and {{{pair[1]}}} the rest: nothing stands between them"
        )
        hint = "put a separator between them, or make one of the two"
        subject.findings.warning(declared.place, "adjacent-placeholders", message, hint)


def _range(subject: Subject, declared: DeclaredProperty) -> None:
    prop = declared.prop
    bounds = _RANGES.get(prop.name)
    if (bounds is None and prop.name != "method") or not is_literal(prop):
        return
    text = text_of(prop.value)
    if bounds is not None and not (
        is_valid("integer", text) and len(text) < 20 and bounds[0] <= int(text) <= bounds[1]
    ):
        message = f"{prop.name} is {text[:SHOWN]!r}, and can only be {bounds[0]} to {bounds[1]}"
        subject.findings.warning(declared.place, "value-range", message, "correct the value, or remove it")
    if prop.name == "method" and not _METHOD.fullmatch(text):
        message = f"{text[:SHOWN]!r} is no HTTP method"
        subject.findings.warning(declared.place, "value-range", message, "write GET, POST, PUT or another method")


def _media_type(subject: Subject, prop: Property, place: SourceLocation) -> None:
    if is_literal(prop) and not is_media_type(text_of(prop.value)):
        message = f"the value {text_of(prop.value)[:SHOWN]!r} of {prop.name} is no media type"
        subject.findings.warning(place, "media-type", message, "write type/subtype, such as application/json")


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


def _declared(subject: Subject, declared: DeclaredProperty) -> None:
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


def _literal(subject: Subject, declared: DeclaredProperty) -> None:
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


# Payload declarations that contradict themselves; whether schemas are any good is found when they are linked.

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
