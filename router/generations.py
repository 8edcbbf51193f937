"""Checkpoint generations: a streaming query's checkpoint, and what happens when its set of topics changes.

Spark starts an added topic at its earliest record whatever the settings say, and forgets or fails on a removed
one. So a changed set of topics starts a new generation, with explicit offsets for every partition from a ledger
that outlives topics. A batch that the old generation had begun is finished first, as it was.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.state import State, write_durably

_DESCRIPTION: Final = "generation.json"
EARLIEST: Final = -2
LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class Generation:
    """One checkpoint. ``id`` identifies its commits at tables; ``topics`` are what its query subscribes to."""

    path: Path
    id: str
    topics: tuple[str, ...]
    starting: str = ""

    @property
    def pending(self) -> int | None:
        """The batch that was begun and not committed; None when there is none."""
        begun, committed = _latest(self.path / "offsets"), _latest(self.path / "commits")
        return begun if begun is not None and begun != committed else None

    def committed(self, batch: int) -> bool:
        """Whether Spark has noted that batch as done."""
        return (self.path / "commits" / str(batch)).exists()

    def offsets(self) -> dict[str, dict[str, int]]:
        """The offsets up to which this generation is committed, by topic and partition."""
        committed = _latest(self.path / "commits")
        if committed is None:
            return {}
        lines = (self.path / "offsets" / str(committed)).read_text().splitlines()
        found: dict[str, dict[str, int]] = json.loads(lines[2]) if len(lines) > 2 and lines[2] != "-" else {}
        return found


def current(state: State, query: str) -> Generation | None:
    """Return the newest generation of a query; None before its first start."""
    folder = state.checkpoints / query
    numbers = sorted(int(entry.name) for entry in folder.glob("*") if entry.name.isdigit()) if folder.exists() else []
    for number in reversed(numbers):
        description = folder / str(number) / _DESCRIPTION
        if description.exists():
            told: dict[str, Any] = json.loads(description.read_text())
            return Generation(folder / str(number), told["id"], tuple(told["topics"]), told.get("starting", ""))
    return None


def begin(state: State, query: str, topics: Sequence[str], starting: str = "") -> Generation:
    """Start a new generation after the current one, if there is any.

    It exists once its description is written; a crash before leaves the old one current.
    """
    folder = state.checkpoints / query
    numbers = [int(entry.name) for entry in folder.glob("*") if entry.name.isdigit()] if folder.exists() else []
    path = folder / str(max(numbers, default=0) + 1)
    made = Generation(path, uuid.uuid4().hex, tuple(topics), starting)
    state.unpin_all(query)
    told = {"id": made.id, "topics": list(made.topics), "starting": starting}
    write_durably(path / _DESCRIPTION, json.dumps(told).encode())
    return made


def starting_offsets(
    partitions: Mapping[str, Sequence[int]], kept: Mapping[str, Mapping[str, int]], starts: Mapping[str, str]
) -> str:
    """Return Spark's ``startingOffsets``: the ledger's where it has them, else each topic's ``start`` setting."""
    chosen: dict[str, dict[str, int]] = {}
    for topic, numbers in partitions.items():
        default = EARLIEST if starts.get(topic, "earliest") == "earliest" else LATEST
        known = kept.get(topic, {})
        # A partition added to a topic that was read before begins at its first record: none of it was skipped.
        fresh = EARLIEST if known else default
        chosen[topic] = {str(number): known.get(str(number), fresh) for number in numbers}
    return json.dumps(chosen, sort_keys=True)


def _latest(folder: Path) -> int | None:
    numbers = [int(entry.name) for entry in folder.glob("*") if entry.name.isdigit()] if folder.exists() else []
    return max(numbers, default=None)
