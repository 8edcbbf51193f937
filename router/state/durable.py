"""Files of the state folder: replaced durably, and read with errors that name the file and the remedy."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bindings.private import private_folder, replaced
from catalog.parsing.regular import read_regular
from catalog.values import whole_number
from router.errors import DiskError, RouterError, StateError

DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
"""Errors of a full or failing disk, whatever the file."""
RESTORE: Final = "restore it from a backup of the state folder"


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it holds the old content or the new, and the new once this returns.

    Raises:
        OSError: the disk refuses; the old content stays.
    """
    private_folder(path.parent)
    with replaced(path, path.with_name(f".{path.name}.{os.getpid()}")) as file:
        file.write(content)


def unfinished(folder: Path) -> list[Path]:
    """Return the files that :func:`write_durably` left when a process died in it. Nobody else may write there now."""
    return [entry for entry in folder.glob(".*.*") if whole_number(entry.suffix[1:]) is not None]


@contextmanager
def disk_of(root: Path) -> Iterator[None]:
    """Turn errors of a full or failing disk within the block, ours or the JVM's, into :class:`DiskError`."""
    try:
        yield
    except RouterError:
        raise
    except Exception as error:
        for number in DISK:
            reason = os.strerror(number)
            if (isinstance(error, OSError) and error.errno == number) or reason in str(error):
                raise DiskError(f"the disk of {root} refuses: {reason}", hint="free space or mend it") from error
        raise


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers that are names in a folder, ascending; none where there is no folder.

    Raises:
        StateError: it is there and cannot be read.
    """
    try:
        numbers = (whole_number(entry.name) for entry in folder.iterdir())
        return sorted(number for number in numbers if number is not None)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def read(path: Path) -> bytes | None:
    """Return the content of a file; None when there is none.

    Raises:
        StateError: it is there and cannot be read.
    """
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def read_object(path: Path, *, hint: str = RESTORE) -> dict[str, Any] | None:
    """Return the JSON object in a file; None when there is no such file.

    Raises:
        StateError: it cannot be read, or is no JSON object; with *hint* as the remedy.
    """
    content = read(path)
    if content is None:
        return None
    try:
        form = json.loads(content)
    except ValueError as error:
        raise damaged(path, "it is empty" if not content else f"it is no JSON ({error})", hint=hint) from error
    if not isinstance(form, dict):
        raise damaged(path, "it is no JSON object", hint=hint)
    return form


def damaged(path: Path, fault: str, *, hint: str = RESTORE) -> StateError:
    """Return the error for a file whose content is not what was written."""
    return StateError(f"{path} is damaged: {fault}", hint=hint)


def missing(path: Path, why: str, *, hint: str = RESTORE) -> StateError:
    """Return the error for a file or folder that is gone; ``why`` says how it is known that it was there."""
    return StateError(f"{path} is missing: {why}", hint=hint)


def unreadable(path: Path, error: OSError) -> StateError:
    """Return the error for a file that the system does not let us read."""
    hint = "give it back to the user that the router runs as, or restore it from a backup of the state folder"
    return StateError(f"{path} cannot be read: {error.strerror}", hint=hint)
