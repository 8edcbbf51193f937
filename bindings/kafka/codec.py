"""Kafka records: their native form, and where the CloudEvents Kafka binding keeps attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.envelope import AttributeRule
from bindings.parts import BINARY_KIND, JSON_KIND, NativeForm, Part, native_of, parts_of
from catalog.errors import RecordError
from catalog.record import bytes_of, text_or_base64

PROTOCOL: Final = "KAFKA"
INTEGERS: Final = {"partition": 32, "offset": 64, "timestamp": 64}
"""Members that are signed integers, and their width in bits."""
FORM: Final = NativeForm(lists=("headers",))
RULE: Final = AttributeRule(prefixes=("headers.ce_",), content_type="headers.content-type")


def parts(native: Mapping[str, Any]) -> list[Part]:
    """Take a native record apart; a key is bytes, whichever of ``key`` and ``key_base64`` wrote it.

    Raises:
        RecordError: as :func:`bindings.parts.parts_of`, for a record with both key members, and for a topic or
            number that no Kafka record can have.
    """
    rest = {name: value for name, value in native.items() if name not in ("key", "key_base64")}
    if not isinstance(rest.get("topic"), (str, type(None))):
        raise RecordError("native.topic must be a string")
    for member, bits in INTEGERS.items():
        value = rest.get(member)
        if not isinstance(value, (int, type(None))) or isinstance(value, bool):
            raise RecordError(f"native.{member} must be an integer")
        if value is not None and not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise RecordError(f"native.{member} must be an integer of {bits} bits")
    taken = parts_of(rest, FORM)
    key = bytes_of(native, "key")
    if key is not None:
        taken.append(Part("key", key, BINARY_KIND))
    return taken


def native(taken: list[Part]) -> dict[str, Any]:
    """Put a native record together: the inverse of :func:`parts`."""
    key = next((part.value for part in taken if part.key == "key"), None)
    form = native_of((part for part in taken if part.key != "key"), FORM)
    if key is not None:
        form.update(text_or_base64("key", key))
    return form


def parts_of_row(row: Mapping[str, Any]) -> list[Part]:
    """Take a row of Spark's Kafka source apart: topic, partition, offset, timestamp (ms), key, headers."""
    taken = [Part("topic", row["topic"].encode())] if row.get("topic") is not None else []
    for member in ("partition", "offset", "timestamp"):
        if row.get(member) is not None:
            taken.append(Part(member, str(row[member]).encode(), JSON_KIND))
    if row.get("key") is not None:
        taken.append(Part("key", row["key"], BINARY_KIND))
    for header in row.get("headers") or ():
        taken.append(Part(f"headers.{header['key']}", header["value"]))
    return taken
