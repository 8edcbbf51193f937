"""Bodies of a table's rows as their columns are read from them: without content coding, and behind Confluent's frames
(JUDGING.md#data-schemas). The column ``data`` keeps them as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from bindings.codings import NAME, coding_of
from bindings.kafka.codec import PROTOCOL as KAFKA
from bindings.protocols import binding_of
from catalog.errors import RecordError
from catalog.schemas.codings import Framing, behind_frame, decoded
from catalog.schemas.columns.reading import Undecoded
from catalog.schemas.columns_of import PayloadColumn

Framings = Mapping[str, Framing]
"""How bodies of Kafka begin, by the endpoint that they came from; ``auto`` where nothing is said."""
_NATIVE: Final = msgspec.json.Decoder(dict[str, object])


def typed(column: PayloadColumn, rows: pa.Table, framings: Framings) -> tuple[pa.StructArray, tuple[Undecoded, ...]]:
    """Return the payloads of rows of the wide table, and what is null in them, as :meth:`PayloadColumn.decode`."""
    types = rows.column("datacontenttype").combine_chunks()
    bodies = _uncoded(rows)
    asked = _framings(rows, framings)
    always = [row for row, framing in asked.items() if framing == "confluent"]
    bodies = _unframed(bodies, always, column)
    payload, undecoded = column.decode(bodies, types)
    again = [each.row for each in undecoded if each.column is None and asked.get(each.row) == "auto"]
    inner = _unframed(bodies, again, column)
    places = pa.array([row for row in again if inner[row] != bodies[row]], pa.int64())
    if not len(places):
        return payload, undecoded
    more, still = column.decode(inner.take(places), types.take(places))
    known = {row: at for at, row in enumerate(places.to_pylist())}
    order = [rows.num_rows + known[row] if row in known else row for row in range(rows.num_rows)]
    kept = [each for each in undecoded if each.column is not None or each.row not in known]
    kept += (replace(each, row=places[each.row].as_py()) for each in still)
    joined = pa.concat_arrays([payload, more]).take(pa.array(order, pa.int64()))
    return joined, tuple(sorted(kept, key=lambda each: (each.row, each.column or "")))


def _uncoded(rows: pa.Table) -> pa.BinaryArray:
    """Return the bodies; one that is not coded as its message says stays: it may be the data of a structured event."""
    bodies, natives = rows.column("data").combine_chunks(), rows.column("native").combine_chunks()
    marked = pc.indices_nonzero(pc.fill_null(pc.match_substring(natives, NAME, ignore_case=True), False)).to_pylist()
    uncoded = {}
    for row in marked:
        body = bodies[row].as_py()
        coding = _coding(rows.column("protocol")[row].as_py(), natives[row].as_py())
        opened = decoded(body, coding) if coding and body is not None else None
        if isinstance(opened, bytes):
            uncoded[row] = opened
    return _replaced(bodies, uncoded)


def _coding(protocol: str | None, native: str) -> str:
    binding = binding_of(protocol or "")
    try:
        return coding_of(binding.parts(_NATIVE.decode(native))) if binding is not None else ""
    except (msgspec.DecodeError, RecordError):
        return ""  # the native record is shown, not relied on


def _framings(rows: pa.Table, framings: Framings) -> dict[int, Framing]:
    """Return the rows of Kafka whose bodies begin with byte 0, or should, and how each is to be read."""
    kafka = pc.fill_null(pc.equal(rows.column("protocol"), KAFKA), False)
    zero = pc.fill_null(pc.equal(pc.binary_slice(rows.column("data").combine_chunks(), 0, 1), b"\x00"), False)
    endpoints = rows.column("endpoint")
    framed = pc.indices_nonzero(pc.and_(kafka.combine_chunks(), zero)).to_pylist()
    return {row: framings.get(endpoints[row].as_py() or "", "auto") for row in framed}


def _unframed(bodies: pa.BinaryArray, rows: list[int], column: PayloadColumn) -> pa.BinaryArray:
    inner = {row: behind_frame(bodies[row].as_py() or b"", column.family) for row in rows}
    return _replaced(bodies, {row: body for row, body in inner.items() if body is not None})


def _replaced(bodies: pa.BinaryArray, replacements: Mapping[int, bytes]) -> pa.BinaryArray:
    if not replacements:
        return bodies
    mask = [False] * len(bodies)
    for row in replacements:
        mask[row] = True
    return pc.replace_with_mask(
        bodies, pa.array(mask), pa.array([replacements[row] for row in sorted(replacements)], bodies.type)
    )
