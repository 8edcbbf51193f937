"""The columns and lines that leave the router (JUDGING.md#what-comes-out): wide table, dead letters, JSON lines."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from bindings.events import encode_event, members_of, with_types
from router.matching.correlation import RELATED
from router.matching.facts import SCHEMA_ID
from router.rendering.exact import TEXT_MAP, TIME_TEXT, TYPED
from router.rendering.instants import INSTANT


def _schema(texts: str, *others: tuple[str, pa.DataType]) -> dict[str, pa.DataType]:
    return {**dict.fromkeys(texts.split(), pa.string()), **dict(others)}


WIDE: Final = pa.schema(
    {
        **_schema("id source specversion type subject datacontenttype dataschema", ("time", INSTANT)),
        **_schema("", ("extensions", TEXT_MAP), ("data", pa.binary())),
        **_schema("message endpoint epoch position protocol", ("context", TEXT_MAP)),
        **_schema("native", ("received", INSTANT)),
    }.items()
)
"""One routed event. ``extensions`` are the attributes without a column; ``native`` the record's JSON without body.

For JSON lines the columns ``TIME_TEXT`` and ``TYPED`` stand beside them.
"""

DEAD_LETTER: Final = pa.schema(
    {
        **_schema("letter reason detail nearest endpoint protocol native", ("body", pa.binary())),
        **_schema("epoch position", ("received", INSTANT), ("failed", INSTANT), ("attempts", pa.int32())),
    }.items()
)
"""One dead letter. ``nearest`` is a JSON list, ``native`` the record's JSON without body, ``body`` its bytes."""

AMBIGUOUS: Final = "ambiguous"
"""An optional column beside WIDE: how ``match.ambiguous`` decided for an event, null where nothing was to decide."""
# The columns RELATED and SCHEMA_ID may stand beside WIDE as well, where the catalog has relations or bodies have ids.
DECIDED: Final = WIDE.append(pa.field(AMBIGUOUS, pa.string()))
"""What tables get while such is decided for; they have the column from then on."""
RARE: Final = (AMBIGUOUS, *RELATED, SCHEMA_ID)
"""What of the lineage only some events have, each an optional column."""
ATTRIBUTES: Final = ("id", "source", "type", "subject", "datacontenttype", "dataschema")
"""Attributes that are a column and, where they are there, a member of a line, in this order."""
_LINE_BREAKS: Final = (b"\n", b"\r")

JsonForm = Callable[[Mapping[str, Any]], bytes]


def wide_to_json_line(row: Mapping[str, Any]) -> bytes:
    """Write one row of :data:`WIDE` as a line of JSON, without the line break at the end.

    ``data`` of a JSON content type goes in as the bytes it is, unless it holds line breaks: then as ``data_base64``,
    since a line must stay a line and the bytes what they were. Other data is text if it is UTF-8, else base64.
    """
    attributes = {"specversion": row.get("specversion") or "1.0"}
    attributes.update((name, row[name]) for name in ATTRIBUTES if row.get(name) is not None)
    time = row.get(TIME_TEXT) or instant_text(row.get("time"))
    if time is not None:
        attributes["time"] = time
    attributes.update(pairs_of(row.get("extensions")))
    attributes = with_types(attributes, row.get(TYPED))
    lineage = {name: row.get(name) for name in ("message", "endpoint")}
    return msgspec.json.encode(
        {
            "cloudevent": msgspec.Raw(_event_text(attributes, row.get("data"))),
            **lineage,
            "context": pairs_of(row.get("context")),
            "epoch": row.get("epoch"),
            "position": row.get("position"),
            "received": instant_text(row.get("received")),
            **{name: row[name] for name in RARE if row.get(name) is not None},
        }
    )


def dead_letter_to_json_line(row: Mapping[str, Any]) -> bytes:
    """Write one row of :data:`DEAD_LETTER` as a line of JSON, without the line break at the end.

    ``body`` is base64 text, null for none; ``nearest`` and ``native`` are embedded as JSON.
    """
    members: dict[str, Any] = {}
    for name in DEAD_LETTER.names:
        value = row.get(name)
        if name in ("nearest", "native") and value is not None:
            members[name] = _embedded(value)
        elif name in ("received", "failed"):
            members[name] = instant_text(value)
        elif name == "body" and value is not None:
            members[name] = base64.b64encode(value).decode("ascii")
        else:
            members[name] = value
    return msgspec.json.encode(members)


def instant_text(value: datetime | None) -> str | None:
    """Write an instant as RFC 3339 in UTC, with as few digits as hold it; None stays None."""
    if value is None:
        return None
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{text.rstrip('0').rstrip('.')}Z" if text.endswith("0") else f"{text}Z"


def pairs_of(value: Any) -> dict[str, str]:
    """Return a map column's value as a dict, whether Arrow gave it as pairs or as a dict; None is empty."""
    return dict(value or ())


def _event_text(attributes: Mapping[str, str], data: bytes | None) -> bytes:
    if data is not None and any(mark in data for mark in _LINE_BREAKS):
        text = encode_event(attributes, data)
        if not any(mark in text for mark in _LINE_BREAKS):
            return text
        encoded = base64.b64encode(data).decode("ascii")
        return msgspec.json.encode({**members_of(attributes), "data_base64": encoded})
    return encode_event(attributes, data)


def _embedded(text: str) -> Any:
    """JSON text goes in as JSON; a text that is none, or would break the line, as a string."""
    if any(mark in text for mark in "\n\r"):
        return text
    try:
        # As Raw only the syntax is checked: a number too large for a float is still JSON.
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return text
    return msgspec.Raw(text.encode("utf-8"))
