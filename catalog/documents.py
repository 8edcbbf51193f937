"""Reading documents from files, folders and URLs, with limits; a document is a tree plus where it came from."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalog.declared import Place
from catalog.errors import DocumentError
from catalog.findings import Findings
from catalog.parsing import parse_text

MAX_BYTES: Final = 64 * 1024 * 1024
FETCH_SECONDS: Final = 30.0
MAX_REDIRECTS: Final = 5
SUFFIXES: Final = (".json", ".yaml", ".yml", ".cereg")


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed document. ``named`` tells a source given by name from one found in a folder."""

    file: str
    tree: Any
    named: bool = True


def read_documents(sources: Sequence[str | Path], findings: Findings, *, network: bool) -> list[Document]:
    """Read every source: a file, a folder (all JSON and YAML files below it) or an http(s) URL.

    A bad file in a folder is a finding, as long as another of the folder can be read.

    Raises:
        DocumentError: a source is missing, unreadable, neither JSON nor YAML, or past the limits.
    """
    documents: list[Document] = []
    for source in sources:
        if not is_url(source) and Path(source).is_dir():
            documents.extend(_read_folder(Path(source), findings))
        else:
            documents.append(_parse(str(source), read_bytes(source, network=network), findings))
    if not documents:
        raise DocumentError("no catalog source is given", hint="name a file, a folder or a URL")
    return documents


def content_digest(sources: Sequence[str | Path], *, network: bool) -> str:
    """Return a hash of the bytes and names of all sources, to tell whether anything changed.

    Raises:
        DocumentError: as :func:`read_documents`, but for syntax, which is not looked at.
    """
    digest = hashlib.sha256()
    for source in sources:
        folder = not is_url(source) and Path(source).is_dir()
        for name in _files(Path(source)) if folder else (source,):
            data = read_bytes(name, network=network)
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()


def is_url(source: str | Path) -> bool:
    """Tell an http(s) URL from a path."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def read_bytes(source: str | Path, *, network: bool) -> bytes:
    """Return the bytes of one file or URL.

    Raises:
        DocumentError: it is missing, unreadable or too large, or a URL while *network* is off.
    """
    if is_url(source):
        if not network:
            hint = "allow network access, or fetch the document and give its path"
            raise DocumentError(f"{source} would need the network, which is off", file=str(source), hint=hint)
        return _fetch(str(source))
    path = Path(source)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise DocumentError(f"{path} does not exist", file=str(path), hint="check the path") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DocumentError(f"{path} cannot be read: {reason}", file=str(path), hint="check its rights") from error
    _check_size(data, str(path))
    return data


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and not hidden and path.is_file():
            yield path


def _read_folder(folder: Path, findings: Findings) -> list[Document]:
    documents: list[Document] = []
    errors: list[DocumentError] = []
    for path in _files(folder):
        try:
            document = _parse(str(path), read_bytes(path, network=False), findings, named=False)
        except DocumentError as error:
            errors.append(error)
            findings.error(Place(str(path), error.pointer), "unreadable-document", str(error), error.hint)
            continue
        documents.append(document)
    if not documents:
        if errors:
            raise errors[0]
        hint = f"put a document into it that ends in one of {' '.join(SUFFIXES)}"
        raise DocumentError(f"{folder} holds no document", file=str(folder), hint=hint)
    return documents


def _parse(file: str, data: bytes, findings: Findings, *, named: bool = True) -> Document:
    parsed = parse_text(file, data)
    for place in parsed.duplicates:
        findings.warning(place, "duplicate-key", "the key occurs twice; the last value counts", "remove one of them")
    if not isinstance(parsed.tree, dict):
        hint = "an xRegistry document is an object with messagegroups, endpoints or schemagroups"
        raise DocumentError(f"{file} holds no JSON or YAML object", file=file, hint=hint)
    return Document(file, parsed.tree, named)


def _check_size(data: bytes | bytearray, file: str) -> None:
    if len(data) > MAX_BYTES:
        raise DocumentError(f"{file} is larger than {MAX_BYTES} bytes", file=file, hint="split the document")


def _fetch(url: str) -> bytes:
    """Get a URL; the limits hold for the whole transfer, not for each read of it."""
    import httpx  # only who reads from the network pays for it

    deadline = time.monotonic() + FETCH_SECONDS
    data = bytearray()
    try:
        with (
            httpx.Client(timeout=FETCH_SECONDS, follow_redirects=True, max_redirects=MAX_REDIRECTS) as client,
            client.stream("GET", url) as response,
        ):
            response.raise_for_status()
            for chunk in response.iter_bytes():
                data += chunk
                _check_size(data, url)
                if time.monotonic() > deadline:
                    raise DocumentError(f"{url} took longer than {FETCH_SECONDS:g} s", file=url, hint="try again")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DocumentError(f"{url} cannot be fetched: {error}", file=url, hint="check the address") from error
    return bytes(data)
