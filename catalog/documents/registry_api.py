"""A live registry as a document: its HTTP API is asked for all at once, and for the rest collection by collection.

The answer of an xRegistry server names what it does not show (``messagegroupsurl``). All of that is fetched, from the
same origin only, until the tree is whole: with ``?inline`` where the server knows it, page by page (``Link``) where
not.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from catalog.documents.connecting import Asking, Credentials, Reach, asked, origin_of
from catalog.documents.fetching import MAX_BYTES, Fetcher, FetchLimits, HttpResponse, is_url
from catalog.findings import DocumentError, Findings, SourceLocation
from catalog.parsing.texts import parse_catalog_text
from catalog.values import whole_number

if TYPE_CHECKING:
    import httpx

# Requests to registries whose answers count whatever their status; pages of collections; Message Catalog 0.1's API.

# One request to a registry whose answer counts whatever its status, with logins; redirects are not followed.

SEND_SECONDS: Final = 300.0
"""How long a registry may take for one write."""
_UNAUTHORIZED: Final = 401


class AnswerTooLarge(DocumentError):
    """An answer of more bytes than it may have; another try would end the same."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a registry answered to a write: any status, its body, and the notes that it gives in headers."""

    status: int
    data: bytes
    notes: tuple[str, ...] = ()


def post(url: str, body: bytes, by: Fetcher, *, note: str) -> Receipt:
    """Send JSON to *url* with the logins and the reach of *by*, as :func:`exchange` does.

    Raises:
        DocumentError: no answer came, or it is too large. Then it is not known what the registry did.
    """
    address = by.address(url)
    try:
        return exchange(address, by.credentials, by.reach, FetchLimits(MAX_BYTES, SEND_SECONDS), body=body, note=note)
    except DocumentError as error:
        hint = "check the address and the network, and what the registry has now" if error.transient else error.hint
        raise DocumentError(f"{error}", file=address, hint=hint) from error


def exchange(
    url: str, credentials: Credentials, reach: Reach, limits: FetchLimits, *, body: bytes | None = None, note: str = ""
) -> Receipt:
    """Return the answer to the POST of JSON, or to a GET where there is no *body*, with the headers called *note*.

    A token that is refused is replaced once, so the request is sent twice at most, and the second time only when the
    first did nothing.

    Raises:
        DocumentError: no answer came (``transient``).
        AnswerTooLarge: more bytes came than *limits* allow.
    """
    import httpx  # only who uses the network pays for it

    try:
        return asyncio.run(_within(url, body, credentials, reach, limits, note))
    except TimeoutError as error:
        message = f"{url} took longer than {limits.seconds:g} s"
        hint = "see what it has now before you try again" if body is not None else "try again"
        raise DocumentError(message, file=url, hint=hint, transient=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        wanted = "asked" if body is None else "written to"
        hint = "check the address and the network"
        raise DocumentError(f"{url} cannot be {wanted}: {reason}", file=url, hint=hint, transient=True) from error


async def _within(
    url: str, body: bytes | None, credentials: Credentials, reach: Reach, limits: FetchLimits, note: str
) -> Receipt:
    origin, refused = origin_of(url), ""
    headers = {"Accept": "application/json", **({} if body is None else {"Content-Type": "application/json"})}
    async with asyncio.timeout(limits.seconds):
        while True:
            shown = await credentials.authorization(origin, limits.seconds, refused)
            sent = {**headers, "Authorization": shown} if shown else headers
            context = credentials.logins.context(origin)
            async with asked(Asking(url, sent, context, limits.seconds, body=body), reach) as response:
                if response.status_code == _UNAUTHORIZED and shown and not refused:
                    refused = shown
                    if await credentials.authorization(origin, limits.seconds, refused) != refused:
                        continue
                return await _receipt(response, url, limits.document_bytes, note)


async def _receipt(response: httpx.Response, url: str, most: int, note: str) -> Receipt:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > most:
            message = f"{url} answers with more than {most} bytes"
            raise AnswerTooLarge(message, file=url, hint="see what it has now")
    notes = tuple(response.headers.get_list(note)) if note else ()
    return Receipt(response.status_code, bytes(data), notes)


# Pages of one collection: each names the next by a Link header (``rel=next``), and none may lead us astray.

MAX_PAGES: Final = 500
"""Pages of one collection."""
_LINK: Final = re.compile(r'<([^<>]*+)>((?:\s*+;\s*+[^\s;,="]++(?:\s*+=\s*+(?:"[^"]*+"|[^\s;,"]*+))?+)*+)')
_NEXT: Final = re.compile(r';\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next\b)', re.IGNORECASE)


def next_page(link: str) -> str | None:
    """Return the target of ``rel=next`` in a Link header."""
    return next((match.group(1) for match in _LINK.finditer(link) if _NEXT.search(match.group(2))), None)


def following(
    url: str, first: HttpResponse, fetcher: Fetcher, origins: Collection[str]
) -> Iterator[tuple[str, HttpResponse]]:
    """Give the pages after the *first* of the collection at *url*, each with its address.

    Raises:
        DocumentError: a page cannot be fetched, was read before, is one too many, or is not at one of *origins*.
    """
    answer, seen = first, {url, first.url}
    while (written := next_page(answer.link)) is not None:
        page = fetcher.resolve(written, answer.url)
        trouble = _astray(page, seen, origins)
        if trouble:
            raise DocumentError(f"the next page of {url} {trouble}", file=url, hint="mend the registry's paging")
        seen.add(page)
        answer = own(fetcher.answer(page), page, origins)
        yield page, answer


def own(answer: HttpResponse, url: str, origins: Collection[str]) -> HttpResponse:
    """Return an answer of the registry whose origins these are.

    Raises:
        DocumentError: the registry sends us to somebody else for it.
    """
    landed = origin_of(answer.url)
    if landed not in origins:
        hint = "give the address of the registry that has it as a source of its own"
        raise DocumentError(f"{url} is redirected to {landed}, another origin", file=url, hint=hint)
    return answer


def _astray(page: str, seen: Collection[str], origins: Collection[str]) -> str:
    """Say why a page is not read; empty when it is."""
    if origin_of(page) not in origins:
        return "is at another origin"
    if page in seen:
        return "was read before"
    return f"would be more than {MAX_PAGES}" if len(seen) > MAX_PAGES else ""


# The HTTP API of CNCF Message Catalog 0.1 as a document: groups, their definitions, and the latest version of each.
#
# ``/messagecatalog`` lists groups and ``/messagecatalog/G/messagedefinitions`` definitions, as ids or as objects, page
# by page where the server likes. What an object does not show is fetched below its own path, at the origin of the
# source only. Of several versions the one with the highest number counts, which is what the path of a definition gives.

ROOT: Final = "messagecatalog"
DEFINITIONS: Final = "messagedefinitions"
_GROUP_LISTS: Final = frozenset({"groups", "messagegroups"})
_DEFINITION_LISTS: Final = frozenset({"definitions", DEFINITIONS, "messages"})
_VERSION_LISTS: Final = frozenset({"versions"})
_PATHLESS: Final = frozenset({"", ".", ".."})
Entry = tuple[str, dict[str, Any]]
"""The id of a member of a list, and what the list shows of it."""


@dataclass(frozen=True, slots=True)
class ServedCatalog:
    """What was put together; ``mounts`` are those of :class:`catalog.documents.documents.Document`."""

    tree: dict[str, Any]
    mounts: Mapping[tuple[str, str], SourceLocation] = field(default_factory=dict)


def read(url: str, answer: HttpResponse, fetcher: Fetcher, findings: Findings) -> ServedCatalog | None:
    """Return the catalog, or the one group of it, whose API answers at *url*; None for anything else.

    What can never be read is a finding, the rest is kept.

    Raises:
        DocumentError: transient; the catalog cannot be read whole now, and half of it would be a wrong one.
    """
    segments = urlsplit(url).path.rstrip("/").split("/")
    if ROOT not in segments[-2:] and segments[-3:-2] != [ROOT]:
        return None
    tree = parse_catalog_text(url, answer.data).tree
    reader = _Reader(url, answer, fetcher, findings)
    if segments[-1] == ROOT:
        groups = _entries(tree, _GROUP_LISTS)
        if groups is None or any(_is_whole(group) for _, group in groups):
            return None  # a document that is whole as it stands
        reader.groups([*groups, *reader.more(url, answer, _GROUP_LISTS)])
    elif segments[-2] == ROOT and isinstance(tree, dict) and _is_bare_group(tree):
        reader.group(url, tree)
    elif segments[-1] == DEFINITIONS and _entries(tree, _DEFINITION_LISTS) is not None:
        reader.group(url.partition("?")[0].rstrip("/").rpartition("/")[0], {"id": segments[-2]})
    else:
        return None
    return ServedCatalog({"specversion": "0.1", "groups": reader.group_documents}, reader.mounts)


class _Reader:
    """Reads one catalog. ``group_documents`` are its groups; ``mounts`` says where each definition is written."""

    def __init__(self, url: str, answer: HttpResponse, fetcher: Fetcher, findings: Findings) -> None:
        self.group_documents: list[dict[str, Any]] = []
        self.mounts: dict[tuple[str, str], SourceLocation] = {}
        self._url = url
        self._origins = {origin_of(url), origin_of(answer.url)}
        self._fetcher = fetcher
        self._findings = findings

    def groups(self, listed: Sequence[Entry]) -> None:
        """Read the groups that the catalog lists."""
        base = urlsplit(self._url)._replace(query="", fragment="").geturl().rstrip("/")
        for name, shown in listed:
            address = self._below(base, name)
            group = shown if "format" in shown else self._object(address)
            if address is not None and group is not None:
                self.group(address, {"id": name, **group})

    def group(self, address: str, shown: dict[str, Any]) -> None:
        """Read one group, whose attributes are *shown*, with its definitions."""
        collection = f"{address}/{DEFINITIONS}"
        definitions: list[dict[str, Any]] = []
        at = f"/groups/{len(self.group_documents)}"
        self.mounts[self._url, at] = SourceLocation(address)
        for name, entry in self._list(collection, _DEFINITION_LISTS):
            where = self._below(collection, name)
            definition = entry if _defines(entry) else self._definition(where, entry)
            if where is not None and definition is not None:
                # Places go by the document that a member is written in, and the group is written at its own address.
                self.mounts[address, f"/definitions/{len(definitions)}"] = SourceLocation(where)
                definitions.append({"id": name, **definition})
        own_attributes = {key: value for key, value in shown.items() if key.lower() not in _DEFINITION_LISTS}
        self.group_documents.append({**own_attributes, "definitions": definitions})

    def more(self, url: str, answer: HttpResponse, names: frozenset[str]) -> Iterator[Entry]:
        """Give the members that the pages after the first list; a page that can never be read ends them."""
        try:
            for page, each in following(url, answer, self._fetcher, self._origins):
                yield from self._members(page, each, names)
        except DocumentError as error:
            self._report(error, url)

    def _list(self, url: str, names: frozenset[str]) -> Iterator[Entry]:
        try:
            answer = own(self._fetcher.answer(url), url, self._origins)
            yield from self._members(url, answer, names)
        except DocumentError as error:
            self._report(error, url)
            return
        yield from self.more(url, answer, names)

    def _members(self, url: str, answer: HttpResponse, names: frozenset[str]) -> list[Entry]:
        entries = _entries(parse_catalog_text(url, answer.data).tree, names)
        if entries is None:
            hint = "check that a message catalog answers there"
            raise DocumentError(f"{url} lists nothing that has an id", file=url, hint=hint)
        return entries

    def _definition(self, url: str | None, entry: dict[str, Any]) -> dict[str, Any] | None:
        """Return the latest version of a definition of which only *entry* is shown."""
        definition = self._object(url)
        if url is None or definition is None or _defines(definition):
            return definition if definition is None else {**entry, **definition}
        numbered = [(whole_number(name), name, shown) for name, shown in self._list(f"{url}/versions", _VERSION_LISTS)]
        known = [(number, name, shown) for number, name, shown in numbered if number is not None]
        if not known:
            text = f"{url} shows neither its definition nor a numbered version of it"
            self._report(DocumentError(text, file=url, hint="check that a message catalog answers there"), url)
            return None
        _, name, latest = max(known, key=lambda each: each[0])
        version = latest if _defines(latest) else self._object(self._below(f"{url}/versions", name))
        return None if version is None else {**entry, **definition, **version}

    def _object(self, url: str | None) -> dict[str, Any] | None:
        if url is None:
            return None
        try:
            tree = parse_catalog_text(url, own(self._fetcher.answer(url), url, self._origins).data).tree
            if isinstance(tree, dict):
                return tree
            hint = "check that a message catalog answers there"
            raise DocumentError(f"{url} holds no JSON object", file=url, hint=hint)
        except DocumentError as error:
            self._report(error, url)
            return None

    def _below(self, base: str, name: str) -> str | None:
        """Return the address of a member; None for an id that would lead elsewhere."""
        if name not in _PATHLESS:
            return f"{base}/{quote(name, safe='')}"
        text = f"{base} lists the id {name!r}, which no path can end with"
        self._report(DocumentError(text, file=base, hint="give it another id"), base)
        return None

    def _report(self, error: DocumentError, url: str) -> None:
        """Report what can never be read.

        Raises:
            DocumentError: the error, when it is transient: half a catalog would be a wrong one.
        """
        if error.transient:
            raise error
        self._findings.error(SourceLocation(error.file or url), "unreadable-document", str(error), error.hint)


def _entries(tree: Any, names: frozenset[str]) -> list[Entry] | None:
    """Return the members of a list, under one of *names* or as the whole answer; None when it is no list of members."""
    if isinstance(tree, dict):
        tree = next((value for key, value in tree.items() if key.lower() in names), tree)
    if isinstance(tree, dict):
        shown = [(key, value) for key, value in tree.items() if isinstance(value, dict)]
        return shown if shown and len(shown) == len(tree) else None
    if not isinstance(tree, list):
        return None
    entries = [_entry(each, names) for each in tree]
    return [each for each in entries if each is not None] if None not in entries else None


def _entry(member: Any, names: frozenset[str]) -> Entry | None:
    key = "version" if names is _VERSION_LISTS else "id"
    name = member.get(key) if isinstance(member, dict) else member
    if isinstance(name, bool) or not isinstance(name, str | int):
        return None
    return str(name), member if isinstance(member, dict) else {}


def _is_bare_group(tree: Mapping[str, Any]) -> bool:
    """Tell a group that shows no definition from one that does, and from a definition by itself."""
    return "format" in tree and not _is_whole(tree) and not _defines(tree)


def _is_whole(group: Mapping[str, Any]) -> bool:
    """Tell a group that shows what its definitions hold."""
    shown = [value for key, value in group.items() if key.lower() in _DEFINITION_LISTS]
    lists = [each for each in shown if isinstance(each, dict | list)]
    members = [each for held in lists for each in (held.values() if isinstance(held, dict) else held)]
    return any(isinstance(each, dict) and _defines(each) for each in members)


def _defines(definition: Mapping[str, Any]) -> bool:
    """Whether the content of a definition is shown, itself or in one of its versions."""
    versions = definition.get("versions")
    bodies = [definition, *(versions if isinstance(versions, list) else ())]
    return any(isinstance(body, dict) and isinstance(body.get("definition"), dict) for body in bodies)


# Putting one registry together from several documents, while every member keeps the place where it is written.

COLLECTIONS: Final = frozenset({"messagegroups", "endpoints", "schemagroups", "definitiongroups"})
"""The collections of a registry, in lower case."""
NESTED: Final = COLLECTIONS | {"messages", "schemas", "definitions", "versions"}
"""All collections, in lower case."""


class Assembly:
    """A registry that grows by parts laid over it.

    Collections unite and their entities are laid one over the other; any other attribute is replaced by what comes
    later. ``mounts`` are as :attr:`catalog.findings.SourceLocation.mounts` has them.
    """

    def __init__(self, file: str, tree: dict[str, Any]) -> None:
        self.tree: dict[str, Any] = dict(tree)
        self.mounts: dict[tuple[str, str], SourceLocation] = {}
        self._root = SourceLocation(file, "", self.mounts)

    def at(self, path: Sequence[str]) -> Any:
        """Return what is in the registry at *path*; None when there is nothing."""
        node: Any = self.tree
        for step in path:
            node = node.get(step) if isinstance(node, dict) else None
        return node

    def lay(self, path: Sequence[str], part: Any, place: SourceLocation) -> None:
        """Lay *part*, which is written at *place*, over what is at *path*; nothing of *part* is changed.

        Collections have paths of odd length, entities of even length: collection, id, collection, id and so on.
        """
        if not path:
            self._entity(self.tree, part, self._root, place)
            return
        node, at = self.tree, self._root
        for step in path[:-1]:
            node = _entered(node, step)
            at = at / step
        collection = path[-1].lower() in NESTED if len(path) % 2 else None
        self._put(node, path[-1], part, at, place, collection)

    def _entity(self, node: dict[str, Any], part: dict[str, Any], at: SourceLocation, place: SourceLocation) -> None:
        for key, value in part.items():
            self._put(node, key, value, at, place / key, key.lower() in NESTED)

    def _put(
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
            held, below = _entered(node, key), at / key
            if collection is None:
                self._entity(held, value, below, place)
                return
            for name, entity in value.items():
                self._put(held, name, entity, below, place / name, None)
            return
        node[key] = value
        self.mounts[at.file, (SourceLocation(at.file, at.pointer) / key).pointer] = SourceLocation(
            place.file, place.pointer
        )


def _entered(node: dict[str, Any], step: str) -> dict[str, Any]:
    """Return a copy of the object at *step*, put in its place, so that no part is changed."""
    existing = node.get(step)
    entered: dict[str, Any] = dict(existing) if isinstance(existing, dict) else {}
    node[step] = entered
    return entered


# Folders that hold one registry as many files: the tree of ``index.json`` that a static file server would serve.
#
# ``messagegroups/G/messages/M/index.json`` is the entity of that path, a collection's ``index.json`` a map of entities.
# A resource's ``index.json`` is its document when its metadata stands beside it, in a folder that ends in ``$details``
# (``$meta`` in older registries); else it is metadata too.

INDEX: Final = "index.json"
RESOURCES: Final[Mapping[str, str]] = {"messagegroups": "messages", "endpoints": "messages", "schemagroups": "schemas"}
"""The collections of a registry, and what each of their members holds."""
_DETAILS: Final = ("$details", "$meta")
_METADATA: Final = frozenset(
    {"versions", "versionsurl", "schemaid", "xid", "schema", "schemabase64", "schemaurl", "schemauri", "metaurl"}
)
_DEEPEST: Final = 6


def is_root(path: Path, fetcher: Fetcher) -> bool:
    """Tell the ``index.json`` of a whole tree from any other file of that name."""
    return any(os.path.isdir(path.parent / name) for name in RESOURCES) and bool(parts_of(path.parent, fetcher))


def parts_of(top: Path, fetcher: Fetcher) -> list[Path]:
    """Return the files that are parts of the registry in the folder *top*, in the order in which they are laid."""
    files = [path for name in RESOURCES if os.path.isdir(top / name) for path in fetcher.files(top / name)]
    return _ordered(top, (path for path in files if _is_part(path.relative_to(top).parts)))


def trees_in(folder: Path, files: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the trees among the *files* of a folder: their top folders, each with its parts.

    A top has an ``index.json`` or is *folder* itself; what is a part of one tree is no top of another.
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
    return {top: _ordered(top, parts) for top, parts in trees.items()}


def lay(assembly: Assembly, steps: Sequence[str], part: dict[str, Any], place: SourceLocation) -> None:
    """Lay the file of the folder *steps* (below the top) where it belongs; one that is a whole catalog, at the top."""
    path, details = _plain(steps)
    if any(isinstance(part.get(name), dict) for name in RESOURCES):
        assembly.lay([], part, place)
        return
    document = not details and path[0] == "schemagroups" and len(path) in (4, 6) and not (_METADATA & part.keys())
    if document and isinstance(assembly.at(path), dict):
        assembly.lay([*path, "schema"], part, place)
        return
    nested = part.get("versions")
    own = nested.get(path[-1]) if len(path) == _DEEPEST and isinstance(nested, dict) else None
    if isinstance(own, dict):  # some generators repeat the whole resource at each version
        part, place = own, place / "versions" / path[-1]
    assembly.lay(path, part, place)


def _is_part(steps: Sequence[str]) -> bool:
    """Tell the path of a part, relative to its top: collection, group, resources, resource, versions, version."""
    names, _ = _plain(steps[:-1])
    if steps[-1] != INDEX or not 1 <= len(names) <= _DEEPEST or names[0] not in RESOURCES:
        return False
    if len(names) > 2 and names[2] != RESOURCES[names[0]]:
        return False
    return len(names) < 5 or names[4] == "versions" or (names[4] == "meta" and len(names) == 5)


def _plain(steps: Sequence[str]) -> tuple[list[str], bool]:
    """Return a path without the suffix of metadata, and whether it had one."""
    if not steps:
        return [], False
    suffix = next((each for each in _DETAILS if steps[-1].endswith(each) and steps[-1] != each), "")
    return [*steps[:-1], steps[-1].removesuffix(suffix)], bool(suffix)


def _ordered(top: Path, parts: Iterable[Path]) -> list[Path]:
    """Put containers before what they contain, and metadata before documents."""

    def rank(path: Path) -> tuple[int, tuple[str, ...], bool]:
        names, details = _plain(path.relative_to(top).parent.parts)
        return len(names), tuple(names), not details

    return sorted(parts, key=rank)


_NAMES: Final[Mapping[int, frozenset[str]]] = {
    0: COLLECTIONS,
    2: frozenset({"messages", "schemas", "definitions"}),
    4: frozenset({"versions"}),
}
"""The collections of a registry, a group and a resource, by the length of their paths, in lower case."""
_XID: Final = re.compile(r"/(messagegroups|endpoints|schemagroups)/[^/]+(/(messages|schemas)/[^/]+(/versions/[^/]+)?)?")
_DOCUMENT: Final = ("schema", "schemabase64", "schemaurl", "schemauri")


@dataclass(frozen=True, slots=True)
class Served:
    """What was put together; ``mounts`` and ``aliases`` are those of :class:`catalog.documents.documents.Document`."""

    tree: dict[str, Any]
    mounts: Mapping[tuple[str, str], SourceLocation] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


def read_registry(url: str, tree: dict[str, Any], answer: HttpResponse, fetcher: Fetcher, findings: Findings) -> Served:
    """Return the document at *url* with all that it only names, if a registry served it; any other as it is.

    The root of a registry, a single entity and a collection are known by what they say of themselves; the last two are
    put below the path of their xid. What can never be read is a finding, the rest is kept.

    Raises:
        DocumentError: transient; the registry cannot be read whole now, and half of it would be a wrong one.
    """
    path = _path(tree)
    if path is None:
        return Served(tree, aliases=own_address(tree))
    reader = _RegistryApiReader(url, answer.url, fetcher, findings)
    if _lacks(tree, len(path)):
        tree, answer = reader.inlined(tree, answer, len(path))
    assembly = Assembly(url, tree if not path else {})
    if path:
        assembly.lay(path, tree, SourceLocation(url))
    reader.pages(assembly, path, answer, url)
    reader.complete(assembly, path)
    return Served(assembly.tree, assembly.mounts, (*own_address(tree), *_prefix(url, path)))


def own_address(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the address that the root of a registry gives itself, if it does."""
    given = tree.get("self")
    root = tree.get("xid") in (None, "/") and any(key.lower().removesuffix("url") in COLLECTIONS for key in tree)
    return (given,) if root and isinstance(given, str) and is_url(given) else ()


def _path(tree: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the path of what a registry served: empty for its root, odd for a collection; None for other documents."""
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


def _prefix(url: str, path: Sequence[str]) -> tuple[str, ...]:
    """Return the address of the registry that *url* is a part of; none when the URL does not end in the path."""
    bare = urlsplit(url)._replace(query="", fragment="").geturl().rstrip("/")
    for tail in ("".join(f"/{step}" for step in path), "".join(f"/{quote(step)}" for step in path)):
        if bare.endswith(tail):
            return (bare.removesuffix(tail).rstrip("/"),)
    return ()


def _collections(entity: Mapping[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    """Give the collections that an entity has and does not show, each with its URL."""
    for key, url in entity.items():
        name = key[:-3]
        if not key.lower().endswith("url") or name.lower() not in _NAMES.get(depth, ()) or not isinstance(url, str):
            continue
        shown = name in entity or url.startswith("#")
        if not shown and entity.get(f"{name}count") != 0 and not _one_version(name, entity):
            yield name, url


def _one_version(name: str, entity: Mapping[str, Any]) -> bool:
    """Tell that a resource has one version only, whose attributes it shows itself."""
    return name == "versions" and entity.get("versionscount") == 1 and "versionid" in entity


def _shown(entity: Mapping[str, Any], depth: int) -> list[str]:
    """Return the names of the collections that an entity shows, last first."""
    names = _NAMES.get(depth, frozenset())
    return [key for key in reversed(list(entity)) if key.lower() in names and isinstance(entity[key], dict)]


def _lacks(node: Mapping[str, Any], depth: int) -> bool:
    """Whether anything below an entity (even *depth*) or a collection (odd) is only named."""
    if depth % 2:
        return any(_lacks(each, depth + 1) for each in node.values() if isinstance(each, dict))
    if any(True for _ in _collections(node, depth)):
        return True
    return any(_lacks(node[name], depth + 1) for name in _shown(node, depth))


def _everything(tree: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Give what to ask a server for, until it does not refuse."""
    yield "*"
    named = {key.lower().removesuffix("url") for key in tree} if depth == 0 else set()
    paths = [f"{name}.{resources}" for name, resources in RESOURCES.items() if name in named]
    if paths:
        yield ",".join(f"{path}.versions" for path in paths)
        yield ",".join(paths)


class _RegistryApiReader:
    """Reads what one registry has; everything that it is asked for counts against the limits of the load."""

    def __init__(self, url: str, landed: str, fetcher: Fetcher, findings: Findings) -> None:
        self._url = url
        self._origins = {origin_of(url), origin_of(landed)}
        self._fetcher = fetcher
        self._findings = findings
        self._inline = True

    def inlined(self, tree: dict[str, Any], answer: HttpResponse, depth: int) -> tuple[dict[str, Any], HttpResponse]:
        """Return what the server gives when it is asked for everything; *tree* when it knows no better."""
        if "inline=" in urlsplit(self._url).query:
            self._inline = False
            return tree, answer
        for wanted in _everything(tree, depth):
            whole = _asking(self._url, wanted)
            try:
                asked = self._fetcher.answer(whole)
                full_tree = _object(self._url, asked.data)
            except DocumentError as error:
                if error.transient:
                    raise
                self._fetcher.unwatch(whole)
                continue
            if _path(full_tree) == _path(tree):
                self._inline = not _lacks(full_tree, depth)
                self._fetcher.unwatch(self._url)  # so that a look costs one request where one answer has all
                return full_tree, asked
            self._fetcher.unwatch(whole)
        self._inline = depth == 0  # all at once may only have been too much
        return tree, answer

    def complete(self, assembly: Assembly, path: tuple[str, ...]) -> None:
        """Fetch what is only named at *path* and below; no recursion, the tree is a server's."""
        waiting = [path]
        while waiting:
            current = waiting.pop()
            node = assembly.at(current)
            if not isinstance(node, dict):
                continue
            if len(current) % 2 == 0:
                for name, url in list(_collections(node, len(current))):
                    self._collection(assembly, (*current, name), url)
                self._meta(assembly, current)
                self._document(assembly, current)
                waiting.extend((*current, key) for key in _shown(assembly.at(current), len(current)))
            else:
                waiting.extend((*current, key) for key in reversed(node))

    def pages(self, assembly: Assembly, path: tuple[str, ...], answer: HttpResponse, url: str) -> None:
        """Lay the pages that follow the first of a collection; one that can never be read ends them with a finding."""
        if len(path) % 2 == 0:
            return
        try:
            for page, more in following(url, answer, self._fetcher, self._origins):
                assembly.lay(path, _object(page, more.data), SourceLocation(page))
        except DocumentError as error:
            self._report(error, url, path)

    def _collection(self, assembly: Assembly, path: tuple[str, ...], written: str) -> None:
        url = self._url
        try:
            url = self._address(written, path)
            answer = self._asked(url)
            assembly.lay(path, _object(url, answer.data), SourceLocation(url))
        except DocumentError as error:
            assembly.lay(path, {}, SourceLocation(url))  # so that it is not asked for again
            self._report(error, url, path)
            return
        self.pages(assembly, path, answer, url)

    def _report(self, error: DocumentError, url: str, path: tuple[str, ...]) -> None:
        """Report what can never be read.

        Raises:
            DocumentError: the error, when it is transient: half a registry would be a wrong one.
        """
        if error.transient:
            raise error
        place = SourceLocation(error.file or url)
        if path[-1] == "versions":  # what a resource shows of itself is its default version
            self._findings.warning(place, "unreadable-document", str(error), error.hint)
        else:
            self._findings.error(place, "unreadable-document", str(error), error.hint)

    def _asked(self, url: str) -> HttpResponse:
        """Fetch a collection, with everything below it as long as the server knows ``inline``."""
        if self._inline and "inline=" not in urlsplit(url).query:
            whole = _asking(url, "*")
            try:
                return own(self._fetcher.answer(whole), whole, self._origins)
            except DocumentError as error:
                if error.transient:
                    raise
                self._fetcher.unwatch(whole)
                self._inline = False
        return own(self._fetcher.answer(url), url, self._origins)

    def _address(self, written: str, path: tuple[str, ...]) -> str:
        """Return the URL of a collection; the path that the specification gives it when another origin is named.

        A server behind a proxy often calls itself by the wrong name; ours is the one that answered.
        """
        with_base = self._fetcher.resolve(written, self._url)
        if origin_of(with_base) in self._origins:
            return with_base
        prefix = _prefix(self._url, path[: self._given(path)])
        start = prefix[0] if prefix else urlsplit(self._url)._replace(query="").geturl().rstrip("/")
        query = urlsplit(with_base).query
        return start + "".join(f"/{quote(step)}" for step in path) + (f"?{query}" if query else "")

    def _given(self, path: tuple[str, ...]) -> int:
        """Return how many steps of *path* the source's own URL has."""
        return next((steps for steps in range(len(path), 0, -1) if _prefix(self._url, path[:steps])), 0)

    def _meta(self, assembly: Assembly, path: tuple[str, ...]) -> None:
        """Fetch what a resource says beside its versions when it shows none: it may stand for another (``xref``)."""
        entity = assembly.at(path)
        written = entity.get("metaurl")
        if len(path) != 4 or not isinstance(written, str) or written.startswith("#"):
            return
        if any(entity.get(name) is not None for name in ("meta", "versionid", "versions", "xref")):
            return
        self._collection(assembly, (*path, "meta"), written)

    def _document(self, assembly: Assembly, path: tuple[str, ...]) -> None:
        """Say where the document of a schema is that the server did not show: at its own URL without ``$details``."""
        entity = assembly.at(path)
        if path[:1] != ("schemagroups",) or len(path) < 4 or any(entity.get(name) is not None for name in _DOCUMENT):
            return
        written = entity.get("self")
        if isinstance(written, str) and not written.startswith("#") and "versions" not in entity:
            with suppress(DocumentError):  # an entity whose address is none has no document that could be had
                plain = urlsplit(self._address(written, path))
                where = plain._replace(path=plain.path.removesuffix("$details").removesuffix("$meta")).geturl()
                assembly.lay([*path, "schemaurl"], where, SourceLocation(self._url))


def _asking(url: str, inline: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query=f"{parts.query}&inline={inline}".removeprefix("&")).geturl()


def _object(url: str, data: bytes) -> dict[str, Any]:
    tree = parse_catalog_text(url, data).tree
    if not isinstance(tree, dict):
        raise DocumentError(f"{url} holds no JSON object", file=url, hint="check that a registry answers there")
    return tree
