"""What an entity says after a client of this face has replaced it: nothing is taken away that the face cannot say.

What a client sends back as it was shown leaves what is stored as it is. Attributes that 1.0 alone knows stay until the
client names them, with null to take one away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.faces.cloudevents.forms import XREF, Form

_BY_FORMAT: Final = frozenset(("protocol", "protocoloptions", "envelopemetadata", "envelopeoptions"))
_NEWER_ONLY: Final[Mapping[str, frozenset[str]]] = {
    "messages": _BY_FORMAT | {"basemessage", "datacontenttype", "dataschemaxid", "icon", "deprecated"},
    "messagegroups": frozenset(("protocol", "icon", "deprecated", "constraints")),
    "endpoints": frozenset(("envelopeoptions", "icon", "constraints")),
    "schemagroups": frozenset(("format", "icon", "deprecated", "constraints")),
    "schemas": frozenset(("icon", "contenttype", "deprecated")),
}
"""Names in older forms that are those of 1.0 alone, which clients of this face cannot be expected to send back."""


def replaced(plural: str, form: Form, stored: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be stored when *body* replaces the older form of what is *stored*; see the module.

    Raises:
        Refusal: the body cannot be read.
    """
    shown = form.shown(stored)
    # A new format brings its own rules for messages: what the old one had beside it goes with it.
    changed = body.get("format") is not None and body["format"] != shown.get("format")
    spared = _NEWER_ONLY[plural] - (_BY_FORMAT if changed else frozenset())
    if body.get("uri") is not None:
        spared -= {"basemessage"}  # what a definition borrows takes its place
    kept = {name: value for name, value in shown.items() if name in spared and name not in body}
    said = form.read({**kept, **{name: value for name, value in body.items() if value is not None}})
    before = form.read(shown)
    if XREF in said or (XREF in stored and said != before):
        return said  # what stands for another has nothing of its own, and what it showed was the other's
    if XREF in stored:
        return {XREF: stored[XREF]}
    result: dict[str, Any] = {}
    for name in {**stored, **said}:
        value = stored.get(name) if said.get(name) == before.get(name) else said.get(name)
        if value is not None:
            result[name] = value
    return result
