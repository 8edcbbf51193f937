"""Headers of Kafka rows as columns of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def first_bytes(entries: str, name: str) -> Column:
    """Return the value of the first entry of that name; null when there is none, or it has no value."""
    from pyspark.sql import functions as F

    position = F.array_position(F.col(f"{entries}.key"), name).cast("int")
    return F.get(F.col(f"{entries}.value"), position - 1)


def first_text(entries: str, name: str) -> Column:
    """Return the same as text; null for what is no UTF-8."""
    from pyspark.sql import functions as F

    return F.try_validate_utf8(first_bytes(entries, name).cast("string"))
