"""The account of a query: what it has taken of its source, and what became of it; ``state/ledger/accounts``.

It is written after each batch, when all sinks have it, and names that batch: one that comes again after a crash is
known, and counted once. It holds counts alone. Without it nothing is lost but these, and they begin anew.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from router.errors import StateError
from router.logs import get_logger
from router.state.durable import read_object, write_durably
from router.state.state import StateFolder

if TYPE_CHECKING:
    from router.judging.outputs import Tally

FORMAT: Final = 1
FOLDER: Final = "accounts"
_log = get_logger()


@dataclass(slots=True)
class Account:
    """What a query has done up to a batch of a checkpoint's generation, through all restarts.

    ``taken`` counts records by the offsets of their source, up to ``reached``; ``judged`` those that were judged,
    ``empty`` offsets that held none, ``missing`` outcomes that a sink should have and says it has not. The rest is as
    in :class:`~router.judging.outputs.Tally`.
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
                _log.warning("account of a query cannot be kept", query=query, problem=error.strerror)

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
            _log.warning("account of a query cannot be read, and begins anew", file=str(path), problem=str(error))
            return Account()

    def _path(self, query: str) -> Path:
        return self._folder / f"{query}.json"
