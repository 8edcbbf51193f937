"""Selectors: where a property lies in a row, declared once and evaluated in two places.

``run`` needs Spark columns, so that bodies and headers stay in the JVM; ``match`` needs the same answer without
Spark. Each expression here gives both, :meth:`Expression.column` and :meth:`Expression.arrow`, and a property test
holds them equal. Text is always valid UTF-8: a value that is not is null, and the row is marked by other means.
Nothing here raises for any row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column

SEPARATOR = "\n"


class Rows:
    """An Arrow batch with what several expressions need of it, computed once."""

    def __init__(self, batch: pa.RecordBatch, entries: str) -> None:
        """``entries`` names the column that is a list of (key, value) structs."""
        self.batch = batch
        self._entries = batch.column(entries)

    @cached_property
    def flat(self) -> tuple[pa.StringArray, pa.BinaryArray, npt.NDArray[np.int64]]:
        """All keys, all values, and the row of each."""
        entries = self._entries.flatten()
        owners = pc.list_parent_indices(self._entries).to_numpy(zero_copy_only=False).astype(np.int64)
        return entries.field("key"), entries.field("value"), owners

    @property
    def missing(self) -> pa.BooleanArray:
        """Which rows have no list at all."""
        return pc.is_null(self._entries)

    def per_row(self, function: Callable[[list[str | None], list[bytes | None]], Any], kind: pa.DataType) -> pa.Array:
        """Apply a function to the keys and values of each row."""
        keys: list[list[str | None]] = [[] for _ in range(len(self.batch))]
        values: list[list[bytes | None]] = [[] for _ in range(len(self.batch))]
        names, contents, owners = self.flat
        for owner, name, content in zip(owners.tolist(), names.to_pylist(), contents.to_pylist(), strict=True):
            keys[owner].append(name)
            values[owner].append(content)
        return pa.array([function(k, v) for k, v in zip(keys, values, strict=True)], kind)


class Expression(ABC):
    """One value per row."""

    @abstractmethod
    def column(self) -> Column:
        """Return the Spark column."""

    @abstractmethod
    def arrow(self, rows: Rows) -> pa.Array:
        """Return the Arrow array."""


@dataclass(frozen=True)
class Field(Expression):
    """A column of the row, as it is."""

    name: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        return F.col(self.name)

    def arrow(self, rows: Rows) -> pa.Array:
        return rows.batch.column(self.name)


@dataclass(frozen=True)
class FirstBytes(Expression):
    """The value of the first entry with that key; null when there is none, or it has no value."""

    entries: str
    key: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        position = F.array_position(F.col(f"{self.entries}.key"), self.key).cast("int")
        return F.get(F.col(f"{self.entries}.value"), position - 1)

    def arrow(self, rows: Rows) -> pa.Array:
        keys, values, owners = rows.flat
        found = np.flatnonzero(pc.fill_null(pc.equal(keys, self.key), False).to_numpy(zero_copy_only=False))
        owner, first = np.unique(owners[found], return_index=True)
        places = np.full(len(rows.batch), -1, np.int64)
        places[owner] = found[first]
        return values.take(pa.array(places, mask=places < 0))


@dataclass(frozen=True)
class Text(Expression):
    """Bytes as text; null for what is no UTF-8."""

    of: Expression

    def column(self) -> Column:
        from pyspark.sql import functions as F

        return F.try_validate_utf8(self.of.column().cast("string"))

    def arrow(self, rows: Rows) -> pa.Array:
        found = self.of.arrow(rows)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([utf8(value) for value in found.to_pylist()], pa.string())


@dataclass(frozen=True)
class Base64(Expression):
    """Bytes as base64 text; of a text its UTF-8 bytes."""

    of: Expression

    def column(self) -> Column:
        from pyspark.sql import functions as F

        # Spark breaks base64 lines at 76 characters; the native form does not.
        return F.replace(F.base64(self.of.column()), F.lit("\r\n"), F.lit(""))

    def arrow(self, rows: Rows) -> pa.Array:
        import base64

        found = self.of.arrow(rows).to_pylist()
        values = [value.encode("utf-8") if isinstance(value, str) else value for value in found]
        encoded = [None if value is None else base64.b64encode(value).decode("ascii") for value in values]
        return pa.array(encoded, pa.string())


@dataclass(frozen=True)
class Selected(Expression):
    """A column that was selected before, under the name of its property."""

    name: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        return F.col(f"`{self.name}`")

    def arrow(self, rows: Rows) -> pa.Array:
        return rows.batch.column(self.name)


@dataclass(frozen=True)
class Layout(Expression):
    """How many entries, then their keys by lines; null for no list."""

    entries: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        keys = F.col(f"{self.entries}.key")
        return F.concat(F.size(keys).cast("string"), F.lit(SEPARATOR), F.array_join(keys, SEPARATOR, ""))

    def arrow(self, rows: Rows) -> pa.Array:
        def text(keys: list[str | None], _: list[bytes | None]) -> str:
            return f"{len(keys)}{SEPARATOR}{SEPARATOR.join(key or '' for key in keys)}"

        made = rows.per_row(text, pa.string())
        return pc.if_else(rows.missing, pa.nulls(len(made), pa.string()), made)


def utf8(value: bytes | None) -> str | None:
    """Return bytes as text; None for none, and for what is no UTF-8."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
