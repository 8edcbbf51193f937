"""Sinks of type ``table`` and ``jsonl``: their settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final, Literal

from pydantic import Field

from router.settings.names import TABLE_VARIABLES, NameTemplateError, escape_value, parse_name
from router.settings.sinks.contract import Fault, Filled, SinkSettings
from router.settings.values import Duration, Size, Texts, is_url

# Sinks of type ``table``: a Delta table or Parquet files, wide or one for each definition.

_TIMES: Final = ("day", "hour")
EVENT_PARTITIONS: Final = (*_TIMES, "message", "endpoint", "epoch", "protocol", "type", "source")
LETTER_PARTITIONS: Final = (*_TIMES, "reason", "endpoint", "epoch", "protocol")
"""Columns with few enough values to part a table by, for events and for dead letters."""
_OF_DELTA: Final = ("partition_by", "compact_after", "file_bytes", "keep_replaced")


class TableSink(SinkSettings):
    """A table on disk or in an object store, one append for each batch, exactly once."""

    opener = "router.sinks.tables.opening:open_tables"
    reader = "router.letters.stores:read_table"
    latest = "router.letters.reading:in_table"
    retention = "router.letters.retention:old_in_table"
    pairs = "router.sinks.pairs:open_table"
    tabular = True

    type: Literal["table"] = Field(description="`table`.")
    format: Literal["delta", "parquet"] = Field(
        "delta", description="Table format; parquet is one file for each batch."
    )
    path: str = Field(description="Folder of the table, or of all tables; for delta also a URL.", min_length=1)
    layout: Literal["wide", "definition"] = Field(
        "wide", description="One table for everything, or one for each definition, with the payload as typed columns."
    )
    table: str = Field(
        "{messagegroup}/{messageid}", description="Layout definition: place of a table below `path`.", min_length=1
    )
    partition_by: Texts = Field(
        (), description="Delta: columns to partition by: `day` or `hour` of `received`, or text columns of the table."
    )
    compact_after: int = Field(
        100, ge=0, description="Delta: batches after which small files of a table are merged; 0 is never."
    )
    file_bytes: Size = Field(64 * 2**20, ge=2**20, description="Delta: size that merged files should have.")
    keep_replaced: Duration = Field(
        timedelta(days=1),
        ge=timedelta(hours=1),
        description="Delta: how long replaced files and old entries of the log stay for readers.",
    )

    @property
    def folder(self) -> str:
        """The folder of the table, or of all tables."""
        return self.path

    @property
    def staged_at(self) -> str:
        """Executors write the files of Delta tables on a disk; those in an object store are written by the router."""
        return "" if self.format == "parquet" or is_url(self.path.removeprefix("file://")) else self.path

    @property
    def typed(self) -> bool:
        """The table of a definition has its payload as columns."""
        return self.layout == "definition"

    @property
    def unasked(self) -> str:
        """Tables of definitions know batches one by one."""
        return "each of its tables knows for itself" if self.layout == "definition" else ""

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield each contradiction in the table at *key*."""
        if self.format == "parquet":
            if is_url(self.path):
                yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"
            for name in _OF_DELTA:
                if name in self.model_fields_set:
                    yield f"{key}.{name}", "is for delta tables; leave it out, or set format: delta"
        known = LETTER_PARTITIONS if letters else EVENT_PARTITIONS
        for name in self.partition_by:
            if name not in known:
                yield f"{key}.partition_by", f"{name!r} is no column to partition by; they are {', '.join(known)}"
        if self.layout == "wide":
            if "table" in self.model_fields_set:
                yield f"{key}.table", "is for layout: definition; leave it out, or set that"
            return
        if letters:
            yield f"{key}.layout", "dead letters have no definition; use layout: wide"
        for part in self.table.split("/"):
            try:
                parse_name(part, TABLE_VARIABLES)
            except NameTemplateError as error:
                yield f"{key}.table", str(error)

    def pair_faults(self) -> Iterator[str]:
        """Yield what only tables of events can be."""
        if self.format != "delta" or self.layout != "wide" or self.partition_by:
            yield "cannot take pairs; let it be format: delta and layout: wide, without partition_by"

    def destination(self, filled: Filled, *, letters: bool) -> str:
        """Return the folder of the table."""
        if letters or self.layout == "wide":
            return self.path
        parts = [filled(parse_name(part, TABLE_VARIABLES), escape_value) for part in self.table.split("/")]
        return "/".join((self.path.rstrip("/"), *parts))


# Sinks of type ``jsonl``: files of JSON lines, or standard output.


class JsonLinesSink(SinkSettings):
    """JSON lines, one file for each batch in a folder, or standard output (at least once)."""

    opener = "router.sinks.jsonlines:open_lines"
    reader = "router.letters.stores:read_lines_of"
    latest = "router.letters.reading:in_files"
    retention = "router.letters.retention:old_lines"

    type: Literal["jsonl"] = Field(description="`jsonl`.")
    path: str = Field("-", description="Folder of the files; `-` is standard output.", min_length=1)

    @property
    def is_stdout(self) -> bool:
        """Whether lines go to standard output, where nothing can be read back."""
        return self.path == "-"

    @property
    def readable(self) -> bool:
        """Whether there is a folder."""
        return not self.is_stdout

    @property
    def folder(self) -> str:
        """The folder of the files."""
        return "" if self.is_stdout else self.path

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield what is wrong with the folder."""
        if is_url(self.path):
            yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"

    def destination(self, filled: Filled, *, letters: bool) -> str:
        """Return the folder."""
        return "standard output" if self.is_stdout else self.path
