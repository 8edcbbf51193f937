"""The files that Spark keeps in a checkpoint, looked at before Spark reads them.

Spark takes an emptied or truncated file for a passing fault, or for no file at all. Each of its files has a known form
(a line with a version, then JSON) and a ``.crc`` file beside it, with a CRC-32 of every 512 bytes.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.logs import get_logger
from router.state.durable import RESTORE, damaged, missing, numbers_in, read

_VERSION: Final = re.compile(rb"v[1-9][0-9]?")
_CRC_MAGIC: Final = b"crc\0"
_CRC_HEAD: Final = 8
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Progress:
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


def progress_of(path: Path) -> Progress:
    """Check what Spark will read of the checkpoint at *path*, and return how far it is.

    A broken ``.crc`` file beside an intact file is removed, since Spark would refuse both.

    Raises:
        StateError: a file is missing, cannot be read, or is not as Spark wrote it.
    """
    planned, committed = _newest(path / "offsets"), _newest(path / "commits")
    if committed is not None and (planned is None or planned < committed):
        raise missing(path / "offsets" / str(committed), f"batch {committed} was committed")
    if planned is None:
        return Progress()
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
    return Progress(planned, committed, end if committed == planned else before, end)


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
