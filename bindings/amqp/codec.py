"""AMQP 1.0 messages: their native form, and where the CloudEvents AMQP binding keeps attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.envelope import AttributeRule
from bindings.parts import NativeForm, Part, native_of, parts_of
from catalog.protocols.properties import AMQP_SECTIONS

FORM: Final = NativeForm(maps=AMQP_SECTIONS)
RULE: Final = AttributeRule(
    prefixes=("application-properties.cloudEvents:", "application-properties.cloudEvents_"),
    content_type="properties.content-type",
    typed=True,
)


def parts(native: Mapping[str, Any]) -> list[Part]:
    """Take a native record apart."""
    return parts_of(native, FORM)


def native(taken: list[Part]) -> dict[str, Any]:
    """Put a native record together: the inverse of :func:`parts`."""
    return native_of(taken, FORM)
