"""Lint a catalog: report declarations that will not work as intended."""

from __future__ import annotations

from catalog.definitions.candidates import Subject
from catalog.linting.events import MAPPING_RULES, lint, mapping

__all__ = ["MAPPING_RULES", "Subject", "lint", "mapping"]
