"""Locks between processes, each a file. The kernel frees the lock of a dead process, so that none is ever stale."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bindings.private import private_file
from catalog.parsing.regular import kind_of, open_regular


class InUse(Exception):
    """Another process holds the lock; the message is its number, or ``unknown``."""


def take_lock(path: Path) -> IO[str]:
    """Return *path* as a file that is locked until it is closed, and holds the number of this process.

    Raises:
        OSError: the file cannot be used.
        InUse: another process holds the lock.
    """
    # A link would lead the lock to another folder, where another router may hold it.
    if kind := _kind(path):
        raise OSError(errno.EINVAL, f"it is {kind} and no regular file", str(path))
    file: IO[str] = private_file(path, "a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with file:
            file.seek(0)
            raise InUse(file.read().strip() or "unknown") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _kind(path: Path) -> str:
    try:
        return kind_of(path.lstat().st_mode)
    except FileNotFoundError:
        return ""


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the lock of :func:`take_lock` now."""
    try:
        with open(path, opener=open_regular) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno != errno.EINVAL  # what is no file is no lock either
    return False


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock of *path* within the block; wait for as long as another process holds it."""
    with open(path, "a", opener=open_regular) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
