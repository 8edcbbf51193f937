"""The state folder: its lock, its format, and which plan each batch was judged by.

Everything written here is on the disk, fsynced, before what depends on it happens.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from bindings.private_files import LockInUse, create_private_folder, restrict_to_owner, sync_path, take_lock
from catalog.values import parse_whole_number
from router.errors import StateError
from router.logs import get_logger
from router.state.durable import RESTORE, damaged, missing, read, read_object, unfinished, write_durably

if TYPE_CHECKING:
    from router.evaluation.outputs import Tally

# What a state folder must hold, as its ``format.json`` says: the format, and what must not go missing unnoticed.
#
# A lost checkpoint would repeat every record, a lost inbox loses messages that were acknowledged, and neither leaves a
# trace where it was. So what exists is noted here once it is durable: the newest generation of each query, the identity
# of the inbox, and that offsets of topics were kept. After a crash in between, the next start notes it.

FORMAT: Final = 1
NAME: Final = "format.json"
_TRACES: Final = ("checkpoints/*/*/generation.json", "batches/*/*", "plans/*.json")
"""Only a router that had written its format file writes these; inbox and letters' ledger may be there before."""


@dataclass(frozen=True, slots=True)
class NotedGeneration:
    """The newest generation of a query that was noted."""

    number: int
    id: str


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is noted. ``inbox`` is the identity of the local inbox, '' before there is one."""

    generations: dict[str, NotedGeneration] = field(default_factory=dict)
    inbox: str = ""
    offsets: bool = False


class Inventory:
    """The ``format.json`` of one state folder. Whoever notes something has the folder's lock."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / NAME

    def create(self) -> None:
        """Write the file for a new folder; in one that has it already, check it.

        Raises:
            StateError: as :meth:`check`, or the file is missing from a folder that was in use.
        """
        if self.path.exists():
            self.check()
            return
        used = next((trace for pattern in _TRACES for trace in self._root.glob(pattern)), None)
        if used is not None:
            hint = f"restore it from a backup of the state folder, or choose another `state` folder than {self._root}"
            raise missing(self.path, f"the folder was in use, it has {used.relative_to(self._root)}", hint=hint)
        self._write(Holdings())

    def check(self) -> None:
        """Make sure that this router knows the folder's format.

        Raises:
            StateError: the format is newer or unknown, or the file is damaged.
        """
        self.holdings()

    def holdings(self) -> Holdings:
        """Return what the folder is to hold; nothing for one that an earlier router wrote.

        Raises:
            StateError: as :meth:`check`.
        """
        form = read_object(self.path) or {}
        if "format" not in form:
            raise damaged(self.path, "it has no format")
        if form["format"] != FORMAT:
            raise StateError(
                f"state folder {self._root} has format {form['format']}; this router knows {FORMAT}",
                hint="start the router version that wrote it, or choose another `state` folder",
            )
        try:
            return _holdings(form)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(self.path, f"its content cannot be read ({error!r})") from error

    def note_generation(self, query: str, number: int, id: str) -> None:
        """Note that a query has a generation; what is noted already is not written again.

        Raises:
            StateError: the file is damaged.
            OSError: the disk refuses; the next start notes it.
        """
        known = self.holdings()
        self._replace(known, replace(known, generations={**known.generations, query: NotedGeneration(number, id)}))

    def note_inbox(self, identity: str) -> None:
        """Note which inbox the folder has; raises as :meth:`note_generation`."""
        known = self.holdings()
        self._replace(known, replace(known, inbox=identity))

    def note_offsets(self) -> None:
        """Note that offsets of topics are kept; raises as :meth:`note_generation`."""
        known = self.holdings()
        self._replace(known, replace(known, offsets=True))

    def _replace(self, known: Holdings, holdings: Holdings) -> None:
        if holdings != known:
            self._write(holdings)

    def _write(self, holdings: Holdings) -> None:
        write_durably(self.path, json.dumps({"format": FORMAT, **asdict(holdings)}, sort_keys=True).encode())


def _holdings(form: dict[str, Any]) -> Holdings:
    generations = {
        str(query): NotedGeneration(int(noted["number"]), str(noted["id"]))
        for query, noted in form.get("generations", {}).items()
    }
    return Holdings(generations, str(form.get("inbox", "")), bool(form.get("offsets", False)))


_log = get_logger()


_PLAN_ID: Final = re.compile(r"[0-9a-f]{32}")
_UNPIN: Final = (
    "restore it from a backup of the state folder, or remove it: the batch is then judged by the active catalog and "
    "settings, and tables that have it already keep what they have"
)


class StateFolder:
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
    def open(cls, root: Path) -> Iterator[StateFolder]:
        """Create the folder if needed, lock it, make it private to its owner, and check its format.

        Raises:
            StateError: another process holds the lock, the format is newer or unknown, or the folder is not writable.
        """
        try:
            create_private_folder(root)
            lock = take_lock(root / "lock")
        except OSError as error:
            file = root / "lock"
            if error.filename is not None and Path(error.filename) == file and os.path.lexists(file):
                hint = f"remove it (rm -rf {file}) when no router runs on this folder, or give it to this user"
                raise StateError(f"{file} cannot be used: {error.strerror}", hint=hint) from error
            raise StateError(
                f"state folder {root} cannot be used: {error.strerror}", hint="choose a writable folder under `state`"
            ) from error
        except LockInUse as holder:
            raise StateError(
                f"state folder {root} is in use by another router (process {holder})",
                hint="stop it first, or use a separate state folder for this one",
            ) from holder
        with lock:
            _keep_private(root)
            state = cls(root)
            state.inventory.create()
            yield state

    @classmethod
    def beside(cls, root: Path) -> StateFolder:
        """Return the folder without its lock, to look at what is there beside a router that may be running.

        Raises:
            StateError: there is no such folder, or its format is newer or unknown.
        """
        if not (root / NAME).exists():
            raise StateError(
                f"{root} is not a state folder of this router",
                hint="name the settings of a router that has run; a relative `state` starts where they are",
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
        pins = (entry for entry in self.batches.glob("*/*") if parse_whole_number(entry.name) is not None)
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
        if changed := restrict_to_owner(root):
            _log.warning(
                "state folder was accessible to other users; it is private now", folder=str(root), entries=changed
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
        number = parse_whole_number(entry.name.partition(".")[0])
        if number is not None:
            yield number, entry


# Notes beside the pin of a batch, in ``state/batches/<query>``: that it is held and why, and that it is set aside.
#
# ``<batch>.held`` is written by the router when a sink keeps it from finishing a batch; it says which sinks have their
# share, since message targets and Kafka cannot be asked later. ``<batch>.park`` is an operator's order to set the batch
# aside; it may be written beside a running router, or before the next start. Both name the checkpoint generation of
# their batch, so that no batch of the same number in another one is taken for it. They are removed with the batch's
# pin.
#
# ``<batch>.order`` (only under ``dead_letters.order: park``) is what the first try found blocked: keys of the batch,
# each with the dead letter that its records wait for.
#
# ``<batch>.parts`` is how a batch is cut that is written in parts, and what is left of it
# (:mod:`router.batches.splitting`). The other notes then mean the part that they name, by its path as text; '' is the
# whole batch.

HELD: Final = ".held"
PARK: Final = ".park"
ORDER: Final = ".order"
PARTS: Final = ".parts"
Note = TypeVar("Note")
_REMOVE: Final = "remove it; the batch is then tried again"
_KEEP: Final = f"{RESTORE}; without it the batch is written from its start, and tables may double"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a batch is not finished: ``since`` when (RFC 3339), the ``sink`` in the way ('' for the circuit breaker).

    ``taken`` are the sinks that have all of their events of the batch, or of that ``part`` of it.
    """

    generation: str
    since: str
    reason: str
    sink: str = ""
    taken: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True, slots=True)
class Park:
    """An order to set a batch aside, given at ``asked`` (RFC 3339).

    ``lacking`` is the router's answer, with the reason for each sink that does not have the batch: None until it has
    looked. A repeat of the batch uses this answer, so that its letters stay the same. For a batch in parts it is about
    one ``part``, and the router looks again for the next.
    """

    generation: str
    asked: str
    lacking: Mapping[str, str] | None = None
    part: str = ""


class BatchNotes:
    """The notes in one ``state/batches`` folder; usable without the state's lock. What is written is durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hold(self, query: str, batch: int, note: Hold) -> None:
        """Note that a batch is held."""
        self._write(query, batch, HELD, asdict(note))

    def held(self, query: str, batch: int, generation: str) -> Hold | None:
        """Return why a batch of that generation is held; None when it is not noted to be."""
        return self._read(query, batch, HELD, generation, lambda note: Hold(**{**note, "taken": tuple(note["taken"])}))

    def release(self, query: str, batch: int) -> None:
        """Note that a batch is not held any more."""
        (self._folder / query / f"{batch}{HELD}").unlink(missing_ok=True)

    def park(self, query: str, batch: int, note: Park) -> None:
        """Order a batch to be set aside, or note what was found when it was."""
        self._write(query, batch, PARK, asdict(note))

    def parked(self, query: str, batch: int, generation: str) -> Park | None:
        """Return the order to set aside a batch of that generation; None when there is none."""
        return self._read(query, batch, PARK, generation, _park)

    def block(self, query: str, batch: int, generation: str, blocked: Mapping[str, str], part: str = "") -> None:
        """Note which keys of a batch, or of that part of it, are blocked, by which letter."""
        note = {"generation": generation, "blocked": dict(blocked), "part": part}
        self._write(query, batch, ORDER, note)

    def blocked(self, query: str, batch: int, generation: str, part: str = "") -> dict[str, str] | None:
        """Return which keys of a batch of that generation were found blocked; None before that was noted."""

        def of_part(note: dict[str, Any]) -> dict[str, str] | None:
            return dict(note["blocked"]) if note.get("part", "") == part else None

        return self._read(query, batch, ORDER, generation, of_part)

    def note_parts(self, query: str, batch: int, note: Mapping[str, Any]) -> None:
        """Note how a batch is cut, and what is left of it."""
        self._write(query, batch, PARTS, note)

    def parts(self, query: str, batch: int, generation: str) -> dict[str, Any] | None:
        """Return how a batch of that generation is cut; None when it is not."""
        return self._read(query, batch, PARTS, generation, dict, hint=_KEEP)

    def _write(self, query: str, batch: int, suffix: str, note: Mapping[str, Any]) -> None:
        content = json.dumps({"format": FORMAT, **note}).encode()
        write_durably(self._folder / query / f"{batch}{suffix}", content)

    def _read(
        self,
        query: str,
        batch: int,
        suffix: str,
        generation: str,
        form: Callable[[dict[str, Any]], Note],
        *,
        hint: str = _REMOVE,
    ) -> Note | None:
        path = self._folder / query / f"{batch}{suffix}"
        note = read_object(path, hint=hint)
        if note is None:
            return None
        version = note.pop("format", None)
        if version != FORMAT:
            other = "use the router version that wrote it"
            raise StateError(f"{path} has format {version}; this router knows {FORMAT}", hint=other)
        try:
            return form(note) if note["generation"] == generation else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, f"it is no such note ({error!r})", hint=hint) from error


def _park(note: dict[str, Any]) -> Park:
    lacking = note["lacking"]
    return Park(note["generation"], note["asked"], None if lacking is None else dict(lacking))


# The account of a query: what it has taken of its source, and what became of it; ``state/ledger/accounts``.
#
# It is written after each batch, when all sinks have it, and names that batch: one that comes again after a crash is
# known, and counted once. It holds counts alone. Without it nothing is lost but these, and they begin anew.

FOLDER: Final = "accounts"


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
            "format": FORMAT,
            "generation": self.generation,
            "batch": self.batch,
            "reached": self.reached,
            "taken": self.taken,
            "judged": self.judged,
            "empty": self.empty,
            "missing": self.missing,
            "records": [[*key, count] for key, count in sorted(self.records.items())],
            "delivered": [[*key, count, self.delivered_bytes[key]] for key, count in sorted(self.delivered.items())],
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Return the account that :meth:`to_json` wrote."""
        if form["format"] != FORMAT:
            raise ValueError(f"it has format {form['format']}")
        taken, judged, empty, missing = (int(form[name]) for name in ("taken", "judged", "empty", "missing"))
        account = cls(str(form["generation"]), int(form["batch"]), dict(form["reached"]), taken, judged, empty, missing)
        for endpoint, outcome, reason, count in form["records"]:
            account.records[endpoint, outcome, reason] = int(count)
        for sink, endpoint, count, size in form["delivered"]:
            account.delivered[sink, endpoint] = int(count)
            account.delivered_bytes[sink, endpoint] = int(size)
        return account


class Accounts:
    """The accounts of a state folder, as this process has them; one for the whole process, from any thread.

    They keep what the disk refused, and write it again later. A query that starts again goes on from what its batches
    did, not from what was written of them.
    """

    def __init__(self, state: StateFolder) -> None:
        self._folder = state.root / "ledger" / FOLDER
        self._lock = threading.RLock()
        self._known: dict[str, Account] = {}
        self._unwritten: set[str] = set()

    def of(self, query: str) -> Account:
        """Return a query's account, the same object at every call; a new one if none can be read."""
        with self._lock:
            known = self._known.get(query)
            if known is None:
                known = self._known[query] = self._read(query)
            return known

    def opened(self, endpoints: Collection[str]) -> dict[str, Account]:
        """Return the folder's accounts, by query. Only counts of these endpoints, and of no endpoint, stay in them.

        Otherwise counts of old endpoints would be written with each batch for ever.
        """
        with self._lock:
            accounts = {path.stem: self.of(path.stem) for path in sorted(self._folder.glob("*.json"))}
            for account in accounts.values():
                account.keep_counts({"", *endpoints})
            return accounts

    def known(self) -> dict[str, Account]:
        """Return all accounts, by query."""
        with self._lock:
            for path in self._folder.glob("*.json"):
                self.of(path.stem)
            return dict(self._known)

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
                write_durably(self._path(query), json.dumps(self.of(query).to_json()).encode())
                self._unwritten.discard(query)
            except OSError as error:
                self._unwritten.add(query)
                _log.warning("counts of a query cannot be saved", query=query, problem=error.strerror)

    def keep_all(self) -> None:
        """Write what the disk has not taken so far."""
        with self._lock:
            for query in sorted(self._unwritten):
                self.keep(query)

    def _read(self, query: str) -> Account:
        path = self._path(query)
        try:
            form = read_object(path)
            return Account() if form is None else Account.from_json(form)
        except (StateError, KeyError, TypeError, ValueError) as error:
            _log.warning("counts of a query cannot be read; starting from zero", file=str(path), problem=str(error))
            return Account()

    def _path(self, query: str) -> Path:
        return self._folder / f"{query}.json"
