"""From the settings of a table or file sink to the sink."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from router.settings.model import JsonLinesSink as JsonLinesSettings
from router.settings.model import TableSink as TableSettings
from router.sinks.contract import ArrowSink
from router.sinks.delta import DeltaSink
from router.sinks.forms import DEAD_LETTER, WIDE, dead_letter_to_json_line, wide_to_json_line
from router.sinks.jsonlines import JsonLinesSink, StandardOutputSink
from router.sinks.parquet import ParquetSink

Kind = Literal["events", "dead-letters"]


def open_sink(name: str, settings: TableSettings | JsonLinesSettings, kind: Kind) -> ArrowSink:
    """Make the sink called *name* for events or dead letters. Touches neither disk nor network."""
    if isinstance(settings, JsonLinesSettings):
        form = wide_to_json_line if kind == "events" else dead_letter_to_json_line
        if settings.path == "-":
            return StandardOutputSink(name, form)
        return JsonLinesSink(name, Path(settings.path), form)
    if settings.format == "parquet":
        return ParquetSink(name, Path(settings.path))
    return DeltaSink(name, settings.path, WIDE if kind == "events" else DEAD_LETTER)
