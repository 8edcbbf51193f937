"""Parts of a native record: one ordered list of (key, value, kind), the same for every protocol.

A key is the path of a member in the native record of MATCHING.md#records (``topic``, ``headers.ce_type``,
``properties.subject``). Repeats and order are kept, since both carry meaning. The inbox stores records in this
form, selectors find values in it, and a binding turns it back into the JSON form without loss.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from catalog.findings import RecordError
from catalog.record import member_bytes, text_or_base64

JSON_KIND: Final = "json"
"""The value is the JSON text of a number, a boolean, a list or an object."""
BINARY_KIND: Final = "binary"
"""The value is bytes that the native JSON form writes as base64 (MQTT correlation data, AMQP binary)."""


class Part(NamedTuple):
    """One value of a native record. ``kind`` is None for text; ``value`` None is a header without a value."""

    key: str
    value: bytes | None
    kind: str | None = None

    @property
    def text(self) -> str | None:
        """The value as text, as constraints compare it; None if it is not UTF-8, or there is none."""
        if self.value is None:
            return None
        try:
            return self.value.decode("utf-8")
        except UnicodeDecodeError:
            return None


Parts = Sequence[Part]


class InboxRow(NamedTuple):
    """A native record as parts.

    ``received`` is the arrival in microseconds since 1970 UTC. ``properties`` keep order and repeats; a part
    without a value is a header without one. ``body`` None means that there is none.
    """

    endpoint: str
    protocol: str
    received: int
    properties: Sequence[Part]
    body: bytes | None = None


class NativeForm(NamedTuple):
    """The structure of a protocol's native record.

    ``lists`` are members holding name/value lists, ``maps`` members holding maps, ``binary`` scalar members
    written in base64. ``lower`` names the lists whose names compare without regard to case.
    """

    lists: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()


def parts_of(native: Mapping[str, Any], form: NativeForm) -> list[Part]:
    """Split a native record into parts.

    Raises:
        RecordError: a list member is not a list of name/value objects, a map is not a map, or base64 is invalid.
    """
    parts: list[Part] = []
    for member, value in native.items():
        if value is None:
            continue
        if member in form.lists:
            parts.extend(_iter_list_parts(member, value, lower=member in form.lower))
        elif member in form.maps:
            if not isinstance(value, dict):
                raise RecordError(f"native.{member} must be a JSON object")
            parts.extend(_to_part(f"{member}.{name}", entry) for name, entry in value.items() if entry is not None)
        elif member in form.binary:
            parts.append(Part(member, member_bytes({f"{member}_base64": value}, member), BINARY_KIND))
        elif member.partition(".")[0] in (*form.lists, *form.maps):
            raise RecordError(f"native has no member {member}: what is listed goes into a list or map of its own")
        else:
            parts.append(_to_part(member, value))
    return parts


def native_of(parts: Iterable[Part], form: NativeForm) -> dict[str, Any]:
    """Build a native record from parts: the inverse of :func:`parts_of`."""
    native: dict[str, Any] = {}
    for part in parts:
        member, _, name = part.key.partition(".")
        if member in form.lists:
            entry: dict[str, Any] = {"name": name}
            entry.update(_value_member(part))
            native.setdefault(member, []).append(entry)
        elif member in form.maps:
            native.setdefault(member, {})[name] = _to_plain_value(part)
        else:
            native[part.key] = _to_plain_value(part)
    return native


def first_part(parts: Parts, key: str) -> Part | None:
    """Return the first part with that key; ``headers.content-type`` is found in any case."""
    any_case = key == "headers.content-type"
    for part in parts:
        if part.key == key or (any_case and part.key.lower() == key):
            return part
    return None


def parts_with_key(parts: Parts, key: str) -> list[Part]:
    """Return all parts with that key, in order; ``headers.content-type`` in any case."""
    if key == "headers.content-type":
        return [part for part in parts if part.key.lower() == key]
    return [part for part in parts if part.key == key]


def _iter_list_parts(member: str, entries: Any, *, lower: bool) -> Iterable[Part]:
    if not isinstance(entries, list):
        raise RecordError(f"native.{member} must be a list of {{name, value}} objects")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise RecordError(f"native.{member} must be a list of {{name, value}} objects, each with a name")
        name = entry["name"].lower() if lower else entry["name"]
        value = entry.get("value")
        kind = None if value is None or isinstance(value, str) else JSON_KIND
        yield Part(f"{member}.{name}", member_bytes(entry, "value"), kind)


def _to_part(key: str, value: Any) -> Part:
    if isinstance(value, str):
        return Part(key, member_bytes({key: value}, key))
    if isinstance(value, dict) and set(value) == {"base64"}:
        return Part(key, member_bytes({f"{key}_base64": value["base64"]}, key), BINARY_KIND)
    return Part(key, msgspec.json.encode(value), JSON_KIND)


def _value_member(part: Part) -> dict[str, Any]:
    if part.value is None:
        return {"value": None}
    if part.kind == JSON_KIND:
        return {"value": decode_json(part.value)}
    return text_or_base64("value", part.value)


def _to_plain_value(part: Part) -> Any:
    if part.value is None:
        return None
    if part.kind == JSON_KIND:
        return decode_json(part.value)
    if part.kind == BINARY_KIND:
        encoded = base64.b64encode(part.value).decode("ascii")
        return {"base64": encoded} if "." in part.key else encoded
    return part.value.decode("utf-8", "replace")


def decode_json(text: bytes) -> Any:
    """Decode a JSON text; invalid JSON, which only others write to an inbox topic, is returned as text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text.decode("utf-8", "replace")


# The parts for ``content-encoding`` in each protocol: HTTP and AMQP have their own member; Kafka, NATS and MQTT 5 use
# headers and user properties of that name.

CODING_HEADER: Final = "content-encoding"
CODING_KEYS: Final = frozenset(
    {f"headers.{CODING_HEADER}", f"properties.{CODING_HEADER}", f"user_properties.{CODING_HEADER}"}
)
"""The parts that name the content coding."""


def content_coding_of(parts: Parts) -> str:
    """Return the content coding of a message's body; empty if there is none, the first of several."""
    return next((part.text or "" for part in parts if part.key in CODING_KEYS and part.value is not None), "")
