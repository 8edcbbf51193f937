"""The schema registry of one load: schema resources as written, and what references to them mean.

A resource has versions, of which one is the default, or stands for itself. A version holds its document (``schema``,
``schemaobject``, ``schemabase64``) or says where it is (``schemauri``, ``schemaurl``, ``uri``), under any letter case.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from catalog.declared import Declarations, Place
from catalog.dialects.versions import default_version
from catalog.documents.fetching import is_url
from catalog.parsing.pointers import unescaped
from catalog.schemas.library import as_tree

_DOCUMENTS: Final = ("schema", "schemaobject", "schemabase64")
_ADDRESSES: Final = ("schemauri", "schemaurl", "uri", "url")
_FORMATS: Final = ("format", "schemaformat")
_REFERENCE: Final = re.compile(
    r"(?:^|[/#])schemagroups/([^/?#]+)/schemas?/([^?#]+)(?:\?[^#]*)?(?:#(.*))?$", re.IGNORECASE
)
_MISSPELT: Final = re.compile(r"schemagroups(?![/?#]|$)", re.IGNORECASE)
_MAX_BORROWS: Final = 16
_MAX_COLONS: Final = 16
_SUGGEST_AMONG: Final = 2_000
_SUGGEST_FOR: Final = 500
"""Characters of a reference for which a near one is looked for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a schema, under the xid of that version: the document, or the address where it is.

    ``place`` is where the document is written, or else the address; ``text`` tells a document that is one text there.
    ``ids`` are those that schema registries know it by, as its label ``schemaid`` lists them.
    """

    key: str
    place: Place
    format: str | None = None
    document: Any = None
    address: str | None = None
    text: bool = False
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """What a reference into the registry means: a version, and a type (``:Name``) or a pointer inside of it."""

    entry: Entry
    name: str = ""
    pointer: str = ""


@dataclass(slots=True)
class SchemaRegistry:
    """Finds schemas by xid; all documents of a load share one space of xids, and ids match in any letter case.

    ``prefix`` stands before the keys of a registry that is not the catalog's own.
    """

    declarations: Declarations
    prefix: str = ""
    _folded: dict[str, str] | None = None
    _ids: dict[str, Entry] | None = None
    _links: dict[str, Link | None] = field(default_factory=dict)
    _entries: dict[str, Entry | None] = field(default_factory=dict)

    def is_reference(self, reference: str) -> bool:
        """Tell whether *reference* is meant for a registry, this one or another."""
        return _REFERENCE.search(reference) is not None or _MISSPELT.search(reference) is not None

    def link(self, reference: str) -> Link | None:
        """Return what an xid, JSON pointer or URI with an xid in it means; None when it is nothing that was read."""
        if reference not in self._links:
            self._links[reference] = self._link(reference)
        return self._links[reference]

    def address(self, reference: str) -> str | None:
        """Return the URL that what a reference means gives itself (``self``), with the reference's deep link."""
        match = _REFERENCE.search(reference)
        if match is None:
            return None
        group, path, fragment = match.groups()
        for schema, version, deep in _readings(path):
            for names in ((group, schema), (_unescaped(group), _unescaped(schema))):
                xid = self._known(f"/schemagroups/{names[0]}/schemas/{names[1]}")
                body = self.declarations.schemas[xid] if xid is not None else {}
                holder = body if version is None else _versions(body).get(version, {})
                own = holder.get("self")
                if isinstance(own, str) and is_url(own):
                    within = (f":{deep}" if deep else "") + (f"#{fragment}" if fragment else "")
                    return own.removesuffix("$details") + within
        return None

    def sibling(self, name: str, key: str) -> Entry | None:
        """Return the schema called *name* in the group of the schema *key*, with or without a file's ending."""
        match = _REFERENCE.search(key)
        plain = name.rsplit("/", 1)[-1]
        if match is None or not plain:
            return None
        stem = plain.rpartition(".")[0]
        names = (plain, stem) if stem else (plain,)
        return next((entry for each in names if (entry := self._entry(match.group(1), each, None))), None)

    def by_id(self, identifier: str) -> Entry | None:
        """Return the embedded schema that calls itself so by ``$id`` (or ``id``), without its fragment."""
        if self._ids is None:
            self._ids = {}
            for entry in self.entries():
                if isinstance(entry.document, dict):
                    own = entry.document.get("$id", entry.document.get("id"))
                    if isinstance(own, str):
                        self._ids.setdefault(own.partition("#")[0], entry)
        return self._ids.get(identifier.partition("#")[0])

    def entries(self) -> Iterator[Entry]:
        """Give every version of every schema."""
        for xid, body in self.declarations.schemas.items():
            versions = _versions(body)
            for version in versions or (None,):
                entry = self._version(xid, version)
                if entry is not None:
                    yield entry

    def suggestion(self, reference: str) -> str:
        """Return what a dangling reference may have meant, as a hint; empty when nothing is near."""
        spelled = _MISSPELT.sub("schemagroups/", reference)
        if spelled != reference and self.link(spelled) is not None:
            return f"a slash is missing: write {spelled}"
        if len(self.declarations.schemas) > _SUGGEST_AMONG or len(reference) > _SUGGEST_FOR:
            return ""
        wanted = "/" + spelled.lstrip("#/").partition("/versions/")[0]
        near = difflib.get_close_matches(wanted, self.declarations.schemas, n=1, cutoff=0.8)
        return f"did you mean {near[0]}?" if near else ""

    def _link(self, reference: str) -> Link | None:
        match = _REFERENCE.search(reference)
        if match is None:
            return None
        group, path, fragment = match.groups()
        fragment = unquote(fragment or "")
        pointer, name = (fragment, "") if fragment.startswith("/") else ("", fragment)
        for schema, version, deep in _readings(path):
            entry = self._entry(group, schema, version)
            if entry is not None:
                return Link(entry, deep or name, pointer)
        return None

    def _entry(self, group: str, schema: str, version: str | None) -> Entry | None:
        """Return a version, by default the default one, of a schema spelled as written or escaped."""
        for names in ((group, schema), (_unescaped(group), _unescaped(schema))):
            xid = self._known(f"/schemagroups/{names[0]}/schemas/{names[1]}")
            if xid is not None:
                return self._borrowed(xid, version)
        return None

    def _borrowed(self, xid: str, version: str | None) -> Entry | None:
        """Follow ``xref`` to the resource that this one stands for."""
        for _ in range(_MAX_BORROWS):
            body = self.declarations.schemas[xid]
            meta = body.get("meta")
            target = body.get("xref") or (meta.get("xref") if isinstance(meta, dict) else None)
            if not isinstance(target, str):
                return self._of_version(xid, version)
            known = self._known(target.strip().lstrip("#"))
            if known is None:
                return None
            xid = known
        return None  # a cycle

    def _of_version(self, xid: str, version: str | None) -> Entry | None:
        body = self.declarations.schemas[xid]
        versions = _versions(body)
        if version is None:
            return self._version(xid, default_version(body, versions))
        own = {str(body.get(name)).lower() for name in ("versionid", "defaultversionid", "version")}
        if not versions:
            return self._version(xid, None) if version.lower() in own else None
        for key in versions:
            if key.lower() in (version.lower(), unquote(version).lower()):
                return self._version(xid, key)
        return None

    def _version(self, xid: str, version: str | None) -> Entry | None:
        key = xid if version is None else f"{xid}/versions/{version}"
        if key not in self._entries:
            body, place = self.declarations.schemas[xid], self.declarations.schema_places[xid]
            holders = [(body, place)]
            if version is not None:
                holders.insert(0, (_versions(body)[version], place / "versions" / version))
            self._entries[key] = _read(self.prefix + key, holders)
        return self._entries[key]

    def _known(self, xid: str) -> str | None:
        if xid in self.declarations.schemas:
            return xid
        if self._folded is None:
            self._folded = {known.lower(): known for known in self.declarations.schemas}
        return self._folded.get(xid.lower())


def _readings(path: str) -> Iterator[tuple[str, str | None, str]]:
    """Give schema, version and deep link that a path may mean; ids may have colons, so the longest id comes first."""
    path = path.rstrip("/").removesuffix("$details").removesuffix("$meta")
    schema, _, rest = path.partition("/")
    if ":" not in path:
        kind, _, version = rest.partition("/")
        if not rest or kind.lower() == "versions":
            yield schema, version.removesuffix("$details") or None, ""
        return
    cuts = [match.start() for match in islice(re.finditer(":", path), _MAX_COLONS)]
    for cut in (len(path), *reversed(cuts)):
        head, deep = path[:cut], path[cut + 1 :]
        schema, _, rest = head.partition("/")
        kind, _, version = rest.partition("/")
        if (not rest or (kind.lower() == "versions" and "/" not in version)) and schema:
            yield schema, version or None, deep


def _versions(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    versions = body.get("versions")
    if not isinstance(versions, dict):
        return {}
    return {str(key): version for key, version in versions.items() if isinstance(version, dict)}


def _read(key: str, holders: list[tuple[Mapping[str, Any], Place]]) -> Entry | None:
    """Read format and document, each from the first of *holders* that has it: the version, then the resource."""
    form = next((value for holder, _ in holders for _, value in _given(holder, _FORMATS)), None)
    ids = next((ids for holder, _ in holders if (ids := _ids(holder))), ())
    for holder, place in holders:
        for name, value in _given(holder, _DOCUMENTS):
            document = _decoded(value) if name.lower() == "schemabase64" else value
            if document is not None:
                return Entry(key, place / name, _text(form), as_tree(document), None, isinstance(document, str), ids)
        for name, value in _given(holder, _ADDRESSES):
            if isinstance(value, str) and value.strip():
                return Entry(key, place / name, _text(form), address=value.strip(), ids=ids)
    return None


def _ids(holder: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids in the label ``schemaid``: one, or several with commas between them."""
    labels = next((value for name, value in holder.items() if str(name).lower() == "labels"), None)
    label = labels.get("schemaid") if isinstance(labels, dict) else None
    texts = str(label).split(",") if isinstance(label, str | int) and not isinstance(label, bool) else ()
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


def _given(holder: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Give what *holder* has under *names*, in their order, with the names as written."""
    written = {str(name).lower(): name for name in holder}
    for name in names:
        if name in written and holder[written[name]] not in (None, ""):
            yield written[name], holder[written[name]]


def _decoded(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value).decode("utf-8-sig")
    except (binascii.Error, ValueError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _unescaped(name: str) -> str:
    return unquote(unescaped(name))
