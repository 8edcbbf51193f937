"""The project's own sample catalogs, one source each: files, and folders that hold one document split over files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from catalog.documents.fetching import CASES

FOLDER: Final = Path(__file__).resolve().parents[2] / "catalog" / "samples"


def samples() -> list[Path]:
    """Give the sources, sorted: no cases, and no folder without an index, which holds only what a sample refers to."""
    return sorted(
        each
        for each in FOLDER.iterdir()
        if (each.is_file() and not each.stem.endswith(CASES)) or (each / "index.json").is_file()
    )
