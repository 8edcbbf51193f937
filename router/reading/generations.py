"""Checkpoint generations: a streaming query's checkpoint, and what happens when its set of topics changes.

Spark starts an added topic at its earliest record whatever the settings say, and forgets or fails on a removed
one. So a changed set of topics starts a new generation, with explicit offsets for every partition from a ledger
that outlives topics (:mod:`router.reading.positions`). A batch that the old generation had begun is finished first, as
it was. A generation's description holds where it begins, so that one that never commits a batch hands that on to the
next.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalog.parsing.regular import read_regular
from router.reading.positions import EARLIEST, Offsets
from router.state.durable import damaged, missing, numbers_in, read_object, write_durably
from router.state.state import State

_DESCRIPTION: Final = "generation.json"


@dataclass(frozen=True, slots=True)
class Generation:
    """One checkpoint. ``id`` identifies its commits at tables; ``topics`` are what its query subscribes to.

    ``starting`` are the positions that it begins at, as JSON; see :mod:`router.reading.positions` for what is not
    named.
    """

    path: Path
    id: str
    topics: tuple[str, ...]
    starting: str = ""

    @property
    def number(self) -> int:
        """Which generation of its query it is, from 1."""
        return int(self.path.name)

    @property
    def pending(self) -> int | None:
        """The batch that was begun and not committed; None when there is none."""
        begun, committed = _latest(self.path / "offsets"), _latest(self.path / "commits")
        return begun if begun is not None and begun != committed else None

    def committed(self, batch: int) -> bool:
        """Whether Spark has noted that batch as done."""
        return (self.path / "commits" / str(batch)).exists()

    @property
    def begun(self) -> bool:
        """Whether Spark has fixed where the query begins; after that it looks at no other start."""
        return (self.path / "sources" / "0" / "0").exists()

    def first(self) -> Offsets:
        """Where this generation begins: as Spark noted it at its first look, else where it was made to begin."""
        text = ""
        if self.begun:
            text = read_regular(self.path / "sources" / "0" / "0").decode("utf-8", "replace")
        line = next((line for line in reversed(text.split("\n")) if line.startswith("{")), self.starting or "{}")
        offsets: Offsets = json.loads(line)
        return offsets

    def reached(self) -> dict[str, Any] | None:
        """The offset of the only source up to which batches are committed; None before the first."""
        committed = _latest(self.path / "commits")
        return None if committed is None else self.ends(committed)

    def ends(self, batch: int) -> dict[str, Any]:
        """Return the offset of the only source that a batch ends at, as Spark noted it; empty when that says none.

        Raises:
            FileNotFoundError: there is no such note.
        """
        lines = read_regular(self.path / "offsets" / str(batch)).decode("utf-8").split("\n")
        offset: Any = json.loads(lines[2]) if len(lines) > 2 and lines[2] != "-" else {}
        return offset if isinstance(offset, dict) else {}

    def positions(self) -> Offsets:
        """Where each of its topics is to be read on: behind what it committed, else where it began."""
        begun: Offsets = {topic: {} for topic in self.topics} | self.first()
        reached: Offsets | None = self.reached()
        if reached is None:
            return begun
        # A partition that Spark read at first and no more is gone; another one of its name begins anew.
        kept = {topic: dict.fromkeys(numbers, EARLIEST) for topic, numbers in begun.items()} if self.begun else begun
        return {topic: {**kept.get(topic, {}), **reached.get(topic, {})} for topic in {**kept, **reached}}


def current(state: State, query: str) -> Generation | None:
    """Return the newest generation of a query; None before its first start.

    A folder without a description is what a crash left before its generation existed, unless Spark wrote there.

    Raises:
        StateError: a description is damaged, or gone from a checkpoint that Spark wrote.
    """
    folder = state.checkpoints / query
    for number in reversed(numbers_in(folder)):
        description = folder / str(number) / _DESCRIPTION
        form = read_object(description)
        if form is not None:
            return _generation(description, form)
        if any((folder / str(number) / name).exists() for name in ("metadata", "offsets", "commits")):
            raise missing(description, "Spark's checkpoint is beside it")
    return None


def _generation(description: Path, form: Mapping[str, Any]) -> Generation:
    try:
        id, topics, starting = form["id"], form["topics"], form.get("starting", "")
        if not (isinstance(id, str) and isinstance(topics, list) and isinstance(starting, str)):
            raise TypeError("a member is of another type")
        json.loads(starting or "{}")
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(description, f"it describes no generation ({error!r})") from error
    return Generation(description.parent, id, tuple(map(str, topics)), starting)


def begin(state: State, query: str, topics: Sequence[str], starting: str = "") -> Generation:
    """Start a new generation after the current one, if there is any.

    It exists, durably, once its description is written; a crash before leaves the old one current.
    """
    folder = state.checkpoints / query
    path = folder / str(max(numbers_in(folder), default=0) + 1)
    generation = Generation(path, uuid.uuid4().hex, tuple(topics), starting)
    state.unpin_all(query)
    description = {"id": generation.id, "topics": list(generation.topics), "starting": starting}
    write_durably(path / _DESCRIPTION, json.dumps(description).encode())
    state.inventory.note_generation(query, generation.number, generation.id)
    return generation


def _latest(folder: Path) -> int | None:
    return max(numbers_in(folder), default=None)
