"""Whether a record is a CloudEvent, and in which mode (MATCHING.md#cloudevents, CloudEvents 1.0.2 protocol bindings).

The exact reader of one record. ``match`` and ``run`` use it for each record that columns alone cannot decide;
:mod:`bindings.kafka.record_columns` and :mod:`bindings.columns.envelopes` read the others, and tests check that they
agree.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from bindings.events import (
    FORBIDDEN_CHARS,
    STRING_ATTRIBUTES,
    CloudEvent,
    NotAnEvent,
    TypedText,
    decode_event,
    looks_like_event,
    number_fault,
)
from bindings.parts import BINARY_KIND, JSON_KIND, Part, Parts, first_part, parts_with_key
from catalog.values import media_type_of, percent_decoded

Mode = Literal["native", "binary", "structured", "batch", "undecodable"]
REQUIRED: Final = ("id", "source", "type")
ATTRIBUTE_NAME: Final = re.compile(r"[a-z0-9]+")
BATCH: Final = "application/cloudevents-batch+json"
STRUCTURED: Final = "application/cloudevents+json"
EVENT_MEDIA: Final = "application/cloudevents"
"""The prefix of the media types of events in every format, including batches."""
DATA: Final = "data"
UNESCAPED: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that the CloudEvents HTTP binding does not encode in a header value."""
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_INTEGER: Final = re.compile(rb"-?+[0-9]++")
_INVALID_VALUE: Final = "a list, a map or a number with a fraction is not a CloudEvents value"
NON_FINITE_TEXTS: Final = (b"NaN", b"Infinity", b"-Infinity")
"""Texts for AMQP numbers that JSON does not have."""


@dataclass(frozen=True, slots=True)
class AttributeRule:
    """Where a protocol puts CloudEvents attributes in binary mode.

    ``prefixes`` are part-key prefixes; ``content_type`` is the part with the native content type. ``encoded``: values
    are quoted and percent-encoded as in HTTP headers. ``strict``: a prefixed name that is not an attribute name is a
    fault. ``typed``: values have types, some of which CloudEvents does not have.
    """

    prefixes: tuple[str, ...]
    content_type: str
    encoded: bool = False
    strict: bool = True
    own_datacontenttype: bool = False
    typed: bool = False


@dataclass(frozen=True, slots=True)
class Envelope:
    """The CloudEvents envelope of one record.

    ``attributes`` are text values, including ``datacontenttype``; ``data`` is the event's data, for native and binary
    records the record's body. ``faults`` are what makes the event invalid; ``detail`` says why a record is undecodable.
    ``content_type`` is the native one.
    """

    mode: Mode
    attributes: Mapping[str, str] = field(default_factory=dict)
    data: bytes | None = None
    faults: tuple[str, ...] = ()
    content_type: str | None = None
    detail: str = ""

    @property
    def is_event(self) -> bool:
        """Whether the record is one CloudEvent, valid or not."""
        return self.mode in ("binary", "structured")


def read_envelope(
    parts: Parts, body: bytes | None, rule: AttributeRule, sniff: Callable[[], bool], *, binary: bool = True
) -> Envelope:
    """Read the envelope of a record.

    ``sniff`` returns whether the record's channel allows a JSON body to be a structured event without its media type;
    ``binary`` is False for MQTT 3.1.1, which has no headers.
    """
    content_part = next((part for part in parts_with_key(parts, rule.content_type) if part.value is not None), None)
    content_type = content_part.text if content_part else None
    media = media_type_of(content_type)
    if media == BATCH:
        return Envelope("batch", data=body, content_type=content_type)
    if media == STRUCTURED:
        return _read_structured(body, content_type)
    if media == EVENT_MEDIA or media.startswith(("application/cloudevents+", "application/cloudevents-")):
        detail = f"content type {media} is not supported; only {STRUCTURED} and {BATCH} are"
        return Envelope("undecodable", data=body, content_type=content_type, detail=detail)
    if binary:
        attributes, faults = read_binary_attributes(parts, rule)
        if "specversion" in attributes or any(fault.startswith("specversion:") for fault in faults):
            if content_part is not None and content_type is None:
                faults.append("datacontenttype: the value is not UTF-8")
            if content_type is not None and not (rule.own_datacontenttype and "datacontenttype" in attributes):
                attributes["datacontenttype"] = content_type
            return Envelope("binary", attributes, body, (*faults, *find_core_faults(attributes, faults)), content_type)
    if media in ("", "application/json") and sniff() and looks_like_event(body):
        return _read_structured(body, content_type)
    return Envelope("native", data=body, content_type=content_type)


def read_binary_attributes(parts: Parts, rule: AttributeRule) -> tuple[dict[str, str], list[str]]:
    """Return the attributes in binary mode (the first value of each name), and the faults in names and values.

    A header without a value counts as absent.
    """
    attributes: dict[str, str] = {}
    faults: list[str] = []
    seen: set[str] = set()
    for part in parts:
        name = attribute_of_key(part.key, rule)
        if name is None or name in seen or part.value is None:
            continue
        if name == DATA or not ATTRIBUTE_NAME.fullmatch(name):
            if rule.strict:
                faults.append(name_fault(name))
            continue
        if name == "datacontenttype" and not rule.own_datacontenttype:
            continue
        seen.add(name)
        # AMQP binary is the CloudEvents type Binary, whose text is base64.
        binary = part.kind == BINARY_KIND
        text = base64.b64encode(part.value).decode("ascii") if binary else part.text
        if text is None:
            faults.append(f"{name}: the value is not UTF-8")
            continue
        if rule.typed and (fault := _type_fault(name, part, parts)):
            faults.append(f"{name}: {fault}")
            continue
        if rule.typed and part.kind == JSON_KIND:
            text = TypedText(text)
        if rule.encoded:
            decoded = decode_header(text)
            if decoded is None:
                faults.append(f"{name}: percent-encoded bytes are not UTF-8")
                continue
            text = decoded
        attributes[name] = text
    return attributes, faults


def build_attribute_part(rule: AttributeRule, name: str, value: str) -> Part:
    """Return the part that carries a CloudEvents attribute in binary mode.

    ``datacontenttype`` becomes the native content type in every protocol (NATS has both and accepts either). Integers
    and booleans keep their type in AMQP, and are text elsewhere.
    """
    if name == "datacontenttype":
        return Part(rule.content_type, value.encode())
    if rule.typed and isinstance(value, TypedText):
        return Part(f"{rule.prefixes[0]}{name}", value.encode(), JSON_KIND)
    return Part(f"{rule.prefixes[0]}{name}", (quote(value, safe=UNESCAPED) if rule.encoded else value).encode())


def build_attribute_parts(rule: AttributeRule, attributes: Mapping[str, str]) -> list[Part]:
    """Return :func:`build_attribute_part` for all attributes, and the AMQP types that parts do not show."""
    parts = [build_attribute_part(rule, *pair) for pair in attributes.items()]
    # A CloudEvents Integer is an AMQP int, where an untyped integer would be a long; a boolean needs no type.
    types = {part.key: "int" for part in parts if part.kind == JSON_KIND and part.value not in (b"true", b"false")}
    return [*parts, Part("types", msgspec.json.encode(types), JSON_KIND)] if types else parts


def name_fault(name: str) -> str:
    """Return why an attribute name is invalid."""
    if name == DATA:
        return f"{DATA}: reserved for the event's data, and not an attribute name"
    return f"{name[:40]}: not an attribute name; use lower-case letters and digits"


def decode_header(value: str) -> str | None:
    """Decode an attribute value of an HTTP or NATS header: unquote it, then percent-decode it.

    None if the percent-decoded bytes are not UTF-8. Unterminated quotes and malformed sequences stay unchanged.
    """
    quoted = _QUOTED.fullmatch(value)
    return percent_decoded(value if quoted is None else _ESCAPED.sub(r"\1", quoted.group(1)))


def _type_fault(name: str, part: Part, parts: Parts) -> str:
    """Return why a typed value is invalid in CloudEvents; empty if it is valid. The part ``types`` has the AMQP types.

    A text, bytes, a boolean or an integer is valid, and only a text where CloudEvents requires one.
    """
    if part.kind == JSON_KIND:
        if part.value not in (b"true", b"false") and not _INTEGER.fullmatch(part.value or b""):
            return _INVALID_VALUE
        if name in STRING_ATTRIBUTES:
            return "an AMQP number or boolean; it must be a string"
        return "" if part.value in (b"true", b"false") else number_fault(part.text or "")
    if part.kind is not None or part.value not in NON_FINITE_TEXTS:
        return ""
    types = first_part(parts, "types")
    try:
        known = msgspec.json.decode(types.value or b"", type=dict[str, str]) if types is not None else {}
    except msgspec.DecodeError:
        return ""
    return _INVALID_VALUE if known.get(part.key) in ("float", "double") else ""


def attribute_of_key(key: str, rule: AttributeRule) -> str | None:
    """Return the attribute name in a part key; None if the part is not an attribute."""
    for prefix in rule.prefixes:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return None


def find_core_faults(attributes: Mapping[str, str], known: list[str]) -> list[str]:
    """Return what makes an event invalid in CloudEvents 1.0.2: missing or empty required attributes, an unknown
    version, and characters that a String must not contain.
    """
    named = {fault.partition(":")[0] for fault in known}
    faults: list[str] = []
    version = attributes.get("specversion")
    if version is None:
        if "specversion" not in named:
            faults.append("specversion: missing")
    elif version != "1.0":
        faults.append(f"specversion: {version[:20]!r} is unknown; it must be 1.0")
    for name in REQUIRED:
        if name not in named and not attributes.get(name):
            faults.append(f"{name}: {'empty' if name in attributes else 'missing'}")
    for name, text in attributes.items():
        # Text that Python considers printable has none of them; the rest is checked.
        if not text.isprintable() and FORBIDDEN_CHARS.search(text):
            faults.append(f"{name[:40]}: a control character or noncharacter is not allowed")
    return faults


def _read_structured(body: bytes | None, content_type: str | None) -> Envelope:
    try:
        event: CloudEvent = decode_event(body)
    except NotAnEvent as error:
        return Envelope("undecodable", data=body, content_type=content_type, detail=str(error))
    attributes = event.attributes
    faults = list(event.faults)
    faults += [name_fault(name) for name in attributes if not ATTRIBUTE_NAME.fullmatch(name)]
    faults += find_core_faults(attributes, faults)
    return Envelope("structured", attributes, event.data, tuple(faults), content_type)
