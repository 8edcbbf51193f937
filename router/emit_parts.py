"""The parts that a produced record is put together from: options, CloudEvents attributes, and the channel's address."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from bindings.envelope import AttributeRule
from bindings.parts import BINARY_KIND, JSON_KIND, Part
from catalog.model import Definition, Endpoint, PropertyType
from catalog.values import is_valid
from router.sources import path_of

_BINARY: Final = frozenset({"key", "correlation_data", "properties.user-id"})
"""Parts that are bytes by their protocol, whatever type is declared."""
_NAMED_VALUES: Final = ("headers.", "query.", "user_properties.")
"""Lists whose values are texts in every protocol."""
_UNESCAPED: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What the CloudEvents HTTP binding leaves as it is in a header value."""
_DEFAULT_METHOD: Final = "POST"


def part_of(name: str, kind: PropertyType, text: str) -> Part:
    """Return the part for one protocol option; numbers and booleans keep their type where the protocol has types."""
    if name == "key_base64":
        try:
            return Part("key", base64.b64decode(text, validate=True), BINARY_KIND)
        except (binascii.Error, ValueError):
            return Part("key", text.encode(), BINARY_KIND)  # no base64: the check of the result will say so
    data = text.encode()
    if name in _BINARY:
        return Part(name, data, BINARY_KIND)
    typed = kind in ("integer", "number", "boolean") and is_valid(kind, text)
    return Part(name, data, JSON_KIND if typed and not name.startswith(_NAMED_VALUES) else None)


def attribute_part(rule: AttributeRule, name: str, value: str) -> Part:
    """Return the part that carries a CloudEvents attribute in binary mode.

    ``datacontenttype`` travels as the native content type, in every protocol (NATS has both and takes either).
    """
    if name == "datacontenttype":
        return Part(rule.content_type, value.encode())
    return Part(f"{rule.prefixes[0]}{name}", (quote(value, safe=_UNESCAPED) if rule.encoded else value).encode())


def address_parts(protocol: str, definition: Definition, endpoint: Endpoint | None) -> Mapping[str, str]:
    """Return where a record of that channel goes, for what the definition itself leaves open.

    Values may be templates. Without an endpoint, topics and subjects are named after the message.
    """
    options = endpoint.options if endpoint else {}
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
