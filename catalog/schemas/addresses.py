"""Where data schemas are for those who are elsewhere: the absolute URI of each, which events carry as ``dataschema``.

What a catalog writes is relative: to its registry (an xid, or the pointer that documents have for it), or to the
document it is written in. The address of the registry is what it calls itself (``self``), else what the settings say
(``catalog.base_uri``), else where its document was read. A local file is no address: nobody else could follow it
(JUDGING.md#mapping).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urldefrag, urljoin, urlsplit

from catalog.declared import Declarations, DeclaredMessage, Place
from catalog.definitions.pointing import attribute_place
from catalog.dialects import suffixes
from catalog.documents.fetching import is_url
from catalog.model import Definition
from catalog.references.abroad import Abroad
from catalog.schemas.registry import SchemaRegistry
from catalog.values import is_valid, text_of

_REGISTRY: Final = re.compile(r"#?(/schemagroups/\S+)", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+-]*:")
"""A scheme; one with a dot is no scheme here but a file with a deep link, ``s.json:Name``."""
_WRITTEN: Final = ("dataschemauri", "dataschemaxid")


def is_absolute(uri: str) -> bool:
    """Tell whether a URI reference has a scheme."""
    return _ABSOLUTE.match(uri) is not None


@dataclass(frozen=True, slots=True)
class SchemaAddresses:
    """Tells the absolute URI of schemas; *base* is that of the registry as the settings have it, empty for none."""

    declarations: Declarations
    abroad: Abroad
    base: str = ""

    def of(self, definition: Definition, writer: DeclaredMessage | None, registry: SchemaRegistry) -> str | None:
        """Return the URI, or the template of one, that mapped events of a definition have as ``dataschema``.

        What the envelope declares counts, then what *writer*, the nearest that gives a schema, refers to by URI, then
        by xid. None when nothing of it can be made absolute.
        """
        declared = next((prop for prop in definition.envelopemetadata if prop.name == "dataschema"), None)
        if declared is not None and declared.value is not None:
            message = self.declarations.messages[definition.xid]
            place = attribute_place(message, "dataschema") or message.place
            return self._absolute(text_of(declared.value), place, message.xid, registry)
        given = writer.attributes if writer is not None else {}
        inline = given.get("dataschema")
        references = [(name, given.get(name)) for name in _WRITTEN]
        if isinstance(inline, str) and (_REGISTRY.fullmatch(inline.strip()) or is_url(inline.strip())):
            references.insert(0, ("dataschema", inline))
        for name, reference in references:
            if isinstance(reference, str) and reference and writer is not None:
                uri = self._absolute(reference, writer.at(name), writer.xid, registry)
                if uri is not None and is_valid("uri", uri):
                    return uri
        return None

    def _absolute(self, written: str, place: Place, xid: str, registry: SchemaRegistry) -> str | None:
        reference = written.strip()
        if not reference or is_absolute(reference) or reference.startswith("{"):
            return reference or None
        within = _REGISTRY.fullmatch(reference)
        if within is not None:
            return registry.address(reference) or self._in_registry(within[1], place, xid)
        document = place.file if is_url(place.file) else self._registry(place, xid)
        if not document:
            return None
        joined = urljoin(document, reference if reference[0] in "/#?." else f"./{reference}")
        return joined if is_absolute(joined) else None

    def _in_registry(self, path: str, place: Place, xid: str) -> str | None:
        root = self._registry(place, xid)
        if root and not urlsplit(root).path.lower().endswith(suffixes()):
            return root.rstrip("/") + path
        document = root or (place.file if is_url(place.file) else "")
        # A document is one text: what it holds is named after its address, and has no second fragment.
        return f"{document}#{path.replace('#', '%23')}" if document else None

    def _registry(self, place: Place, xid: str) -> str:
        """Return the address of the registry that a message is of; that of a folder ends in a slash."""
        land = self.abroad.land_of(xid)
        declarations = self.declarations if land is None else land.declarations
        address = declarations.addresses.get(place.file) or ("" if land is not None else self.base)
        root = urldefrag(address)[0].partition("?")[0]
        return root if not root or urlsplit(root).path.lower().endswith(suffixes()) else f"{root.rstrip('/')}/"
