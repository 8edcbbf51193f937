"""How messages for AMQP 1.0 are addressed and made; they go by :mod:`bindings.amqp.sender`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from bindings.addresses import AddressForm
from bindings.amqp.declared import FIELD_TYPES, typed_value
from bindings.amqp.forms import TYPES
from bindings.amqp.forms import part as part_of
from bindings.amqp.options import node_of
from bindings.parts import BINARY_KIND, JSON_KIND, Part, json_of
from bindings.sending import Expand, Sending
from catalog.model import Endpoint, Property

_NO_ADDRESS: Final = "a URI of an AMQP broker has no form of one; write amqp://host:5672 or amqps://host:5671"
_LONG: Final = 2**63


class AmqpSending(Sending):
    """See :class:`~bindings.sending.Sending`; an address is a node."""

    family = "amqp"
    # Not quoted in its texts: a URI that cannot be read may have a password anywhere.
    form = AddressForm("AMQP", {"amqp": 5672}, {"amqps": 5671}, _NO_ADDRESS, _NO_ADDRESS, _NO_ADDRESS)
    literal = (re.compile(r"[^\x00-\x1f{}]*"), "no control characters or braces")
    whole = (re.compile(r"[^\x00-\x1f]*"), "a node has no control characters")
    most_bytes = 4096

    def option_parts(self, options: Iterable[tuple[Property, str]]) -> list[Part]:
        """Return the parts for options and their texts, with the AMQP types that parts do not show."""
        types: dict[str, str] = {}
        parts: list[Part] = []
        for prop, text in options:
            part = part_of(prop.name, typed_value(prop, text), types, FIELD_TYPES.get(prop.name))
            parts += [] if part is None else [part]
        return [*parts, Part(TYPES, msgspec.json.encode(types), JSON_KIND)] if types else parts

    def address_of(self, parts: Sequence[Part], endpoint: Endpoint, declared: bool, base: str, expand: Expand) -> str:
        """Return the node: that of the endpoint, of its address's path, else the property ``to``."""
        to = next((part.text for part in parts if part.key == "properties.to"), None)
        path = next((urlsplit(uri).path.lstrip("/") for uri in endpoint.uris if urlsplit(uri).path), "")
        node = node_of(endpoint.options) or path
        return expand(node) if node else to or ""

    def carries_bytes(self, key: str) -> bool:
        """Always True: types are checked when a message is encoded."""
        return True

    def header(self, name: str, part: Part) -> Part | None:
        """Return the application property that a header becomes: binary where it is no text."""
        if part.text is None:
            return Part(name, part.value, BINARY_KIND)
        if part.kind != JSON_KIND:
            return Part(name, part.value, part.kind)
        value = json_of(part.value or b"null")
        typed = isinstance(value, (bool, float)) or (isinstance(value, int) and -_LONG <= value < _LONG)
        return Part(name, part.value, JSON_KIND if typed else None)
