"""Where a message says that its body is coded (``content-encoding``), in each protocol.

HTTP and AMQP have a place of their own for it; Kafka, NATS and MQTT 5 have headers and user properties of that name.
"""

from __future__ import annotations

from typing import Final

from bindings.parts import Parts

NAME: Final = "content-encoding"
KEYS: Final = frozenset({f"headers.{NAME}", f"properties.{NAME}", f"user_properties.{NAME}"})
"""The parts that name the coding."""


def coding_of(parts: Parts) -> str:
    """Return the content coding of a message's body, empty when it names none; the first of several counts."""
    return next((part.text or "" for part in parts if part.key in KEYS and part.value is not None), "")
