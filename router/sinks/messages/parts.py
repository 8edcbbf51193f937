"""The parts that a produced record is put together from: options, CloudEvents attributes, and the channel's address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from bindings.amqp.declared import FIELD_TYPES, typed_value
from bindings.amqp.forms import TYPES, part
from bindings.amqp.sections import PROTOCOL as AMQP
from bindings.envelope import AttributeRule
from bindings.parts import BINARY_KIND, JSON_KIND, Part
from catalog.definitions.constraints import BASE64_KEY
from catalog.model import Definition, Endpoint, Property, PropertyType
from catalog.values import binary_value, is_valid
from router.sources.sources import path_of

_BINARY: Final = frozenset({BASE64_KEY, "correlation_data", "properties.user-id"})
"""Members that are bytes by their protocol, and base64 in a record, whatever type is declared."""
_NAMED_VALUES: Final = ("headers.", "query.", "user_properties.")
"""Lists whose values are texts in every protocol."""
_UNESCAPED: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What the CloudEvents HTTP binding leaves as it is in a header value."""
_DEFAULT_METHOD: Final = "POST"


def part_of(name: str, kind: PropertyType, text: str) -> Part:
    """Return the part for one protocol option; numbers and booleans keep their type where the protocol has types.

    A text of type ``binary`` is the base64 of the bytes to be sent (section 10), as is one for a member that is bytes.
    """
    if kind == "binary" or name in _BINARY:
        return Part("key" if name == BASE64_KEY else name, binary_value(text), BINARY_KIND)
    data = text.encode()
    if name == "key":
        return Part(name, data, BINARY_KIND)
    typed = kind in ("integer", "number", "boolean") and is_valid(kind, text)
    return Part(name, data, JSON_KIND if typed and not name.startswith(_NAMED_VALUES) else None)


def option_parts(protocol: str, options: Iterable[tuple[Property, str]]) -> list[Part]:
    """Return the parts for protocol options and their texts, of AMQP with the types that parts do not tell."""
    if protocol != AMQP:
        return [part_of(prop.name, prop.type, text) for prop, text in options]
    types: dict[str, str] = {}
    made = [part(prop.name, typed_value(prop, text), types, FIELD_TYPES.get(prop.name)) for prop, text in options]
    parts = [each for each in made if each is not None]
    return [*parts, Part(TYPES, msgspec.json.encode(types), JSON_KIND)] if types else parts


def attribute_part(rule: AttributeRule, name: str, value: str) -> Part:
    """Return the part that carries a CloudEvents attribute in binary mode.

    ``datacontenttype`` travels as the native content type, in every protocol (NATS has both and takes either).
    """
    if name == "datacontenttype":
        return Part(rule.content_type, value.encode())
    return Part(f"{rule.prefixes[0]}{name}", (quote(value, safe=_UNESCAPED) if rule.encoded else value).encode())


def address_parts(protocol: str, definition: Definition, endpoint: Endpoint | None) -> Mapping[str, str]:
    """Return where a record of that channel goes, for what the definition itself leaves open.

    Values may be templates. Without an endpoint, topics and subjects are named after the message. An HTTP response,
    which a definition with a ``status`` describes, has neither method nor path.
    """
    options = endpoint.options if endpoint else {}
    if protocol == "HTTP" and any(prop.name == "status" for prop in definition.protocoloptions):
        return {}
    if protocol == "HTTP":
        path = options.get("path") or path_of(endpoint.uris if endpoint else ())
        fallback = f"/{endpoint.xid.rsplit('/', 1)[-1]}" if endpoint else "/"
        return {"method": str(options.get("method") or _DEFAULT_METHOD).upper(), "path": str(path or fallback)}
    if protocol == "KAFKA":
        return {"topic": str(options.get("topic") or definition.messageid)}
    if protocol == "NATS":
        return {"subject": str(options.get("subject") or definition.messageid)}
    if protocol.startswith("MQTT"):
        return {"topic_name": str(options.get("topic") or options.get("topic_name") or definition.messageid)}
    return {}
