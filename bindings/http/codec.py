"""HTTP messages: their native form, and where the CloudEvents HTTP binding keeps attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.envelope import AttributeRule
from bindings.parts import NativeForm, Part, native_of, parts_of

PROTOCOL: Final = "HTTP"
FORM: Final = NativeForm(lists=("headers", "query"), lower=("headers",))
RULE: Final = AttributeRule(prefixes=("headers.ce-",), content_type="headers.content-type", encoded=True)


def parts(native: Mapping[str, Any]) -> list[Part]:
    """Take a native record apart; header names become lower case."""
    return parts_of(native, FORM)


def native(taken: list[Part]) -> dict[str, Any]:
    """Put a native record together: the inverse of :func:`parts`."""
    return native_of(taken, FORM)
