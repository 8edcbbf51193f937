"""Instants, and instants as text, for whole columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from catalog.values import YEAR_10000

_MARK: Final = 10
"""Where Arrow puts a blank between day and time, and RFC 3339 a ``T``."""


def rfc3339(stamps: pa.TimestampArray) -> pa.StringArray:
    """Return instants, in UTC and without a zone, as RFC 3339 text to their unit; null for a null.

    They must be of the years 1 to 9999. This takes a tenth of the time of ``strftime``.
    """
    texts = pc.binary_replace_slice(stamps.cast(pa.string()).cast(pa.binary()), _MARK, _MARK + 1, b"T")
    return pc.binary_join_element_wise(texts.cast(pa.string()), "Z", "")


def instants(milliseconds: pa.Int64Array) -> pa.TimestampArray:
    """Return timestamps of Kafka as instants in UTC, without a zone; null for what is none of the calendar.

    A negative timestamp says that the record has none. Neither texts nor tables have years past 9999.
    """
    dated = pc.and_(pc.greater_equal(milliseconds, 0), pc.less(milliseconds, YEAR_10000))
    return pc.if_else(dated, milliseconds, pa.scalar(None, pa.int64())).cast(pa.timestamp("ms"))
