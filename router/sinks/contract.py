"""What a sink for whole batches promises: tables, files, and message targets.

A batch arrives as one Arrow table on the driver, under a commit: the sink's *app* (which must be new for every
checkpoint generation, and differ between what a sink gets as events and as dead letters) and the batch's *version*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Commit:
    """The identity of one batch at one sink: repeating it must change nothing. ``version`` grows with every batch.

    A batch may be written in parts, each with an app of its own, and a part in parts again. ``within`` are the apps of
    what it is a part of, the next larger first: a sink that has the version under one of these has the part as well.
    """

    app: str
    version: int
    within: tuple[str, ...] = ()

    @property
    def apps(self) -> tuple[str, ...]:
        """The apps under which a sink may have it: its own, and those it is a part of."""
        return (self.app, *self.within)

    @property
    def whole(self) -> str:
        """The app of the whole batch."""
        return self.apps[-1]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that a sink will never take, by its position; ``endpoint`` and ``message`` are those of the row."""

    position: str
    reason: str
    endpoint: str
    message: str


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did: ``rows`` written now, ``repeated`` when the batch had been written before and was left out.

    ``refused`` are the rows that the destination will never take. They are settled as far as the sink goes; whoever
    called makes dead letters of them.
    """

    rows: int
    repeated: bool = False
    refused: tuple[Rejected, ...] = ()


class ArrowSink(Protocol):
    """A destination for whole batches."""

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once.

        When it returns, the batch is there and stays through a crash of the process. When the process dies inside, the
        batch is there wholly or not at all, and the next call with the same commit settles it. Order of rows is
        kept inside the batch. An empty batch writes nothing. Not for concurrent use. A message target cannot take
        a batch as one: it has taken some when the process dies or the call fails, and may get them again.

        Raises:
            SinkError: the destination cannot take it now; nothing of the batch is visible.
        """
        ...

    def lacking(self, commit: Commit, share: Iterable[Rejected]) -> Iterator[Rejected]:
        """Yield those rows of its *share* of a batch that the sink lacks, as far as it can tell.

        A row that it has for certain is left out, and no other; one that it refused comes with its own reason.
        """
        return iter(share)

    def already(self, commit: Commit) -> bool:
        """Tell whether the batch had been written before; never True for a sink that cannot know (standard output).

        Raises:
            SinkError: the destination cannot be read.
        """
        ...
