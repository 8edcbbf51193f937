"""Payload schemas: what they are, and holding bodies against them. :mod:`catalog.schemas.linking` finds them."""

from __future__ import annotations

from catalog.schemas.contract import MAX_BODY_BYTES, SchemaError, SchemaFault
from catalog.schemas.validation import PayloadValidation

__all__ = ["MAX_BODY_BYTES", "PayloadValidation", "SchemaError", "SchemaFault"]
