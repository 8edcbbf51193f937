"""Payload schemas, and validation of bodies against them. :mod:`catalog.schemas.linking` finds the schemas."""
