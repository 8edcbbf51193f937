"""Decode bodies into a table's typed columns: remove content coding and frames, and use the schema that a body was
written with (MATCHING.md#schema-ids). The column ``data`` has the bodies unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.parts import CODING_HEADER, content_coding_of
from bindings.protocols import binding_of
from catalog.findings import RecordError
from catalog.schemas.columns import PayloadColumn, Undecoded
from catalog.schemas.contract import MessagePlace, WriterSchema, decode_content
from catalog.schemas.ids.client import WrittenSchema
from catalog.schemas.ids.deciding import FrameSettings, find_frame_ids

Framings = Mapping[str, FrameSettings]
"""The framing of Kafka bodies by source endpoint; the default is ``auto``."""
_NATIVE: Final = msgspec.json.Decoder(dict[str, object])
_AUTO: Final = FrameSettings()
DecodedPayloads = tuple[pa.StructArray, tuple[Undecoded, ...]]
"""Payloads, and the values that cannot be decoded."""


@dataclass(slots=True)
class _BodyGroup:
    """Bodies by row that are decoded with the same writer schema, if known."""

    written: WriterSchema | None = None
    bodies: dict[int, bytes] = field(default_factory=dict)


def decode_payloads(column: PayloadColumn, rows: pa.Table, framings: Framings) -> DecodedPayloads:
    """Decode the payloads of rows of the wide table; the result is that of :meth:`PayloadColumn.decode`.

    Raises:
        RegistryUnavailableError: a schema registry is not available.
    """
    types, bodies = rows.column("datacontenttype").combine_chunks(), _decode_contents(rows)
    framed = _find_frames(rows, bodies, framings)
    if not framed or not column.framed:
        return column.decode(bodies, types)
    sure, unsure = _group_by_writer(column, bodies, framed)
    inside = {row for part in sure for row in part.bodies}
    whole = [row for row in range(len(bodies)) if row not in inside]
    read = [(whole, column.decode(bodies.take(pa.array(whole, pa.int64())), types.take(pa.array(whole, pa.int64()))))]
    # It is unknown whether these have a frame: it is removed only if the whole body cannot be decoded.
    again = {whole[each.row] for each in read[0][1][1] if each.column is None} & unsure.keys()
    behind = _BodyGroup(None, {row: data for row, data in unsure.items() if row in again})
    for part in (*sure, *([behind] if behind.bodies else ())):
        places = sorted(part.bodies)
        inner = pa.array([part.bodies[row] for row in places], pa.binary())
        read.append((places, column.decode(inner, types.take(pa.array(places, pa.int64())), part.written)))
    return _merge_results(read, len(bodies))


def _merge_results(read: Sequence[tuple[Sequence[int], DecodedPayloads]], rows: int) -> DecodedPayloads:
    """Merge the results of several groups of rows; for a row in two groups, the last one wins."""
    places = np.zeros(rows, np.int64)
    found: dict[int, list[Undecoded]] = {}
    at = 0
    for members, (payload, undecoded) in read:
        places[list(members)] = at + np.arange(len(members))
        at += len(payload)
        for row in members:
            found.pop(row, None)
        for each in undecoded:
            row = members[each.row]
            found.setdefault(row, []).append(replace(each, row=row))
    joined = pa.concat_arrays([payload for _, (payload, _) in read]).take(pa.array(places))
    return joined, tuple(each for row in sorted(found) for each in found[row])


def _decode_contents(rows: pa.Table) -> pa.BinaryArray:
    """Return the bodies without content coding; a body that is not encoded as declared stays unchanged."""
    bodies, natives = rows.column("data").combine_chunks(), rows.column("native").combine_chunks()
    marked = pc.indices_nonzero(
        pc.fill_null(pc.match_substring(natives, CODING_HEADER, ignore_case=True), False)
    ).to_pylist()
    uncoded = {}
    for row in marked:
        body = bodies[row].as_py()
        coding = _find_coding(rows.column("protocol")[row].as_py(), natives[row].as_py())
        opened = decode_content(body, coding) if coding and body is not None else None
        if isinstance(opened, bytes):
            uncoded[row] = opened
    return _replace_bodies(bodies, uncoded)


def _find_coding(protocol: str | None, native: str) -> str:
    binding = binding_of(protocol or "")
    try:
        return content_coding_of(binding.split(_NATIVE.decode(native))) if binding is not None else ""
    except (msgspec.DecodeError, RecordError):
        return ""  # a native record that cannot be parsed has no coding


def _find_frames(rows: pa.Table, bodies: pa.BinaryArray, framings: Framings) -> dict[int, tuple[FrameSettings, str]]:
    """Return the Kafka rows whose bodies start with a schema id, with frame settings and id."""
    kafka = pc.fill_null(pc.equal(rows.column("protocol"), KAFKA), False).combine_chunks()
    endpoints = pc.dictionary_encode(rows.column("endpoint").combine_chunks(), null_encoding="encode")
    codes = np.where(kafka.to_numpy(zero_copy_only=False), endpoints.indices.to_numpy(zero_copy_only=False), -1)
    found: dict[int, tuple[FrameSettings, str]] = {}
    for code, endpoint in enumerate(endpoints.dictionary.to_pylist()):
        frames = framings.get(endpoint or "", _AUTO)
        mine = np.flatnonzero(codes == code)
        if frames.framing == "none" or not len(mine):
            continue
        ids = find_frame_ids(bodies.take(pa.array(mine)), frames.framing)
        there = np.flatnonzero(ids.codes >= 0)
        found |= {int(mine[at]): (frames, ids.names[int(ids.codes[at])]) for at in there.tolist()}
    return found


def _group_by_writer(
    column: PayloadColumn, bodies: pa.BinaryArray, framed: Mapping[int, tuple[FrameSettings, str]]
) -> tuple[list[_BodyGroup], dict[int, bytes]]:
    """Group framed rows by writer schema; separately return bodies without frame for rows that may have none."""
    parts: dict[tuple[int, str, MessagePlace | None], _BodyGroup] = {}
    unsure: dict[int, bytes] = {}
    known: dict[tuple[int, str], WrittenSchema | None] = {}
    for row, (frames, name) in framed.items():
        registry, key = frames.registry, (id(frames), name)
        if key not in known:
            known[key] = registry.get_schema(name) if registry is not None else None
        written = known[key]
        inside = column.strip_frame(bodies[row].as_py(), frames.framing)
        if inside is None:
            continue
        data, place = inside
        if written is None and frames.framing == "auto" and name not in column.declared:
            if registry is None:
                unsure[row] = data
            continue
        part = parts.get((*key, place))
        if part is None:
            reads = WriterSchema(written, place) if written is not None else None
            part = parts[(*key, place)] = _BodyGroup(reads)
        part.bodies[row] = data
    return list(parts.values()), unsure


def _replace_bodies(bodies: pa.BinaryArray, replacements: Mapping[int, bytes]) -> pa.BinaryArray:
    if not replacements:
        return bodies
    mask = [False] * len(bodies)
    for row in replacements:
        mask[row] = True
    return pc.replace_with_mask(
        bodies, pa.array(mask), pa.array([replacements[row] for row in sorted(replacements)], bodies.type)
    )
