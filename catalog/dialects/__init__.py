"""Which dialect is a document written in? ``registry`` turns it into declarations."""

from __future__ import annotations

from catalog.dialects.detection import Dialect, detect

__all__ = ["Dialect", "detect"]
