"""From the settings of a table to the sink."""

from __future__ import annotations

from pathlib import Path

from catalog.model import Catalog
from router.settings.places import is_url
from router.settings.sinks.tables import TableSink
from router.sinks.contract import ArrowSink
from router.sinks.forms import DEAD_LETTER, WIDE
from router.sinks.tables.definition_tables import DefinitionTablesSink, TableAt
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.parquet import ParquetSink
from router.sinks.tables.parting import table_path
from router.sinks.tables.unwrapping import Framings
from router.sinks.tables.upkeep import Upkeep, UpkeepRules


def open_tables(name: str, settings: TableSink, kind: str, catalog: Catalog, framings: Framings | None) -> ArrowSink:
    """Make the table of events or dead letters, or the tables of definitions."""
    rules = UpkeepRules(settings.compact_after, settings.file_bytes, settings.keep_replaced)
    upkeep = Upkeep(name, rules) if settings.format == "delta" else None

    def table(path: str, *, grows: bool = False) -> TableAt:
        if settings.format == "parquet":
            return ParquetSink(name, Path(path))
        schema = WIDE if kind == "events" else DEAD_LETTER
        parts, events = settings.partition_by, kind == "events"
        return DeltaSink(name, path, schema, grows=grows, partition_by=parts, upkeep=upkeep, rejects=events)

    if settings.layout == "wide" or kind == "dead-letters":
        # How ambiguous records were decided for has a column only while such are decided for.
        return table(settings.path, grows=kind == "events")
    return DefinitionTablesSink(
        name,
        settings.path,
        settings.table,
        catalog,
        lambda place: table(table_path(settings.path, place, url=is_url(settings.path)), grows=True),
        framings,
        settings.partition_by if settings.format == "delta" else None,
    )
