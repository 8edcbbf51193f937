"""Where a property is written: from its canonical name back to the spelling, and the pointer, of the document."""

from __future__ import annotations

from typing import Any

from catalog.declared import DeclaredMessage, Place
from catalog.definitions.options import short_entry
from catalog.protocols.properties import canonical_option, squash


def attribute_place(message: DeclaredMessage, name: str) -> Place | None:
    """Return the place of an envelope attribute; None when the message inherits it."""
    raw = message.attributes.get("envelopemetadata")
    place = message.at("envelopemetadata")
    if (elsewhere := message.written.get(f"envelopemetadata.{name}")) is not None:
        return elsewhere
    return place / name if isinstance(raw, dict) and name in raw else None


def option_place(message: DeclaredMessage, name: str, protocol: str | None) -> Place | None:
    """Return the place of a protocol option named as in the model; None when the message inherits it.

    Who asks for many of one message asks :class:`OptionPlaces`.
    """
    return OptionPlaces(message, protocol).of(name)


class OptionPlaces:
    """The places of one message's protocol options, found in one pass over them however many are asked for."""

    def __init__(self, message: DeclaredMessage, protocol: str | None) -> None:
        self._message = message
        self._protocol = protocol
        self._options: dict[str, tuple[Any, Place]] | None = None
        self._members: dict[str, dict[str, Place]] = {}

    def of(self, name: str) -> Place | None:
        """Return the place of an option named as in the model; None when the message inherits it."""
        written = self._message.written.get(f"protocoloptions.{name}")
        if written is not None:
            return written
        if self._options is None:
            self._options = self._read_options()
        first, _, rest = name.partition(".")
        option = self._options.get(first)
        if option is None or not rest:
            return option[1] if option else None
        if first not in self._members:
            self._members[first] = _members(*option)
        return self._members[first].get(squash(rest))

    def _read_options(self) -> dict[str, tuple[Any, Place]]:
        """Return value and place of every option by its names, canonical and written; of several the first."""
        raw = self._message.attributes.get("protocoloptions")
        if not isinstance(raw, dict):
            return {}
        place = self._message.at("protocoloptions")
        holders = [(raw, place)]
        if isinstance(raw.get("properties"), dict):
            holders.append((raw["properties"], place / "properties"))
        options: dict[str, tuple[Any, Place]] = {}
        for holder, at in holders:
            for key, value in holder.items():
                for name in (key, canonical_option(self._protocol, key)):
                    if name is not None and name not in options:
                        options[name] = (value, at / key)
        return options


def _members(raw: Any, place: Place) -> dict[str, Place]:
    """Return the places of named values, by what the spellings of a name share; of several the first."""
    entries = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    members: dict[str, Place] = {}
    for key, body in entries:
        short = short_entry(body) if isinstance(raw, list) else None
        written = short[0] if short else body.get("name", key) if isinstance(body, dict) else key
        if isinstance(written, str) and (shared := squash(written)) not in members:
            members[shared] = place / key
    return members
