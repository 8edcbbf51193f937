"""The column ``payload`` of a definition's table: its type from the data schema, and its values from bodies.

A value that does not fit its column makes that column null in its row, nothing else, and is reported: a wrong value
must not look like one that is absent. A payload is null where its body does not parse. The bytes are in the column
``data`` in any case.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

import msgspec
import numpy as np
import pyarrow as pa

from catalog.model import Catalog, Definition
from catalog.schemas.columns import BodyReader, ColumnBuilder, Shape, Struct, Survey, Undecoded
from catalog.schemas.contract import (
    Library,
    MessagePlace,
    SchemaError,
    SchemaSource,
    WriterSchema,
    holds_json,
    short,
    unusable,
)
from catalog.schemas.families import family_of
from catalog.schemas.filling import Filler, Filling, Unfillable
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import SchemaIdRule, frame_of, message_place
from catalog.schemas.library import CatalogLibrary, schema_source
from catalog.schemas.validation import MAX_RESOLVED, BoundedValidation
from catalog.values import media_type_of

NOT_LOADED: Final = "the payload has no columns: its schema was not loaded, or is of an unknown format"
WHOLE: Final = "value"
"""The one field of payloads that are no objects."""


class PayloadColumn:
    """Types of the payloads of one definition, and the way from bodies to values of them.

    ``type`` is the struct of the column; ``findings`` tell what has no type of its own, each with its place in the
    payload as a JSON pointer (``*`` stands for all items of a list or all values of a map), at most some fifty. The
    same catalog gives the same type. ``declared`` are the ids of schemas that the definition declares for its bodies,
    ``framed`` tells that those may have frames at all. An object serves one thread and does not pickle: make it where
    it is used.
    """

    def __init__(
        self,
        source: SchemaSource,
        library: Library,
        shape: Shape,
        reader: BodyReader,
        findings: tuple[str, ...] = (),
        declared: frozenset[str] = frozenset(),
    ) -> None:
        self._source = source
        self._library = library
        self._family = family_of(source.family)
        self._reader = reader
        self._written: dict[tuple[str, str, MessagePlace], BodyReader] = {}
        self._columns = ColumnBuilder(shape, reader.take, reader.text)
        self.declared = declared
        self.framed = self._family.frames != "never"
        self._is_whole = not isinstance(shape, Struct)
        kind = self._columns.type
        self.type: pa.StructType = pa.struct([pa.field(WHOLE, kind)]) if self._is_whole else kind
        self.findings = findings

    def decode(
        self,
        bodies: pa.BinaryArray,
        content_types: pa.StringArray | Sequence[str | None],
        written: WriterSchema | None = None,
    ) -> tuple[pa.StructArray, tuple[Undecoded, ...]]:
        """Return the payloads of *bodies*, a row for each, and what is null because it does not parse or fit, by row.

        A body that does not parse is reported by itself, values that do not fit by their column. A body that is absent
        has a null payload and is not reported. Content types matter where a schema has several encodings, which are
        Avro's and Protobuf's. Bodies that were *written* with another schema are read as values of the definition's.
        Never raises because of a body.
        """
        types = content_types.to_pylist() if isinstance(content_types, pa.Array | pa.ChunkedArray) else content_types
        if written is not None and written.schema.fault:
            why = unusable(written.schema)
            return pa.nulls(len(bodies), self.type), tuple(Undecoded(row, why) for row in range(len(bodies)))
        reader = self._reader if written is None else self._resolved(written)
        values, undecoded = reader.read(bodies.to_pylist(), types)
        array, misfits = self._columns.array(values)
        for each in misfits:
            names = (WHOLE, each.column) if self._is_whole else (each.column,)
            column = ".".join(name for name in names if name)
            undecoded.append(Undecoded(each.first, short(each.why), column, each.values))
        undecoded.sort(key=lambda each: (each.row, each.column or ""))
        if self._is_whole:
            there = np.array(array.is_valid())
            there[[row for each in misfits for row in each.rows]] = True
            array = pa.StructArray.from_arrays([array], fields=list(self.type), mask=pa.array(~there))
        return array, tuple(undecoded)

    def inside(self, body: bytes, framing: Framing) -> tuple[bytes, MessagePlace] | None:
        """Return what follows the frame of a body, and which message of its file that is; None for no frame."""
        frame = frame_of(body, framing)
        data = frame.opened(body) if frame is not None else None
        if not isinstance(data, bytes):
            return None
        if self._family.frames != "message":
            return data, (0,)
        found = message_place(data, framing)
        return None if found is None else (data[found[1] :], found[0])

    def _resolved(self, written: WriterSchema) -> BodyReader:
        """Return what reads bodies of another schema; of each id and message one is made."""
        if written.schema.family != self._source.family or not self._family.resolves:
            return self._reader
        key = (written.schema.id, written.schema.document, written.message)
        if key not in self._written:
            if len(self._written) >= MAX_RESOLVED:
                self._written.clear()
            source = replace(self._source, written=written)
            columns = self._family.open_columns(source, self._library, Survey())
            self._written[key] = columns[1] if columns is not None else self._reader
        return self._written[key]


def payload_column(catalog: Catalog, xid: str) -> PayloadColumn | None:
    """Return the payload column of a definition; None when it has no schema, or none that types (such as XSD).

    Raises:
        KeyError: the catalog has no such definition.
    """
    return _typed(catalog, xid)[0]


def payload_findings(catalog: Catalog, xid: str) -> tuple[str, ...]:
    """Return the findings of a definition's payload column; if it has none, why, or nothing if it names no schema."""
    return _typed(catalog, xid)[1]


def _typed(catalog: Catalog, xid: str) -> tuple[PayloadColumn | None, tuple[str, ...]]:
    definition = catalog.definitions[xid]
    source = schema_source(definition, catalog.schemas)
    if source is None:
        named = definition.dataschemauri or definition.dataschemaxid or definition.dataschema is not None
        return None, (NOT_LOADED,) if named else ()
    survey, library = Survey(), CatalogLibrary(catalog.schemas)
    try:
        columns = family_of(source.family).open_columns(source, library, survey)
    except SchemaError as error:
        survey.note((), f"has no columns: {error}")
        columns = None
    except RecursionError:
        survey.note((), "has no columns: the schema refers on and on")
        columns = None
    if columns is None:
        return None, survey.findings
    shape, reader = columns
    declared = SchemaIdRule(catalog.schemas).declared(definition, None)
    ids = declared.ids if declared is not None else frozenset[str]()
    return PayloadColumn(source, library, shape, reader, survey.findings, ids), survey.findings


# The data of one definition's messages: what its schema asks, checked by the schema's own validator.

_FULLNESS: Final = (1.0, 1.0, 0.8, 0.8, 0.5, 0.5, 0.3, 0.3, 0.0, 0.0)
"""How much of what is optional goes in, attempt by attempt: what no attempt solves is often optional."""


class GeneratedPayload(NamedTuple):
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

    def make(self, content_type: str, number: int, chooser: random.Random, now: str) -> GeneratedPayload:
        """Make data in the encoding that *content_type* asks for; *number* counts messages, *now* is RFC 3339 text.

        Several attempts are made until the schema's validator takes one. When it takes none, or the schema cannot be
        compiled, the data is the last attempt (without any, that of a definition without schema) and in doubt.
        """
        if self._source is None:
            return GeneratedPayload(self._plain(content_type, number), self._lacking)
        try:
            # A schema that its compiler refuses may have any shape: nothing is made from it.
            payload = self._attempted(self._validator, self._filler, content_type, chooser, now)
        except (Unfillable, SchemaError) as error:
            payload = GeneratedPayload(None, str(error))
        if not payload.doubt:
            return payload
        data = self._plain(content_type, number) if payload.data is None else payload.data
        return GeneratedPayload(data, f"{self.schema}: {payload.doubt}")

    def _attempted(
        self, validator: BoundedValidation, filler: Filler, content_type: str, chooser: random.Random, now: str
    ) -> GeneratedPayload:
        """Return the first attempt that the validator takes, or the last one and what is wrong with it."""
        last = GeneratedPayload(None)
        for fullness in _FULLNESS:
            try:
                data = filler.payload(Filling(chooser, now, fullness), content_type)
            except Unfillable as error:
                last = GeneratedPayload(last.data, str(error))
                continue
            fault = validator.fault(data, content_type)
            if fault is None:
                return GeneratedPayload(data)
            last = GeneratedPayload(data, str(fault))
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
