"""Messages of an inbox topic as rows of the inbox, where no Spark reads them; the twin of ``store.inbox_columns``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from bindings.inbox.view import READ_SCHEMA
from bindings.kafka.store import ENDPOINT, PART, PROTOCOL, RECEIVED
from catalog.values import YEAR_10000, whole_number

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS: Final = 2


def inbox_rows_of(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages, as rows of Kafka's source, as rows of the inbox with their positions.

    A message that no gateway wrote becomes a row with less in it, never an error.
    """
    return pa.RecordBatch.from_pylist([_row(each) for each in messages.to_pylist()], READ_SCHEMA)


def _row(message: Mapping[str, Any]) -> dict[str, Any]:
    headers: Sequence[Mapping[str, Any]] = message["headers"] or ()
    received = whole_number(_text(headers, RECEIVED) or "")
    is_time = received is not None and received < YEAR_10000 * 1000
    steps = [(each["key"].split(":", _STEPS), each["value"]) for each in headers if each["key"].startswith(PART)]
    return {
        "endpoint": _text(headers, ENDPOINT),
        "protocol": _text(headers, PROTOCOL) or "",
        "received": _EPOCH + timedelta(microseconds=received) if is_time and received is not None else None,
        "properties": [
            {"key": key[_STEPS], "value": value, "type": key[1] or None} for key, value in steps if len(key) > _STEPS
        ],
        "body": message["value"],
        "position": f"{message['topic']}-{message['partition']}-{message['offset']}",
    }


def _text(headers: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """Return the first header of that name as text; None for what is no UTF-8."""
    value = next((each["value"] for each in headers if each["key"] == name), None)
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None
