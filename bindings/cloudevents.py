"""Events as objects of the ``cloudevents`` SDK, for Python callers; the router itself does not use them."""

# Small: users' code imports it.

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from catalog.values import is_timestamp


def to_cloudevent(attributes: Mapping[str, str | int], data: bytes | None = None) -> CloudEvent:
    """Return an SDK event with these attributes (``cloudevent`` of an outcome) and data.

    Values stay strings, integers and booleans. ``time`` becomes a :class:`datetime` with its original offset; digits
    beyond microseconds are cut off. An event without ``time`` gets none, while the SDK alone would set the current
    time. *data* stays bytes, JSON included: parsed and written again it could differ.

    Raises:
        ValueError: ``time`` is not an RFC 3339 timestamp, or has a leap second, which :class:`datetime` lacks.
        cloudevents.core.exceptions.CloudEventValidationError: ``id``, ``source``, ``type`` or ``specversion`` is
            missing, or an attribute has a value or name that CloudEvents 1.0 forbids.
    """
    members: dict[str, Any] = {"id": "", "specversion": "", **attributes}  # missing ones stay invalid
    if "time" in attributes:
        members["time"] = _parse_time(str(attributes["time"]))
    event = CloudEvent(members, data)
    if "time" not in attributes:
        del event.get_attributes()["time"]
    return event


def _parse_time(text: str) -> datetime:
    if not is_timestamp(text):
        raise ValueError(f"time is not an RFC 3339 timestamp: {text[:40]!r}")
    return datetime.fromisoformat(text.upper())
