"""Records and outcomes as events of the ``cloudevents`` SDK, for Python callers; the router does not use them."""

# Small: users' code imports it.

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from catalog.record import Record
from catalog.values import is_timestamp

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

_STRUCTURED: Final = "application/cloudevents+json; charset=utf-8"


def to_cloudevent(attributes: Mapping[str, str | int], data: bytes | None = None) -> CloudEvent:
    """Return an SDK event with these attributes (``cloudevent`` of an outcome) and data.

    Values stay strings, integers and booleans. ``time`` becomes a :class:`datetime` with its original offset; digits
    beyond microseconds are cut off. An event without ``time`` gets none, while the SDK alone would set the current
    time. *data* stays bytes, JSON included: parsed and written again it could differ.

    Raises:
        ModuleNotFoundError: the SDK is not installed (extra ``cloudevents``).
        ValueError: ``time`` is not an RFC 3339 timestamp, or has a leap second, which :class:`datetime` lacks.
        cloudevents.core.exceptions.CloudEventValidationError: ``id``, ``source``, ``type`` or ``specversion`` is
            missing, or an attribute has a value or name that CloudEvents 1.0 forbids.
    """
    from cloudevents.core.v1.event import CloudEvent

    members: dict[str, Any] = {"id": "", "specversion": "", **attributes}  # missing ones stay invalid
    if "time" in attributes:
        members["time"] = _parse_time(str(attributes["time"]))
    event = CloudEvent(members, data)
    if "time" not in attributes:
        del event.get_attributes()["time"]
    return event


def record_of_cloudevent(event: Any) -> Record:
    """Return an SDK event as a record: an event in structured mode over HTTP. The SDK itself is not needed."""
    attributes = {name: format_moment(value) for name, value in event.get_attributes().items()}
    data = event.get_data()
    if isinstance(data, bytes | bytearray):
        attributes["data_base64"] = base64.b64encode(data).decode()
    elif data is not None:
        attributes["data"] = data
    headers = [{"name": "content-type", "value": _STRUCTURED}]
    return Record("HTTP", {"method": "POST", "headers": headers}, msgspec.json.encode(attributes))


def format_moment(value: Any) -> Any:
    """Return a moment as an RFC 3339 timestamp, and anything else unchanged."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")
    return value


def _parse_time(text: str) -> datetime:
    if not is_timestamp(text):
        raise ValueError(f"time is not an RFC 3339 timestamp: {text[:40]!r}")
    return datetime.fromisoformat(text.upper())
