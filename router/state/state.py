"""The state folder: its lock, its format, and which plan each batch was judged by.

Everything written here is on the disk, fsynced, before what depends on it happens.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bindings.locks import InUse, take_lock
from bindings.private import narrow, private_folder, sync_path
from catalog.values import whole_number
from router.errors import StateError
from router.logs import get_logger
from router.state.durable import damaged, read, unfinished, write_durably
from router.state.inventory import NAME, Inventory

_log = get_logger()


_PLAN_ID: Final = re.compile(r"[0-9a-f]{32}")
_UNPIN: Final = (
    "restore it from a backup of the state folder, or remove it: the batch is then judged by the active catalog and "
    "settings, and tables that have it already keep what they have"
)


class State:
    """An open, locked state folder. ``root`` is its path; see deploy/OPERATIONS.md#state for what lies where."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inventory = Inventory(root)
        self.inbox = root / "inbox"
        self.checkpoints = root / "checkpoints"
        self.batches = root / "batches"
        self._plans = root / "plans"
        self._pinning = threading.Lock()
        # The plans that this process has written and not removed. A pin of another process may name a lost plan.
        self._kept: set[str] = set()

    @classmethod
    @contextlib.contextmanager
    def open(cls, root: Path) -> Iterator[State]:
        """Create the folder if needed, lock it, make it private to its owner, and check its format.

        Raises:
            StateError: another process holds the lock, the format is newer or unknown, or the folder is not writable.
        """
        try:
            private_folder(root)
            lock = take_lock(root / "lock")
        except OSError as error:
            file = root / "lock"
            if error.filename is not None and Path(error.filename) == file and os.path.lexists(file):
                hint = f"remove it (rm -rf {file}) when no router runs on this folder, or give it to this user"
                raise StateError(f"{file} cannot be used: {error.strerror}", hint=hint) from error
            raise StateError(
                f"state folder {root} cannot be used: {error.strerror}", hint="choose a writable folder under `state`"
            ) from error
        except InUse as holder:
            raise StateError(
                f"state folder {root} is in use by another router (process {holder})",
                hint="stop it first, or give this one a state folder of its own",
            ) from holder
        with lock:
            _keep_private(root)
            state = cls(root)
            state.inventory.create()
            yield state

    @classmethod
    def beside(cls, root: Path) -> State:
        """Return the folder without its lock, to look at what is there beside a router that may be running.

        Raises:
            StateError: there is no such folder, or its format is newer or unknown.
        """
        if not (root / NAME).exists():
            raise StateError(
                f"{root} is no state folder of this router",
                hint="name the settings of a router that has been started; a relative `state` begins at their file",
            )
        state = cls(root)
        state.inventory.check()
        return state

    def pin(self, query: str, batch: int, plan: str, document: bytes) -> None:
        """Note, durably, that a batch is judged by a plan, whose document is kept for as long as a batch names it.

        Notes of earlier batches of the query are not needed any more.
        """
        kept, folder = self._plans / f"{plan}.json", self.batches / query
        # One at a time: while one query finds plans that no batch names, no other may name one of them.
        with self._pinning:
            fresh = plan not in self._kept
            if fresh:
                # Even if the file is there: a process that died may have renamed it without making that durable.
                write_durably(kept, document)
            write_durably(folder / str(batch), plan.encode())
            for number, entry in _numbered(folder):
                if number < batch - 1:
                    entry.unlink(missing_ok=True)
            if fresh:
                self._kept.add(plan)
                self._drop_unnamed_plans()

    def since(self, query: str, batch: int) -> datetime | None:
        """Return when a batch was pinned; None for one that was not."""
        try:
            return datetime.fromtimestamp((self.batches / query / str(batch)).stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def pinned(self, query: str, batch: int) -> str | None:
        """Return the plan that a batch is pinned to; None for one that is not.

        Raises:
            StateError: its pin cannot be read, or names no plan.
        """
        path = self.batches / query / str(batch)
        content = read(path)
        if content is None:
            return None
        plan = content.decode("ascii", "replace").strip()
        if _PLAN_ID.fullmatch(plan) is None:
            raise damaged(path, "it names no plan" if content else "it is empty", hint=_UNPIN)
        return plan

    def unpin_all(self, query: str) -> None:
        """Forget, durably, the notes of a query whose batches are counted anew."""
        folder = self.batches / query
        with self._pinning:
            if folder.exists():
                for entry in folder.iterdir():
                    entry.unlink(missing_ok=True)
                sync_path(folder)

    def _drop_unnamed_plans(self) -> None:
        pins = (entry for entry in self.batches.glob("*/*") if whole_number(entry.name) is not None)
        named = {(read(pin) or b"").decode("ascii", "replace").strip() for pin in pins}
        # They are forgotten first, since a disk may fail while they are removed.
        self._kept &= named
        unnamed = (entry for entry in self._plans.glob("*.json") if entry.stem not in named)
        for entry in (*unnamed, *unfinished(self._plans)):
            entry.unlink(missing_ok=True)

    def plan(self, plan: str) -> bytes | None:
        """Return a plan's document; None when it is not kept.

        Raises:
            StateError: it cannot be read.
        """
        return read(self._plans / f"{plan}.json")

    def spill(self, letter: str, record: bytes) -> None:
        """Keep the whole record of a dead letter; the same letter again changes nothing."""
        write_durably(self.root / "spill" / f"{letter}.json", record)


def _keep_private(root: Path) -> None:
    """Narrow what an earlier version, or a copy, left for others to read."""
    try:
        if changed := narrow(root):
            _log.warning(
                "state was open to other users of this machine, and is private now", folder=str(root), entries=changed
            )
    except OSError as error:
        if error.errno == errno.EINVAL:
            hint = "no router wrote that: remove it, or restore the file from a backup of the state folder"
            raise StateError(f"{error.filename} is no file of the state folder: {error.strerror}", hint=hint) from error
        raise StateError(
            f"{error.filename} in the state folder cannot be made private: {error.strerror}",
            hint=f"give the folder to the user of the router: chown -R USER {root}",
        ) from error


def _numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the files of a query's folder that belong to a batch, its pin and notes, with the batch's number."""
    for entry in folder.iterdir():
        number = whole_number(entry.name.partition(".")[0])
        if number is not None:
            yield number, entry
