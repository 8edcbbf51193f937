"""The contract of batch sinks: tables, files, and message targets.

A batch has a commit: the sink's *app* (which must be new for every checkpoint generation, and differ between a sink's
events and dead letters) and the batch's *version*. It comes either as one Arrow table on the driver, or *staged*:
workers write files that nobody reads yet, and the driver commits them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal, Protocol, cast

import pyarrow as pa

from catalog.model import Catalog
from router.settings.model import Settings
from router.settings.sinks.kinds import Sink
from router.sinks.tables.payloads import Framings

if TYPE_CHECKING:
    from router.schemaids.framing import WrittenFrame


@dataclass(frozen=True, slots=True)
class Commit:
    """The identity of a batch at a sink: repeating it must change nothing. ``version`` grows with every batch.

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
    """A row that a sink will never accept, by its position; ``endpoint`` and ``message`` are those of the row."""

    position: str
    reason: str
    endpoint: str
    message: str


@dataclass(frozen=True, slots=True)
class UnfitValues:
    """Values that are null in a definition's payloads: bodies that do not parse, or values that do not fit ``column``.

    ``values`` is their number; ``detail`` gives the number of rows and describes the first.
    """

    message: str
    column: str | None
    values: int
    detail: str


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write: ``rows`` the sink has now; ``repeated`` if it had the batch before and skipped it.

    A sink that takes a batch over several tries also counts in ``rows`` what earlier tries of this process settled: the
    caller compares ``rows`` with the size of the batch. ``before`` are the rows that were left out as repeated.

    ``refused`` are rows that the destination will never accept. The sink is done with them; the caller makes them dead
    letters. ``unfit`` is what became null in typed columns in this write.
    """

    rows: int
    repeated: bool = False
    refused: tuple[Rejected, ...] = ()
    before: int = 0
    unfit: tuple[UnfitValues, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a worker wrote for a commit to come, with all that is needed to take it over.

    ``path`` is relative to the folder of its table, and ``table`` where that is below the sink's path. ``size`` is in
    bytes, ``modified`` in milliseconds. ``partition`` has the value of each partition column as text. ``statistics`` is
    JSON as Delta defines it. ``schema`` is that of the rows with their partition columns, serialized by Arrow.
    ``unfit`` is what became null in its typed columns and those of other files beside it. With a ``fault``, number
    and text of an error of the file system, there is no such file.
    """

    path: str = ""
    rows: int = 0
    size: int = 0
    modified: int = 0
    partition: Mapping[str, str | None] = field(default_factory=dict)
    statistics: str = "{}"
    schema: bytes = b""
    table: str = ""
    unfit: tuple[UnfitValues, ...] = ()
    fault: tuple[int | None, str] | None = None


@dataclass(slots=True)
class Staged:
    """What the workers wrote for one commit of a sink.

    ``offered`` is set before the files are offered to a log: from then on only the log can say whether they are part of
    the table. With ``may_reject`` rows may still become dead letters: their outcomes know how records arrived.
    """

    files: tuple[StagedFile, ...] = ()
    offered: bool = False
    may_reject: bool = False

    @property
    def fault(self) -> OSError | None:
        """Why a worker could not write some file; None when all rows are in files."""
        return next((OSError(*file.fault) for file in self.files if file.fault is not None), None)


class Staging(Protocol):
    """Writes the rows of one commit in workers of Spark, to which it is sent."""

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write rows to files of their own, which are on the disk when it returns, and which nobody reads yet.

        *task* names the try of the task that asks, and no other ever: no two write to the same file. *catalog* has the
        definitions with a schema, and these. What the file system refuses is a file with a fault.

        Raises:
            Exception: the rows cannot be written anywhere.
        """
        ...

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files that were never offered to a log, as far as that is possible now."""
        ...


class ArrowSink(Protocol):
    """A destination for whole batches.

    With ``may_reject`` it found rows that it will never take, and could not name them: outcomes of the next attempt are
    to be such that rows may become dead letters.
    """

    may_reject: bool = False

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

    def begin_with(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Have the bodies of these definitions begin with frames; only of a sink whose settings say ``framed``."""
        raise TypeError(f"{type(self).__name__} has no bodies that begin with frames")

    def staging(self, commit: Commit) -> Staging | None:
        """Return what writes a batch in the workers, to be handed to :meth:`take`; None where it comes as a table.

        Touches neither disk nor network.
        """
        return None

    def take(self, staged: Staged, commit: Commit) -> WriteResult:
        """Write a batch once, of the files that workers staged for it: the promises and errors of :meth:`write`.

        A sink that has the batch already leaves the files as they are; they are no part of it.
        """
        raise TypeError(f"{type(self).__name__} takes nothing that was staged")

    def lacking(self, commit: Commit, share: Iterable[Rejected]) -> Iterator[Rejected]:
        """Yield those rows of its *share* of a batch that the sink lacks, as far as it knows.

        It leaves out only rows that it has for certain; a row that it refused comes with its own reason.
        """
        return iter(share)

    def already(self, commit: Commit) -> bool:
        """Return whether the batch was written before; never True for a sink that cannot know (standard output).

        Raises:
            SinkError: the destination cannot be read.
        """
        ...


# From the settings of a sink to the sink.

Kind = Literal["events", "dead-letters"]


def open_sink(
    name: str, settings: Sink, kind: Kind, catalog: Catalog | None = None, framings: Framings | None = None
) -> ArrowSink:
    """Make the sink called *name* for events or dead letters. Touches neither disk nor network.

    *catalog* is for sinks that name an endpoint of it, *framings* of the sources for tables with typed payloads.

    Raises:
        SinkError: the endpoint is not in the catalog, or cannot be sent to as the settings say.
    """
    return cast(ArrowSink, resolve_name(settings.opener)(name, settings, kind, catalog or Catalog(), framings))


def check_endpoints(settings: Settings, catalog: Catalog) -> None:
    """Make sure that every sink which names an endpoint can send to it, as far as the catalog tells.

    Raises:
        SinkError: one cannot; names sink and endpoint.
    """
    for name, sink in settings.sinks.items():
        if sink.remote is not None and sink.remote.endpoint is not None:
            open_sink(name, sink, "events", catalog)
