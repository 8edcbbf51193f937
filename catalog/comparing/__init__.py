"""What changed between two catalogs, and whether consumers and producers of the first can live with the second."""

from __future__ import annotations

from catalog.comparing.catalogs import compare
from catalog.comparing.coverage import CatalogChange, CatalogDiff

__all__ = ["CatalogChange", "CatalogDiff", "compare"]
