"""The collections under their older names, and references to what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GROUPS: Final[Mapping[str, str]] = {
    "endpoints": "endpoints",
    "messagegroups": "definitionGroups",
    "schemagroups": "schemaGroups",
}
"""The older names of types of groups, by those of 1.0."""
RESOURCES: Final[Mapping[str, str]] = {"messages": "definitions", "schemas": "schemas"}
"""The older names of types of resources, by those of 1.0."""
SINGULAR: Final[Mapping[str, str]] = {"messages": "definition", "schemas": "schema"}
_NEWER: Final = {
    **{older.lower(): newer for newer, older in (*GROUPS.items(), *RESOURCES.items())},
    **{name: name for name in (*GROUPS, *RESOURCES)},
    "schema": "schemas",
    "versions": "versions",
}
"""The names of 1.0 by older ones in lower case; the specification itself writes them in several ways."""
_LENGTHS: Final = (2, 4, 6)


def newer_name(name: str) -> str | None:
    """Return the name of 1.0 for a collection, in any letter case; None for what is none."""
    return _NEWER.get(name.lower())


def older_path(xid: str) -> str:
    """Return the path of an entity or a collection under its older names."""
    parts = xid.split("/")
    for place, names in ((1, GROUPS), (3, RESOURCES)):
        if len(parts) > place:
            parts[place] = names.get(parts[place], parts[place])
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class Links:
    """References as a face at *url* writes them: pointers within a *whole* document, else URLs."""

    url: str
    whole: bool = False

    def refer(self, reference: str) -> str:
        """Write a reference; one that leads elsewhere stays as it is."""
        xid = self.local(reference)
        return reference if xid is None else f"{'#' if self.whole else self.url}{older_path(xid)}"

    def local(self, reference: str) -> str | None:
        """Return the xid that a reference names, as a URL of this face, a pointer or an xid; None for any other."""
        path = reference.removeprefix(self.url if reference.startswith(f"{self.url}/") else "#")
        parts = path.split("/")[1:]
        if not path.startswith("/") or len(parts) not in _LENGTHS or not all(parts):
            return None
        names = [newer_name(name) for name in parts[::2]]
        if (
            names[0] not in GROUPS
            or any(name not in RESOURCES for name in names[1:2])
            or names[2:] not in ([], ["versions"])
        ):
            return None
        return "".join(f"/{name}/{each}" for name, each in zip(names, parts[1::2], strict=True))
