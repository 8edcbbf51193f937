"""Real catalogs and the cases that belong to them, which are no part of the repository: where they are, and a table.

They are in the folder ``shared`` beside the checkout, or where ``XROUTER_TEST_SHARED`` says; set to nothing, it hides
them. Where they are not there, tests use the project's own samples. Tests that do more when they are there have the
marker ``shared``, which ``tests/conftest.py`` gives to those that are run once for each document.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalog.findings import DocumentError
from catalog.load import load
from catalog.model import Catalog
from tests.support.cases import samples

SHARED_VARIABLE: Final = "XROUTER_TEST_SHARED"


def _shared() -> Path | None:
    """Return the folder of what is shared, None where it is hidden or not there."""
    given = os.environ.get(SHARED_VARIABLE)
    if given == "":
        return None
    folder = Path(given).resolve() if given else Path(__file__).resolve().parents[3] / "shared"
    if given and not folder.is_dir():
        raise FileNotFoundError(f"{SHARED_VARIABLE} names {given}, which is no folder")
    return folder if (folder / "corpora").is_dir() else None


SHARED: Final = _shared()
# A folder that is not there has no files: what looks for some finds none.
CORPORA: Final = (SHARED or Path("/nowhere")) / "corpora"
SUFFIXES: Final = (".json", ".yaml", ".yml", ".cereg")
_COLLECTIONS: Final = {"messages", "definitions"}
_HOLDERS: Final = {"messagegroups", "definitiongroups", "endpoints"}


def shared_index() -> dict[str, Path]:
    """Return the files of cases by name, with the catalog of each; none where they are not there."""
    if SHARED is None:
        return {}
    named = json.loads((SHARED / "cases" / "index.json").read_text("utf-8"))
    return {name: SHARED / path for name, path in named.items()}


def shared_cases(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file."""
    with gzip.open((SHARED or Path()) / "cases" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, slots=True)
class Row:
    """One document: ``catalog`` is None when it cannot be read, and ``error`` says why."""

    path: Path
    catalog: Catalog | None
    error: str = ""

    def counts(self, severity: str) -> Counter[str]:
        """Return the findings of one severity by rule."""
        found = self.catalog.findings if self.catalog else ()
        return Counter(each.rule for each in found if each.severity == severity)


def documents(folder: Path | None = None) -> list[Path]:
    """Return the documents of a folder, or of the corpora, else our samples.

    The parts of a split-file tree belong to its ``index.json``.
    """
    if folder is None:
        if SHARED is None:
            return [each / "index.json" if each.is_dir() else each for each in samples()]
        folder = CORPORA
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    trees = [path.parent for path in found if path.name == "index.json" and (path.parent / "schemagroups").is_dir()]
    return [path for path in found if not any(top in path.parents and path.parent != top for top in trees)]


def rows(folder: Path | None = None) -> Iterator[Row]:
    """Load every document, each alone and without network."""
    for path in documents(folder):
        try:
            yield Row(path, load([path]))
        except DocumentError as error:
            yield Row(path, None, str(error))


def declared(tree: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return group and message id of every message that a tree writes down, found without any reader of a dialect."""
    found: set[tuple[str, str]] = set()
    for name, groups in tree.items():
        if name.lower() not in _HOLDERS or not isinstance(groups, dict):
            continue
        for group, body in groups.items():
            for collection, messages in body.items():
                if collection.lower() in _COLLECTIONS and isinstance(messages, dict):
                    found.update((group, message) for message in messages)
    return found
