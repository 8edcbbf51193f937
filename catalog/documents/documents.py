"""Read documents from files, folders and URLs, within limits."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from catalog.dialects import suffixes
from catalog.documents import registry_api
from catalog.documents.connecting import Trust, origin_of
from catalog.documents.fetching import MAX_BYTES, Fetcher, is_url
from catalog.documents.registry_api import Assembly
from catalog.findings import Declarations, DocumentError, Findings, SourceLocation
from catalog.model import Catalog
from catalog.parsing.regular import read_input
from catalog.parsing.texts import parse_catalog_text


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed document. ``named`` is true for a source given by name, false for one found in a folder.

    ``mounts`` says which members of an assembled document come from other files. ``aliases`` are other addresses of the
    registry that it is, or is a part of.
    """

    file: str
    tree: Any
    named: bool = True
    mounts: Mapping[tuple[str, str], SourceLocation] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def root(self) -> SourceLocation:
        """The location of the whole document; locations of members follow ``mounts``."""
        return SourceLocation(self.file, "", self.mounts) if self.mounts else SourceLocation(self.file)


def read_documents(
    sources: Sequence[str | Path], findings: Findings, *, network: bool = False, fetcher: Fetcher | None = None
) -> list[Document]:
    """Read every source: a file, a folder (all JSON and YAML files below it) or an http(s) URL.

    A folder with an ``index.json`` tree is one document, and so is a live registry. An unreadable file in a folder is a
    finding if other files can be read. *network* is used only without *fetcher*.

    Raises:
        DocumentError: a source is missing, unreadable, neither JSON nor YAML, or exceeds the limits.
    """
    by = fetcher if fetcher is not None else Fetcher(network=network)
    documents: list[Document] = []
    for source in sources:
        if not is_url(source) and os.path.isdir(source):
            documents.extend(_read_folder(Path(source), by, findings))
        else:
            documents.append(read_document(str(source), by, findings, given=True))
    if not documents:
        raise DocumentError("no catalog source", hint="specify a file, a folder or a URL")
    return documents


def read_document(uri: str, fetcher: Fetcher, findings: Findings, *, given: bool = False) -> Document:
    """Read one file or URL, completing the root of an ``index.json`` tree or the API of a registry.

    A source *given* by the user may also be a pipe; a reference in a document may not, since it could block forever.

    Raises:
        DocumentError: as :func:`read_documents`.
    """
    if is_url(uri):
        address = fetcher.address(uri)
        if given:
            fetcher.reach.name(origin_of(address), Trust.OPERATOR)
        answer = fetcher.fetch_response(address)
        listed = registry_api.read_message_catalog(address, answer, fetcher, findings)
        if listed is not None:
            return Document(address, listed.tree, True, listed.mounts)
        served = registry_api.read_registry(address, _parse(address, answer.data, findings), answer, fetcher, findings)
        return Document(address, served.tree, True, served.mounts, served.aliases)
    path = Path(uri)
    if path.name == registry_api.INDEX and registry_api.is_tree_root(path, fetcher):
        return _read_tree(path.parent, registry_api.parts_in(path.parent, fetcher), fetcher, findings, named=True)
    tree = _parse(uri, _read_pipe(uri) if given and _is_pipe(uri) else fetcher.fetch(uri), findings)
    return Document(uri, tree, aliases=registry_api.own_addresses(tree))


def _is_pipe(file: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(file).st_mode)
    except (OSError, ValueError):
        return False  # fetching it reports the problem


def _read_pipe(file: str) -> bytes:
    """Read a pipe to its end. It cannot be read again, so changes are never noticed."""
    try:
        return read_input(file, MAX_BYTES)
    except OSError as error:
        hint = "use a file, or a pipe with a writer, of a document that is not too large"
        raise DocumentError(f"{file} cannot be read: {error.strerror}", file=file, hint=hint) from error


def _read_folder(folder: Path, fetcher: Fetcher, findings: Findings) -> list[Document]:
    documents: list[Document] = []
    errors: list[DocumentError] = []
    files = fetcher.list_files(folder)
    trees = registry_api.find_trees(folder, files)
    taken = {path for top, parts in trees.items() for path in (top / registry_api.INDEX, *parts)}
    for top, parts in trees.items():
        try:
            documents.append(_read_tree(top, parts, fetcher, findings, named=False))
        except DocumentError as error:
            errors.append(error)
    for path in files:
        if path in taken:
            continue
        try:
            tree = _parse(str(path), fetcher.fetch(path), findings)
            documents.append(Document(str(path), tree, False, aliases=registry_api.own_addresses(tree)))
        except DocumentError as error:
            errors.append(error)
    if not documents:
        if errors:
            raise errors[0]
        hint = f"add a document with one of the extensions {' '.join(suffixes())}"
        raise DocumentError(f"{folder} contains no document", file=str(folder), hint=hint)
    for each in errors:
        findings.error(SourceLocation(each.file, each.pointer), "unreadable-document", str(each), each.hint)
    return documents


def _read_tree(top: Path, parts: Sequence[Path], fetcher: Fetcher, findings: Findings, *, named: bool) -> Document:
    """Assemble an ``index.json`` tree; an unreadable part is a finding, an unreadable root an error."""
    root = top / registry_api.INDEX
    tree = _parse(str(root), fetcher.fetch(root), findings) if root.exists() else {}
    assembly = Assembly(str(root), tree)
    for path in parts:
        try:
            part = _parse(str(path), fetcher.fetch(path), findings)
        except DocumentError as error:
            findings.error(SourceLocation(error.file, error.pointer), "unreadable-document", str(error), error.hint)
            continue
        registry_api.add_file(assembly, path.relative_to(top).parent.parts, part, SourceLocation(str(path)))
    return Document(str(root), assembly.tree, named, assembly.mounts, (str(top),))


def _parse(file: str, data: bytes, findings: Findings) -> dict[str, Any]:
    parsed = parse_catalog_text(file, data)
    for place in parsed.duplicates:
        findings.warning(place, "duplicate-key", "the key occurs twice; the last value counts", "remove one of them")
    if not isinstance(parsed.tree, dict):
        hint = "an xRegistry document is an object with messagegroups, endpoints or schemagroups"
        raise DocumentError(f"{file} does not contain a JSON or YAML object", file=file, hint=hint)
    return parsed.tree


# Changes that look like a partial write: most definitions are gone, or a file ends in the middle of a line.
#
# A document cut off at the end of a line is often still valid YAML. Such a change is accepted if the next check finds
# the
# same: an intended change is delayed by one check, and a half-written one is not accepted.

MAX_SHRINK: Final = 0.5
"""Share of its definitions that a document or endpoint may lose without confirmation by a second check."""
MAX_REASONS: Final = 20
"""Maximum reasons reported."""


@dataclass(frozen=True, slots=True)
class UnconfirmedCatalog:
    """A suspicious change, accepted if the next check finds the same; until then the last valid catalog is used."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CatalogSizes:
    """The number of usable definitions: in total, by document, and as candidates by endpoint."""

    total: int = 0
    documents: Mapping[str, int] = field(default_factory=dict)
    endpoints: Mapping[str, int] = field(default_factory=dict)

    def find_lost_definitions(self, before: CatalogSizes, most: float) -> Iterator[str]:
        """Yield a text for the catalog and each document that lost more than the share *most* of its definitions."""
        if before.total - self.total > most * before.total:
            yield f"the catalog has {self.total} definitions, down from {before.total}"
        for document, had in before.documents.items():
            has = self.documents.get(document, 0)
            if had - has > most * had:
                yield f"{document} has {has} definitions, down from {had}"

    def find_lost_candidates(self, before: CatalogSizes, most: float) -> Iterator[str]:
        """Yield a text for each endpoint that lost more than the share *most* (0 to 1) of its candidates."""
        for endpoint, had in before.endpoints.items():
            has = self.endpoints.get(endpoint, 0)
            if had - has > most * had:
                yield f"{endpoint} has {has} candidates, down from {had}"


def count_definitions(catalog: Catalog, declarations: Declarations) -> CatalogSizes:
    """Count the definitions of a catalog, by document and endpoint."""
    known = (declarations.messages[xid] for xid in catalog.definitions if xid in declarations.messages)
    counts = Counter(message.place.file for message in known)
    return CatalogSizes(len(catalog.definitions), dict(counts), count_candidates(catalog))


def count_candidates(catalog: Catalog) -> dict[str, int]:
    """Count the candidates of each endpoint that has any."""
    return {xid: len(endpoint.candidates) for xid, endpoint in catalog.endpoints.items() if endpoint.candidates}


def find_unfinished(fetcher: Fetcher, seen: Mapping[str, str]) -> Iterator[str]:
    """Yield a text for each file changed since *seen* that ends in the middle of a line, except JSON."""
    for address, mark in tuple(fetcher.seen.items()):
        if is_url(address) or address.endswith(os.sep) or seen.get(address) == mark:
            continue
        try:
            data = fetcher.fetch(address)
        except DocumentError:
            continue
        if data.strip() and not data.endswith(b"\n") and data.lstrip()[:1] not in (b"{", b"["):
            yield f"{address} does not end with a complete line"


def limit_reasons(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct reasons, limited in number."""
    return tuple(dict.fromkeys(reasons))[:MAX_REASONS]
