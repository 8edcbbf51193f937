"""Events as messages of one protocol, put together by its CloudEvents binding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from bindings.envelope import STRUCTURED, attribute_part
from bindings.events import encode_event
from bindings.parts import BINARY_KIND, Part
from bindings.protocols import Binding
from bindings.sending import Outbound
from registry.delivery.events import Event

Mode = Literal["binary", "structured"]
AddressOf = Callable[[Mapping[str, str]], str]
"""Makes the topic, node, subject or URL from the attributes of an event."""


@dataclass(frozen=True, slots=True)
class Composer:
    """Makes the messages of one subscriber. ``given`` parts are on every one.

    A protocol without headers takes structured mode alone. Where records have keys, the key is the entity, so that its
    events stay in order within their partition.
    """

    binding: Binding
    address_of: AddressOf
    mode: Mode
    given: tuple[Part, ...] = ()

    def message(self, event: Event) -> Outbound:
        """Return the message for an event.

        Raises:
            ValueError: no address can be made of it.
        """
        rule, body = self.binding.rule, event.data
        if self.mode == "binary" and self.binding.binary:
            parts = [attribute_part(rule, *pair) for pair in event.attributes.items()]
        else:
            parts = [Part(rule.content_type, STRUCTURED.encode())] if self.binding.binary else []
            body = encode_event(event.attributes, event.data)
        if self.binding.sending.key:
            parts.append(Part(self.binding.sending.key, event.entity.encode("utf-8"), BINARY_KIND))
        address = self.address_of(event.attributes)
        return Outbound(address, (*self.given, *parts), body, event.entity, event.attributes["id"])
