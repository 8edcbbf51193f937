"""MQTT messages, 3.1.1 and 5: their native form, and where the CloudEvents MQTT binding keeps attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.envelope import AttributeRule
from bindings.parts import NativeForm, Part, native_of, parts_of

FORM: Final = NativeForm(lists=("user_properties",), binary=("correlation_data",))
RULE: Final = AttributeRule(prefixes=("user_properties.",), content_type="content_type", strict=False)


def parts(native: Mapping[str, Any]) -> list[Part]:
    """Take a native record apart."""
    return parts_of(native, FORM)


def native(taken: list[Part]) -> dict[str, Any]:
    """Put a native record together: the inverse of :func:`parts`."""
    return native_of(taken, FORM)
