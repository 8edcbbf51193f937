"""NATS messages: their native form, and where the CloudEvents NATS binding keeps attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.envelope import AttributeRule
from bindings.parts import NativeForm, Part, native_of, parts_of

FORM: Final = NativeForm(lists=("headers",))
RULE: Final = AttributeRule(
    prefixes=("headers.ce-",), content_type="headers.content-type", encoded=True, own_datacontenttype=True
)


def parts(native: Mapping[str, Any]) -> list[Part]:
    """Take a native record apart."""
    return parts_of(native, FORM)


def native(taken: list[Part]) -> dict[str, Any]:
    """Put a native record together: the inverse of :func:`parts`."""
    return native_of(taken, FORM)
