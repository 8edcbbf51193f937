"""The table of what loading real catalogs gives: ``python -m tests.support.corpora [FOLDER]`` prints it as markdown.

One row a document, read alone: its definitions, its endpoints, and its errors and warnings by rule. Split-file trees
are one document. The folder is by default that of the shared corpora beside the repository, else our own samples.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalog.errors import DocumentError
from catalog.load import load
from catalog.model import Catalog
from tests.support.samples import FOLDER

_SHARED: Final = Path(__file__).parents[3] / "shared" / "corpora"
SHARED: Final = _SHARED.is_dir()
CORPORA: Final = _SHARED if SHARED else FOLDER
SUFFIXES: Final = (".json", ".yaml", ".yml", ".cereg")
_COLLECTIONS: Final = {"messages", "definitions"}
_HOLDERS: Final = {"messagegroups", "definitiongroups", "endpoints"}


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


def documents(folder: Path = CORPORA) -> list[Path]:
    """Return the documents of a folder; the parts of a split-file tree belong to its ``index.json``."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    trees = [path.parent for path in found if path.name == "index.json" and (path.parent / "schemagroups").is_dir()]
    return [path for path in found if not any(top in path.parents and path.parent != top for top in trees)]


def rows(folder: Path = CORPORA) -> Iterator[Row]:
    """Load every document of a folder, each alone and without network."""
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


def table(folder: Path = CORPORA) -> str:
    """Return the table as markdown, with a row of sums."""
    lines = ["| File | Definitions | Endpoints | Errors | Warnings |", "|---|---:|---:|---|---|"]
    errors: Counter[str] = Counter()
    warnings: Counter[str] = Counter()
    definitions = endpoints = files = 0
    for row in rows(folder):
        errors += row.counts("error")
        warnings += row.counts("warning")
        known = row.catalog or Catalog()
        files, definitions = files + 1, definitions + len(known.definitions)
        endpoints += len(known.endpoints)
        told = (row.error or _told(row.counts("error")), _told(row.counts("warning")))
        name = row.path.relative_to(folder)
        lines.append(f"| {name} | {len(known.definitions)} | {len(known.endpoints)} | {told[0]} | {told[1]} |")
    lines.append(f"| **{files} files** | {definitions} | {endpoints} | {_told(errors)} | {_told(warnings)} |")
    return "\n".join(lines)


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{rule} {number}" for rule, number in sorted(counts.items())) or "-"


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1]) if len(sys.argv) > 1 else CORPORA) + "\n")
