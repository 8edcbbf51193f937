"""Read a live registry over its HTTP API as one document.

Responses of xRegistry servers name collections that they do not include (``messagegroupsurl``). These are fetched, from
the same origin only, until the document is complete: with ``?inline`` if the server supports it, else page by page
(``Link``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from catalog.dialects.reading import names_of
from catalog.documents.connecting import (
    ConnectionPolicy,
    Credentials,
    FetchLimits,
    HttpAnswer,
    HttpRequest,
    exchange,
    origin_of,
)
from catalog.documents.fetching import MAX_BYTES, Fetcher, HttpResponse, is_url
from catalog.findings import DocumentError, Findings, SourceLocation
from catalog.model import Severity
from catalog.parsing.texts import parse_catalog_text
from catalog.values import parse_whole_number

# Writing to a registry. Any status is returned, and redirects are not followed.

SEND_SECONDS: Final = 300.0
"""Timeout for one write to a registry."""


def post_json(url: str, body: bytes, by: Fetcher) -> HttpAnswer:
    """POST JSON to *url* with the logins and the connection policy of *by*.

    Raises:
        DocumentError: no response, or a too large one. Then it is unknown whether the registry did the write.
    """
    address = by.address(url)
    try:
        return send_json(address, by.credentials, by.reach, FetchLimits(MAX_BYTES, SEND_SECONDS), body=body)
    except DocumentError as error:
        hint = "check the address and the network, and what the registry has now" if error.transient else error.hint
        raise DocumentError(f"{error}", file=address, hint=hint) from error


def send_json(
    url: str, credentials: Credentials, reach: ConnectionPolicy, limits: FetchLimits, *, body: bytes | None = None
) -> HttpAnswer:
    """POST JSON, or GET without *body*.

    Raises:
        DocumentError: no response (``transient``).
        AnswerTooLarge: the response exceeds *limits*.
    """
    headers = {"Accept": "application/json", **({} if body is None else {"Content-Type": "application/json"})}
    failed = "cannot be asked" if body is None else "cannot be written to"
    hint = "try again" if body is None else "see what it has now before you try again"
    return exchange(HttpRequest(url, headers, body=body), credentials, reach, limits, failed=failed, hint=hint)


# Pages of a collection, linked by Link headers (``rel=next``).

_LINK: Final = re.compile(r'<([^<>]*+)>((?:\s*+;\s*+[^\s;,="]++(?:\s*+=\s*+(?:"[^"]*+"|[^\s;,"]*+))?+)*+)')
_NEXT: Final = re.compile(r';\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next\b)', re.IGNORECASE)


def next_page(link: str) -> str | None:
    """Return the target of ``rel=next`` in a Link header."""
    return next((match.group(1) for match in _LINK.finditer(link) if _NEXT.search(match.group(2))), None)


def iter_next_pages(
    url: str, first: HttpResponse, fetcher: Fetcher, origins: Collection[str]
) -> Iterator[tuple[str, HttpResponse]]:
    """Yield the pages after the *first* of the collection at *url*, each with its address.

    Raises:
        DocumentError: a page cannot be fetched, is repeated, or is not at one of *origins*.
    """
    answer, seen = first, {url, first.url}
    while (written := next_page(answer.link)) is not None:
        page = fetcher.resolve(written, answer.url)
        trouble = (
            "is at another origin" if origin_of(page) not in origins else "was read before" if page in seen else ""
        )
        if trouble:
            raise DocumentError(f"the next page of {url} {trouble}", file=url, hint="fix the registry's paging")
        seen.add(page)
        answer = require_own(fetcher.fetch_response(page), page, origins)
        yield page, answer


def require_own(answer: HttpResponse, url: str, origins: Collection[str]) -> HttpResponse:
    """Return *answer* if it comes from one of *origins*.

    Raises:
        DocumentError: it was redirected to another origin.
    """
    landed = origin_of(answer.url)
    if landed not in origins:
        hint = "give the address of the registry that has it as a source of its own"
        raise DocumentError(f"{url} is redirected to {landed}, another origin", file=url, hint=hint)
    return answer


# Read the HTTP API of CNCF Message Catalog 0.1: groups, their definitions, and the latest version of each.
#
# ``/messagecatalog`` lists groups and ``/messagecatalog/G/messagedefinitions`` lists definitions, as ids or objects,
# maybe
# in pages. Missing content is fetched below the object's path, at the origin of the source only. The highest version is
# used, which the path of a definition returns.

ROOT: Final = "messagecatalog"
DEFINITIONS: Final = "messagedefinitions"
_GROUP_LISTS: Final = frozenset({"groups", "messagegroups"})
_DEFINITION_LISTS: Final = frozenset({"definitions", DEFINITIONS, "messages"})
_VERSION_LISTS: Final = frozenset({"versions"})
_PATHLESS: Final = frozenset({"", ".", ".."})
Entry = tuple[str, dict[str, Any]]
"""The id of a list member, and its attributes in the list."""


@dataclass(frozen=True, slots=True)
class ServedRegistry:
    """The assembled registry; ``mounts`` and ``aliases`` are those of :class:`catalog.documents.documents.Document`."""

    tree: dict[str, Any]
    mounts: Mapping[tuple[str, str], SourceLocation] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


class _ApiReader:
    """Reads one API, at the origin of the source only; all requests count against the limits of the load."""

    def __init__(self, url: str, landed: str, fetcher: Fetcher, findings: Findings) -> None:
        self._url = url
        self._origins = {origin_of(url), origin_of(landed)}
        self._fetcher = fetcher
        self._findings = findings

    def _fetch(self, url: str) -> HttpResponse:
        return require_own(self._fetcher.fetch_response(url), url, self._origins)

    def _report(self, error: DocumentError, url: str, severity: Severity = "error") -> None:
        """Report a permanent failure.

        Raises:
            DocumentError: the error, if it is transient, since an incomplete registry must not be used.
        """
        if error.transient:
            raise error
        place = SourceLocation(error.file or url)
        self._findings.add(place, severity, "unreadable-document", str(error), error.hint)


def read_message_catalog(url: str, answer: HttpResponse, fetcher: Fetcher, findings: Findings) -> ServedRegistry | None:
    """Return the catalog or group whose API answers at *url*; None if there is no such API.

    Permanent failures are findings, and the rest is returned.

    Raises:
        DocumentError: transient; the catalog cannot be read completely at present.
    """
    segments = urlsplit(url).path.rstrip("/").split("/")
    if ROOT not in segments[-2:] and segments[-3:-2] != [ROOT]:
        return None
    tree = parse_catalog_text(url, answer.data).tree
    reader = _MessageCatalogReader(url, answer.url, fetcher, findings)
    if segments[-1] == ROOT:
        groups = _parse_entries(tree, _GROUP_LISTS)
        if groups is None or any(_shows_definitions(group) for _, group in groups):
            return None  # a complete document
        reader.read_groups([*groups, *reader.iter_more_members(url, answer, _GROUP_LISTS)])
    elif segments[-2] == ROOT and isinstance(tree, dict) and _is_bare_group(tree):
        reader.read_group(url, tree)
    elif segments[-1] == DEFINITIONS and _parse_entries(tree, _DEFINITION_LISTS) is not None:
        reader.read_group(url.partition("?")[0].rstrip("/").rpartition("/")[0], {"id": segments[-2]})
    else:
        return None
    return ServedRegistry({"specversion": "0.1", "groups": reader.group_documents}, reader.mounts)


class _MessageCatalogReader(_ApiReader):
    """Reads one catalog. ``group_documents`` are its groups; ``mounts`` has the locations of definitions."""

    def __init__(self, url: str, landed: str, fetcher: Fetcher, findings: Findings) -> None:
        super().__init__(url, landed, fetcher, findings)
        self.group_documents: list[dict[str, Any]] = []
        self.mounts: dict[tuple[str, str], SourceLocation] = {}

    def read_groups(self, listed: Sequence[Entry]) -> None:
        """Read the groups in *listed*."""
        base = urlsplit(self._url)._replace(query="", fragment="").geturl().rstrip("/")
        for name, shown in listed:
            address = self._member_address(base, name)
            group = shown if "format" in shown else self._read_object(address)
            if address is not None and group is not None:
                self.read_group(address, {"id": name, **group})

    def read_group(self, address: str, shown: dict[str, Any]) -> None:
        """Read one group with its definitions; *shown* are its attributes in the list."""
        collection = f"{address}/{DEFINITIONS}"
        definitions: list[dict[str, Any]] = []
        at = f"/groups/{len(self.group_documents)}"
        self.mounts[self._url, at] = SourceLocation(address)
        for name, entry in self._list(collection, _DEFINITION_LISTS):
            where = self._member_address(collection, name)
            definition = entry if _shows_content(entry) else self._read_definition(where, entry)
            if where is not None and definition is not None:
                # Locations refer to the document with the member, and the group has its own address.
                self.mounts[address, f"/definitions/{len(definitions)}"] = SourceLocation(where)
                definitions.append({"id": name, **definition})
        own_attributes = {key: value for key, value in shown.items() if key.lower() not in _DEFINITION_LISTS}
        self.group_documents.append({**own_attributes, "definitions": definitions})

    def iter_more_members(self, url: str, answer: HttpResponse, names: frozenset[str]) -> Iterator[Entry]:
        """Yield the members on all pages after the first, up to a page that cannot be read."""
        try:
            for page, each in iter_next_pages(url, answer, self._fetcher, self._origins):
                yield from self._read_members(page, each, names)
        except DocumentError as error:
            self._report(error, url)

    def _list(self, url: str, names: frozenset[str]) -> Iterator[Entry]:
        try:
            answer = self._fetch(url)
            yield from self._read_members(url, answer, names)
        except DocumentError as error:
            self._report(error, url)
            return
        yield from self.iter_more_members(url, answer, names)

    def _read_members(self, url: str, answer: HttpResponse, names: frozenset[str]) -> list[Entry]:
        entries = _parse_entries(parse_catalog_text(url, answer.data).tree, names)
        if entries is None:
            hint = "check that a message catalog answers there"
            raise DocumentError(f"{url} lists nothing that has an id", file=url, hint=hint)
        return entries

    def _read_definition(self, url: str | None, entry: dict[str, Any]) -> dict[str, Any] | None:
        """Fetch the latest version of a definition; *entry* are its attributes in the list."""
        definition = self._read_object(url)
        if url is None or definition is None or _shows_content(definition):
            return definition if definition is None else {**entry, **definition}
        numbered = [
            (parse_whole_number(name), name, shown) for name, shown in self._list(f"{url}/versions", _VERSION_LISTS)
        ]
        known = [(number, name, shown) for number, name, shown in numbered if number is not None]
        if not known:
            text = f"{url} shows neither its definition nor a numbered version of it"
            self._report(DocumentError(text, file=url, hint="check that a message catalog answers there"), url)
            return None
        _, name, latest = max(known, key=lambda each: each[0])
        version = latest if _shows_content(latest) else self._read_object(self._member_address(f"{url}/versions", name))
        return None if version is None else {**entry, **definition, **version}

    def _read_object(self, url: str | None) -> dict[str, Any] | None:
        if url is None:
            return None
        try:
            return _parse_object(url, self._fetch(url).data)
        except DocumentError as error:
            self._report(error, url)
            return None

    def _member_address(self, base: str, name: str) -> str | None:
        """Return the address of a member; None if its id is not a single path segment."""
        if name not in _PATHLESS:
            return f"{base}/{quote(name, safe='')}"
        text = f"{base} lists the id {name!r}, which no path can end with"
        self._report(DocumentError(text, file=base, hint="give it another id"), base)
        return None


def _parse_entries(tree: Any, names: frozenset[str]) -> list[Entry] | None:
    """Return the members listed under one of *names* or as the whole response; None if there is no list."""
    if isinstance(tree, dict):
        tree = next((value for key, value in tree.items() if key.lower() in names), tree)
    if isinstance(tree, dict):
        shown = [(key, value) for key, value in tree.items() if isinstance(value, dict)]
        return shown if shown and len(shown) == len(tree) else None
    if not isinstance(tree, list):
        return None
    entries = [_parse_entry(each, names) for each in tree]
    return [each for each in entries if each is not None] if None not in entries else None


def _parse_entry(member: Any, names: frozenset[str]) -> Entry | None:
    key = "version" if names is _VERSION_LISTS else "id"
    name = member.get(key) if isinstance(member, dict) else member
    if isinstance(name, bool) or not isinstance(name, str | int):
        return None
    return str(name), member if isinstance(member, dict) else {}


def _is_bare_group(tree: Mapping[str, Any]) -> bool:
    """Whether the response is a group without the contents of its definitions."""
    return "format" in tree and not _shows_definitions(tree) and not _shows_content(tree)


def _shows_definitions(group: Mapping[str, Any]) -> bool:
    """Whether a group includes the content of its definitions."""
    shown = [value for key, value in group.items() if key.lower() in _DEFINITION_LISTS]
    lists = [each for each in shown if isinstance(each, dict | list)]
    members = [each for held in lists for each in (held.values() if isinstance(held, dict) else held)]
    return any(isinstance(each, dict) and _shows_content(each) for each in members)


def _shows_content(definition: Mapping[str, Any]) -> bool:
    """Whether a definition includes its content, itself or in a version."""
    versions = definition.get("versions")
    bodies = [definition, *(versions if isinstance(versions, list) else ())]
    return any(isinstance(body, dict) and isinstance(body.get("definition"), dict) for body in bodies)


# Assembling one registry from several documents; the location of every member is recorded.

COLLECTIONS: Final = frozenset({"messagegroups", "endpoints", "schemagroups", "definitiongroups"})
"""The collections of a registry, in lower case."""
NESTED: Final = COLLECTIONS | {"messages", "schemas", "definitions", "versions"}
"""All collections, in lower case."""


class Assembly:
    """A registry assembled from parts.

    Collections and their entities are merged; other attributes are replaced by later parts. ``mounts`` are as
    :attr:`catalog.findings.SourceLocation.mounts` has them.
    """

    def __init__(self, file: str, tree: dict[str, Any]) -> None:
        self.tree: dict[str, Any] = dict(tree)
        self.mounts: dict[tuple[str, str], SourceLocation] = {}
        self._root = SourceLocation(file, "", self.mounts)

    def find(self, path: Sequence[str]) -> Any:
        """Return the value at *path*; None if there is none."""
        node: Any = self.tree
        for step in path:
            node = node.get(step) if isinstance(node, dict) else None
        return node

    def add_part(self, path: Sequence[str], part: Any, place: SourceLocation) -> None:
        """Merge *part*, written at *place*, into the value at *path*; *part* itself is not changed.

        Collections have paths of odd length, entities of even length: collection, id, collection, id and so on.
        """
        if not path:
            self._merge(self.tree, part, self._root, place)
            return
        node, at = self.tree, self._root
        for step in path[:-1]:
            node = _copy_child(node, step)
            at = at / step
        collection = path[-1].lower() in NESTED if len(path) % 2 else None
        self._set_member(node, path[-1], part, at, place, collection)

    def _merge(self, node: dict[str, Any], part: dict[str, Any], at: SourceLocation, place: SourceLocation) -> None:
        for key, value in part.items():
            self._set_member(node, key, value, at, place / key, key.lower() in NESTED)

    def _set_member(
        self,
        node: dict[str, Any],
        key: str,
        value: Any,
        at: SourceLocation,
        place: SourceLocation,
        collection: bool | None,
    ) -> None:
        """Put an attribute, a collection (*collection* True) or an entity (None) into *node*."""
        if collection is not False and isinstance(value, dict) and isinstance(node.get(key), dict):
            held, below = _copy_child(node, key), at / key
            if collection is None:
                self._merge(held, value, below, place)
                return
            for name, entity in value.items():
                self._set_member(held, name, entity, below, place / name, None)
            return
        node[key] = value
        self.mounts[at.file, (SourceLocation(at.file, at.pointer) / key).pointer] = SourceLocation(
            place.file, place.pointer
        )


def _copy_child(node: dict[str, Any], step: str) -> dict[str, Any]:
    """Replace the object at *step* by a copy and return it, so that no part is changed."""
    existing = node.get(step)
    node[step] = entered = dict(existing) if isinstance(existing, dict) else {}
    return entered


# Folders with a registry as a tree of ``index.json`` files, as a static file server would serve it.
#
# ``messagegroups/G/messages/M/index.json`` is the entity of that path, a collection's ``index.json`` a map of entities.
# A resource's ``index.json`` is its document if its metadata is in a folder ending in ``$details`` (``$meta`` in older
# registries) beside it; otherwise it is the metadata.

INDEX: Final = "index.json"
RESOURCES: Final[Mapping[str, str]] = {"messagegroups": "messages", "endpoints": "messages", "schemagroups": "schemas"}
"""The group collections of a registry, each with the collection of resources in a group."""
_DETAILS: Final = ("$details", "$meta")
_METADATA: Final = frozenset(
    {"versions", "versionsurl", "schemaid", "xid", "schema", "schemabase64", "schemaurl", "schemauri", "metaurl"}
)
_MAX_FOLDER_DEPTH: Final = 6


def is_tree_root(path: Path, fetcher: Fetcher) -> bool:
    """Whether a file is the ``index.json`` at the top of a registry tree."""
    return any(os.path.isdir(path.parent / name) for name in RESOURCES) and bool(parts_in(path.parent, fetcher))


def parts_in(top: Path, fetcher: Fetcher) -> list[Path]:
    """Return the files of the registry in the folder *top*, in the order of merging."""
    files = [path for name in RESOURCES if os.path.isdir(top / name) for path in fetcher.list_files(top / name)]
    return _sort_parts(top, (path for path in files if _is_part(path.relative_to(top).parts)))


def find_trees(folder: Path, files: Sequence[Path]) -> dict[Path, list[Path]]:
    """Find registry trees among the *files* of a folder; return the parts of each by top folder.

    A top folder has an ``index.json`` or is *folder* itself, and is not part of another tree.
    """
    known = set(files)
    trees: dict[Path, list[Path]] = {}
    for path in files:
        steps = path.relative_to(folder).parts
        for depth, step in enumerate(steps):
            top = folder.joinpath(*steps[:depth])
            if step in RESOURCES and _is_part(steps[depth:]) and (depth == 0 or top / INDEX in known):
                trees.setdefault(top, []).append(path)
                break
    return {top: _sort_parts(top, parts) for top, parts in trees.items()}


def add_file(assembly: Assembly, steps: Sequence[str], part: dict[str, Any], place: SourceLocation) -> None:
    """Add the file in the folder *steps* (below the top) at its path; a complete catalog, at the top."""
    path, details = _without_suffix(steps)
    if any(isinstance(part.get(name), dict) for name in RESOURCES):
        assembly.add_part([], part, place)
        return
    document = not details and path[0] == "schemagroups" and len(path) in (4, 6) and not (_METADATA & part.keys())
    if document and isinstance(assembly.find(path), dict):
        assembly.add_part([*path, "schema"], part, place)
        return
    nested = part.get("versions")
    own = nested.get(path[-1]) if len(path) == _MAX_FOLDER_DEPTH and isinstance(nested, dict) else None
    if isinstance(own, dict):  # some generators repeat the resource in each version
        part, place = own, place / "versions" / path[-1]
    assembly.add_part(path, part, place)


def _is_part(steps: Sequence[str]) -> bool:
    """Whether *steps* is the path of a part: collection, group, resources, resource, versions, version."""
    names, _ = _without_suffix(steps[:-1])
    if steps[-1] != INDEX or not 1 <= len(names) <= _MAX_FOLDER_DEPTH or names[0] not in RESOURCES:
        return False
    if len(names) > 2 and names[2] != RESOURCES[names[0]]:
        return False
    return len(names) < 5 or names[4] == "versions" or (names[4] == "meta" and len(names) == 5)


def _without_suffix(steps: Sequence[str]) -> tuple[list[str], bool]:
    """Return a path without ``$details`` or ``$meta``, and whether it had one."""
    if not steps:
        return [], False
    suffix = next((each for each in _DETAILS if steps[-1].endswith(each) and steps[-1] != each), "")
    return [*steps[:-1], steps[-1].removesuffix(suffix)], bool(suffix)


def _sort_parts(top: Path, parts: Iterable[Path]) -> list[Path]:
    """Sort parts: containers before their contents, metadata before documents."""

    def rank(path: Path) -> tuple[int, tuple[str, ...], bool]:
        names, details = _without_suffix(path.relative_to(top).parent.parts)
        return len(names), tuple(names), not details

    return sorted(parts, key=rank)


_XID: Final = re.compile(r"/(messagegroups|endpoints|schemagroups)/[^/]+(/(messages|schemas)/[^/]+(/versions/[^/]+)?)?")
_DOCUMENT: Final = ("schema", "schemabase64", "schemaurl", "schemauri")


def read_registry(
    url: str, tree: dict[str, Any], answer: HttpResponse, fetcher: Fetcher, findings: Findings
) -> ServedRegistry:
    """Complete the document at *url* if a registry served it; return any other document unchanged.

    The root of a registry, an entity and a collection are detected by their attributes; the last two are placed at the
    path of their xid. Permanent failures are findings, and the rest is returned.

    Raises:
        DocumentError: transient; the registry cannot be read completely at present.
    """
    path = _find_registry_path(tree)
    if path is None:
        return ServedRegistry(tree, aliases=own_addresses(tree))
    reader = _RegistryApiReader(url, answer.url, fetcher, findings)
    if _is_incomplete(tree, len(path)):
        tree, answer = reader.inline(tree, answer, len(path))
    assembly = Assembly(url, tree if not path else {})
    if path:
        assembly.add_part(path, tree, SourceLocation(url))
    reader.add_next_pages(assembly, path, answer, url)
    reader.fetch_missing(assembly, path)
    return ServedRegistry(assembly.tree, assembly.mounts, (*own_addresses(tree), *_registry_prefix(url, path)))


def own_addresses(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the address that a registry's root states in ``self``, as a tuple; empty if none."""
    given = tree.get("self")
    root = tree.get("xid") in (None, "/") and any(key.lower().removesuffix("url") in COLLECTIONS for key in tree)
    return (given,) if root and isinstance(given, str) and is_url(given) else ()


def _find_registry_path(tree: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the path of a response: empty for the root, of odd length for a collection; None if not of a registry."""
    xid = tree.get("xid")
    if isinstance(xid, str) and isinstance(tree.get("self"), str) and _XID.fullmatch(xid):
        return tuple(xid.split("/")[1:])
    if any(key.lower().endswith("url") and key[:-3].lower() in COLLECTIONS for key in tree):
        return ()
    xids = [each.get("xid") if isinstance(each, dict) and "self" in each else None for each in tree.values()]
    parents = {xid.rpartition("/")[0] for xid in xids if isinstance(xid, str) and _XID.fullmatch(xid)}
    if len(parents) == 1 and None not in xids:
        return tuple(parents.pop().split("/")[1:])
    return None


def _registry_prefix(url: str, path: Sequence[str]) -> tuple[str, ...]:
    """Return the address of the registry, as a tuple; empty if *url* does not end in *path*."""
    bare = urlsplit(url)._replace(query="", fragment="").geturl().rstrip("/")
    for tail in ("".join(f"/{step}" for step in path), "".join(f"/{quote(step)}" for step in path)):
        if bare.endswith(tail):
            return (bare.removesuffix(tail).rstrip("/"),)
    return ()


def collection_names(name: str, depth: int) -> frozenset[str]:
    """Return all names, in lower case, of the collection *name* below an entity at *depth*; empty if it is none."""
    kinds: dict[int, tuple[Collection[str], ...]] = {
        0: (names_of("groups"), {"endpoints"}, {"schemagroups"}),
        2: (names_of("messages"), {"schemas"}),
        4: ({"versions"},),
    }
    return next((frozenset(kind) for kind in kinds.get(depth, ()) if name.lower() in kind), frozenset())


def iter_missing_collections(
    entity: Mapping[str, Any], depth: int, endings: tuple[str, ...] = ("url",)
) -> Iterator[tuple[str, str]]:
    """Yield the members with the addresses of collections that an entity does not include, each with its address."""
    for key, address in entity.items():
        names = collection_names(key[:-3], depth) if key.lower().endswith(endings) else ()
        if not names or not isinstance(address, str) or not address or address.startswith("#"):
            continue
        shown = any(name.lower() in names for name in entity)
        count = next((entity[name] for name in entity if name.lower() == f"{key[:-3].lower()}count"), None)
        alone = key[:-3] == "versions" and entity.get("versionscount") == 1 and "versionid" in entity  # its own version
        if not shown and count != 0 and not alone:
            yield key, address


def shown_collections(entity: Mapping[str, Any], depth: int) -> list[str]:
    """Return the names of the collections included in an entity, last first."""
    return [key for key in reversed(list(entity)) if isinstance(entity[key], dict) and collection_names(key, depth)]


def _is_incomplete(node: Mapping[str, Any], depth: int) -> bool:
    """Whether a collection is missing below an entity (even *depth*) or a collection (odd *depth*)."""
    if depth % 2:
        return any(_is_incomplete(each, depth + 1) for each in node.values() if isinstance(each, dict))
    if any(True for _ in iter_missing_collections(node, depth)):
        return True
    return any(_is_incomplete(node[name], depth + 1) for name in shown_collections(node, depth))


def _iter_inline_values(tree: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield values of ``inline`` to try, until the server accepts one."""
    yield "*"
    named = {key.lower().removesuffix("url") for key in tree} if depth == 0 else set()
    paths = [f"{name}.{resources}" for name, resources in RESOURCES.items() if name in named]
    if paths:
        yield ",".join(f"{path}.versions" for path in paths)
        yield ",".join(paths)


class _RegistryApiReader(_ApiReader):
    """Reads one registry."""

    _inline = True

    def inline(self, tree: dict[str, Any], answer: HttpResponse, depth: int) -> tuple[dict[str, Any], HttpResponse]:
        """Request everything inline; return *tree* and *answer* if the server does not support that."""
        if "inline=" in urlsplit(self._url).query:
            self._inline = False
            return tree, answer
        for wanted in _iter_inline_values(tree, depth):
            whole = _with_inline(self._url, wanted)
            try:
                asked = self._fetcher.fetch_response(whole)
                full_tree = _parse_object(self._url, asked.data)
            except DocumentError as error:
                if error.transient:
                    raise
                self._fetcher.forget(whole)
                continue
            if _find_registry_path(full_tree) == _find_registry_path(tree):
                self._inline = not _is_incomplete(full_tree, depth)
                self._fetcher.forget(self._url)  # so that a check costs one request if one response has everything
                return full_tree, asked
            self._fetcher.forget(whole)
        self._inline = depth == 0  # everything at once may only have been too large
        return tree, answer

    def fetch_missing(self, assembly: Assembly, path: tuple[str, ...]) -> None:
        """Fetch everything missing at *path* and below, without recursion, since a server controls the depth."""
        waiting = [path]
        while waiting:
            current = waiting.pop()
            node = assembly.find(current)
            if not isinstance(node, dict):
                continue
            if len(current) % 2 == 0:
                for key, url in list(iter_missing_collections(node, len(current))):
                    self._add_collection(assembly, (*current, key[:-3]), url)
                self._add_meta(assembly, current)
                self._add_document_url(assembly, current)
                waiting.extend((*current, key) for key in shown_collections(assembly.find(current), len(current)))
            else:
                waiting.extend((*current, key) for key in reversed(node))

    def add_next_pages(self, assembly: Assembly, path: tuple[str, ...], answer: HttpResponse, url: str) -> None:
        """Add all pages after the first of a collection, up to a page that cannot be read, which is a finding."""
        if len(path) % 2 == 0:
            return
        try:
            for page, more in iter_next_pages(url, answer, self._fetcher, self._origins):
                assembly.add_part(path, _parse_object(page, more.data), SourceLocation(page))
        except DocumentError as error:
            self._report_part(error, url, path)

    def _add_collection(self, assembly: Assembly, path: tuple[str, ...], written: str) -> None:
        url = self._url
        try:
            url = self._collection_url(written, path)
            answer = self._fetch_collection(url)
            assembly.add_part(path, _parse_object(url, answer.data), SourceLocation(url))
        except DocumentError as error:
            assembly.add_part(path, {}, SourceLocation(url))  # so that it is not requested again
            self._report_part(error, url, path)
            return
        self.add_next_pages(assembly, path, answer, url)

    def _report_part(self, error: DocumentError, url: str, path: tuple[str, ...]) -> None:
        # A resource itself has the attributes of its default version.
        self._report(error, url, "warning" if path[-1] == "versions" else "error")

    def _fetch_collection(self, url: str) -> HttpResponse:
        """Fetch a collection, with everything below it if the server supports ``inline``."""
        if self._inline and "inline=" not in urlsplit(url).query:
            whole = _with_inline(url, "*")
            try:
                return self._fetch(whole)
            except DocumentError as error:
                if error.transient:
                    raise
                self._fetcher.forget(whole)
                self._inline = False
        return self._fetch(url)

    def _collection_url(self, written: str, path: tuple[str, ...]) -> str:
        """Return the URL of a collection; if it has another origin, the specified path at ours.

        A server behind a proxy often states the wrong host name; the one that we used works.
        """
        with_base = self._fetcher.resolve(written, self._url)
        if origin_of(with_base) in self._origins:
            return with_base
        prefix = _registry_prefix(self._url, path[: self._count_given_steps(path)])
        start = prefix[0] if prefix else urlsplit(self._url)._replace(query="").geturl().rstrip("/")
        query = urlsplit(with_base).query
        return start + "".join(f"/{quote(step)}" for step in path) + (f"?{query}" if query else "")

    def _count_given_steps(self, path: tuple[str, ...]) -> int:
        """Return how many steps of *path* are in the source's own URL."""
        return next((steps for steps in range(len(path), 0, -1) if _registry_prefix(self._url, path[:steps])), 0)

    def _add_meta(self, assembly: Assembly, path: tuple[str, ...]) -> None:
        """Fetch the ``meta`` of a resource without versions, which may have an ``xref``."""
        entity = assembly.find(path)
        written = entity.get("metaurl")
        if len(path) != 4 or not isinstance(written, str) or written.startswith("#"):
            return
        if any(entity.get(name) is not None for name in ("meta", "versionid", "versions", "xref")):
            return
        self._add_collection(assembly, (*path, "meta"), written)

    def _add_document_url(self, assembly: Assembly, path: tuple[str, ...]) -> None:
        """Add the URL of a schema document that is not included: the URL of the entity without ``$details``."""
        entity = assembly.find(path)
        if path[:1] != ("schemagroups",) or len(path) < 4 or any(entity.get(name) is not None for name in _DOCUMENT):
            return
        written = entity.get("self")
        if isinstance(written, str) and not written.startswith("#") and "versions" not in entity:
            with suppress(DocumentError):  # without a valid address there is no document
                plain = urlsplit(self._collection_url(written, path))
                where = plain._replace(path=plain.path.removesuffix("$details").removesuffix("$meta")).geturl()
                assembly.add_part([*path, "schemaurl"], where, SourceLocation(self._url))


def _with_inline(url: str, inline: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query=f"{parts.query}&inline={inline}".removeprefix("&")).geturl()


def _parse_object(url: str, data: bytes) -> dict[str, Any]:
    tree = parse_catalog_text(url, data).tree
    if not isinstance(tree, dict):
        raise DocumentError(f"{url} holds no JSON object", file=url, hint="check that a catalog answers there")
    return tree
