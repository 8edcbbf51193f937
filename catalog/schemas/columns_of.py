"""The column ``payload`` of a definition's table: its type from the data schema, and its values from bodies.

A value that does not fit its column makes that column null in its row, nothing else, and is reported: a wrong value
must not look like one that is absent. A payload is null where its body does not parse. The bytes are in the column
``data`` in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from catalog.model import Catalog
from catalog.schemas.bodies import short
from catalog.schemas.columns.columns import Columns
from catalog.schemas.columns.reading import Reader, Undecoded
from catalog.schemas.columns.shapes import Shape, Struct
from catalog.schemas.columns.survey import Survey
from catalog.schemas.contract import SchemaError
from catalog.schemas.families import family_of
from catalog.schemas.library import CatalogLibrary, schema_source

NOT_LOADED: Final = "the payload has no columns: its schema was not loaded, or is of an unknown format"
WHOLE: Final = "value"
"""The one field of payloads that are no objects."""


class PayloadColumn:
    """Types of the payloads of one definition, and the way from bodies to values of them.

    ``type`` is the struct of the column; ``findings`` tell what has no type of its own, each with its place in the
    payload as a JSON pointer (``*`` stands for all items of a list or all values of a map), at most some fifty. The
    same catalog gives the same type. ``family`` is that of the schema. An object serves one thread and does not
    pickle: make it where it is used.
    """

    def __init__(self, shape: Shape, reader: Reader, findings: tuple[str, ...], family: str) -> None:
        self.family = family
        self._reader = reader
        self._columns = Columns(shape, reader.take, reader.text)
        self._is_whole = not isinstance(shape, Struct)
        kind = self._columns.type
        self.type: pa.StructType = pa.struct([pa.field(WHOLE, kind)]) if self._is_whole else kind
        self.findings = findings

    def decode(
        self, bodies: pa.BinaryArray, content_types: pa.StringArray | Sequence[str | None]
    ) -> tuple[pa.StructArray, tuple[Undecoded, ...]]:
        """Return the payloads of *bodies*, a row for each, and what is null because it does not parse or fit, by row.

        A body that does not parse is reported by itself, values that do not fit by their column. A body that is absent
        has a null payload and is not reported. Content types matter where a schema has several
        encodings, which are Avro's and Protobuf's. Never raises because of a body.
        """
        types = content_types.to_pylist() if isinstance(content_types, pa.Array | pa.ChunkedArray) else content_types
        values, undecoded = self._reader.read(bodies.to_pylist(), types)
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
    survey = Survey()
    try:
        columns = family_of(source.family).open_columns(source, CatalogLibrary(catalog.schemas), survey)
    except SchemaError as error:
        survey.note((), f"has no columns: {error}")
        columns = None
    except RecursionError:
        survey.note((), "has no columns: the schema refers on and on")
        columns = None
    if columns is None:
        return None, survey.findings
    shape, reader = columns
    return PayloadColumn(shape, reader, survey.findings, source.family), survey.findings
