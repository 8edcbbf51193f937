"""What documents name by address and do not show: collections (``messagegroupsurl``) and definitions (``self``).

All of it is fetched as references are, by their limits and reach, and laid into the document where it belongs, so that
whoever reads the document sees it whole. A definition that is only listed, and cannot be had, is left out: as it stands
it would take every event of its envelope.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from catalog.declared import Place
from catalog.dialects import detect
from catalog.dialects.names import message_names, names_of, spellings
from catalog.documents.assembly import Assembly
from catalog.documents.documents import Document, read_document
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.paging import next_page
from catalog.documents.registry_api import own_address
from catalog.errors import DocumentError
from catalog.findings import Findings
from catalog.parsing.pointers import steps_of

MAX_DOCUMENTS: Final = 1_000
"""Documents that are looked into for what the sources of one load name by address."""
_ENDS: Final = ("url", "uri")
_RESOURCES: Final = frozenset(f"{name}{end}" for name in ("definition", "message") for end in _ENDS)
"""Where the document of a definition is that the registry does not hold itself (RESOURCEURI of 0.5)."""
_SHOWN: Final = frozenset({"versions", "xref", "uri", "meta", "xid", "messageid"})
"""Members that tell a definition which is shown from one that is only listed, beside those that say how it looks."""


@dataclass(slots=True)
class Following:
    """Follows what the documents of one load name. ``pending`` are the addresses that could not be reached for now."""

    fetcher: Fetcher
    findings: Findings
    pending: dict[str, None] = field(default_factory=dict)
    _documents: int = 0

    def completed(self, document: Document) -> Document:
        """Return *document* with all that it names by address; what cannot be had is reported and left out."""
        if not isinstance(document.tree, dict) or detect(document.tree) is None or not _names(document.tree):
            return document
        assembly = Assembly(document.file, document.tree)
        assembly.mounts.update(document.mounts)
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            path = waiting.pop()
            node = assembly.at(path)
            for name, written in list(_hidden(node, len(path))):
                self._collection(assembly, (*path, name[:-3]), written, _place(document, assembly, path) / name)
            node = assembly.at(path)
            for name in [name for name in node if _kind(name, len(path)) is not None and isinstance(node[name], dict)]:
                below = [(*path, name, key) for key, each in node[name].items() if isinstance(each, dict)]
                if not path:
                    waiting.extend(below)
                elif name.lower() in spellings("messages"):
                    self._listed(document, assembly, below)
        return replace(document, tree=assembly.tree, mounts=assembly.mounts)

    def _collection(self, assembly: Assembly, path: tuple[str, ...], written: str, place: Place) -> None:
        try:
            tree, at = self._read(written, place)
            members, at = _members(tree, path, at)
            assembly.lay(path, members, at)
            assembly.mounts.update(at.mounts or {})
        except DocumentError as error:
            self._report(error, place, f"{path[-1]} at {written}")

    def _listed(self, document: Document, assembly: Assembly, paths: Sequence[tuple[str, ...]]) -> None:
        for path in paths:
            entity = assembly.at(path)
            named = _address(entity)
            if named is None:
                continue
            place = _place(document, assembly, path)
            try:
                tree, at = self._read(_reachable(entity[named], document), place / named)
                assembly.lay(path if named.lower() == "self" else (*path, "definition"), tree, at)
            except DocumentError as error:
                self._report(error, place / named, f"the definition at {entity[named]}")
                assembly.lay(path[:-1], {path[-1]: None}, place)

    def _read(self, written: str, place: Place) -> tuple[dict[str, Any], Place]:
        """Return what an address, written at *place*, leads to, and where that is.

        Raises:
            DocumentError: it cannot be read; ``transient`` when that may change.
        """
        address = self.fetcher.resolve(written, place.file)
        if self._documents >= MAX_DOCUMENTS:
            message = f"{address} is not looked into: documents name more than {MAX_DOCUMENTS} others"
            raise DocumentError(message, file=address, hint="give whole documents as sources")
        self._documents += 1
        document = read_document(address, self.fetcher, self.findings)
        if is_url(address) and not document.mounts and next_page(self.fetcher.answer(address).link) is not None:
            hint = "give the registry itself as a source; its pages are followed"
            raise DocumentError(f"{address} is answered page by page", file=address, hint=hint)
        tree, at = document.tree, Place(document.file, "", document.mounts)
        for key in steps_of(written.partition("#")[2]):
            tree, at = tree.get(key) if isinstance(tree, dict) else None, at / key
        if not isinstance(tree, dict):
            raise DocumentError(f"{written} leads to no object", file=address, hint="correct the address")
        return tree, at

    def _report(self, error: DocumentError, place: Place, what: str) -> None:
        if error.transient:
            self.pending[error.file or place.file] = None
            text = f"{what} cannot be reached now: {error}"
            self.findings.warning(place, "unreachable-reference", text, error.hint)
        elif not self.fetcher.network and is_url(error.file):
            self.findings.warning(place, "network-off", f"{what} is not read: {error}", error.hint)
        else:
            self.findings.error(place, "unreadable-document", f"{what} is not read: {error}", error.hint)


def _names(tree: Mapping[str, Any]) -> bool:
    """Tell whether anything in a document is only named; most documents have nothing of the kind."""
    if any(True for _ in _hidden(tree, 0)):
        return True
    for name, groups in tree.items():
        if _kind(name, 0) is None or not isinstance(groups, dict):
            continue
        for group in groups.values():
            if isinstance(group, dict) and (any(True for _ in _hidden(group, 2)) or _any_listed(group)):
                return True
    return False


def _any_listed(group: Mapping[str, Any]) -> bool:
    return any(
        isinstance(message, dict) and _address(message) is not None
        for name in group
        if name.lower() in spellings("messages") and isinstance(group[name], dict)
        for message in group[name].values()
    )


def _hidden(entity: Mapping[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    """Give the members that name a collection which is not shown under any of its names, with the addresses."""
    for key, address in entity.items():
        kind = _kind(key[:-3], depth) if key.lower().endswith(_ENDS) else None
        if kind is None or not isinstance(address, str) or not address or address.startswith("#"):
            continue
        shown = any(name.lower() in kind for name in entity)
        count = next((entity[name] for name in entity if name.lower() == f"{key[:-3].lower()}count"), None)
        if not shown and count != 0:
            yield key, address


def _kind(name: str, depth: int) -> frozenset[str] | None:
    """Return all names of the collection that *name* is one of; None when it is none at that depth."""
    kinds = (names_of("groups"), {"endpoints"}, {"schemagroups"}) if depth == 0 else (names_of("messages"), {"schemas"})
    return next((kind for kind in map(frozenset, kinds) if name.lower() in kind), None)


def _address(message: Mapping[str, Any]) -> str | None:
    """Return the member that says where the definition is which is only listed here; None for one that is shown."""
    if not any(isinstance(message.get(name), str) for name in message if name == "self" or name.lower() in _RESOURCES):
        return None
    shown = (_SHOWN | message_names()) - names_of("selectors")
    if any(name.lower() in shown for name in message):
        return None
    names = sorted((name for name in message if name.lower() in _RESOURCES), key=len) or ["self"]
    address = message.get(names[0])
    return names[0] if isinstance(address, str) and address and not address.startswith("#") else None


def _members(tree: dict[str, Any], path: Sequence[str], at: Place) -> tuple[dict[str, Any], Place]:
    """Return the collection *path* of a document: at its path, below its name, or as the whole document.

    Raises:
        DocumentError: it is none of them.
    """
    name = path[-1]
    groups = _of_kind(tree, path[0], 0)
    if len(path) > 1 and groups is not None:  # as a registry's answer for one collection is put together
        key = path[1] if path[1] in tree[groups] else next(iter(tree[groups]), "")
        if path[1] in tree[groups] or len(tree[groups]) == 1:
            group = tree[groups][key]
            member = _of_kind(group, name, 2) if isinstance(group, dict) else None
            if member is not None:
                return group[member], at / groups / key / member
    member = _of_kind(tree, name, len(path) - 1)
    if member is not None:
        return tree[member], at / member
    if groups is None and tree and all(isinstance(each, dict) for each in tree.values()):
        return tree, at
    raise DocumentError(f"{at.file} holds no {name}", file=at.file, hint=f"write {name} into it, as a map from id")


def _reachable(address: str, document: Document) -> str:
    """Return the address of an entity of a registry at the origin that the registry was read from.

    A server behind a proxy often calls itself by the wrong name; ours is the one that answered.
    """
    for own in own_address(document.tree) if is_url(document.file) else ():
        if address.startswith(f"{own.rstrip('/')}/"):
            base = urlsplit(document.file)._replace(query="", fragment="").geturl()
            return base.rstrip("/") + address.removeprefix(own.rstrip("/"))
    return address


def _of_kind(tree: Mapping[str, Any], name: str, depth: int) -> str | None:
    """Return the key of *tree* that is the collection *name* under any of its names, and a map."""
    kind = _kind(name, depth) or frozenset()
    return next((key for key in tree if key.lower() in kind and isinstance(tree[key], dict)), None)


def _place(document: Document, assembly: Assembly, path: Sequence[str]) -> Place:
    place = Place(document.file, "", assembly.mounts)
    for step in path:
        place = place / step
    return place
