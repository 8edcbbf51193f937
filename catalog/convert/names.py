"""The attributes that every xRegistry entity has: identifiers first, then what people wrote, then everything else.

What only a server can know is not made up: ``epoch`` and times are kept where the source has them, and what locates
an entity on a server (``self``, ``…url``, ``…count``) is left out, since the document is a new place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from catalog.values import is_number, text_of

FIRST: Final = (
    *("name", "description", "documentation", "icon", "labels", "epoch", "createdat", "modifiedat", "ancestorid"),
    "deprecated",
)
FIRST_VERSION: Final = "1"
"""The id that registries give to the first version of what comes without one."""
_TEXTS: Final = frozenset({"name", "description", "labels"})
_LOCATORS: Final = frozenset({"id", "xid", "self", "shortself", "metaurl", "defaultversionurl"})
_COLLECTIONS: Final = ("messages", "versions", "schemas", "messagegroups", "endpoints", "schemagroups")
_COUNTED: Final = frozenset(f"{name}{end}" for name in _COLLECTIONS for end in ("url", "count"))
_RENAMED: Final = {"ancestor": "ancestorid"}


def common(other: Mapping[str, Any], drop: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of *other* that are kept, under their 1.0 names, well-known ones first."""
    kept: dict[str, Any] = {}
    for name, value in other.items():
        if name not in _LOCATORS and name not in _COUNTED and name not in drop:
            known = _RENAMED.get(name, name)
            kept.setdefault(known, _as_text(value) if known in _TEXTS else value)
    return {**{name: kept[name] for name in FIRST if name in kept}, **kept}


def _as_text(value: Any) -> Any:
    """Return texts, and maps of them, in which numbers are the texts that are written."""
    if isinstance(value, dict):
        return {name: _as_text(each) for name, each in value.items()}
    return text_of(value) if is_number(value) else value


def last(xid: str) -> str:
    """Return the id that ends the xid of a group, message or schema; ids of old documents may have slashes."""
    rest = xid.split("/", 2)[2]
    for collection in ("/messages/", "/schemas/"):
        _, separator, inner = rest.partition(collection)
        if separator:
            return inner
    return rest


def version_of(other: Mapping[str, Any]) -> str | None:
    """Return the version that older documents write as ``version``, or newer ones as ``versionid``."""
    for name in ("versionid", "version"):
        value = other.get(name)
        if (isinstance(value, str) or is_number(value)) and text_of(value):
            return text_of(value)
    return None
