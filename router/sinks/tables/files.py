"""Files that are there wholly or not at all, also after a crash of the machine."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import unquote

from bindings.locks import waiting_lock
from bindings.private import replaced, sync_path
from router.errors import SinkError
from router.settings.places import is_url

if TYPE_CHECKING:
    from deltalake import DeltaTable

_REWRITING: Final = ".xrouter-rewriting.lock"
_REMEDIES: Final = {
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EROFS: "mount the file system for writing or choose another path",
    errno.ENOSPC: "free disk space; the batch is written again after a restart",
    errno.EDQUOT: "raise the quota; the batch is written again after a restart",
    errno.ENOTDIR: "choose a path whose parents are folders",
    errno.EEXIST: "choose a path that is a folder or does not exist",
    errno.EPIPE: "keep the reader of standard output running",
}


def write_atomically(target: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Make *target* with what *fill* writes: temporary file, fsync, rename, fsync of the folder.

    The temporary file is hidden and has one name for each target, so that a left-over is written over.

    Raises:
        OSError: the file system refuses; *target* is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target, target.with_name(f".{target.name}.tmp"), private=False) as file:
        fill(file)


def refused(sink: str, place: str, error: OSError) -> SinkError:
    """Translate an error of the file system."""
    reason = error.strerror or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "check the path and its file system")
    return SinkError(sink, f"cannot write {place}: {reason}", hint=remedy)


def local_folder(uri: str) -> Path | None:
    """Return the folder of a table on a disk; None for one in an object store."""
    local = uri.removeprefix("file://")
    return None if is_url(local) else Path(local)


def make_changes_durable(uri: str, table: DeltaTable, before: int) -> None:
    """Update *table* to its newest version, and bring all commits after the version *before* to the disk."""
    table.update_incremental()
    for version in range(before + 1, table.version() + 1):
        make_durable(uri, version)


def make_durable(uri: str, version: int) -> None:
    """Bring the files of one commit, and its log entry, to the disk; an object store does so by itself."""
    folder = local_folder(uri)
    if folder is None:
        return
    entry = folder / "_delta_log" / f"{version:020d}.json"
    # Lines end in a line feed and nothing else: texts of statistics hold other separators of Unicode as they are.
    actions = [json.loads(line) for line in entry.read_bytes().split(b"\n") if line]
    added = [folder / unquote(action["add"]["path"]) for action in actions if "add" in action]
    folders = {file.parent for file in added}
    for file in (*added, entry, *folders, folder, entry.parent):
        sync_path(file)


@contextmanager
def sole_rewriter(uri: str) -> Iterator[None]:
    """Hold the lock on replacing files of the table at *uri*, for this machine; wait while another process has it.

    delta-rs lets two that replaced the same files both commit, and the table then has their rows twice. Appends need
    not wait. In an object store nothing is held: there one router alone is to look after a table.
    """
    folder = local_folder(uri)
    if folder is None:
        yield
        return
    with waiting_lock(folder / "_delta_log" / _REWRITING):
        yield


def make_checkpoint_durable(uri: str, version: int) -> None:
    """Bring a checkpoint of a table's log to the disk, and what names it; an object store does so by itself."""
    folder = local_folder(uri)
    if folder is None:
        return
    log = folder / "_delta_log"
    for file in (*log.glob(f"{version:020d}.checkpoint*"), log / "_last_checkpoint", log):
        sync_path(file)
