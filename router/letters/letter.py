"""One dead letter, read back from whatever sink holds it (JUDGING.md#what-comes-out)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from catalog.record import Record
from router.state.instants import instant

_LIST: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that became no event, whole, with what was said about it when it was written.

    ``id`` is the same for every retry of the batch that made it. ``nearest`` holds objects
    ``{"message", "mismatches": [{"property", "expected", "found"}]}``. ``native`` is the record's own JSON form
    without its body, ``body`` its bytes (None for no body). ``received`` is the record's arrival, ``failed`` when the
    letter was written; None where a sink could not hold the instant. ``attempts`` counts those before the letter was
    written; replays are counted in the ledger. ``sink`` is the sink it was read from, and the only member that
    differs between sinks.
    """

    id: str
    reason: str
    detail: str
    nearest: tuple[Mapping[str, Any], ...]
    endpoint: str | None
    protocol: str
    native: Mapping[str, Any]
    body: bytes | None
    epoch: str
    position: str
    received: datetime | None
    failed: datetime | None
    attempts: int
    sink: str = ""

    def record(self) -> Record:
        """Return the native record that the letter holds, with the arrival and position it had."""
        time = None if self.received is None else instant(self.received)
        return Record(self.protocol, self.native, self.body, self.endpoint, time, self.position)


def parse_native(text: str | None) -> dict[str, Any]:
    """Read the native record of a letter.

    Raises:
        ValueError: the text is no JSON object.
    """
    try:
        native = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise ValueError(f"native is no JSON: {error}") from error
    if not isinstance(native, dict):
        raise ValueError("native is no JSON object")
    return native


def parse_nearest(text: str | None) -> tuple[dict[str, Any], ...]:
    """Read the list of nearest definitions; of one that a header's cap cut off, as many as are whole."""
    entries: list[dict[str, Any]] = []
    rest = (text or "").strip().removeprefix("[")
    while rest and not rest.startswith("]"):
        try:
            entry, end = _LIST.raw_decode(rest)
        except (ValueError, RecursionError):
            break  # Cut off here: headers of Kafka are capped, the outcome itself is not.
        if isinstance(entry, dict):
            entries.append(entry)
        rest = rest[end:].lstrip().removeprefix(",").lstrip()
    return tuple(entries)
