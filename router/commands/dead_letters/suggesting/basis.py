"""The catalog that drafts are added to: as it is, with a fragment beside it, and with the fragment written into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from catalog.convert import convert
from catalog.declared import Declarations
from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher
from catalog.findings import Findings
from catalog.load import build
from catalog.model import Catalog, Finding

FRAGMENT: Final = "the drafts"
"""What the fragment is called as a file, until it is one."""


class Basis:
    """A loaded catalog and the documents that it was made of.

    Raises:
        DocumentError: a source cannot be read.
    """

    def __init__(self, sources: Sequence[str | Path], fetcher: Fetcher | None = None) -> None:
        """Load *sources*, by *fetcher* if they or what they refer to are not all on this machine."""
        self._fetcher = fetcher if fetcher is not None else Fetcher(network=False)
        self._documents: list[Document] = read_documents(sources, Findings(), fetcher=self._fetcher)
        self.declarations = Declarations()
        self.catalog: Catalog = build(self._documents, Findings(), self.declarations, self._fetcher)
        self._known = {(each.rule, each.file, each.pointer) for each in self.catalog.findings}

    def beside(self, fragment: Mapping[str, Any], attached: Mapping[str, Sequence[str]]) -> Catalog:
        """Load the catalog with a fragment as one more source.

        *attached* are groups, by endpoint, that the endpoint does not list and is to be read as if it did.
        """
        documents = [*self._documents, Document(FRAGMENT, dict(fragment))]
        catalog = build(documents, Findings(), None, self._fetcher)
        endpoints = dict(catalog.endpoints)
        for xid, groups in attached.items():
            endpoint = endpoints[xid]
            members = [member for group in groups for member in catalog.groups[group]]
            listed = dict.fromkeys((*endpoint.messagegroups, *groups))
            candidates = dict.fromkeys((*endpoint.candidates, *members))
            endpoints[xid] = replace(endpoint, messagegroups=tuple(listed), candidates=tuple(candidates))
        return replace(catalog, endpoints=endpoints)

    def news(self, catalog: Catalog) -> list[Finding]:
        """Return the errors and warnings of *catalog* that this one does not have."""
        return [
            each
            for each in catalog.findings
            if each.severity != "info" and (each.rule, each.file, each.pointer) not in self._known
        ]

    def merged(
        self, fragment: Mapping[str, Any], attached: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the whole catalog as one xRegistry 1.0-rc4 document with the fragment in it, endpoints listing it.

        With it come the xids of what had an error in the sources, and is left out.
        """
        converted = convert(self.catalog, self.declarations)
        document = dict(converted.document)
        for collection, nested in (("messagegroups", "messages"), ("schemagroups", "schemas"), ("endpoints", "")):
            added: Mapping[str, Any] = fragment.get(collection, {})
            held: dict[str, Any] = dict(document.get(collection, {}))
            for name, entity in added.items():
                known = held.get(name)
                if known is not None and nested:
                    held[name] = {**known, nested: {**known.get(nested, {}), **entity.get(nested, {})}}
                else:
                    held[name] = entity
            if held:
                document[collection] = held
        for xid, groups in attached.items():
            name = xid.rpartition("/")[2]
            endpoint = document["endpoints"][name]
            listed = dict.fromkeys((*endpoint.get("messagegroups", ()), *groups))
            document["endpoints"] = {**document["endpoints"], name: {**endpoint, "messagegroups": list(listed)}}
        return document, converted.left_out
