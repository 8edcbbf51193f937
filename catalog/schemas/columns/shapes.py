"""What a payload looks like as columns: the shape of one schema, whatever its format, and the Arrow type of a shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

Kind = Literal[
    "text",
    "json",
    "numeral",
    "boolean",
    "integer",
    "written integer",
    "number",
    "decimal",
    "binary",
    "timestamp",
    "local timestamp",
    "date",
]
MAX_PRECISION: Final = 38
"""Digits of the largest decimal that Delta, Spark and Parquet's readers share."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value without parts.

    ``json`` is the JSON text of a value that has no type of its own, ``numeral`` a number kept as text because no type
    holds it, ``written integer`` one that JSON writes as text. ``low`` and ``high`` are the bounds of integers and of
    numerals that are integers, both included.
    """

    kind: Kind
    type: pa.DataType
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a struct: ``name`` as the payload writes it, ``column`` as the table has it."""

    name: str
    column: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Struct:
    """Named values; at least one. ``positional`` ones are written as a JSON array in the order of the members."""

    members: tuple[Member, ...]
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """Any number of values of one shape."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Table:
    """Values of one shape by key."""

    value: Shape
    key: Leaf


Shape: TypeAlias = Leaf | Struct | Sequence | Table

TEXT: Final = Leaf("text", pa.string())
JSON: Final = Leaf("json", pa.string())
BOOLEAN: Final = Leaf("boolean", pa.bool_())
BINARY: Final = Leaf("binary", pa.binary())
DATE: Final = Leaf("date", pa.date32())
TIMESTAMP: Final = Leaf("timestamp", pa.timestamp("us", "UTC"))
LOCAL_TIMESTAMP: Final = Leaf("local timestamp", pa.timestamp("us"))
DOUBLE: Final = Leaf("number", pa.float64())
FLOAT: Final = Leaf("number", pa.float32())
_SIGNED: Final = ((7, pa.int8()), (15, pa.int16()), (31, pa.int32()), (63, pa.int64()))


def integer(bits: int, *, signed: bool = True, written: bool = False) -> Leaf:
    """Return the leaf of an integer type; ``written`` when JSON writes it as text.

    Tables know signed integers only: an unsigned type takes the next larger one, 64 bits ``decimal(20, 0)``, and what
    may have more than :data:`MAX_PRECISION` digits stays text.
    """
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if len(str(high)) > MAX_PRECISION:
        return Leaf("numeral", pa.string(), low, high)
    needed = bits - 1 if signed else bits
    kind = next((kind for room, kind in _SIGNED if needed <= room), pa.decimal128(len(str(high)), 0))
    return Leaf("written integer" if written else "integer", kind, low, high)


def decimal(precision: Any, scale: Any) -> Leaf:
    """Return the leaf of a decimal: exact, or text when precision and scale are unknown or too large."""
    usable = (
        type(precision) is int and type(scale) is int and 0 < precision <= MAX_PRECISION and 0 <= scale <= precision
    )
    return Leaf("decimal", pa.decimal128(precision, scale)) if usable else Leaf("numeral", pa.string())


def arrow_type(shape: Shape) -> pa.DataType:
    """Return the type of the column that values of a shape make; every field in it may be null."""
    if isinstance(shape, Struct):
        return pa.struct([pa.field(member.column, arrow_type(member.shape)) for member in shape.members])
    if isinstance(shape, Sequence):
        return pa.list_(pa.field("element", arrow_type(shape.item)))
    if isinstance(shape, Table):
        return pa.map_(arrow_type(shape.key), arrow_type(shape.value))
    return shape.type
