"""Read documents of any dialect: ``detection`` finds the dialect, ``registry`` reads the declarations."""

from __future__ import annotations

from catalog.dialects.detection import Dialect, detect, suffixes

__all__ = ["Dialect", "detect", "suffixes"]
