"""Files of the state folder: replaced durably, and read with errors that name the file and the remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bindings.private import private_folder, replaced
from catalog.parsing.regular import read_regular
from catalog.values import whole_number
from router.errors import DiskError, RouterError, StateError
from router.logs import get_logger

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


# The files that Spark keeps in a checkpoint, looked at before Spark reads them.
#
# Spark takes an emptied or truncated file for a passing fault, or for no file at all. Each of its files has a known
# form (a line with a version, then JSON) and a ``.crc`` file beside it, with a CRC-32 of every 512 bytes.

_VERSION: Final = re.compile(rb"v[1-9][0-9]?")
_CRC_MAGIC: Final = b"crc\0"
_CRC_HEAD: Final = 8
_log = get_logger()


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """How far a checkpoint is: the newest batches that were planned and committed, and where they end and begin.

    ``end`` is the source's offset up to which the newest planned batch reads, ``start`` where the first record lies
    that is not committed; each None before the first batch.
    """

    planned: int | None = None
    committed: int | None = None
    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None

    @property
    def pending(self) -> int | None:
        """The batch that was planned and not committed; None when there is none."""
        return self.planned if self.planned != self.committed else None


def progress_of(path: Path) -> CheckpointProgress:
    """Check what Spark will read of the checkpoint at *path*, and return how far it is.

    A broken ``.crc`` file beside an intact file is removed, since Spark would refuse both.

    Raises:
        StateError: a file is missing, cannot be read, or is not as Spark wrote it.
    """
    planned, committed = _newest(path / "offsets"), _newest(path / "commits")
    if committed is not None and (planned is None or planned < committed):
        raise missing(path / "offsets" / str(committed), f"batch {committed} was committed")
    if planned is None:
        return CheckpointProgress()
    if read(path / "metadata") is None:
        raise missing(path / "metadata", "the checkpoint has batches")
    _checked(path / "metadata", _is_metadata)
    for number in numbers_in(path / "sources" / "0"):
        _checked(path / "sources" / "0" / str(number), _is_start)
    if (planned > 0 and committed is None) or (committed is not None and committed < planned - 1):
        raise missing(path / "commits" / str(planned - 1), f"batch {planned} was begun after it")
    if committed is not None:
        _checked(path / "commits" / str(committed), _is_commit)
    end = _offset_in(path, planned)
    before = _offset_in(path, planned - 1) if planned > 0 else None
    return CheckpointProgress(planned, committed, end if committed == planned else before, end)


def _offset_in(path: Path, batch: int) -> dict[str, Any]:
    file = path / "offsets" / str(batch)
    if read(file) is None:
        raise missing(file, "Spark goes on from it")
    hint = (
        f"{RESTORE}; should no file {batch} be in the query's folder under state/batches, nothing of this batch was "
        f"written and the file may be removed"
    )
    return json.loads(_checked(file, _is_offsets, hint=hint).split(b"\n")[2]) or {}


def _checked(path: Path, is_whole: Callable[[bytes], bool], *, hint: str = RESTORE) -> bytes:
    """Return the content of a file, after a check of its form and checksum."""
    content = read(path) or b""
    try:
        whole = is_whole(content)
    except (ValueError, LookupError):
        whole = False
    if not whole:
        raise damaged(path, "it is cut off or not what Spark wrote" if content else "it is empty", hint=hint)
    crc = path.with_name(f".{path.name}.crc")
    written = read(crc)
    if written is None or written == (right := _crc_of(content, written)):
        return content
    if len(written) < _CRC_HEAD or right.startswith(written):
        _log.warning("checksum file is cut off and was removed; the file it belongs to is intact", file=str(crc))
        crc.unlink()
        return content
    raise damaged(path, f"its content does not match {crc.name}", hint=hint)


def _crc_of(content: bytes, written: bytes) -> bytes:
    """Return what the checksum file of a content should be, with as many bytes for each sum as *written* says."""
    size = max(1, int.from_bytes(written[4:_CRC_HEAD], "big"))
    sums = (zlib.crc32(content[at : at + size]) for at in range(0, len(content), size))
    return _CRC_MAGIC + size.to_bytes(4, "big") + b"".join(each.to_bytes(4, "big") for each in sums)


def _is_metadata(content: bytes) -> bool:
    return isinstance(json.loads(content)["id"], str)


def _is_offsets(content: bytes) -> bool:
    version, plan, *offsets = content.rstrip(b"\n").split(b"\n")
    form = json.loads(offsets[0])
    return _VERSION.fullmatch(version) is not None and "batchTimestampMs" in json.loads(plan) and isinstance(form, dict)


def _is_commit(content: bytes) -> bool:
    version, form = content.rstrip(b"\n").split(b"\n")
    return _VERSION.fullmatch(version) is not None and isinstance(json.loads(form), dict)


def _is_start(content: bytes) -> bool:
    # Kafka's source begins its first offsets with a zero byte, for readers of old.
    version, form = content.removeprefix(b"\0").rstrip(b"\n").split(b"\n", 1)
    return _VERSION.fullmatch(version) is not None and isinstance(json.loads(form), dict)


def _newest(folder: Path) -> int | None:
    return max(numbers_in(folder), default=None)
