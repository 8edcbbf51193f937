"""Values that no record can have: of a wrong type or range, no media type, or with braces that are no placeholder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from catalog.declared import Place
from catalog.definitions.subject import Declared, Subject
from catalog.linting.placeholders import adjacent, is_literal, misread
from catalog.model import Property
from catalog.protocols.properties import CONTENT_TYPES
from catalog.templates import TEMPLATE_TYPES, tokens_of
from catalog.values import is_any_timestamp, is_valid, text_of

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


def _value(subject: Subject, declared: Declared) -> bool:
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


def _placeholders(subject: Subject, declared: Declared, tokens: Sequence[str]) -> None:
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


def _range(subject: Subject, declared: Declared) -> None:
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


def _media_type(subject: Subject, prop: Property, place: Place) -> None:
    if is_literal(prop) and not is_media_type(text_of(prop.value)):
        message = f"the value {text_of(prop.value)[:SHOWN]!r} of {prop.name} is no media type"
        subject.findings.warning(place, "media-type", message, "write type/subtype, such as application/json")
