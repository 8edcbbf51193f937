"""Detect the dialect of a document; ``registry`` turns it into declarations."""

from __future__ import annotations

from catalog.dialects.detection import Dialect, detect, suffixes

__all__ = ["Dialect", "detect", "suffixes"]
