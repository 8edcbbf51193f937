"""Which dialect is a document written in? ``registry`` turns it into declarations."""

from __future__ import annotations

from catalog.dialects.detection import Dialect, detect, suffixes

__all__ = ["Dialect", "detect", "suffixes"]
