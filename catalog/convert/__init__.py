"""Any dialect to one xRegistry 1.0-rc4 document."""

from __future__ import annotations

from catalog.convert.document import Converted, convert, json_text, yaml_text

__all__ = ["Converted", "convert", "json_text", "yaml_text"]
