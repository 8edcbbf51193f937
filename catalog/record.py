"""The native record: one message as its protocol delivered it, in the JSON form used everywhere.

Tests, ``match``, dead letters, replay and ``emit`` all use this form (MATCHING.md#records)::

    {"endpoint": "/endpoints/plant", "protocol": "KAFKA", "native": {...}, "body": "text",
     "time": "2026-01-02T03:04:05Z"}

``body`` is UTF-8 text, ``body_base64`` any bytes, both absent means that there is no body.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from catalog.findings import RecordError

MAX_DEPTH: Final = 512
"""Maximum nesting of a JSON text."""


@dataclass(frozen=True, slots=True)
class Record:
    """One native record.

    ``native`` has the protocol's own members under the names of MATCHING.md#records, with name/value lists as lists of
    ``{"name", "value" | "value_base64"}``: order and repetition matter. ``time`` is the arrival or broker time as
    RFC 3339 text. ``position`` is the location of the record in its source (``topic-partition-offset``, or inbox
    segment and row); empty if it has none.
    """

    protocol: str
    native: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    endpoint: str | None = None
    time: str | None = None
    position: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, with ``body`` if it is UTF-8, else ``body_base64``."""
        form: dict[str, Any] = {}
        if self.endpoint is not None:
            form["endpoint"] = self.endpoint
        form["protocol"] = self.protocol
        form["native"] = dict(self.native)
        if self.body is not None:
            form.update(text_or_base64("body", self.body))
        if self.time is not None:
            form["time"] = self.time
        return form


def text_or_base64(member: str, data: bytes) -> dict[str, str]:
    """Return ``{member: text}`` for UTF-8 bytes, else ``{member_base64: base64}``."""
    try:
        return {member: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{member}_base64": base64.b64encode(data).decode("ascii")}


def member_bytes(form: Mapping[str, Any], member: str) -> bytes | None:
    """Return the bytes of ``member`` or ``member_base64`` of *form*; None if neither is there.

    A value that is not a string (a number or a boolean) gives the bytes of its JSON text.

    Raises:
        RecordError: ``member_base64`` is not base64, or both members are present.
    """
    encoded = form.get(f"{member}_base64")
    value = form.get(member)
    if encoded is not None:
        if value is not None:
            raise RecordError(f"{member} and {member}_base64 exclude each other")
        if not isinstance(encoded, str):
            raise RecordError(f"{member}_base64 must be a string")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RecordError(f"{member}_base64 is not base64: {error}") from error
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RecordError(f"{member} contains a lone surrogate, which UTF-8 cannot encode") from error
    return msgspec.json.encode(value)


def parse_record(line: bytes | str) -> Record:
    """Read one line of JSON as a native record.

    Raises:
        RecordError: the line is not a JSON object, has no ``protocol``, or has a member of the wrong type.
    """
    try:
        form = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"not a JSON record: {error}") from error
    return record_from_json(form)


def record_from_json(form: Any) -> Record:
    """Build a record from its decoded JSON form; see :func:`parse_record` for the errors."""
    if not isinstance(form, dict):
        raise RecordError("a record is a JSON object with the members protocol, native and body")
    protocol = form.get("protocol")
    if not isinstance(protocol, str) or not protocol:
        raise RecordError("a record must have a protocol, such as KAFKA or HTTP")
    native = form.get("native")
    if native is None:
        native = {}
    if not isinstance(native, dict):
        raise RecordError("native must be a JSON object")
    for member in ("endpoint", "time"):
        if form.get(member) is not None and not isinstance(form[member], str):
            raise RecordError(f"{member} must be a string")
    return Record(
        protocol=protocol,
        native=native,
        body=member_bytes(form, "body"),
        endpoint=form.get("endpoint"),
        time=form.get("time"),
    )
