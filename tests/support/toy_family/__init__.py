"""A schema family that no project knows: its documents are a number, and bodies have that many lines."""

from __future__ import annotations

from tests.support.toy_family.family import LINES

__all__ = ["LINES"]
