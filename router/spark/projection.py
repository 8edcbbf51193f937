"""Columns that the JVM keeps, so that the same ones can be selected from each batch.

To hand columns over takes about three calls of the JVM for each; to select those that it has takes one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Projection:
    """Columns as the JVM of the session at hand has them."""

    columns: Any

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Projection:
        """Hand columns over to the JVM; there is a session."""
        from pyspark.sql.classic.column import _to_java_column, _to_seq

        return cls(_to_seq(session_context(), columns, _to_java_column))

    def of_rows(self, rows: DataFrame) -> DataFrame:
        """Return these columns of some rows, as ``rows.select`` would."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        return Classic(rows._jdf.select(self.columns), rows.sparkSession)


def session_context() -> SparkContext:
    """Return the context of the session at hand, without asking the JVM."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None
    return context
