"""State folders that have something of everything, and processes that die at a statement of SQLite."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from unittest.mock import Mock

import pytest

from router.batches.splitting import Splitting
from router.evaluation.forwarding import RelatedRecord
from router.machine import BatchSizing
from router.reading import generations
from router.reading.generations import Positions
from router.reading.streams import ReadTopics
from router.request_reply import Exchanges, Half, RecordToPair
from router.sinks.contract import Commit
from router.state.ledger import (
    DefinitionAtEndpoint,
    LetterLedger,
    Outcome,
    PendingReplay,
    Sighting,
    write_sightings,
)
from router.state.state import Accounts, BlockedKeys, Hold, Park, StateFolder
from tests.support.ledger import attempted

WHEN: Final = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
DOCUMENTS: Final = {hashlib.sha256(text).hexdigest()[:32]: text for text in (b"one", b"two", b"three")}
ONE, TWO, THREE = DOCUMENTS
QUERY: Final = "kafka-1"


def exchanges_in(root: Path) -> Exchanges:
    return Exchanges(root, wait=60.0, most=1, read_until=lambda: 1e9, clock=lambda: 1e9)


def asking(number: int) -> RecordToPair:
    half = Half("/messagegroups/g/messages/ask", f"q{number}", f"t-0-{number}", "", "e")
    return RecordToPair(half, RelatedRecord(half.id, (f"k{number}",)))


def note_parts(state: StateFolder, batch: int) -> None:
    """Note how a batch is split."""
    generation = generations.current(state, QUERY)
    assert generation is not None
    splitting = Splitting(state.batches, QUERY, "kafka", generation, BatchSizing(2**26, 100_000))
    splitting.begin(batch)
    splitting.note()


def fill(root: Path) -> None:
    """Have a router and its commands write something of everything, and end in the middle of a batch and a replay."""
    with StateFolder.open(root) as state:
        generation = generations.begin(state, QUERY, ("t",), '{"t": {"0": 4}}')
        store = state.batches
        for number in (6, 7):
            store.pin(QUERY, number, ONE, DOCUMENTS[ONE])
        store.note(QUERY, 7, Hold(generation.id, "2026-01-02T03:04:05Z", "sink bus: is away", "bus", ("lake",)))
        store.note(QUERY, 7, Park(generation.id, "2026-01-02T03:04:05Z", {"bus": "why"}))
        store.note(QUERY, 7, BlockedKeys(generation.id, {"key": "letter"}))
        note_parts(state, 7)
        Positions(state).keep("1", {"t": {"0": 4, "1": 0}, "missing": {}})
        topics = ReadTopics(Mock(), QUERY, state, lossy=False)
        topics._note({"t": "id-of-t"})
        with Accounts(state.database).changing(QUERY) as account:
            account.generation, account.batch, account.taken = generation.id, 6, 12
            account.records = Counter({("/endpoints/a", "routed", ""): 12})
        place = DefinitionAtEndpoint("/endpoints/a", "/messagegroups/g/messages/m")
        write_sightings(state.database, {place: Sighting("e", 5, 6, 7), place._replace(message=""): Sighting("e", 5)})
    with LetterLedger.open(root) as ledger:
        attempted(ledger, [("a", "no-match", "type"), ("b", "no-match", "")], WHEN)
        ledger.order.append_letters([("key", "gone"), ("key", "b"), ("key", "c"), ("key", "d")])
        ledger.forget(["gone", "d"])
        ledger.order.note_keys_to_free(["key"])
        ledger.begin(PendingReplay(2, TWO, ("a",)), DOCUMENTS[TWO])
        ledger.finish(2, [Outcome("a")], WHEN)
        ledger.begin(PendingReplay(3, TWO, ("b", "c"), ("lake",)), DOCUMENTS[TWO])
    exchanges = exchanges_in(root)
    exchanges.take(Commit("g-relations", 0, ()), QUERY, [asking(number) for number in range(3)])
    exchanges.delivery()
    exchanges.close()


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed state folder that has something of everything."""
    folder = tmp_path_factory.mktemp("filled") / "state"
    fill(folder)
    return folder


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(filled, tmp_path / "state")


def dies_at(step: int, work: Callable[[], object]) -> bool:
    """Do it in a process of its own, which is killed before its *step*th statement; return whether it came to that."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        status = 1
        try:
            count = 0

            def watch(_: str) -> None:
                nonlocal count
                count += 1
                if count >= step:
                    os.kill(os.getpid(), signal.SIGKILL)

            opened = sqlite3.connect

            def connect(*given: object, **named: object) -> sqlite3.Connection:
                connection: sqlite3.Connection = opened(*given, **named)  # type: ignore[call-overload]
                connection.set_trace_callback(watch)
                return connection

            sqlite3.connect = connect  # type: ignore[assignment]
            work()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(ended) or ended == 0, "it failed, and did not die"
    return os.WIFSIGNALED(ended)


def mangle(path: Path, statement: str) -> None:
    """Change a database as no router would."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA ignore_check_constraints = ON")
    database.execute(statement)
    database.close()
