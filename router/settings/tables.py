"""What must hold inside the settings of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from router.settings.model import TableSink
from router.settings.names import TABLE_VARIABLES, NameTemplateError, parse_name
from router.settings.places import is_url

_TIMES: Final = ("day", "hour")
EVENT_PARTITIONS: Final = (*_TIMES, "message", "endpoint", "epoch", "protocol", "type", "source")
LETTER_PARTITIONS: Final = (*_TIMES, "reason", "endpoint", "epoch", "protocol")
"""Columns with few enough values to part a table by, for events and for dead letters."""
_OF_DELTA: Final = ("partition_by", "compact_after", "file_bytes", "keep_replaced")


def table_faults(key: str, sink: TableSink, *, letters: bool) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in the table at *key*; *letters*: it takes dead letters."""
    if sink.format == "parquet":
        if is_url(sink.path):
            yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"
        for name in _OF_DELTA:
            if name in sink.model_fields_set:
                yield f"{key}.{name}", "is for delta tables; leave it out, or set format: delta"
    known = LETTER_PARTITIONS if letters else EVENT_PARTITIONS
    for name in sink.partition_by:
        if name not in known:
            yield f"{key}.partition_by", f"{name!r} is no column to partition by; they are {', '.join(known)}"
    if sink.layout == "wide":
        if "table" in sink.model_fields_set:
            yield f"{key}.table", "is for layout: definition; leave it out, or set that"
        return
    if letters:
        yield f"{key}.layout", "dead letters have no definition; use layout: wide"
    for part in sink.table.split("/"):
        try:
            parse_name(part, TABLE_VARIABLES)
        except NameTemplateError as error:
            yield f"{key}.table", str(error)
