"""Payload schemas: what they are, and holding bodies against them. :mod:`catalog.schemas.linking` finds them."""
