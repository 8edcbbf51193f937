"""Dead letters as rows to be judged again: the columns of an inbox row, and what a letter brings along."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from bindings.parts import Part
from bindings.protocols import BINDINGS, binding_of
from catalog.errors import RecordError
from router.errors import RouterError
from router.judging.judging import source_row
from router.letters.letter import Letter
from router.rendering.instants import INSTANT

_PART: Final = pa.struct([("key", pa.string()), ("value", pa.binary()), ("type", pa.string())])
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
ROWS: Final = pa.schema(
    [
        ("endpoint", pa.string()),
        ("protocol", pa.string()),
        ("received", INSTANT),
        ("properties", pa.list_(_PART)),
        ("body", pa.binary()),
        ("position", pa.string()),
        ("headers", pa.list_(_HEADER)),
        ("key", pa.binary()),
        ("letter", pa.string()),
    ]
)
"""``headers`` and ``key`` are given for records of Kafka, and have the form of Kafka's own rows."""
_MOST: Final = (1 << 62) // 1000
"""Milliseconds beyond which an instant of Kafka has no place in a column."""


def rows_of(letters: Iterable[Letter]) -> pa.Table:
    """Return letters as rows, in their order.

    Raises:
        RouterError: the record of one cannot be taken apart; names the letter and where it was read.
    """
    return pa.Table.from_pylist([_row(letter) for letter in letters], ROWS)


def _row(letter: Letter) -> dict[str, Any]:
    binding = binding_of(letter.protocol)
    hint = "the letter was changed where it lies; restore it, or leave it out"
    if binding is None:
        known = ", ".join(BINDINGS)
        raise RouterError(
            f"dead letter {letter.id} in {letter.sink}: protocol {letter.protocol[:40]!r} is none of {known}", hint=hint
        )
    try:
        parts = binding.parts(letter.native)
    except RecordError as error:
        raise RouterError(f"dead letter {letter.id} in {letter.sink}: {error}", hint=hint) from error
    row: dict[str, Any] = {
        "endpoint": letter.endpoint,
        "protocol": letter.protocol,
        "received": letter.received,
        "properties": [_part(part) for part in parts],
        "body": letter.body,
        "position": letter.position,
        "letter": letter.id,
    }
    if binding.protocol == "KAFKA":
        source = source_row(parts)
        row |= {"headers": source["headers"], "key": source["key"], "received": _micros(source["timestamp"])}
    return row


def _part(part: Part) -> dict[str, Any]:
    return {"key": part.key, "value": part.value, "type": part.kind}


def _micros(milliseconds: int | None) -> int | None:
    """Return the instant that Kafka gave, which a calendar need not have."""
    if milliseconds is None or abs(milliseconds) > _MOST:
        return None
    return milliseconds * 1000
