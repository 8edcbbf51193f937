"""The state folder: its lock, what it stores about batches, and the counts of queries.

:mod:`router.state.database` has the file that most of it is in; inbox, checkpoints, spilled records and locks are
files of their own. What is stored is durable before what depends on it happens.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

import msgspec

from bindings.private_files import LockInUse, create_private_folder, restrict_to_owner, take_lock
from router.errors import RouterError, StateError
from router.logs import get_logger
from router.state.database import NAME, Inventory, StateDatabase, store_plan
from router.state.durable import RESTORE, damaged, write_durably
from router.state.upgrade import upgrade_folder

if TYPE_CHECKING:
    from router.evaluation.outputs import Tally

_log = get_logger()


class StateFolder:
    """An open, locked state folder. ``root`` is its path; see deploy/OPERATIONS.md#state for what lies where."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inventory = Inventory(root)
        self.database = StateDatabase(root)
        self.batches = BatchStore(self.database)
        self.inbox = root / "inbox"
        self.checkpoints = root / "checkpoints"

    @classmethod
    @contextlib.contextmanager
    def open(cls, root: Path) -> Iterator[StateFolder]:
        """Create the folder if needed, lock it, make it private to its owner, and check and convert its format.

        Raises:
            StateError: another process holds the lock, the format is newer or unknown, or the folder is not writable.
        """
        try:
            create_private_folder(root)
            lock = take_lock(root / "lock")
        except OSError as error:
            what, hint = f"state folder {root}", "choose a writable folder under `state`"
            if str(error.filename) == str(root / "lock") and os.path.lexists(root / "lock"):
                what = f"{root / 'lock'}"
                hint = f"remove it (rm -rf {what}) when no router runs on this folder, or give it to this user"
            raise StateError(f"{what} cannot be used: {error.strerror}", hint=hint) from error
        except LockInUse as holder:
            text = f"state folder {root} is in use by another router (process {holder})"
            raise StateError(text, hint="stop it first, or use a separate state folder for this one") from holder
        with lock:
            _make_private(root)
            upgrade_folder(root)
            state = cls(root)
            with state.database:
                state.inventory.create(state.database)
                yield state

    @classmethod
    @contextlib.contextmanager
    def beside(cls, root: Path) -> Iterator[StateFolder]:
        """Open the folder without its lock, to look at what is there beside a router that may be running.

        Raises:
            StateError: there is no such folder, or its format is another one.
        """
        if not (root / NAME).exists():
            hint = "name the settings of a router that has run; a relative `state` starts where they are"
            raise StateError(f"{root} is not a state folder of this router", hint=hint)
        state = cls(root)
        with state.database:
            yield state

    @cached_property
    def accounts(self) -> Accounts:
        """The accounts of all queries, as this process has them."""
        return Accounts(self.database)

    def spill(self, letter: str, record: bytes) -> None:
        """Write the whole record of a dead letter to a file; the same letter again changes nothing."""
        write_durably(self.root / "spill" / f"{letter}.json", record)


def _make_private(root: Path) -> None:
    """Narrow what an earlier version, or a copy, left for others to read."""
    try:
        if changed := restrict_to_owner(root):
            text = "state folder was accessible to other users; it is private now"
            _log.warning(text, folder=str(root), entries=changed)
    except OSError as error:
        fault, hint = "cannot be made private", f"give the folder to the user of the router: chown -R USER {root}"
        if error.errno == errno.EINVAL:
            fault = "is no file of the state folder"
            hint = "no router wrote that: remove it, or restore the file from a backup of the state folder"
        raise StateError(f"{error.filename} {fault}: {error.strerror}", hint=hint) from error


# What is stored about a batch, by query and number: its pin and its notes.
#
# A pin is the plan that the batch must be evaluated with. Of the notes, ``held`` is written by the router when a sink
# blocks a batch; it says which sinks have their share, since message targets and Kafka cannot be asked later. ``park``
# is an operator's order to move the batch to dead letters, also beside a running router. ``order`` (only under
# ``dead_letters.order: park``) is what the first attempt found blocked: keys of the batch, each with the dead letter
# that its records wait for. ``parts`` is how a batch is split, and what is left of it
# (:mod:`router.batches.splitting`); the other notes then mean the part that they name, by its path as text; '' is the
# whole batch. A note belongs to a checkpoint generation, so that no batch of the same number in another one is taken
# for it.

_PLAN_ID: Final = re.compile(r"[0-9a-f]{32}")
_UNPIN: Final = (
    "the batch is then evaluated by the active catalog and settings; tables that have it already keep what they have"
)


@dataclass(frozen=True)
class BatchNote:
    """A note about a batch of a checkpoint generation."""

    kind: ClassVar[str]
    without: ClassVar[str] = "the batch is then tried again"
    """What follows if a damaged one is removed."""
    generation: str


Note = TypeVar("Note", bound=BatchNote)


@dataclass(frozen=True)
class Hold(BatchNote):
    """Why a batch is not finished: ``since`` when (RFC 3339), the ``sink`` in the way ('' for the circuit breaker).

    ``taken`` are the sinks that have all of their events of the batch, or of that ``part`` of it.
    """

    kind: ClassVar[str] = "held"
    since: str
    reason: str
    sink: str = ""
    taken: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True)
class Park(BatchNote):
    """An order to set a batch aside, given at ``asked`` (RFC 3339).

    ``lacking`` is the router's answer, with the reason for each sink that does not have the batch: None until it has
    looked. A repeat of the batch uses this answer, so that its letters stay the same. For a batch in parts it is about
    one ``part``, and the router looks again for the next.
    """

    kind: ClassVar[str] = "park"
    asked: str
    lacking: Mapping[str, str] | None = None
    part: str = ""


@dataclass(frozen=True)
class BlockedKeys(BatchNote):
    """Which keys of a batch, or of a ``part`` of it, its first attempt found blocked, by which letter."""

    kind: ClassVar[str] = "order"
    blocked: Mapping[str, str]
    part: str = ""


class BatchStore:
    """What is stored about batches, and the plans they are pinned to; thread-safe, and usable without the state's lock.

    A pin takes 3 to 6 ms, with what settles a batch 8 to 12; as files it took 11 to 14, and 23 to 31 (medians of 300
    batches, two busy cores, ext4).

    Methods raise :class:`StateError`, or :class:`~router.errors.DiskError` for a full or failing disk.
    """

    def __init__(self, database: StateDatabase) -> None:
        self._database = database
        self.path = database.path

    def pin(self, query: str, batch: int, plan: str, document: bytes) -> None:
        """Pin a batch to a plan, whose document is stored while a batch names it; forget earlier batches but one."""
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?)", (query, batch, plan, time.time()))
            for table in ("pins", "notes"):
                connection.execute(f"DELETE FROM {table} WHERE query = ? AND batch < ?", (query, batch - 1))
            store_plan(connection, plan, document)

    def since(self, query: str, batch: int) -> datetime | None:
        """Return when a batch was pinned; None for one that was not."""
        rows = self._database.read("SELECT since FROM pins WHERE query = ? AND batch = ?", (query, batch))
        return datetime.fromtimestamp(rows[0][0], UTC) if rows else None

    def pinned(self, query: str, batch: int) -> str | None:
        """Return the plan that a batch is pinned to; None for one that is not."""
        rows = self._database.read("SELECT plan FROM pins WHERE query = ? AND batch = ?", (query, batch))
        if not rows:
            return None
        plan = str(rows[0][0])
        if _PLAN_ID.fullmatch(plan) is None:
            raise self._row_error("pins", query, batch, "it names no plan", _UNPIN)
        return plan

    def newest_batch(self, query: str) -> int | None:
        """Return the newest batch of a query that is pinned."""
        newest: int | None = self._database.read("SELECT max(batch) FROM pins WHERE query = ?", (query,))[0][0]
        return newest

    def unpin_all(self, query: str) -> None:
        """Forget all batches of a query, which are counted anew."""
        with self._database.transaction() as connection:
            for table in ("pins", "notes"):
                connection.execute(f"DELETE FROM {table} WHERE query = ?", (query,))

    def plan(self, plan: str) -> bytes | None:
        """Return a plan's document; None if it is not stored."""
        return self._database.plan(plan)

    def note(self, query: str, batch: int, note: BatchNote) -> None:
        """Store a note of a batch, in place of one of its kind and generation."""
        text = json.dumps(msgspec.to_builtins(note), separators=(",", ":"))
        row = (query, batch, note.kind, note.generation, text)
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?)", row)

    def noted(self, type_: type[Note], query: str, batch: int, generation: str) -> Note | None:
        """Return the note of that type about a batch of that generation; None if there is none."""
        key = (query, batch, type_.kind, generation)
        rows = self._database.read("SELECT note FROM notes WHERE (query, batch, kind, generation) = (?, ?, ?, ?)", key)
        if not rows:
            return None
        try:
            return msgspec.convert(json.loads(rows[0][0]), type_)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fault = f"{type_.kind!r} is not a valid note ({error!r})"
            raise self._row_error("notes", query, batch, fault, type_.without) from error

    def release(self, query: str, batch: int) -> None:
        """Note that a batch is not blocked any more."""
        statement = "DELETE FROM notes WHERE query = ? AND batch = ? AND kind = ?"
        with self._database.transaction() as connection:
            connection.execute(statement, (query, batch, Hold.kind))

    def _row_error(self, table: str, query: str, batch: int, fault: str, without: str) -> StateError:
        statement = f"DELETE FROM {table} WHERE query = '{query}' AND batch = {batch}"
        hint = f'{RESTORE}, or remove the row (sqlite3 {self._database.path} "{statement}"): {without}'
        return damaged(self._database.path, f"batch {batch} of {query} in {table}: {fault}", hint=hint)


# The account of a query: what it has taken of its source, and what became of it.
#
# It is written after each batch, when all sinks have it, and names that batch: one that comes again after a crash is
# known, and counted once. It holds counts alone. Without it nothing is lost but these, and they begin anew.


_COUNTS: Final = ("taken", "judged", "empty", "missing")


@dataclass(slots=True)
class Account:
    """What a query has done up to a batch of a checkpoint's generation, through all restarts.

    ``taken`` counts records by the offsets of their source, up to ``reached``; ``judged`` those that were judged,
    ``empty`` offsets that held none, ``missing`` outcomes that a sink should have and says it has not. The rest is as
    in :class:`~router.evaluation.outputs.Tally`.
    """

    generation: str = ""
    batch: int = -1
    reached: dict[str, Any] = field(default_factory=dict)
    taken: int = 0
    judged: int = 0
    empty: int = 0
    missing: int = 0
    records: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    delivered: Counter[tuple[str, str]] = field(default_factory=Counter)
    delivered_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def gap(self) -> int:
        """Records that were taken and that, as far as is known, some sink still lacks."""
        return self.taken - self.empty - self.judged + self.missing

    def count(self, tally: Tally) -> None:
        """Add what became of records, and what sinks have of them."""
        self.records.update(tally.records)
        self.delivered.update(tally.delivered)
        self.delivered_bytes.update(tally.delivered_bytes)

    def keep_counts(self, endpoints: Collection[str]) -> None:
        """Drop the counts of all other endpoints; what was taken and judged stays as it is."""
        self.records = Counter({key: count for key, count in self.records.items() if key[0] in endpoints})
        for name in ("delivered", "delivered_bytes"):
            setattr(self, name, Counter({key: n for key, n in getattr(self, name).items() if key[1] in endpoints}))

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON."""
        return {
            **{name: getattr(self, name) for name in ("generation", "batch", "reached", *_COUNTS)},
            "records": [[*key, count] for key, count in sorted(self.records.items())],
            "delivered": [[*key, count, self.delivered_bytes[key]] for key, count in sorted(self.delivered.items())],
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Return the account that :meth:`to_json` wrote."""
        taken, judged, empty, missing = (int(form[name]) for name in _COUNTS)
        account = cls(str(form["generation"]), int(form["batch"]), dict(form["reached"]), taken, judged, empty, missing)
        for endpoint, outcome, reason, count in form["records"]:
            account.records[endpoint, outcome, reason] = int(count)
        for sink, endpoint, count, size in form["delivered"]:
            account.delivered[sink, endpoint] = int(count)
            account.delivered_bytes[sink, endpoint] = int(size)
        return account


class Accounts:
    """The accounts of a state folder, as this process has them; one for the whole process, from any thread.

    An account that could not be written is written with the next change of it, or at the end. A query that starts again
    continues from what its batches did, not from what was written about them.
    """

    def __init__(self, database: StateDatabase) -> None:
        self._database = database
        self._lock = threading.RLock()
        stored = self._database.read("SELECT query, account FROM accounts ORDER BY query")
        self.known: Final = {query: _read_account(query, text) for query, text in stored}
        """All accounts, by query."""

    def of(self, query: str) -> Account:
        """Return a query's account, the same object at every call; a new one if none can be read."""
        with self._lock:
            return self.known.setdefault(query, Account())

    def keep_endpoints(self, endpoints: Collection[str]) -> None:
        """Keep only counts of these endpoints, and of no endpoint; others would be written for ever."""
        for account in self.known.values():
            account.keep_counts({"", *endpoints})

    def let_go(self, query: str) -> None:
        """Note that others read on from where a query's account ends, so that it misses nothing of that."""
        with self.changing(query) as account:
            account.reached = {}

    @contextmanager
    def changing(self, query: str) -> Iterator[Account]:
        """Yield a query's account for changes, and write it afterwards, durably if the disk accepts it."""
        with self._lock:
            yield self.of(query)
            self.keep(query)

    def keep(self, query: str) -> None:
        """Write a query's account, durably. If the disk refuses, the next write or :meth:`keep_all` tries again."""
        with self._lock:
            try:
                row = (query, json.dumps(self.of(query).to_json()))
                with self._database.transaction() as connection:
                    connection.execute("INSERT OR REPLACE INTO accounts VALUES (?, ?)", row)
            except RouterError as error:
                _log.warning("counts of a query cannot be saved", query=query, problem=str(error))

    def keep_all(self) -> None:
        """Write all accounts, also those that the disk has refused so far."""
        for query in sorted(self.known):
            self.keep(query)


def _read_account(query: str, text: str) -> Account:
    try:
        return Account.from_json(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        _log.warning("counts of a query cannot be read; starting from zero", query=query, problem=str(error))
        return Account()
