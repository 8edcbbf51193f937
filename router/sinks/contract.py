"""The contract of batch sinks: tables, files, and message targets.

A batch has a commit: the sink's *app* (new for every checkpoint generation, and different for a sink's events and dead
letters) and the batch's *version*. It is passed as one Arrow table on the driver, or *staged*: workers write files that
are not visible yet, and the driver commits them by name.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

import pyarrow as pa

from catalog.model import Catalog
from router.errors import SinkError
from router.rendering.payloads import Framings
from router.settings.model import Settings
from router.settings.sinks.kinds import Sink

if TYPE_CHECKING:
    from router.schemaids.framing import WrittenFrame


@dataclass(frozen=True, slots=True)
class Commit:
    """The identity of a batch at a sink: repeating it must change nothing. ``version`` grows with every batch.

    A batch may be written in parts, each with its own app, and parts may be split again. ``within`` are the apps of the
    enclosing parts, innermost first: a sink that has the version for one of these has the part as well.
    """

    app: str
    version: int
    within: tuple[str, ...] = ()

    @property
    def apps(self) -> tuple[str, ...]:
        """The apps for which a sink may have it: its own, and those of enclosing parts."""
        return (self.app, *self.within)

    @property
    def whole(self) -> str:
        """The application id under which the whole batch would be committed."""
        return self.apps[-1]


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that a sink will never accept, with the row's position, endpoint and message definition."""

    position: str
    reason: str
    endpoint: str
    message: str


@dataclass(frozen=True, slots=True)
class UnfitValues:
    """Values replaced by null in payloads of a definition: invalid bodies, or values that do not fit ``column``.

    ``values`` is their number; ``detail`` gives the number of rows and describes the first.
    """

    message: str
    column: str | None
    values: int
    detail: str


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write: ``rows`` the sink has now; ``repeated`` if it had the batch before and skipped it.

    If a sink needs several attempts for a batch, ``rows`` includes results of earlier attempts in this process: the
    caller compares ``rows`` with the size of the batch. ``before`` is the number of rows skipped as repeated.

    ``refused`` are rows that the destination will never accept; the caller makes them dead letters. ``unfit`` are
    values replaced by null in this write.
    """

    rows: int
    repeated: bool = False
    refused: tuple[RejectedRow, ...] = ()
    before: int = 0
    unfit: tuple[UnfitValues, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a worker wrote for a future commit, with all that the commit needs.

    ``path`` is relative to the folder of its table, and ``table`` where that is below the sink's path. ``size`` is in
    bytes, ``modified`` in milliseconds. ``partition`` has the value of each partition column as text. ``statistics`` is
    JSON as Delta defines it. ``schema`` is that of the rows with their partition columns, serialized by Arrow.
    ``unfit`` are the values replaced by null in this file and the task's other files. If ``fault`` is set (number and
    text of an error of the file system), the file does not exist.
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
class StagedCommit:
    """The files that workers wrote for one commit of a sink.

    ``offered`` is set before the files are added to a log: from then on only the log shows whether they are part of the
    table. With ``may_reject``, rows may become dead letters: their outcomes include the original records.
    """

    files: tuple[StagedFile, ...] = ()
    offered: bool = False
    may_reject: bool = False

    @property
    def fault(self) -> OSError | None:
        """The error why a worker could not write a file; None if all rows are in files."""
        return next((OSError(*file.fault) for file in self.files if file.fault is not None), None)


class FileStager(Protocol):
    """Writes the rows of one commit to files in Spark's workers; it is serialized and sent to them."""

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write rows to new files, which are durable but not yet visible to readers when the method returns.

        *task* is unique for each attempt of a task, so no two attempts write the same file. *catalog* has the
        definitions that have a schema. An error of the file system is returned as a file with a fault.

        Raises:
            Exception: the rows cannot be written to any file.
        """
        ...

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files that were never added to a log, if possible."""
        ...


class ArrowSink(Protocol):
    """A destination for whole batches.

    ``may_reject`` is set when the sink found rows that it will never accept, but could not identify them: in the next
    attempt, outcomes must allow rows to become dead letters.
    """

    may_reject: bool = False

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once.

        The write is atomic and durable when the method returns; after a crash, the next call with the same commit
        completes it. The order of rows is preserved within the batch. An empty batch writes nothing. Not for concurrent
        use. Message targets are not atomic: after a crash or an error, some messages are delivered, maybe twice.

        Raises:
            SinkError: the destination does not accept the batch now; nothing of it is visible.
        """
        ...

    def set_frames(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Prefix the bodies of these definitions with frames; only for a sink with the setting ``framed``."""
        raise TypeError(f"{type(self).__name__} does not support frames")

    def make_stager(self, commit: Commit) -> FileStager | None:
        """Return the writer of a batch in workers, for :meth:`commit_staged`; None if the sink needs the batch as a
        table.

        Uses neither disk nor network.
        """
        return None

    def commit_staged(self, staged: StagedCommit, commit: Commit) -> WriteResult:
        """Commit a batch once from the files that workers staged; same guarantees and errors as :meth:`write`.

        A sink that has the batch already ignores the files.
        """
        raise TypeError(f"{type(self).__name__} does not support staged files")

    def iter_missing_rows(self, commit: Commit, share: Iterable[RejectedRow]) -> Iterator[RejectedRow]:
        """Yield the rows of *share*, its part of a batch, that the sink may not have.

        Only rows that it certainly has are omitted; a refused row is returned with its own reason.
        """
        return iter(share)

    def has_commit(self, commit: Commit) -> bool:
        """Return whether the batch was written before; never True for a sink that cannot know (standard output).

        Raises:
            SinkError: the destination cannot be read.
        """
        ...


# Opening sinks from their settings.

Kind = Literal["events", "dead-letters"]


def open_sink(
    name: str, settings: Sink, kind: Kind, catalog: Catalog | None = None, framings: Framings | None = None
) -> ArrowSink:
    """Create the sink called *name* for events or dead letters; uses neither disk nor network.

    *catalog* is for sinks that name an endpoint, *framings* (of the sources) for tables with typed payloads.

    Raises:
        SinkError: the endpoint is not in the catalog, or the sink cannot send to it with these settings.
    """
    return cast(ArrowSink, resolve_name(settings.opener)(name, settings, kind, catalog or Catalog(), framings))


def check_endpoints(settings: Settings, catalog: Catalog) -> None:
    """Raise if a sink cannot send to the endpoint that its settings name, according to the catalog.

    Raises:
        SinkError: names sink and endpoint.
    """
    for name, sink in settings.sinks.items():
        if sink.remote is not None and sink.remote.endpoint is not None:
            open_sink(name, sink, "events", catalog)


_REMEDIES: Final = {
    errno.EACCES: "give this user write permission there",
    errno.EPERM: "give this user write permission there",
    errno.EROFS: "mount the file system read-write, or choose another path",
    errno.ENOSPC: "free disk space; the batch is written again after a restart",
    errno.EDQUOT: "raise the quota; the batch is written again after a restart",
    errno.ENOTDIR: "choose a path whose parents are folders",
    errno.EEXIST: "choose a path that is a folder or does not exist",
    errno.EPIPE: "keep the reader of standard output running",
}


def to_sink_error(sink: str, place: str, error: OSError) -> SinkError:
    """Convert an error of the file system to a SinkError."""
    reason = error.strerror or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "check the path and its file system")
    return SinkError(sink, f"cannot write {place}: {reason}", hint=remedy)
