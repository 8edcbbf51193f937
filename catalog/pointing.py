"""Where a property is written: from its canonical name back to the spelling, and the pointer, of the document."""

from __future__ import annotations

from typing import Any

from catalog.declared import DeclaredMessage, Place
from catalog.protocol_properties import canonical_option, squash


def attribute_place(message: DeclaredMessage, name: str) -> Place | None:
    """Return the place of an envelope attribute; None when the message inherits it."""
    raw = message.attributes.get("envelopemetadata")
    place = message.at("envelopemetadata")
    if isinstance(raw, dict) and isinstance(raw.get("attributes"), dict) and name in raw["attributes"]:
        return place / "attributes" / name
    return place / name if isinstance(raw, dict) and name in raw else None


def option_place(message: DeclaredMessage, name: str, protocol: str | None) -> Place | None:
    """Return the place of a protocol option named as in the model; None when the message inherits it."""
    written = message.written.get(f"protocoloptions.{name}")
    if written is not None:
        return written
    raw = message.attributes.get("protocoloptions")
    place = message.at("protocoloptions")
    first, _, rest = name.partition(".")
    found = _option(raw, place, first, protocol)
    if found is None and isinstance(raw, dict) and isinstance(raw.get("properties"), dict):
        found = _option(raw["properties"], place / "properties", first, protocol)
    if found is None or not rest:
        return found[1] if found else None
    return _member(*found, rest)


def _option(raw: Any, place: Place, name: str, protocol: str | None) -> tuple[Any, Place] | None:
    if not isinstance(raw, dict):
        return None
    for key, value in raw.items():
        if key == name or canonical_option(protocol, key) == name:
            return value, place / key
    return None


def _member(raw: Any, place: Place, name: str) -> Place | None:
    entries = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for key, body in entries:
        written = body.get("name", key) if isinstance(body, dict) else key
        if isinstance(written, str) and squash(written) == squash(name):
            return place / key
    return None
