"""Conditions over rows: selectors whose value is a boolean, never null, and equal in Spark and in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.selectors import SEPARATOR, Expression, FirstBytes, Rows, Text, utf8

if TYPE_CHECKING:
    from pyspark.sql import Column


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
        return rows.per_row(lambda _, values: all(v is None or utf8(v) is not None for v in values), pa.bool_())


@dataclass(frozen=True)
class KeysRepeat(Expression):
    """Whether any key occurs more than once."""

    entries: str

    def column(self) -> Column:
        from pyspark.sql import functions as F

        keys = F.col(f"{self.entries}.key")
        return F.coalesce(F.size(F.array_distinct(keys)) < F.size(keys), F.lit(False))

    def arrow(self, rows: Rows) -> pa.Array:
        return rows.per_row(lambda keys, _: len(set(keys)) < len(keys), pa.bool_())


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
        return pa.array([value is not None and utf8(value) is None for value in first.to_pylist()], pa.bool_())


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
