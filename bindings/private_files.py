"""Files and folders with access for their owner only, durable replacement of files, and locks.

The umask decides who may read the files of local sinks. State contains payloads and references to secrets.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Literal

from catalog.parsing.regular import irregular_kind_of, open_regular

Readers = Literal["owner", "group", "everyone"]
_DENIED_RIGHTS: Final[Mapping[Readers, int]] = {"owner": 0o077, "group": 0o027, "everyone": 0o022}
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_STATUS: Final = Path("/proc/self/status")


def set_umask_for(readers: Readers) -> None:
    """Set the umask so that only *readers* can read new files; a stricter umask is kept."""
    os.umask(os.umask(0o077) | _DENIED_RIGHTS[readers])


def current_umask() -> int:
    """Return the umask of this process."""
    with suppress(OSError, ValueError):
        return int(_STATUS.read_bytes().partition(b"\nUmask:")[2].partition(b"\n")[0], 8)
    mask = os.umask(0o077)  # Not Linux: for a moment, other threads deny more.
    os.umask(mask)
    return mask


@contextmanager
def use_umask(mask: int) -> Iterator[None]:
    """Use that umask within the block; only for single-threaded processes."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def create_private_folder(path: Path) -> None:
    """Create *path* and missing parents, durably, all with mode 0700; existing folders are unchanged."""
    missing = [path, *path.parents]
    for each in reversed(missing[: next((n for n, one in enumerate(missing) if one.is_dir()), len(missing))]):
        each.mkdir(FOLDER_MODE, exist_ok=True)
        # A file is only as safe as the entries that lead to it.
        sync_path(each.parent)


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder (files created, renamed or removed in it), to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_private_file(path: Path, mode: str) -> IO[Any]:
    """Open *path* as :func:`open` does; a new file gets mode 0600. Text is UTF-8."""
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=_open_private)


@contextmanager
def replace_file(path: Path, temporary: Path, *, private: bool = True, create: bool = True) -> Iterator[BinaryIO]:
    """Replace *path* atomically and durably by the bytes that the block writes.

    The block writes to *temporary*, in the same folder, which is removed if the block fails. Without *create*, a file
    that was removed meanwhile is not created again.

    Raises:
        FileNotFoundError: it was removed meanwhile, without *create*.
        OSError: the disk refuses; *path* is as it was.
    """
    try:
        with open(temporary, "wb", opener=_open_private if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not create:
            path.stat()
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def restrict_to_owner(root: Path) -> int:
    """Remove the rights of all but the owner from *root* and everything below it; return the number of changed entries.

    Links are skipped. An entry that vanishes meanwhile is not an error.

    Raises:
        OSError: an entry belongs to somebody else, or is neither file nor folder: whoever reads it would wait for ever.
    """
    # The root comes first: from then on nobody else gets to what is below.
    changed = int(_restrict_entry(root))
    for folder, folders, files in os.walk(root):
        changed += sum(_restrict_entry(Path(folder, name)) for name in (*folders, *files))
    return changed


def _open_private(path: str, flags: int) -> int:
    return open_regular(path, flags, FILE_MODE)


def _restrict_entry(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return False
        if not stat.S_ISDIR(mode) and (kind := irregular_kind_of(mode)):
            raise OSError(errno.EINVAL, f"it is {kind}", str(path))
        if not mode & 0o077:
            return False
        path.chmod(stat.S_IMODE(mode) & ~0o077)
    except FileNotFoundError:
        return False
    return True


# Locks between processes, each a file. The kernel frees the lock of a dead process, so that none is ever stale.


class LockInUse(Exception):
    """Another process holds the lock; the message is its process id, or ``unknown``."""


def take_lock(path: Path) -> IO[str]:
    """Lock the file *path* until it is closed, write our process id to it, and return it.

    Raises:
        OSError: the file cannot be used.
        LockInUse: another process holds the lock.
    """
    # A link would lead the lock to another folder, where another router may hold it.
    if path.is_symlink():
        raise OSError(errno.EINVAL, "it is a link and no regular file", str(path))
    file: IO[str] = open_private_file(path, "a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with file:
            file.seek(0)
            raise LockInUse(file.read().strip() or "unknown") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of :func:`take_lock` now."""
    try:
        with open(path, opener=open_regular) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno != errno.EINVAL  # what is no file is no lock either
    return False


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of *path* within the block; first wait until no other process holds it."""
    with open(path, "a", opener=open_regular) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(target: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Create *target* with the output of *fill*: temporary file, fsync, rename, fsync of the folder.

    The temporary file is hidden and always has the same name for a target, so that a left-over is overwritten.

    Raises:
        OSError: *target* is unchanged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(target, target.with_name(f".{target.name}.tmp"), private=False) as file:
        fill(file)
