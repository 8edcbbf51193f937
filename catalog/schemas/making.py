"""The data of one definition's messages: what its schema asks, checked by the schema's own validator."""

from __future__ import annotations

import random
from functools import cached_property
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

import msgspec

from catalog.model import Catalog, Definition
from catalog.schemas.bodies import holds_json
from catalog.schemas.contract import SchemaError, SchemaSource
from catalog.schemas.families import family_of
from catalog.schemas.filling.filling import Filler, Filling, Unfillable
from catalog.schemas.library import CatalogLibrary, schema_source
from catalog.schemas.validation import BoundedValidation
from catalog.values import media_type_of

_FULLNESS: Final = (1.0, 1.0, 0.8, 0.8, 0.5, 0.5, 0.3, 0.3, 0.0, 0.0)
"""How much of what is optional goes in, attempt by attempt: what no attempt solves is often optional."""


class Payload(NamedTuple):
    """Data for one message; ``doubt`` says why it is not known to fit its schema, and is empty when there is none."""

    data: bytes | None
    doubt: str = ""


class PayloadMaker:
    """Makes data for the messages of one definition.

    Without a schema, data is a small JSON object, XML element or line of text, and nothing for any other content type.
    """

    def __init__(self, definition: Definition, catalog: Catalog) -> None:
        self._definition = definition
        self._catalog = catalog
        self._source = schema_source(definition, catalog.schemas)

    @property
    def family(self) -> str | None:
        """The family of the schema, None when the definition has none that was loaded."""
        return self._source.family if self._source else None

    def make(self, content_type: str, number: int, chooser: random.Random, now: str) -> Payload:
        """Make data in the encoding that *content_type* asks for; *number* counts messages, *now* is RFC 3339 text.

        Several attempts are made until the schema's validator takes one. When it takes none, or the schema cannot be
        compiled, the data is the last attempt (without any, that of a definition without schema) and in doubt.
        """
        if self._source is None:
            return Payload(self._plain(content_type, number), self._lacking)
        try:
            # A schema that its compiler refuses may have any shape: nothing is made from it.
            payload = self._attempted(self._validator, self._filler, content_type, chooser, now)
        except (Unfillable, SchemaError) as error:
            payload = Payload(None, str(error))
        if not payload.doubt:
            return payload
        data = self._plain(content_type, number) if payload.data is None else payload.data
        return Payload(data, f"{self.schema}: {payload.doubt}")

    def _attempted(
        self, validator: BoundedValidation, filler: Filler, content_type: str, chooser: random.Random, now: str
    ) -> Payload:
        """Return the first attempt that the validator takes, or the last one and what is wrong with it."""
        last = Payload(None)
        for fullness in _FULLNESS:
            try:
                data = filler.payload(Filling(chooser, now, fullness), content_type)
            except Unfillable as error:
                last = Payload(last.data, str(error))
                continue
            fault = validator.fault(data, content_type)
            if fault is None:
                return Payload(data)
            last = Payload(data, str(fault))
        return last

    @property
    def schema(self) -> str:
        """What reports call the schema: its key, with the type in it."""
        name = self._definition.schemaname
        return f"{self._definition.schemakey or self._definition.dataschemauri}{f':{name}' if name else ''}"

    @property
    def _lacking(self) -> str:
        """Why a definition that names a schema has none; empty when it names none."""
        definition = self._definition
        named = (
            definition.dataschemauri or definition.dataschemaxid or ("" if definition.dataschema is None else "inline")
        )
        return (
            f"its schema ({named}) was not loaded, or is of an unknown format; `xrouter check` says why"
            if named
            else ""
        )

    @cached_property
    def _filler(self) -> Filler:
        return family_of(self._known.family).open_filler(self._known, CatalogLibrary(self._catalog.schemas))

    @cached_property
    def _validator(self) -> BoundedValidation:
        return BoundedValidation(self._known, CatalogLibrary(self._catalog.schemas))

    @property
    def _known(self) -> SchemaSource:
        assert self._source is not None  # what has no schema never gets here
        return self._source

    def _plain(self, content_type: str, number: int) -> bytes | None:
        media = media_type_of(content_type)
        if holds_json(content_type):
            return msgspec.json.encode({"message": self._definition.messageid, "number": number})
        if media.endswith(("/xml", "+xml")):
            return f"<message name={quoteattr(self._definition.messageid)} number='{number}'/>".encode()
        if media.startswith("text/"):
            return f"{self._definition.messageid} {number}".encode()
        return None
