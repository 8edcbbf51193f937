"""Offsets of the inbox source: small JSON, one position (segment and row) for each partition.

``{"version": 1, "inbox": UUID, "partitions": {"0": {"segment": 3, "row": 120}, ...}}``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bindings.inbox.errors import InboxFormatError

VERSION: Final = 1


class InboxPosition(NamedTuple):
    """A position between two rows: before row ``row`` of ``segment``. Compares in reading order."""

    segment: int
    row: int


InboxPositions = Mapping[int, InboxPosition]


def offset_json(inbox: str, positions: InboxPositions) -> dict[str, Any]:
    """Return the offset in the form that a checkpoint keeps."""
    partitions = {str(partition): position._asdict() for partition, position in sorted(positions.items())}
    return {"version": VERSION, "inbox": inbox, "partitions": partitions}


def is_inbox_offset(offset: Mapping[str, Any]) -> bool:
    """Tell whether an offset is one of an inbox, and not of topics, one of which may be called as it likes."""
    return isinstance(offset.get("inbox"), str)


def positions_of(offset: Mapping[str, Any], inbox: str) -> dict[int, InboxPosition]:
    """Read an offset of the inbox with that identity.

    Raises:
        InboxFormatError: the offset is of another version, of another inbox, or not an offset at all.
    """
    if offset.get("version") != VERSION:
        raise InboxFormatError(
            f"the checkpoint has an inbox offset of version {offset.get('version')}, this version reads {VERSION}; "
            f"use the version that wrote it"
        )
    if offset.get("inbox") != inbox:
        raise InboxFormatError(
            f"the checkpoint belongs to inbox {offset.get('inbox')}, but this one is {inbox}; restore the inbox that "
            f"belongs to the state directory, or start a new checkpoint generation"
        )
    try:
        return {
            int(partition): InboxPosition(int(position["segment"]), int(position["row"]))
            for partition, position in offset["partitions"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InboxFormatError(f"the checkpoint's inbox offset cannot be read: {error!r}") from error


def shares(available: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide *limit* rows among partitions that have so many available: equally, and what one leaves goes to others."""
    taken: dict[int, int] = {}
    left = limit
    for index, partition in enumerate(sorted(available, key=lambda each: (available[each], each))):
        taken[partition] = min(available[partition], left // (len(available) - index))
        left -= taken[partition]
    return taken
