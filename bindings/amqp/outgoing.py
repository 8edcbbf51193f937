"""A message that a sink sends, and its encoding."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import proton
from proton import Data, Described, ProtonException, symbol, ulong

from bindings.amqp.binding import FIELD_TYPES
from bindings.amqp.sections import DESCRIPTORS, HEADER_FIELDS, PROPERTY_FIELDS, Fields
from bindings.amqp.values import AmqpValue, typed_of, types_of
from bindings.parts import Part
from bindings.sending import Outbound
from catalog.protocols.properties import AMQP_SECTIONS

_CONVERSIONS: Final[Mapping[str, Any]] = {
    "boolean": bool,
    "ubyte": proton.ubyte,
    "ushort": proton.ushort,
    "uint": proton.uint,
    "ulong": ulong,
    "byte": proton.byte,
    "short": proton.short,
    "int": proton.int32,
    "long": int,
    "float": proton.float32,
    "double": float,
    "timestamp": proton.timestamp,
    "char": lambda value: proton.char(chr(value) if isinstance(value, int) else value),
    "uuid": lambda value: uuid.UUID(str(value)),
    "binary": bytes,
    "string": str,
    "symbol": symbol,
    "decimal32": lambda value: proton.decimal32(int.from_bytes(value, "big")),
    "decimal64": lambda value: proton.decimal64(int.from_bytes(value, "big")),
    "decimal128": proton.decimal128,
}
_TEXTS: Final = frozenset({None, "string", "symbol"})
_SIGNED_BITS: Final = {"byte": 7, "short": 15, "int": 31, "long": 63, "timestamp": 63}
_UNSIGNED_BITS: Final = {"ubyte": 8, "ushort": 16, "uint": 32, "ulong": 64}


class EncodingError(Exception):
    """A message that AMQP cannot carry as it is; the text names the place."""


@dataclass(frozen=True, slots=True)
class AmqpMessage:
    """One message for the node ``address``.

    ``properties`` go by their names in the specification (``message-id``, ``subject``), ``content_type`` beside them.
    Values are Python's (str, bool, int as long, float as double, bytes as binary, datetime as timestamp, UUID, None) or
    :class:`AmqpValue`, which names the AMQP type; a property without one gets the type that the specification gives it.
    ``header`` goes by the names there as well; without ``durable`` in it the message is durable, which asks the
    broker to keep it through a crash. The body is one data section; None sends none.
    Messages of one ``lane`` keep their order when the broker ends the connection at another message.
    """

    address: str
    body: bytes | None = None
    content_type: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    application_properties: Mapping[str, Any] = field(default_factory=dict)
    message_annotations: Mapping[str, Any] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)
    delivery_annotations: Mapping[str, Any] = field(default_factory=dict)
    footer: Mapping[str, Any] = field(default_factory=dict)
    lane: str = ""


def message_of(message: Outbound) -> AmqpMessage:
    """Return the client's message; part and the part ``types`` give the type of each value."""
    types = types_of(message.parts)
    sections: dict[str, dict[str, Any]] = {section: {} for section in AMQP_SECTIONS}
    for part in message.parts:
        section, _, name = part.key.partition(".")
        if section in sections:
            sections[section].setdefault(name, _value(part, types))
    return AmqpMessage(
        message.address,
        message.body,
        properties=sections["properties"],
        application_properties=sections["application-properties"],
        message_annotations=sections["message-annotations"],
        header=sections["header"],
        delivery_annotations=sections["delivery-annotations"],
        footer=sections["footer"],
        lane=message.lane,
    )


def encode(message: AmqpMessage) -> bytes:
    """Return the bytes of the message's sections.

    Raises:
        EncodingError: a property of no such name, or a value that is not of its type.
    """
    sections = [_section("header", _listed({"durable": True, **message.header}, "header", HEADER_FIELDS))]
    sections += _annotations(message.delivery_annotations, "delivery-annotations")
    sections += _annotations(message.message_annotations, "message-annotations")
    properties = dict(message.properties)
    if message.content_type is not None:
        properties["content-type"] = message.content_type
    if properties:
        sections.append(_section("properties", _listed(properties, "properties", PROPERTY_FIELDS)))
    if message.application_properties:
        mapped = _map(message.application_properties, "application-properties")
        sections.append(_section("application-properties", mapped))
    # A message without any body section is no message to some brokers; null is what clients send for none.
    body = _section("amqp-value", None) if message.body is None else _section("data", message.body)
    return b"".join((*sections, body, *_annotations(message.footer, "footer")))


def _value(part: Part, types: Mapping[str, str]) -> Any:
    """Return a value as the encoder takes it; one that is not of its field's type is refused there."""
    usual = FIELD_TYPES.get(part.key)
    if part.kind is None and part.key not in types and usual in _TEXTS:
        return part.text  # most values of most messages
    if usual is None:
        return typed_of(part, types)
    if usual in _TEXTS and part.text is not None:
        return AmqpValue(usual, part.text)
    return AmqpValue(usual, typed_of(part, {part.key: usual}).value)


def _annotations(values: Mapping[str, Any], section: str) -> list[bytes]:
    """Return a section whose keys are symbols; none when it is empty."""
    if not values:
        return []
    strange = next((name for name in values if not name.isascii()), None)
    if strange is not None:
        raise EncodingError(f"{section}: a name is a symbol, which is ASCII, and {strange[:40]!r} is not")
    return [_section(section, {symbol(name): value for name, value in _map(values, section).items()})]


def _listed(properties: dict[str, Any], section: str, known: Fields) -> list[Any]:
    fields = []
    for name, usual in known:
        value = properties.pop(name, None)
        if usual is not None and value is not None and not isinstance(value, AmqpValue):
            value = AmqpValue(usual, _milliseconds(value) if isinstance(value, datetime) else value)
        fields.append(_convert(value, f"{section}.{name}"))
    if properties:
        what = "property" if section == "properties" else f"{section} field"
        raise EncodingError(f"AMQP messages have no {what} {', '.join(map(str, properties))}")
    while fields and fields[-1] is None:
        fields.pop()
    return fields


def _map(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {str(name): _convert(value, f"{section}.{name}") for name, value in values.items()}


def _convert(value: Any, place: str) -> Any:
    """Return what proton encodes as the wanted type."""
    if isinstance(value, AmqpValue):
        return _typed(value, place)
    if isinstance(value, datetime):
        return proton.timestamp(_milliseconds(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return _typed(AmqpValue("long", value), place)
    if value is None or isinstance(value, (str, bool, float, bytes, uuid.UUID)):
        return value
    raise EncodingError(f"{place}: AMQP has no type for a {type(value).__name__}; name one with Typed")


def _typed(typed: AmqpValue, place: str) -> Any:
    kind, value = typed
    if kind == "null" or value is None:
        return None
    if kind == "binary" and isinstance(value, str):
        value = value.encode("utf-8")
    low, high = _range(kind)
    if high and not (isinstance(value, int) and low <= value < high):
        raise EncodingError(f"{place}: {str(value)[:40]!r} is no {kind}")
    if kind in ("string", "symbol") and isinstance(value, bytes):
        raise EncodingError(f"{place}: a {kind} is text, and {value[:40]!r} is bytes")
    if kind == "boolean" and not isinstance(value, bool):
        raise EncodingError(f"{place}: {str(value)[:40]!r} is no boolean")
    if kind == "symbol" and not str(value).isascii():
        raise EncodingError(f"{place}: a symbol is ASCII, and {str(value)[:40]!r} is not")
    conversion = _CONVERSIONS.get(kind)
    if conversion is None:
        raise EncodingError(f"{place}: no value of type {kind} can be sent")
    try:
        return conversion(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodingError(f"{place}: {str(value)[:40]!r} is no {kind}") from error


def _range(kind: str) -> tuple[int, int]:
    if kind in _SIGNED_BITS:
        return -(2 ** _SIGNED_BITS[kind]), 2 ** _SIGNED_BITS[kind]
    return 0, 2 ** _UNSIGNED_BITS[kind] if kind in _UNSIGNED_BITS else 0


def _milliseconds(at: datetime) -> int:
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _section(name: str, value: Any) -> bytes:
    data = Data()
    try:
        data.put_object(Described(ulong(DESCRIPTORS[name]), value))
        return bytes(data.encode())
    except (ProtonException, ValueError, OverflowError, TypeError) as error:
        raise EncodingError(f"the section {name} cannot be encoded: {error}") from error
