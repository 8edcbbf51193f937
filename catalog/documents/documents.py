"""Reading documents from files, folders and URLs, with limits; a document is a tree plus where it came from."""

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
from catalog.parsing.regular import open_input
from catalog.parsing.texts import parse_catalog_text


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed document. ``named`` tells a source given by name from one found in a folder.

    ``mounts`` say what of an assembled document is written in other files, ``aliases`` under which other addresses the
    registry it is, or is a part of, can be referred to.
    """

    file: str
    tree: Any
    named: bool = True
    mounts: Mapping[tuple[str, str], SourceLocation] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def root(self) -> SourceLocation:
        """The place of the whole; the places of its members follow the mounts."""
        return SourceLocation(self.file, "", self.mounts) if self.mounts else SourceLocation(self.file)


def read_documents(
    sources: Sequence[str | Path], findings: Findings, *, network: bool = False, fetcher: Fetcher | None = None
) -> list[Document]:
    """Read every source: a file, a folder (all JSON and YAML files below it) or an http(s) URL.

    A folder of an ``index.json`` tree is one document, and so is a live registry. A bad file in a folder is a finding,
    as long as another of the folder can be read. *network* counts when there is no *fetcher*.

    Raises:
        DocumentError: a source is missing, unreadable, neither JSON nor YAML, or past the limits.
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
    """Read one file or URL; the root of an ``index.json`` tree, and a registry's API, are read whole.

    What the user has *given* may also be a pipe; what a document refers to may not, since nobody may ever write to it.

    Raises:
        DocumentError: as :func:`read_documents`.
    """
    if is_url(uri):
        address = fetcher.address(uri)
        if given:
            fetcher.reach.name(origin_of(address), Trust.OPERATOR)
        answer = fetcher.answer(address)
        listed = registry_api.read(address, answer, fetcher, findings)
        if listed is not None:
            return Document(address, listed.tree, True, listed.mounts)
        served = registry_api.read_registry(address, _tree(address, answer.data, findings), answer, fetcher, findings)
        return Document(address, served.tree, True, served.mounts, served.aliases)
    path = Path(uri)
    if path.name == registry_api.INDEX and registry_api.is_root(path, fetcher):
        return _assembled(path.parent, registry_api.parts_of(path.parent, fetcher), fetcher, findings, named=True)
    tree = _tree(uri, _piped(uri) if given and _is_pipe(uri) else fetcher.fetch(uri), findings)
    return Document(uri, tree, aliases=registry_api.own_address(tree))


def _is_pipe(file: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(file).st_mode)
    except (OSError, ValueError):
        return False  # fetching it says what is wrong


def _piped(file: str) -> bytes:
    """Read a pipe to its end; it gives nothing a second time, so no change of it is ever seen."""
    try:
        with open_input(file) as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        hint = "use a file, or a pipe with a writer"
        raise DocumentError(f"{file} cannot be read: {error.strerror}", file=file, hint=hint) from error
    if len(data) > MAX_BYTES:
        raise DocumentError(f"{file} is larger than {MAX_BYTES} bytes", file=file, hint="split the document")
    return data


def _read_folder(folder: Path, fetcher: Fetcher, findings: Findings) -> list[Document]:
    documents: list[Document] = []
    errors: list[DocumentError] = []
    files = fetcher.files(folder)
    trees = registry_api.trees_in(folder, files)
    taken = {path for top, parts in trees.items() for path in (top / registry_api.INDEX, *parts)}
    for top, parts in trees.items():
        try:
            documents.append(_assembled(top, parts, fetcher, findings, named=False))
        except DocumentError as error:
            errors.append(error)
    for path in files:
        if path in taken:
            continue
        try:
            tree = _tree(str(path), fetcher.fetch(path), findings)
            documents.append(Document(str(path), tree, False, aliases=registry_api.own_address(tree)))
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


def _assembled(top: Path, parts: Sequence[Path], fetcher: Fetcher, findings: Findings, *, named: bool) -> Document:
    """Put an ``index.json`` tree together; a part that cannot be read is a finding, the root's own file an error."""
    root = top / registry_api.INDEX
    tree = _tree(str(root), fetcher.fetch(root), findings) if root.exists() else {}
    assembly = Assembly(str(root), tree)
    for path in parts:
        try:
            part = _tree(str(path), fetcher.fetch(path), findings)
        except DocumentError as error:
            findings.error(SourceLocation(error.file, error.pointer), "unreadable-document", str(error), error.hint)
            continue
        registry_api.lay(assembly, path.relative_to(top).parent.parts, part, SourceLocation(str(path)))
    return Document(str(root), assembly.tree, named, assembly.mounts, (str(top),))


def _tree(file: str, data: bytes, findings: Findings) -> dict[str, Any]:
    parsed = parse_catalog_text(file, data)
    for place in parsed.duplicates:
        findings.warning(place, "duplicate-key", "the key occurs twice; the last value counts", "remove one of them")
    if not isinstance(parsed.tree, dict):
        hint = "an xRegistry document is an object with messagegroups, endpoints or schemagroups"
        raise DocumentError(f"{file} does not contain a JSON or YAML object", file=file, hint=hint)
    return parsed.tree


# Changes that look like half of a write: a catalog that lost most of its definitions, a file that ends in mid-line.
#
# A document cut off at the end of a line is often still good YAML. A doubted change is taken when a second look finds
# the same: an intended one takes one look longer, and a half-written one is not taken.

MAX_SHRINK: Final = 0.5
"""Share of its definitions that a document, or an endpoint, may lose before a second look."""
SHOWN: Final = 20
"""Reasons that are reported."""


@dataclass(frozen=True, slots=True)
class UnconfirmedCatalog:
    """A changed catalog that is taken if the next look finds the same; the last good one goes on until then."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many usable definitions there are, in all, by document, and as candidates by endpoint."""

    total: int = 0
    documents: Mapping[str, int] = field(default_factory=dict)
    endpoints: Mapping[str, int] = field(default_factory=dict)

    def shrunk(self, before: Sizes, most: float) -> Iterator[str]:
        """Yield which lost more than *most* of what they had *before*, 0 to 1."""
        if before.total - self.total > most * before.total:
            yield f"the catalog has {self.total} definitions, down from {before.total}"
        for document, had in before.documents.items():
            has = self.documents.get(document, 0)
            if had - has > most * had:
                yield f"{document} has {has} definitions, down from {had}"

    def emptied(self, before: Sizes, most: float) -> Iterator[str]:
        """Yield which endpoints lost more than *most* of the candidates they had *before*, 0 to 1."""
        for endpoint, had in before.endpoints.items():
            has = self.endpoints.get(endpoint, 0)
            if had - has > most * had:
                yield f"{endpoint} has {has} candidates, down from {had}"


def sizes_of(catalog: Catalog, declarations: Declarations) -> Sizes:
    """Count the definitions of a catalog by the documents that declare them."""
    messages = declarations.messages
    counts = Counter(messages[xid].place.file for xid in catalog.definitions if xid in messages)
    return Sizes(len(catalog.definitions), dict(counts), candidates_of(catalog))


def candidates_of(catalog: Catalog) -> dict[str, int]:
    """Count the candidates of each endpoint that has some."""
    return {xid: len(endpoint.candidates) for xid, endpoint in catalog.endpoints.items() if endpoint.candidates}


def unfinished(fetcher: Fetcher, seen: Mapping[str, str]) -> Iterator[str]:
    """Yield which files that are not as they were *seen* end in mid-line; JSON tells by itself where it ends."""
    for address, mark in tuple(fetcher.seen.items()):
        if is_url(address) or address.endswith(os.sep) or seen.get(address) == mark:
            continue
        try:
            data = fetcher.fetch(address)
        except DocumentError:
            continue
        if data.strip() and not data.endswith(b"\n") and data.lstrip()[:1] not in (b"{", b"["):
            yield f"{address} does not end with a complete line"


def first_of(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return the first reasons, as many as are reported."""
    return tuple(dict.fromkeys(reasons))[:SHOWN]
