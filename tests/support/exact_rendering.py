"""The rendering of one event for tables, from the exact codec: what rendering whole arrays must give."""

from __future__ import annotations

from typing import Any

from bindings.parts import Part
from bindings.protocols import Binding
from router.rendering.texts import ATTRIBUTE_COLUMNS, TIME_TEXT, attribute_of_header, native_json, parse_instant


def render_event(parts: list[Part], binding: Binding, attributes: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Render the columns of one routed event; ``attributes`` are None if the record has them."""
    named = event_attributes(parts, binding, attributes)
    row: dict[str, Any] = {name: named.pop(name, None) for name in ATTRIBUTE_COLUMNS}
    row[TIME_TEXT] = named.pop("time", None)
    row["time"] = parse_instant(row[TIME_TEXT])
    row["extensions"] = list(named.items())
    row["native"] = native_json(parts, binding)
    return row


def event_attributes(parts: list[Part], binding: Binding, given: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return the attributes of an event: *given* as headers of Kafka's binary mode, else those of the record."""
    if given is None:
        return dict(binding.read_envelope(parts, None, lambda: False).attributes)
    return {attribute_of_header(entry["key"]): entry["value"].decode() for entry in given}
