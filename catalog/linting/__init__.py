"""Lint: what a catalog that was read says, and will not do."""

from __future__ import annotations

from catalog.linting.families import lint
from catalog.linting.subject import Subject

__all__ = ["Subject", "lint"]
