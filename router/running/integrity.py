"""Whether a state folder is whole. It is checked before anything reads from it: a start ends and names the damage.

Otherwise emptied, truncated or foreign files, and missing folders, would look like a fresh start, a passing fault, or a
crash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bindings.inbox.format import NAME as LAYOUT
from bindings.inbox.format import (
    InboxPosition,
    partition_directory,
    positions_of,
    read_layout,
    rows_in,
    segment_path,
    segments_in,
)
from bindings.inbox.space import InboxError
from router.batches.splitting import BatchParts
from router.errors import BatchPinError, StateError
from router.reading import generations
from router.reading.generations import Generation, Positions
from router.sources import INBOX
from router.state.durable import RESTORE, CheckpointProgress, damaged, missing, numbers_in, progress_of, unreadable
from router.state.ledger import LetterLedger
from router.state.state import BatchNotes, StateFolder

_FILES: Final = ("lock.jvm",)
_FOLDERS: Final = ("checkpoints", "batches", "plans", "ledger", "inbox", "spill")


def check_state(state: StateFolder, queries: Iterable[str], *, inbox: bool) -> None:
    """Make sure that a router with these queries can go on from this folder; *inbox* if they read a local one.

    It notes what exists and a crash kept from being noted.

    Raises:
        StateError: a file or folder is damaged, missing, unreadable, or of another router; names it and the remedy.
    """
    _check_kinds(state.root)
    Positions(state).check()
    LetterLedger.check(state.root)
    for query in queries:
        begun = check_query(state, query)
        if query == INBOX and inbox:
            _check_inbox(state, begun[1] if begun is not None else CheckpointProgress())
        if begun is not None:
            state.inventory.note_generation(query, begun[0].number, begun[0].id)


def check_query(state: StateFolder, query: str) -> tuple[Generation, CheckpointProgress] | None:
    """Return the current generation of a query and how far it is; None before its first start.

    Raises:
        StateError: as :func:`check_state`, of what belongs to the query.
    """
    generation = generations.current(state, query)
    noted = state.inventory.holdings().generations.get(query)
    if noted is not None and (generation is None or generation.number < noted.number):
        hint = (
            f'{RESTORE}; to have the query begin anew at `start` and repeat what it did, remove "{query}" from '
            f'"generations" in {state.inventory.path}'
        )
        raise missing(state.checkpoints / query / str(noted.number), f"query {query} had begun it", hint=hint)
    if generation is None:
        return None
    if noted is not None and generation.number == noted.number and generation.id != noted.id:
        raise _foreign(generation.path, f"generation {generation.id}, not {noted.id}")
    progress = progress_of(generation.path)
    _check_pins(state, query, generation, progress)
    return generation, progress


def _check_pins(state: StateFolder, query: str, generation: Generation, progress: CheckpointProgress) -> None:
    """Check what there is beside a batch that will be repeated, and that the pinned batches are known to Spark."""
    folder = state.batches / query
    if progress.committed is not None and not folder.exists():
        raise missing(folder, f"query {query} has committed batches")
    newest = max(numbers_in(folder), default=-1)
    if newest > (-1 if progress.planned is None else progress.planned):
        raise missing(generation.path / "offsets" / str(newest), f"batch {newest} was begun, as {folder} says")
    batch = progress.pending
    if batch is None:
        return
    pinned = state.pinned(query, batch)
    if pinned is not None:
        _check_plan(state, query, batch, pinned)
    notes = BatchNotes(state.batches)
    for note in (notes.held, notes.parked, notes.blocked):
        note(query, batch, generation.id)
    BatchParts.of(notes, query, batch, generation.id)


def _check_plan(state: StateFolder, query: str, batch: int, plan: str) -> None:
    path, document = state.root / "plans" / f"{plan}.json", state.plan(plan)
    if document is None:
        raise BatchPinError(f"{path} is missing: batch {batch} of query {query} is pinned to it", hint=RESTORE)
    if not hashlib.sha256(document).hexdigest().startswith(plan):
        raise damaged(path, "it is not the document that its name is the hash of")


def _check_inbox(state: StateFolder, progress: CheckpointProgress) -> None:
    """Check that the inbox is the one that was noted, and that it has the rows that are not committed."""
    noted = state.inventory.holdings().inbox
    file = state.inbox / LAYOUT
    if not file.exists():
        if noted or progress.end is not None:
            hint = (
                f"{RESTORE}; without it what it held is lost, and to begin with an empty one remove "
                f'{state.checkpoints / INBOX}, and from {state.inventory.path} "inbox", and "{INBOX}" in "generations"'
            )
            raise missing(file, "there was an inbox", hint=hint)
        return
    try:
        layout = read_layout(state.inbox)
        if noted and layout.inbox != noted:
            raise _foreign(file, f"inbox {layout.inbox}, not {noted}")
        positions = positions_of(progress.start, layout.inbox) if progress.start else {}
    except InboxError as error:
        raise StateError(f"{state.inbox}: {error}", hint=RESTORE) from error
    except OSError as error:
        raise unreadable(file, error) from error
    for partition in range(layout.partitions):
        _check_partition(partition_directory(state.inbox, partition), positions.get(partition, InboxPosition(0, 0)))
    state.inventory.note_inbox(layout.inbox)


def _check_partition(directory: Path, position: InboxPosition) -> None:
    """Check that the log reaches *position*; otherwise new rows would get positions that other rows had."""
    if not directory.is_dir():
        raise missing(directory, "the inbox has this partition")
    segments = [number for number in segments_in(directory) if number >= position.segment]
    if not segments and position == (0, 0):
        return
    for expected, number in enumerate(segments, position.segment):
        if number != expected:
            raise missing(segment_path(directory, expected), "its rows were not committed")
    if not segments:
        raise missing(segment_path(directory, position.segment), "the checkpoint goes on from it")
    first = segment_path(directory, position.segment)
    try:
        # The last segment may end in the middle of a write; all before it were closed and are whole.
        rows = rows_in(first) if len(segments) > 1 or position.row > 0 else 0
    except InboxError as error:
        if len(segments) > 1:
            raise StateError(str(error), hint=RESTORE) from error
        return
    if rows < position.row:
        raise damaged(first, f"it has {rows} rows, and the checkpoint goes on from row {position.row}")


def _check_kinds(root: Path) -> None:
    for name in _FILES:
        if (root / name).is_dir():
            raise damaged(root / name, "it is a folder", hint="remove it")
    for name in _FOLDERS:
        if (root / name).exists() and not (root / name).is_dir():
            raise damaged(root / name, "it is no folder", hint=f"move it away; {RESTORE}")


def _foreign(path: Path, what: str) -> StateError:
    hint = "restore what belongs to this state folder; parts of two cannot be mixed"
    return StateError(f"{path} belongs to another state folder: it is {what}", hint=hint)
