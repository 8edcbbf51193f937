"""References to files, as documents write them: relative to the file that they stand in, or as ``file:`` URIs."""

from __future__ import annotations

import os
from urllib.parse import unquote

from catalog.errors import DocumentError


def path_of(uri: str) -> str:
    """Return the path of a file: URI.

    Raises:
        DocumentError: it names another host.
    """
    rest = uri.partition(":")[2].partition("#")[0].partition("?")[0]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise DocumentError(f"{uri} is a file of another host", file=uri, hint="use an http(s) address")
        rest = slash + path
    return os.path.normpath(unquote(rest))


def beside(reference: str, base: str) -> str:
    """Resolve a relative reference against a file; it is a URI reference, so it may be percent-encoded."""
    if reference.lower().startswith("file:") or reference.startswith("//"):
        return path_of(reference if not reference.startswith("//") else f"file:{reference}")
    path = unquote(reference.partition("?")[0])
    return os.path.normpath(os.path.join(os.path.dirname(base), path)) if path else base
