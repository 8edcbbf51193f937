"""A live registry as a document: its HTTP API is asked for all at once, and for the rest collection by collection.

The answer of an xRegistry server names what it does not show (``messagegroupsurl``). All of that is fetched, from the
same origin only, until the tree is whole: with ``?inline`` where the server knows it, page by page (``Link``) where
not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from catalog.declared import Place
from catalog.documents.assembly import COLLECTIONS, Assembly
from catalog.documents.connecting import origin_of
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.paging import following, own
from catalog.documents.splitfiles import RESOURCES
from catalog.documents.transfer import Answer
from catalog.errors import DocumentError
from catalog.findings import Findings
from catalog.parsing.texts import parse_catalog_text

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
    mounts: Mapping[tuple[str, str], Place] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


def read(url: str, tree: dict[str, Any], answer: Answer, fetcher: Fetcher, findings: Findings) -> Served:
    """Return the document at *url* with all that it only names, if a registry served it; any other as it is.

    The root of a registry, a single entity and a collection are known by what they say of themselves; the last two are
    put below the path of their xid. What can never be read is a finding, the rest is kept.

    Raises:
        DocumentError: transient; the registry cannot be read whole now, and half of it would be a wrong one.
    """
    path = _path(tree)
    if path is None:
        return Served(tree, aliases=own_address(tree))
    reader = _Reader(url, answer.url, fetcher, findings)
    if _lacks(tree, len(path)):
        tree, answer = reader.inlined(tree, answer, len(path))
    assembly = Assembly(url, tree if not path else {})
    if path:
        assembly.lay(path, tree, Place(url))
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
    """Tell whether anything below an entity (even *depth*) or a collection (odd) is only named."""
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


class _Reader:
    """Reads what one registry has; everything that it is asked for counts against the limits of the load."""

    def __init__(self, url: str, landed: str, fetcher: Fetcher, findings: Findings) -> None:
        self._url = url
        self._origins = {origin_of(url), origin_of(landed)}
        self._fetcher = fetcher
        self._findings = findings
        self._inline = True

    def inlined(self, tree: dict[str, Any], answer: Answer, depth: int) -> tuple[dict[str, Any], Answer]:
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

    def pages(self, assembly: Assembly, path: tuple[str, ...], answer: Answer, url: str) -> None:
        """Lay the pages that follow the first of a collection; one that can never be read ends them with a finding."""
        if len(path) % 2 == 0:
            return
        try:
            for page, more in following(url, answer, self._fetcher, self._origins):
                assembly.lay(path, _object(page, more.data), Place(page))
        except DocumentError as error:
            self._report(error, url, path)

    def _collection(self, assembly: Assembly, path: tuple[str, ...], written: str) -> None:
        url = self._url
        try:
            url = self._address(written, path)
            answer = self._asked(url)
            assembly.lay(path, _object(url, answer.data), Place(url))
        except DocumentError as error:
            assembly.lay(path, {}, Place(url))  # so that it is not asked for again
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
        place = Place(error.file or url)
        if path[-1] == "versions":  # what a resource shows of itself is its default version
            self._findings.warning(place, "unreadable-document", str(error), error.hint)
        else:
            self._findings.error(place, "unreadable-document", str(error), error.hint)

    def _asked(self, url: str) -> Answer:
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
                assembly.lay([*path, "schemaurl"], where, Place(self._url))


def _asking(url: str, inline: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query=f"{parts.query}&inline={inline}".removeprefix("&")).geturl()


def _object(url: str, data: bytes) -> dict[str, Any]:
    tree = parse_catalog_text(url, data).tree
    if not isinstance(tree, dict):
        raise DocumentError(f"{url} holds no JSON object", file=url, hint="check that a registry answers there")
    return tree
