"""Jars held against hashes that came with the code, not from the server that the jars came from.

A manifest is a JSON object of SHA-256 by file name, one for each request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from router.spark.ivy import IvyError, Request, resolve


class PinMismatch(IvyError):
    """A jar that is not the one its manifest names, or a set of jars that is not the manifest's."""


def resolve_pinned(request: Request, manifest: Path, into: Path | None = None) -> tuple[Path, ...]:
    """Return what :func:`router.spark.ivy.resolve` returns, each byte checked, just fetched or long kept.

    Raises:
        PinMismatch: a file is another than the manifest says, is missing from it, or missing here.
        IvyError: as ``resolve``.
    """
    jars = resolve(request, into)
    pins: dict[str, str] = json.loads(manifest.read_bytes())
    for jar in jars:
        if pins.get(jar.name) != sha256_of(jar):
            raise _mismatch(f"{jar} is not the file that this version was tested with", jar.parent)
    if missing := sorted(pins.keys() - {jar.name for jar in jars}):
        raise _mismatch(f"{jars[0].parent} lacks {', '.join(missing)}", jars[0].parent)
    return jars


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_pins(jars: Iterable[Path], manifest: Path) -> None:
    """Write the manifest of *jars*, which somebody must have good reason to trust."""
    pins = {jar.name: sha256_of(jar) for jar in sorted(jars)}
    manifest.write_text(json.dumps(pins, indent=1) + "\n", encoding="utf-8")


def _mismatch(message: str, folder: Path) -> PinMismatch:
    hint = (
        f"remove {folder}, and it is fetched anew; if that ends the same, the Maven repository serves another file: "
        f"do not use it before you know why"
    )
    return PinMismatch(message, hint=hint)
