"""Lint: what a catalog that was read says, and will not do."""

from __future__ import annotations

from catalog.definitions.subject import Subject
from catalog.linting.families import lint

__all__ = ["Subject", "lint"]
