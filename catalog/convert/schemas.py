"""One schema resource to its 1.0-rc4 form: versions with documents or addresses under the names of 1.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.convert.names import FIRST_VERSION, common, last, version_of
from catalog.dialects.versions import default_version

_RENAMED: Final[Mapping[str, str]] = {
    "schemaformat": "format",
    "schemaobject": "schema",
    "schemauri": "schemaurl",
    "uri": "schemaurl",
    "url": "schemaurl",
}
_KNOWN: Final = ("format", "schema", "schemabase64", "schemaurl", "contenttype")
_DROPPED: Final = frozenset({"schemaid", "versionid", "version", "versions", "defaultversionid", "meta"})
_OF_META: Final = frozenset({"schemaid", "xid", "self", "versionid"})


def schema_form(xid: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of the schema *xid*, whose declaration is *body*."""
    versions = body.get("versions")
    listed = {str(k): v for k, v in versions.items() if isinstance(v, dict)} if isinstance(versions, dict) else {}
    default = default_version(body, listed)
    meta = body.get("meta")
    kept = {name: value for name, value in meta.items() if name not in _OF_META} if isinstance(meta, dict) else {}
    if default is not None:
        kept["defaultversionid"] = default
    return {
        "schemaid": last(xid),
        "versionid": default or version_of(body) or FIRST_VERSION,
        "xid": xid,
        **_renamed(body),
        **({"meta": kept} if kept else {}),
        **({"versions": {name: _version(xid, name, each) for name, each in listed.items()}} if listed else {}),
    }


def _version(xid: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"schemaid": last(xid), "versionid": name, "xid": f"{xid}/versions/{name}", **_renamed(body)}


def _renamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a version says, under 1.0 names in any letter case; the 1.0 name counts when there are several."""
    folded: dict[str, Any] = {}
    for name, value in sorted(body.items(), key=lambda item: str(item[0]).lower() in _RENAMED):
        lower = str(name).lower()
        canonical = _RENAMED.get(lower, lower if lower in _KNOWN else name)
        if value is not None and value != "":
            folded.setdefault(canonical, value)
    return common(folded, _DROPPED)
