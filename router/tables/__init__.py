"""Typed tables: the column ``payload`` of a definition, from its data schema, and bodies as values of it."""

from __future__ import annotations

from router.tables.payload import PayloadColumn, payload_column, payload_findings
from router.tables.reading import Undecoded

__all__ = ["PayloadColumn", "Undecoded", "payload_column", "payload_findings"]
