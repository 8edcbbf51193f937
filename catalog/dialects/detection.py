"""The dialects, and which of them a document is written in. One more is a file, and its entry in ``DIALECTS``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.dialects.definition_groups import DEFINITION_GROUPS
from catalog.dialects.dialect import Dialect
from catalog.dialects.message_catalog import MESSAGE_CATALOG
from catalog.dialects.xregistry_0_5 import OLDER_XREGISTRY
from catalog.dialects.xregistry_1_0 import XREGISTRY

DIALECTS: Final[list[Dialect]] = [MESSAGE_CATALOG, DEFINITION_GROUPS, OLDER_XREGISTRY, XREGISTRY]
"""In the order in which they are asked whether a document is theirs."""
_SUFFIXES: Final = (".json", ".yaml", ".yml")


def detect(document: Mapping[str, Any]) -> Dialect | None:
    """Return the dialect of a document's tree; None when it is no catalog at all.

    A registry that merely has no messages is one of 1.0.
    """
    return next((dialect for dialect in DIALECTS if dialect.detects(document)), None)


def suffixes() -> tuple[str, ...]:
    """Return the endings of files that are read in a folder, and that tell the address of a document."""
    return (*_SUFFIXES, *(suffix for dialect in DIALECTS for suffix in dialect.suffixes))
