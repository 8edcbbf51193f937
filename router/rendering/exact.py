"""The exact reading of one row for tables and dead letters. Reading whole arrays gives the same for ordinary rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from bindings.kafka.codec import parts_of_row
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from router.matching.facts import single
from router.matching.inbox_facts import inbox_parts
from router.rendering.instants import INSTANT, moment

Source = Literal["kafka", "inbox", "letters"]
"""Where rows come from, which says how their raw columns are read (:mod:`router.judging.stages`)."""
COLUMNS: Final = ("id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema")
TIME_TEXT: Final = "time_text"
"""``time`` as the event wrote it, which cannot be restored from an instant."""
TYPED: Final = "typed"
"""The names of the attributes that are no texts (:func:`bindings.events.typed_names`), which columns do not tell."""
TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
EVENT: Final = pa.struct(
    [
        *((name, pa.string()) for name in COLUMNS),
        ("time", INSTANT),
        (TIME_TEXT, pa.string()),
        ("extensions", TEXT_MAP),
        ("native", pa.string()),
    ]
)
"""The columns of a routed event. ``extensions`` are its other attributes; ``native`` is the record without its body."""


def render_event(parts: list[Part], binding: Binding, attributes: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the columns of one routed event; ``attributes`` are given where the record's own do not serve."""
    named = attributes_of(parts, binding, attributes)
    row: dict[str, Any] = {name: named.pop(name, None) for name in COLUMNS}
    row[TIME_TEXT] = named.pop("time", None)
    row["time"] = moment(row[TIME_TEXT])
    row["extensions"] = list(named.items())
    row["native"] = native_json(parts, binding)
    return row


def attributes_of(parts: list[Part], binding: Binding, given: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return the attributes of an event: those given as headers of Kafka's binary mode, else the record's own."""
    if given is None:
        return dict(binding.envelope(parts, None, lambda: False).attributes)
    return {attribute_of(entry["key"]): entry["value"].decode() for entry in given}


def attribute_of(header: str) -> str:
    """Return the attribute that a Kafka header of binary mode carries."""
    return "datacontenttype" if header == "content-type" else header.removeprefix("ce_")


def native_json(parts: list[Part], binding: Binding) -> str:
    """Return the native record as JSON, without the body."""
    return msgspec.json.encode(binding.native(parts)).decode("utf-8")


def parts_of_raw(raw: Mapping[str, Any], kind: Source, place: int | None) -> tuple[list[Part], Binding]:
    """Return the parts of a raw row; for an event out of a batch, those of that event alone."""
    if kind == "kafka":
        binding, parts = BINDINGS["KAFKA"], parts_of_row(raw)
    else:
        binding = binding_of(raw["protocol"] or "") or BINDINGS["HTTP"]
        parts = inbox_parts(raw["properties"])
    return (parts if place is None else single(parts, binding.rule.content_type)), binding
