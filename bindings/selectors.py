"""Selectors: where a property lies in a row, declared once and evaluated in two places.

``run`` needs Spark columns, so that bodies and headers stay in the JVM; ``match`` needs the same answer without
Spark. Each expression here gives both, :meth:`Expression.column` and :meth:`Expression.arrow`, and a property test
holds them equal. Text is always valid UTF-8: a value that is not is null, and the row is marked by other means.
Nothing here raises for any row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
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
            return pa.array([_text(value) for value in found.to_pylist()], pa.string())


@dataclass(frozen=True)
class Base64(Expression):
    """Bytes as base64 text."""

    of: Expression

    def column(self) -> Column:
        from pyspark.sql import functions as F

        # Spark breaks base64 lines at 76 characters; the native form does not.
        return F.replace(F.base64(self.of.column()), F.lit("\r\n"), F.lit(""))

    def arrow(self, rows: Rows) -> pa.Array:
        import base64

        found = self.of.arrow(rows).to_pylist()
        encoded = [None if value is None else base64.b64encode(value).decode("ascii") for value in found]
        return pa.array(encoded, pa.string())


@dataclass(frozen=True)
class KeysMatch(Expression):
    """Whether the keys, each between two separators, match a regular expression (Java's and RE2's common part)."""

    entries: str
    pattern: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        joined = F.array_join(F.col(f"{self.entries}.key"), SEPARATOR * 2)
        wrapped = F.concat(F.lit(SEPARATOR), joined, F.lit(SEPARATOR))
        return F.coalesce(wrapped.rlike(self.pattern), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        joined = rows.per_row(lambda keys, _: SEPARATOR + (SEPARATOR * 2).join(_given(keys)) + SEPARATOR, pa.string())
        return pc.match_substring_regex(joined, self.pattern)


@dataclass(frozen=True)
class KeysContain(Expression):
    """Whether any key contains that text, which is not empty (or the keys joined do)."""

    entries: str
    text: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        joined = F.array_join(F.col(f"{self.entries}.key"), "")
        return F.coalesce(F.contains(joined, F.lit(self.text)), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        return rows.per_row(lambda keys, _: self.text in "".join(_given(keys)), pa.bool_())


@dataclass(frozen=True)
class ValuesAreText(Expression):
    """Whether all values are UTF-8."""

    entries: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        texts = F.col(f"{self.entries}.value").cast("array<string>")
        return F.coalesce(F.is_valid_utf8(F.array_join(texts, SEPARATOR)), F.lit(True))

    def arrow(self, rows: Rows) -> pa.Array:
        return rows.per_row(lambda _, values: all(v is None or _text(v) is not None for v in values), pa.bool_())


@dataclass(frozen=True)
class Repeats(Expression):
    """Whether a key occurs more than once."""

    entries: str
    key: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        keys = F.col(f"{self.entries}.key")
        rest = F.size(F.array_remove(keys, self.key))
        return F.coalesce(F.size(keys) - rest > 1, F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        return rows.per_row(lambda keys, _: keys.count(self.key) > 1, pa.bool_())


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


@dataclass(frozen=True)
class OneOf(Expression):
    """Whether a text is one of a set; False for null."""

    of: Expression
    texts: frozenset[str]

    def column(self) -> Column:
        from pyspark.sql import functions as F

        if not self.texts:
            return F.lit(False)
        return F.coalesce(self.of.column().isin(*sorted(self.texts)), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        wanted = pa.array(sorted(self.texts), pa.string())
        return pc.is_in(self.of.arrow(rows), value_set=wanted, skip_nulls=True)


@dataclass(frozen=True)
class Unusable(Expression):
    """Whether an entry with that key is there although ``text``, the first one's, is null: no value, or no UTF-8."""

    entries: str
    key: str
    text: Expression

    def column(self) -> Column:
        from pyspark.sql import functions as F

        position = F.array_position(F.col(f"{self.entries}.key"), self.key)
        return F.coalesce(self.text.column().isNull() & (position > 0), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        there = rows.per_row(lambda keys, _: self.key in keys, pa.bool_())
        return pc.and_(pc.is_null(self.text.arrow(rows)), there)


@dataclass(frozen=True)
class NotEmpty(Expression):
    """Whether a text is there and has a character."""

    of: Expression

    def column(self) -> Column:
        from pyspark.sql import functions as F

        return F.coalesce(F.octet_length(self.of.column()) > 0, F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        return pc.fill_null(pc.greater(pc.binary_length(self.of.arrow(rows)), 0), False)


@dataclass(frozen=True)
class NotText(Expression):
    """Whether the first entry with that key has a value that is no UTF-8."""

    entries: str
    key: str

    def column(self) -> Column:
        first = FirstBytes(self.entries, self.key)
        return first.column().isNotNull() & Text(first).column().isNull()

    def arrow(self, rows: Rows) -> pa.Array:
        first = FirstBytes(self.entries, self.key).arrow(rows)
        return pa.array([value is not None and _text(value) is None for value in first.to_pylist()], pa.bool_())


@dataclass(frozen=True)
class Equals(Expression):
    """Whether a text equals another; False for null."""

    of: Expression
    text: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        return F.coalesce(self.of.column() == F.lit(self.text), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        return pc.fill_null(pc.equal(self.of.arrow(rows), self.text), False)


@dataclass(frozen=True)
class Matches(Expression):
    """Whether a text has a match of a regular expression; False for null."""

    of: Expression
    pattern: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        return F.coalesce(self.of.column().rlike(self.pattern), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        return pc.fill_null(pc.match_substring_regex(self.of.arrow(rows), self.pattern), False)


@dataclass(frozen=True)
class BytesContain(Expression):
    """Whether bytes contain the bytes of an ASCII text; False for null."""

    of: Expression
    text: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        return F.coalesce(F.contains(self.of.column(), F.lit(self.text).cast("binary")), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        found = self.of.arrow(rows).to_pylist()
        wanted = self.text.encode("ascii")
        return pa.array([value is not None and wanted in value for value in found], pa.bool_())


@dataclass(frozen=True)
class Missing(Expression):
    """Whether a value is null."""

    of: Expression

    def column(self) -> Column:
        return self.of.column().isNull()

    def arrow(self, rows: Rows) -> pa.Array:
        return pc.is_null(self.of.arrow(rows))


@dataclass(frozen=True)
class Not(Expression):
    """The opposite of a condition that is never null."""

    of: Expression

    def column(self) -> Column:
        return ~self.of.column()

    def arrow(self, rows: Rows) -> pa.Array:
        return pc.invert(self.of.arrow(rows))


@dataclass(frozen=True)
class Any_(Expression):
    """Whether any of several conditions holds."""

    of: Sequence[Expression]

    def column(self) -> Column:
        return reduce(lambda one, other: one | other, [condition.column() for condition in self.of])

    def arrow(self, rows: Rows) -> pa.Array:
        return reduce(pc.or_, [condition.arrow(rows) for condition in self.of])


@dataclass(frozen=True)
class All_(Expression):
    """Whether all of several conditions hold; later ones are only asked where the earlier hold."""

    of: Sequence[Expression]

    def column(self) -> Column:
        return reduce(lambda one, other: one & other, [condition.column() for condition in self.of])

    def arrow(self, rows: Rows) -> pa.Array:
        return reduce(pc.and_, [condition.arrow(rows) for condition in self.of])


def _given(keys: list[str | None]) -> list[str]:
    """Leave out keys that are null, as Spark's array_join does."""
    return [key for key in keys if key is not None]


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
