"""XML Schema among the families."""

from __future__ import annotations

import re
from typing import Any, Final

from catalog.schemas.family import SchemaFamily

_ELEMENT: Final = re.compile(
    r"/(?:(?:[\w.-]+:)?schema/|\*/|/)?(?:[\w.-]+:)?element\[\s*@name\s*=\s*(?P<quote>['\"])(?P<name>[^'\"]+)(?P=quote)\s*\]"
)
"""The XPath expressions that lead to a global element; XPath could ask for anything else as well."""


def _is_evident(document: Any) -> bool:
    return isinstance(document, str) and document.lstrip("\ufeff \t\r\n").startswith("<") and "XMLSchema" in document


def _element(name: str, pointer: str) -> tuple[str, str]:
    """Return the name of the global element that an XPath expression leads to."""
    element = _ELEMENT.fullmatch(pointer)
    return (name, pointer) if element is None else (element["name"], "")


XSD: Final = SchemaFamily(
    name="XSD",
    room="catalog.schemas.xsd",
    spelling=re.compile(r"xsd|xml[-_ ]?schema(?:[-_ ]definition)?|https?://www\.w3\.org/2001/xmlschema"),
    media_types=frozenset({"application/xml", "application/xsd", "application/xsd+xml", "text/xml"}),
    content_type="application/xml",
    evident=_is_evident,
    is_tree=False,
    frames="never",
    deep_link=_element,
)
