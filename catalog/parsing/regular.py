"""Read files without hanging on devices or pipes, and without filling the memory.

Unreadable files raise :class:`OSError`; its ``strerror`` says why.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

MAX_BYTES: Final = 64 * 1024 * 1024
PIPE_SECONDS: Final = 10.0
"""How long to wait for a pipe that nobody writes to."""
_KINDS: Final[Mapping[str, Callable[[int], bool]]] = {
    "a pipe": stat.S_ISFIFO,
    "a folder": stat.S_ISDIR,
    "a symbolic link": stat.S_ISLNK,
    "a socket": stat.S_ISSOCK,
}
_DEV_NULL: Final = Path(os.devnull)


def irregular_kind_of(mode: int) -> str:
    """Return the kind of a file by its mode ("a pipe", "a folder"); empty for a regular file."""
    if stat.S_ISREG(mode):
        return ""
    return next((kind for kind, matches in _KINDS.items() if matches(mode)), "a device")


def open_regular(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a regular file like :func:`os.open`, without blocking.

    Raises:
        OSError: it is not a regular file, or cannot be opened.
    """
    descriptor = _open_file(path, flags, mode)
    kind = irregular_kind_of(os.fstat(descriptor).st_mode)
    if kind:
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {kind} and no regular file", path)
    return descriptor


def read_regular(path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: it is not a regular file, is larger than *limit*, or cannot be read.
    """
    with open(path, "rb", opener=open_regular) as file:
        return _read_bounded(file, limit, path)


def read_input(path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file or pipe opened by :func:`open_input`.

    Raises:
        OSError: like :func:`open_input`, or it is larger than *limit*.
    """
    with open_input(path) as file:
        return _read_bounded(file, limit, path)


def open_input(path: str | Path) -> BinaryIO:
    """Open the input of a command: a regular file, or a pipe such as a shell's ``<(...)``.

    Raises:
        OSError: it is a device, or a pipe that nobody writes to within ``PIPE_SECONDS``, or cannot be opened.
    """
    descriptor = _open_file(path, os.O_RDONLY)
    try:
        kind = irregular_kind_of(os.fstat(descriptor).st_mode)
        if kind == "a pipe":
            if not select.select([descriptor], [], [], PIPE_SECONDS)[0]:
                raise OSError(errno.EINVAL, "it is a pipe that nobody writes to", str(path))
        elif kind and not (os.isatty(descriptor) or os.path.samestat(os.fstat(descriptor), _DEV_NULL.stat())):
            raise OSError(errno.EINVAL, f"it is {kind} and no regular file", str(path))
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _read_bounded(file: BinaryIO, limit: int, path: str | Path) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
    return data


def _open_file(path: str | Path, flags: int, mode: int = 0o666) -> int:
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        # A socket, or a pipe opened for writing without a reader.
        raise OSError(
            errno.EINVAL, f"it is {irregular_kind_of(os.stat(path).st_mode)} and no regular file", str(path)
        ) from error
