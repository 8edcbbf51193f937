"""Events for Python callers, as the ``cloudevents`` SDK has them; the router itself does not use them."""

# Small: users' code imports it, and nothing of ours.

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from catalog.values import is_timestamp


def to_cloudevent(attributes: Mapping[str, str | int], data: bytes | None = None) -> CloudEvent:
    """Return the SDK's event for *attributes*, as in ``cloudevent`` of an outcome, and the bytes of its data.

    Values stay the texts, integers and booleans that they are. ``time`` becomes a :class:`datetime` with the offset it
    was written with; digits beyond microseconds are cut off. An event without ``time`` gets none, while the SDK alone
    would say now. *data* stays bytes, JSON too: parsed and written again it could be other bytes.

    Raises:
        ValueError: ``time`` is no timestamp of RFC 3339, or has the leap second that :class:`datetime` lacks.
        cloudevents.core.exceptions.CloudEventValidationError: ``id``, ``source``, ``type`` or ``specversion`` is
            missing, or an attribute has a value or name that CloudEvents 1.0 forbids.
    """
    members: dict[str, Any] = {"id": "", "specversion": "", **attributes}  # what is missing is not made up
    if "time" in attributes:
        members["time"] = _moment(str(attributes["time"]))
    event = CloudEvent(members, data)
    if "time" not in attributes:
        del event.get_attributes()["time"]
    return event


def _moment(text: str) -> datetime:
    if not is_timestamp(text):
        raise ValueError(f"time is no timestamp of RFC 3339: {text[:40]!r}")
    return datetime.fromisoformat(text.upper())
