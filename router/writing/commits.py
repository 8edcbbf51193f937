"""Which batch is written, and under which name each sink keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.judging.kinds import Kind
from router.sinks.contract import Commit


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one query: ``generation`` makes its commits unique, ``failed`` is when its letters were made.

    ``part`` is the path of the part of it that is written (:mod:`router.batches.parts`), () the whole. ``came_by`` is
    the query that first read the records, and gives their letters ids; empty where it is this one.
    """

    kind: Kind
    query: str
    generation: str
    number: int
    failed: str
    part: tuple[int, ...] = ()
    came_by: str = ""

    @property
    def first_query(self) -> str:
        """The query that first read the records."""
        return self.came_by or self.query

    @property
    def label(self) -> str:
        """The part as text."""
        return ".".join(map(str, self.part))


def commit_of(name: str, batch: Batch, *, letters: bool = False) -> Commit:
    """Return the identity of a batch, or a part of one, at a sink; of its events or of its dead letters."""
    paths = (batch.part[:depth] for depth in range(len(batch.part), -1, -1))
    app, *larger = (commit_app(batch.generation, name, letters=letters, part=path) for path in paths)
    return Commit(app, batch.number, tuple(larger))


def commit_app(generation: str, sink: str, *, letters: bool = False, part: Sequence[int] = ()) -> str:
    """Return the name under which a sink commits batches of a generation, or that part of them; events or letters."""
    return f"{'.'.join((generation, *map(str, part)))}-{sink}{'-letters' if letters else ''}"
